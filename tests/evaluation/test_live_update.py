import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from ranked_logs import growing_log

from dyformer.evaluation.live_update import (
    NUM_NEGATIVES,
    HeldOutLinks,
    held_out_links,
    live_update_ranks,
    live_update_rows,
    live_update_table,
    ranks_to_table,
)
from dyformer.sampling.ranking_queries import step_pairs

GRAPH, STEP = growing_log(num_rows=200), 4
LINKS = held_out_links(GRAPH, STEP, seed=0)
NUM_KNOWN = GRAPH.snapshots[STEP - 2].num_nodes


def test_a_tenth_of_the_interactions_is_held_out_repeats_included():
    source_R, target_R = step_pairs(GRAPH, STEP)
    rows, held_out = (
        list(zip(*ends, strict=True)) for ends in ((source_R, target_R), (LINKS.source_H, LINKS.target_H))
    )
    assert len(held_out) == round(0.1 * len(rows))
    assert all(held_out.count(pair) <= rows.count(pair) for pair in held_out)
    drawn = [held_out_links(GRAPH, STEP, seed=seed) for seed in range(60)]
    assert any(len(set(zip(d.source_H.tolist(), d.target_H.tolist(), strict=True))) < len(held_out) for d in drawn)
    assert LINKS.source_S.tolist() == sorted(set(LINKS.source_H.tolist()))


def test_negatives_are_uniform_over_the_whole_log_without_the_sources_own_links():
    for source, negative_K in zip(LINKS.source_S.tolist(), LINKS.negative_SK, strict=True):
        own = set(LINKS.target_H[LINKS.source_H == source].tolist()) | {source}
        possible = set(range(len(GRAPH.node_N))) - own
        assert len(negative_K) == NUM_NEGATIVES
        assert set(negative_K.tolist()) == possible
        counts = np.bincount(negative_K, minlength=len(GRAPH.node_N))[sorted(possible)]
        assert counts.max() < 3 * NUM_NEGATIVES / len(possible)
    assert LINKS.negative_SK.max() >= NUM_KNOWN  # nodes that come later are negatives as well


def plain_ranks(links: HeldOutLinks, score_NN: NDArray[np.float64]) -> list[int]:
    ranks = []
    for source, negative_K in zip(links.source_S, links.negative_SK, strict=True):
        best = max(score_NN[source, target] for target in links.target_H[links.source_H == source])
        ranks.append(1 + sum(score_NN[source, other] >= best for other in negative_K))
    return ranks


def test_ranks_are_those_of_the_definition():
    num_nodes = len(GRAPH.node_N)
    score_NN = np.random.default_rng(0).integers(5, size=(num_nodes, num_nodes)).astype(float)
    unknown = np.arange(num_nodes) >= NUM_KNOWN
    score_NN[unknown] = score_NN[:, unknown] = -np.inf
    calls = []

    def score_pairs(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
        calls.append((source_P, target_P))
        return score_NN[source_P, target_P]

    assert live_update_ranks(score_pairs, LINKS, NUM_KNOWN).tolist() == plain_ranks(LINKS, score_NN)
    ((source_P, target_P),) = calls
    assert max(source_P.max(), target_P.max()) < NUM_KNOWN
    assert len(set(zip(source_P.tolist(), target_P.tolist(), strict=True))) == len(source_P)


def test_ties_count_against_the_method_and_an_oracle_is_first():
    zeros = live_update_ranks(lambda source_P, target_P: np.zeros(len(source_P)), LINKS, len(GRAPH.node_N))
    assert set(zeros.tolist()) == {NUM_NEGATIVES + 1}
    held_out = set(zip(LINKS.source_H.tolist(), LINKS.target_H.tolist(), strict=True))

    def oracle(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.array([float(pair in held_out) for pair in zip(source_P.tolist(), target_P.tolist(), strict=True)])

    assert set(live_update_ranks(oracle, LINKS, len(GRAPH.node_N)).tolist()) == {1}


def ranked_table() -> pl.DataFrame:
    first, second = held_out_links(GRAPH, 3, seed=0), LINKS
    ranked = [
        (method, 0, links, np.full(len(links.source_S), rank * links.step))
        for method, rank in (("ours", 1), ("theirs", 4))
        for links in (first, second)
    ]
    return ranks_to_table(ranked)


def test_the_mean_is_taken_over_sources_and_then_over_steps():
    rows = live_update_rows(ranked_table(), "uci", baselines=("theirs",))
    own = {(row["method"], row["step"]): row for row in rows.to_dicts()}
    assert own["ours", "3"]["value"] == pytest.approx(1 / 3)
    assert own["ours", "macro"]["value"] == pytest.approx((1 / 3 + 1 / 4) / 2)
    assert [own["ours", "3"][end] for end in ("low", "high")] == pytest.approx([1 / 3] * 2)
    assert own["theirs", "macro"]["is_baseline"]
    assert own["ours", "macro"]["num_pairs"] == own["ours", "3"]["num_pairs"] + own["ours", "4"]["num_pairs"]


def test_the_published_value_stands_in_the_table():
    table = live_update_table(live_update_rows(ranked_table(), "uci"), "uci")
    assert table["method"].to_list() == ["ours", "ROLAND-GRU (paper)", "theirs"]
    assert table["mrr"].to_list() == [0.292, 0.112, 0.073]
    assert live_update_table(live_update_rows(ranked_table(), "mine"), "mine")["method"].to_list() == ["ours", "theirs"]
