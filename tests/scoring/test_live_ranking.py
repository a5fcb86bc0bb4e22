"""Claims about ranking by ids as of now: the numbers of the batch evaluation, new nodes, equal times, reasons."""

from functools import cache
from typing import Any

import numpy as np
import polars as pl
import pytest
from event_logs import random_log

from dyformer.scoring.event_forecaster import EventForecaster, TooFewPastEvents, fit_on_past
from dyformer.scoring.event_reasons import COMMON, reasons
from dyformer.scoring.live_ranking import LiveRanking, NamedEvents, NodeIds
from dyformer.streams.event_log import EventQueries
from dyformer.streams.event_state import FEATURES, EventState
from dyformer.streams.feature_words import in_words

WORLDS = [True, False]


@cache
def log(two_sides):
    return random_log(num_events=2_000, num_nodes=30, num_times=900, two_sides=two_sides)


@cache
def fitted(two_sides):
    method = EventForecaster(gate_rounds=16, past_rounds=16, new_rounds=16)
    return fit_on_past(method, log(two_sides).head(1_500), seed=0)


def names(events, first, end):
    """Give a part of a log by ids: u3, p5, or n3 and n5 in a log with one side."""
    source, target = ("u", "p") if events.two_sides else ("n", "n")
    return NamedEvents(
        sources=[f"{source}{number}" for number in events.source_E[first:end]],
        targets=[f"{target}{number}" for number in events.target_E[first:end]],
        times=events.time_E[first:end].tolist(),
        weights=events.weight_E[first:end].tolist(),
    )


def empty(two_sides):
    sources = []
    ids = NodeIds(sources=sources, targets=[] if two_sides else sources)
    return LiveRanking(fitted(two_sides), EventState(0, 0, fitted(two_sides).settings), ids)


def live(two_sides, end):
    ranking = empty(two_sides)
    ranking.observe(names(log(two_sides), 0, end))
    return ranking


def batch_scores(two_sides, source, at):
    """Score all targets as the evaluation does, [D]."""
    events = log(two_sides)
    visible = np.searchsorted(events.time_E, at)
    queries = EventQueries(source_Q=np.array([source]), time_Q=np.array([at]), num_visible_Q=np.array([visible]))
    return np.concatenate(list(fitted(two_sides)(events, queries)))[0]


@pytest.mark.parametrize("two_sides", WORLDS)
def test_probabilities_and_scores_are_those_of_the_batch_evaluation(two_sides):
    events, prefix = log(two_sides), "p" if two_sides else "n"
    for event in (1_600, 1_700, 1_999):
        at, source = int(events.time_E[event]), int(events.source_E[event])
        ranking = live(two_sides, int(np.searchsorted(events.time_E, at)))
        expected_D = batch_scores(two_sides, source, at)
        name = f"{'u' if two_sides else 'n'}{source}"
        ranked = ranking.rank(name, at=at, k=50)
        found = [expected_D[int(target.removeprefix(prefix))] for target in ranked.targets]
        assert np.abs(np.array(found) - ranked.probability_K).max() < 1e-9
        scores = ranking.scores(name, [f"{prefix}{number}" for number in range(events.num_targets)], at=at)
        assert np.abs(scores.score_P - expected_D).max() < 1e-9
        has_row = ~np.isnan(scores.probability_P)
        assert np.array_equal(scores.probability_P[has_row], scores.score_P[has_row])


@pytest.mark.parametrize("two_sides", WORLDS)
def test_events_in_pieces_and_at_once_rank_alike(two_sides):
    at_once, in_pieces = live(two_sides, 1_800), empty(two_sides)
    for first in range(0, 1_800, 77):
        in_pieces.observe(names(log(two_sides), first, min(first + 77, 1_800)))
        in_pieces.rank("u1" if two_sides else "n1")  # a query changes no later ranking
    for number in range(30):
        name = f"{'u' if two_sides else 'n'}{number}"
        one, other = at_once.rank(name), in_pieces.rank(name)
        assert one.targets == other.targets
        assert np.array_equal(one.probability_K, other.probability_K)


@pytest.mark.parametrize("two_sides", WORLDS)
def test_a_source_without_a_past_is_ranked_and_then_known(two_sides):
    ranking = live(two_sides, 1_000)
    before = ranking.rank("someone")
    assert before.num_events == 0
    assert before.is_new_K.all()
    assert len(before.targets) == 10
    ranking.observe(NamedEvents(sources=["someone"], targets=["something"], times=[ranking.now], weights=[1.0]))
    after = ranking.rank("someone")
    assert (after.num_events, "something" in after.targets) == (1, True)
    assert not after.is_new_K[after.targets.index("something")]
    assert [tuple(partner) for partner in ranking.past("someone", 5)] == [
        ("something", 1, ranking.newest_time, ranking.newest_time)
    ]
    assert ranking.past("nobody", 5) == []


