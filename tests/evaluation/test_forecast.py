from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from polars.testing import assert_frame_equal
from ranked_logs import growing_log

import dyformer.evaluation.forecasts.forecast as module
from dyformer.evaluation import first_stage
from dyformer.evaluation.first_stage import fit_retrieval, linked_in, ordered, retrieved_pairs
from dyformer.evaluation.forecasts.forecast import FORECAST_SCHEMA, Forecast, Links, fit_forecast
from dyformer.evaluation.forecasts.stored_forecast import forecast_from, forecast_record
from dyformer.evaluation.labelled_steps import sampled_steps
from dyformer.evaluation.scored_queries import RankingTrial, evaluate_queries
from dyformer.experiments.methods import METHODS
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.kernels import paths
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, prefix
from dyformer.sampling.pairs import Pairs, TooFewLinks
from dyformer.sampling.ranking_queries import ranking_queries, step_pairs
from dyformer.scoring import heads
from dyformer.scoring.calibration import fit_calibration
from dyformer.scoring.candidate_pairs import candidate_pairs
from dyformer.scoring.forecaster import FittedForecaster, Forecaster, ForecasterScore
from dyformer.scoring.interfaces import Embed, LabelledStep, NoVectors, Score
from dyformer.scoring.link_features import names, prepare_link_features
from dyformer.scoring.pair_features import PairFeatures
from dyformer.scoring.reasons import kind_of, reason
from dyformer.scoring.retrieval import Retrieved, best_of_nodes

GRAPH, UNTIL = growing_log(num_steps=7), 6
CONTACT = METHODS["Contact recency"]


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "NUM_ROUNDS", 15)


def past_of(graph: DynamicGraph = GRAPH, until: int = UNTIL) -> PreparedGraph:
    return prepare_graph(graph, until=until, config=GraphConfig())


@dataclass(frozen=True, kw_only=True)
class Product:
    """A scorer with one score for both directions, which knows no past."""

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        return lambda source_P, target_P: (source_P * 7 + target_P * 13) % 31 / 31.0


@pytest.fixture(scope="module")
def forecast() -> Forecast:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "NUM_ROUNDS", 15)
        return fit_forecast("Forecaster without vectors", Forecaster(), past_of(), seed=0)


def test_a_forecast_has_the_scores_that_the_evaluation_of_the_step_gives(forecast: Forecast):
    queries = ranking_queries(GRAPH, UNTIL + 1, seed=0, num_per_family=6)
    [scored] = evaluate_queries("own", Forecaster(), RankingTrial(graph=GRAPH, queries=queries, seed=0))
    pairs = queries.pairs
    np.testing.assert_array_equal(forecast.score(pairs.source_S, pairs.target_S), scored.score_S)


def test_each_node_gets_its_best_retrieved_pairs(forecast: Forecast):
    top, history = forecast.top(4), forecast.past.history
    assert top.schema == FORECAST_SCHEMA
    retrieved = forecast.retrieved()
    score_R = forecast.score(*ordered(history, retrieved))
    for node in np.unique(retrieved.node_R):
        own_R = np.flatnonzero(retrieved.node_R == node)
        best = sorted(zip(-score_R[own_R], retrieved.partner_R[own_R].tolist(), strict=True))[:4]
        rows = top.filter(node=node)
        assert rows["partner"].to_list() == [partner for _, partner in best]
        assert rows["rank"].to_list() == list(range(1, len(best) + 1))
        own = Retrieved(rows["node"].to_numpy(), rows["partner"].to_numpy(), rows["linked_before"].to_numpy())
        given = forecast.probability(*ordered(history, own))
        np.testing.assert_allclose(rows["probability"], given)


def test_links_leave_only_new_or_only_past_pairs(forecast: Forecast):
    linked = {
        frozenset(pair)
        for snapshot in forecast.past.history.snapshots
        for pair in zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True)
    }
    new, repeat, both = (forecast.top(3, links=links) for links in ("new", "repeat", "all"))
    for rows in (new, repeat, both):
        is_linked = [frozenset(pair) in linked for pair in rows.select("node", "partner").rows()]
        assert rows["linked_before"].to_list() == is_linked
    assert not new["linked_before"].any()
    assert repeat["linked_before"].all()
    assert 0 < both["linked_before"].sum() < len(both)


