"""Rows of candidates and the heads that ranked them -> for each row, the features that raise it most, in words.

R rows    F features    Q queries
"""

import numpy as np
from numpy.typing import NDArray

from dyformer.scoring.event_forecaster import FittedEventForecaster
from dyformer.scoring.event_heads import GroupHead
from dyformer.scoring.tree_paths import path_contributions, paths_of
from dyformer.streams.event_state import FEATURES, INDEX, names
from dyformer.streams.feature_words import STEMS, in_words

NUM_REASONS = 3
COMMON = np.array([INDEX[name] for group in ("received", "source", "context") for name in names()[group]])
"""Features that all candidates of a query share, so that none of them ranks one before another."""


def contributions(head: GroupHead, row_RF: NDArray[np.float32]) -> NDArray[np.float64]:
    """Divide the logits of rows, less the mean of the fitted rows, among the features, [R, F]."""
    total_RF = np.zeros(row_RF.shape)
    for trees, factor in zip(head.trees, head.factors, strict=True):
        total_RF += factor * path_contributions(paths_of(trees.text), row_RF)
    return total_RF


def reasons(
    fitted: FittedEventForecaster, row_RF: NDArray[np.float32], is_new_R: NDArray[np.bool_], *, has_steps: bool
) -> list[list[str]]:
    """Write at most NUM_REASONS reasons for each row, the strongest first; none where nothing raises it.

    Of the half-lives of a count one is named. A value that does not exist is no reason.
    """
    raised_RF = np.zeros(row_RF.shape)
    for head, chosen_R in ((fitted.past, ~is_new_R), (fitted.new, is_new_R)):
        if chosen_R.any():
            raised_RF[chosen_R] = contributions(head, row_RF[chosen_R])
    raised_RF[:, COMMON] = 0
    raised_RF[np.isnan(row_RF)] = 0
    half_lives = fitted.settings.half_lives
    return [
        [in_words(FEATURES[f], float(row_F[f]), half_lives, has_steps=has_steps) for f in _strongest(raised_F)]
        for row_F, raised_F in zip(row_RF, raised_RF, strict=True)
    ]


def _strongest(raised_F: NDArray[np.float64]) -> list[int]:
    chosen: dict[str, int] = {}
    for feature in np.argsort(-raised_F, kind="stable").tolist():
        if raised_F[feature] <= 0 or len(chosen) == NUM_REASONS:
            break
        chosen.setdefault(STEMS[feature], feature)
    return list(chosen.values())
