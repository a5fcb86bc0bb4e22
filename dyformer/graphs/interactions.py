"""Rows of a log in order of time -> the interactions of a graph, each on its window, and labels of nodes by step.

R interactions, or rows with a label, in order of (time, log order)    T steps    P nodes
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Interactions:
    """The rows behind the snapshots: directed as in the log, repeated contacts and self-loops included."""

    source_R: NDArray[np.int64]  # node numbers of the graph
    target_R: NDArray[np.int64]
    time_R: NDArray[np.int64]  # microseconds since the epoch, or the log's own step
    weight_R: NDArray[np.float64]  # the log's weights; 1 where it has none
    position_R: NDArray[np.float64]  # time in windows: step t covers [t - 1, t), linear between its start and end

    def head(self, num_interactions: int) -> "Interactions":
        """Give the earliest interactions."""
        return Interactions(**{name: value_R[:num_interactions] for name, value_R in vars(self).items()})


def positions(
    time_R: NDArray[np.int64], windows: Sequence[tuple[int, int]], num_interactions_T: Sequence[int]
) -> NDArray[np.float64]:
    """Give the time of each row in windows, so that its age as of a step `until` is `until - position`.

    Args:
        time_R: times of the rows, in order.
        windows: first moment (included) and last moment (excluded) of each step.
        num_interactions_T: number of rows of each step. Counts and not times divide the rows between the steps,
            because windows of equal count may share one moment.
    """
    start_T, end_T = np.array(windows, dtype=np.int64).reshape(-1, 2).T
    index_R = np.repeat(np.arange(len(start_T)), num_interactions_T)
    fraction_R = (time_R - start_T[index_R]) / (end_T - start_T)[index_R]
    # Rounding may lift the last moments of a window to its end.
    return np.minimum(index_R + fraction_R, np.nextafter(index_R + 1.0, 0))


@dataclass(frozen=True, kw_only=True)
class NodeLabels:
    """The label of a row belongs to its source: JODIE's logs mark the state of the user after the interaction."""

    node_R: NDArray[np.int64]  # node numbers of the graph
    step_R: NDArray[np.int64]  # step of the row, from 1; ascending
    label_R: NDArray[np.int8]  # positive above 0

    def until(self, step: int) -> "NodeLabels":
        """Give the labels of the steps up to `step`."""
        num_rows = int(np.searchsorted(self.step_R, step, "right"))
        return NodeLabels(**{name: value_R[:num_rows] for name, value_R in vars(self).items()})


def first_positives(labels: NodeLabels, step: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Give the nodes [P] with labels before a step, none of them positive, and which get a positive one in the step.

    Nodes without a label before the step are left out, because nothing is known of them.
    """
    past = labels.until(step - 1)
    node_P = np.setdiff1d(past.node_R, past.node_R[past.label_R > 0])
    is_now_R = (labels.step_R == step) & (labels.label_R > 0)
    return node_P, np.isin(node_P, labels.node_R[is_now_R])


def newest_labels(labels: NodeLabels, until: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Give the nodes [P] with labels up to a step, and whether the newest one of each is positive."""
    past = labels.until(until)
    node_P, first_P = np.unique(past.node_R[::-1], return_index=True)
    return node_P, past.label_R[::-1][first_P] > 0


def positive_coverage(labels: NodeLabels, step: int) -> tuple[int, int]:
    """Count the nodes with a first positive label in a step, and those of them that had a label before."""
    past = labels.until(step - 1)
    is_now_R = (labels.step_R == step) & (labels.label_R > 0)
    node_P = np.setdiff1d(labels.node_R[is_now_R], past.node_R[past.label_R > 0])
    return len(node_P), int(np.isin(node_P, past.node_R).sum())
