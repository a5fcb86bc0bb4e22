import math
from dataclasses import replace

import numpy as np
import pytest

from dyformer.scoring.event_heads import (
    GateHead,
    GroupHead,
    Groups,
    LabelledRows,
    fit_gate,
    fit_groups,
    log_loss,
    ranks,
    softmax,
)

SIZES = [3, 1, 4]
LOGITS = [0.5, 2.0, 0.5, -1.0, 0.0, 0.0, 3.0, 0.0]


def drawn_groups(seed: int, num_groups: int, *, slope: float = 2.0, num_columns: int = 3) -> Groups:
    """Groups of 2 to 8 rows whose chosen row is drawn by the softmax of `slope` x the first column."""
    generator = np.random.default_rng(seed)
    size_G = generator.integers(2, 9, num_groups)
    row_RF = generator.random((int(size_G.sum()), num_columns)).astype(np.float32)
    start_G1 = np.concatenate([[0], np.cumsum(size_G)])
    probability_R = softmax(slope * row_RF[:, 0].astype(np.float64), start_G1)
    chosen_G = [
        generator.choice(size, p=probability_R[first : first + size])
        for first, size in zip(start_G1[:-1], size_G, strict=True)
    ]
    return Groups(row_RF=row_RF, size_G=size_G, chosen_G=np.array(chosen_G))


def test_softmax_loss_and_rank_are_their_definitions() -> None:
    logits, chosen = np.array(LOGITS), [2, 0, 1]
    groups = Groups(row_RF=np.zeros((8, 1), np.float32), size_G=np.array(SIZES), chosen_G=np.array(chosen))
    parts = np.split(logits, np.cumsum(SIZES)[:-1])
    expected = [np.exp(part) / np.exp(part).sum() for part in parts]
    np.testing.assert_allclose(softmax(logits, groups.start_G1), np.concatenate(expected))
    losses = [-math.log(part[index]) for part, index in zip(expected, chosen, strict=True)]
    assert log_loss(logits, groups) == pytest.approx(np.mean(losses))
    # The second and third are equal, as are three of the last group.
    np.testing.assert_array_equal(ranks(logits, groups), [2.5, 1, 3])


def test_softmax_of_great_logits_and_of_empty_groups() -> None:
    np.testing.assert_allclose(softmax(np.array([1e4, 1e4, -1e4]), np.array([0, 0, 2, 2, 3])), [0.5, 0.5, 1])


def test_trees_give_the_probabilities_that_rows_were_drawn_by() -> None:
    training, validation, test = (
        drawn_groups(seed, number, slope=4.0) for seed, number in ((0, 3000), (1, 800), (2, 800))
    )
    head = fit_groups(training, validation, num_rounds=60, num_leaves=7, lambdarank=True, seed=0)
    best = log_loss(4.0 * test.row_RF[:, 0], test)
    assert best < log_loss(head.logits(test.row_RF), test) < best + 0.03
    assert log_loss(np.zeros(len(test.row_RF)), test) > best + 0.3
    assert len(head.trees) == len(head.factors) == 2
    softmax_alone = fit_groups(training, validation, num_rounds=60, num_leaves=7, lambdarank=False, seed=0)
    assert softmax_alone.factors[0] == pytest.approx(1, abs=0.3)  # the outputs have the scale of logits already


def test_validation_chooses_the_rounds_and_the_factor() -> None:
    training, validation = drawn_groups(0, 150, num_columns=8), drawn_groups(1, 2000, num_columns=8)
    head = fit_groups(training, validation, num_rounds=400, num_leaves=31, lambdarank=False, seed=0)
    assert len(head.trees[0].trees.value_TL) == 100  # so few groups are soon known by heart
    assert head.factors[0] < 0.8
    without = fit_groups(
        training, drawn_groups(1, 10, num_columns=8), num_rounds=40, num_leaves=31, lambdarank=True, seed=0
    )
    assert [len(head.trees.value_TL) for head in without.trees] == [40, 40]
    assert without.factors == (0.5, 0.5)


def test_few_groups_leave_all_candidates_equal() -> None:
    few = drawn_groups(0, 20)
    head = fit_groups(few, drawn_groups(1, 100), num_rounds=10, num_leaves=7, lambdarank=True, seed=0)
    assert head == GroupHead(trees=(), factors=())
    assert not head.logits(few.row_RF).any()


def labelled_rows(seed: int, num_rows: int, offset: float) -> LabelledRows:
    generator = np.random.default_rng(seed)
    row_RF = generator.random((num_rows, 3)).astype(np.float32)
    probability_R = 1 / (1 + np.exp(-(6 * row_RF[:, 1] - 3 + offset)))
    return LabelledRows(row_RF=row_RF, positive_R=generator.random(num_rows) < probability_R)


def test_the_gate_has_the_rate_of_validation() -> None:
    training, validation = labelled_rows(0, 4000, 0.0), labelled_rows(1, 3000, -2.0)
    head = fit_gate(training, validation, num_rounds=40, seed=0)
    probability_R = head.probability(validation.row_RF)
    assert probability_R.mean() == pytest.approx(validation.positive_R.mean(), abs=1e-4)
    expected_R = 1 / (1 + np.exp(-(6 * validation.row_RF[:, 1] - 5)))
    assert np.abs(probability_R - expected_R).mean() < 0.06
    before_R = replace(head, factor=1.0, offset=0.0).probability(validation.row_RF)
    assert np.abs(before_R - expected_R).mean() > 0.15


def test_a_gate_without_both_kinds_gives_the_smoothed_fraction() -> None:
    none = LabelledRows(row_RF=np.zeros((30, 3), np.float32), positive_R=np.zeros(30, np.bool_))
    head = fit_gate(none, none, num_rounds=5, seed=0)
    np.testing.assert_allclose(head.probability(none.row_RF), 0.5 / 31)
    without_validation = fit_gate(labelled_rows(0, 300, 0.0), none, num_rounds=5, seed=0)
    assert (without_validation.factor, without_validation.offset) == (1.0, 0.0)
    assert GateHead.from_record({"trees": None, "factor": 0.0, "offset": head.offset}) == head
