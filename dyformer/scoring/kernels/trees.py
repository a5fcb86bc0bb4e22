"""Compiled sums of boosted trees: many pairs at once, a tree after the other.

P pairs    F inputs    T trees    S splits of a tree    L leaves of a tree    B pairs of a block
"""

from typing import Any

import numpy as np
from numba import njit
from numba.cpython.unsafe import numbers

BLOCK_PAIRS = 256  # their inputs stay in the fastest cache
LANES = 32  # a loop over a multiple of it has no rest, which takes longer than the comparisons of a few pairs
ALL = np.uint32(0xFFFFFFFF)

# To a type checker, a function of compiled code has the parameters of what generates it.
trailing_zeros: Any = numbers.trailing_zeros


@njit(nogil=True, cache=True)
def tree_sums(inputs_PF, is_zero_if_missing_F, nothing, splits_TS, value_TL):
    """Give the sum [P] of the values of the leaves that each pair reaches, added in the order of the trees.

    `splits_TS` are four arrays: the input, the threshold, whether a missing input goes left, and the leaves that can be
    reached where the split sends a pair right, bit l for leaf l from the left. A pair reaches the first leaf that no
    split excludes, so that no branch depends on the inputs (QuickScorer: Lucchese et al., 2015). Inputs up to
    `nothing` in magnitude count as 0.
    """
    num_pairs, num_inputs = inputs_PF.shape
    feature_TS, threshold_TS, missing_left_TS, right_TS = splits_TS
    num_trees, num_splits = feature_TS.shape
    sum_P = np.zeros(num_pairs)
    block_pairs = min(BLOCK_PAIRS, _padded(num_pairs))
    input_FB = np.zeros((num_inputs, block_pairs), dtype=inputs_PF.dtype)
    leaves_B = np.empty(block_pairs, dtype=np.uint32)
    for first in range(0, num_pairs, BLOCK_PAIRS):
        size = min(BLOCK_PAIRS, num_pairs - first)
        padded = _padded(size)  # the pairs beyond `size` lead nowhere
        _fill(input_FB, inputs_PF[first : first + size], is_zero_if_missing_F, nothing)
        for tree in range(num_trees):
            leaves_B[:padded] = ALL
            for split in range(num_splits):
                # Each column by its index, because a view of it takes longer than the comparisons of a few pairs.
                feature, threshold, right = feature_TS[tree, split], threshold_TS[tree, split], right_TS[tree, split]
                if missing_left_TS[tree, split]:  # NaN is not above any threshold
                    for pair in range(padded):
                        leaves_B[pair] &= right if input_FB[feature, pair] > threshold else ALL
                else:
                    for pair in range(padded):
                        leaves_B[pair] &= ALL if input_FB[feature, pair] <= threshold else right
            for pair in range(size):
                sum_P[first + pair] += value_TL[tree, trailing_zeros(leaves_B[pair])]
    return sum_P


@njit
def _padded(size):
    return (size + LANES - 1) // LANES * LANES


@njit
def _fill(input_FB, inputs_BF, is_zero_if_missing_F, nothing):
    """Copy the inputs of a block, by column."""
    size = len(inputs_BF)
    for column in range(inputs_BF.shape[1]):
        for pair in range(size):
            input_FB[column, pair] = inputs_BF[pair, column]
        if is_zero_if_missing_F[column]:  # NaN is not above `nothing`
            for pair in range(size):
                value = input_FB[column, pair]
                input_FB[column, pair] = value if abs(value) > nothing else 0
        else:
            for pair in range(size):
                value = input_FB[column, pair]
                input_FB[column, pair] = 0 if abs(value) <= nothing else value
