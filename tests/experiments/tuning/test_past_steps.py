"""The steps that choose settings, and the score of a method on them."""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score
from toy_graphs import random_graph

from dyformer.evaluation.protocols.paper import Trial, evaluate_method
from dyformer.experiments.tuning.past_steps import NUM_STEPS, TooShortPast, halved, macro_auc, past_steps
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.snapshots import build_snapshots, interactions_of, prefix
from dyformer.logs.time_windows import Window

ROWS = 400


@dataclass(frozen=True)
class Degrees:
    """Vectors of a node's links and a random number."""

    def fit(self, graph, *, seed):
        noise_N = np.random.default_rng(seed).normal(size=len(graph.history.node_N))
        vector_N2 = np.stack([graph.union.degree.astype(float), noise_N], axis=1)
        return lambda node_N: vector_N2[node_N]


def rows(num: int = ROWS) -> pl.DataFrame:
    generator = np.random.default_rng(0)
    ends = np.minimum(generator.geometric(0.05, size=(num, 2)), 60)
    return pl.DataFrame(
        {"source": ends[:, 0], "target": ends[:, 1], "time": np.sort(10 * generator.integers(0, 80, num))}
    )


def graph_of(events: pl.DataFrame, length: int):
    return build_snapshots(events, Window(rule="equal_time", length=str(length)), "step")


def test_the_newest_steps_choose():
    past = graph_of(rows(), 100)
    found = past_steps(past)
    assert found.graph is past
    assert found.steps == (6, 7, 8)
    assert len(found.steps) == NUM_STEPS
    assert str(found) == "steps 6, 7, 8"


def test_two_windows_are_cut_in_halves_which_are_those_of_a_log_with_half_the_window():
    found, expected = past_steps(graph_of(rows(), 400)), graph_of(rows(), 200)
    assert (found.steps, found.parts, str(found)) == ((3, 4), 2, "steps 3, 4 of windows cut in 2")
    for ours, theirs in zip(found.graph.snapshots, expected.snapshots, strict=True):
        for name, value in vars(theirs).items():
            np.testing.assert_array_equal(getattr(ours, name), value)
    for name, value in vars(interactions_of(expected)).items():
        np.testing.assert_array_equal(getattr(interactions_of(found.graph), name), value)
    np.testing.assert_array_equal(found.graph.node_N, expected.node_N)


def test_halves_keep_sides_directions_and_permanent_numbers():
    past = replace(graph_of(rows(), 400), directed=False)
    past = replace(past, side_N=(past.node_N % 2).astype(np.int8))
    cut = halved(past)
    assert not cut.directed
    np.testing.assert_array_equal(cut.side_N, past.side_N)
    np.testing.assert_array_equal(cut.node_N, past.node_N)


def test_a_past_without_links_is_refused():
    with pytest.raises(TooShortPast, match="1 steps before the first reported one"):
        past_steps(graph_of(rows(3), 800))


@pytest.mark.usefixtures("few_trees")
def test_the_score_is_that_of_the_papers_protocol():
    graph = random_graph(np.random.default_rng(1), num_nodes=40, num_steps=4, num_edges=60)
    values = macro_auc("degrees", Degrees(), graph, [3, 4], config=GraphConfig(), seed=2)
    scored, _ = evaluate_method("degrees", Degrees(), Trial(graph=prefix(graph, 4), step=4, seed=2))
    assert values[1] == pytest.approx(roc_auc_score(scored.positive_P, scored.score_P))
    assert values[0] != values[1]
    assert values[:1] == macro_auc("degrees", Degrees(), prefix(graph, 3), [3], config=GraphConfig(), seed=2)
