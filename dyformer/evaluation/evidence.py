"""Snapshots -> how much is known of each node: the number of its past partners, and a level of evidence.

N nodes known at the end of the snapshots    X nodes, with repeats
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.snapshots import Snapshot
from dyformer.sampling.pairs import past_pair_keys

LEVELS = {"none": 0, "one": 1, "few": 2, "many": 5}
"""Name of a level -> the least number of past partners."""


def num_partners(snapshots: Sequence[Snapshot]) -> NDArray[np.int64]:
    """Count the distinct partners of each node [N] in all snapshots; a node alone with itself has none."""
    num_nodes = snapshots[-1].num_nodes
    key_K = past_pair_keys(snapshots, num_nodes)
    return np.bincount(np.concatenate([key_K // num_nodes, key_K % num_nodes]), minlength=num_nodes)


def evidence(num_X: NDArray[np.int64]) -> NDArray[np.str_]:
    """Give the level [X] of numbers of partners."""
    level_X = np.searchsorted(list(LEVELS.values()), num_X, side="right") - 1
    return np.array(list(LEVELS))[level_X]
