"""The parts of benchmarks/sequence_view.py beside plain loops, and what later events may change of them: nothing."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmark_modules import benchmark_module
from slow_events import random_log, rows_of, strict_queries

from dyformer.evaluation.event_splits import SPLITS, EventTrial, Visibility, split_events
from dyformer.scoring.event_forecaster import EventForecaster, FittedEventForecaster
from dyformer.scoring.event_heads import Groups, softmax
from dyformer.scoring.event_ranks import event_ranks
from dyformer.streams.event_log import EventLog, EventQueries

view = benchmark_module("sequence_view")

NUM_BEST, NUM_CONTACTS = view.NUM_BEST, view.NUM_CONTACTS
FORECASTER = EventForecaster(half_lives=(120.0, 900.0, 7_200.0, 50_000.0), gate_rounds=8, past_rounds=8, new_rounds=8)


def log_of(*, two_sides: bool) -> EventLog:
    log = random_log(3, two_sides=two_sides, num_sources=14, num_targets=25)
    return replace(log, time_E=log.time_E**2)  # ages of minutes to months


def candidates_of(queries: EventQueries, log: EventLog):
    generator = np.random.default_rng(0)
    size_G = generator.integers(0, 4, len(queries))
    target_R = generator.integers(0, log.num_targets, size_G.sum())
    return view.Candidates(np.zeros((len(target_R), 1), dtype=np.float32), target_R, size_G)


def slow_tower(rows: list[tuple[int, int, int]], node: int, at: int, seconds: float) -> list[list[int]]:
    """Embedding, code of age and kind of each row, from all events."""
    rows = [(one, two, time) for one, two, time in rows if node in (one, two) and one != two]
    partners = list(dict.fromkeys(two if one == node else one for one, two, _ in reversed(rows)))
    tower = [[node + 1, 32, 6]]
    for partner in partners[:NUM_CONTACTS]:
        own = [row for row in rows if partner in row[:2]]
        sender, _, time = own[-1]
        kind = 3 * (sender != node) + (0 if len(own) == 1 else 1 if len(own) < 4 else 2)
        tower.append([partner + 1, min(31, int(1.5 * math.log2(1 + (at - time) * seconds / 60))), kind])
    return tower


def slow_connection(rows: list[tuple[int, int, int]], node: int, other: int, at: int, seconds: float) -> int:
    if node == other:
        return 1
    times = [time for one, two, time in rows if {one, two} == {node, other}]
    return 2 + min(31, int(1.5 * math.log2(1 + (at - times[-1]) * seconds / 60))) // 4 if times else 0


def rows_of_tower(tower, index: int) -> list[list[int]]:
    is_there_T = tower.is_there_NT[index]
    return torch.stack([column[index][is_there_T].long() for column in tower[:3]], dim=1).tolist()


@pytest.mark.parametrize("two_sides", [True, False])
def test_towers_and_connections_are_those_of_plain_loops(two_sides: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "MIN_EVENTS", 0)
    log = log_of(two_sides=two_sides)
    queries = strict_queries(log, 100)
    candidates = candidates_of(queries, log)
    batch = view.ContactPass(log, log).batch(queries, candidates)
    offset, codes = log.num_sources if two_sides else 0, set()
    assert len(candidates.target_R) > 100
    for row, query in enumerate(batch.query_R.tolist()):
        at, visible = int(queries.time_Q[query]), int(queries.num_visible_Q[query])
        rows = [(one, two + offset, time) for one, two, time, _ in rows_of(log, visible, both_ways=False)]
        source = slow_tower(rows, int(queries.source_Q[query]), at, log.seconds)
        target = slow_tower(rows, int(candidates.target_R[row]) + offset, at, log.seconds)
        assert rows_of_tower(batch.source, query) == source
        assert rows_of_tower(batch.target, row) == target
        expected = np.zeros((1 + NUM_CONTACTS, 1 + NUM_CONTACTS))
        for i, (node, _, _) in enumerate(source):
            for j, (other, _, _) in enumerate(target):
                expected[i, j] = slow_connection(rows, node - 1, other - 1, at, log.seconds)
        assert np.array_equal(batch.connection_RTT[row].numpy(), expected)
        codes |= set(expected.ravel().astype(int).tolist())
    assert len(codes) > 5


def test_rows_that_are_not_there_and_other_candidates_change_no_score() -> None:
    log = log_of(two_sides=True)
    queries, generator = strict_queries(log, 100), np.random.default_rng(1)
    candidates = candidates_of(queries, log)
    candidates = candidates._replace(row_RF=generator.normal(size=(len(candidates.target_R), 5)).astype(np.float32))
    batch = view.ContactPass(log, log).batch(queries, candidates)
    torch.manual_seed(0)
    net = view.Net(batch.feature_RF, view.EventTowers(40))
    for weight in net.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    score_R = view.scores_of(net, batch, candidates.size_G)
    away = [tower._replace(age_NT=torch.where(tower.is_there_NT, tower.age_NT, 5)) for tower in batch[:2]]
    assert (away[0].age_NT != batch.source.age_NT).any()
    other = batch._replace(source=away[0], target=away[1])
    np.testing.assert_array_equal(view.scores_of(net, other, candidates.size_G), score_R)
    group = int(np.flatnonzero(candidates.size_G)[3])
    first = int(candidates.size_G[:group].sum())
    alone = view.part_of(batch, candidates.size_G, np.array([group]))
    size_G = candidates.size_G[[group]]
    np.testing.assert_allclose(view.scores_of(net, alone, size_G), score_R[first : first + size_G[0]], rtol=1e-5)


def changed_from(log: EventLog, first: int) -> EventLog:
    later_E = np.arange(len(log)) >= first
    changed = replace(log, target_E=np.where(later_E, (log.target_E * 7 + 1) % log.num_targets, log.target_E))
    assert (changed.target_E != log.target_E).any()
    return changed


def trial_of(log: EventLog) -> EventTrial:
    return EventTrial(log=log, splits=split_events(log), visibility=Visibility())


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A trial, its forecaster, and the groups and the nets of its training events."""

    trial: EventTrial
    counted: FittedEventForecaster
    groups: Any
    nets: dict[str, Any]


