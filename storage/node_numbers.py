"""The permanent node dictionary: append-only numbers of the user's ids, by first appearance.

Order: commit, time, file, line, source before target. A number, once given, never changes, and no later event of a
source changes the number of a node that appeared before it. The numbers are committed with the events; the Delta
table kept here only saves looking through all events, and whoever appends brings it up to date.

R rows    S ends of rows    K known nodes    N new nodes    V codes of ids, those of the second side after the first
"""

import numpy as np
import polars as pl
from deltalake import DeltaTable
from numpy.typing import NDArray

from dyformer.raw_logs.log_ids import are_integers, as_texts, dense
from dyformer.windows import time_order
from storage import delta_tables

NODE_COLUMNS = {"node": pl.Int64, "side": pl.Int8, "id": pl.String, "ingest": pl.Int64}
BLOCK_ROWS = 1 << 20
TABLE_SIZE = 1 << 24  # ids below this are their own places in a table, however few there are
UNKNOWN = -1
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
    source, target, known_K = _coded(events, known)
    num_codes = 1 + max(int(code.to_numpy().max(initial=0)) for code in (source, target, known_K["code"]))
    number_V = np.full(num_codes * (1 + target_side), UNKNOWN, dtype=np.int64)
    number_V[known_K["code"].to_numpy() + known_K["side"].to_numpy() * np.int64(num_codes)] = known_K["node"].to_numpy()
    order_R = time_order(events["time"].to_numpy())
    place_V = _first_places(source.to_numpy(), target.to_numpy(), order_R, target_side * num_codes, len(number_V))
    new_N = np.flatnonzero((place_V != UNKNOWN) & (number_V == UNKNOWN))
    new_N = new_N[np.argsort(place_V[new_N])]
    number_V[new_N] = known.height + np.arange(len(new_N))
    row_N, is_target_N = order_R[place_V[new_N] // 2], place_V[new_N] % 2 == 1
    ids = (events[name].gather(row_N).cast(pl.String) for name in ("target", "source"))
    id_N = next(ids).zip_with(pl.Series(is_target_N), next(ids))
    nodes = {"node": number_V[new_N], "side": (is_target_N * target_side).astype(np.int8), "id": id_N}
    number_V = number_V.astype(np.uint32)
    return events.with_columns(
        source_node=number_V[source.to_numpy()], target_node=number_V[target_side * num_codes :][target.to_numpy()]
    ), pl.DataFrame(nodes)


def ids_are_integers(nodes: pl.DataFrame) -> bool:
    """Whether every id is the usual text of a 64-bit integer, so that an export can cast them without loss."""
    return nodes.select(
        (pl.col("id").cast(pl.Int64, strict=False).cast(pl.String) == pl.col("id")).fill_null(False).all()
    ).item()


def _coded(events: pl.DataFrame, known: pl.DataFrame) -> tuple[pl.Series, pl.Series, pl.DataFrame]:
    """Put small numbers (UInt32) for ids: the sources, the targets, and known nodes that may be among them (`code`)."""
    source, target = events["source"].rechunk(), events["target"].rechunk()
    if not are_integers(source, target):
        # All are held until all are coded: codes that no column holds are given anew.
        texts = [as_texts(ids) for ids in (source, target, known["id"])]
        source, target, code = (ids.to_physical() for ids in texts)
        return source, target, known.with_columns(code=code)
    largest = max(int(ids.to_numpy().max(initial=0)) for ids in (source, target))
    known = known.with_columns(code=pl.col("id").cast(pl.Int64, strict=False))
    known = known.filter((pl.col("code").cast(pl.String) == pl.col("id")) & pl.col("code").is_between(0, largest))
    if largest < max(TABLE_SIZE, events.height):
        return source.cast(pl.UInt32), target.cast(pl.UInt32), known
    code = dense(pl.concat([ids.cast(pl.Int64) for ids in (source, target, known["code"])]))
    source, target = code.head(events.height), code.slice(events.height, events.height)
    return source, target, known.with_columns(code=code.tail(known.height))


def _first_places(
    source_R: NDArray[np.uint32], target_R: NDArray[np.uint32], order_R: NDArray[np.int64], shift: int, num_values: int
) -> NDArray[np.int64]:
    """Where each node first appears among the ends in order of time, source before target: [V], UNKNOWN for never."""
    pair_R = np.column_stack([source_R, target_R]).view(np.uint64).ravel()  # what is fetched together costs once
    place_V = np.full(num_values, UNKNOWN, dtype=np.int64)
    for stop in range(len(order_R), 0, -BLOCK_ROWS):  # of several assignments the last one stays, so the earliest
        row_B = order_R[max(stop - BLOCK_ROWS, 0) : stop]
        end_S = pair_R[row_B].view(np.uint32).astype(np.int64)
        end_S[1::2] += shift
        place_V[end_S[::-1]] = np.arange(2 * stop - 1, 2 * (stop - len(row_B)) - 1, -1)
    return place_V


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
