from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from published_logs import published_events
from toy_graphs import random_graph, toy_graph, with_snapshots

from dyformer.baselines.classifiers import BoostedTrees
from dyformer.evaluation.fitting import FORECASTER_WITH, FittedOnce, model_steps, rotated
from dyformer.evaluation.protocols import paper
from dyformer.evaluation.protocols.paper import Trial, evaluate_method
from dyformer.evaluation.protocols.protocol import chosen_units
from dyformer.evaluation.scored_pairs import ScoredPairs, log_metrics, metrics_of
from dyformer.experiments.methods import METHODS
from dyformer.graphs.prepared_graph import GraphConfig, PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, StepOutOfRange, build_snapshots
from dyformer.logs.datasets import DATASETS
from dyformer.sampling.pairs import TooFewLinks, evaluated_steps, first_half, paper_examples
from dyformer.scoring import heads
from dyformer.scoring.forecaster import Forecaster
from dyformer.scoring.interfaces import Embed, LabelledStep, Score, Scorer
from dyformer.scoring.metrics import auc
from dyformer.scoring.pair_features import PairFeatures, prepare_pair_features

SCORERS = {title: method for title, method in METHODS.items() if isinstance(method, Scorer)}
SCORERS["Boosted trees on pair features"] = BoostedTrees(num_rounds=20, max_leaves=(4,))
pytestmark = pytest.mark.usefixtures("few_trees")


@dataclass(frozen=True, kw_only=True)
class Given:
    """An embedder that returns the vectors of a test, without training."""

    vectors_ND: np.ndarray

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        return self.vectors_ND.__getitem__ if len(self.vectors_ND) == len(graph.history.node_N) else self.all_rows

    def all_rows(self, node_N: np.ndarray) -> np.ndarray:
        return self.vectors_ND


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A scorer that applies a function to the history and the pairs."""

    score: Callable[[DynamicGraph, np.ndarray, np.ndarray], np.ndarray]

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        return partial(self.score, graph.history)


def decoded(vectors_ND: np.ndarray, graph: DynamicGraph, step: int, seed: int, kind: str = "paper") -> ScoredPairs:
    """Evaluate vectors with the paper's decoder or the forecaster."""
    paper, forecaster = evaluate_method("mine", Given(vectors_ND=vectors_ND), Trial(graph=graph, step=step, seed=seed))
    return forecaster if kind == "forecaster" else paper


def scored_by(method: Scorer, graph: DynamicGraph, step: int, seed: int, name: str = "mine") -> ScoredPairs:
    (pairs,) = evaluate_method(name, method, Trial(graph=graph, step=step, seed=seed))
    return pairs


def baseline_scores(graph: DynamicGraph, step: int, seed: int) -> list[ScoredPairs]:
    return [scored_by(method, graph, step, seed, title) for title, method in SCORERS.items()]


def graph_of(seed: int = 0, num_nodes: int = 40, num_edges: int = 60) -> DynamicGraph:
    return random_graph(np.random.default_rng(seed), num_nodes=num_nodes, num_steps=5, num_edges=num_edges)


def with_step(graph: DynamicGraph, step: int, other: DynamicGraph) -> DynamicGraph:
    snapshots = list(graph.snapshots)
    snapshots[step - 1] = replace(other.snapshots[step - 1], num_nodes=snapshots[step - 1].num_nodes)
    return with_snapshots(graph, *snapshots)


def skewed_graph(generator: np.random.Generator, num_nodes: int = 200) -> DynamicGraph:
    """A few popular nodes and repeating pairs in steps 1 to 3; uniform random pairs in step 4."""
    popularity = 1 / np.arange(1, num_nodes + 1)
    ends = generator.choice(num_nodes, size=(600, 2), p=popularity / popularity.sum())
    past = [(int(a), int(b)) for a, b in ends if a != b]
    future = [(int(a), int(b)) for a, b in generator.integers(num_nodes, size=(1500, 2)) if a != b]
    return toy_graph([*past[:400], (0, num_nodes - 1)], past[100:], past[:300], future)


def step_auc(pairs: ScoredPairs) -> float:
    return auc(pairs.positive_P, pairs.score_P)


