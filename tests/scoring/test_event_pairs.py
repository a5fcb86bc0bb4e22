"""The event forecaster by pair: its inputs against their formulas, and what it may read."""

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from ranked_logs import growing_log

from dyformer.evaluation.labelled_steps import labelled_steps
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, build_snapshots, interactions_of
from dyformer.logs.time_windows import Window
from dyformer.scoring import event_pairs, heads
from dyformer.scoring.event_pairs import COUNTED, EventPairForecaster, EventPairScore, FittedEventPairs, score_as_of
from dyformer.scoring.interfaces import Score
from dyformer.streams.event_log import EventLog
from dyformer.streams.event_state import FEATURES, INDEX

NUM_NODES, NUM_STEPS, UNTIL = 40, 8, 7


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "NUM_ROUNDS", 10)


def log(*, bipartite: bool = False, directed: bool = True) -> DynamicGraph:
    return growing_log(bipartite=bipartite, directed=directed, num_nodes=NUM_NODES, num_steps=NUM_STEPS, num_rows=120)


def as_of(graph: DynamicGraph, until: int = UNTIL) -> PreparedGraph:
    return prepare_graph(graph, until=until, config=GraphConfig())


def fitted(graph: DynamicGraph, until: int = UNTIL) -> EventPairScore:
    past = as_of(graph, until)
    score = EventPairForecaster().fit_pairs(past, labelled_steps(past, seed=0))
    assert isinstance(score, EventPairScore)
    return score


def pairs_of(graph: DynamicGraph) -> tuple[np.ndarray, np.ndarray]:
    known = graph.snapshots[UNTIL - 1].num_nodes
    source_P, target_P = np.divmod(np.arange(known**2), known)
    return source_P[source_P != target_P], target_P[source_P != target_P]


def scores(score: Score, graph: DynamicGraph) -> np.ndarray:
    return score(*pairs_of(graph))


def changed(graph: DynamicGraph, change: Callable[[pl.DataFrame], pl.DataFrame]) -> DynamicGraph:
    """The graph of the same log with changed rows."""
    rows = interactions_of(graph)
    events = pl.DataFrame({"source": rows.source_R, "target": rows.target_R, "time": rows.time_R})
    return build_snapshots(change(events), Window(rule="equal_time", length="1"), "step")


def test_a_garbage_future_leaves_the_same_bytes_and_a_changed_past_does_not():
    graph, generator = log(), np.random.default_rng(0)
    start = graph.snapshots[UNTIL].start_time

    def garbage(events: pl.DataFrame) -> pl.DataFrame:
        ends = generator.integers(0, 3 * NUM_NODES, (2, 900))
        later = pl.DataFrame({"source": ends[0], "target": ends[1], "time": np.full(900, start)})
        return pl.concat([events.filter(pl.col("time") < start), later])

    def without_last(events: pl.DataFrame) -> pl.DataFrame:
        return events.filter(pl.col("time") < start)[:-1]

    expected = scores(fitted(graph), graph)
    assert scores(fitted(changed(graph, garbage)), graph).tobytes() == expected.tobytes()
    assert scores(fitted(changed(graph, without_last)), graph).tobytes() != expected.tobytes()


def test_the_event_forecaster_has_read_no_event_of_a_labelled_window(monkeypatch: pytest.MonkeyPatch):
    graph, lengths, fit = log(), [], event_pairs.fit_on_past

    def counted(method: object, log: EventLog, *, seed: int) -> object:
        lengths.append((len(log), int(log.time_E.max())))
        return fit(method, log, seed=seed)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(event_pairs, "fit_on_past", counted)
    event_pairs._EVENTS.clear()
    fitted(graph)
    oldest = min(step.before.until for step in labelled_steps(as_of(graph), seed=0))
    assert oldest == UNTIL - 3
    assert lengths == [(oldest * 120, graph.snapshots[oldest].start_time - 1)]


