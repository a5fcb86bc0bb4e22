"""Snapshots up to a step -> the PageRank and distance tables of their union graph, for queries."""

from dyformer.experiments.settings import Experiment, as_record
from dyformer.graphs.distances import distance_table
from dyformer.graphs.pagerank import TABLE_TOP_K, pagerank_table
from dyformer.graphs.prepared_graph import prepare_graph
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import is_current, write_artifact

SMALL_GRAPH = 3_000  # nodes; above it the distance table, which grows with their square, is not written


def prepare_tables(snapshots: str, until: int, experiment: Experiment) -> dict[str, str]:
    """Write the Personalized PageRank table, and on small graphs the distance table, and return their addresses."""
    opened = open_snapshots(snapshots)
    config = experiment.graph
    graph = prepare_graph(opened.graph(until), until=until, config=config)
    makers = {"pagerank": lambda: pagerank_table(graph.union, top_k=TABLE_TOP_K, teleport=config.teleport)}
    if graph.union.num_nodes <= SMALL_GRAPH:
        makers["distances"] = lambda: distance_table(graph.union, max_distance=config.max_distance)
    addresses = {}
    for kind, make in makers.items():
        lineage = opened.lineage(kind, until=until, settings=as_record(experiment, "graph"))
        keys = {"version": lineage.table_version, "until": until, "settings": lineage.settings_hash}
        addresses[kind] = opened.layout.graph(kind, opened.dataset, **keys)
        if not is_current(addresses[kind], lineage):
            write_artifact(addresses[kind], {kind: make()}, lineage)
    return addresses