def test_every_method_is_evaluated_on_the_same_test_pairs():
    baselines = baseline_scores(graph_of(), 4, 7)
    test = paper_examples(graph_of(), 4, seed=7).test
    assert len({baseline.method for baseline in baselines}) == len(baselines) == 21
    vectors = [decoded(np.ones((40, 3)), graph_of(), 4, 7, kind) for kind in ("paper", "forecaster")]
    for baseline in [*baselines, *vectors]:
        np.testing.assert_array_equal(baseline.source_P, test.source_P)
        np.testing.assert_array_equal(baseline.target_P, test.target_P)
        np.testing.assert_array_equal(baseline.positive_P, test.positive_P)
        np.testing.assert_array_equal(baseline.new_P, test.new_P)
        assert (baseline.step, baseline.seed, baseline.family) == (4, 7, "random")


def test_auc_of_constant_scores_is_chance_of_an_oracle_one_and_of_its_reverse_zero():
    graph = graph_of()
    future = graph.snapshots[3]
    edges = set(zip(future.source_E.tolist(), future.target_E.tolist(), strict=True))

    def oracle(history, source_P, target_P):
        return np.array([float(pair in edges) for pair in zip(source_P.tolist(), target_P.tolist(), strict=True)])

    constant, reversed_ = (lambda history, s, t: np.zeros(len(s))), (lambda history, s, t: -oracle(history, s, t))
    assert step_auc(scored_by(Formula(score=constant), graph, 4, 0)) == 0.5
    assert step_auc(scored_by(Formula(score=oracle), graph, 4, 0)) == 1
    assert step_auc(scored_by(Formula(score=reversed_), graph, 4, 0)) == 0
    assert step_auc(decoded(np.zeros((40, 4)), graph, 4, 0)) == 0.5


def test_every_method_is_at_chance_when_the_future_is_random():
    graph = skewed_graph(np.random.default_rng(0))
    vectors = np.random.default_rng(1).normal(size=(200, 16))
    both = [decoded(vectors, graph, 4, 0, kind) for kind in ("paper", "forecaster")]
    for pairs in [*baseline_scores(graph, 4, 0), *both]:
        assert step_auc(pairs) == pytest.approx(0.5, abs=0.06), pairs.method


def test_a_planted_rule_is_found_by_methods_that_read_it():
    graph = skewed_graph(np.random.default_rng(0))
    repeated = replace(graph.snapshots[2], step=4)
    graph = with_snapshots(graph, *graph.snapshots[:3], repeated)
    metrics = {pairs.method: step_auc(pairs) for pairs in baseline_scores(graph, 4, 0)}
    for method in ("EdgeBank (last)", "Logistic regression on pair features", "Boosted trees on pair features"):
        assert metrics[method] > 0.98, method
    side_N = np.arange(200) % 2
    same_side = [(a, b) for a in range(60) for b in range(a + 2, 60, 8)]
    planted = with_snapshots(graph, *graph.snapshots[:3], toy_graph([], [], [], same_side).snapshots[3])
    vectors = np.stack([np.where(side_N, 1.0, -1.0), np.where(np.arange(200) < 60, 1.0, 0.0)], axis=1)
    assert step_auc(decoded(vectors, planted, 4, 0)) > 0.95


@dataclass(frozen=True, kw_only=True)
class Collector:
    """A scorer that records its arguments."""

    given: list[tuple[PreparedGraph, Sequence[LabelledStep]]]

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        self.given.append((graph, labelled))
        return lambda source_P, target_P: np.zeros(len(source_P))


def test_scorers_get_the_steps_before_and_the_pairs_that_decoders_are_fitted_and_chosen_on():
    graph, collector = graph_of(), Collector(given=[])
    trial = Trial(graph=graph, step=3, seed=0)
    evaluate_method("first", collector, trial)
    evaluate_method("second", collector, trial)
    (past, labelled), again = collector.given
    assert again[0] is past
    assert again[1] is labelled
    assert (past.until, past.history.num_steps) == (2, 2)
    assert len(past.history.node_N) == graph.snapshots[1].num_nodes
    for before, own in zip(past.history.snapshots, graph.snapshots, strict=False):
        np.testing.assert_array_equal(before.source_E, own.source_E)
    assert labelled[0].before is past
    split = paper_examples(graph, 3, seed=0)
    is_first_P = first_half(labelled[0].examples.positive_P)
    for part, is_wanted_P in ((split.train, is_first_P), (split.validation, ~is_first_P)):
        for name, values_P in vars(part).items():
            np.testing.assert_array_equal(getattr(labelled[0].examples, name)[is_wanted_P], values_P)