@pytest.mark.parametrize(
    ("stored", "queried"),
    [
        ("u1", "U1"),
        ("8f14e45f-ceea", "8F14E45F-CEEA"),
        ("8F14E45F-CEEA", "8f14e45f-ceea"),
        ("Mary Ann", "mary ann"),
        ("Bob x", "BOB X"),
    ],
)
def test_a_source_in_other_capitals_is_another_one_whose_name_is_given(stored, queried):
    ids = NodeIds(sources=[stored], targets=["other"])
    assert ids.in_other_capitals(queried) == stored
    assert ids.in_other_capitals(stored) is None
    assert ids.in_other_capitals("OTHER") is None
    ids = NodeIds(sources=[stored, queried], targets=[])
    assert ids.in_other_capitals(queried) is None


def test_new_nodes_find_room_that_is_seldom_made(monkeypatch):
    ranking, rooms = live(True, 1_000), []
    grow = ranking._state.grow
    monkeypatch.setattr(ranking._state, "grow", lambda *room: (rooms.append(room), grow(*room)))
    for number in range(100):
        name = f"new-{number}"
        ranking.observe(NamedEvents(sources=[name], targets=[name], times=[ranking.now], weights=[1.0]))
        assert ranking.rank(name).num_events == 1
    assert 1 <= len(rooms) <= 15  # each has an eighth more than the one before
    assert rooms[-1] >= (len(ranking.ids.sources) + 1, len(ranking.ids.targets) + 1)
    for number in range(100):  # new sources alone, then new targets alone
        ranking.observe(NamedEvents(sources=[f"s{number}"], targets=["p1"], times=[ranking.now], weights=[1.0]))
        assert ranking.rank("nobody").num_events == 0
    for number in range(100):
        ranking.observe(NamedEvents(sources=["u1"], targets=[f"t{number}"], times=[ranking.now], weights=[1.0]))
        assert ranking.scores("u1", ["nothing"]).score_P[0] == 0


class EventsInBetween:
    """A lock: before it is taken for the first time, a ranking observes events of many new targets."""

    def __init__(self, ranking):
        self.ranking, self.is_first = ranking, True

    def __enter__(self):
        if self.is_first:
            self.is_first, now = False, self.ranking.now
            names = [f"new-{number}" for number in range(300)]
            self.ranking.observe(NamedEvents(sources=names, targets=names, times=[now] * 300, weights=[1.0] * 300))

    def __exit__(self, *error):
        pass


@pytest.mark.parametrize("two_sides", WORLDS)
def test_scores_count_what_came_while_they_waited(two_sides, monkeypatch):
    ranking, targets = live(two_sides, 1_000), ["p1" if two_sides else "n1", "nothing", "new-0", "new-299"]
    monkeypatch.setattr(ranking, "_lock", EventsInBetween(ranking))
    waited = ranking.scores("new-7", targets)
    after = ranking.scores("new-7", targets)
    assert waited.at == after.at
    assert waited.score_P.tolist() == after.score_P.tolist()
    assert waited.score_P[1] == 0 < waited.score_P[2]


def test_tables_grow_ahead_under_the_lock_of_requests(monkeypatch):
    ranking, locks = live(True, 1_000), []
    monkeypatch.setattr(ranking._state, "grow_ahead", lambda *given: locks.append(given))
    ranking.grow_ahead(print)
    assert locks == [(ranking._lock, print)]


def test_who_got_a_message_has_its_sender_as_a_partner():
    ranking = live(False, 1_000)
    ranking.observe(NamedEvents(sources=["someone"], targets=["reader"], times=[ranking.now], weights=[1.0]))
    ranked, scores = ranking.rank("reader", k=50), ranking.scores("reader", ["someone", "n3"])
    assert (ranked.num_events, ranked.targets[int(np.argmin(ranked.is_new_K))]) == (1, "someone")
    assert ranked.is_new_K.sum() == len(ranked.targets) - 1
    assert scores.num_contacts_P.tolist() == [1, 0]


def test_the_past_has_the_newest_partners_first():
    events, ranking = log(True), live(True, 1_000)
    own = [(target, time) for source, target, time in zip(*rows(events, 1_000), strict=True) if source == 3]
    newest = {}
    for target, time in own:
        newest[f"p{target}"] = time
    expected = sorted(newest, key=lambda name: newest[name], reverse=True)
    found = ranking.past("u3", 4)
    assert [partner.latest for partner in found] == [newest[name] for name in expected[:4]]
    assert [partner.num_events for partner in found] == [
        sum(f"p{target}" == partner.target for target, _ in own) for partner in found
    ]


def rows(events, end):
    return events.source_E[:end].tolist(), events.target_E[:end].tolist(), events.time_E[:end].tolist()


def test_an_unknown_target_has_no_probability_and_the_source_itself_no_score():
    two, one = live(True, 1_000), live(False, 1_000)
    scores = two.scores("u1", ["never"])
    assert (scores.score_P.tolist(), scores.num_contacts_P.tolist()) == ([0.0], [0])
    assert np.isnan(scores.probability_P).all()
    assert one.scores("n1", ["n1", "n2"]).score_P[0] == 0


