"""DynamicGraph -> the links of one step as ranking queries, each with negative targets of several families.

Q queries, or their sources    C candidates of a query    N nodes known one step before    R rows to draw from
L links of the step    X entries of lists    K pair keys    D candidates drawn already    S distinct pairs
U nodes to choose from
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.graphs.snapshots import DynamicGraph, interactions_of
from dyformer.sampling.pairs import Pairs, distinct, is_among, nodes_known_before, pair_keys

BLOCK_ENTRIES = 4_000_000
"""Entries of lists and of tables that are held at once."""

Lists = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Start of each node's list `[N + 1]`, and the lists' entries `[X]`."""
FAMILIES = ("random", "typed", "active", "historical", "inductive")
TRAINING_FAMILIES = ("random", "typed", "active", "historical")
NUM_PER_FAMILY = 20
MAX_QUERIES = 5_000
"""A step with more links between known nodes has so many of them as queries, chosen at random."""

DRAWING_ORDER = ("inductive", "historical", "active", "typed", "random")
"""Small pools first. `inductive` reads later steps, so the other families ignore its draws."""

QUERIES_SCHEMA = pl.Schema(
    {
        "step": pl.Int64(),
        "source": pl.Int64(),
        "target": pl.Int64(),
        "new": pl.Boolean(),
        "candidates": pl.List(pl.Int64()),
        "families": pl.List(pl.Int8()),
    }
)
LINKS_SCHEMA = pl.Schema({"step": pl.Int64(), "num_unseen_ends": pl.Int64(), "num_links": pl.Int64()})

COIN, CHOICE = len(FAMILIES), len(FAMILIES) + 1
"""Seeds of the two other random choices, beside those of the families."""


@dataclass(frozen=True, kw_only=True)
class Positives:
    """Ordered pairs that are no negatives."""

    num_nodes: int
    key_K: NDArray[np.int64]  # source * num_nodes + target, sorted


def lists_of(key_K: NDArray[np.int64], num_nodes: int) -> Lists:
    """Read sorted keys source * num_nodes + target as the list of targets of each source."""
    return np.searchsorted(key_K, np.arange(num_nodes + 1) * num_nodes), key_K % num_nodes


