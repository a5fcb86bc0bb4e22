"""SQL over the store: a view for every artifact.

DuckDB reads only Polars frames, so an S3 store needs no DuckDB extension. Its own access to files is switched off,
so a statement can read only the views and write nothing.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import duckdb
import polars as pl

from dyformer import InvalidInput
from dyformer.logs.validation import FIRST_CLOCK_TIME, LAST_CLOCK_TIME
from storage.artifacts.artifact import MANIFEST, open_artifact, without_manifest
from storage.bytes import files
from storage.bytes.checksums import Damaged, link_in
from storage.champions import PUBLISHED_TABLES, check_one_space, latest_tables, ledger
from storage.events.declarations import declaration
from storage.events.rows import NODE_COLUMNS, REJECTED_COLUMNS, STORED_COLUMNS
from storage.events.table import DatasetNotIngested, node_dictionary, scan_events, scan_quarantine
from storage.layout import Layout

TIMESTAMP = pl.Datetime("us")  # of DuckDB, without a time zone: all times are in UTC
CLOCK = ("arrival",)
"""Columns with microseconds since the epoch, whatever unit the times of the log have."""

TIMES = ("time", "start_time", "end_time")
"""Columns with times of the log: microseconds since the epoch, or integer steps."""

KEY_TYPES = {"dataset": pl.String, "version": pl.Int64, "until": pl.Int64, "settings": pl.String, "seed": pl.Int64}

# The error stands in the condition, because DuckDB computes no column that a statement does not use.
EMPTY = "create view {name} as select 1 as unread where error('{problem}') is null"
UNREAD = "write the name of the view {name} in the statement"
NO_PART = "the view {name} has no sound part: none was made or published, or each is damaged"
CHECKSUM = re.compile(r"-[0-9a-f]{12}(?=\.parquet$)")  # in the name of an object
EVENT_SCHEMAS = {
    "events": {**STORED_COLUMNS, "time": TIMESTAMP, "arrival": TIMESTAMP, "time_step": pl.Int64},
    "quarantine": {**REJECTED_COLUMNS, "arrival": TIMESTAMP},
    "nodes": {name: NODE_COLUMNS[name] for name in ("node", "side", "id")},
}


LOGGING = re.compile(r"\benable_logging\b", re.IGNORECASE)
"""A log in a file, which may not be written, ends the process: DuckDB raises in a destructor."""


FOREIGN = re.compile(r"\b(INTERVAL|UNION|BIT|TIME_NS|TIMESTAMP_NS|TIMESTAMP_S|(?<!WITH )TIME)\b")
"""Types of DuckDB that polars lacks, or reads wrongly: 24:00 as missing, and some infinite times as others.

A difference of two times is an interval.
"""


MICROSECONDS = {pl.Date: 86_400_000_000, pl.Datetime("ms"): 1_000, TIMESTAMP: 1}
"""Units of the types with times that polars cannot print."""


class QueryFailed(InvalidInput):
    """A statement is wrong, or names a view that does not exist."""


OnDamage = Callable[[Damaged], None]
"""Called for each damaged part that a statement would read, which the views then lack."""


def stop(damage: Damaged) -> None:
    """Raise the error."""
    raise damage


def query(layout: Layout, statement: str, on_damage: OnDamage = stop) -> pl.DataFrame:
    """Rows of one statement over the store's views; QueryFailed lists the views.

    The checksums of all files behind the views that the statement names are verified first.
    """
    if LOGGING.search(statement):
        raise QueryFailed("logging of DuckDB cannot be switched on here: write a select over the views")
    with open_views(layout, statement, on_damage) as connection:
        views = ", ".join(view_names(connection)) or "none yet: run `dyformer ingest` first"
        try:
            result = connection.sql(statement)
            rows = _frame(result) if result is not None else None
        except duckdb.CatalogException as error:
            missing = re.search(r"Table with name (\S+) does not exist", str(error))
            if missing is None:
                raise QueryFailed(f"{error}\nviews: {views}") from error
            raise QueryFailed(
                f"there is no view {missing[1]!r}\nviews: {views}\n"
                "`dyformer run DATASET` adds views such as forecasts and vectors"
            ) from error
        except duckdb.Error as error:
            raise QueryFailed(f"{error}\nviews: {views}") from error
    if rows is None:
        raise QueryFailed(f"{statement!r} returns no rows: write a select\nviews: {views}")
    for column in rows:
        if _has_far_times(column):
            raise QueryFailed(
                f"the column {column.name} has times outside the years 1 to 9999, such as infinity: select them as"
                f" text, {column.name}::varchar"
            )
    return rows


def _has_far_times(column: pl.Series) -> bool:
    """Whether a column has times that no calendar of Python has: printing them ends the process."""
    if isinstance(column.dtype, pl.List | pl.Array):
        return _has_far_times(column.explode())
    if isinstance(column.dtype, pl.Struct):
        return any(map(_has_far_times, column.struct.unnest()))
    dtype = pl.Datetime(column.dtype.time_unit) if isinstance(column.dtype, pl.Datetime) else column.dtype
    unit = MICROSECONDS.get(dtype)
    if unit is None:
        return False
    return not column.to_physical().is_between(FIRST_CLOCK_TIME // unit, LAST_CLOCK_TIME // unit).all()


def _frame(rows: duckdb.DuckDBPyRelation) -> pl.DataFrame:
    """Give rows as a frame; columns of types that polars lacks or reads wrongly become texts, as 188 days 21:40:00."""
    if not any(FOREIGN.search(str(kind)) for kind in rows.types):
        return rows.pl()
    columns = ", ".join(f"c{index}" for index in range(len(rows.columns)))  # names may occur twice
    texts = ", ".join(
        f"c{index}{'::varchar' if FOREIGN.search(str(kind)) else ''} as {duckdb.ColumnExpression(name)}"
        for index, (name, kind) in enumerate(zip(rows.columns, rows.types, strict=True))
    )
    selected = rows.query("result", f"select {texts} from result as result({columns})")  # noqa: S608 - the names are quoted
    assert selected is not None  # as after a statement that is no select
    return selected.pl()


def view_names(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Names of the views of a connection, sorted."""
    rows = connection.execute("select view_name from duckdb_views() where not internal order by 1").fetchall()
    return [name for (name,) in rows]