def test_older_events_and_times_are_refused():
    ranking = live(True, 1_000)
    newest = ranking.now - 1
    with pytest.raises(ValueError, match=f"from the time {newest} on"):
        ranking.observe(NamedEvents(sources=["new one"], targets=["p1"], times=[newest - 1], weights=[1.0]))
    assert "new one" not in ranking.ids.source_numbers
    with pytest.raises(ValueError, match="observed already"):
        ranking.rank("u1", at=newest // 2)


def test_reasons_name_what_raises_a_row_and_nothing_that_is_equal_in_all_rows():
    ranking = live(True, 1_900)
    ranked = ranking.rank("u1")
    assert all(len(each) <= 3 for each in ranked.reasons)
    assert any(ranked.reasons)
    assert ranking.rank("u1", with_reasons=False).reasons == []
    state = EventState(30, 30, fitted(True).settings)
    state.observe(log(True).head(1_900))
    row_RF = state.candidates(1, at=ranking.now).row_RF[:3].copy()
    shared = {in_words(FEATURES[f], float(row_RF[0, f])) for f in COMMON if not np.isnan(row_RF[0, f])}
    found = reasons(fitted(True), row_RF, np.array([False, False, False]), has_steps=False)
    assert not shared & {sentence for each in found for sentence in each}
    row_RF[:] = np.nan
    assert reasons(fitted(True), row_RF, np.array([False, False, True]), has_steps=False) == [[], [], []]


def test_the_earlier_part_is_fitted_on_and_the_later_one_chooses():
    class Recorded:
        def fit_events(self, log, training, validation, *, seed, done):
            done()
            return log, training, validation, seed

    events, rounds = log(True), list[str]()
    method: Any = Recorded()
    given: Any = fit_on_past(method, events, seed=3, done=lambda: rounds.append("done"))
    _, training, validation, seed = given
    assert len(training) + len(validation) == len(events)
    assert training.time_Q.max() < validation.time_Q.min()
    assert 0.8 < len(training) / len(events) < 0.9
    every = np.concatenate([training.num_visible_Q, validation.num_visible_Q])
    assert np.array_equal(every, np.searchsorted(events.time_E, events.time_E))
    assert seed == 3
    assert rounds == ["done"]


def test_a_log_without_a_past_is_refused():
    with pytest.raises(TooFewPastEvents, match="found 5 events"):
        fit_on_past(EventForecaster(), log(True).head(5), seed=0)
    same = random_log(num_events=50, num_times=1)
    with pytest.raises(TooFewPastEvents, match="one time"):
        fit_on_past(EventForecaster(), same, seed=0)


def test_a_ranking_that_keeps_its_vectors_ranks_as_before_until_they_are_made_anew():
    fixed, anew = live(True, 1_000), live(True, 1_000)
    fixed.keep_vectors()
    for ranking in (fixed, anew):
        ranking.observe(names(log(True), 1_000, 1_030))  # vectors are made of 864 events, then of 1,036
    assert fixed.rank("u3").probability_K.tolist() == anew.rank("u3").probability_K.tolist()
    before = fixed._state.to_arrays()["vectors.target"]
    for ranking in (fixed, anew):
        ranking.observe(names(log(True), 1_030, 1_060))
    assert np.array_equal(fixed._state.to_arrays()["vectors.target"], before)
    assert not np.array_equal(anew._state.to_arrays()["vectors.target"], before)


def test_events_of_a_table_come_in_order_of_time_and_those_of_one_time_in_theirs():
    table = pl.DataFrame(
        {"source": [3, 2, 1, 0], "target": ["d", "c", "b", "a"], "time": [5, 1, 5, 1], "weight": [3.0, 2, 1, 0]}
    )
    events = NamedEvents.from_table(table)
    assert (events.sources, events.targets) == (["2", "0", "3", "1"], ["c", "a", "d", "b"])
    assert (list(events.times), list(events.weights)) == ([1, 1, 5, 5], [2, 0, 3, 1])
    rest = events.without_first(3)
    assert (len(rest), rest.sources, list(rest.times), list(rest.weights)) == (1, ["1"], [5], [1])


@pytest.mark.parametrize("two_sides", [True, False])
def test_new_nodes_get_numbers_in_order_source_before_target(two_sides):
    sources = ["a"]
    ids = NodeIds(sources=sources, targets=["b"] if two_sides else sources)
    events = NamedEvents(sources=["c", "a", "d"], targets=["b", "c", "c"], times=[1, 2, 3], weights=[1.0] * 3)
    source_E, target_E = ids.numbered(events)
    assert (source_E.tolist(), target_E.tolist()) == (([1, 0, 2], [0, 1, 1]) if two_sides else ([1, 0, 3], [2, 1, 1]))