def trained_on(trial: EventTrial, counted: FittedEventForecaster) -> Trained:
    groups = view.training_groups(trial, counted, np.random.default_rng(0))
    nets = {method: net for method, (net, _) in view.trained_nets(trial, groups, 0).items()}
    return Trained(trial=trial, counted=counted, groups=groups, nets=nets)


@pytest.fixture(scope="module")
def trained() -> Iterator[Trained]:
    """Fit and train once for all tests, which change nothing of it."""
    trial = trial_of(random_log(2, two_sides=True, num_events=1_600, num_sources=40, num_targets=120))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view, "ITERATIONS", 12)
        yield trained_on(trial, FORECASTER.fit_events(*trial.fitting, seed=0))


def test_nets_are_trained_on_training_events_alone(trained: Trained) -> None:
    trial = trained.trial
    other = trained_on(trial_of(changed_from(trial.log, trial.splits.first_validation)), trained.counted)
    weights = [
        [value.numpy().tobytes() for net in each.nets.values() for value in net.state_dict().values()]
        for each in (trained, other)
    ]
    groups = other.groups
    assert len(groups.query_G) > 100
    assert groups.is_chosen_R.sum() == len(groups.query_G)
    target_G = trial.log.target_E[groups.query_G]
    assert np.array_equal(groups.candidates.target_R[groups.is_chosen_R], target_G)
    assert groups.candidates.size_G.max() <= 1 + view.NUM_NEGATIVES
    assert weights[0] == weights[1]


def test_validation_is_scored_and_its_factors_are_chosen_without_test_events(trained: Trained) -> None:
    trial, counted, nets, found = trained.trial, trained.counted, trained.nets, []
    for own in (trial, trial_of(changed_from(trial.log, trial.splits.first_test))):
        scored = view.scored(own, "validation", counted, nets)
        every_G = np.ones(len(scored.groups), dtype=np.bool_)
        factors = {method: scored.factors(method, every_G) for method in nets}
        rank_EM = view.protocol_ranks(own, "validation", counted, nets, factors)[1]
        found.append((list(factors.values()), scored.values(view.WITH_TOWERS, (0.8, 0.7)).tobytes(), rank_EM.tobytes()))
    assert len(every_G) > 50
    assert found[0] == found[1]


def test_ranks_are_those_of_the_forecaster_where_no_score_counts(trained: Trained) -> None:
    trial, counted, nets = trained.trial, trained.counted, trained.nets
    factors = dict.fromkeys(nets, (1.0, 0.0)) | {view.WITH_TOWERS: (0.5, 3.0)}
    for split in SPLITS:
        event_E, rank_EM = view.protocol_ranks(trial, split, counted, nets, factors)
        queries = trial.ranked_queries(split, event_E)
        expected_E = event_ranks(counted(trial.log, queries), trial.log, queries, trial.chosen(event_E))
        assert np.array_equal(rank_EM[:, 0], expected_E)
        differs_EM = np.abs(rank_EM[:, 1:] - expected_E[:, None]) > 0.6
        assert differs_EM[:, 0].mean() < 0.05  # those whose candidates were equal but for a rounding
        assert differs_EM[:, 1].mean() > 0.2


def test_a_correction_divides_the_probability_of_the_best_again() -> None:
    generator = np.random.default_rng(9)
    size_G = np.array([3, NUM_BEST + 20, 0, 1, NUM_BEST, 50])
    logit_R = generator.normal(size=size_G.sum())
    best_K = view.best_rows(logit_R, size_G, NUM_BEST)
    best_size_G, score_K = np.minimum(size_G, NUM_BEST), generator.normal(size=len(best_K))
    corrected_R = view.corrected(logit_R, best_K, best_size_G, score_K, (0.8, 0.7))
    start_G1 = np.concatenate([[0], np.cumsum(best_size_G)])
    expected_K = softmax(0.8 * logit_R[best_K] + 0.7 * score_K, start_G1)
    for first, end in pairwise(start_G1):
        power_K = np.exp(corrected_R[best_K[first:end]])
        assert power_K.sum() == pytest.approx(np.exp(logit_R[best_K[first:end]]).sum())
        np.testing.assert_allclose(power_K / power_K.sum(), expected_K[first:end])
    rest_K = np.setdiff1d(np.arange(len(logit_R)), best_K)
    assert len(rest_K) == 20 + 18
    assert np.array_equal(corrected_R[rest_K], logit_R[rest_K])


