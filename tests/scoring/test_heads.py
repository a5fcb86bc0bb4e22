"""Heads: an independent fit, missing inputs, groups, and the same numbers from the stored text."""

import signal
import threading
import time
from itertools import pairwise

import lightgbm
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dyformer.scoring import heads
from dyformer.scoring.heads import COLUMNS, TREES, TRUNCATION, TreesHead, fit_heads, fit_ranking
from dyformer.scoring.kernels.lambdas import lambdas, sigmoid_table
from dyformer.scoring.labelled_tables import LabelledTable
from dyformer.scoring.metrics import auc


def fit_head(kind, table, *, seed):
    [head] = fit_heads([kind], table, seed=seed)
    return head


def labelled_table(num_pairs=600, seed=0):
    generator = np.random.default_rng(seed)
    inputs_PF = generator.standard_normal((num_pairs, 4)).astype(np.float32)
    logit_P = 2 * inputs_PF[:, 0] - inputs_PF[:, 1]
    return LabelledTable(
        inputs_PF=inputs_PF,
        positive_P=generator.random(num_pairs) < 1 / (1 + np.exp(-logit_P)),
        weight_P=generator.choice([0.25, 1.0], num_pairs),
        group_P=generator.integers(40, size=num_pairs),
    )


def test_linear_head_is_scikit_learns_regression_on_standardised_inputs():
    table = labelled_table()
    weight_P = table.weight_P
    mean_F = np.average(table.inputs_PF, axis=0, weights=weight_P)
    scale_F = np.sqrt(np.average((table.inputs_PF - mean_F) ** 2, axis=0, weights=weight_P))
    expected = LogisticRegression(C=1.0, tol=1e-8).fit(
        (table.inputs_PF - mean_F) / scale_F, table.positive_P, sample_weight=weight_P
    )
    logit_P = fit_head("linear", table, seed=0).logits(table.inputs_PF)
    assert np.allclose(logit_P, expected.decision_function((table.inputs_PF - mean_F) / scale_F), atol=2e-3)


def test_missing_input_counts_as_the_mean_of_the_known_ones():
    table = labelled_table()
    table.inputs_PF[::3, 2] = np.nan
    head = fit_head("linear", table, seed=0)
    row_1F = table.inputs_PF[:1].copy()
    row_1F[0, 2] = np.average(
        table.inputs_PF[:, 2][~np.isnan(table.inputs_PF[:, 2])],
        weights=table.weight_P[~np.isnan(table.inputs_PF[:, 2])],
    )
    assert head.logits(table.inputs_PF[:1]) == pytest.approx(head.logits(row_1F), abs=1e-5)


@pytest.mark.parametrize("kind", ["linear", "trees", "ranking"])
def test_a_row_has_the_same_log_odds_alone_and_beside_others(kind):
    generator = np.random.default_rng(2)
    inputs_PF = generator.standard_normal((401, 91)).astype(np.float32)
    inputs_PF[generator.random(inputs_PF.shape) < 0.1] = np.nan
    inputs_PF[200] = inputs_PF[7]
    positive_P, weight_P = np.nan_to_num(inputs_PF[:, 0]) > 0, np.ones(401)
    group_P = np.arange(401) // 10
    table = LabelledTable(inputs_PF=inputs_PF, positive_P=positive_P, weight_P=weight_P, group_P=group_P)
    head = fit_head(kind, table, seed=0)
    logit_P = head.logits(inputs_PF)
    assert logit_P[200] == logit_P[7]
    np.testing.assert_array_equal(head.logits(inputs_PF[::-1]), logit_P[::-1])
    np.testing.assert_array_equal(np.concatenate([head.logits(row_F[None]) for row_F in inputs_PF]), logit_P)


@pytest.mark.parametrize("kind", ["linear", "trees", "ranking"])
def test_head_orders_pairs_that_it_was_not_fitted_on(kind):
    other = labelled_table(seed=1)
    score_P = fit_head(kind, labelled_table(), seed=0).logits(other.inputs_PF)
    best = auc(other.positive_P, 2 * other.inputs_PF[:, 0] - other.inputs_PF[:, 1])
    assert auc(other.positive_P, score_P) > best - 0.06


