"""Snapshots up to a step -> the PageRank and distance tables of their union graph, for queries."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl

from dyformer.experiments.settings import Experiment, as_record
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.distances import distance_table
from dyformer.graphs.pagerank import TABLE_TOP_K, pagerank_table
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.union_graph import TemporalUnionGraph
from dyformer.sampling import limits
from flows.parallel import Shared, fixed_ranges, made_of_ranges
from flows.tasks.made import made, plan
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import digest

MOST_AT_ONCE = 16  # ranges of the PageRank table, each with scores of all nodes in memory
SMALL_GRAPH = 3_000  # nodes; above it the distance table, which grows with their square, is not written


def prepare_tables(snapshots: str, until: int, experiment: Experiment) -> dict[str, str]:
    """Write the Personalized PageRank table, and on small graphs the distance table, and return their addresses.

    They are read by queries alone: a training needs the distances of its batches, and a forecast the PageRank of the
    step before, too, and on graphs above 50,000 nodes only.
    """
    opened, config, settings = open_snapshots(snapshots), experiment.graph, as_record(experiment, "graph")
    num_nodes = opened.num_nodes(until)
    code = (pagerank_table, prepare_graph)
    whole = plan(opened, "pagerank", until=until, settings=settings, code=code)
    values = {"snapshots": snapshots, "until": until, "graph": config}
    shared = Shared(layout=opened.layout, whole=whole, values=values, at_once=min(limits.usable_cpus(), MOST_AT_ONCE))
    pagerank = made_of_ranges(pagerank_rows, fixed_ranges(num_nodes), shared, lambda rows: {"pagerank": rows})
    addresses = {"pagerank": pagerank}
    if num_nodes <= SMALL_GRAPH:
        addresses["distances"] = made(
            opened,
            "distances",
            until=until,
            settings=settings,
            make=lambda: {"distances": distance_table(_union(shared.values), max_distance=config.max_distance)},
            code=(distance_table, prepare_graph),
        )
    _stored_union.cache_clear()
    return addresses


def pagerank_rows(values: Mapping[str, Any], nodes: range, num_threads: int) -> pl.DataFrame:
    """Give the rows of some nodes in the PageRank table."""
    teleport = values["graph"].teleport
    return pagerank_table(
        _union(values), top_k=TABLE_TOP_K, teleport=teleport, nodes=np.arange(nodes.start, nodes.stop)
    )


def _union(values: Mapping[str, Any]) -> TemporalUnionGraph:
    return _stored_union(values["snapshots"], digest(values["snapshots"]), values["until"], values["graph"])


@lru_cache(maxsize=1)  # the ranges of one table
def _stored_union(snapshots: str, digest: str, until: int, config: GraphConfig) -> TemporalUnionGraph:
    return prepare_graph(open_snapshots(snapshots).graph(until), until=until, config=config).union
