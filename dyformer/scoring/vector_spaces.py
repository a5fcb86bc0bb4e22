"""Vectors of two trainings, or of two weeks -> the rotation of one onto the other that changes no score of a pair.

N nodes    M nodes with an earlier vector    D width of a vector    B columns of a block
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes

from dyformer.scoring.vector_scores import signs

MIN_LIFT = 0.3
"""Below it a node's vectors of two weeks have too little in common to be compared.

Measured: docs/experiments/warm_start.md.
"""


class Agreement(NamedTuple):
    """Mean cosines of the vectors of one week with those of another."""

    itself: float  # of each node with itself
    others: float  # of each node with every other one, because all vectors may share a direction

    @property
    def lift(self) -> float:
        """The part of what `others` leaves to 1: 0 for unrelated vectors, 1 for the same ones."""
        return (self.itself - self.others) / max(1 - self.others, 1e-12)


class Rotation(NamedTuple):
    """A rotation, and the agreement of the vectors with those in the other space."""

    rotation_DD: NDArray[np.float64]
    before: Agreement  # of vectors as they are
    after: Agreement  # of rotated ones; each half of the nodes is rotated as fits the other half


class Alignment(NamedTuple):
    """How vectors come into the space of earlier ones, and how far their nodes agree with themselves there."""

    rotation_DD: NDArray[np.float64] | None  # None where the vectors stay as they are
    before: Agreement
    after: Agreement
    is_close: bool  # whether the two may be compared: of one model always, else if they have enough in common


def align(
    own_ND: NDArray[np.float32],
    row_M: NDArray[np.int64],
    reference_MD: NDArray[np.float32],
    rotation_DD: NDArray[np.float64] | None,
    *,
    is_same: bool,
) -> Alignment:
    """Align the vectors of a model with earlier ones.

    Args:
        own_ND: the model's vectors of all nodes.
        row_M: rows of the nodes that have an earlier vector.
        reference_MD: the earlier vectors of these nodes.
        rotation_DD: the rotation that the earlier vectors have had, None without one. Only vectors of the same model
            keep it, so that the graph alone moves them.
        is_same: whether the earlier vectors are of the same model.
    """
    if is_same:
        moved_ND = own_ND if rotation_DD is None else rotated(own_ND, rotation_DD)
        before, after = agreement(own_ND[row_M], reference_MD), agreement(moved_ND[row_M], reference_MD)
        return Alignment(rotation_DD, before, after, is_close=True)
    fitted = rotation_onto(own_ND[row_M], reference_MD)
    return Alignment(*fitted, is_close=fitted.after.lift >= MIN_LIFT)


def rotation_onto(vector_ND: NDArray[np.floating], reference_ND: NDArray[np.floating]) -> Rotation:
    """Give the rotation of vectors onto those of the same nodes in another space (orthogonal Procrustes).

    Scores of pairs are signed products, products and cosines of vectors, of their id parts, and of their partners'
    means. A rotation keeps all of them where it mixes only columns of one sign in one part. So there is one rotation
    for each of these four blocks (Schoenemann, 1966), and together they are block-diagonal.

    The agreement is that of nodes that the rotation was not fitted on, because a rotation of D columns fits few nodes
    whatever their vectors are. With fewer than four nodes nothing is fitted. Vectors of length 0 are left out.
    """
    own_ND, other_ND = _without_zeros(vector_ND, reference_ND)
    if len(own_ND) < 4:
        return Rotation(np.eye(vector_ND.shape[1]), Agreement(0.0, 0.0), Agreement(0.0, 0.0))
    even_N = np.arange(len(own_ND)) % 2 == 0
    held_out_ND = np.empty_like(own_ND)
    for fitted_N in (even_N, ~even_N):
        held_out_ND[~fitted_N] = own_ND[~fitted_N] @ _fitted(own_ND[fitted_N], other_ND[fitted_N])
    return Rotation(_fitted(own_ND, other_ND), agreement(own_ND, other_ND), agreement(held_out_ND, other_ND))


def rotated(vector_ND: NDArray[np.float32], rotation_DD: NDArray[np.float64]) -> NDArray[np.float32]:
    """Rotate vectors."""
    return (vector_ND.astype(np.float64) @ rotation_DD).astype(np.float32)


def agreement(first_ND: NDArray[np.floating], second_ND: NDArray[np.floating]) -> Agreement:
    """Give the mean cosines of the rows of two tables, without nodes of length 0; of fewer than two nodes 0."""
    first_ND, second_ND = (
        each_ND / np.linalg.norm(each_ND, axis=1, keepdims=True) for each_ND in _without_zeros(first_ND, second_ND)
    )
    num = len(first_ND)
    if num < 2:
        return Agreement(0.0, 0.0)
    total = float(np.einsum("nd,nd->", first_ND, second_ND))
    of_all = float(first_ND.sum(axis=0) @ second_ND.sum(axis=0))  # over all pairs of nodes, without forming them
    return Agreement(total / num, (of_all - total) / (num * (num - 1)))


def blocks(width: int) -> list[NDArray[np.intp]]:
    """List the columns of each block: of one sign in a product, and in one of the two parts of a vector."""
    is_id_D, is_minus_D = np.arange(width) >= width - width // 4, signs(width) < 0
    number_D = 2 * is_id_D + is_minus_D
    return [np.flatnonzero(number_D == number) for number in np.unique(number_D)]


def _fitted(own_ND: NDArray[np.float64], other_ND: NDArray[np.float64]) -> NDArray[np.float64]:
    rotation_DD = np.zeros((own_ND.shape[1], own_ND.shape[1]))
    for column_B in blocks(own_ND.shape[1]):
        rotation_DD[np.ix_(column_B, column_B)] = orthogonal_procrustes(own_ND[:, column_B], other_ND[:, column_B])[0]
    return rotation_DD


def _without_zeros(
    first_ND: NDArray[np.floating], second_ND: NDArray[np.floating]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    used_N = (np.linalg.norm(first_ND, axis=1) > 0) & (np.linalg.norm(second_ND, axis=1) > 0)
    return first_ND[used_N].astype(np.float64), second_ND[used_N].astype(np.float64)
