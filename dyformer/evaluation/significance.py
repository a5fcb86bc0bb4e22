"""Scores of the same pairs, or metrics of the same steps, by two methods -> whether one is better.

P pairs    B resamples    T metrics of steps and seeds
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

MIN_DIFFERENCES = 6

TESTS_SCHEMA = pl.Schema(
    {
        "method": pl.String(),
        "baseline": pl.String(),
        "num_differences": pl.Int64(),  # steps x seeds
        "num_above": pl.Int64(),  # of them, those in which the method is above the baseline, and below it
        "num_below": pl.Int64(),
        "is_above": pl.Boolean(),  # whether the ranks of the former have the greater sum, by which the test decides
        "p": pl.Float64(),
        "p_holm": pl.Float64(),
    }
)


def wilcoxon_tests(metrics: pl.DataFrame, *, slice_name: str = "all") -> pl.DataFrame:
    """Test each method against each baseline over all steps and seeds; columns as in TESTS_SCHEMA.

    The two-sided signed-rank test (Wilcoxon, 1945) of the differences in AUC, for at least 6 of them: fewer can
    never reach p < 0.05. The tests of one method are one family, corrected by Holm (1979), as Demsar (2006) advises
    for the comparison of one method with several others. Seeds of one step share its links, so that with many seeds
    the p-values are too small: the interval of the difference is stricter there. `metrics` has the columns of
    METRICS_SCHEMA.
    """
    is_compared = (pl.col("metric") == "auc") & (pl.col("slice") == slice_name) & pl.col("seed").is_not_null()
    rows = metrics.filter(is_compared & ~pl.col("step").is_in(["micro", "macro"])).select(
        "method", "seed", "step", "value", "is_baseline"
    )
    compared = rows.filter(~pl.col("is_baseline")).join(
        rows.filter("is_baseline"), on=["seed", "step"], suffix="_baseline", maintain_order="left_right"
    )
    tests = []
    for (method,), of_method in compared.group_by("method", maintain_order=True):
        differences = {
            name: (group["value"] - group["value_baseline"]).to_numpy()
            for (name,), group in of_method.group_by("method_baseline", maintain_order=True)
            if len(group) >= MIN_DIFFERENCES
        }
        p_values = [_signed_rank(difference_T) for difference_T in differences.values()]
        for (name, difference_T), p, corrected in zip(differences.items(), p_values, holm(p_values), strict=True):
            num_above, num_below = int((difference_T > 0).sum()), int((difference_T < 0).sum())
            signed = num_above, num_below, _is_above(difference_T)
            tests.append((method, name, len(difference_T), *signed, p, corrected))
    return pl.DataFrame(tests, schema=TESTS_SCHEMA, orient="row")


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number, so that one false discovery among all is improbable (Holm, 1979)."""
    p_T = np.array(p_values, dtype=np.float64)
    order_T = np.argsort(p_T, kind="stable")
    corrected_T = np.empty(len(p_T))
    corrected_T[order_T] = np.maximum.accumulate(p_T[order_T] * np.arange(len(p_T), 0, -1))
    return np.minimum(corrected_T, 1).tolist()


def _is_above(difference_T: NDArray[np.float64]) -> bool:
    from scipy.stats import rankdata  # late, because it takes 0.4 s to import

    unequal_T = difference_T[difference_T != 0]
    return bool(np.sign(unequal_T) @ rankdata(np.abs(unequal_T)) > 0)


def _signed_rank(difference_T: NDArray[np.float64]) -> float:
    if not difference_T.any():  # the test is not defined without a difference
        return 1.0
    from scipy.stats import wilcoxon  # late, because it takes 0.4 s to import

    return float(wilcoxon(difference_T).pvalue)  # pyright: ignore[reportAttributeAccessIssue]
