"""Activity counts equal those of a loop over the interactions; scores follow them."""

import math

import numpy as np
import pytest
from toy_graphs import random_graph, toy_graph

from dyformer.baselines.activity import Activity, ActivityRegression
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.snapshots import interactions_of
from dyformer.scoring.interfaces import LabelledNodes
from dyformer.scoring.node_head import FEATURES, activity_features


def test_features_equal_those_of_a_plain_loop():
    graph = random_graph(np.random.default_rng(0), num_nodes=9, num_steps=4, num_edges=8)
    past = prepare_graph(graph, until=3, config=GraphConfig())
    rows = interactions_of(past.history)
    found_NF = activity_features(past)
    for node in range(9):
        ends = [
            (3 - position, other)
            for one, two, position in zip(rows.source_R, rows.target_R, rows.position_R, strict=True)
            for end, other in ((one, two), (two, one))
            if end == node
        ]
        ages = [age for age, _ in ends]
        values = {
            "last": sum(age <= 1 for age in ages),
            "ever": len(ages),
            **{f"decayed_{n}": sum(0.5 ** (age / h) for age in ages) for n, h in (("025", 0.25), ("1", 1), ("4", 4))},
            "since_last": min(ages, default=4.0),
            "since_first": max(ages, default=0.0),
            "partners": len({other for _, other in ends}),
        }
        assert found_NF[node].tolist() == pytest.approx([math.log1p(values[name]) for name in FEATURES], abs=1e-12)


def test_one_count_orders_the_nodes():
    graph = toy_graph([(0, 1), (0, 2), (0, 3), (0, 4)], [(2, 3), (4, 1), (4, 1)])
    past = prepare_graph(graph, until=2, config=GraphConfig())
    nodes, best = np.arange(5), {"last": 4, "ever": 0, "recency": 1}
    for kind, node in best.items():
        score_P = Activity(kind=kind).fit_nodes(past, [])(nodes)  # pyright: ignore[reportArgumentType]
        assert score_P[node] == score_P.max(), kind
    assert Activity(kind="last").fit_nodes(past, [])(nodes)[0] == 0


def test_the_regression_learns_from_past_labels_which_way_a_count_points():
    graph = random_graph(np.random.default_rng(1), num_nodes=40, num_steps=4, num_edges=60)
    before, past = (prepare_graph(graph, until=until, config=GraphConfig()) for until in (2, 3))
    count_N = activity_features(before)[:, FEATURES.index("ever")]
    for sign in (1, -1):
        positive_N = sign * count_N > np.median(sign * count_N)
        labelled = LabelledNodes(before=before, node_P=np.arange(40), positive_P=positive_N)
        score_N = ActivityRegression().fit_nodes(past, [labelled])(np.arange(40))
        now_N = activity_features(past)[:, FEATURES.index("ever")]
        assert sign * np.corrcoef(score_N, now_N)[0, 1] > 0.8
