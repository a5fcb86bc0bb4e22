"""Ranks by TGB's rule: mean of the optimistic and the pessimistic one, equal times filtered."""

import numpy as np
import pytest
from event_logs import log_of, random_log

from dyformer.scoring.event_ranks import chosen_targets, event_ranks, mean_reciprocal_rank, with_targets
from dyformer.streams.event_log import EventLog, EventQueries


def all_queries(log: EventLog, candidate_QC: np.ndarray | None = None) -> EventQueries:
    before_E = np.searchsorted(log.time_E, log.time_E, side="left")
    return EventQueries(source_Q=log.source_E, time_Q=log.time_E, num_visible_Q=before_E, candidate_QC=candidate_QC)


def ranks(log: EventLog, score_QC: np.ndarray, candidate_QC: np.ndarray | None = None, *, size: int = 7) -> np.ndarray:
    chosen = chosen_targets(log.source_E, log.time_E, log.target_E)
    blocks = (score_QC[first : first + size] for first in range(0, len(log), size))
    return event_ranks(blocks, log, all_queries(log, candidate_QC), chosen)


def plain_rank(log: EventLog, query: int, score_of: dict[int, float]) -> float:
    """The rule, written from its definition, for the candidates in `score_of`."""
    same = (log.source_E == log.source_E[query]) & (log.time_E == log.time_E[query])
    refused = set(log.target_E[same].tolist()) | (set() if log.two_sides else {int(log.source_E[query])})
    own = score_of[int(log.target_E[query])]
    others = [score for target, score in score_of.items() if target not in refused]
    optimistic = sum(score > own for score in others)
    pessimistic = sum(score >= own for score in others)
    return (optimistic + pessimistic) / 2 + 1


@pytest.mark.parametrize("two_sides", [True, False])
def test_ranks_with_ties_follow_the_definition(two_sides: bool):
    log = random_log(two_sides=two_sides)
    score_QC = np.random.default_rng(1).integers(4, size=(len(log), log.num_targets)).astype(np.float64)
    expected = [plain_rank(log, query, dict(enumerate(score_QC[query].tolist()))) for query in range(len(log))]
    np.testing.assert_array_equal(ranks(log, score_QC), expected)
    np.testing.assert_array_equal(ranks(log, score_QC, size=len(log)), expected)


def test_sampled_candidates_are_ranked_like_the_others_and_count_once():
    log = random_log(num_nodes=20)
    generator = np.random.default_rng(2)
    negative_QN = np.stack([generator.permutation(20)[:6] for _ in range(len(log))])
    is_same = negative_QN == log.target_E[:, None]
    same_time = [
        set(log.target_E[(log.source_E == s) & (log.time_E == t)])
        for s, t in zip(log.source_E, log.time_E, strict=True)
    ]
    for row, refused in enumerate(same_time):
        is_same[row] |= np.isin(negative_QN[row], list(refused))
    negative_QN = np.where(is_same, -1, negative_QN).astype(np.int32)
    candidate_QC = with_targets(negative_QN, log.target_E)
    assert (np.diff(candidate_QC, axis=1) >= 0).all()
    score_QT = generator.integers(4, size=(len(log), 20)).astype(np.float64)
    found = ranks(log, np.take_along_axis(score_QT, candidate_QC, axis=1), candidate_QC)
    for query in range(len(log)):
        targets = {*negative_QN[query][negative_QN[query] >= 0].tolist(), int(log.target_E[query])}
        assert found[query] == plain_rank(log, query, {target: score_QT[query, target] for target in targets})


def test_a_constant_an_oracle_and_its_opposite():
    log = log_of([(0, 0, 1), (1, 1, 2), (0, 2, 3), (1, 3, 4)])
    own_QC = np.eye(4)
    assert mean_reciprocal_rank(ranks(log, own_QC)) == 1
    np.testing.assert_array_equal(ranks(log, -own_QC), [4] * 4)
    np.testing.assert_array_equal(ranks(log, np.zeros((4, 4))), [2.5] * 4)


def test_scores_of_another_shape_or_without_a_value_are_refused():
    log = random_log()
    right = np.zeros((len(log), log.num_targets))
    for wrong in (right[:, 1:], right[:-3], np.zeros((len(log) + 7, log.num_targets)), np.full(right.shape, np.nan)):
        chosen = chosen_targets(log.source_E, log.time_E, log.target_E)
        with pytest.raises(ValueError, match="found scores"):
            event_ranks([wrong], log, all_queries(log), chosen)


def test_metrics_are_those_of_py_tgb_on_random_scores_with_ties():
    evaluate = pytest.importorskip("tgb.linkproppred.evaluate", reason="py-tgb is not installed")
    generator = np.random.default_rng(3)
    log = log_of([(query, int(generator.integers(30)), query) for query in range(200)])
    score_QC = np.round(generator.random((200, log.num_targets)), 1)
    oracle = evaluate.Evaluator(name="tgbl-wiki")
    expected = {"mrr": [], "hits@10": []}
    for query, target in enumerate(log.target_E):
        scores = {"y_pred_pos": score_QC[query, [target]], "y_pred_neg": np.delete(score_QC[query], target)}
        for metric, values in expected.items():
            name = metric if metric == "mrr" else "hits@"
            values.append(float(oracle.eval({**scores, "eval_metric": [name]})[metric]))
    found = ranks(log, score_QC)
    assert abs(mean_reciprocal_rank(found) - np.mean(expected["mrr"])) < 1e-6
    assert abs((found <= 10).mean() - np.mean(expected["hits@10"])) < 1e-6
    np.testing.assert_allclose(1 / found, expected["mrr"], atol=1e-6)
