"""Splits by quantiles of time, what is visible to an event, sampled negatives, rows of metrics.

Metrics on tgbl-wiki prove the evaluator: published ones of EdgeBank, and those of one-line rules.
"""

import pickle
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
from event_logs import log_of, random_log, wikipedia_log

from dyformer.baselines.event_heuristics import LastPartner, PairMemory, PairRecency
from dyformer.evaluation import event_splits as splits_module
from dyformer.evaluation.event_splits import (
    SPLITS,
    EventTrial,
    TooFewEvents,
    Visibility,
    num_visible,
    sampled_negatives,
    split_events,
)
from dyformer.evaluation.protocols import tgb
from dyformer.evaluation.protocols.protocol import chosen_units
from dyformer.evaluation.protocols.tgb import RANKS_SCHEMA, ROWS_SCHEMA, metrics_of_ranks, ranked_events
from dyformer.evaluation.scored_pairs import NotTheSamePairs
from dyformer.scoring.interfaces import Ranker

LOG = random_log()
HALVES = log_of([(0, 0, time // 2) for time in range(40)])  # two events at each of 20 times
EDGEBANK, EDGEBANK_WINDOW = PairMemory(), PairMemory(memory="window")
RECENCY, FALLBACK = PairRecency(), PairRecency(fallback=True)
SOURCE_Q = np.repeat(np.arange(40), 5)


def trial_of(visible: str = "strict", log=LOG, **more) -> EventTrial:
    return EventTrial(log=log, splits=split_events(log), visibility=Visibility.parse(visible), **more)


def test_events_of_one_time_stay_in_one_split_and_quantiles_divide_the_log():
    splits = split_events(LOG)
    first, second = np.quantile(LOG.time_E, [0.7, 0.85])
    assert splits.first_validation == (LOG.time_E <= first).sum()
    assert splits.first_test == (LOG.time_E <= second).sum()
    for bound in (splits.first_validation, splits.first_test):
        assert LOG.time_E[bound - 1] < LOG.time_E[bound]


@pytest.mark.parametrize("rows", [[(0, 0, 5)] * 9, [(0, 0, 1), (0, 0, 2)]])
def test_a_log_without_enough_times_is_refused(rows: list):
    with pytest.raises(TooFewEvents, match="expected"):
        split_events(log_of(rows))


def self_loops(first: int, *, two_sides: bool = False, end: int = 20) -> Mock:
    """Hold a log of a ring of five nodes at times 0 to 19, each of which has events with itself in some of them."""
    rows = [(node, node if first <= time < end else (node + 1) % 5, time) for time in range(20) for node in range(5)]
    columns = dict(zip(("source", "target", "time"), np.array(rows).T, strict=True))
    sides = {"target_side": np.full(100, int(two_sides)), "target": columns["target"] + 5 * two_sides}
    events = pl.DataFrame({**columns, **sides, "weight": np.ones(100)})
    return Mock(events=lambda: events, time_unit="step", dataset="ring")


@pytest.mark.parametrize("first", [14, 17])  # of validation and test, or of the test alone
def test_a_log_whose_test_events_are_of_nodes_with_themselves_is_refused_before_anything_is_fitted(first: int):
    with pytest.raises(TooFewEvents, match="all 15 test events are of a node with itself, which are not ranked"):
        chosen_units(tgb.PROTOCOL, self_loops(first))


@pytest.mark.parametrize(
    "log", [self_loops(18), self_loops(14, end=17), self_loops(14, two_sides=True), self_loops(20)]
)
def test_a_log_with_a_test_event_that_is_ranked_is_not_refused(log: Mock):
    assert chosen_units(tgb.PROTOCOL, log) == list(SPLITS)


def test_strict_shows_all_events_before_the_time():
    visible_E = num_visible(LOG, split_events(LOG), Visibility.parse("strict"))
    np.testing.assert_array_equal(visible_E, [(LOG.time_E < time).sum() for time in LOG.time_E])


def test_batches_start_with_each_split_and_show_no_equal_time():
    splits = split_events(HALVES)
    assert (splits.first_validation, splits.first_test) == (28, 34)
    visible_E = num_visible(HALVES, splits, Visibility.parse("batch:4"))
    np.testing.assert_array_equal(visible_E[28:34], [28, 28, 28, 28, 32, 32])
    np.testing.assert_array_equal(visible_E[34:], [34, 34, 34, 34, 38, 38])
    # Batches of three events divide pairs of equal times: the second one does not see the first.
    visible_E = num_visible(HALVES, splits, Visibility.parse("batch:3"))
    np.testing.assert_array_equal(visible_E[28:34], [28, 28, 28, 30, 31, 31])


def test_a_window_freezes_the_state_at_its_start():
    visible_E = num_visible(LOG, split_events(LOG), Visibility.parse("window:1h"))
    hour = 3_600_000_000
    np.testing.assert_array_equal(visible_E, [(LOG.time_E < time // hour * hour).sum() for time in LOG.time_E])
    steps_E = num_visible(HALVES, split_events(HALVES), Visibility.parse("window:4"))
    np.testing.assert_array_equal(steps_E, [8 * (time // 4) for time in HALVES.time_E])


@pytest.mark.parametrize("text", ["", "all", "batch", "batch:0", "batch:x", "window:", "strict:3", "strict:"])
def test_other_visibilities_are_refused(text: str):
    with pytest.raises(ValueError, match="write strict"):
        Visibility.parse(text)


def test_a_window_that_does_not_fit_the_times_is_refused():
    for log, text in ((LOG, "window:3"), (HALVES, "window:1h"), (LOG, "window:1mo")):
        with pytest.raises(ValueError, match="window"):
            num_visible(log, split_events(log), Visibility.parse(text))


@pytest.mark.parametrize("text", ["strict", "batch:200", "window:1h"])
def test_a_visibility_is_written_as_it_is_read(text: str):
    assert str(Visibility.parse(text)) == text


def test_a_method_is_fitted_on_nothing_of_the_test():
    trial = trial_of()
    log, training, validation = trial.fitting
    assert len(log) == trial.splits.first_test == len(training) + len(validation)
    assert training.candidate_QC is None
    assert validation.candidate_QC is None
    np.testing.assert_array_equal(validation.source_Q, LOG.source_E[trial.splits.events("validation")])
    np.testing.assert_array_equal(validation.num_visible_Q, trial.num_visible_E[trial.splits.events("validation")])


def test_an_event_of_a_source_with_itself_is_not_ranked():
    log = log_of([(event % 3, (event * 2) % 3, event) for event in range(40)], two_sides=False)
    trial = trial_of(log=log)
    ranked = np.concatenate(list(trial.ranked("test")))
    test = np.arange(40)[trial.splits.events("test")]
    np.testing.assert_array_equal(ranked, test[log.source_E[test] != log.target_E[test]])
    assert len(ranked) < len(test)


@pytest.fixture
def generator_of_py_tgb(monkeypatch: pytest.MonkeyPatch):
    """The generator reads a class of torch_geometric for its annotations alone; a stand-in spares that package."""
    pytest.importorskip("tgb", reason="py-tgb is not installed")
    if "torch_geometric" not in sys.modules:
        package, data = ModuleType("torch_geometric"), ModuleType("torch_geometric.data")
        data.TemporalData = object  # pyright: ignore[reportAttributeAccessIssue]
        monkeypatch.setitem(sys.modules, "torch_geometric", package)
        monkeypatch.setitem(sys.modules, "torch_geometric.data", data)
    from tgb.linkproppred.negative_generator import NegativeEdgeGenerator

    return NegativeEdgeGenerator


class Edges:
    """Events as the generator reads them."""

    def __init__(self, log, part: slice) -> None:
        import torch

        self.src, self.dst, self.t = (
            torch.from_numpy(values[part].copy()) for values in (log.source_E, log.target_E, log.time_E)
        )


@pytest.mark.parametrize(("num_nodes", "num_negatives"), [(60, 20), (30, 24), (20, 40)])
def test_negatives_are_those_of_py_tgb_with_its_seed(
    generator_of_py_tgb, tmp_path: Path, num_nodes: int, num_negatives: int
):
    log = random_log(num_nodes=num_nodes, num_events=500)
    splits = split_events(log)
    oracle = generator_of_py_tgb(
        "log",
        first_dst_id=0,
        last_dst_id=num_nodes - 1,
        num_neg_e=num_negatives,
        strategy="hist_rnd",
        rnd_seed=42,
        historical_data=Edges(log, slice(0, splits.first_validation)),
    )
    found = sampled_negatives(log, splits, num_negatives=num_negatives)
    for split, name in zip(SPLITS, ("val", "test"), strict=True):
        part = splits.events(split)
        oracle.generate_negative_samples(Edges(log, part), name, str(tmp_path))
        drawn = pickle.loads((tmp_path / f"log_{name}_ns.pkl").read_bytes())
        events = zip(log.source_E[part].tolist(), log.target_E[part].tolist(), log.time_E[part].tolist(), strict=True)
        for row, event in zip(found[split], events, strict=True):
            np.testing.assert_array_equal(row[row >= 0], drawn[event].astype(np.int64))


def test_negatives_avoid_what_the_source_chose_at_that_time():
    log = random_log(num_nodes=40)
    splits = split_events(log)
    found = sampled_negatives(log, splits, num_negatives=10)
    training = set(zip(log.source_E[: splits.first_validation], log.target_E[: splits.first_validation], strict=True))
    for split in SPLITS:
        for row, event in enumerate(range(len(log))[splits.events(split)]):
            source, time = log.source_E[event], log.time_E[event]
            chosen = set(log.target_E[(log.source_E == source) & (log.time_E == time)])
            own = found[split][row].tolist()
            assert len(set(own)) == 10
            assert not chosen & set(own)
            past = {target for target in range(40) if (source, target) in training} - chosen
            assert len(past & set(own)) == min(5, len(past))


def test_parts_of_sampled_queries_are_the_whole(monkeypatch: pytest.MonkeyPatch):
    log = random_log(num_nodes=40)
    trial = trial_of(log=log, negatives=sampled_negatives(log, split_events(log), num_negatives=10))
    whole = list(trial.ranked("test"))
    monkeypatch.setattr(splits_module, "MAX_CANDIDATES", 100)
    parts = list(trial.ranked("test"))
    assert [len(part) for part in parts][:2] == [9, 9]
    assert len(whole) == 1
    candidates = [trial.ranked_queries("test", part).candidate_QC for part in parts]
    expected = trial.ranked_queries("test", whole[0]).candidate_QC
    assert expected is not None
    np.testing.assert_array_equal(np.concatenate([block for block in candidates if block is not None]), expected)
    assert (expected == log.target_E[whole[0]][:, None]).any(axis=1).all()


@pytest.mark.parametrize(
    ("visible", "method", "validation", "test"),
    [
        ("batch:200", EDGEBANK, 0.527, 0.495),  # as on the leaderboard
        ("batch:200", EDGEBANK_WINDOW, 0.600, 0.571),  # as on the leaderboard
        ("strict", RECENCY, 0.839, 0.817),
        ("strict", LastPartner(), 0.803, 0.779),
        ("strict", FALLBACK, 0.845, 0.824),
        ("batch:200", RECENCY, 0.755, 0.725),
        ("batch:200", FALLBACK, 0.764, 0.733),
    ],
)
def test_metrics_agree_to_the_third_digit(
    shared_log: Callable[[str], Path], visible: str, method: Ranker, validation: float, test: float
):
    log = wikipedia_log(shared_log("snap-wikipedia"))
    trial = EventTrial(log=log, splits=split_events(log), visibility=Visibility.parse(visible))
    ranks = ranked_events("method", method, trial, seed=0)
    rows = metrics_of_ranks(ranks, "snap-wikipedia").filter(metric="mrr", step="macro")
    found = dict(rows.select("family", "value").iter_rows())
    assert {split: round(value, 3) for split, value in found.items()} == {"validation": validation, "test": test}
    assert rows["num_pairs"].to_list() == [23_621, 23_621]


def event_rows(ranks: pl.DataFrame, dataset: str, baselines: Collection[str] = ()) -> pl.DataFrame:
    return tgb.event_rows(ranks, metrics_of_ranks(ranks, dataset, baselines=baselines))


def ranks_of(method: str, rank_Q: np.ndarray, *, seed: int = 0, split: str = "test", **other) -> pl.DataFrame:
    columns = {"method": method, "seed": seed, "split": split, "visible": "strict", "candidates": "all 9", **other}
    events = {"event": np.arange(len(rank_Q)), "source": SOURCE_Q[: len(rank_Q)], "rank": rank_Q, "cpu_seconds": 2.0}
    return pl.DataFrame({**events, **columns}, schema_overrides={"seed": pl.Int64}).select(RANKS_SCHEMA.names())


def random_ranks(seed: int, most: int = 20) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, most, size=len(SOURCE_Q)).astype(np.float64)


def row_of(rows: pl.DataFrame, method: str, metric: str = "mrr", split: str = "test") -> dict:
    return rows.row(
        by_predicate=(pl.col("method") == method) & (pl.col("metric") == metric) & (pl.col("split") == split),
        named=True,
    )


def test_events_weigh_alike_and_seeds_are_averaged():
    first, second = random_ranks(0), random_ranks(1)
    rows = event_rows(pl.concat([ranks_of("A", first), ranks_of("A", second, seed=1)]), "log")
    assert rows.schema == ROWS_SCHEMA
    mrr, hits = row_of(rows, "A"), row_of(rows, "A", "hits@10")
    by_seed = [(1 / first).mean(), (1 / second).mean()]
    assert mrr["value"] == pytest.approx(np.mean(by_seed))
    assert mrr["seed_deviation"] == pytest.approx(np.std(by_seed, ddof=1))
    assert hits["value"] == pytest.approx(np.mean([(first <= 10).mean(), (second <= 10).mean()]))
    assert (mrr["num_queries"], mrr["num_seeds"], mrr["cpu_seconds"]) == (200, 2, 2.0)
    assert mrr["low"] < mrr["value"] < mrr["high"]


def test_intervals_resample_sources_and_not_events():
    # All events of a source have one rank: as many different values as there are sources.
    alike = np.repeat(random_ranks(2)[::5], 5)
    rows = event_rows(
        pl.concat([ranks_of("alike", alike), ranks_of("mixed", np.roll(alike, 2).reshape(5, 40).T.ravel())]), "log"
    )
    alike_row, mixed_row = row_of(rows, "alike"), row_of(rows, "mixed")
    deviation = (1 / alike[::5]).std() / np.sqrt(40)
    assert alike_row["high"] - alike_row["low"] == pytest.approx(2 * 1.96 * deviation, rel=0.15)
    assert alike_row["high"] - alike_row["low"] > 1.3 * (mixed_row["high"] - mixed_row["low"])


def test_differences_are_paired_and_to_the_best_baseline_of_the_split_and_metric():
    best, own = random_ranks(3, 5), random_ranks(3, 5)
    own[::4] = 1
    parts = [ranks_of("ours", own), ranks_of("best", best), ranks_of("weak", best + 3)]
    parts += [
        ranks_of(name, rank_Q, split="validation")
        for name, rank_Q in (("ours", own), ("best", best + 9), ("weak", best))
    ]
    rows = event_rows(pl.concat(parts), "log", baselines=["best", "weak"])
    test, validation = row_of(rows, "ours"), row_of(rows, "ours", split="validation")
    assert (test["best_baseline"], validation["best_baseline"]) == ("best", "weak")
    assert test["difference"] == pytest.approx((1 / own).mean() - (1 / best).mean())
    assert 0 < test["difference_low"] < test["difference"] < test["difference_high"]
    # The same events: the interval of the difference is much narrower than that of the value.
    assert test["difference_high"] - test["difference_low"] < 0.8 * (test["high"] - test["low"])
    assert row_of(rows, "best")["difference"] is None
    assert row_of(rows, "weak")["difference"] < 0
    assert rows.filter(metric="mrr", split="test")["method"].to_list()[0] == "ours"
    assert rows["is_baseline"].to_list() == [method != "ours" for method in rows["method"]]


def test_methods_of_other_events_or_visibility_are_not_compared():
    fewer = ranks_of("B", random_ranks(1)[:-1])
    other = ranks_of("B", random_ranks(1), visible="batch:200")
    for part in (fewer, other):
        with pytest.raises(NotTheSamePairs):
            event_rows(pl.concat([ranks_of("A", random_ranks(0)), part]), "log")