@pytest.mark.parametrize("bipartite", [False, True])
def test_inputs_are_the_features_of_the_state_and_the_chance_in_the_window(bipartite: bool):
    score = fitted(log(bipartite=bipartite))
    inputs, source = score.inputs, 0
    target_P = np.flatnonzero(score.graph.history.side_N == int(bipartite))
    target_P = target_P[target_P != source]
    found_PF = inputs(np.full(len(target_P), source), target_P, both_orders=False)
    row_PF = inputs.state.features(source, target_P, at=inputs.at)
    counted_PF = row_PF[:, COUNTED]
    np.testing.assert_allclose(found_PF[:, : len(COUNTED)], np.sign(counted_PF) * np.log1p(np.abs(counted_PF)), 1e-5)
    assert not [name for name in np.array(FEATURES)[COUNTED] if name.startswith("rank_")]
    assert score.fitted.events is not None
    rows = inputs.state.candidates(source, at=inputs.at)
    probability = dict(zip(rows.target_R.tolist(), score.fitted.events.probabilities(rows), strict=True))
    events = row_PF[0, INDEX["source_2"]] * np.log(2)  # the third half-life is a window
    for target, row_F in zip(target_P.tolist(), found_PF, strict=True):
        if target not in probability:  # below all others
            assert row_F[-3] < np.log(min(probability.values()))
            assert row_F[-2] == pytest.approx(np.log(len(probability) + 1))
            continue
        p = probability[target]
        assert row_F[-3] == pytest.approx(np.log(p), rel=1e-4)
        assert row_F[-2] == pytest.approx(np.log(1 + sum(other > p for other in probability.values())), abs=1e-5)
        assert row_F[-1] == pytest.approx(np.log(1 - np.exp(-events * p)), rel=1e-3, abs=1e-4)


def test_a_score_does_not_depend_on_the_other_pairs():
    graph = log()
    score, generator = fitted(graph), np.random.default_rng(0)
    source_P, target_P = pairs_of(graph)
    together_P, order_P = score(source_P, target_P), generator.permutation(len(source_P))
    np.testing.assert_array_equal(score(source_P[order_P], target_P[order_P]), together_P[order_P])
    for pair in order_P[:20].tolist():
        np.testing.assert_array_equal(score(source_P[[pair]], target_P[[pair]]), together_P[[pair]])


def test_threads_get_the_scores_of_one_thread(monkeypatch: pytest.MonkeyPatch):
    graph = log()
    score, pairs = fitted(graph), pairs_of(graph)
    alone_P = score(*pairs)
    monkeypatch.setattr(event_pairs, "BLOCK_PAIRS", 1 + len(alone_P) // 7)
    switched = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for scores_P in pool.map(lambda _: score(*pairs), range(60)):
                np.testing.assert_array_equal(scores_P, alone_P)
    finally:
        sys.setswitchinterval(switched)


@pytest.mark.parametrize(("bipartite", "directed"), [(False, False), (True, False), (True, True)])
def test_pairs_without_direction_or_of_two_sides_have_one_score_in_both_orders(bipartite: bool, directed: bool):
    graph = log(bipartite=bipartite, directed=directed)
    score, (source_P, target_P) = fitted(graph), pairs_of(graph)
    is_across_P = graph.side_N[source_P] != graph.side_N[target_P] if bipartite else source_P >= 0
    source_P, target_P = source_P[is_across_P], target_P[is_across_P]
    np.testing.assert_array_equal(score(source_P, target_P), score(target_P, source_P))
    assert np.ptp(score(source_P, target_P)) > 0


def test_a_direction_matters_in_a_directed_log():
    graph = log()
    source_P, target_P = pairs_of(graph)
    score = fitted(graph)
    assert np.any(score(source_P, target_P) != score(target_P, source_P))


def test_what_was_fitted_is_read_again_from_json():
    graph = log()
    score = fitted(graph)
    record = json.loads(json.dumps(score.fitted.record()))
    again = score_as_of(FittedEventPairs.from_record(record), as_of(graph))
    assert scores(again, graph).tobytes() == scores(score, graph).tobytes()


def test_a_past_too_short_for_an_event_forecaster_leaves_the_counts():
    graph = log()
    score = fitted(graph, until=2)  # one window before the only labelled one
    past = replace(score.fitted, events=None)
    known = graph.snapshots[1].num_nodes
    source_P, target_P = np.arange(known - 1), np.arange(1, known)
    short = EventPairScore(fitted=past, inputs=replace(score.inputs, events=None), graph=score.graph)
    assert np.isfinite(score(source_P, target_P)).all()
    assert np.isnan(short.inputs(source_P, target_P, both_orders=False)[:, -3:]).all()
    assert np.isfinite(short(source_P, target_P)).all()