def test_tables_of_several_kinds_are_those_of_each_and_score_a_pair_once(forecast: Forecast):
    num_scored = []

    def score(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
        num_scored.append(len(source_P))
        return forecast.score(source_P, target_P)

    kinds: tuple[Links, ...] = ("all", "new")
    tables = replace(forecast, score=score).tables(3, kinds)
    assert num_scored == [len(forecast.retrieved().node_R)]
    for kind in kinds:
        assert tables[kind].drop("reasons").equals(forecast.top(3, links=kind).drop("reasons"))


def test_query_nodes_get_the_forecasts_that_they_get_among_all(forecast: Forecast):
    query_A = np.array([3, 8])
    assert forecast.top(5, query_A=query_A).equals(forecast.top(5).filter(pl.col("node").is_in(query_A.tolist())))


def test_no_link_of_a_later_step_is_read(forecast: Forecast):
    cut = fit_forecast("own", Forecaster(), past_of(prefix(GRAPH, UNTIL)), seed=0)
    assert cut.top(5).equals(forecast.top(5))


def test_reasons_are_the_largest_parts_of_the_linear_head(forecast: Forecast):
    source_P, target_P = np.array([1, 2, 5]), np.array([4, 3, 9])
    assert isinstance(forecast.score, ForecasterScore)
    linear = forecast.score.fitted.heads[0]
    assert isinstance(linear, heads.LinearHead)
    own = Forecaster()
    inputs_PF = own.inputs(forecast.past, source_P, target_P, directed=True)
    for found, input_F in zip(forecast.score.reasons(source_P, target_P).to_list(), inputs_PF, strict=True):
        part_F = (input_F - linear.mean_F) * linear.slope_F
        own_names, expected = names(directed=True), dict[str, int]()
        for index in np.argsort(-part_F):
            if part_F[index] > 0 and len(expected) < 3:
                expected.setdefault(kind_of(own_names[index]), index)
        assert found == [
            reason(own_names[index], is_large=bool(input_F[index] > linear.mean_F[index]))
            for index in expected.values()
        ]


def test_every_table_has_the_reasons_of_its_own_pairs(forecast: Forecast):
    assert isinstance(forecast.score, ForecasterScore)
    for table in forecast.tables(3, ("all", "new", "repeat")).values():
        expected = forecast.score.reasons(table["node"].to_numpy(), table["partner"].to_numpy())
        assert table["reasons"].to_list() == expected.to_list()
        assert len({tuple(reasons) for reasons in expected.to_list()}) > 1


def test_ranks_follow_the_score_and_probabilities_rise_with_it(forecast: Forecast):
    top = forecast.top(5)
    for _, rows in top.group_by("node"):
        assert rows.sort("rank")["score"].is_sorted(descending=True)
    by_score = top.sort("score")
    assert by_score["probability"].is_sorted()
    assert top["probability"].n_unique() < top["score"].n_unique()  # the steps of the calibration


def test_a_baseline_forecasts_as_well_and_has_no_reasons():
    forecast = fit_forecast("Contact recency", CONTACT, past_of(), seed=0)
    top = forecast.top(3)
    assert top["reasons"].list.len().to_list() == [0] * len(top)
    assert top["probability"].is_between(0, 1).all()


def test_nodes_of_the_second_side_are_targets():
    sides = np.array([0, 1, 0, 1], dtype=np.int8)
    history = replace(GRAPH, side_N=sides)
    retrieved = Retrieved(np.array([0, 1, 2]), np.array([1, 2, 3]), np.zeros(3, dtype=bool))
    source_R, target_R = ordered(history, retrieved)
    assert source_R.tolist() == [0, 2, 2]
    assert target_R.tolist() == [1, 1, 3]


def test_ties_go_to_the_first_partners():
    retrieved = Retrieved(np.array([0, 0, 0, 1]), np.array([5, 2, 3, 4]), np.zeros(4, dtype=bool))
    best_R, rank_R = best_of_nodes(retrieved.node_R, retrieved.partner_R, np.array([0.5, 0.5, 0.9, 0.1]), 2)
    assert retrieved.partner_R[best_R].tolist() == [3, 2, 4]
    assert rank_R.tolist() == [1, 2, 1]


@pytest.mark.parametrize("num_pairs", [0, 1, 7, 400])
@pytest.mark.parametrize("k", [1, 3, 1000])
@pytest.mark.parametrize("num_scores", [1, 4, 10_000])
def test_best_of_nodes_are_those_of_sorted_pairs(num_pairs: int, k: int, num_scores: int):
    generator = np.random.default_rng(num_pairs + k)
    node_R = np.sort(generator.integers(10, size=num_pairs))
    partner_R = generator.permutation(num_pairs)
    score_R = generator.integers(num_scores, size=num_pairs) / num_scores
    best_R, rank_R = best_of_nodes(node_R, partner_R, score_R, k)
    found = [(int(node_R[best]), int(rank), int(best)) for best, rank in zip(best_R, rank_R, strict=True)]
    expected = []
    for node in range(10):
        own = sorted(np.flatnonzero(node_R == node), key=lambda pair: (-score_R[pair], partner_R[pair]))[:k]
        expected += [(node, rank, int(pair)) for rank, pair in enumerate(own, start=1)]
    assert found == expected


@pytest.mark.parametrize("directed", [True, False])
def test_links_of_a_step_have_the_direction_of_the_log(directed: bool):
    graph = replace(GRAPH, directed=directed)
    source_R, target_R = step_pairs(graph, 5)
    rows = set(zip(source_R.tolist(), target_R.tolist(), strict=True))
    one_way = next((s, t) for s, t in rows if (t, s) not in rows)
    source_P, target_P = np.array(one_way), np.array(one_way[::-1])
    assert linked_in(graph, 5, source_P, target_P).tolist() == [True, not directed]


def test_calibration_is_isotonic_regression_with_one_more_pair_in_each_level():
    from sklearn.isotonic import IsotonicRegression

    generator = np.random.default_rng(0)
    score_P = np.round(generator.random(3000), 3)
    positive_P = generator.random(3000) < score_P**2
    found = fit_calibration(score_P, positive_P).probability(score_P)
    fitted = IsotonicRegression().fit(score_P, positive_P).predict(score_P)
    _, level_P, num_L = np.unique(np.round(fitted, 12), return_inverse=True, return_counts=True)
    expected = (fitted * num_L[level_P] + positive_P.mean()) / (num_L[level_P] + 1)
    np.testing.assert_allclose(
        found, np.maximum.accumulate(expected[np.argsort(score_P)])[np.argsort(np.argsort(score_P))], atol=1e-9
    )
    assert (np.diff(found[np.argsort(score_P, kind="stable")]) >= 0).all()


def test_few_pairs_never_give_certainty():
    calibration = fit_calibration(np.array([0.1, 0.2, 0.8, 0.9]), np.array([False, False, True, True]))
    assert calibration.probability(np.array([-5.0, 0.85, 99.0])) == pytest.approx([0.5 / 3, 2.5 / 3, 2.5 / 3])


def test_probabilities_are_calibrated_on_the_newest_step_alone():
    past = past_of()
    forecast = fit_forecast("own", Product(), past, seed=0)
    before = past_of(until=UNTIL - 1)
    retrieved = retrieved_pairs(before, fit_retrieval(sampled_steps(before, seed=0)))
    pairs = ordered(before.history, retrieved)
    expected = fit_calibration(Product().fit_pairs(before, ())(*pairs), linked_in(GRAPH, UNTIL, *pairs))
    np.testing.assert_array_equal(forecast.calibration.score_B, expected.score_B)
    np.testing.assert_array_equal(forecast.calibration.probability_B, expected.probability_B)


Broken = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def with_value(value: float, rows: slice) -> Broken:
    def broken(score_P: NDArray[np.float64]) -> NDArray[np.float64]:
        score_P[rows] = value
        return score_P

    return broken


BROKEN = {
    "NaN": (with_value(np.nan, slice(3)), r"own: 3 of \d+ scores of step 7 are not finite"),
    "-inf": (with_value(-np.inf, slice(1)), r"own: 1 of \d+ scores of step 7 are not finite"),
    "one too few": (lambda score_P: score_P[1:], r"own: found scores of shape \(\d+,\): expected \d+ scores of step 7"),
    "one too many": (lambda score_P: np.append(score_P, 1.0), r"expected \d+ scores of step 7"),
    "a column": (lambda score_P: score_P[:, None], r"found scores of shape \(\d+, 1\): expected \d+ scores of step 7"),
}


@dataclass(frozen=True, kw_only=True)
class BrokenAt:
    """A scorer whose scores of the step after `until` are broken."""

    until: int
    broken: Broken

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        whole = Product().fit_pairs(graph, labelled)
        return (lambda *pairs: self.broken(whole(*pairs))) if graph.until == self.until else whole


@pytest.mark.parametrize("kind", list(BROKEN))
def test_broken_scores_of_a_forecast_are_refused_by_method_step_and_number(kind: str):
    broken, message = BROKEN[kind]
    forecast = fit_forecast("own", BrokenAt(until=UNTIL, broken=broken), past_of(), seed=0)
    with pytest.raises(ValueError, match=message):
        forecast.tables(3, ("all", "new"))
    with pytest.raises(ValueError, match=message):
        forecast.probability(np.array([1, 2, 3, 4]), np.array([5, 6, 7, 8]))


@pytest.mark.parametrize("kind", list(BROKEN))
def test_broken_scores_calibrate_no_forecast(kind: str):
    broken, message = BROKEN[kind]
    with pytest.raises(ValueError, match=message.replace("step 7", "step 6")):
        fit_forecast("own", BrokenAt(until=UNTIL - 1, broken=broken), past_of(), seed=0)


def test_scores_of_a_forecaster_that_are_not_finite_are_refused(forecast: Forecast, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ForecasterScore, "scores", lambda score, source_P, *_: np.full(len(source_P), np.nan))
    with pytest.raises(ValueError, match=r"Forecaster without vectors: (\d+) of \1 scores of step 7 are not finite"):
        forecast.top(3)


@dataclass(frozen=True, kw_only=True)
class VectorsFrom:
    """Vectors of the graphs from a step on, as stored weights have them."""

    first: int

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        if graph.until < self.first:
            raise NoVectors(f"none for {graph.until}")
        return lambda node_N: np.eye(len(graph.history.node_N))[node_N]


def test_a_calibration_without_weights_of_so_old_a_step_is_refused_by_name():
    assert fit_forecast("own", VectorsFrom(first=UNTIL - 1), past_of(), seed=0)
    with pytest.raises(TooFewLinks, match="probabilities cannot be calibrated"):
        fit_forecast("own", VectorsFrom(first=UNTIL), past_of(), seed=0)


def test_a_step_that_cannot_be_learnt_from_is_left_out_of_the_calibration(monkeypatch: pytest.MonkeyPatch):
    honest, refused = module.sampled_steps, []

    def sampled(past: PreparedGraph, *, seed: int, period: int, known=(), as_large: bool = False):
        if past.until == UNTIL - 1:
            refused.append(past.until)
            raise TooFewLinks("no negative pairs")
        return honest(past, seed=seed, period=period, known=known, as_large=as_large)

    monkeypatch.setattr(module, "sampled_steps", sampled)
    forecast = fit_forecast("own", Product(), past_of(), seed=0)
    assert refused == [UNTIL - 1]
    assert len(forecast.calibration.score_B)


def test_a_fitted_forecaster_survives_its_record(forecast: Forecast):
    import json

    assert isinstance(forecast.score, ForecasterScore)
    stored = FittedForecaster.from_record(json.loads(json.dumps(forecast.score.fitted.record())))
    again = replace(forecast.score, fitted=stored)
    source_P, target_P = np.triu_indices(12, 1)
    np.testing.assert_array_equal(again(source_P, target_P), forecast.score(source_P, target_P))


def test_less_than_one_partner_is_refused(forecast: Forecast):
    with pytest.raises(ValueError, match="k = 0: expected at least one partner per node"):
        forecast.top(0)
    with pytest.raises(ValueError, match="links = 'repeated': expected one of all, new, repeat"):
        forecast.top(3, links="repeated")  # pyright: ignore[reportArgumentType]


def test_a_newest_step_without_links_among_known_nodes_does_not_calibrate():
    thin = without_links(GRAPH, UNTIL)
    forecast = fit_forecast("own", Product(), past_of(thin), seed=0)
    earlier = fit_forecast("own", Product(), past_of(until=UNTIL - 1), seed=0)
    np.testing.assert_array_equal(forecast.calibration.probability_B, earlier.calibration.probability_B)
    assert forecast.calibration.probability_B.max() > 0
    assert forecast.calibration_step == earlier.calibration_step == UNTIL - 1


def test_a_history_without_links_to_calibrate_on_is_refused():
    thin = GRAPH
    for step in (2, 3, 5, UNTIL):
        thin = without_links(thin, step)
    with pytest.raises(TooFewLinks, match="probabilities cannot be calibrated"):
        fit_forecast("own", Product(), past_of(thin), seed=0)


def without_links(graph: DynamicGraph, step: int) -> DynamicGraph:
    """The graph with self-loops alone in one step."""
    snapshot, rows = graph.snapshots[step - 1], graph.interactions
    assert rows is not None
    first = sum(each.num_interactions for each in graph.snapshots[: step - 1])
    target_R = rows.target_R.copy()
    target_R[first : first + snapshot.num_interactions] = rows.source_R[first : first + snapshot.num_interactions]
    none = np.empty(0, dtype=np.int64)
    empty = replace(snapshot, source_E=none, target_E=none, weight_E=none.astype(np.float64))
    snapshots = (*graph.snapshots[: step - 1], empty, *graph.snapshots[step:])
    return replace(graph, snapshots=snapshots, interactions=replace(rows, target_R=target_R))


def test_scores_of_blocks_are_those_of_all_pairs(forecast: Forecast, monkeypatch: pytest.MonkeyPatch):
    source_P, target_P = np.triu_indices(12, 1)
    whole = forecast.score(source_P, target_P)
    monkeypatch.setattr("dyformer.scoring.forecaster.BLOCK_PAIRS", 7)
    np.testing.assert_allclose(forecast.score(source_P, target_P), whole, rtol=0, atol=1e-12)


def test_walks_are_made_once_for_the_scores_and_the_reasons(forecast: Forecast, monkeypatch: pytest.MonkeyPatch):
    walk, ends = paths.weighted_path_sums, []

    def walked(*arguments):
        ends.append(arguments[-1][0].tolist())
        return walk(*arguments)

    expected = forecast.tables(3, ("all", "new"))
    monkeypatch.setattr(paths, "weighted_path_sums", walked)
    monkeypatch.setattr("dyformer.scoring.forecaster.BLOCK_PAIRS", 50)
    monkeypatch.setattr("dyformer.scoring.link_features.BLOCK_PAIRS", 7)
    found = forecast.tables(3, ("all", "new"))
    for kind, table in expected.items():
        assert_frame_equal(found[kind], table, check_exact=True)
    assert len(ends) == 1
    assert ends[0] == sorted(ends[0])  # pairs that are walked from one end follow each other
    listed = found["all"]
    pairs = listed["node"].to_numpy(), listed["partner"].to_numpy()
    assert isinstance(forecast.score, ForecasterScore)
    assert forecast.score.reasons(*pairs).to_list() == listed["reasons"].to_list()


def test_a_step_is_summarised_once_for_the_fit_and_for_the_calibration(monkeypatch: pytest.MonkeyPatch):
    prepare, untils = prepare_link_features, []

    def counted(history: DynamicGraph, pairs: PairFeatures):
        untils.append(history.num_steps)
        return prepare(history, pairs)

    monkeypatch.setattr("dyformer.scoring.forecaster.prepare_link_features", counted)
    found = fit_forecast("Forecaster without vectors", Forecaster(), past_of(), seed=0)
    found.top(2)
    assert sorted(untils) == list(range(2, UNTIL + 1))  # three labelled steps, those of a step earlier, and today


def test_of_large_graphs_two_summaries_stay_and_none_is_repeated(monkeypatch: pytest.MonkeyPatch):
    from dyformer.scoring import forecaster

    for name in ("evaluation.labelled_steps", "scoring.forecaster"):
        monkeypatch.setattr(f"dyformer.{name}.MAX_NODES", 0)
    prepare, untils, most = prepare_link_features, [], []

    def counted(history: DynamicGraph, pairs: PairFeatures):
        untils.append(history.num_steps)
        most.append(len(forecaster._FEATURES))
        return prepare(history, pairs)

    monkeypatch.setattr(forecaster, "prepare_link_features", counted)
    monkeypatch.setattr(forecaster, "_FEATURES", WeakKeyDictionary())
    fit_forecast("Forecaster without vectors", Forecaster(), past_of(), seed=0).top(2)
    assert untils == [UNTIL - 1, UNTIL - 2, UNTIL]  # the labelled step, that of the calibration, and today
    assert max(most) == 1  # and the one that is being made


def test_fewer_pairs_are_retrieved_on_a_large_graph(forecast: Forecast, monkeypatch: pytest.MonkeyPatch):
    nums = []
    monkeypatch.setattr(first_stage, "retrieve", lambda *_, k, **__: nums.append(k))
    num_nodes = forecast.past.history.snapshots[-1].num_nodes
    for max_nodes, max_retrieved in ((num_nodes, 1), (num_nodes - 1, 1), (num_nodes - 1, 35 * num_nodes)):
        monkeypatch.setattr(first_stage, "MAX_NODES", max_nodes)
        monkeypatch.setattr(first_stage, "MAX_RETRIEVED", max_retrieved)
        retrieved_pairs(forecast.past, forecast.retrieval)
    assert nums == [100, 30, 35]


def test_a_graph_that_has_just_become_large_is_calibrated_as_its_forecast_is_made(monkeypatch: pytest.MonkeyPatch):
    before, past = past_of(until=UNTIL - 1), past_of()
    most = len(before.history.side_N)
    assert most < len(past.history.side_N)
    for name in ("labelled_steps", "first_stage", "forecasts.forecast"):
        monkeypatch.setattr(f"dyformer.evaluation.{name}.MAX_NODES", most)
    fitted: dict[int, list[tuple[int, int]]] = {}
    given: list[int] = []

    class Noting(Product):
        def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
            fitted[graph.until] = [(step.before.until, len(step.new_partners.source_P)) for step in labelled]
            return super().fit_pairs(graph, labelled)

    def candidates_of(graph: PreparedGraph, query_A: NDArray[np.int64] | None) -> Pairs:
        given.append(graph.until)
        return candidate_pairs(graph, query_A)

    fit_forecast("Noting", Noting(), past, seed=0, candidates_of=candidates_of).top(2)
    assert fitted == {UNTIL: [(UNTIL - 1, 0)], UNTIL - 1: [(UNTIL - 2, 0)]}
    assert given == [UNTIL - 1, UNTIL]


def every_graph_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("evaluation.first_stage", "evaluation.labelled_steps", "scoring.forecaster", "scoring.retrieval"):
        monkeypatch.setattr(f"dyformer.{name}.MAX_NODES", 0)


@pytest.mark.parametrize("num_hubs", [0, 3])
def test_scores_of_a_large_graph_do_not_depend_on_the_range(num_hubs: int, monkeypatch: pytest.MonkeyPatch):
    every_graph_is_large(monkeypatch)
    monkeypatch.setattr("dyformer.scoring.link_features.LARGE_NODES", 0)
    monkeypatch.setattr("dyformer.scoring.link_features.NUM_HUBS", num_hubs)
    past = past_of()
    large = fit_forecast("Forecaster without vectors", Forecaster(), past, seed=0, candidates_of=candidate_pairs)
    whole = large.tables(3, ("all", "new"))
    node_N = np.arange(len(past.history.node_N))
    ranges = [large.tables(3, ("all", "new"), query_A=node_A) for node_A in (node_N[:1], node_N[1:5], node_N[5:])]
    for kind, table in whole.items():
        assert table["node"].n_unique() > 10
        assert_frame_equal(pl.concat([tables[kind] for tables in ranges]), table, check_exact=True)


def test_walks_of_candidates_are_made_once_for_both_stages(monkeypatch: pytest.MonkeyPatch):
    every_graph_is_large(monkeypatch)
    past = past_of()
    large = fit_forecast("Forecaster without vectors", Forecaster(), past, seed=0, candidates_of=candidate_pairs)
    retrieved = retrieved_pairs(past, large.retrieval, None, candidate_pairs, at_least=3)
    found, apart = large.retrieved(at_least=3), large.score(*ordered(past.history, retrieved))
    for column, expected in zip(found[:3], retrieved[:3], strict=True):
        np.testing.assert_array_equal(column, expected)
    assert retrieved.walks is None
    np.testing.assert_array_equal(large._scored(found)[0], apart)
    made = []
    for name in ("path_sums", "weighted_path_sums"):
        walk = getattr(paths, name)
        monkeypatch.setattr(paths, name, lambda *given, walk=walk, name=name: made.append(name) or walk(*given))
    large.tables(3, ("all", "new"))
    assert made == ["weighted_path_sums"]


def test_at_least_as_many_partners_are_retrieved_as_are_listed(forecast: Forecast, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(first_stage, "NUM_RETRIEVED", (1, 1))
    monkeypatch.setattr(first_stage, "MAX_RETRIEVED", 1)
    found = forecast.top(4, links="new")
    assert found.group_by("node").len()["len"].max() == 4


def test_on_a_large_graph_the_newest_step_is_labelled_alone(monkeypatch: pytest.MonkeyPatch):
    every = sampled_steps(past_of(), seed=0)
    assert [step.before.until for step in every] == [UNTIL - 1, UNTIL - 2, UNTIL - 3]
    monkeypatch.setattr("dyformer.evaluation.labelled_steps.MAX_NODES", len(past_of().history.node_N) - 1)
    [newest] = sampled_steps(past_of(), seed=0)
    assert newest.before.until == UNTIL - 1
    for name in vars(newest.examples):
        np.testing.assert_array_equal(getattr(newest.examples, name), getattr(every[0].examples, name))
    assert len(sampled_steps(past_of(), seed=0, num_steps=2)) == 2
    monkeypatch.setattr("dyformer.evaluation.labelled_steps.MAX_NODES", len(past_of().history.node_N))
    assert len(sampled_steps(past_of(), seed=0)) == 3


def test_only_forecasters_and_baselines_are_stored_and_read():
    past = past_of()
    forecast = fit_forecast("own", Product(), past, seed=0)
    with pytest.raises(
        ValueError, match=r"test_forecast:Product cannot be stored: expected a forecaster or a baseline"
    ):
        forecast_record(forecast, Product(), seed=0)
    record = forecast_record(fit_forecast("Contact recency", CONTACT, past, seed=0), CONTACT, seed=0)
    with pytest.raises(ValueError, match=r"the baseline os:system is not one of dyformer\.baselines"):
        forecast_from({**record, "baseline": ["os", "system", {"command": "true"}]}, past.history, None)
    with pytest.raises(ValueError, match="a forecast as of step 6 needs its history, found 5 steps"):
        forecast_from(record, prefix(past.history, 5), None)


def test_a_forecast_that_reads_vectors_needs_them(forecast: Forecast):
    record = forecast_record(forecast, Forecaster(), seed=0)
    with pytest.raises(ValueError, match="this forecast reads vectors, and none are given"):
        forecast_from({**record, "reads_vectors": True}, forecast.past.history, None)
