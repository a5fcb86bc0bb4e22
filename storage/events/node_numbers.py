"""The permanent node dictionary: append-only numbers of the user's ids, by first appearance.

Order: commit, time, file, line, source before target. A number, once given, never changes, and no later event of a
source changes the number of a node that appeared before it. The numbers are committed with the events; the Delta
table kept here only saves looking through all events, and whoever appends brings it up to date.

R rows    K known nodes    N new nodes    V codes of ids, those of the second side after the first
"""

import numpy as np
import polars as pl
from deltalake import DeltaTable
from numpy.typing import NDArray

from dyformer.graphs.windows import time_keys
from dyformer.logs.ids import ENDS, ID, are_integers, as_texts, dense
from storage.events import delta as delta_tables

NODE_COLUMNS = {"node": pl.Int64, "side": pl.Int8, "id": pl.String, "ingest": pl.Int64}
BLOCK_ROWS = 1 << 17
TABLE_SIZE = 1 << 24  # ids below this are their own places in a table, however few there are
UNKNOWN = -1
NEVER = np.iinfo(np.int64).max
APPLICATION = "nodes"  # its recorded version: the event table version up to which the dictionary is kept


def known_nodes(address: str, interactions: DeltaTable, version: int) -> pl.DataFrame:
    """Nodes of all commits up to `version`, by number: node, side, id, ingest. Writes nothing."""
    kept = delta_tables.opened(address)
    nodes = pl.concat([_kept_nodes(kept), _nodes_since(interactions, kept)])
    return nodes.filter(pl.col("ingest") <= version).sort("node")


def extend(address: str, interactions: DeltaTable, newest: pl.DataFrame | None = None) -> None:
    """Bring the kept dictionary up to the version of the event table; what a killed writer left is made up for.

    `newest` has the nodes (node, side, id) that the last commit brought, which saves looking for them in its rows.
    """
    committed = False
    while not committed:
        kept = delta_tables.opened_or_created(address, NODE_COLUMNS)
        version = interactions.version()
        if _covered(kept) >= version:
            return
        if newest is not None and _covered(kept) == version - 1:
            nodes = newest.with_columns(ingest=pl.lit(version, pl.Int64))
        else:
            nodes = _nodes_since(interactions, kept)
        committed = delta_tables.commit_if_unchanged(kept, nodes, APPLICATION, version, {})


def numbered(events: pl.DataFrame, known: pl.DataFrame, target_side: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Number the nodes of events in log order; new nodes continue the known numbers.

    Returns:
        The events with `source_node` and `target_node` (UInt32), and the new nodes by number: node, side, id.
    """
    ends = _ends(events)
    source, target, known_K = _coded(ends, known)
    num_codes = 1 + max(int(code.to_numpy().max(initial=0)) for code in (source, target, known_K["code"]))
    number_V = np.full(num_codes * (1 + target_side), UNKNOWN, dtype=np.int64)
    number_V[known_K["code"].to_numpy() + known_K["side"].to_numpy() * np.int64(num_codes)] = known_K["node"].to_numpy()
    key_R, row_bits = time_keys(events["time"].to_numpy())
    first_V = np.full(len(number_V), NEVER, dtype=np.int64)
    _set_first(first_V, source.to_numpy(), key_R, is_target=False)
    _set_first(first_V[target_side * num_codes :], target.to_numpy(), key_R, is_target=True)
    new_N = np.flatnonzero((first_V != NEVER) & (number_V == UNKNOWN))
    new_N = new_N[np.argsort(first_V[new_N])]
    number_V[new_N] = known.height + np.arange(len(new_N))
    row_N, is_target_N = first_V[new_N] >> 1 & (1 << row_bits) - 1, first_V[new_N] % 2 == 1
    source_N, target_N = (ids.gather(row_N) for ids in ends)
    id_N = target_N.zip_with(pl.Series(is_target_N), source_N).cast(pl.String)
    nodes = {"node": number_V[new_N], "side": (is_target_N * target_side).astype(np.int8), "id": id_N}
    number = pl.Series(number_V.astype(np.uint32))
    return events.with_columns(
        source_node=number.gather(source), target_node=number.slice(target_side * num_codes).gather(target)
    ), pl.DataFrame(nodes)


def ids_are_integers(nodes: pl.DataFrame) -> bool:
    """Whether every id is the usual text of a 64-bit integer, so that an export can cast them without loss."""
    return nodes.select(
        (pl.col("id").cast(pl.Int64, strict=False).cast(pl.String) == pl.col("id")).fill_null(False).all()
    ).item()


def _ends(events: pl.DataFrame) -> list[pl.Series]:
    """Give the sources and the targets, both as integers or both as Categorical."""
    ends = [events[name].rechunk() for name in ENDS]
    return ends if are_integers(*ends) else [as_texts(ids) for ids in ends]


def _coded(ends: list[pl.Series], known: pl.DataFrame) -> tuple[pl.Series, pl.Series, pl.DataFrame]:
    """Put small numbers (UInt32) for ids: the sources, the targets, and known nodes that may be among them (`code`)."""
    source, target = ends
    if source.dtype == ID:
        code = pl.Series("code", as_texts(known["id"])).to_physical()
        return source.to_physical(), target.to_physical(), known.with_columns(code)
    largest = max(int(ids.to_numpy().max(initial=0)) for ids in ends)
    known = known.with_columns(code=pl.col("id").cast(pl.Int64, strict=False))
    known = known.filter((pl.col("code").cast(pl.String) == pl.col("id")) & pl.col("code").is_between(0, largest))
    if largest < max(TABLE_SIZE, source.len()):
        return source.cast(pl.UInt32), target.cast(pl.UInt32), known
    code = dense(pl.concat([ids.cast(pl.Int64) for ids in (*ends, known["code"])]))
    source, target = code.head(source.len()), code.slice(source.len(), target.len())
    return source, target, known.with_columns(code=code.tail(known.height))


def _set_first(
    first_V: NDArray[np.int64], code_R: NDArray[np.uint32], key_R: NDArray[np.int64], *, is_target: bool
) -> None:
    """Lower the key at which each id is first met: twice that of the row, a target right after its source."""
    for first in range(0, len(key_R), BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        np.minimum.at(first_V, code_R[rows].astype(np.intp), 2 * key_R[rows] + is_target)


def _nodes_since(interactions: DeltaTable, kept: DeltaTable | None) -> pl.DataFrame:
    """Nodes that first appear in commits after those the kept dictionary covers."""
    covered = _covered(kept)
    rows = delta_tables.scan(interactions, "accepted=true")
    if covered >= interactions.version() or not rows.collect_schema():
        return pl.DataFrame(schema=NODE_COLUMNS)
    new = rows.filter(pl.col("ingest") > covered)
    ends = pl.concat(
        [
            new.select(node="source_node", side=pl.lit(0, pl.Int8), id="source", ingest="ingest"),
            new.select(node="target_node", side="target_side", id="target", ingest="ingest"),
        ]
    )
    num_kept = _kept_nodes(kept).height
    first = ends.filter(pl.col("node") >= num_kept).group_by("node", "side", "id").agg(pl.col("ingest").min())
    return first.sort("node").select(NODE_COLUMNS.keys()).collect(engine="streaming")


def _covered(kept: DeltaTable | None) -> int:
    return (kept.transaction_version(APPLICATION) or 0) if kept is not None else 0


def _kept_nodes(kept: DeltaTable | None) -> pl.DataFrame:
    if kept is None or not kept.file_uris():
        return pl.DataFrame(schema=NODE_COLUMNS)
    return delta_tables.scan(kept).select(NODE_COLUMNS.keys()).collect()
