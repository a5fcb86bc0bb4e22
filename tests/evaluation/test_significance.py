"""Signed-rank tests over steps and seeds, against a count of all signs and Holm's correction by hand."""

import itertools

import numpy as np
import polars as pl
import pytest
from scipy import stats

from dyformer.evaluation.metric_rows import METRICS_SCHEMA
from dyformer.evaluation.significance import TESTS_SCHEMA, holm, wilcoxon_tests

STEPS = range(3, 10)


def signed_rank(first_T: np.ndarray, second_T: np.ndarray) -> float:
    """Count, among all signs of the ranks, those with as extreme a sum of positive ranks (Wilcoxon, 1945)."""
    difference_T = first_T - second_T
    rank_T = stats.rankdata(np.abs(difference_T))
    signs = itertools.product([0, 1], repeat=len(rank_T))
    sums = np.array([np.dot(sign, rank_T) for sign in signs])
    found, mean = rank_T[difference_T > 0].sum(), rank_T.sum() / 2
    return float((np.abs(sums - mean) >= abs(found - mean) - 1e-9).mean())


def metric_rows(values: dict[str, np.ndarray], *, seed: int = 0, part: str = "all") -> pl.DataFrame:
    """AUC of methods at the steps 3, 4, ..., and a macro value that no test may read; baselines are in capitals."""
    rows = [
        {"method": method, "step": step, "value": value}
        for method, own in values.items()
        for step, value in [*zip(map(str, STEPS), own.tolist(), strict=False), ("macro", 0.5), ("micro", 0.5)]
    ]
    about = {"dataset": "uci", "protocol": "paper", "metric": "auc", "family": "random", "slice": part}
    frame = pl.DataFrame(rows).with_columns(
        *(pl.lit(text).alias(name) for name, text in about.items()),
        seed=pl.lit(seed, pl.Int64),
        is_baseline=pl.col("method").str.to_uppercase() == pl.col("method"),
    )
    return pl.concat([pl.DataFrame(schema=METRICS_SCHEMA), frame], how="diagonal")


def test_a_method_is_tested_against_each_baseline_over_its_steps():
    generator = np.random.default_rng(0)
    low_T, high_T = generator.random(7), 2 + generator.random(7)
    mine_T = np.append(high_T[:2] + 0.1, high_T[2:] - 0.3)
    tests = wilcoxon_tests(metric_rows({"LOW": low_T, "mine": mine_T, "HIGH": high_T}))
    assert tests.schema == TESTS_SCHEMA
    assert tests["method"].to_list() == ["mine", "mine"]
    low, high = tests.to_dicts()
    assert (low["baseline"], low["num_differences"], low["num_above"], low["num_below"]) == ("LOW", 7, 7, 0)
    assert (high["baseline"], high["num_above"], high["num_below"]) == ("HIGH", 2, 5)
    for row, other_T in ((low, low_T), (high, high_T)):
        assert row["p"] == pytest.approx(signed_rank(mine_T, other_T))
    assert low["p"] == pytest.approx(2 / 2**7)  # exact: all of seven signs are equal
    assert low["p_holm"] == pytest.approx(min(1, 2 * low["p"]))
    assert high["p_holm"] == pytest.approx(max(low["p_holm"], high["p"]))


def test_steps_and_seeds_are_paired_and_fewer_than_six_are_not_tested():
    generator = np.random.default_rng(1)
    seeds = [
        metric_rows({"mine": generator.random(3), "BASE": generator.random(3)}, seed=seed).sample(
            fraction=1, shuffle=True
        )
        for seed in (0, 1)
    ]
    assert wilcoxon_tests(seeds[0]).is_empty()
    both = pl.concat(seeds)
    test = wilcoxon_tests(both).row(0, named=True)
    per_step = both.filter(pl.col("step").str.contains(r"^\d+$")).sort("seed", "step")
    mine_T, base_T = (per_step.filter(method=method)["value"].to_numpy() for method in ("mine", "BASE"))
    assert test["num_differences"] == 6
    assert test["num_above"] == (mine_T > base_T).sum()
    assert test["p"] == pytest.approx(signed_rank(mine_T, base_T))
    without_a_step = both.filter((pl.col("method") == "mine") | (pl.col("step") != "3"))
    assert wilcoxon_tests(without_a_step).is_empty()
    assert wilcoxon_tests(pl.DataFrame(schema=METRICS_SCHEMA)).schema == TESTS_SCHEMA


def test_equal_methods_do_not_differ_and_a_slice_has_tests_of_its_own():
    value_T = np.linspace(0.1, 0.7, 7)
    equal = metric_rows({"mine": value_T, "BASE": value_T})
    new = metric_rows({"mine": value_T + 0.1, "BASE": value_T}, part="new")
    rows = pl.concat([equal, new])
    assert wilcoxon_tests(rows)["p_holm"].to_list() == [1.0]
    assert wilcoxon_tests(rows, slice_name="new")["p_holm"].to_list() == [2 / 2**7]


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
