"""What every trained baseline must do: find communities, repeat itself for a seed, and see only the past."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from toy_graphs import toy_graph, with_snapshots

from dyformer.baselines.dynaernn.method import DynAERNN
from dyformer.baselines.dyngem.method import DynGEM
from dyformer.baselines.dysat.method import DySAT
from dyformer.baselines.evolvegcn.method import EvolveGCN
from dyformer.baselines.graphsage.method import GraphSAGE
from dyformer.baselines.node2vec import Node2Vec
from dyformer.evaluation.audit.poisons import graph_of, poisoned, rows_of
from dyformer.experiments.methods import METHODS, TRAINED_BASELINES, default_methods
from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring.interfaces import Embedder

TINY: dict[str, Embedder] = {
    "node2vec": Node2Vec(width=16, num_walks=5, walk_length=20, window=5),
    "GraphSAGE": GraphSAGE(width=16, num_walks=10, batches=40, batch_pairs=128, learning_rate=0.01),
    "DynGEM": DynGEM(hidden=(32, 16), width=8, first_epochs=30, epochs=10, batch_edges=50, learning_rate=0.01),
    "DynAERNN": DynAERNN(hidden=(32, 16), width=8, epochs=15, batch_rows=50, learning_rate=0.01),
    "DySAT": DySAT(width=16, structural_heads=4, temporal_heads=4, batches=40, walk_length=10, learning_rate=0.01),
    "EvolveGCN-O": EvolveGCN(evolution="O", width=16, epochs=15, learning_rate=0.01),
    "EvolveGCN-H": EvolveGCN(evolution="H", width=16, epochs=25, learning_rate=0.01),
}
UNTIL = 4
NUM_COMMUNITIES, SIZE = 4, 12


@cache
def communities() -> DynamicGraph:
    """Every step has 22 of the 66 pairs of each community, and 4 pairs of any nodes; all nodes are in the first one."""
    generator, steps = np.random.default_rng(0), []
    first_P, second_P = np.triu_indices(SIZE, k=1)
    for step in range(5):
        edges = [] if step else [(node, node ^ 1) for node in range(NUM_COMMUNITIES * SIZE)]
        for community in range(NUM_COMMUNITIES):
            chosen = generator.choice(len(first_P), size=22, replace=False)
            ends = (first_P[chosen] + community * SIZE, second_P[chosen] + community * SIZE)
            edges += list(zip(*(end.tolist() for end in ends), strict=True))
        steps.append(edges + [(a, b) for a, b in generator.integers(NUM_COMMUNITIES * SIZE, size=(4, 2)) if a != b])
    log = toy_graph(*steps)
    return graph_of(rows_of(log), log)  # numbered by first appearance, as the logs of `poisoned` are


def vectors(title: str, log: DynamicGraph, *, seed: int = 0) -> np.ndarray:
    graph = prepare_graph(log, until=UNTIL, config=GraphConfig())
    return np.asarray(TINY[title].fit(graph, seed=seed)(np.arange(len(graph.history.node_N))))


@cache
def fitted(title: str) -> np.ndarray:
    return vectors(title, communities())


def test_every_trained_baseline_is_tested_here_and_runs_only_where_it_is_named():
    assert set(TINY) == set(TRAINED_BASELINES)
    assert all(type(METHODS[title]) is type(method) for title, method in TINY.items())
    assert not set(default_methods()) & TRAINED_BASELINES
    assert {"L3", "DyFormer", "Forecaster without vectors"} <= set(default_methods())


@pytest.mark.parametrize("title", TINY)
def test_a_trained_baseline_finds_communities_and_repeats_itself_for_a_seed(title: str):
    vector_ND = fitted(title)
    again_ND, other_ND = (vectors(title, communities(), seed=seed) for seed in (0, 1))
    assert vector_ND.tobytes() == again_ND.tobytes()
    assert vector_ND.tobytes() != other_ND.tobytes()
    unit_ND = vector_ND / np.linalg.norm(vector_ND, axis=1, keepdims=True)
    source_P, target_P = np.triu_indices(len(unit_ND), k=1)
    known = {
        edge
        for s in communities().snapshots[:UNTIL]
        for edge in zip(s.source_E.tolist(), s.target_E.tolist(), strict=True)
    }
    held_out_P = [pair not in known for pair in zip(source_P.tolist(), target_P.tolist(), strict=True)]
    community_N = communities().node_N // SIZE
    inside_P = community_N[source_P] == community_N[target_P]
    assert inside_P[held_out_P].sum() > 20
    auc = roc_auc_score(inside_P[held_out_P], (unit_ND[source_P] * unit_ND[target_P]).sum(axis=1)[held_out_P])
    assert auc > 0.85


@pytest.mark.parametrize("title", TINY)
def test_later_rows_change_no_byte_of_a_vector_and_earlier_ones_do(title: str):
    later = poisoned(communities(), UNTIL, "new nodes", seed=0)
    assert len(later.node_N) > len(communities().node_N)
    assert vectors(title, later).tobytes() == fitted(title).tobytes()
    for step in (UNTIL - 1, UNTIL):
        earlier = list(communities().snapshots)
        earlier[step - 1] = replace(earlier[0], step=step)
        assert vectors(title, with_snapshots(communities(), *earlier)).tobytes() != fitted(title).tobytes()


@pytest.mark.parametrize("title", TINY)
def test_permanent_numbers_change_no_byte_of_a_vector(title: str):
    renumbered = replace(communities(), node_N=communities().node_N[::-1] + 1000)
    assert vectors(title, renumbered).tobytes() == fitted(title).tobytes()
