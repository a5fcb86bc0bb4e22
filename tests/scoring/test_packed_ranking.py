"""Claims about the ranking of a request: all events count, its own in it alone, and none after its time."""

import json

import numpy as np
import pytest
from packed_rankings import SECOND, log_rows, packed, ranking_of

from dyformer.scoring import packed_ranking
from dyformer.scoring.live_ranking import LiveRanking
from dyformer.scoring.packed_ranking import PackedRanking
from dyformer.scoring.sent_events import BadEvent, SentEvent, checked_event

NUM_PACKED = 560
ROWS = {bipartite: log_rows(bipartite=bipartite) for bipartite in (True, False)}


@pytest.fixture(scope="module", params=[True, False], ids=["two sides", "one side"])
def pack(request):
    return packed(ROWS[request.param][:NUM_PACKED], bipartite=request.param)


def rows_of_pack(pack):
    return ROWS[pack.state.settings.two_sides]


def sent(rows):
    return [checked_event(source, target, time, 1.0, "s") for source, target, time in rows]


def bytes_of(pack):
    return {name: array.tobytes() for name, array in pack.state.to_arrays().items()}


def check_equal(found: LiveRanking, expected: LiveRanking, at=None):
    for source in ("u1", "u7", "came", "nobody"):
        one, other = found.rank(source, at=at, k=12), expected.rank(source, at=at, k=12)
        assert (one.targets, one.reasons, one.at, one.num_events) == (
            other.targets,
            other.reasons,
            other.at,
            other.num_events,
        )
        np.testing.assert_allclose(one.probability_K, other.probability_K, rtol=0, atol=1e-9)
        targets = ["p1", "p2", "u2", "new", "nothing"]
        scores, others = found.scores(source, targets, at=at), expected.scores(source, targets, at=at)
        np.testing.assert_allclose(scores.score_P, others.score_P, rtol=0, atol=1e-9)
        np.testing.assert_allclose(scores.probability_P, others.probability_P, rtol=0, atol=1e-9)


@pytest.mark.parametrize("num_more", [0, 1, 120], ids=["no event", "one event", "new vectors, too"])
def test_a_request_ranks_as_the_live_ranking_of_all_events(pack, num_more):
    """600 events are a number at which vectors are made."""
    rows = rows_of_pack(pack)
    more = rows[NUM_PACKED : NUM_PACKED + num_more]
    more += [("came", "p1", more[-1][2] + 5), ("u1", "new", more[-1][2] + 7)] if num_more else []
    shuffled = [sent(more)[index] for index in np.random.default_rng(0).permutation(len(more))]
    times = [event.time for event in shuffled]
    ordered = shuffled if len(set(times)) == len(times) else sent(more)  # those of one time count in their order
    check_equal(pack.ranking(ordered), ranking_of(pack.fitted, [*rows[:NUM_PACKED], *more]))


def test_an_event_at_the_time_of_the_query_or_later_does_not_count(pack):
    rows = rows_of_pack(pack)
    last = rows[NUM_PACKED - 1][2]
    more = [("u1", "p9", last), ("u1", "p3", last + 5), ("u1", "p4", last + 9), ("u1", "p4", last + 60)]
    for border, num_before in ((5, 1), (6, 2), (9, 2), (10, 3), (60, 3), (61, 4)):
        at = (last + border) * SECOND
        expected = ranking_of(pack.fitted, [*rows[:NUM_PACKED], *more[:num_before]])
        check_equal(pack.ranking(sent(more), at=at), expected, at=at)
    of_newest = pack.ranking(sent(more), at=last * SECOND)
    older = [row for row in rows[:NUM_PACKED] if row[2] < last]
    check_equal(of_newest, ranking_of(pack.fitted, older), at=last * SECOND)


def test_events_of_a_request_do_not_count_in_another(pack):
    before, rows = bytes_of(pack), rows_of_pack(pack)
    ids = list(pack.ids.sources), list(pack.ids.targets), dict(pack.ids.source_numbers)
    ranking = pack.ranking(sent(rows[NUM_PACKED:]) + sent([("only here", "only there", rows[-1][2] + 1)]))
    ranking.rank("u1")
    with pytest.raises(BadEvent):
        pack.ranking(sent([("u1", "other", rows[-1][2]), ("u1", "p1", rows[0][2])]))
    assert bytes_of(pack) == before
    assert (pack.ids.sources, pack.ids.targets, pack.ids.source_numbers) == ids
    check_equal(pack.ranking([]), ranking_of(pack.fitted, rows[:NUM_PACKED]))


def test_what_a_package_has_gives_the_same_ranking(pack):
    record = json.loads(json.dumps(pack.record()))
    again = PackedRanking.from_parts(record, pack.state.to_arrays(), pack.id_table())
    assert (again.ids.sources, again.ids.targets, again.ids.two_sides) == (
        pack.ids.sources,
        pack.ids.targets,
        pack.ids.two_sides,
    )
    check_equal(again.ranking([]), pack.ranking([]))
    assert again.record() == pack.record()


def test_events_that_do_not_continue_those_of_the_package_are_refused(pack, monkeypatch):
    last = rows_of_pack(pack)[NUM_PACKED - 1][2]
    fits = sent([("u1", "p1", last)])
    with pytest.raises(
        BadEvent, match=r"event 1: the time 20\S+Z: expected one from 20\S+Z on, that of the newest event"
    ):
        pack.ranking([*fits, *sent([("u1", "p1", last - 1)])])
    with pytest.raises(BadEvent, match="expected times that continue the log"):
        pack.ranking([*fits, *sent([("u1", "p1", last + 40 * 365 * 86_400)])])
    with pytest.raises(
        ValueError, match=r"as of 20\S+: expected a time from 20\S+ on, that of the newest event of the"
    ):
        pack.ranking(fits, at=last * SECOND - 1)
    monkeypatch.setattr(packed_ranking, "MOST_EVENTS", 1)
    with pytest.raises(BadEvent, match="2 events: expected at most 1 in a request"):
        pack.ranking(fits * 2)


@pytest.mark.parametrize("name", ["a", "007", "1" * 30, "-0"])
def test_an_id_of_another_type_than_the_log_has_is_refused(name):
    rows = log_rows(integers=True)
    pack = packed(rows[:200], integers=True)
    pack.ranking([SentEvent(source="-12", target="77", time=rows[200][2] * SECOND, weight=1.0)])
    with pytest.raises(BadEvent, match=f"event 0: the target '{name}': expected an integer, as the log has"):
        pack.ranking([SentEvent(source="1", target=name, time=rows[200][2] * SECOND, weight=1.0)])