def choose_of_pool(
    source_Q: NDArray[np.int64],
    pool_R: NDArray[np.int64],
    num: int,
    drawn_QD: NDArray[np.int64],
    positives: Positives,
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw `num` different nodes of the pool for each source [Q, num], one after the other.

    A node is drawn in proportion to its rows in the pool. Left out are the source, its positive targets, and the nodes
    of `drawn_QD`. A source with fewer nodes left has -1 at the end.
    """
    candidate_QC = np.full((len(source_Q), num), -1)
    if not len(source_Q) or not len(pool_R):
        return candidate_QC
    draw_QR = pool_R[generator.integers(len(pool_R), size=(len(source_Q), 2 * num + 10))]
    wanted_QR = _first_of_row(np.hstack([drawn_QD, draw_QR]))[:, drawn_QD.shape[1] :]
    key_QR = source_Q[:, None] * positives.num_nodes + draw_QR
    wanted_QR &= ~is_among(key_QR.ravel(), positives.key_K).reshape(key_QR.shape) & (draw_QR != source_Q[:, None])
    number_QR = np.cumsum(wanted_QR, axis=1) - 1
    row_X, column_X = np.nonzero(wanted_QR & (number_QR < num))
    candidate_QC[row_X, number_QR[row_X, column_X]] = draw_QR[row_X, column_X]
    # Few sources are still short: all nodes that are left get a key, whose order is that of drawing on.
    rest_Q = np.flatnonzero(candidate_QC[:, -1] < 0)
    node_U, count_U = np.unique(pool_R, return_counts=True)
    for short_Q in _blocks(rest_Q, np.full(len(rest_Q), positives.num_nodes)):
        left_QN = _left_over(source_Q[short_Q], np.hstack([drawn_QD[short_Q], candidate_QC[short_Q]]), positives)
        key_QU = generator.exponential(size=(len(short_Q), len(node_U))) / count_U
        key_QU[~left_QN[:, node_U]] = np.inf
        candidate_QC[short_Q] = _filled(candidate_QC[short_Q], node_U, key_QU)
    return candidate_QC


def _first_of_row(node_QX: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the first of equal nodes in each row."""
    order_QX = np.argsort(node_QX, axis=1, kind="stable")
    sorted_QX = np.take_along_axis(node_QX, order_QX, axis=1)
    first_QX = np.ones(node_QX.shape, dtype=np.bool_)
    first_QX[:, 1:] = sorted_QX[:, 1:] != sorted_QX[:, :-1]
    marked_QX = np.empty_like(first_QX)
    np.put_along_axis(marked_QX, order_QX, first_QX, axis=1)
    return marked_QX


def _left_over(source_Q: NDArray[np.int64], drawn_QD: NDArray[np.int64], positives: Positives) -> NDArray[np.bool_]:
    """Mark the nodes [Q, N] that a source may still draw."""
    left_QN = np.ones((len(source_Q), positives.num_nodes + 1), dtype=np.bool_)  # padding, -1, marks the last column
    np.put_along_axis(left_QN, drawn_QD, values=False, axis=1)
    left_QN[np.arange(len(source_Q)), source_Q] = False
    row_X, target_X = _expanded(source_Q, lists_of(positives.key_K, positives.num_nodes))
    left_QN[row_X, target_X] = False
    return left_QN[:, :-1]


def _filled(
    candidate_QC: NDArray[np.int64], node_U: NDArray[np.int64], key_QU: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Put the nodes of the smallest finite keys behind the candidates of each query."""
    num = min(candidate_QC.shape[1], len(node_U))
    best_QC = np.argpartition(key_QU, num - 1, axis=1)[:, :num]
    best_QC = np.take_along_axis(best_QC, np.argsort(np.take_along_axis(key_QU, best_QC, axis=1), axis=1), axis=1)
    more_QC = np.where(np.isfinite(np.take_along_axis(key_QU, best_QC, axis=1)), node_U[best_QC], -1)
    both_QX = np.hstack([candidate_QC, more_QC])
    order_QX = np.argsort(both_QX < 0, axis=1, kind="stable")  # padding goes to the end
    return np.take_along_axis(both_QX, order_QX, axis=1)[:, : candidate_QC.shape[1]]


def choose_of_lists(
    source_Q: NDArray[np.int64], lists: Lists, num: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Draw `num` different nodes of each source's list [Q, num], all equally likely; -1 where it is shorter."""
    candidate_QC = np.full((len(source_Q), num), -1)
    for block_Q in _blocks(np.arange(len(source_Q)), lists[0][source_Q + 1] - lists[0][source_Q]):
        row_X, node_X = _expanded(source_Q[block_Q], lists)
        node_X = node_X[np.lexsort((generator.random(len(row_X)), row_X))]
        number_X = np.arange(len(row_X)) - np.searchsorted(row_X, row_X)
        chosen_X = number_X < num
        candidate_QC[block_Q[row_X[chosen_X]], number_X[chosen_X]] = node_X[chosen_X]
    return candidate_QC


def _expanded(source_Q: NDArray[np.int64], lists: Lists) -> Pairs:
    """Give the entries of the lists of these sources: the position of the source, and the entry."""
    start_N, entry_X = lists
    size_Q = start_N[source_Q + 1] - start_N[source_Q]
    row_X = np.repeat(np.arange(len(source_Q)), size_Q)
    offset_X = np.arange(len(row_X)) - np.repeat(np.cumsum(size_Q) - size_Q, size_Q)
    return row_X, entry_X[start_N[source_Q][row_X] + offset_X]


def _blocks(row_Q: NDArray[np.int64], size_Q: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Split rows into blocks of about BLOCK_ENTRIES entries."""
    block_Q = np.cumsum(size_Q) // BLOCK_ENTRIES
    return iter(np.split(row_Q, np.flatnonzero(np.diff(block_Q)) + 1)) if len(row_Q) else iter(())


@dataclass(frozen=True, kw_only=True)
class QueryPairs:
    """The distinct ordered pairs of queries, sorted: a method scores each of them once."""

    source_S: NDArray[np.int64]
    target_S: NDArray[np.int64]
    position_Q: NDArray[np.int64]  # of the true pair
    position_QC: NDArray[np.int64]  # of the candidates' pairs; that of the true pair where the candidate is padding


@dataclass(frozen=True, kw_only=True)
class RankingQueries:
    """Queries of one step: a source, its true target, and candidates that are negative for this source.

    The columns of `candidate_QC` are grouped by family. A query with fewer candidates has -1 in both tables.
    """

    step: int
    source_Q: NDArray[np.int64]  # queries are sorted by (source, target), and distinct
    target_Q: NDArray[np.int64]
    new_Q: NDArray[np.bool_]  # in no earlier step, in neither direction
    candidate_QC: NDArray[np.int64]
    family_QC: NDArray[np.int8]  # index into FAMILIES
    num_links_3: tuple[
        int, int, int
    ]  # links of the step with 0, 1, 2 ends not known before; only the first can be queries

    @cached_property
    def pairs(self) -> "QueryPairs":
        """The distinct pairs to score, and the position of each query's and candidate's pair among them."""
        valid_QC = self.candidate_QC >= 0
        size = 1 + max((int(node.max(initial=0)) for node in (self.target_Q, self.candidate_QC)), default=0)
        key_QC = self.source_Q[:, None] * size + np.where(valid_QC, self.candidate_QC, self.target_Q[:, None])
        key_Q = self.source_Q * size + self.target_Q
        key_S = distinct(np.concatenate([key_Q, key_QC.ravel()]))
        return QueryPairs(
            source_S=key_S // size,
            target_S=key_S % size,
            position_Q=np.searchsorted(key_S, key_Q),
            position_QC=np.searchsorted(key_S, key_QC),
        )

    @property
    def coverage(self) -> float:
        """Fraction of the step's links that can be scored at all; NaN in a step without links."""
        return self.num_links_3[0] / sum(self.num_links_3) if sum(self.num_links_3) else np.nan


@dataclass(frozen=True, kw_only=True)
class _Step:
    """What all families read: the step's links between known nodes, and the pairs of the past."""

    num_nodes: int  # known one step before
    side_N: NDArray[np.int8]
    source_Q: NDArray[np.int64]
    target_Q: NDArray[np.int64]
    end_R: NDArray[np.int64]  # targets of all links between known nodes; both ends of undirected ones
    positives: Positives  # both directions of an undirected link
    linked_key_K: NDArray[np.int64]  # sorted undirected keys of the pairs with an interaction in the step
    past_key_K: NDArray[np.int64]  # the same of all earlier steps
    received_N: NDArray[np.bool_]  # was a target at this step or earlier


def ranking_queries(
    graph: DynamicGraph,
    step: int,
    *,
    seed: int,
    num_per_family: int = NUM_PER_FAMILY,
    families: Sequence[str] = FAMILIES,
    max_queries: int = MAX_QUERIES,
) -> RankingQueries:
    """Give the queries of `step`: its distinct links between known, different nodes, with negative targets.

    A link is an ordered pair source -> target. In an undirected graph (`graph.directed`) it is unordered, and a coin
    decides which end is the source. Candidates of a query are distinct, differ from the source, and are no target of
    the source in this step:

    - random: uniform over known nodes.
    - typed: uniform over possible partners. On a bipartite log these are the nodes of the other side, else those that
      were a target at this step or earlier (in an undirected graph: either end).
    - active: drawn like the targets of this step's links between known nodes, so that popularity does not help. On a
      bipartite log they lie on the other side.
    - historical: uniform over the past partners of the source, in either direction, that have no interaction with it
      in this step.
    - inductive: uniform over the known nodes to which the source links for the first time after this step. The graph
      must hold later steps; the family is for evaluation, never for training.

    A node that one family has drawn is left out of the next, in DRAWING_ORDER; `inductive` stands by itself. Each
    family has `num_per_family` columns. Of more than `max_queries` links, so many are chosen at random. The result
    depends on the graph up to `step`, the step and the arguments alone, except for `inductive`.

    Raises ValueError for a step out of range, an unknown family, and a graph without interactions.
    """
    _check(num_per_family, families)
    links, num_links_3 = _known_links(graph, step, seed)
    chosen_Q = np.sort(np.random.default_rng([seed, step, CHOICE]).permutation(len(links[0]))[:max_queries])
    state = _read_step(graph, step, links, chosen_Q)
    candidate_of: dict[str, NDArray[np.int64]] = {}
    drawn_QD = np.empty((len(state.source_Q), 0), dtype=np.int64)
    for family in (name for name in DRAWING_ORDER if name in families):
        generator = np.random.default_rng([seed, step, FAMILIES.index(family)])
        if family == "inductive":
            lists = _future_targets(graph, step, state)
            candidate_of[family] = choose_of_lists(state.source_Q, lists, num_per_family, generator)
            continue
        if family == "historical":
            candidate_QC = choose_of_lists(state.source_Q, _past_partners(state), num_per_family, generator)
        else:
            candidate_QC = np.full((len(state.source_Q), num_per_family), -1)
            for row_Q, pool_R in _pools(state, family):
                candidate_QC[row_Q] = choose_of_pool(
                    state.source_Q[row_Q], pool_R, num_per_family, drawn_QD[row_Q], state.positives, generator
                )
        candidate_of[family] = candidate_QC
        drawn_QD = np.hstack([drawn_QD, candidate_QC])
    return _queries(step, state, candidate_of, num_links_3)


def _queries(
    step: int, state: _Step, candidate_of: dict[str, NDArray[np.int64]], num_links_3: tuple[int, int, int]
) -> RankingQueries:
    ordered = [name for name in FAMILIES if name in candidate_of]
    candidate_QC = np.hstack([candidate_of[name] for name in ordered])
    family_C = np.repeat([FAMILIES.index(name) for name in ordered], [candidate_of[name].shape[1] for name in ordered])
    return RankingQueries(
        step=step,
        source_Q=state.source_Q,
        target_Q=state.target_Q,
        new_Q=~is_among(pair_keys(state.num_nodes, state.source_Q, state.target_Q), state.past_key_K),
        candidate_QC=candidate_QC,
        family_QC=np.where(candidate_QC < 0, -1, family_C).astype(np.int8),
        num_links_3=num_links_3,
    )


def _check(num_per_family: int, families: Sequence[str]) -> None:
    unknown = [name for name in families if name not in FAMILIES]
    if unknown or not families:
        raise InvalidInput(f"families {', '.join(unknown) or 'none'}: expected some of {', '.join(FAMILIES)}")
    if num_per_family < 1:
        raise InvalidInput(f"{num_per_family} candidates of each family: expected at least 1")


def step_pairs(graph: DynamicGraph, step: int) -> Pairs:
    """Give the ends of the interactions of a step, in order of time, without those of a node with itself."""
    interactions = interactions_of(graph)
    first = sum(snapshot.num_interactions for snapshot in graph.snapshots[: step - 1])
    rows = slice(first, first + graph.snapshots[step - 1].num_interactions)
    source_R, target_R = interactions.source_R[rows], interactions.target_R[rows]
    differs_R = source_R != target_R
    return source_R[differs_R], target_R[differs_R]


def _known_links(graph: DynamicGraph, step: int, seed: int) -> tuple[Pairs, tuple[int, int, int]]:
    """Give the step's links between known nodes, and the numbers of its links with 0, 1 and 2 unknown ends."""
    num_known, num_nodes = nodes_known_before(graph, step), graph.snapshots[step - 1].num_nodes
    source_R, target_R = step_pairs(graph, step)
    if not graph.directed:
        source_R, target_R = np.minimum(source_R, target_R), np.maximum(source_R, target_R)
    source_L, target_L = np.divmod(distinct(source_R * num_nodes + target_R), num_nodes)
    num_unknown_L = (source_L >= num_known).astype(np.int64) + (target_L >= num_known)
    counts = np.bincount(num_unknown_L, minlength=3)
    source_L, target_L = source_L[num_unknown_L == 0], target_L[num_unknown_L == 0]
    if not graph.directed:
        swapped_L = np.random.default_rng([seed, step, COIN]).random(len(source_L)) < 0.5
        source_L, target_L = np.where(swapped_L, target_L, source_L), np.where(swapped_L, source_L, target_L)
        order_L = np.lexsort((target_L, source_L))
        source_L, target_L = source_L[order_L], target_L[order_L]
    return (source_L, target_L), (int(counts[0]), int(counts[1]), int(counts[2]))


def _read_step(graph: DynamicGraph, step: int, links: Pairs, chosen_Q: NDArray[np.int64]) -> _Step:
    num_nodes = nodes_known_before(graph, step)
    until = sum(snapshot.num_interactions for snapshot in graph.snapshots[:step])
    num_past = until - graph.snapshots[step - 1].num_interactions
    interactions = interactions_of(graph)
    source_R, target_R = interactions.source_R[:until], interactions.target_R[:until]
    past = _without_loops(source_R[:num_past], target_R[:num_past], num_nodes)
    here = _without_loops(source_R[num_past:], target_R[num_past:], num_nodes)
    received_N = np.zeros(num_nodes, dtype=np.bool_)
    for source_X, target_X in (past, here):
        received_N[target_X] = True
        if not graph.directed:
            received_N[source_X] = True
    positive_key_K = [links[0] * num_nodes + links[1]]
    if not graph.directed:
        positive_key_K.append(links[1] * num_nodes + links[0])
    return _Step(
        num_nodes=num_nodes,
        side_N=graph.side_N[:num_nodes],
        source_Q=links[0][chosen_Q],
        target_Q=links[1][chosen_Q],
        end_R=links[1] if graph.directed else np.concatenate(links),
        positives=Positives(num_nodes=num_nodes, key_K=distinct(np.concatenate(positive_key_K))),
        linked_key_K=distinct(pair_keys(num_nodes, *here)),
        past_key_K=distinct(pair_keys(num_nodes, *past)),
        received_N=received_N,
    )


def _without_loops(source_R: NDArray[np.int64], target_R: NDArray[np.int64], num_nodes: int) -> Pairs:
    wanted_R = (source_R != target_R) & (np.maximum(source_R, target_R) < num_nodes)
    return source_R[wanted_R], target_R[wanted_R]


def _pools(state: _Step, family: str) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Give queries and the nodes that their candidates are drawn from, a node as often as it is to be drawn."""
    row_Q = np.arange(len(state.source_Q))
    if family == "random":
        yield row_Q, np.arange(state.num_nodes)
        return
    pool_R = np.sort(state.end_R) if family == "active" else np.flatnonzero(state.received_N)
    if not state.side_N.any():
        yield row_Q, pool_R
        return
    if family == "typed":
        pool_R = np.arange(state.num_nodes)
    for side in (0, 1):
        yield row_Q[state.side_N[state.source_Q] == side], pool_R[state.side_N[pool_R] != side]


def _past_partners(state: _Step) -> Lists:
    key_K = state.past_key_K[~is_among(state.past_key_K, state.linked_key_K)]
    source_K, target_K = np.divmod(key_K, state.num_nodes)
    return lists_of(np.sort(np.concatenate([key_K, target_K * state.num_nodes + source_K])), state.num_nodes)


def _future_targets(graph: DynamicGraph, step: int, state: _Step) -> Lists:
    until = sum(snapshot.num_interactions for snapshot in graph.snapshots[:step])
    interactions, num_nodes = interactions_of(graph), state.num_nodes
    source_X, target_X = _without_loops(interactions.source_R[until:], interactions.target_R[until:], num_nodes)
    if not graph.directed:
        source_X, target_X = np.concatenate([source_X, target_X]), np.concatenate([target_X, source_X])
    pair_X = pair_keys(num_nodes, source_X, target_X)
    first_X = ~is_among(pair_X, state.past_key_K) & ~is_among(pair_X, state.linked_key_K)
    return lists_of(distinct((source_X * num_nodes + target_X)[first_X]), num_nodes)


def queries_to_tables(queries: RankingQueries) -> dict[str, pl.DataFrame]:
    """Give queries as the tables queries (a row each, candidates as lists) and links (numbers of the step's links)."""
    drawn = {"candidates": queries.candidate_QC.tolist(), "families": queries.family_QC.tolist()}
    columns = {"source": queries.source_Q, "target": queries.target_Q, "new": queries.new_Q}
    rows = pl.DataFrame(
        {"step": np.full(len(queries.source_Q), queries.step), **columns, **drawn}, schema=QUERIES_SCHEMA
    )
    links = {"step": [queries.step] * 3, "num_unseen_ends": range(3), "num_links": queries.num_links_3}
    return {"queries": rows, "links": pl.DataFrame(links, schema=LINKS_SCHEMA)}


def queries_from_tables(tables: Mapping[str, pl.DataFrame]) -> RankingQueries:
    """Read the tables of queries_to_tables."""
    rows, links = tables["queries"], tables["links"].sort("num_unseen_ends")
    none, one, two = links["num_links"].to_list()
    shape = (rows.height, -1 if rows.height else 0)
    return RankingQueries(
        step=links["step"][0],
        source_Q=rows["source"].to_numpy(),
        target_Q=rows["target"].to_numpy(),
        new_Q=rows["new"].to_numpy(),
        candidate_QC=np.array(rows["candidates"].to_list(), dtype=np.int64).reshape(shape),
        family_QC=np.array(rows["families"].to_list(), dtype=np.int8).reshape(shape),
        num_links_3=(none, one, two),
    )
