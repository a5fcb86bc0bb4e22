"""History with its interactions -> past-only features of links, directed or not: the complete list.

N nodes    P pairs    F features    B pairs of a block    E edges of the union, source < target    M slots of its matrix
K rank     D directions of an edge: source to target, target to source

Each feature reads the history alone, of which `until` is the last step. Ages are in windows and end with that step.

| feature | formula, for the pair of i and j |
|---|---|
| the 14 names of `pair_features` | as there; the same in both directions |
| log_walks_2, log_walks_3 | log1p(1e4 x entry (i, j) of S^2 or S^3), S = D^-1/2 W D^-1/2; |
| | W holds d_4(i, j) + d_4(j, i) and zeros on its diagonal, D its row sums |
| log_contacts_025, _1, _4 | log1p(d_h(i, j)); h = 0.25, 1, 4 windows |
| log_since_contact | log1p(age of the newest interaction from i to j) |
| fraction_of_source | d_4(i, j) / sum of d_4(i, m) over all m; 0 where i sent nothing |
| factor_product | (L R')_ij; L R' is the nearest matrix of rank 32 to the matrix of log1p(d_4(i, j)) |
| factor_cosine | cosine of row i of L and row j of R; 0 where one of them is 0 (see `factorisation`) |
| the names of `contact_features.SIDES` | as there, of one end |

d_h(i, j) sums w x 0.5^(age / h) over the interactions from i to j; w is log1p(weight in the log) / log(2), so that a
weight of 1 counts 1, as do interactions of a log without weights. The age of a contact that never was is one
window more than the history has. All values are finite.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring.contact_features import SIDES, Contacts, count_contacts, end_table
from dyformer.scoring.factorisation import Factors, factorise
from dyformer.scoring.pair_features import (
    FEATURE_NAMES,
    PairFeatures,
    adamic_adar_weight,
    busier_end_first,
    check_known,
    edge_degree,
    feature_columns,
    find_edges,
    prepare_pair_features,
)

SYMMETRIC = (*FEATURE_NAMES, "log_walks_2", "log_walks_3")
CONTACTS = ("log_contacts_025", "log_contacts_1", "log_contacts_4", "log_since_contact", "fraction_of_source")
FACTORS = ("factor_product", "factor_cosine")
WITH_DIRECTION = (*CONTACTS, *FACTORS, *SIDES)
GROUPS = {
    "contacts": (*FEATURE_NAMES[:3], *CONTACTS),
    "ends": (*FEATURE_NAMES[6:], *SIDES),
    "paths": (*FEATURE_NAMES[3:6], "log_walks_2", "log_walks_3"),
    "factors": FACTORS,
}
BLOCK_PAIRS = 1 << 15


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
class LinkFeatures:
    """Summary of a history to compute features of any pair from; its size depends on edges and nodes alone."""

    pairs: PairFeatures
    edge_M: NDArray[np.int64]  # edge of each slot of the union's matrix
    step_M: NDArray[np.float64]  # S in the same slots
    contacts_DC: NDArray[np.float32]  # CONTACTS of both directions of edge after edge, then of pairs without contact
    ends_NF: NDArray[np.float32]  # SIDES of each node
    factors: Factors

    def directed(self, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float32]:
        """Give the features [P, F] of ordered pairs, in the order of `names(directed=True)`.

        Raises ValueError for a node that is not in the history.
        """
        return self._table(source_P, target_P, directed=True)

    def undirected(self, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float32]:
        """Give the features [P, F] of unordered pairs, in the order of `names(directed=False)`.

        Raises ValueError for a node that is not in the history.
        """
        return self._table(source_P, target_P, directed=False)

    def _table(
        self, source_P: NDArray[np.int64], target_P: NDArray[np.int64], *, directed: bool
    ) -> NDArray[np.float32]:
        check_known(self.pairs.edges.num_nodes, source_P, target_P)
        many_P, _ = busier_end_first(self.pairs.degree_N, source_P, target_P)
        order_P = np.argsort(many_P, kind="stable")
        table_PF = np.empty((len(source_P), len(names(directed))), dtype=np.float32)
        # Blocks bound the memory, and pairs with the same busy end stay together for the walks.
        for first in range(0, len(order_P), BLOCK_PAIRS):
            order_B = order_P[first : first + BLOCK_PAIRS]
            table_PF[order_B] = self._block(source_P[order_B], target_P[order_B], directed=directed)
        return table_PF

    def _block(
        self, source_B: NDArray[np.int64], target_B: NDArray[np.int64], *, directed: bool
    ) -> NDArray[np.float32]:
        # Filling one array is a third faster than stacking columns.
        block_BF = np.empty((len(source_B), len(names(directed))), dtype=np.float32)
        edge_B, symmetric = self._without_direction(source_B, target_B)
        for column, value_B in enumerate(symmetric):
            block_BF[:, column] = value_B
        there_BF, back_BF = np.split(block_BF[:, len(symmetric) :], 2, axis=1)
        self._fill(there_BF, source_B, target_B, edge_B)
        self._fill(back_BF, target_B, source_B, edge_B)
        if not directed:
            mean_BF = (there_BF + back_BF) / 2
            np.abs(there_BF - back_BF, out=back_BF)
            there_BF[:] = mean_BF
        return block_BF

    def _without_direction(
        self, source_B: NDArray[np.int64], target_B: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], list[NDArray[np.float64]]]:
        """Give the edge of each pair (-1: none) and the columns of SYMMETRIC; busy ends must be adjacent."""
        from dyformer.graphs.kernels.weighted_paths import weighted_path_sums  # late, as numba is slow to import

        degree_N, union = self.pairs.degree_N, self.pairs.union
        many_B, few_B = busier_end_first(degree_N, source_B, target_B)
        edge_B, sums_5B = weighted_path_sums(
            union.indptr,
            union.indices,
            self.edge_M,
            self.step_M,
            degree_N,
            adamic_adar_weight(degree_N),
            np.stack([many_B, few_B]),
        )
        l3_B = sums_5B[2] / np.sqrt(np.maximum(degree_N[many_B] * degree_N[few_B], 1))
        columns = feature_columns(self.pairs, source_B, target_B, edge_B, (sums_5B[0], sums_5B[1], l3_B))
        return edge_B, [*columns, *np.log1p(1e4 * sums_5B[3:])]

    def _fill(
        self,
        out_BF: NDArray[np.float32],
        from_B: NDArray[np.int64],
        to_B: NDArray[np.int64],
        edge_B: NDArray[np.int64],
    ) -> None:
        """Write the columns of WITH_DIRECTION for one direction of the pairs."""
        product_B = np.einsum("bk,bk->b", self.factors.left_NK[from_B], self.factors.right_NK[to_B])
        length_B = self._lengths[0][from_B] * self._lengths[1][to_B]
        cosine_B = np.divide(product_B, length_B, out=np.zeros_like(product_B), where=length_B > 0)
        contacts_BC, factors_BF, ends_BF = np.split(out_BF, [len(CONTACTS), len(CONTACTS) + len(FACTORS)], axis=1)
        contacts_BC[:] = self.contacts_DC[2 * edge_B + (from_B > to_B)]
        factors_BF[:, 0], factors_BF[:, 1] = product_B, cosine_B
        ends_BF[:] = self.ends_NF[from_B]

    @cached_property
    def _lengths(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return np.linalg.norm(self.factors.left_NK, axis=1), np.linalg.norm(self.factors.right_NK, axis=1)


def prepare_link_features(history: DynamicGraph) -> LinkFeatures:
    """Summarise a history (all steps before the predicted one) for the features of any pair.

    Raises ValueError where the history was read without its interactions.
    """
    pairs = prepare_pair_features(history)
    contacts = count_contacts(history, pairs.edges)
    row_M = np.repeat(np.arange(pairs.edges.num_nodes), np.diff(pairs.union.indptr))
    edge_M = find_edges(pairs.edges, row_M, pairs.union.indices.astype(np.int64))
    return LinkFeatures(
        pairs=pairs,
        edge_M=edge_M,
        step_M=_steps(pairs, contacts, row_M, edge_M),
        contacts_DC=_contact_table(pairs, contacts),
        ends_NF=end_table(history, pairs.edges, contacts, pairs.degree_N),
        factors=factorise(_log_contacts(pairs, contacts)),
    )


def _steps(
    pairs: PairFeatures, contacts: Contacts, row_M: NDArray[np.int64], edge_M: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Give the slots of S = D^-1/2 W D^-1/2."""
    contacts_E = contacts.decayed_HED[-1].sum(axis=1)
    root_N = np.sqrt(edge_degree(pairs.edges, contacts_E))
    # Contacts so old that they are 0 in floating point have no walks.
    inverse_N = np.divide(1, root_N, out=np.zeros_like(root_N), where=root_N > 0)
    return contacts_E[edge_M] * inverse_N[row_M] * inverse_N[pairs.union.indices]


