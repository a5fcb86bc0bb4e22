"""Rows of one source on disk -> rows for the event table: DuckDB counts, compares and numbers them block by block.

Memory holds only the rejected rows and the ids of the nodes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.logs.events import check_usable, event_blocks
from dyformer.logs.plan import ReadPlan
from dyformer.logs.raw_file import RawFile
from dyformer.logs.validation import far_bounds, order_positions, quarantined_events
from storage.events import scratch_database
from storage.events.rows import QUARANTINE_COLUMNS, SAME

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

EVENTS = """
CREATE TABLE {table} (
    source VARCHAR NOT NULL, target VARCHAR NOT NULL, time BIGINT NOT NULL,
    weight DOUBLE NOT NULL CHECK (isfinite(weight)), label TINYINT, line BIGINT NOT NULL, rest UBIGINT
)
"""
NUM_DISTINCT = "SELECT count(*) FROM (SELECT DISTINCT source, target, time, weight, label, rest FROM {table})"
NUM_MOMENTS = "SELECT count(*) FROM (SELECT DISTINCT source, target, time FROM {table})"
FIRST_OF_EACH = """
CREATE TABLE {table}_distinct AS
SELECT source, target, time, weight, label, min(line) AS line, rest FROM {table}
GROUP BY source, target, time, weight, label, rest
"""
ADD_EARLIER = "INSERT INTO known SELECT source, target, time, weight, label FROM {table}"
FIRST_AND_LAST = "SELECT min(time), max(time), count(*) FROM {table}"
IN_ORDER = "SELECT time FROM {table} ORDER BY time LIMIT 1 OFFSET {position}"
OUTSIDE = "SELECT * FROM {table} WHERE time NOT BETWEEN {first} AND {last} ORDER BY line"
REMOVE_OUTSIDE = "DELETE FROM {table} WHERE time NOT BETWEEN {first} AND {last}"
SAMPLED = "SELECT source, target, time FROM {table} WHERE hash(line) % {every} = 0"  # lines may all be odd
NUM_EVENTS = "SELECT count(*) FROM {table}"
TIME_RANGE = "SELECT min(time), max(time) FROM {table}"
TIMES = "SELECT time FROM {table}"
WITH_ID = "SELECT {end}, count(*) FROM {table} WHERE {end} IN (SELECT unnest(?)) GROUP BY ALL"
NOT_KNOWN = """
CREATE OR REPLACE TABLE {table}_new AS SELECT * FROM {table} e WHERE NOT EXISTS (
    SELECT 1 FROM known k WHERE k.source = e.source AND k.target = e.target AND k.time = e.time
    AND k.weight = e.weight AND k.label IS NOT DISTINCT FROM e.label
)
"""
KNOWN = "CREATE OR REPLACE TABLE known (source VARCHAR, target VARCHAR, time BIGINT, weight DOUBLE, label TINYINT)"
OF = "SELECT DISTINCT source, target, time, weight, label, {index} AS of FROM {table}"
SHARED = """
SELECT count(*) FILTER (num_with > 1), count(*) FROM (
    SELECT of, count(*) OVER (PARTITION BY source, target, time, weight, label) AS num_with FROM ({each})
) WHERE of > 0 GROUP BY of ORDER BY of
"""
IN_TIME = "CREATE OR REPLACE TABLE in_time AS SELECT source, target FROM {table} ORDER BY time, line"
NEW_NODES = """
SELECT side, id FROM (
    SELECT 0::TINYINT AS side, source AS id, 2 * rowid AS position FROM in_time
    UNION ALL SELECT {target_side}::TINYINT, target, 2 * rowid + 1 FROM in_time
) ANTI JOIN nodes USING (side, id)
GROUP BY side, id ORDER BY min(position)
"""
NUMBERED = """
SELECT e.* EXCLUDE (rest), s.node AS source_node, t.node AS target_node
FROM {table} e JOIN nodes s ON s.id = e.source AND s.side = 0
JOIN nodes t ON t.id = e.target AND t.side = {target_side}
ORDER BY e.line
"""


@dataclass(frozen=True, kw_only=True)
class SpilledRows:
    """Like `HeldRows`, with the events in a table of an open scratch database."""

    connection: "DuckDBPyConnection"
    table: str
    file: str
    quarantine: pl.DataFrame
    num_read: int
    num_comments: int
    num_events: int
    num_dropped: int
    num_duplicates: int
    num_alike: int = 0

    @property
    def num_quarantined(self) -> int:
        """Rejected rows."""
        return self.quarantine.height

    def time_range(self) -> tuple[int, int]:
        """Time of the first and of the last event."""
        first, last = scratch_database.one_row(self.connection, TIME_RANGE.format(table=self.table))
        return first, last

    def sampled(self, num_rows: int) -> pl.DataFrame:
        """Give source, target and time of about so many rows, or of all if there are fewer."""
        every = max(1, self.num_events // num_rows)
        return self.connection.sql(SAMPLED.format(table=self.table, every=every)).pl()

    def num_with(self, end: str, ids: Sequence[str]) -> dict[str, int]:
        """Count the events with an end that is one of some texts, by the text."""
        return dict(self.connection.execute(WITH_ID.format(end=end, table=self.table), [ids]).fetchall())

    @property
    def files(self) -> list[str]:
        """Name of the file that the rows come from."""
        return [self.file]

    def without(self, known: pl.LazyFrame, earlier: "Iterable[SpilledRows]" = ()) -> "SpilledRows":
        """Leave out the events that are equal to a row of `known` or of the earlier sources."""
        self.connection.execute(KNOWN)
        scratch_database.insert(self.connection, "known", known.select(SAME).collect_batches())
        for source in earlier:
            self.connection.execute(ADD_EARLIER.format(table=source.table))
        self.connection.execute(NOT_KNOWN.format(table=self.table))
        table = f"{self.table}_new"
        (num_events,) = scratch_database.one_row(self.connection, NUM_EVENTS.format(table=table))
        num_dropped = self.num_dropped + self.num_events - num_events
        return replace(self, table=table, num_events=num_events, num_dropped=num_dropped)

    def numbered(self, known: pl.DataFrame, target_side: int) -> tuple[Iterator[pl.DataFrame], pl.DataFrame]:
        """Number the nodes as `rows.numbered` does; returns the events in log order, block by block, and new nodes."""
        self._set_nodes(known)
        self.connection.execute(IN_TIME.format(table=self.table))
        new = self.connection.sql(NEW_NODES.format(target_side=target_side)).pl()
        nodes = new.select(node=pl.int_range(known.height, known.height + pl.len()), side="side", id="id")
        self._set_nodes(pl.concat([known.select(nodes.columns), nodes]))
        query = NUMBERED.format(table=self.table, target_side=target_side)
        blocks = scratch_database.batches(self.connection, query)
        return (block.with_columns(file=pl.lit(self.file)) for block in blocks), nodes

    def _set_nodes(self, nodes: pl.DataFrame) -> None:
        scratch_database.create(self.connection, "nodes", nodes.select("node", "side", "id"))


def spill_events(
    connection: "DuckDBPyConnection", table: str, file: RawFile, plan: ReadPlan, *, drop_duplicates: bool = False
) -> SpilledRows:
    """Read a file as `dyformer.logs.events.read_events` does, errors included, and store its events in a new table."""
    connection.execute(EVENTS.format(table=table))
    rejected = [pl.DataFrame(schema=QUARANTINE_COLUMNS)]
    num_usable = num_comments = 0
    for events, quarantine, comments in event_blocks(file, plan):
        rejected.append(quarantine)
        num_comments += comments
        num_usable += scratch_database.insert(connection, table, [events.drop("file")])
    far = _far_rows(connection, table, file, plan)
    quarantine, num_usable = pl.concat([*rejected, far]), num_usable - far.height
    check_usable(num_usable, quarantine, [file], plan, num_comments)
    (num_distinct,) = scratch_database.one_row(connection, NUM_DISTINCT.format(table=table))
    (num_moments,) = scratch_database.one_row(connection, NUM_MOMENTS.format(table=table))
    if drop_duplicates:
        connection.execute(FIRST_OF_EACH.format(table=table))
    return SpilledRows(
        connection=connection,
        table=f"{table}_distinct" if drop_duplicates else table,
        file=file.name,
        quarantine=quarantine,
        num_read=num_usable + quarantine.height,
        num_comments=num_comments,
        num_events=num_distinct if drop_duplicates else num_usable,
        num_dropped=num_usable - num_distinct if drop_duplicates else 0,
        num_duplicates=num_usable - num_distinct,
        num_alike=num_distinct - num_moments,
    )


def _far_rows(connection: "DuckDBPyConnection", table: str, file: RawFile, plan: ReadPlan) -> pl.DataFrame:
    """Take the rows whose times are far from the others out of a table, as `read_events` does."""
    max_years = file.limits.max_years_apart
    first, last, num_rows = scratch_database.one_row(connection, FIRST_AND_LAST.format(table=table))
    positions = order_positions(num_rows, first, last, max_years, plan.time_unit)
    if positions is None:
        return pl.DataFrame(schema=QUARANTINE_COLUMNS)
    ends = [scratch_database.one_row(connection, IN_ORDER.format(table=table, position=at))[0] for at in positions]
    lowest, highest = far_bounds(ends[0], ends[1], max_years)
    far = connection.sql(OUTSIDE.format(table=table, first=lowest, last=highest)).pl()
    connection.execute(REMOVE_OUTSIDE.format(table=table, first=lowest, last=highest))
    return quarantined_events(far.with_columns(file=pl.lit(file.name)), max_years)


def times_of(
    connection: "DuckDBPyConnection", stored: Sequence[pl.LazyFrame], rows: Sequence[SpilledRows]
) -> NDArray[np.int64]:
    """Sort the times of stored events (their only column) and of spilled rows together."""
    connection.execute("CREATE OR REPLACE TABLE stored (time BIGINT)")
    for times in stored:
        scratch_database.insert(connection, "stored", times.collect_batches())
    tables = ["stored", *(file_rows.table for file_rows in rows)]
    return scratch_database.sorted_times(connection, " UNION ALL ".join(TIMES.format(table=table) for table in tables))


def shared_rows(
    connection: "DuckDBPyConnection", known: pl.LazyFrame, sources: Sequence[SpilledRows]
) -> list[tuple[int, int]]:
    """Count as `rows.shared_rows` does."""
    connection.execute(KNOWN)
    scratch_database.insert(connection, "known", known.select(SAME).collect_batches())
    tables = ["known", *(source.table for source in sources)]
    selects = " UNION ALL ".join(OF.format(index=index, table=table) for index, table in enumerate(tables))
    return connection.sql(SHARED.format(each=selects)).fetchall()
