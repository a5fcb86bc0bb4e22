"""A log's steps before those that tables report -> the steps that choose settings, and a method's score on them.

R interactions in order of time
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from dyformer.embedder import Embedder
from dyformer.evaluation.fitting import fitted_vectors
from dyformer.evaluation.protocols.paper import Trial, decoded_scores
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.snapshots import DynamicGraph, interactions_of, snapshots_of
from dyformer.graphs.windows import Windows
from dyformer.sampling.pairs import evaluated_steps
from dyformer.scoring.metrics import auc

NUM_STEPS = 3  # the newest ones of the past: they are most like the reported ones


class TooShortPast(ValueError):
    """A log without a step to choose settings on before the first reported one."""


class PastSteps(NamedTuple):
    """Steps of a graph, none of them reported, on which a method is scored."""

    graph: DynamicGraph
    steps: tuple[int, ...]
    parts: int  # into how many equal parts each window of the log is cut

    def __str__(self) -> str:
        """Name the steps for a table."""
        listed = ", ".join(map(str, self.steps))
        return f"steps {listed}" + (f" of windows cut in {self.parts}" if self.parts > 1 else "")


def past_steps(past: DynamicGraph) -> PastSteps:
    """Give the newest steps of a past that can be forecast from two steps or more.

    `past` ends with the step before the first reported one, so that no choice depends on a reported step. Where it has
    no step to forecast (uci: tables begin with step 3), its windows are cut in halves, so that two steps become four.
    Raises TooShortPast.
    """
    for parts in (1, 2):
        graph = past if parts == 1 else halved(past)
        steps = evaluated_steps(graph)[-NUM_STEPS:]
        if steps:
            return PastSteps(graph, tuple(steps), parts)
    raise TooShortPast(
        f"the {past.num_steps} steps before the first reported one have too few links between known nodes to choose "
        f"settings on, even with windows of half the length: leave the method as it is"
    )


def halved(graph: DynamicGraph) -> DynamicGraph:
    """Cut each window in two at the middle of its time. Raises ValueError for a graph without interactions."""
    rows = interactions_of(graph)
    end = np.cumsum([snapshot.num_interactions for snapshot in graph.snapshots])
    first, start_time, end_time = [], [], []
    for snapshot, last in zip(graph.snapshots, end.tolist(), strict=True):
        begin = last - snapshot.num_interactions
        middle = (snapshot.start_time + snapshot.end_time) // 2
        first += [begin, begin + int(np.searchsorted(rows.time_R[begin:last], middle))]
        start_time += [snapshot.start_time, middle]
        end_time += [middle, snapshot.end_time]
    events = pl.DataFrame(
        {"source": rows.source_R, "target": rows.target_R, "time": rows.time_R, "weight": rows.weight_R}
    )
    windows = Windows(
        start_time_T=np.array(start_time),
        end_time_T=np.array(end_time),
        first_row_T=np.array(first),
        end_row_T=np.array([*first[1:], len(events)]),
    )
    cut = snapshots_of(events, np.arange(len(events)), windows)
    assert np.array_equal(cut.node_N, np.arange(len(graph.node_N)))  # both number nodes by their first appearance
    return replace(graph, snapshots=cut.snapshots, interactions=cut.interactions)


def macro_auc(
    title: str, method: Embedder, graph: DynamicGraph, steps: Sequence[int], *, config: GraphConfig, seed: int
) -> list[float]:
    """Give the AUC of a method's vectors on each step, in the paper's protocol with its decoder.

    The method is fitted on the steps before; the decoder on 40 % of the step's pairs; the others are scored.
    """
    values = []
    for step in steps:
        trial = Trial(graph=graph, step=step, seed=seed, config=config)
        vectors_ND = fitted_vectors(title, method, trial.past, seed)
        values.append(auc(trial.split.test.positive_P, decoded_scores(vectors_ND, trial)))
    return values
