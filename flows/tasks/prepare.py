"""Snapshots up to a cut -> the tables made of their union graph, kept for queries and candidates."""

from typing import Any

from dyformer.experiments.settings import as_record
from dyformer.graphs.distances import distance_table
from dyformer.graphs.pagerank import pagerank_table
from dyformer.graphs.prepared_graph import prepare_graph
from flows.tasks.snapshots import open_snapshots
from flows.tasks.train import experiment_of
from storage.artifacts.artifact import is_current, write_artifact

TABLE_TOP_K = 64
SMALL_GRAPH = 3_000  # nodes up to which the distance table is written: it grows with their square


def prepare_tables(snapshots: str, until: int, changes: dict[str, Any] | None = None) -> dict[str, str]:
    """Write the Personalized PageRank table, and on small graphs the distance table, and give their addresses."""
    opened = open_snapshots(snapshots)
    config = experiment_of(opened.dataset, changes).graph
    graph = prepare_graph(opened.graph(until), until=until, config=config)
    makers = {"pagerank": lambda: pagerank_table(graph.union, top_k=TABLE_TOP_K, teleport=config.teleport)}
    if graph.union.num_nodes <= SMALL_GRAPH:
        makers["distances"] = lambda: distance_table(graph.union, max_distance=config.max_distance)
    addresses = {}
    for kind, make in makers.items():
        settings = as_record(experiment_of(opened.dataset, changes), "graph")
        lineage = opened.lineage(kind, until=until, settings=settings)
        keys = {"version": opened.version, "until": until, "settings": lineage.settings_hash}
        addresses[kind] = opened.layout.graph(kind, opened.dataset, **keys)
        if not is_current(addresses[kind], lineage):
            write_artifact(addresses[kind], {kind: make()}, lineage)
    return addresses