def test_missing_inputs_are_a_value_of_their_own_for_trees():
    table = labelled_table()
    table.inputs_PF[table.positive_P, 3] = np.nan
    assert auc(table.positive_P, fit_head("trees", table, seed=0).logits(table.inputs_PF)) > 0.99


@pytest.mark.parametrize("kind", ["linear", "trees"])
def test_a_pair_counts_by_its_weight(kind):
    # The same inputs have both labels, so the weights alone decide between them.
    positive_P = np.arange(400) % 2 == 0
    table = LabelledTable(
        inputs_PF=np.random.default_rng(0).normal(size=(200, 2)).repeat(2, axis=0),
        positive_P=positive_P,
        weight_P=np.where(positive_P, 1.0, 0.1),
        group_P=np.zeros(400, dtype=np.int64),
    )
    logit_P = fit_head(kind, table, seed=0).logits(table.inputs_PF)
    assert np.mean(logit_P) == pytest.approx(np.log(10), abs=0.5)


def test_ranking_ignores_an_offset_of_each_group_in_the_labels():
    # A group's first pair is positive whatever its inputs, so only the order within groups can be fitted.
    generator = np.random.default_rng(0)
    inputs_PF = generator.standard_normal((900, 2))
    group_P = np.repeat(np.arange(90), 10)
    best_P = inputs_PF[:, 0].reshape(90, 10).argmax(axis=1)
    positive_P = (np.arange(10) == best_P[:, None]).ravel()
    order_P = generator.permutation(900)
    table = LabelledTable(
        inputs_PF=inputs_PF[order_P], positive_P=positive_P[order_P], weight_P=np.ones(900), group_P=group_P[order_P]
    )
    score_GP = fit_head("ranking", table, seed=0).logits(inputs_PF).reshape(90, 10)
    assert np.mean(score_GP.argmax(axis=1) == best_P) > 0.9


def test_stored_text_gives_the_same_numbers():
    table = labelled_table()
    head = fit_head("trees", table, seed=0)
    assert isinstance(head, TreesHead)
    assert np.array_equal(TreesHead(text=head.text).logits(table.inputs_PF), head.logits(table.inputs_PF))