def open_views(layout: Layout, statement: str | None = None, on_damage: OnDamage = stop) -> duckdb.DuckDBPyConnection:
    """A connection with a view for each kind of table.

    `events`, `quarantine` and `nodes` have the column `dataset`. A table of an artifact has the keys of its address
    (dataset, version, until, settings, seed). Its view is named by its kind, or by kind and name where they differ:
    `pagerank`, `vectors`, `forecasts`, `snapshots_edges`, `snapshots_steps`, `snapshots_nodes`. The `row_version` of a
    step is that of the newest commit with an event up to its end. Of what the champions
    of all datasets have published, `latest_forecasts`, `latest_forecasts_new` (new links alone) and `latest_vectors`
    have the newest, and `ledger` has a row for each publication with what came of it (`precision_at_10`,
    `calibration_error`, ...), null as long as its step is not complete.

    Times are of the type TIMESTAMP, in UTC. Of a log with integer steps they are null, and `time_step`,
    `start_time_step` and `end_time_step` have the integers.

    With a statement, only the views whose names it contains can be read, because every file that is read is verified.
    """
    connection = duckdb.connect()
    connection.execute("set enable_external_access = false")  # DuckDB refuses to switch it on again
    for name, frame in _frames(layout, statement, on_damage).items():
        if frame is None:
            problem = NO_PART if _is_named(name, statement) else UNREAD
            connection.execute(EMPTY.format(name=name, problem=problem.format(name=name)))
        else:
            connection.register(name, frame)
    return connection


def _is_named(view: str, statement: str | None) -> bool:
    return statement is None or re.search(rf"\b{view}\b", statement, re.IGNORECASE) is not None


def _frames(layout: Layout, statement: str | None, on_damage: OnDamage) -> dict[str, pl.LazyFrame | None]:
    """Give the rows of each view, None for one that the statement does not name, or without a sound part.

    The names of views are those of files, so that only what the statement names is opened.
    """
    parts: dict[str, list[pl.LazyFrame]] = {}

    def is_named(view: str) -> bool:
        parts.setdefault(view, [])
        return _is_named(view, statement)

    for name in layout.dataset_names(files.children(layout.datasets)):
        with _damage_reported(on_damage):
            _add_events(layout, name, parts, is_named)
            _add_published(layout, name, parts, is_named)
    for folder in layout.artifact_folders:
        _add_artifacts(layout, folder, parts, statement, on_damage)
    return {name: pl.concat(frames, how="diagonal_relaxed") if frames else None for name, frames in parts.items()}


@contextmanager
def _damage_reported(on_damage: OnDamage) -> Iterator[None]:
    try:
        yield
    except Damaged as error:
        on_damage(error)


