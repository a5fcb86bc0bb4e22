"""Labelled pairs and a history -> the pairs of the first stage: some hundreds of partners of each node.

P pairs    R retrieved pairs    A query nodes
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.pairs import Pairs, is_among
from dyformer.sampling.ranking_queries import step_pairs
from dyformer.scoring.decoder import LinkDecoder, fit_decoder
from dyformer.scoring.interfaces import LabelledStep
from dyformer.scoring.labelled_tables import labelled_pair_features, pair_features, stacked
from dyformer.scoring.retrieval import MAX_NODES, Retrieved, WalksOf, retrieve

CandidatesOf = Callable[[PreparedGraph, NDArray[np.int64] | None], Pairs]
"""A large graph and query nodes (None: all) -> the pairs among which stage 1 chooses."""

MAX_RETRIEVED = 2_000_000  # pairs of all nodes; scoring a million takes ten seconds or so
NUM_RETRIEVED = (100, 400)  # at least and at most so many new partners of a node, and so many past ones
FEWEST_OF_LARGE = 30  # at least so many on a graph with more than MAX_NODES nodes


def fit_retrieval(labelled: Sequence[LabelledStep]) -> LinkDecoder:
    """Fit the linear score of stage 1, a logistic regression on the pair features."""
    table = stacked(*map(labelled_pair_features, labelled))
    return fit_decoder(table.inputs_PF, table.positive_P, weight_P=table.weight_P)


def retrieved_pairs(
    past: PreparedGraph,
    retrieval: LinkDecoder,
    query_A: NDArray[np.int64] | None = None,
    candidates_of: CandidatesOf | None = None,
    *,
    at_least: int = 0,
    as_large: bool = False,
    walks_of: WalksOf | None = None,
) -> Retrieved:
    """Give the pairs of stage 1 of all nodes, or of `query_A`: new partners of each, `at_least` so many, and past ones.

    `as_large` is for a graph that is to be treated as one of more than MAX_NODES nodes: candidates alone are compared,
    and where `walks_of` is given, by the walks that it gives.
    """
    num_nodes = past.history.snapshots[-1].num_nodes
    side_N = past.history.side_N[:num_nodes]
    candidates, (fewest, most) = None, NUM_RETRIEVED
    if as_large or num_nodes > MAX_NODES:
        fewest = FEWEST_OF_LARGE
        candidates = None if candidates_of is None else partial(candidates_of, past, query_A)
    k = max(int(np.clip(MAX_RETRIEVED // max(num_nodes, 1), fewest, most)), at_least)
    features = pair_features(past)
    return retrieve(features, retrieval, side_N, k=k, candidates_of=candidates, query_A=query_A, walks_of=walks_of)


def ordered(history: DynamicGraph, retrieved: Retrieved) -> Pairs:
    """Give retrieved pairs as source and target: the node is the source, unless it is of the second side."""
    is_target_R = history.side_N[retrieved.node_R] == 1
    source_R = np.where(is_target_R, retrieved.partner_R, retrieved.node_R)
    return source_R, np.where(is_target_R, retrieved.node_R, retrieved.partner_R)


def linked_in(graph: DynamicGraph, step: int, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray:
    """Check for each pair [P] whether the step has an interaction source -> target; either way if undirected."""
    num_nodes = graph.snapshots[step - 1].num_nodes
    source_R, target_R = step_pairs(graph, step)
    key_R = [source_R * num_nodes + target_R]
    if not graph.directed:
        key_R.append(target_R * num_nodes + source_R)
    return is_among(source_P * num_nodes + target_P, np.unique(np.concatenate(key_R)))
