"""Fitted methods and the pairs of stage 1 -> each node's ten best partners, and how many of them come.

R retrieved pairs    P best partners of all nodes    L links of a step    A nodes
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.evaluation.bootstrap import NodeResamples
from dyformer.evaluation.first_stage import CandidatesOf, fit_retrieval, linked_in, ordered, retrieved_pairs
from dyformer.evaluation.fitting import checked_scores
from dyformer.evaluation.query_slices import KNOWN, num_partners
from dyformer.evaluation.rows import Cell, Measured, Run, means, pair_weights
from dyformer.evaluation.scored_queries import RankingTrial
from dyformer.graphs.snapshots import DynamicGraph, prefix
from dyformer.sampling.pairs import is_among, nodes_known_before
from dyformer.sampling.ranking_queries import step_pairs
from dyformer.scoring.interfaces import Score
from dyformer.scoring.retrieval import Retrieved, best_of_nodes

PUBLISHED = "published"
"""In the place of a family of negatives: all pairs that a forecast chooses from."""

BUSIEST = "busiest"
NUM_PARTNERS = 10
FIRST = (1, 2, 5, NUM_PARTNERS)  # precision is that of so many best partners
NUM_DRAWN, NUM_BUSIEST = 500, 100  # nodes, of a graph with more

RETRIEVED_SCHEMA = pl.Schema({"node": pl.Int64(), "partner": pl.Int64(), "linked_before": pl.Boolean()})
PARTNERS_SCHEMA = pl.Schema(
    {
        "method": pl.String(),
        "seed": pl.Int64(),
        "step": pl.Int64(),
        "node": pl.Int64(),
        "rank": pl.Int64(),
        "partner": pl.Int64(),
    }
)


class Nodes(NamedTuple):
    """The nodes whose best partners are evaluated, by slice."""

    known_A: NDArray[np.int64]  # drawn from all nodes with a link
    busiest_A: NDArray[np.int64]  # with the most past partners


def evaluated_nodes(history: DynamicGraph, *, seed: int) -> Nodes:
    """Draw the nodes to evaluate, and give the busiest ones; ties go to the first nodes."""
    degree_N = num_partners(history.snapshots)
    linked_A = np.flatnonzero(degree_N)
    drawn_A = np.random.default_rng([seed, history.num_steps]).permutation(linked_A)[:NUM_DRAWN]
    return Nodes(np.sort(drawn_A), np.sort(np.argsort(-degree_N, kind="stable")[:NUM_BUSIEST]))


def retrieved_of(trial: RankingTrial, candidates_of: CandidatesOf | None = None) -> Retrieved:
    """Give the pairs of stage 1 of the evaluated nodes: the same for all methods of a trial."""
    nodes = np.union1d(*evaluated_nodes(trial.past.history, seed=trial.seed))
    return retrieved_pairs(trial.past, fit_retrieval(trial.sampled), nodes, candidates_of)


def best_partners(name: str, trial: RankingTrial, retrieved: Retrieved, score_pairs: Score) -> pl.DataFrame:
    """Give each node's NUM_PARTNERS best retrieved partners, with the columns of PARTNERS_SCHEMA.

    Raises ValueError for a wrong number of scores, and for scores that are not finite.
    """
    scores = score_pairs(*ordered(trial.past.history, retrieved))
    score_R = checked_scores(name, scores, len(retrieved.node_R), trial.queries.step)
    best_R, rank_R = best_of_nodes(retrieved.node_R, retrieved.partner_R, score_R, NUM_PARTNERS)
    columns = {"node": retrieved.node_R[best_R], "rank": rank_R, "partner": retrieved.partner_R[best_R]}
    keys = {"method": name, "seed": trial.seed, "step": trial.queries.step}
    return pl.DataFrame(columns).select(
        *(pl.lit(value, PARTNERS_SCHEMA[key]).alias(key) for key, value in keys.items()), *columns
    )


def partner_metrics(
    partners: pl.DataFrame, graph: DynamicGraph, resamples: NodeResamples
) -> dict[Run, dict[Cell, Measured]]:
    """Give precision and recall of the best partners of one step, for the drawn nodes and for the busiest ones.

    `precision_at_1` to `precision_at_10`: the fraction of so many best partners that are linked with the node in the
    step, the partner being the target (for a node of the second side, the source). `recall_at_10`: the fraction of the
    nodes' links with known nodes that are among the best partners. `graph` ends with the evaluated step. `resamples`
    have the nodes of `partners`, and those of `link_ends`.
    """
    step = graph.num_steps
    nodes = evaluated_nodes(prefix(graph, step - 1), seed=partners["seed"][0])
    links = _links_by_slice(graph, nodes)
    # Once for all methods and as float64, because a product with other weights would convert them for each.
    weights = {part: pair_weights(resamples, *ends).astype(np.float64) for part, ends in links.items()}
    metrics: dict[Run, dict[Cell, Measured]] = {}
    for (method, seed), rows in partners.group_by("method", "seed", maintain_order=True):
        node_P, partner_P, rank_P = (rows[name].to_numpy() for name in ("node", "partner", "rank"))
        came_P = linked_in(graph, step, *_ordered(graph, node_P, partner_P)).astype(np.float64)
        key_P = np.sort(node_P * len(graph.side_N) + partner_P)
        cells = metrics.setdefault((str(method), int(str(seed))), {})
        for part, node_A in ((KNOWN, nodes.known_A), (BUSIEST, nodes.busiest_A)):
            node_L, partner_L = links[part]
            among_L = is_among(node_L * len(graph.side_N) + partner_L, key_P).astype(np.float64)
            if len(among_L):
                [cells["recall_at_10", PUBLISHED, part]] = means(among_L[:, None], weights[part])
            own_P = np.isin(node_P, node_A)
            weight_BP = pair_weights(resamples, node_P[own_P], partner_P[own_P]).astype(np.float64)
            for k, precision in _precisions(came_P[own_P], rank_P[own_P], weight_BP).items():
                cells[f"precision_at_{k}", PUBLISHED, part] = precision
    return metrics


def _precisions(
    came_P: NDArray[np.float64], rank_P: NDArray[np.int64], weight_BP: NDArray[np.float64]
) -> dict[int, Measured]:
    """Give the precision of so many best partners as FIRST has, by one product; none where nobody has a partner."""
    if not len(came_P):
        return {}
    is_among_PK = rank_P[:, None] <= np.array(FIRST)
    # Sums of whole numbers are exact in any order.
    total_BK, count_BK = np.hsplit(weight_BP @ np.hstack([came_P[:, None] * is_among_PK, is_among_PK]), 2)
    total_K, num_K = came_P @ is_among_PK, is_among_PK.sum(axis=0)
    with np.errstate(invalid="ignore"):  # a resample without any of the pairs is NaN
        value_BK = total_BK / count_BK
    return {
        k: Measured(
            float(total / num), int(num), value_BK[:, column], float(total), total_BK[:, column], count_BK[:, column]
        )
        for column, (k, total, num) in enumerate(zip(FIRST, total_K, num_K, strict=True))
    }


def retrieved_links(retrieved: pl.DataFrame, graph: DynamicGraph, *, seed: int) -> tuple[int, int]:
    """Count the drawn nodes' links of the newest step whose pair stage 1 retrieved, and all of them."""
    nodes = evaluated_nodes(prefix(graph, graph.num_steps - 1), seed=seed)
    node_L, partner_L = _links(graph, nodes.known_A)
    key_R = np.sort(retrieved["node"].to_numpy() * len(graph.side_N) + retrieved["partner"].to_numpy())
    return int(is_among(node_L * len(graph.side_N) + partner_L, key_R).sum()), len(node_L)


