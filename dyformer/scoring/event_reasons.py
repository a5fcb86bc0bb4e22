"""Rows of candidates and the heads that ranked them -> for each row, the features that raise it most, in words.

What each adds to a row's output is read from the paths through the trees, which are in the text of a LightGBM model.

R rows    F features    Q queries    N nodes of all trees    L leaves of all trees    T trees
"""

import math
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.scoring.event_forecaster import FittedEventForecaster
from dyformer.scoring.event_heads import GroupHead
from dyformer.streams.event_state import FEATURES, INDEX, RANKED, names
from dyformer.streams.feature_words import STEMS, in_words

DEFAULT_LEFT = 2  # bit of LightGBM's decision_type
MISSING_AS_ZERO, MISSING_AS_NAN = 1, 2  # its next two bits
ZERO = 1e-35  # what LightGBM takes for zero


class TreePaths(NamedTuple):
    """Trees one after another; a child below 0 is leaf -1 - child. A tree without splits has a leaf alone."""

    first_node_T: NDArray[np.int64]
    first_leaf_T: NDArray[np.int64]
    has_nodes_T: NDArray[np.bool_]
    feature_N: NDArray[np.int64]
    threshold_N: NDArray[np.float64]
    decision_N: NDArray[np.int64]
    left_N: NDArray[np.int64]  # numbers within the tree
    right_N: NDArray[np.int64]
    value_N: NDArray[np.float64]  # mean output of the fitted rows that came to the node
    value_L: NDArray[np.float64]


@lru_cache(maxsize=64)
def paths_of(text: str) -> TreePaths:
    """Read the trees of a model. Raises ValueError for categorical splits and linear leaves."""
    trees = [_fields(block) for block in text.split("end of trees", maxsplit=1)[0].split("\nTree=")[1:]]
    if any(tree.get("is_linear", "0") != "0" or tree.get("num_cat", "0") != "0" for tree in trees):
        raise InvalidInput("expected trees with splits by thresholds and constant leaves alone")
    num_nodes = [len(tree.get("split_feature", "").split()) for tree in trees]
    num_leaves = [len(tree["leaf_value"].split()) for tree in trees]

    def joined(name: str, kind: type) -> NDArray:
        return np.array([kind(value) for tree in trees for value in tree.get(name, "").split()], dtype=kind)

    return TreePaths(
        first_node_T=np.cumsum([0, *num_nodes])[:-1],
        first_leaf_T=np.cumsum([0, *num_leaves])[:-1],
        has_nodes_T=np.array(num_nodes) > 0,
        feature_N=joined("split_feature", int),
        threshold_N=joined("threshold", float),
        decision_N=joined("decision_type", int),
        left_N=joined("left_child", int),
        right_N=joined("right_child", int),
        value_N=joined("internal_value", float),
        value_L=joined("leaf_value", float),
    )


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in block.splitlines())
    return {name: value for name, sign, value in pairs if sign}


@njit
def _goes_left(value, threshold, decision):
    missing = (decision >> 2) & 3
    if math.isnan(value) and missing != MISSING_AS_NAN:
        value = 0.0
    if (missing == MISSING_AS_NAN and math.isnan(value)) or (missing == MISSING_AS_ZERO and abs(value) <= ZERO):
        return (decision & DEFAULT_LEFT) != 0
    return value <= threshold


@njit(nogil=True, cache=True)
def path_contributions(trees, row_RF):
    """Divide the outputs of rows among the features, [R, F]: the changes of the mean output along a row's path.

    Each split on the way from the root to the leaf counts for its feature (Saabas, 2014). The sum over the features is
    the output less the mean outputs of the roots.
    """
    total_RF = np.zeros(row_RF.shape)
    first_node_T, first_leaf_T, has_nodes_T, feature_N, threshold_N, decision_N, left_N, right_N, value_N, value_L = (
        trees
    )
    for tree in range(len(first_node_T)):
        first, leaves = first_node_T[tree], first_leaf_T[tree]
        for row in range(len(row_RF)):
            node = 0 if has_nodes_T[tree] else -1
            while node >= 0:
                at = first + node
                feature = feature_N[at]
                value = np.float64(row_RF[row, feature])
                goes_left = _goes_left(value, threshold_N[at], decision_N[at])
                node = left_N[at] if goes_left else right_N[at]
                after = value_N[first + node] if node >= 0 else value_L[leaves - 1 - node]
                total_RF[row, feature] += after - value_N[at]
    return total_RF


NUM_REASONS = 3
COMMON = np.array([INDEX[name] for group in ("received", "source", "context") for name in names()[group]])
"""Features that all candidates of a query share, so that none of them ranks one before another."""
STEM_F = np.unique(STEMS, return_inverse=True)[1]
STEM_F[COMMON] = -1  # they are no reasons
VALUE_F = np.arange(len(FEATURES))
"""For each feature the one that has no value where it has none: of a rank, the feature by which it ranks."""
VALUE_F[[INDEX[f"rank_{name}"] for name in RANKED]] = [INDEX[name] for name in RANKED]


@njit(nogil=True, cache=True)
def strongest(raised_RF, row_RF, stem_F, value_F):
    """Give the features [R, NUM_REASONS] that raise each row most, the strongest first, one of each stem; else -1.

    A feature without a value is none, nor a rank by one, and one whose stem is -1.
    """
    feature_RK = np.full((len(row_RF), NUM_REASONS), -1)
    for row in range(len(row_RF)):
        for k in range(NUM_REASONS):
            greatest = 0.0
            for feature in range(row_RF.shape[1]):
                raised, stem = raised_RF[row, feature], stem_F[feature]
                if raised > greatest and stem >= 0 and not np.isnan(row_RF[row, value_F[feature]]):
                    is_named = False
                    for earlier in range(k):
                        is_named |= stem_F[feature_RK[row, earlier]] == stem
                    if not is_named:
                        greatest, feature_RK[row, k] = raised, feature
            if greatest == 0:
                break
    return feature_RK


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
    feature_RK = strongest(raised_RF, row_RF, STEM_F, VALUE_F)
    value_RK = row_RF[np.arange(len(row_RF))[:, None], feature_RK]  # `take_along_axis` is slower for few rows
    write = partial(in_words, half_lives=fitted.settings.half_lives, has_steps=has_steps)
    columns = zip(feature_RK.tolist(), value_RK.tolist(), strict=True)
    return [[write(FEATURES[f], value) for f, value in zip(*row, strict=True) if f >= 0] for row in columns]