def test_rotated_vectors_have_the_axes_of_the_older_ones():
    older_ND = np.random.default_rng(0).normal(size=(9, 3))
    rotation_DD = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    newer_ND = np.concatenate([older_ND, [[1.0, 2.0, 3.0]]]) @ rotation_DD
    np.testing.assert_allclose(rotated(newer_ND, older_ND)[:9], older_ND)
    np.testing.assert_allclose(rotated(newer_ND, older_ND)[9], [1.0, 2.0, 3.0])


def test_models_are_trained_until_a_step_and_until_the_one_before_it():
    assert [model_steps(until) for until in (2, 3, 9)] == [[2], [2, 3], [8, 9]]


def test_older_labelled_steps_have_the_noise_of_the_forecast_step():
    graph = random_graph(np.random.default_rng(0), num_nodes=40, num_steps=8, num_edges=60)
    trial = Trial(graph=graph, step=7, seed=0, config=GraphConfig(noise=0.4))
    newest, older = trial.past.history.snapshots, trial.labelled[1].before.history.snapshots
    assert 1 < len(older) < len(newest)
    for found, expected, clean in zip(older, newest, graph.snapshots, strict=False):
        assert np.array_equal(found.source_E, expected.source_E)
        assert np.array_equal(found.target_E, expected.target_E)
        assert not np.array_equal(found.target_E, clean.target_E)


def test_an_older_step_with_many_links_has_some_of_each_kind(monkeypatch: pytest.MonkeyPatch):
    graph = random_graph(np.random.default_rng(0), num_nodes=40, num_steps=8, num_edges=60)
    every = Trial(graph=graph, step=8, seed=3).labelled
    monkeypatch.setattr(paper, "OLDER_LINKS", 3)
    some = Trial(graph=graph, step=8, seed=3).labelled
    assert len(some[0].examples.positive_P) == len(every[0].examples.positive_P) > 6
    for own, whole in zip(some[1:], every[1:], strict=True):
        assert (own.examples.positive_P.sum(), (~own.examples.positive_P).sum()) == (3, 3)
        for is_positive in (True, False):
            of_kind_P = whole.examples.positive_P == is_positive
            expected = whole.examples.source_P[of_kind_P][:3]
            np.testing.assert_array_equal(own.examples.source_P[own.examples.positive_P == is_positive], expected)


def test_older_steps_are_labelled_by_their_own_pairs_and_weigh_less():
    graph = random_graph(np.random.default_rng(0), num_nodes=40, num_steps=8, num_edges=60)
    labelled = Trial(graph=graph, step=8, seed=3).labelled
    assert [step.before.until + 1 for step in labelled] == [8, 7, 6, 5, 4]
    assert [step.weight for step in labelled] == [1, 0.5, 0.25, 0.125, 0.0625]
    for step in labelled[1:]:
        snapshot = graph.snapshots[step.before.until]
        assert step.before.history.num_steps == snapshot.step - 1
        edges = set(zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True))
        examples = step.examples
        found = list(zip(examples.source_P.tolist(), examples.target_P.tolist(), strict=True))
        assert len(set(found)) == len(found) == 2 * len(edges)
        assert {pair for pair, positive in zip(found, examples.positive_P, strict=True) if positive} == edges
    assert [step.before.until + 1 for step in Trial(graph=graph, step=3, seed=0).labelled] == [3, 2]
    assert len(Trial(graph=graph, step=2, seed=0).labelled) == 1


def test_a_scorer_without_a_fit_builds_no_union_graph(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "dyformer.graphs.prepared_graph.build_union_graph", lambda *args, **kwargs: pytest.fail("built")
    )
    for title in ("L3", "EdgeBank (ever)", "Logistic regression on pair features"):
        scored_by(SCORERS[title], graph_of(), 4, 0)


