"""Interactions -> decayed contacts in continuous time, of pairs and of their ends.

N nodes    E edges of a union, source < target    R interactions    H half-lives
D directions of an edge: source to target, target to source
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dyformer.graphs.interactions import Interactions
from dyformer.graphs.snapshots import DynamicGraph, interactions_of
from dyformer.scoring.pair_features import UnionEdges, edge_degree, find_edges

HALF_LIVES = (0.25, 1.0, 4.0)  # in windows
LONG_HALF_LIFE = 16.0  # in windows; which communities there are changes more slowly than who meets whom
NUM_RECENT_STEPS = 4

SIDES = (
    "log_sent_025",
    "log_sent_1",
    "log_sent_4",
    "log_received_025",
    "log_received_1",
    "log_received_4",
    "log_since_sent",
    "log_since_received",
    "log_since_first",
    "log_partners",
    "new_link_fraction",
    "concentration",
)
"""Features of one end n. Here d_h(a, b) sums the decayed interactions from a to b (see `link_features`).

`log_sent_*` is log1p of the sum of d_h(n, m) over all nodes m, `log_received_*` that of d_h(m, n), with h 0.25, 1 and 4
windows. `log_since_*` is log1p of the age of n's newest interaction as source, of the newest as target, and of the
first of either kind. `log_partners` is log1p of the number of partners. `new_link_fraction` divides the number of n's
links in the last four steps that are new (the pair has no link in an earlier step) by the number of n's links in these
steps; 0 where there is none. `concentration` (Herfindahl) sums, over the partners, the square of the partner's fraction
of n's contacts d_4(n, m) + d_4(m, n); 0 where there is none.
"""


@dataclass(frozen=True, kw_only=True)
class Contacts:
    """Decayed contacts of each edge and each node, as of the end of a history."""

    decayed_HED: NDArray[np.float64]  # d_h of both directions of each edge
    lasting_E: NDArray[np.float64]  # d_16 of both directions together
    age_ED: NDArray[
        np.float64
    ]  # age of the newest contact in windows; one window more than the history where there is none
    sent_HN: NDArray[np.float64]  # d_h from a node to all nodes, itself included
    received_HN: NDArray[np.float64]  # d_h from all nodes to a node, itself included
    age_3N: NDArray[np.float64]  # age of the newest sent and the newest received interaction, and of the first one


def count_contacts(history: DynamicGraph, edges: UnionEdges) -> Contacts:
    """Sum and date the interactions of a history. Raises ValueError where it was read without them."""
    rows = interactions_of(history)
    num_nodes, num_edges = edges.num_nodes, len(edges.key_E)
    age_R = history.num_steps - rows.position_R
    # A unit weight counts 1 in the sums, because log1p(1) = log 2.
    weight_R = np.log2(1 + rows.weight_R)
    decayed_HR = weight_R * 0.5 ** (age_R / np.array(HALF_LIVES)[:, None])
    lasting_R = weight_R * 0.5 ** (age_R / LONG_HALF_LIFE)
    cell_R = _cells(rows, edges)
    between_R = cell_R >= 0
    never = history.num_steps + 1.0
    return Contacts(
        decayed_HED=_sums(cell_R[between_R], decayed_HR[:, between_R], 2 * num_edges).reshape(
            len(HALF_LIVES), num_edges, 2
        ),
        lasting_E=np.bincount(cell_R[between_R] // 2, lasting_R[between_R], num_edges).astype(np.float64),
        age_ED=_newest(cell_R[between_R], age_R[between_R], 2 * num_edges, never).reshape(num_edges, 2),
        sent_HN=_sums(rows.source_R, decayed_HR, num_nodes),
        received_HN=_sums(rows.target_R, decayed_HR, num_nodes),
        age_3N=_end_ages(rows, age_R, num_nodes, never),
    )


def _cells(rows: Interactions, edges: UnionEdges) -> NDArray[np.int64]:
    """Give the position of each interaction in a flat [E, D]; -1 for that of a node with itself."""
    edge_R = find_edges(edges, rows.source_R, rows.target_R)
    between_R = rows.source_R != rows.target_R
    assert (edge_R[between_R] >= 0).all(), "the interactions of a history are those of its snapshots"
    return np.where(between_R, 2 * edge_R + (rows.source_R > rows.target_R), -1)


def _sums(index_R: NDArray[np.int64], value_HR: NDArray[np.float64], num_values: int) -> NDArray[np.float64]:
    # numpy counts no rows in integers, whatever their weights.
    return np.stack([np.bincount(index_R, value_R, num_values) for value_R in value_HR]).astype(np.float64)


def _newest(
    index_R: NDArray[np.int64], age_R: NDArray[np.float64], num_values: int, never: float
) -> NDArray[np.float64]:
    age_V = np.full(num_values, never)
    age_V[index_R] = age_R  # rows are in order of time, and of several assignments the last one stays
    return age_V


def _end_ages(rows: Interactions, age_R: NDArray[np.float64], num_nodes: int, never: float) -> NDArray[np.float64]:
    end_2R = np.concatenate([rows.source_R, rows.target_R])
    age_2R = np.concatenate([age_R, age_R])
    first_N = np.zeros(num_nodes)
    np.maximum.at(first_N, end_2R, age_2R)
    first_N[np.bincount(end_2R, minlength=num_nodes) == 0] = never
    newest = (_newest(end_R, age_R, num_nodes, never) for end_R in (rows.source_R, rows.target_R))
    return np.stack([*newest, first_N])


def end_table(
    history: DynamicGraph, edges: UnionEdges, contacts: Contacts, degree_N: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Give the features of each node, [N, len(SIDES)]; `degree_N` is the number of partners."""
    columns = [
        *np.log1p(contacts.sent_HN),
        *np.log1p(contacts.received_HN),
        *np.log1p(contacts.age_3N),
        np.log1p(degree_N),
        _new_link_fraction(history, edges),
        _concentration(edges, contacts.decayed_HED[-1].sum(axis=1)),
    ]
    return np.column_stack(columns).astype(np.float32)


