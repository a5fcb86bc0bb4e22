"""Vectors of nodes and their history -> scores of pairs: products of the vectors, and of their partners' mean vectors.

P pairs    B pairs of a block    N nodes    D width of a vector    S scores
X edges of all snapshots    M slots of a sparse matrix
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring.pair_features import slices

HALF_LIVES = (1.0, 4.0)  # in steps, of the contacts that weigh a node's partners
OWN = ("structure_product", "id_product", "plain_product", "cosine")
WITH_PARTNERS = (
    "target_cosine",
    "source_cosine",
    "target_id_cosine",
    "source_id_cosine",
    "mean_product",
    "mean_cosine",
)
WITHOUT_DIRECTION = (
    "average_partner_cosine",
    "difference_partner_cosine",
    "average_partner_id_cosine",
    "difference_partner_id_cosine",
    *WITH_PARTNERS[4:],
)
NUM_VECTOR_SCORES = len(OWN) + len(HALF_LIVES) * len(WITH_PARTNERS)
BLOCK_PAIRS = 1 << 11  # whose vectors stay in the caches of a CPU
BLOCK_NODES = 1 << 16  # whose vectors are squared at once


def names(directed: bool) -> tuple[str, ...]:
    """Name the columns of `VectorScores.table`.

    Without direction the cosines of source and target are replaced by their average and their absolute difference.
    """
    with_partners = WITH_PARTNERS if directed else WITHOUT_DIRECTION
    return (*OWN, *(f"{name}_{half_life:g}" for half_life in HALF_LIVES for name in with_partners))


@dataclass(frozen=True, kw_only=True)
class NodeVectors:
    """A vector of each node, its length, and that of its id part, with 1 for the length 0."""

    vector_ND: NDArray[np.float32]
    length_N: NDArray[np.float32]
    id_length_N: NDArray[np.float32]

    def rows(self, node_B: NDArray[np.int64]) -> "NodeVectors":
        """Give those of some nodes."""
        return NodeVectors(
            vector_ND=self.vector_ND[node_B], length_N=self.length_N[node_B], id_length_N=self.id_length_N[node_B]
        )


@dataclass(frozen=True, kw_only=True)
class VectorScores:
    """Vectors, and the mean vector of each node's partners, from which the scores of any pair are computed.

    The partners m of a node n are weighted by log1p of the decayed number of their interactions, as fractions of n's
    total; that number is the sum of w x 0.5^(age / h) over the steps that link n and m, with the pair's weight w in the
    step. A node without partners has zeros. The last quarter of a vector is its id part, because it holds DyFormer's id
    embedding. A product is signed where each fourth column of the vectors counts negatively, as in DyFormer's link
    score, and plain without the signs.

    | score | formula, for the pair of i and j with vectors v and partners' means m_h |
    |---|---|
    | structure_product, id_product | signed product of v_i and v_j without their id parts, and of these |
    | plain_product, cosine | v_i v_j, and the same over both lengths |
    | target_cosine_h, source_cosine_h | cosine of m_h,i and v_j, and of v_i and m_h,j |
    | target_id_cosine_h, source_id_cosine_h | the same of the id parts |
    | average_partner_*, difference_partner_* | mean and absolute difference of the two, for a pair without direction |
    | mean_product_h, mean_cosine_h | signed product of m_h,i and m_h,j, and the cosine of their id parts |
    """

    own: NodeVectors
    means: tuple[NodeVectors, ...]  # of each half-life

    def table(self, source_P: NDArray[np.int64], target_P: NDArray[np.int64], *, directed: bool) -> NDArray[np.float32]:
        """Give the scores [P, S] of pairs, in the order of `names`."""
        score_PS = np.empty((len(source_P), NUM_VECTOR_SCORES), dtype=np.float32)
        for first in range(0, len(source_P), BLOCK_PAIRS):  # blocks bound the memory
            rows = slice(first, first + BLOCK_PAIRS)
            score_PS[rows] = self._block(source_P[rows], target_P[rows], directed=directed)
        return score_PS

    def _block(
        self, source_B: NDArray[np.int64], target_B: NDArray[np.int64], *, directed: bool
    ) -> NDArray[np.float32]:
        width = self.own.vector_ND.shape[1]
        sign_D, id_D = signs(width), slice(width - width // 4, width)
        source, target = self.own.rows(source_B), self.own.rows(target_B)
        product_BD = source.vector_ND * target.vector_ND
        # Sums of rows, because a product of matrices rounds a pair's score in another way beside other pairs.
        signed_BD = product_BD * sign_D
        id_B = signed_BD[:, id_D].sum(axis=1)
        plain_B = product_BD.sum(axis=1)
        columns = [signed_BD.sum(axis=1) - id_B, id_B, plain_B, plain_B / (source.length_N * target.length_N)]
        for mean in self.means:
            of_source, of_target = mean.rows(source_B), mean.rows(target_B)
            cosine_4B = np.stack([*_cosines(of_source, target, id_D), *_cosines(source, of_target, id_D)])[[0, 2, 1, 3]]
            if not directed:
                cosine_4B = np.stack([half for pair in (cosine_4B[:2], cosine_4B[2:]) for half in _unordered(pair)])
            product_B = (of_source.vector_ND * of_target.vector_ND * sign_D).sum(axis=1)
            columns += [*cosine_4B, product_B, _cosines(of_source, of_target, id_D)[1]]
        return np.column_stack(columns)


def prepare_vectors(vectors_ND: NDArray[np.floating], history: DynamicGraph) -> VectorScores:
    """Average the vectors of each node's partners in a history, all steps before the predicted one."""
    vectors_ND = vectors_ND.astype(np.float32, copy=False)
    means = (partner_fractions(history, half_life) @ vectors_ND for half_life in HALF_LIVES)
    return VectorScores(own=_node_vectors(vectors_ND), means=tuple(map(_node_vectors, means)))