def test_pair_features_are_made_once_for_all_methods_of_a_trial(monkeypatch: pytest.MonkeyPatch):
    made = []

    def counted(history: DynamicGraph) -> PairFeatures:
        made.append(history.num_steps)
        return prepare_pair_features(history)

    monkeypatch.setattr("dyformer.scoring.labelled_tables.prepare_pair_features", counted)
    trial = Trial(graph=graph_of(), step=5, seed=0)
    for title, method in SCORERS.items():
        evaluate_method(title, method, trial)
    assert sorted(made) == [1, 2, 3, 4]


def test_poison_after_the_evaluated_step_changes_no_score():
    graph = with_step(graph_of(num_edges=250), 5, graph_of(num_edges=250))
    poisoned = with_step(with_step(graph, 5, graph_of(9, num_edges=300)), 4, graph_of(8, num_edges=300))
    vectors = np.random.default_rng(0).normal(size=(40, 4))

    def evaluated(any_graph: DynamicGraph) -> list[ScoredPairs]:
        return [*baseline_scores(any_graph, 3, 0), decoded(vectors, any_graph, 3, 0, "forecaster")]

    for clean, dirty in zip(evaluated(graph), evaluated(poisoned), strict=True):
        assert clean.score_P.tobytes() == dirty.score_P.tobytes(), clean.method


def test_the_evaluated_step_itself_reaches_no_formula():
    graph = with_step(graph_of(), 4, graph_of())  # its interactions made of its snapshots, as those of the other one
    poisoned = with_step(graph, 4, graph_of(8))
    source_P, target_P = np.triu_indices(40, k=1)
    trials = [Trial(graph=any_graph, step=4, seed=0) for any_graph in (graph, poisoned)]
    labelled = trials[0].labelled
    for title, scorer in SCORERS.items():
        scores = [scorer.fit_pairs(trial.past, labelled)(source_P, target_P).tobytes() for trial in trials]
        assert scores[0] == scores[1], title


def test_a_changed_past_changes_the_scores():
    graph = graph_of(num_edges=250)
    changed = with_step(graph, 3, graph_of(8, num_edges=250))
    for before, after in zip(baseline_scores(graph, 4, 0), baseline_scores(changed, 4, 0), strict=True):
        assert before.score_P.tobytes() != after.score_P.tobytes(), before.method


def test_no_label_of_a_test_pair_is_read(monkeypatch: pytest.MonkeyPatch):
    graph, vectors = graph_of(), np.random.default_rng(0).normal(size=(40, 4))
    split = paper_examples(graph, 4, seed=0)
    lied = replace(split, test=replace(split.test, positive_P=~split.test.positive_P, new_P=~split.test.new_P))

    def evaluated() -> list[ScoredPairs]:
        kinds = [decoded(vectors, graph, 4, 0, kind) for kind in ("paper", "forecaster")]
        return [*kinds, *baseline_scores(graph, 4, 0)]

    honest = evaluated()
    monkeypatch.setattr(
        "dyformer.evaluation.protocols.paper.paper_examples",
        lambda graph, step, *, seed: lied if step == 4 else paper_examples(graph, step, seed=seed),
    )
    for before, after in zip(honest, evaluated(), strict=True):
        assert before.score_P.tobytes() == after.score_P.tobytes(), before.method


def test_the_forecaster_reads_the_link_features():
    graph = skewed_graph(np.random.default_rng(0))
    graph = with_snapshots(graph, *graph.snapshots[:3], replace(graph.snapshots[2], step=4))
    noise = np.random.default_rng(1).normal(size=(200, 4))
    assert step_auc(decoded(noise, graph, 4, 0, "forecaster")) > 0.98
    assert step_auc(decoded(noise, graph, 4, 0)) < 0.9


