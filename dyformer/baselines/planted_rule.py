"""The rule behind a planted log -> scores of pairs: the bound of all methods, and no baseline.

It reads the hidden groups of the week to forecast, which no method of METHODS does. A benchmark runs it where it is
named: `--methods l3,dyformer.baselines.planted_rule:PlantedRule`.

N nodes of the history    M nodes of the log    R rows    P pairs
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dyformer.embedder import LabelledStep, Score
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.logs.planted import NUM_RECENT, PLANTED, PlantedLog, planted_groups, planted_rows


class NotPlanted(ValueError):
    """A history that is no beginning of a planted log."""


@dataclass(frozen=True, kw_only=True)
class PlantedRule:
    """Score a pair by the probability that the rule gives the target, for a row of the source in the next week.

    The latest partners are those of the end of the history, as for every method; rows of the week itself replace them.
    """

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Find the log of the history; labels have no effect. Raises NotPlanted."""
        planted, node_N = _planted(graph)
        group_M = planted_groups(planted)[graph.until]
        size_G = np.bincount(group_M, minlength=planted.num_groups)
        latest = _latest(graph)
        following, repeating = planted.following, planted.repeating

        def score(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
            next_P = (group_M[node_N[source_P]] + planted.step) % planted.num_groups
            in_next_P = group_M[node_N[target_P]] == next_P
            repeat_P = [
                latest.get(source, []).count(target) / max(len(latest.get(source, [])), 1)
                for source, target in zip(source_P.tolist(), target_P.tolist(), strict=True)
            ]
            anyone = (1 - following - repeating) / planted.num_nodes
            return repeating * np.array(repeat_P) + following * in_next_P / size_G[next_P] + anyone

        return score


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
    raise NotPlanted(f"the history is not that of a planted log: expected one of {', '.join(PLANTED)}")


def _latest(graph: PreparedGraph) -> dict[int, list[int]]:
    """Give the latest NUM_RECENT partners of each node of the history, of both directions."""
    past, latest = graph.history.interactions, dict[int, list[int]]()
    assert past is not None
    for source, target in zip(past.source_R.tolist(), past.target_R.tolist(), strict=True):
        for node, partner in ((source, target), (target, source)):
            latest[node] = [*latest.get(node, []), partner][-NUM_RECENT:]
    return latest
