"""Compiled gradients of LambdaRank (Burges, 2010) for labels 0 and 1, number by number those of LightGBM.

P pairs in groups that follow each other    G groups    R ranks within a group, 0 the best    B bins

Most pairs of a group have equal labels, and LightGBM tries all of them. Here each rank meets the other label alone.
"""

import math

import numpy as np
from numba import njit

NUM_BINS = 1 << 20  # LightGBM reads the sigmoid of a difference from a table of so many bins,
LARGEST = 25.0  # between the differences -LARGEST and LARGEST
NEAR = float(np.float32(0.01))  # added to the difference of two scores by which the weight of their order is divided


@njit(nogil=True, cache=True)
def sigmoid_table():
    """Give 1 / (1 + e^d) [B] for the least difference d of each bin."""
    value_B, bins = np.empty(NUM_BINS), NUM_BINS / (2 * LARGEST)
    for number in range(NUM_BINS):
        value_B[number] = 1.0 / (1.0 + math.exp(number / bins - LARGEST))
    return value_B


@njit(nogil=True, cache=True)
def lambdas(score_P, positive_P, weight_P, start_G1, order_P, sigmoid_B, truncation):
    """Give the gradient and the second derivative [P] of the loss at these scores, as 32-bit numbers.

    Two pairs of a group count where one of them is among the first `truncation`. `order_P` has the positions of each
    group's pairs in the order of earlier scores, and gets that of these, because little moves from tree to tree.
    """
    gradient_P, second_P = np.zeros(len(score_P), np.float32), np.zeros(len(score_P), np.float32)
    num_most = np.max(start_G1[1:] - start_G1[:-1])
    discount_R = 1.0 / np.log2(2.0 + np.arange(num_most))
    rank_LR = np.empty((2, num_most), np.int64)  # of the negative pairs, and of the positive ones
    for group in range(len(start_G1) - 1):
        rows = slice(start_G1[group], start_G1[group + 1])
        _sort(score_P[rows], order_P[rows])
        _add(
            gradient_P[rows],
            second_P[rows],
            (score_P[rows], positive_P[rows], order_P[rows]),
            (discount_R, sigmoid_B, rank_LR),
            truncation,
        )
        for pair in range(rows.start, rows.stop):
            gradient_P[pair] *= weight_P[pair]
            second_P[pair] *= weight_P[pair]
    return gradient_P, second_P


@njit(nogil=True, cache=True)
def _sort(score_P, order_R):
    """Sort positions by falling score and then by number, by insertion, because they are nearly in order."""
    for rank in range(1, len(order_R)):
        position, free = order_R[rank], rank
        while free > 0:
            above = order_R[free - 1]
            if score_P[above] > score_P[position] or (score_P[above] == score_P[position] and above < position):
                break
            order_R[free] = above
            free -= 1
        order_R[free] = position


@njit(nogil=True, cache=True)
def _add(gradient_P, second_P, pairs_P, tables, truncation):
    """Add the derivatives of one group. The sums are of 32-bit numbers, in the order of the ranks."""
    score_P, positive_P, order_R = pairs_P
    discount_R, sigmoid_B, rank_LR = tables
    num_negative, num_positive = _divide(positive_P, order_R, rank_LR)
    if num_negative == 0 or num_positive == 0:
        return
    inverse_best = 1.0 / _sum(discount_R, min(truncation, num_positive))
    is_scaled = score_P[order_R[0]] != score_P[order_R[-1]]
    num_above, total = 0, 0.0  # `num_above`: positive pairs up to this rank
    for rank in range(min(truncation, len(order_R) - 1)):
        upper = order_R[rank]
        num_above += positive_P[upper]
        if positive_P[upper]:
            sign, below_R = 1.0, rank_LR[0, rank + 1 - num_above : num_negative]
        else:
            sign, below_R = -1.0, rank_LR[1, num_above:num_positive]
        upper_gradient, upper_second = gradient_P[upper], second_P[upper]
        for lower_rank in below_R:
            lower = order_R[lower_rank]
            difference = sign * (score_P[upper] - score_P[lower])  # of the positive pair and the negative one
            change = abs(discount_R[rank] - discount_R[lower_rank]) * inverse_best
            if is_scaled:
                change /= NEAR + abs(difference)
            part = _sigmoid(difference, sigmoid_B)
            first, second = np.float32(sign * part * change), np.float32(part * (1.0 - part) * change)
            total += 2 * part * change
            upper_gradient -= first
            gradient_P[lower] += first
            upper_second += second
            second_P[lower] += second
        gradient_P[upper], second_P[upper] = upper_gradient, upper_second
    if total > 0:
        _multiply((gradient_P, second_P), np.log2(1 + total) / total)


@njit(nogil=True, cache=True)
def _divide(positive_P, order_R, rank_LR):
    """Write the ranks of each label in rising order; give the number of each."""
    num_positive = 0
    for rank in range(len(order_R)):
        if positive_P[order_R[rank]]:
            rank_LR[1, num_positive] = rank
            num_positive += 1
        else:
            rank_LR[0, rank - num_positive] = rank
    return len(order_R) - num_positive, num_positive


@njit(nogil=True, cache=True)
def _sum(discount_R, num_first):
    """Add the first discounts, one after the other."""
    total = 0.0
    for rank in range(num_first):
        total += discount_R[rank]
    return total


@njit(nogil=True, cache=True)
def _sigmoid(difference, sigmoid_B):
    if difference <= -LARGEST:
        return sigmoid_B[0]
    if difference >= LARGEST:
        return sigmoid_B[NUM_BINS - 1]
    return sigmoid_B[int((difference + LARGEST) * (NUM_BINS / (2 * LARGEST)))]


@njit(nogil=True, cache=True)
def _multiply(derivative_P, factor):
    """Multiply in 64 bits, and round once."""
    for value_P in derivative_P:
        for pair in range(len(value_P)):
            value_P[pair] = np.float32(value_P[pair] * factor)