def test_wide_vectors_of_noise_hardly_harm_the_pair_features(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heads, "NUM_ROUNDS", 300)
    generator = np.random.default_rng(0)
    popularity = 1 / np.arange(1, 201)
    ends = generator.choice(200, size=(1500, 2), p=popularity / popularity.sum())
    pairs = [(int(a), int(b)) for a, b in ends if a != b]
    graph = toy_graph([*pairs[:500], (0, 199)], pairs[300:800], pairs[500:1000], pairs[1000:1400])
    features_alone = scored_by(SCORERS["Forecaster without vectors"], graph, 4, 0)
    noisy = [decoded(generator.normal(size=(200, 128)), graph, 4, 0, "forecaster") for _ in range(3)]
    assert min(map(step_auc, noisy)) > step_auc(features_alone) - 0.01


def test_vectors_must_cover_exactly_the_nodes_known_before():
    graph = toy_graph([(0, 1), (1, 2)], [(3, 4)], [(0, 2), (0, 3), (0, 4), (1, 3), (1, 4), (5, 6)])
    with pytest.raises(ValueError, match=r"found vectors of shape \(7, 2\): expected one row for each of the 5 nodes"):
        decoded(np.zeros((7, 2)), graph, 3, 0)
    assert len(decoded(np.zeros((5, 2)), graph, 3, 0).score_P) == 6
    with pytest.raises(ValueError, match=r"found vectors of shape \(5,\)"):
        decoded(np.zeros(5), graph, 3, 0)


def test_a_step_with_too_few_pairs_is_refused_before_a_method_is_trained():
    graph, watcher = toy_graph([(0, 1), (1, 2)], [(3, 4)], [(5, 6), (0, 2)]), Watcher(seen=[])
    with pytest.raises(TooFewLinks):
        evaluate_method("mine", watcher, Trial(graph=graph, step=3, seed=0))
    assert watcher.seen == []


def test_a_scorer_must_give_one_score_for_each_pair():
    wrong = Formula(score=lambda history, source_P, target_P: np.zeros(3))
    with pytest.raises(ValueError, match=r"mine: found scores of shape \(3,\): expected"):
        scored_by(wrong, graph_of(), 4, 0)


def test_scores_that_are_not_finite_are_refused_by_method_and_step():
    wrong = Formula(score=lambda history, source_P, target_P: np.where(np.arange(len(source_P)) < 2, np.nan, 1.0))
    with pytest.raises(ValueError, match=r"mine: 2 of \d+ scores of step 4 are not finite"):
        scored_by(wrong, graph_of(), 4, 0)


def test_vectors_that_are_not_finite_are_refused_even_where_only_a_test_pair_has_them():
    test = paper_examples(graph_of(), 4, seed=0).test
    vectors = np.ones((40, 3))
    vectors[test.source_P[0], 1] = np.inf
    with pytest.raises(ValueError, match="mine: 1 of 40 vectors for step 4 are not finite"):
        decoded(vectors, graph_of(), 4, 0)


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """A method that records its arguments and returns the degrees in the newest snapshot."""

    seen: list[PreparedGraph]

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        self.seen.append(graph)
        newest = graph.history.snapshots[-1]
        degree_N = np.bincount([*newest.source_E, *newest.target_E], minlength=len(graph.history.node_N)) + float(seed)
        return lambda node_N: np.sqrt(degree_N[node_N, None]).astype(np.float32)


def test_an_embedder_is_trained_on_the_steps_before_and_evaluated_by_its_vectors():
    graph, watcher = graph_of(), Watcher(seen=[])
    trial = Trial(graph=graph, step=4, seed=1, config=GraphConfig(history_window=2))
    paper, forecaster = evaluate_method("watcher", watcher, trial)
    assert (paper.method, forecaster.method) == ("watcher", FORECASTER_WITH + "watcher")
    assert [(prepared.until, prepared.history.num_steps) for prepared in watcher.seen] == [(3, 3), (2, 2)]
    assert [prepared.union.first_step for prepared in watcher.seen] == [2, 1]
    newest = graph.snapshots[2]
    degree_N = np.bincount([*newest.source_E, *newest.target_E], minlength=40) + 1
    own = decoded(np.sqrt(degree_N[:, None]).astype(np.float32), graph, 4, 1)
    np.testing.assert_array_equal(paper.score_P, own.score_P)
    given = {before: watcher.fit(before, seed=1)(np.arange(40)) for before in watcher.seen[:2]}
    by_hand = Forecaster(vectors_of=given.get, seed=1).fit_pairs(trial.past, trial.labelled)
    test = trial.split.test
    np.testing.assert_array_equal(forecaster.score_P, by_hand(test.source_P, test.target_P))