def retrieved_table(retrieved: Retrieved) -> pl.DataFrame:
    """Give retrieved pairs with the columns of RETRIEVED_SCHEMA."""
    return pl.DataFrame(dict(zip(RETRIEVED_SCHEMA, retrieved[:3], strict=True)), schema=RETRIEVED_SCHEMA)


def merged(
    *measured: Mapping[Run, Mapping[Cell, Measured]],
) -> dict[Run, dict[Cell, Measured]]:
    """Put the metrics of the same runs together."""
    metrics: dict[Run, dict[Cell, Measured]] = {}
    for outcome in measured:
        for run, cells in outcome.items():
            metrics.setdefault(run, {}).update(cells)
    return metrics


def _ordered(graph: DynamicGraph, node_P: NDArray[np.int64], partner_P: NDArray[np.int64]) -> Sequence[NDArray]:
    return ordered(graph, Retrieved(node_P, partner_P, np.zeros(len(node_P), dtype=np.bool_)))


def link_ends(graph: DynamicGraph, *, seed: int) -> list[NDArray[np.int64]]:
    """Give the nodes of all links of the newest step that `recall_at_10` counts, which are resampled."""
    nodes = evaluated_nodes(prefix(graph, graph.num_steps - 1), seed=seed)
    return [end_L for links in _links_by_slice(graph, nodes).values() for end_L in links]


def _links_by_slice(graph: DynamicGraph, nodes: Nodes) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    return {part: _links(graph, node_A) for part, node_A in ((KNOWN, nodes.known_A), (BUSIEST, nodes.busiest_A))}


def _links(graph: DynamicGraph, node_A: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give the links of the newest step between known nodes as node and partner, for the given nodes."""
    num_known, size = nodes_known_before(graph, graph.num_steps), len(graph.side_N)
    source_R, target_R = step_pairs(graph, graph.num_steps)
    known_R = np.maximum(source_R, target_R) < num_known
    ends = [(source_R[known_R], target_R[known_R])]
    if graph.side_N.any() or not graph.directed:  # both ends have the other one as a partner
        ends.append((target_R[known_R], source_R[known_R]))
    key_L = np.unique(np.concatenate([node_X * size + partner_X for node_X, partner_X in ends]))
    node_L, partner_L = key_L // size, key_L % size
    own_L = np.isin(node_L, node_A)
    return node_L[own_L], partner_L[own_L]
