import itertools
from typing import get_args

import networkx as nx
import numpy as np
import pytest
from numpy.typing import NDArray
from toy_graphs import random_graph, toy_graph

from dyformer.baselines import heuristics
from dyformer.baselines.heuristics import (
    EdgeBank,
    Memory,
    NeighbourPaths,
    PathKind,
    PreferentialAttachment,
    RecentPaths,
)
from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring.interfaces import Scorer
from dyformer.scoring.pair_features import PairFeatures, PathScores, path_scores

# 0-1 in steps 1, 2 and 3; 1-2 in step 1; 2-3 in step 3
HISTORY = toy_graph([(0, 1), (1, 2), (3, 4)], [(0, 1)], [(0, 1), (2, 3)])


FORMULAS: list[Scorer] = [
    *(EdgeBank(memory=memory) for memory in get_args(Memory)),
    *(PreferentialAttachment(memory=memory) for memory in get_args(Memory)),
    *(NeighbourPaths(kind=kind) for kind in get_args(PathKind)),
    *(RecentPaths(kind=kind) for kind in get_args(PathKind)),
]


def scores(method: Scorer, history: DynamicGraph, source_P: np.ndarray, target_P: np.ndarray) -> np.ndarray:
    graph = prepare_graph(history, until=history.num_steps, config=GraphConfig())
    return method.fit_pairs(graph, [])(source_P, target_P)


@pytest.mark.parametrize(
    ("method", "pair", "expected"),
    [
        (EdgeBank(memory="ever"), (1, 2), 1),
        (EdgeBank(memory="ever"), (0, 2), 0),
        (EdgeBank(memory="last"), (0, 1), 1),
        (EdgeBank(memory="last"), (1, 2), 0),
        (EdgeBank(memory="decayed"), (0, 1), 1 + 1 / 2 + 1 / 4),
        (EdgeBank(memory="decayed"), (1, 2), 1 / 4),
        (PreferentialAttachment(memory="ever"), (1, 3), 2 * 2),
        (PreferentialAttachment(memory="last"), (1, 3), 1),
        (PreferentialAttachment(memory="last"), (1, 4), 0),
        (PreferentialAttachment(memory="decayed"), (1, 3), (7 / 4 + 1 / 4) * (1 + 1 / 4)),
        (NeighbourPaths(kind="common_neighbors"), (1, 3), 1),
        (NeighbourPaths(kind="adamic_adar"), (1, 3), 1 / np.log(2)),
        (NeighbourPaths(kind="l3"), (0, 3), 1 / np.sqrt(1 * 2 * 2 * 2 * 2 * 2)),
        (RecentPaths(kind="adamic_adar"), (1, 3), np.sqrt((1 + 1) * (1 + 1)) / np.log(2)),
        (RecentPaths(kind="adamic_adar"), (2, 4), np.sqrt((1 + 1) * (1 + 0)) / np.log(2)),
    ],
)
def test_score_by_hand(method: Scorer, pair: tuple[int, int], expected: float):
    assert scores(method, HISTORY, np.array([pair[0]]), np.array([pair[1]]))[0] == pytest.approx(expected)
    assert scores(method, HISTORY, np.array([pair[1]]), np.array([pair[0]]))[0] == pytest.approx(expected)


def test_union_scores_equal_networkx():
    history = random_graph(np.random.default_rng(0), num_nodes=25, num_steps=4, num_edges=20)
    union = nx.Graph()
    union.add_nodes_from(range(25))
    for snapshot in history.snapshots:
        union.add_edges_from(zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True))
    ends = list(itertools.combinations(range(25), 2))
    oracles = {
        EdgeBank(memory="ever"): [float(union.has_edge(*pair)) for pair in ends],
        PreferentialAttachment(memory="ever"): [value for *_, value in nx.preferential_attachment(union, ends)],
        NeighbourPaths(kind="common_neighbors"): [len(list(nx.common_neighbors(union, *pair))) for pair in ends],
        NeighbourPaths(kind="adamic_adar"): [value for *_, value in nx.adamic_adar_index(union, ends)],
    }
    for method, expected in oracles.items():
        np.testing.assert_allclose(scores(method, history, *np.array(ends).T), expected, err_msg=repr(method))


def test_every_formula_scores_a_log_with_an_empty_newest_window():
    history = toy_graph([(0, 1), (1, 2)], [])
    for method in FORMULAS:
        score_P = scores(method, history, np.array([0, 0]), np.array([1, 2]))
        assert score_P.shape == (2,), method
        assert np.isfinite(score_P).all(), method
    assert scores(PreferentialAttachment(memory="last"), history, np.array([0]), np.array([1]))[0] == 0


def test_relabelling_nodes_relabels_the_scores_and_nothing_else():
    generator = np.random.default_rng(5)
    history = random_graph(generator, num_nodes=15, num_steps=3, num_edges=20)
    name_N = generator.permutation(15)
    renamed = toy_graph(
        *(list(zip(name_N[s.source_E].tolist(), name_N[s.target_E].tolist(), strict=True)) for s in history.snapshots),
        sides=[0] * 15,
    )
    source_P, target_P = np.triu_indices(15, k=1)
    for method in FORMULAS:
        expected = scores(method, history, source_P, target_P)
        found = scores(method, renamed, name_N[source_P], name_N[target_P])
        np.testing.assert_allclose(found, expected, err_msg=repr(method))


def test_five_baselines_compute_the_paths_of_a_list_of_pairs_once(monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []

    def counted(features: PairFeatures, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> PathScores:
        calls.append(len(source_P))
        return path_scores(features, source_P, target_P)

    monkeypatch.setattr(heuristics, "path_scores", counted)
    graph = prepare_graph(HISTORY, until=HISTORY.num_steps, config=GraphConfig())
    methods = [kind(kind=path) for kind in (NeighbourPaths, RecentPaths) for path in get_args(PathKind)]
    lists = [(np.array([1, 0]), np.array([3, 3])), (np.array([2, 1]), np.array([4, 3]))]
    first, second = ([method.fit_pairs(graph, [])(*pairs) for pairs in lists] for method in methods[:2])
    assert len(calls) == 2
    first[0][:] = -1  # the caller's own array
    assert all((method.fit_pairs(graph, [])(*pairs) >= 0).all() for method in methods for pairs in lists)
    assert len(calls) == 2
    assert methods[0].fit_pairs(graph, [])(np.array([1, 2]), np.array([3, 4])).tolist() == [1, 1]
    assert len(calls) == 3
    assert second[0].tolist() != second[1].tolist()
