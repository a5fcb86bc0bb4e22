"""The permanent node dictionary: append-only numbers of the user's ids, by first appearance.

Order: commit, time, file, line, source before target. A number, once given, never changes, and no later event of a
source changes the number of a node that appeared before it. The numbers are committed with the events; the Delta
table kept here only saves looking through all events, and whoever appends brings it up to date.
"""

import polars as pl
from deltalake import DeltaTable

from storage import delta_tables

NODE_COLUMNS = {"node": pl.Int64, "side": pl.Int8, "id": pl.String, "ingest": pl.Int64}
APPLICATION = "nodes"  # its recorded version: the event table version up to which the dictionary is kept


def known_nodes(address: str, interactions: DeltaTable, version: int) -> pl.DataFrame:
    """Nodes of all commits up to `version`, by number: node, side, id, ingest. Writes nothing."""
    kept = delta_tables.opened(address)
    nodes = pl.concat([_kept_nodes(kept), _nodes_since(interactions, kept)])
    return nodes.filter(pl.col("ingest") <= version).sort("node")


def extend(address: str, interactions: DeltaTable) -> None:
    """Bring the kept dictionary up to the version of the event table; what a killed writer left is made up for."""
    committed = False
    while not committed:
        kept = delta_tables.opened_or_created(address, NODE_COLUMNS)
        version = interactions.version()
        if _covered(kept) >= version:
            return
        committed = delta_tables.commit_if_unchanged(kept, _nodes_since(interactions, kept), APPLICATION, version, {})


def numbered(events: pl.DataFrame, known: pl.DataFrame, target_side: int) -> pl.DataFrame:
    """Events in log order -> the same with `source_node` and `target_node`; new nodes continue the known numbers."""
    first = _first_appearances(events, target_side)
    new = first.join(known, on=["side", "id"], how="anti").sort("place")
    numbers = new.select("side", "id", node=pl.int_range(pl.len()) + known.height)
    nodes = pl.concat([known.select("side", "id", "node"), numbers])
    for end, side in (("source", 0), ("target", target_side)):
        of_side = nodes.filter(pl.col("side") == side).select(
            pl.col("id").alias(end), pl.col("node").alias(f"{end}_node")
        )
        events = events.join(of_side, on=end, how="left", maintain_order="left")
    return events


def ids_are_integers(nodes: pl.DataFrame) -> bool:
    """Whether every id is the usual text of a 64-bit integer, so that an export can cast them without loss."""
    return nodes.select(
        (pl.col("id").cast(pl.Int64, strict=False).cast(pl.String) == pl.col("id")).fill_null(False).all()
    ).item()


def _first_appearances(events: pl.DataFrame, target_side: int) -> pl.DataFrame:
    """Each node of a source once: side, id, and its place in the order of appearance."""
    place = pl.col("time").rank("ordinal").cast(pl.Int64) * 2  # ordinal: equal times keep the log's order
    rows = events.lazy().select("source", "target", place.alias("place"))
    sources = rows.group_by(id="source").agg(pl.col("place").min(), side=pl.lit(0, pl.Int8))
    targets = rows.group_by(id="target").agg(pl.col("place").min() + 1, side=pl.lit(target_side, pl.Int8))
    both = pl.concat([sources, targets], how="diagonal")
    return both.group_by("side", "id").agg(pl.col("place").min()).collect()


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
    return first.sort("node").select(NODE_COLUMNS.keys()).collect()


def _covered(kept: DeltaTable | None) -> int:
    return (kept.transaction_version(APPLICATION) or 0) if kept is not None else 0


def _kept_nodes(kept: DeltaTable | None) -> pl.DataFrame:
    if kept is None or not kept.file_uris():
        return pl.DataFrame(schema=NODE_COLUMNS)
    return delta_tables.scan(kept).select(NODE_COLUMNS.keys()).collect()
