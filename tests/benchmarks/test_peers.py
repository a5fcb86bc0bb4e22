"""The adapter of benchmarks/peers.py: what a peer reads, and what is made of its scores. No peer is needed."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from benchmark_modules import benchmark_module
from ranked_logs import growing_log

from dyformer.evaluation.scored_queries import RankingTrial, ScoredQueries, evaluate_queries
from dyformer.experiments.methods import METHODS
from dyformer.graphs.snapshots import interactions_of, prefix
from dyformer.sampling.ranking_queries import ranking_queries

peers = benchmark_module("peers")

STEP = 4
GRAPH = growing_log()
QUERIES = ranking_queries(GRAPH, STEP, seed=0, num_per_family=3)

FAKE = """
import json, sys
import polars as pl
past, pairs = pl.read_parquet(sys.argv[2]), pl.read_parquet(sys.argv[3])
both = pl.concat([past.select("source", "target"), past.select(source="target", target="source")]).unique()
scored = pairs.join(both.with_columns(score=1.0), on=["source", "target"], how="left", maintain_order="left")
scored = scored.fill_null(0.0)
if sys.argv[1] == "shuffled":
    scored = scored.reverse()
scored.write_parquet(sys.argv[4])
print("a line of its own")
print(json.dumps({"seconds": 2.5, "peak_mib": 10.0, "epochs": 3}))
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A peer that remembers the pairs of its past in both directions."""
    script = tmp_path_factory.mktemp("fake") / "fake.py"
    script.write_text(FAKE)
    return [sys.executable, str(script)]


def own(title: str) -> ScoredQueries:
    trial = RankingTrial(graph=prefix(GRAPH, STEP - 1), queries=QUERIES, seed=0)
    return evaluate_queries(title, METHODS[title], trial)[0]


def test_queries_travel_to_a_peer_and_its_scores_back(fake: list[str]) -> None:
    """A peer with the rule of our EdgeBank gives its scores, pair by pair."""
    scored, cost = peers.peer_scores([*fake, "ever"], "fake", GRAPH, QUERIES)
    assert peers.agreement(scored, own("EdgeBank (ever)")) == 1
    assert 0 < scored.score_S.mean() < 1
    assert cost == (2.5, 10.0, 3)


def test_scores_of_other_pairs_are_refused(fake: list[str]) -> None:
    with pytest.raises(ValueError, match="other pairs"):
        peers.peer_scores([*fake, "shuffled"], "fake", GRAPH, QUERIES)


def test_scores_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    peers.write_pairs(QUERIES, tmp_path / "pairs")
    broken = pl.read_parquet(tmp_path / "pairs").with_columns(score=pl.lit(float("nan")))
    broken.write_parquet(tmp_path / "scores")
    with pytest.raises(ValueError, match="not finite"):
        peers.read_scores(tmp_path / "scores", "fake", QUERIES, 0)


def test_file_of_a_peer_ends_with_the_last_event_before_the_step(tmp_path: Path) -> None:
    peers.write_past(GRAPH, STEP, tmp_path / "past")
    past, rows = pl.read_parquet(tmp_path / "past"), interactions_of(GRAPH)
    num_past = sum(snapshot.num_interactions for snapshot in GRAPH.snapshots[: STEP - 1])
    assert past.columns == ["source", "target", "time", "step"]
    assert past["step"].max() == STEP - 1
    assert past["source"].to_list() == rows.source_R[:num_past].tolist()
    assert past["target"].to_list() == rows.target_R[:num_past].tolist()


@pytest.mark.parametrize(("changed", "differs"), [(STEP, False), (STEP - 1, True)])
def test_only_the_past_changes_the_file_of_a_peer(tmp_path: Path, changed: int, differs: bool) -> None:
    """Swapped ends of one step's interactions leave the file as it is from the forecast step on, and not before."""
    rows = interactions_of(GRAPH)
    is_changed_R = np.floor(rows.position_R) + 1 == changed
    source_R = np.where(is_changed_R, rows.target_R, rows.source_R)
    target_R = np.where(is_changed_R, rows.source_R, rows.target_R)
    poisoned = replace(GRAPH, interactions=replace(rows, source_R=source_R, target_R=target_R))
    peers.write_past(GRAPH, STEP, tmp_path / "past")
    peers.write_past(poisoned, STEP, tmp_path / "poisoned")
    assert ((tmp_path / "past").read_bytes() != (tmp_path / "poisoned").read_bytes()) is differs


def test_interactions_that_reach_beyond_the_cut_are_refused(tmp_path: Path) -> None:
    rows = interactions_of(GRAPH)
    late = replace(GRAPH, interactions=replace(rows, time_R=rows.time_R + 1))
    with pytest.raises(AssertionError, match="ends with the step before"):
        peers.write_past(late, STEP, tmp_path / "past")


def test_pairs_do_not_show_which_of_them_are_true(tmp_path: Path) -> None:
    """Where a true target and a candidate change places, the file is the same."""
    candidate_QC = QUERIES.candidate_QC.copy()
    row_Q = np.flatnonzero(candidate_QC[:, 0] >= 0)
    target_Q = QUERIES.target_Q.copy()
    target_Q[row_Q], candidate_QC[row_Q, 0] = candidate_QC[row_Q, 0], QUERIES.target_Q[row_Q]
    peers.write_pairs(QUERIES, tmp_path / "pairs")
    peers.write_pairs(replace(QUERIES, target_Q=target_Q, candidate_QC=candidate_QC), tmp_path / "swapped")
    assert (tmp_path / "pairs").read_bytes() == (tmp_path / "swapped").read_bytes()
    assert pl.read_parquet(tmp_path / "pairs").columns == ["source", "target"]


def test_table_has_the_best_first_with_its_cost() -> None:
    """A peer that knows the true targets has MRR 1, a constant one the mean rank, and ours its own metrics."""
    pairs = QUERIES.pairs
    is_true_S = np.zeros(len(pairs.source_S))
    is_true_S[pairs.position_Q] = 1
    oracle = ScoredQueries(method="oracle", seed=0, queries=QUERIES, score_S=is_true_S)
    constant = ScoredQueries(method="constant", seed=0, queries=QUERIES, score_S=np.ones(len(is_true_S)))
    found = [(constant, peers.Cost(1.0, 5.0)), (oracle, peers.Cost(3.0, 7.0, 2)), (own("L3"), peers.Cost(1.0, 1.0))]
    table, metrics = peers.comparison("toy", GRAPH, {STEP: found})
    assert table["method"][0] == "oracle"
    assert table.row(0, named=True)["MRR"] == 1
    assert table.row(0, named=True)["CPU s a step"] == 3
    assert table.row(0, named=True)["epochs"] == 2
    num_Q = ((QUERIES.family_QC >= 0) & (QUERIES.family_QC != 4)).sum(axis=1)
    expected = (1 / (1 + num_Q[num_Q > 0] / 2)).mean()
    assert table.filter(method="constant")["MRR"].item() == pytest.approx(expected)
    assert metrics.filter(method="L3", metric="mrr", family="mixed", slice="known", step="macro").height == 1