def _contact_table(pairs: PairFeatures, contacts: Contacts) -> NDArray[np.float32]:
    sent_ED = contacts.sent_HN[-1][np.column_stack([pairs.edges.source_E, pairs.edges.target_E])]
    decayed_ED = contacts.decayed_HED[-1]
    fraction_ED = np.divide(decayed_ED, sent_ED, out=np.zeros_like(decayed_ED), where=sent_ED > 0)
    columns = [*np.log1p(contacts.decayed_HED), np.log1p(contacts.age_ED), fraction_ED]
    never_D2 = np.tile([0, 0, 0, np.log1p(pairs.edges.num_steps + 1), 0], (2, 1))
    # An edge of -1 finds the last two rows.
    return np.concatenate([np.stack(columns, axis=-1).reshape(-1, len(CONTACTS)), never_D2]).astype(np.float32)


def _log_contacts(pairs: PairFeatures, contacts: Contacts) -> sparse.csr_array:
    edges, shape = pairs.edges, pairs.union.shape
    ends = (np.concatenate([edges.source_E, edges.target_E]), np.concatenate([edges.target_E, edges.source_E]))
    matrix = sparse.csr_array((np.log1p(contacts.decayed_HED[-1]).T.ravel(), ends), shape=shape)
    matrix.eliminate_zeros()
    return matrix