def test_same_seed_gives_the_same_head_and_another_seed_another():
    table = labelled_table()
    first, again, other = (fit_head("trees", table, seed=seed).logits(table.inputs_PF) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_heads_that_read_the_same_bins_are_those_that_are_fitted_alone():
    table = labelled_table()
    kinds = ("trees", "ranking")
    assert fit_heads(kinds, table, seed=0) == tuple(fit_head(kind, table, seed=0) for kind in kinds)


@pytest.mark.parametrize("failing", ["fit_decoder", "_sigmoids", "Ctrl-C"])
def test_where_one_head_fails_the_others_soon_end(failing, monkeypatch):
    num_rounds, updates, update, fit_decoder = 3000, [], lightgbm.Booster.update, heads.fit_decoder
    main_thread = threading.get_ident()

    def counted(*arguments, **options):
        updates.append(1)
        return update(*arguments, **options)

    def fail(*arguments, **options):
        while len(updates) < 4:  # of the other heads
            time.sleep(0.001)
        if failing != "Ctrl-C":
            raise MemoryError("no memory")
        signal.pthread_kill(main_thread, signal.SIGINT)
        return fit_decoder(*arguments, **options)

    # A process that is started in the background may ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(heads, "NUM_ROUNDS", num_rounds)
    monkeypatch.setattr(heads, "fit_decoder" if failing == "Ctrl-C" else failing, fail)
    monkeypatch.setattr(lightgbm.Booster, "update", counted)
    try:
        with pytest.raises(KeyboardInterrupt if failing == "Ctrl-C" else MemoryError) as error:
            fit_heads(heads.KINDS, labelled_table(), seed=0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(updates) < num_rounds
    if failing != "Ctrl-C":
        kind = {"fit_decoder": "linear", "_sigmoids": "ranking"}[failing]
        assert error.value.__notes__ == [f"The head {kind!r} was being fitted."]


def drawn_groups(seed, num_groups=60):
    generator = np.random.default_rng(seed)
    size_G = generator.integers(1, 70, num_groups)
    inputs_PF = generator.standard_normal((size_G.sum(), 12)).astype(np.float32).round(1)  # with equal outputs
    inputs_PF[generator.random(inputs_PF.shape) < 0.1] = np.nan
    chance_P = 1 / (1 + np.exp(2 - np.nan_to_num(inputs_PF[:, 0])))
    return LabelledTable(
        inputs_PF=inputs_PF,
        positive_P=generator.random(size_G.sum()) < chance_P,
        weight_P=generator.choice([0.125, 0.5, 1.0], size_G.sum()),
        group_P=np.repeat(np.arange(num_groups), size_G),
    )


def trees_in(text):
    return text[text.index("\nTree=0") : text.index("end of trees")]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ranking_trees_are_those_of_lightgbms_own_lambdarank(seed):
    table = drawn_groups(seed)
    settings = {**TREES, "min_data_in_leaf": 20, "seed": seed}
    own = {"objective": "lambdarank", "lambdarank_truncation_level": TRUNCATION}
    data = lightgbm.Dataset(
        table.inputs_PF,
        label=table.positive_P,
        weight=table.weight_P,
        group=np.unique(table.group_P, return_counts=True)[1],
        params=settings,
    )
    expected = lightgbm.train({**settings, **own}, data, 40).model_to_string()
    assert trees_in(fit_ranking(table, seed=seed, num_rounds=40).text) == trees_in(expected)


@pytest.mark.parametrize("kind", ["trees", "ranking"])
def test_trees_of_whole_columns_are_those_of_bundles_and_sparse_columns(kind, monkeypatch):
    table = drawn_groups(0, num_groups=300)
    generator = np.random.default_rng(1)
    one_P = generator.integers(6, size=len(table.inputs_PF))
    table.inputs_PF[:, :6] = (one_P[:, None] == np.arange(6)) * table.inputs_PF[:, 6:]  # never two at once: a bundle
    table.inputs_PF[generator.random(len(one_P)) < 0.95, 7:9] = 0

    def trees():
        head = fit_head(kind, table, seed=0)
        assert isinstance(head, TreesHead)
        return trees_in(head.text)

    ours = trees()
    for name in COLUMNS:
        monkeypatch.delitem(TREES, name)
    assert trees() == ours
    monkeypatch.setitem(TREES, "max_bin", 15)
    assert trees() != ours


def plain_lambdas(score_P, positive_P, truncation):
    """The gradients of one group by the formula of LambdaRank, pair by pair, without a table of the sigmoid."""
    rank_P = np.empty(len(score_P), dtype=int)
    rank_P[np.lexsort((np.arange(len(score_P)), -score_P))] = np.arange(len(score_P))
    discount_P, gradient_P = 1 / np.log2(2 + rank_P), np.zeros(len(score_P))
    best = np.sum(1 / np.log2(2 + np.arange(min(truncation, positive_P.sum()))))
    total = 0.0
    for high in np.flatnonzero(positive_P):
        for low in np.flatnonzero(~positive_P):
            if min(rank_P[high], rank_P[low]) >= truncation:
                continue
            difference = score_P[high] - score_P[low]
            change = abs(discount_P[high] - discount_P[low]) / best / (0.01 + abs(difference))
            part = change / (1 + np.exp(difference))
            gradient_P[high] -= part
            gradient_P[low] += part
            total += 2 * part
    return gradient_P * np.log2(1 + total) / total


def test_gradients_of_lambdarank_are_those_of_its_formula():
    generator = np.random.default_rng(0)
    size_G = np.array([1, 30, 4, 55])
    start_G1 = np.append(0, np.cumsum(size_G))
    positive_P = generator.random(90) < 0.3
    order_P, weight_P = np.concatenate(list(map(np.arange, size_G))), np.full(90, 0.5, dtype=np.float32)
    for _ in range(3):  # the order of the last scores is where the next sort begins
        score_P = generator.normal(size=90).round(1)
        gradient_P, second_P = lambdas(score_P, positive_P, weight_P, start_G1, order_P, sigmoid_table(), 5)
        for first, end in pairwise(start_G1):
            own = slice(first, end)
            if positive_P[own].any() and not positive_P[own].all():
                expected_P = 0.5 * plain_lambdas(score_P[own], positive_P[own], 5)
                np.testing.assert_allclose(gradient_P[own], expected_P, rtol=2e-4, atol=1e-6)
            else:
                assert not gradient_P[own].any()
        assert (second_P >= 0).all()
