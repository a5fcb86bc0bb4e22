"""The mixture chooses its weights on validation events and beats its parts where they add up."""

from dataclasses import replace

import numpy as np
import pytest
from event_logs import log_of, random_log

from dyformer.baselines import event_mixture
from dyformer.baselines.event_heuristics import PairMemory, Popularity
from dyformer.baselines.event_mixture import EventMixture
from dyformer.evaluation.event_splits import EventTrial, Visibility, split_events
from dyformer.evaluation.protocols.tgb import ranked_events
from dyformer.scoring.event_ranks import event_ranks, mean_reciprocal_rank
from dyformer.streams.event_log import EventQueries

LOG = random_log(num_events=1_500, num_nodes=40, num_times=900)
TRIAL = EventTrial(log=LOG, splits=split_events(LOG), visibility=Visibility())


def validation_mrr(method) -> float:
    ranks = ranked_events("method", method, TRIAL, seed=0).filter(split="validation")
    return float((1 / ranks["rank"]).mean())  # pyright: ignore[reportArgumentType]


def test_parts_are_fractions():
    [event_Q] = TRIAL.ranked("test")
    parts = np.concatenate(list(EventMixture(half_life=3_600).parts(LOG, TRIAL.queries(event_Q))))
    assert parts.shape == (len(event_Q), 40, 3)
    assert (parts.min(), parts[..., 1].max()) == (0, 1)
    assert parts.max() == 1


def test_a_memory_of_both_ways_has_the_newest_event_of_either():
    rows = [(0, 1, 0), (1, 0, 3_600), (2, 0, 7_200), (0, 3, 10_800)]
    queries = EventQueries(source_Q=np.array([0]), time_Q=np.array([14_400]), num_visible_Q=np.array([4]))
    for two_sides, both_ways, memory_C in (
        (False, True, [0, 1 / 4, 1 / 3, 1 / 2]),
        (False, False, [0, 1 / 5, 0, 1 / 2]),
        (True, True, [0, 1 / 5, 0, 1 / 2]),
    ):
        [part_1CK] = EventMixture(both_ways=both_ways).parts(log_of(rows, two_sides=two_sides), queries)
        assert part_1CK[0, :, 0].tolist() == memory_C


def test_chosen_weights_are_the_best_on_validation(monkeypatch: pytest.MonkeyPatch):
    mixed = validation_mrr(EventMixture())
    assert mixed > max(validation_mrr(PairMemory()), validation_mrr(Popularity()))
    values = []
    for weight in (0.0, 0.01, 1.0):
        monkeypatch.setattr(event_mixture, "all_weights", lambda weight=weight: iter([np.array([1, weight, weight])]))
        values.append(validation_mrr(EventMixture()))
    assert max(values) <= mixed
    assert len(set(values)) == 3


def test_events_of_a_source_with_itself_do_not_count_for_the_weights():
    log = random_log(num_events=600, num_nodes=12, num_times=400, two_sides=False)
    first = split_events(log).first_validation
    source_E, target_E = log.source_E.copy(), log.target_E.copy()
    own_S = np.arange(first, split_events(log).first_test, 2)  # every other one of validation
    target_E[own_S] = source_E[own_S]
    with_own = replace(log, target_E=target_E)
    trial = EventTrial(log=with_own, splits=split_events(with_own), visibility=Visibility())
    until_test, training, validation = trial.fitting
    seen = []

    def ranks(scores, log, queries, chosen):
        seen.append((queries, chosen.target_Q))
        return event_ranks(scores, log, queries, chosen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_mixture, "event_ranks", ranks)
        EventMixture().fit_events(until_test, training, validation, seed=0)
    queries, target_Q = seen[0]
    assert (queries.source_Q != target_Q).all()
    part = trial.splits.events("validation")
    assert len(target_Q) == (source_E[part] != target_E[part]).sum() > 0


def test_weights_depend_on_validation_alone():
    log, training, validation = TRIAL.fitting
    rank_events = EventMixture().fit_events(log, training, validation, seed=0)
    [event_Q] = TRIAL.ranked("test")
    queries = TRIAL.queries(event_Q)
    found = event_ranks(rank_events(LOG, queries), LOG, queries, TRIAL.chosen(event_Q))
    again = event_ranks(rank_events(LOG, queries), LOG, queries, TRIAL.chosen(event_Q))
    np.testing.assert_array_equal(found, again)
    assert mean_reciprocal_rank(found) > 0.2
