"""History with its interactions -> past-only features of links, directed or not: the complete list.

N nodes    P pairs    F features    B pairs of a block    E edges of the union, source < target    M slots of its matrix
K rank     D directions of an edge: source to target, target to source

Each feature reads the history alone, of which `until` is the last step. Ages are in windows and end with that step.

| feature | formula, for the pair of i and j |
|---|---|
| the 14 names of `pair_features` | as there; the same in both directions |
| log_walks_2, log_walks_3 | log1p(1e4 x entry (i, j) of S^2 or S^3), S = D^-1/2 W D^-1/2; |
| | W holds d_4(i, j) + d_4(j, i) and zeros on its diagonal, D its row sums |
| opposite_sides | 1: on different sides, -1: on one side, 0: unknown. The sides are those of a bipartite log; on |
| | another log both ends must be joined by walks, all of odd length (1) or all of even length (-1) |
| smooth_walk_1_16, _3_16 | entry (i, j) of Z and of Z^3, Z = the sum of z v v' over the 16 largest eigenvalues z |
| | (in magnitude) and eigenvectors v of (D + 0.3 m)^-1/2 W (D + 0.3 m)^-1/2; W here holds |
| | log1p(d_16(i, j) + d_16(j, i)), D its row sums, m the mean of those that are not 0 |
| smooth_cosine_16 | Z_ij / sqrt(a_i a_j), a_i the sum of abs(z) v_i^2; 0 where a_i or a_j is 0 |
| smooth_walk_1_32, _3_32, smooth_cosine_32 | the same with 32 eigenvalues |
| log_contacts_025, _1, _4 | log1p(d_h(i, j)); h = 0.25, 1, 4 windows |
| log_since_contact | log1p(age of the newest interaction from i to j) |
| log_newer_partners | log1p(number of partners of i with a newer contact than j, in either direction); |
| | of all partners of i where j is none |
| fraction_of_source | d_4(i, j) / sum of d_4(i, m) over all m; 0 where i sent nothing |
| factor_product | (L R')_ij; L R' is the nearest matrix of rank 32 to the matrix of log1p(d_4(i, j)) |
| factor_cosine | cosine of row i of L and row j of R; 0 where one of them is 0 (see `factorisation`) |
| the names of `contact_features.SIDES` | as there, of one end |

The smooth walks are the low frequencies of the graph: partners of similar nodes, also where no short path leads (a
filter of collaborative filtering: Shen et al., 2021). The 0.3 m keeps small separate groups from filling the spectrum
(regularised spectral clustering: Zhang and Rohe, 2018). Above 50,000 nodes they are less exact (see `factorisation`),
and so are the walks, whose sums are in single precision there.

d_h(i, j) sums w x 0.5^(age / h) over the interactions from i to j; w is log1p(weight in the log) / log(2), so that a
weight of 1 counts 1, as do interactions of a log without weights. The age of a contact that never was is one
window more than the history has. All values are finite.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring.contact_features import SIDES, Contacts, count_contacts, end_table, newer_partners
from dyformer.scoring.pair_features import (
    FEATURE_NAMES,
    PairFeatures,
    PathScores,
    adamic_adar_weight,
    busier_end_first,
    check_known,
    edge_degree,
    feature_columns,
    grouped_by_busier_end,
    l3_score,
    prepare_pair_features,
    slices,
)
from dyformer.streams.factorisation import LARGE_NODES, SHORTEST, Factors, Spectrum, factorise, spectrum

SMOOTH_RANKS = (16, 32)
SMOOTHING = 0.3  # of the mean row sum
SMOOTH = tuple(
    f"{name}_{rank}" for rank in SMOOTH_RANKS for name in ("smooth_walk_1", "smooth_walk_3", "smooth_cosine")
)
SYMMETRIC = (*FEATURE_NAMES, "log_walks_2", "log_walks_3", "opposite_sides", *SMOOTH)
CONTACTS = (
    *("log_contacts_025", "log_contacts_1", "log_contacts_4", "log_since_contact", "log_newer_partners"),
    "fraction_of_source",
)
FACTORS = ("factor_product", "factor_cosine")
WITH_DIRECTION = (*CONTACTS, *FACTORS, *SIDES)
GROUPS = {
    "contacts": (*FEATURE_NAMES[:3], *CONTACTS),
    "ends": (*FEATURE_NAMES[6:], *SIDES),
    "paths": (*FEATURE_NAMES[3:6], "log_walks_2", "log_walks_3", "opposite_sides"),
    "factors": (*FACTORS, *SMOOTH),
}
BLOCK_PAIRS = 1 << 15
BLOCK_WALKS = 1 << 21  # an end whose pairs are in two blocks is walked from twice
NUM_HUBS = 64  # of a graph of more than LARGE_NODES nodes

Hubs = tuple[NDArray[np.int32], NDArray[np.integer], NDArray[np.integer]]
"""The busiest nodes of a graph, as `hub_walks` reads them."""


def names(directed: bool) -> tuple[str, ...]:
    """Name the columns of `LinkFeatures.directed` or of `LinkFeatures.undirected`.

    A feature with a direction has two columns. In a directed table these are its value for source -> target, or of the
    source, and its value for target -> source, or of the target; the second name ends with `_back`. In an undirected
    table they are the mean and the absolute difference of both values.
    """
    first, second = ("{}", "{}_back") if directed else ("mean_{}", "difference_{}")
    return (*SYMMETRIC, *(form.format(name) for form in (first, second) for name in WITH_DIRECTION))


def groups(directed: bool) -> dict[str, list[int]]:
    """Divide the columns of a table into groups, so that the part of each group can be measured."""
    base = (*SYMMETRIC, *WITH_DIRECTION, *WITH_DIRECTION)
    assert len(base) == len(names(directed))
    return {group: [index for index, name in enumerate(base) if name in members] for group, members in GROUPS.items()}


@dataclass(frozen=True, kw_only=True)
class Walks:
    """The edge [P] of each pair (-1: none), and the sums [P, 5] of `weighted_path_sums` over its walks.

    Those of a graph of more than LARGE_NODES nodes are in single precision.
    """

    edge_P: NDArray[np.int32]
    sums_P5: NDArray[np.floating]

    def rows(self, index: slice | NDArray[np.integer] | NDArray[np.bool_]) -> "Walks":
        """Give the walks of some of the pairs."""
        return Walks(edge_P=self.edge_P[index], sums_P5=self.sums_P5[index])

    def path_scores(
        self, degree_N: NDArray[np.float64], source_P: NDArray[np.int64], target_P: NDArray[np.int64]
    ) -> PathScores:
        """Give what `pair_features.path_scores` gives of the pairs, from the walks."""
        common_P, adamic_P, walk_P = self.sums_P5.T[:3].astype(np.float64)
        return common_P, adamic_P, l3_score(degree_N, source_P, target_P, walk_P)


@dataclass(frozen=True, kw_only=True)
class LinkFeatures:
    """Summary of a history to compute features of any pair from; its size depends on edges and nodes alone."""

    pairs: PairFeatures
    edge_M: NDArray[np.int32]  # edge of each slot of the union's matrix
    step_M: NDArray[np.float64]  # S in the same slots
    contacts_DC: NDArray[np.float32]  # CONTACTS of both directions of edge after edge, then of pairs without contact
    ends_NF: NDArray[np.float32]  # SIDES of each node
    factors: Factors
    smooth: Spectrum
    group_2N: NDArray[np.int64]  # nodes with equal first values are on one side; with a first and a second, on two

    def walks(self, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> Walks:
        """Walk between the ends of all pairs: the part of their features that is expensive, and worth keeping.

        They take 44 bytes a pair, of a graph of more than LARGE_NODES nodes 24.

        Raises ValueError for a node that is not in the history.
        """
        from dyformer.graphs.kernels.paths import weighted_path_sums  # late, as numba is slow to import

        check_known(self.pairs.edges.num_nodes, source_P, target_P)
        degree_N = self.pairs.degree_N
        order_P = grouped_by_busier_end(degree_N, source_P, target_P)
        kind = np.float32 if self._num_hubs else np.float64
        edge_P, sums_P5 = np.empty(len(order_P), dtype=np.int32), np.empty((len(order_P), 5), dtype=kind)
        node_values = degree_N, adamic_adar_weight(degree_N)
        are_few = len(order_P) < len(degree_N)  # so that the walks to hubs of all nodes would take more time
        for block in slices(len(order_P), BLOCK_WALKS):
            order_B = order_P[block]
            first_B, second_B = busier_end_first(degree_N, source_P[order_B], target_P[order_B])
            walk_XH2, row_B = self._of_few(second_B) if are_few else (self._hub_walks, second_B)
            hubs, pair_3B = (*self._hubs, walk_XH2), np.stack([first_B, second_B, row_B])
            edge_P[order_B], sums_P5[order_B] = weighted_path_sums(self._slots, node_values, hubs, pair_3B)
        return Walks(edge_P=edge_P, sums_P5=sums_P5)

    def directed(
        self, source_P: NDArray[np.int64], target_P: NDArray[np.int64], walks: Walks | None = None
    ) -> NDArray[np.float32]:
        """Give the features [P, F] of ordered pairs, in the order of `names(directed=True)`.

        `walks` are those of the pairs, where they are known. Raises ValueError for a node that is not in the history.
        """
        return self._table(source_P, target_P, walks, directed=True)

    def undirected(
        self, source_P: NDArray[np.int64], target_P: NDArray[np.int64], walks: Walks | None = None
    ) -> NDArray[np.float32]:
        """Give the features [P, F] of unordered pairs, in the order of `names(directed=False)`; else as `directed`."""
        return self._table(source_P, target_P, walks, directed=False)

    def _table(
        self, source_P: NDArray[np.int64], target_P: NDArray[np.int64], walks: Walks | None, *, directed: bool
    ) -> NDArray[np.float32]:
        table_PF = np.empty((len(source_P), len(names(directed))), dtype=np.float32)
        walks = walks or self.walks(source_P, target_P)
        for block in slices(len(source_P), BLOCK_PAIRS):
            table_PF[block] = self._block(source_P[block], target_P[block], walks.rows(block), directed=directed)
        return table_PF

    def _block(
        self, source_B: NDArray[np.int64], target_B: NDArray[np.int64], walks: Walks, *, directed: bool
    ) -> NDArray[np.float32]:
        # Filling one array is a third faster than stacking columns.
        block_BF = np.empty((len(source_B), len(names(directed))), dtype=np.float32)
        symmetric = self._without_direction(source_B, target_B, walks)
        for column, value_B in enumerate(symmetric):
            block_BF[:, column] = value_B
        there_BF, back_BF = np.split(block_BF[:, len(symmetric) :], 2, axis=1)
        self._fill(there_BF, source_B, target_B, walks.edge_P)
        self._fill(back_BF, target_B, source_B, walks.edge_P)
        if not directed:
            mean_BF = (there_BF + back_BF) / 2
            np.abs(there_BF - back_BF, out=back_BF)
            there_BF[:] = mean_BF
        return block_BF

    def _without_direction(
        self, source_B: NDArray[np.int64], target_B: NDArray[np.int64], walks: Walks
    ) -> list[NDArray[np.float64]]:
        """Give the columns of SYMMETRIC."""
        degree_N = self.pairs.degree_N
        many_B, few_B = busier_end_first(degree_N, source_B, target_B)
        paths = walks.path_scores(degree_N, source_B, target_B)
        columns = feature_columns(self.pairs, source_B, target_B, walks.edge_P, paths)
        sides_B = self._opposite_sides(many_B, few_B)
        weighted_2B = walks.sums_P5.T[3:].astype(np.float64)
        return [*columns, *np.log1p(1e4 * weighted_2B), sides_B, *self._smooth_columns(many_B, few_B)]

    def _opposite_sides(self, many_B: NDArray[np.int64], few_B: NDArray[np.int64]) -> NDArray[np.float64]:
        # In a group of nodes that has no two sides both are equal, and cancel.
        same_B = self.group_2N[0, many_B] == self.group_2N[0, few_B]
        return np.subtract(self.group_2N[0, many_B] == self.group_2N[1, few_B], same_B, dtype=np.float64)

    def _smooth_columns(self, many_B: NDArray[np.int64], few_B: NDArray[np.int64]) -> Iterator[NDArray[np.float64]]:
        """Give the columns of SMOOTH."""
        vector_BK, few_BK, value_K = self.smooth.vector_NK[many_B], self.smooth.vector_NK[few_B], self.smooth.value_K
        once_BK, cubed_BK = ((few_BK * value_K**power).astype(np.float32) for power in (1, 3))
        for rank, length_N in zip(SMOOTH_RANKS, self._smooth_lengths, strict=True):
            once_B = np.einsum("bk,bk->b", vector_BK[:, :rank], once_BK[:, :rank])
            length_B = length_N[many_B] * length_N[few_B]
            yield once_B
            yield np.einsum("bk,bk->b", vector_BK[:, :rank], cubed_BK[:, :rank])
            yield np.divide(once_B, length_B, out=np.zeros_like(once_B), where=length_B > 0)

    @property
    def _num_hubs(self) -> int:
        num_nodes = len(self.pairs.degree_N)
        return min(NUM_HUBS, num_nodes) if num_nodes > LARGE_NODES else 0

    @property
    def _slots(self) -> tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.int32], NDArray[np.float64]]:
        """The slots of the union's rows, as `weighted_path_sums` reads them."""
        return self.pairs.union.indptr, self.pairs.union.indices, self.edge_M, self.step_M

    @cached_property
    def _hubs(self) -> Hubs:
        """The busiest nodes of a large graph; 64 lead three quarters of the walks of a log of a million nodes."""
        degree_N, union = self.pairs.degree_N, self.pairs.union
        hub_N = np.full(len(degree_N), -1, dtype=np.int32)
        hub_N[np.argsort(-degree_N, kind="stable")[: self._num_hubs]] = np.arange(self._num_hubs)
        slot_Y = np.flatnonzero(hub_N[union.indices] >= 0)
        return hub_N, np.searchsorted(slot_Y, union.indptr), slot_Y

    @cached_property
    def _hub_walks(self) -> NDArray[np.float32]:
        """The walks of all nodes to the hubs, [N, H, 2]: 512 bytes a node."""
        return self._walks_to_hubs(np.arange(len(self.pairs.degree_N)))

    def _of_few(self, node_B: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Give the walks to the hubs of these nodes alone, and the row of each node."""
        node_X, row_B = np.unique(node_B, return_inverse=True)
        return self._walks_to_hubs(node_X), row_B

    def _walks_to_hubs(self, node_X: NDArray[np.int64]) -> NDArray[np.float32]:
        from dyformer.graphs.kernels.paths import hub_walks  # late, as numba is slow to import

        return hub_walks(self._slots, self.pairs.degree_N, self._hubs, self._num_hubs, node_X)

    @cached_property
    def _smooth_lengths(self) -> tuple[NDArray[np.float64], ...]:
        """Square roots of a_i for each of SMOOTH_RANKS, [N] each; 0 where they are rounding errors."""
        squares_NK = np.abs(self.smooth.value_K) * np.square(self.smooth.vector_NK, dtype=np.float64)
        lengths = [np.sqrt(squares_NK[:, :rank].sum(axis=1)) for rank in SMOOTH_RANKS]
        return tuple(np.where(length_N > SHORTEST * length_N.max(), length_N, 0) for length_N in lengths)

    def _fill(
        self,
        out_BF: NDArray[np.float32],
        from_B: NDArray[np.int64],
        to_B: NDArray[np.int64],
        edge_B: NDArray[np.int32],
    ) -> None:
        """Write the columns of WITH_DIRECTION for one direction of the pairs."""
        product_B = np.einsum("bk,bk->b", self.factors.left_NK[from_B], self.factors.right_NK[to_B])
        length_B = self._lengths[0][from_B] * self._lengths[1][to_B]
        cosine_B = np.divide(product_B, length_B, out=np.zeros_like(product_B), where=length_B > 0)
        contacts_BC, factors_BF, ends_BF = np.split(out_BF, [len(CONTACTS), len(CONTACTS) + len(FACTORS)], axis=1)
        contacts_BC[:] = self.contacts_DC[np.int64(2) * edge_B + (from_B > to_B)]
        newer_B = contacts_BC[:, CONTACTS.index("log_newer_partners")]
        newer_B[edge_B < 0] = np.log1p(self.pairs.degree_N[from_B[edge_B < 0]])
        factors_BF[:, 0], factors_BF[:, 1] = product_B, cosine_B
        ends_BF[:] = self.ends_NF[from_B]

    @cached_property
    def _lengths(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return np.linalg.norm(self.factors.left_NK, axis=1), np.linalg.norm(self.factors.right_NK, axis=1)


def prepare_link_features(history: DynamicGraph, pairs: PairFeatures | None = None) -> LinkFeatures:
    """Summarise a history (all steps before the predicted one) for the features of any pair.

    `pairs` is its summary by `prepare_pair_features`, where there is one already. Raises ValueError where the history
    was read without its interactions.
    """
    from dyformer.graphs.kernels.paths import edge_slots  # late, as numba is slow to import

    pairs = pairs or prepare_pair_features(history)
    contacts = count_contacts(history, pairs.edges)
    row_M = np.repeat(np.arange(pairs.edges.num_nodes), np.diff(pairs.union.indptr))
    edge_M = edge_slots(pairs.union.indptr, pairs.edges.source_E, pairs.edges.target_E)
    step_M, contacts_DC = _steps(pairs, contacts, edge_M), _contact_table(pairs, contacts)
    ends_NF = end_table(history, pairs.edges, contacts, pairs.degree_N)
    log_contacts, smoothed = _log_contacts(pairs, contacts), _smoothed(pairs, contacts.lasting_E, row_M, edge_M)
    del contacts, row_M  # the decompositions take the most memory
    with ThreadPoolExecutor(1) as pool:  # both take about as long, and together most of the time
        factors = pool.submit(factorise, log_contacts)
        smooth = spectrum(smoothed)
    return LinkFeatures(
        pairs=pairs,
        edge_M=edge_M,
        step_M=step_M,
        contacts_DC=contacts_DC,
        ends_NF=ends_NF,
        factors=factors.result(),
        smooth=smooth,
        group_2N=_groups(history, pairs),
    )


def _steps(pairs: PairFeatures, contacts: Contacts, edge_M: NDArray[np.int32]) -> NDArray[np.float64]:
    """Give the slots of S = D^-1/2 W D^-1/2; both slots of an edge have one value, to the last bit."""
    contacts_E = contacts.decayed_HED[-1].sum(axis=1)
    root_N = np.sqrt(edge_degree(pairs.edges, contacts_E))
    # Contacts so old that they are 0 in floating point have no walks.
    inverse_N = np.divide(1, root_N, out=np.zeros_like(root_N), where=root_N > 0)
    return (contacts_E * inverse_N[pairs.edges.source_E] * inverse_N[pairs.edges.target_E])[edge_M]


def _smoothed(
    pairs: PairFeatures, lasting_E: NDArray[np.float64], row_M: NDArray[np.int64], edge_M: NDArray[np.int32]
) -> sparse.csr_array:
    """Give (D + 0.3 m)^-1/2 W (D + 0.3 m)^-1/2 of the long-lasting contacts, in the slots of the union."""
    value_E, union = np.log1p(lasting_E), pairs.union
    degree_N = edge_degree(pairs.edges, value_E)
    is_linked_N = degree_N > 0
    mean = degree_N[is_linked_N].mean() if is_linked_N.any() else 1.0
    root_N = np.sqrt(degree_N + SMOOTHING * mean)
    value_M = value_E[edge_M] / (root_N[row_M] * root_N[union.indices])
    return sparse.csr_array((value_M, union.indices, union.indptr), shape=union.shape)


def _groups(history: DynamicGraph, pairs: PairFeatures) -> NDArray[np.int64]:
    """Give the two numbers of each node that `_opposite_sides` compares.

    They are the parts of the graph with a copy of each node, in which a link joins a node to the other's copy: a node
    reaches another one there by walks of even length, and its copy by walks of odd length.
    """
    num_nodes = pairs.edges.num_nodes
    side_N = history.side_N[:num_nodes].astype(np.int64)
    if side_N.any():
        return np.stack([side_N, 1 - side_N])
    double = sparse.block_array([[None, pairs.union], [pairs.union, None]])
    return connected_components(double, directed=False)[1].reshape(2, num_nodes).astype(np.int64)


def _contact_table(pairs: PairFeatures, contacts: Contacts) -> NDArray[np.float32]:
    sent_ED = contacts.sent_HN[-1][np.column_stack([pairs.edges.source_E, pairs.edges.target_E])]
    decayed_ED = contacts.decayed_HED[-1]
    fraction_ED = np.divide(decayed_ED, sent_ED, out=np.zeros_like(decayed_ED), where=sent_ED > 0)
    table_DC = np.empty((fraction_ED.size + 2, len(CONTACTS)), dtype=np.float32)
    ages = contacts.age_ED, newer_partners(pairs.edges, contacts.age_ED)
    for column, value_ED in enumerate((*map(np.log1p, (*contacts.decayed_HED, *ages)), fraction_ED)):
        table_DC[:-2, column] = value_ED.ravel()
    table_DC[-2:] = [0, 0, 0, np.log1p(pairs.edges.num_steps + 1), 0, 0]  # an edge of -1 finds the last two rows
    return table_DC


def _log_contacts(pairs: PairFeatures, contacts: Contacts) -> sparse.csr_array:
    edges, shape = pairs.edges, pairs.union.shape
    ends = (np.concatenate([edges.source_E, edges.target_E]), np.concatenate([edges.target_E, edges.source_E]))
    matrix = sparse.csr_array((np.log1p(contacts.decayed_HED[-1]).T.ravel(), ends), shape=shape)
    matrix.eliminate_zeros()
    return matrix