def _add_events(
    layout: Layout, dataset: str, parts: dict[str, list[pl.LazyFrame]], is_named: Callable[[str], bool]
) -> None:
    key = pl.lit(dataset).alias("dataset")
    views = {
        "events": lambda: with_timestamps(layout, dataset, scan_events(layout, dataset)),
        "quarantine": lambda: with_timestamps(layout, dataset, scan_quarantine(layout, dataset)),
        "nodes": lambda: node_dictionary(layout, dataset).lazy(),
    }
    for view, rows in views.items():
        if is_named(view):
            if not parts[view]:  # the columns, also where every dataset is damaged
                parts[view].append(pl.LazyFrame(schema={**EVENT_SCHEMAS[view], "dataset": pl.String}))
            with suppress(DatasetNotIngested):
                parts[view].append(rows().with_columns(key))


def _add_artifacts(
    layout: Layout,
    folder: str,
    parts: dict[str, list[pl.LazyFrame]],
    statement: str | None,
    on_damage: OnDamage,
) -> None:
    """Add the artifacts of the kinds that the statement names; report the damaged ones among them."""
    located = files.find(folder)

    def is_named(address: str) -> bool:
        kind = re.escape(layout.kind_of(address))
        return statement is None or re.search(rf"\b{kind}(_\w+)?\b", statement, re.IGNORECASE) is not None

    for location in located:
        name, is_table, _ = CHECKSUM.sub("", location.rpartition("/")[2]).partition(".parquet")
        view = _view(layout, location, name)
        if is_table and re.fullmatch(r"\w+", view):  # a user may have put another file there
            parts.setdefault(view, [])
    for link in filter(is_named, files.links(folder)):
        on_damage(Damaged(link, str(link_in(link)), "remove it, and the next run makes the artifact again"))
    for address in filter(is_named, without_manifest(located)):
        on_damage(Damaged(address, f"has files but no {MANIFEST}", "`dyformer verify --repair` removes it"))
    for location in filter(is_named, located):
        if location.endswith(f"/{MANIFEST}"):
            with _damage_reported(on_damage):
                _add_artifact(layout, location.removesuffix(f"/{MANIFEST}"), parts, statement)


def _view(layout: Layout, address: str, name: str) -> str:
    kind = layout.kind_of(address)
    return kind if name == kind else f"{kind}_{name}"


def _add_artifact(layout: Layout, address: str, parts: dict[str, list[pl.LazyFrame]], statement: str | None) -> None:
    artifact = open_artifact(address)
    for file in sorted(artifact.entries):
        name = file.removesuffix(".parquet")
        view = _view(layout, address, name)
        if name != file and _is_named(view, statement):
            dated = with_timestamps(layout, layout.describe(address)[1]["dataset"], artifact.scan(name))
            parts.setdefault(view, []).append(_with_keys(layout, address, dated))


def _add_published(
    layout: Layout, dataset: str, parts: dict[str, list[pl.LazyFrame]], is_named: Callable[[str], bool]
) -> None:
    """Add what the champions of a dataset publish, if they have published something."""
    if not files.children(layout.artifacts("publications", dataset)):
        return
    if is_named("ledger"):
        rows = with_timestamps(layout, dataset, ledger(layout, dataset).lazy())
        parts["ledger"].append(rows.with_columns(pl.lit(dataset).alias("dataset")))
    named = [name for name in PUBLISHED_TABLES if is_named(f"latest_{name}")]
    tables = latest_tables(layout, dataset) if named else {}
    for name in filter(tables.__contains__, named):
        address, rows = tables[name]
        if name == "vectors":
            check_one_space(rows.select("space_id").collect(), address)
        parts[f"latest_{name}"].append(_with_keys(layout, address, rows))


def _with_keys(layout: Layout, address: str, rows: pl.LazyFrame) -> pl.LazyFrame:
    """Give rows of an artifact with the keys of its address; a row's own version is `row_version`."""
    _, keys = layout.describe(address)
    if "version" in keys and "version" in rows.collect_schema():  # a step's, which may be older
        rows = rows.rename({"version": "row_version"})
    return rows.with_columns(pl.lit(value).cast(KEY_TYPES[key]).alias(key) for key, value in keys.items())


def with_timestamps(layout: Layout, dataset: str, rows: pl.LazyFrame) -> pl.LazyFrame:
    """Give the times of rows as TIMESTAMP; those of a log with integer steps are null, beside columns of integers."""
    schema = rows.collect_schema()
    rows = rows.with_columns(pl.col(name).cast(TIMESTAMP) for name in CLOCK if schema.get(name) == pl.Int64)
    times = [name for name in TIMES if schema.get(name) == pl.Int64]
    if not times:
        return rows
    if (declaration(layout, dataset) or {}).get("time_unit") != "step":
        return rows.with_columns(pl.col(times).cast(TIMESTAMP))
    return rows.with_columns(
        *(pl.col(name).alias(f"{name}_step") for name in times),
        *(pl.lit(None, TIMESTAMP).alias(name) for name in times),
    )