def test_the_best_rows_of_each_group_are_its_greatest_values() -> None:
    size_G = np.array([0, 3, NUM_BEST + 9, 1, NUM_BEST])
    value_R = np.random.default_rng(5).integers(0, 9, size_G.sum()).astype(np.float64)
    expected, first = [], 0
    for size in size_G.tolist():
        expected += sorted(sorted(range(first, first + size), key=lambda row: (-value_R[row], row))[:NUM_BEST])
        first += size
    assert view.best_rows(value_R, size_G, NUM_BEST).tolist() == expected


def test_factors_are_chosen_on_the_groups_that_are_read() -> None:
    """In the first half of the groups the score names the chosen row, in the other one it misleads."""
    generator, num_groups = np.random.default_rng(6), 200
    groups = Groups(
        row_RF=np.empty((10 * num_groups, 0), dtype=np.float32),
        size_G=np.full(num_groups, 10),
        chosen_G=generator.integers(0, 10, num_groups),
    )
    chosen_G, score_K = groups.start_G1[:-1] + groups.chosen_G, generator.normal(size=10 * num_groups)
    is_first_G = np.arange(num_groups) < num_groups // 2
    score_K[chosen_G] += np.where(is_first_G, 2.0, -2.0)
    scored = view.Scored(
        source_G=np.arange(num_groups),
        groups=groups,
        logit_R=generator.normal(size=10 * num_groups),
        best_K=np.arange(10 * num_groups),
        best_size_G=groups.size_G,
        score_of={view.WITH_TOWERS: score_K},
    )
    good, bad = (scored.factors(view.WITH_TOWERS, part_G) for part_G in (is_first_G, ~is_first_G))
    assert good[1] > 1
    assert bad[1] == 0
    mrr_of = [scored.values(view.WITH_TOWERS, factors)[is_first_G, 0].mean() for factors in (good, bad)]
    assert mrr_of[0] > mrr_of[1] + 0.2


def test_the_loss_is_that_of_a_softmax_in_each_query() -> None:
    is_chosen_R = torch.tensor([False, True, True, False, False])
    loss = view.softmax_loss(torch.tensor([1.0, -2.0, 500.0, 3.0, 3.0]), torch.tensor([0, 0, 1, 1, 1]), is_chosen_R)
    assert float(loss) == pytest.approx((math.log(1 + math.exp(3.0)) + 0) / 2, rel=1e-5)


@pytest.mark.parametrize("two_sides", [True, False])
def test_a_partner_is_new_without_an_earlier_event(two_sides: bool) -> None:
    log = log_of(two_sides=two_sides)
    rows, expected = rows_of(log, len(log), both_ways=False), []
    for source, target, at, _ in rows:
        before = {(one, two) for one, two, time, _ in rows if time < at}
        expected.append((source, target) not in before and (two_sides or (target, source) not in before))
    assert 20 < sum(expected) < len(expected)
    assert view.is_new_partner(log).tolist() == expected


def test_differences_are_those_of_plain_means() -> None:
    generator = np.random.default_rng(7)
    value_EM = generator.random((300, 3)) + np.array([0.0, 0.1, 0.3])
    row = view.Values(generator.integers(0, 40, 300), value_EM).row("some")
    assert row["counted"] == f"{value_EM[:, 0].mean():.4f}"
    value, ends = row["towers with features - counted"].split(" ", 1)
    low, high = map(float, ends.strip("[]").split(", "))
    assert float(value) == pytest.approx((value_EM[:, 2] - value_EM[:, 0]).mean(), abs=1e-4)
    assert 0.2 < low < float(value) < high < 0.4


@pytest.mark.parametrize("dataset", ["uci", "ml-10m"])
def test_nodes_are_numbered_by_their_first_events(dataset: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(8)
    rows = [(*generator.integers(1, 30, 2).tolist(), 1_100_000_000 + int(generator.integers(60))) for _ in range(90)]
    (tmp_path / "rows.edges").write_text("".join(f"{one} {two} 1 {at}\n" for one, two, at in rows))
    log = view.trial_of(dataset, str(tmp_path / "rows.edges")).log
    number_of: tuple[dict[int, int], dict[int, int]] = ({}, {})
    expected = []
    for one, two, at in sorted(rows, key=lambda row: row[2]):
        ends = [(0, one), (log.two_sides, two)]
        expected.append([number_of[side].setdefault(node, len(number_of[side])) for side, node in ends] + [at * 10**6])
    assert log.two_sides == (dataset == "ml-10m")
    assert np.column_stack([log.source_E, log.target_E, log.time_E]).tolist() == expected