MEASURED = {  # micro and macro AUC over all edges; over new edges too, where measured
    "uci": {
        "L3": (90.3, 91.9),
        "Preferential attachment": (85.9, 86.5),
        "EdgeBank (ever)": (70.4, 72.5),
        "Logistic regression on pair features": (92.8, 94.3, 88.8, 90.9),
    },
    "yelp": {
        "L3": (84.6, 84.2),
        "Preferential attachment (last)": (74.3, 74.0),
        "Logistic regression on pair features": (90.6, 89.5, 90.5, 89.5),
    },
    "ml-10m": {
        "Preferential attachment": (96.9, 97.0),
        "Logistic regression on pair features": (98.3, 98.1, 97.3, 97.0),
    },
    "rds": {"EdgeBank (decayed)": (95.6, 95.7), "Logistic regression on pair features": (96.4, 96.7)},
}
COVERED = {"uci": 80.7, "yelp": 74.9, "ml-10m": 41.8}  # percentage of future links whose two nodes are known


@pytest.mark.parametrize("name", MEASURED)
def test_baselines_have_their_measured_metrics(name: str, shared_log):
    """The expected values are means of three seeds; one seed must be within one point."""
    log = DATASETS[name]
    graph = build_snapshots(published_events(name, shared_log(name))[0], log.window, log.time_unit)
    scored = []
    for step in evaluated_steps(graph, first_step=log.first_evaluated_step):
        trial = Trial(graph=graph, step=step, seed=0)
        scored += [pairs for title in MEASURED[name] for pairs in evaluate_method(title, SCORERS[title], trial)]
    metrics = metrics_of(scored, name).filter(metric="auc")
    for method, measured in MEASURED[name].items():
        own = metrics.filter(method=method)
        found = [
            100 * own.filter(step=step, slice=part)["value"].sum()
            for part in ("all", "new")
            for step in ("micro", "macro")
        ]
        assert found[: len(measured)] == pytest.approx(measured, abs=1.0), method
    if name in COVERED:
        steps = sorted({pairs.step for pairs in scored})
        coverage = log_metrics(graph, steps, name).filter(step="macro", metric="coverage")["value"].item()
        assert 100 * coverage == pytest.approx(COVERED[name], abs=0.05)


def test_a_method_fitted_once_keeps_the_vectors_of_two_steps_and_mixes_none():
    fitted: list[tuple[int, int]] = []

    class Numbered:
        def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
            fitted.append((graph.until, seed))
            return lambda node_N: np.full((len(node_N), 2), 10.0 * graph.until + seed)

    graph, once = toy_graph(*[[(0, 1)]] * 4), FittedOnce(method=Numbered())
    graphs = {until: prepare_graph(graph, until=until, config=GraphConfig()) for until in (2, 3, 4)}
    wanted = [(4, 0), (3, 0), (4, 0), (3, 1), (4, 0), (2, 0), (4, 0), (3, 1)]
    for until, seed in wanted:
        vector_ND = once.fit(graphs[until], seed=seed)(np.arange(2))
        assert vector_ND.tolist() == [[10 * until + seed] * 2] * 2
    assert fitted == [(4, 0), (3, 0), (3, 1), (2, 0), (3, 1)]


@pytest.mark.parametrize(
    ("possible", "listed"),
    [([3, 4, 5], "3 to 5"), ([7], "7"), ([3, 4, 6], "3-4,6"), ([3, 5, 6, 7, 9], "3,5-7,9")],
)
def test_possible_steps_are_listed_as_they_can_be_given(possible: list[int], listed: str):
    protocol = replace(paper.PROTOCOL, units=lambda log: possible)
    log: Any = SimpleNamespace(dataset="mylog")
    with pytest.raises(StepOutOfRange, match=f"mylog: 99 cannot be evaluated; steps {listed} can"):
        chosen_units(protocol, log, "99")
    if " to " not in listed:
        assert chosen_units(protocol, log, listed) == possible
