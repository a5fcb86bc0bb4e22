"""The rule behind a planted log -> scores of pairs: about the best ranking that a method can give, and no baseline.

It reads the hidden groups of the week to forecast, which no method of METHODS does. A benchmark runs it where it is
named: `--methods l3,dyformer.experiments.planted_rule:PlantedRule`.

N nodes of the history    M nodes of the log    R rows    S sources of the week    P pairs
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.logs.planted import NUM_RECENT, PLANTED, PlantedLog, planted_groups, planted_rows
from dyformer.sampling.ranking_queries import NUM_PER_FAMILY
from dyformer.scoring.interfaces import LabelledStep, Score

TIE = 1e-6  # by which equal scores differ


@dataclass(frozen=True, kw_only=True)
class PlantedRule:
    """Score a pair by p / c: how often a row of the source has the target, and how often the pair is a candidate.

    p is the probability that the rule gives the target, for a row of the source in the next week; the latest partners
    are those of the end of the history, as for every method. c is the expected number of the pair among the candidates
    of the prequential protocol: NUM_PER_FAMILY random and as many typed ones of all nodes, as many drawn like the
    week's targets, and as many past partners. The order by p / c has the best AUC among these candidates (Neyman and
    Pearson, 1933). p alone does not, because a past partner is a candidate nearly always and hardly ever a target.
    Equal scores are put in a random order: the reciprocal of their mean rank would be less than their mean reciprocal.
    """

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Find the log of the history; labels have no effect. Raises ValueError."""
        planted, node_N = _planted(graph)
        probability_NN, source_S = _probabilities(graph, planted, node_N)
        past = graph.history.interactions
        assert past is not None
        partner_NN = np.zeros(probability_NN.shape, dtype=np.bool_)
        partner_NN[past.source_R, past.target_R] = partner_NN[past.target_R, past.source_R] = True
        drawn_N1 = np.minimum(1, NUM_PER_FAMILY / np.maximum(partner_NN.sum(axis=1, keepdims=True), 1))
        any_node_N = 2 / len(node_N) + probability_NN[source_S].mean(axis=0)
        ratio_NN = probability_NN / (NUM_PER_FAMILY * any_node_N + partner_NN * drawn_N1)
        ratio_NN *= 1 + TIE * np.random.default_rng(graph.until).random(ratio_NN.shape)
        return lambda source_P, target_P: ratio_NN[source_P, target_P]


def _probabilities(
    graph: PreparedGraph, planted: PlantedLog, node_N: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Give the probability of each target [N, N] for a row of each source, and the nodes that may be sources [S]."""
    group_M = planted_groups(planted)[graph.until]
    group_N = group_M[node_N]
    next_N = (group_N + planted.step) % planted.num_groups
    size_G = np.bincount(group_M, minlength=planted.num_groups)
    anyone = (1 - planted.following - planted.repeating) / planted.num_nodes
    probability_NN = anyone + planted.following * (next_N[:, None] == group_N) / size_G[next_N][:, None]
    for node, partners in _latest(graph).items():
        np.add.at(probability_NN[node], partners, planted.repeating / len(partners))
    in_season_N = group_N % planted.num_seasons == graph.until % planted.num_seasons
    return probability_NN, np.flatnonzero(in_season_N)


def _planted(graph: PreparedGraph) -> tuple[PlantedLog, NDArray[np.int64]]:
    """Give the log whose rows the history begins with, and the log's number of each node."""
    past = graph.history.interactions
    assert past is not None
    for planted in PLANTED.values():
        row_RX = np.array(list(planted_rows(planted)))[: len(past.source_R), 1:]
        node_N, first_N, number_R = np.unique(row_RX, return_index=True, return_inverse=True)
        order_N = np.argsort(first_N)  # nodes of a history are numbered by their first event
        number_RX = np.argsort(order_N)[number_R].reshape(row_RX.shape)
        if np.array_equal(number_RX, np.column_stack([past.source_R, past.target_R])):
            return planted, node_N[order_N]
    raise InvalidInput(f"the history is not that of a planted log: expected one of {', '.join(PLANTED)}")


def _latest(graph: PreparedGraph) -> dict[int, list[int]]:
    """Give the latest NUM_RECENT partners of each node of the history, of both directions."""
    past, latest = graph.history.interactions, dict[int, list[int]]()
    assert past is not None
    for source, target in zip(past.source_R.tolist(), past.target_R.tolist(), strict=True):
        for node, partner in ((source, target), (target, source)):
            latest[node] = [*latest.get(node, []), partner][-NUM_RECENT:]
    return latest
