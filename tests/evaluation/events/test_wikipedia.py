"""Metrics on tgbl-wiki that prove the evaluator: published ones of EdgeBank, and those of one-line rules."""

from collections.abc import Callable
from pathlib import Path

import pytest
from event_logs import wikipedia_log

from dyformer.baselines.event_heuristics import LastPartner, PairMemory, PairRecency
from dyformer.embedder import Ranker
from dyformer.evaluation.event_splits import EventTrial, Visibility, split_events
from dyformer.evaluation.protocols.tgb import metrics_of_ranks, ranked_events

EDGEBANK, EDGEBANK_WINDOW = PairMemory(), PairMemory(memory="window")
RECENCY, FALLBACK = PairRecency(), PairRecency(fallback=True)


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
