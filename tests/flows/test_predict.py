"""Forecast candidates on a graph too large for all pairs."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, Snapshot
from flows.tasks.predict import WrongVectors, candidate_pairs, check_vectors, read_vectors
from storage.artifacts.artifact import Lineage, write_artifact


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


def test_candidates_are_near_or_were_linked() -> None:
    graph = prepare_graph(path_graph(9), until=1, config=GraphConfig())
    pairs = {frozenset(pair) for pair in zip(*(end_P.tolist() for end_P in candidate_pairs(graph)), strict=True)}
    assert frozenset((0, 2)) in pairs
    assert frozenset((4, 6)) in pairs
    assert {frozenset((node, node + 1)) for node in range(8)} <= pairs
    own = candidate_pairs(graph, np.array([4]))
    of_one = {frozenset(pair) for pair in zip(*(end_P.tolist() for end_P in own), strict=True)}
    assert {frozenset((3, 4)), frozenset((4, 5)), frozenset((4, 6))} <= of_one
    assert all(4 in pair for pair in of_one)


def test_vectors_that_cannot_be_used_are_named():
    sound = pl.Series([[0.5, 1.0], [2.0, 3.0]], dtype=pl.List(pl.Float32))
    check_vectors(sound, "the artifact")
    for wrong in ([[0.5, float("nan")], [1.0, 1.0]], [[0.5, 1e39], [1.0, 1.0]]):
        with pytest.raises(WrongVectors, match="the artifact are not finite"):
            check_vectors(pl.Series(wrong, dtype=pl.List(pl.Float32)), "the artifact")
    others = [[[0.5], [1.0, 1.0]], [[], []], [[0.5, None], [1.0, 1.0]], [None, [1.0, 1.0]]]
    for wrong in (*(pl.Series(rows, dtype=pl.List(pl.Float32)) for rows in others), sound.cast(pl.List(pl.Float64))):
        with pytest.raises(WrongVectors, match="the artifact"):
            check_vectors(wrong, "the artifact")


def test_a_table_without_vectors_is_named(tmp_path: Path):
    lineage = Lineage(kind="vectors", dataset="mine", table_version=1)
    address = write_artifact(str(tmp_path / "vectors"), {"vectors": pl.DataFrame({"id": ["a"]})}, lineage)
    with pytest.raises(WrongVectors, match=address):
        read_vectors(address)
