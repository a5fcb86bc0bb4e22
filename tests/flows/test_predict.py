"""Forecast candidates on a graph too large for all pairs."""

import numpy as np

from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, Snapshot
from flows.tasks.predict import candidate_pairs


def path_graph(num_nodes: int) -> DynamicGraph:
    """0 - 1 - 2 - ... in one step."""
    source_E = np.arange(num_nodes - 1)
    snapshot = Snapshot(
        step=1,
        start_time=0,
        end_time=1,
        source_E=source_E,
        target_E=source_E + 1,
        weight_E=np.ones(num_nodes - 1),
        num_interactions=num_nodes - 1,
        num_self_loops=0,
        num_nodes=num_nodes,
    )
    return DynamicGraph(snapshots=(snapshot,), node_N=np.arange(num_nodes), side_N=np.zeros(num_nodes, dtype=np.int8))


def test_candidates_are_near_and_were_never_linked() -> None:
    node_P, partner_P = candidate_pairs(prepare_graph(path_graph(9), until=1, config=GraphConfig()))
    pairs = set(zip(node_P.tolist(), partner_P.tolist(), strict=True))
    assert (0, 2) in pairs
    assert (4, 6) in pairs
    assert not any(abs(node - partner) <= 1 for node, partner in pairs)