def newer_partners(edges: UnionEdges, age_ED: NDArray[np.float64]) -> NDArray[np.int64]:
    """Count, for both ends of each edge, the other partners of this end with a newer contact in either direction.

    Column 0 [E, 2] is of the edge's source, column 1 of its target.
    """
    age_E = age_ED.min(axis=1)
    order_E = np.argsort(age_E, kind="stable")
    end_S = np.stack([edges.source_E[order_E], edges.target_E[order_E]], axis=1).ravel()  # the newest contacts first
    # Positions of the contacts of each end in this order: a matrix divides them by ends faster than a sort.
    shape = edges.num_nodes, len(end_S)
    slot_S = sparse.csr_array(
        (np.ones(len(end_S), dtype=np.bool_), (end_S, np.arange(len(end_S)))), shape=shape
    ).indices
    end_S, age_S = end_S[slot_S], age_E[order_E[slot_S // 2]]
    position_S = np.arange(len(end_S))
    is_newer_S = np.ones(len(end_S), dtype=np.bool_)  # than the next one: contacts of one time are no newer
    is_newer_S[1:] = (end_S[1:] != end_S[:-1]) | (age_S[1:] != age_S[:-1])
    newer_S = np.maximum.accumulate(np.where(is_newer_S, position_S, 0)) - np.searchsorted(end_S, end_S)
    newer_ED = np.empty((len(age_E), 2), dtype=np.int64)
    newer_ED[order_E[slot_S // 2], slot_S % 2] = newer_S
    return newer_ED


def _new_link_fraction(history: DynamicGraph, edges: UnionEdges) -> NDArray[np.float64]:
    first_step_E = np.full(len(edges.key_E), history.num_steps + 1)
    num_links_N, num_new_N = np.zeros(edges.num_nodes), np.zeros(edges.num_nodes)
    for snapshot in reversed(history.snapshots):
        edge_X = find_edges(edges, snapshot.source_E, snapshot.target_E)
        first_step_E[edge_X] = snapshot.step
    for snapshot in history.snapshots[-NUM_RECENT_STEPS:]:
        edge_X = find_edges(edges, snapshot.source_E, snapshot.target_E)
        for end_X in (snapshot.source_E, snapshot.target_E):
            num_links_N += np.bincount(end_X, minlength=edges.num_nodes)
            num_new_N += np.bincount(end_X, first_step_E[edge_X] == snapshot.step, edges.num_nodes)
    return num_new_N / np.maximum(num_links_N, 1)


def _concentration(edges: UnionEdges, contacts_E: NDArray[np.float64]) -> NDArray[np.float64]:
    total_N = edge_degree(edges, contacts_E)
    squares_N = np.zeros(edges.num_nodes)
    for end_E in (edges.source_E, edges.target_E):
        # Fractions before squares, because the squares of old contacts may be 0.
        fraction_E = np.divide(contacts_E, total_N[end_E], out=np.zeros_like(contacts_E), where=total_N[end_E] > 0)
        squares_N += np.bincount(end_E, fraction_E**2, edges.num_nodes)
    return squares_N