def partner_fractions(history: DynamicGraph, half_life: float) -> sparse.csr_array:
    """Give the weights [N, N] of each node's partners; a row sums to 1, or to 0 for a node without partners."""
    contacts = _contacts(history, half_life)
    num_nodes = len(history.node_N)
    weight_M = np.log1p(contacts.data, out=contacts.data)  # of each slot of the matrix
    row_M = np.repeat(np.arange(num_nodes, dtype=contacts.indices.dtype), np.diff(contacts.indptr))
    total_M = np.bincount(row_M, weight_M, num_nodes)[row_M]
    # Contacts so old that they are 0 in floating point weigh nothing.
    fraction_M = np.divide(weight_M, total_M, out=np.zeros(len(weight_M), dtype=np.float32), where=total_M > 0)
    return sparse.csr_array((fraction_M, contacts.indices, contacts.indptr), shape=contacts.shape)


def _contacts(history: DynamicGraph, half_life: float) -> sparse.csr_array:
    """Sum the weights [N, N] of the contacts of nodes, which halve every `half_life` steps."""
    source_X, target_X, weight_X = (
        np.concatenate([values(snapshot) for snapshot in history.snapshots])
        for values in (
            lambda snapshot: snapshot.source_E.astype(np.int32),  # the type of scipy's indices, which need half as much
            lambda snapshot: snapshot.target_E.astype(np.int32),
            lambda snapshot: snapshot.weight_E * 0.5 ** ((history.num_steps - snapshot.step) / half_life),
        )
    )
    ends = np.concatenate([source_X, target_X]), np.concatenate([target_X, source_X])
    num_nodes = len(history.node_N)
    contacts = sparse.csr_array((np.tile(weight_X, 2), ends), shape=(num_nodes, num_nodes))
    contacts.sum_duplicates()
    return contacts


def signs(width: int) -> NDArray[np.float32]:
    """Give the signs [D] of a signed product: minus for every fourth column, plus for the others."""
    return np.where(np.arange(width) % 4 == 3, -1, 1).astype(np.float32)


def _node_vectors(vectors_ND: NDArray[np.float32]) -> NodeVectors:
    width = vectors_ND.shape[1]
    return NodeVectors(
        vector_ND=vectors_ND, length_N=_lengths(vectors_ND), id_length_N=_lengths(vectors_ND[:, width - width // 4 :])
    )


def _lengths(vectors_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    length_N = np.empty(len(vectors_ND), dtype=np.float32)
    for rows in slices(len(vectors_ND), BLOCK_NODES):  # all squares at once would take as much memory as the vectors
        length_N[rows] = np.linalg.norm(vectors_ND[rows], axis=1)
    return np.where(length_N > 0, length_N, 1).astype(np.float32)


def _cosines(left: NodeVectors, right: NodeVectors, id_D: slice) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Give the cosines [B] of the whole vectors of B pairs of rows, and of their id parts."""
    product_BD = left.vector_ND * right.vector_ND
    return (
        product_BD.sum(axis=1) / (left.length_N * right.length_N),
        product_BD[:, id_D].sum(axis=1) / (left.id_length_N * right.id_length_N),
    )


def _unordered(value_2B: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return value_2B.mean(axis=0), np.abs(value_2B[0] - value_2B[1])
