"""Labels of rows -> labels of nodes by step: who got a first positive one, and whose newest one is positive.

R rows with a label, in order of (time, log order)    P nodes
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
