"""A history -> the same with some edges left out and others added, for experiments on noisy inputs (paper, Table 3).

N nodes known at a step    E edges of a step    D edges left out    I pairs added
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.snapshots import DynamicGraph, Snapshot


def with_noise(history: DynamicGraph, fraction: float, *, seed: int) -> DynamicGraph:
    """Change a fraction of the edges of every snapshot; one without noise stays the same object.

    Of `round(fraction * E)` changes half, rounded down, leave out an edge. The others add a uniform pair of nodes known
    at the step that has no edge there, of opposite sides where the log has two, with weight 1; fewer where a snapshot
    has not as many such pairs. The noise of a step depends on the seed and this step alone. The result has no
    interactions, because these would still show the edges that were left out.
    """
    if fraction == 0:
        return history
    snapshots = tuple(_noisy(snapshot, history.side_N, fraction, seed) for snapshot in history.snapshots)
    return replace(history, snapshots=snapshots, interactions=None)


def _noisy(snapshot: Snapshot, side_N: NDArray[np.int8], fraction: float, seed: int) -> Snapshot:
    generator = np.random.default_rng([seed, snapshot.step])
    num_edges, num_nodes = len(snapshot.source_E), snapshot.num_nodes
    num_changes = round(fraction * num_edges)
    left_out_D = generator.choice(num_edges, size=num_changes // 2, replace=False)
    key_E = snapshot.source_E * num_nodes + snapshot.target_E
    key_I = _new_keys(key_E, side_N[:num_nodes], num_changes - len(left_out_D), generator)
    stays_E = np.ones(num_edges, dtype=np.bool_)
    stays_E[left_out_D] = False
    key_E = np.concatenate([key_E[stays_E], key_I])
    weight_E = np.concatenate([snapshot.weight_E[stays_E], np.ones(len(key_I))])
    order_E = np.argsort(key_E)
    return replace(
        snapshot,
        source_E=key_E[order_E] // num_nodes,
        target_E=key_E[order_E] % num_nodes,
        weight_E=weight_E[order_E],
    )


def _new_keys(
    key_E: NDArray[np.int64], side_N: NDArray[np.int8], num: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Draw the keys of `num` distinct pairs, uniformly among those without an edge."""
    num_nodes, num_second = len(side_N), int(np.count_nonzero(side_N))
    has_sides = 0 < num_second < num_nodes
    num_pairs = num_second * (num_nodes - num_second) if has_sides else num_nodes * (num_nodes - 1) // 2
    num = min(num, num_pairs - len(key_E))
    key_I = np.empty(0, dtype=np.int64)
    while len(key_I) < num:
        end_2X = np.sort(generator.integers(num_nodes, size=(2, 2 * num)), axis=0)
        refused_X = (side_N[end_2X[0]] == side_N[end_2X[1]]) if has_sides else (end_2X[0] == end_2X[1])
        drawn_X = (end_2X[0] * num_nodes + end_2X[1])[~refused_X]
        drawn_X = drawn_X[~np.isin(drawn_X, key_E)]
        key_I = np.concatenate([key_I, drawn_X])
        key_I = key_I[np.sort(np.unique(key_I, return_index=True)[1])]  # the first draw of each, in order
    return key_I[:num]
