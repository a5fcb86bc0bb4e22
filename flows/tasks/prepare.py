"""Snapshots up to a step -> the PageRank and distance tables of their union graph, for queries."""

from collections.abc import Callable
from functools import cache
from typing import Any

import polars as pl

from dyformer.experiments.settings import Experiment, as_record
from dyformer.graphs.distances import distance_table
from dyformer.graphs.pagerank import TABLE_TOP_K, pagerank_table
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.union_graph import TemporalUnionGraph
from flows.made import made
from flows.tasks.snapshots import open_snapshots

SMALL_GRAPH = 3_000  # nodes; above it the distance table, which grows with their square, is not written


def prepare_tables(snapshots: str, until: int, experiment: Experiment) -> dict[str, str]:
    """Write the Personalized PageRank table, and on small graphs the distance table, and return their addresses.

    They are read by queries alone: a training needs the distances of its batches, and a forecast the PageRank of the
    step before, too, and on graphs above 50,000 nodes only.
    """
    opened = open_snapshots(snapshots)
    config = experiment.graph

    @cache
    def union() -> TemporalUnionGraph:
        return prepare_graph(opened.graph(until), until=until, config=config).union

    def table(kind: str, compute: Callable[..., pl.DataFrame], **arguments: Any) -> str:
        return made(
            opened,
            kind,
            until=until,
            settings=as_record(experiment, "graph"),
            make=lambda: {kind: compute(union(), **arguments)},
            code=(compute, prepare_graph),
        )

    addresses = {"pagerank": table("pagerank", pagerank_table, top_k=TABLE_TOP_K, teleport=config.teleport)}
    if opened.num_nodes(until) <= SMALL_GRAPH:
        addresses["distances"] = table("distances", distance_table, max_distance=config.max_distance)
    return addresses
