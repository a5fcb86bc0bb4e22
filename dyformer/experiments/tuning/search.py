"""A grid and the score of a point -> the points that a search tries, each with its score.

The score is that of a method on the steps of a log before those that tables report.

R interactions in order of time
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from dyformer import InvalidInput
from dyformer.evaluation.fitting import fitted_vectors
from dyformer.evaluation.protocols.paper import Trial, decoded_scores
from dyformer.experiments.tuning.grids import Settings
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.snapshots import DynamicGraph, interactions_of, snapshots_of
from dyformer.graphs.windows import Windows
from dyformer.sampling.pairs import evaluated_steps
from dyformer.scoring.interfaces import Embedder
from dyformer.scoring.metrics import auc


class Tried(NamedTuple):
    """A point of a grid, and its score: a higher one is better, and NaN is that of a training that diverged."""

    settings: dict[str, Any]
    score: float


def points_of(grid: Mapping[str, tuple[Any, ...]], usual: Settings, num_trials: int) -> list[dict[str, Any]] | None:
    """List the points of a grid, `usual` first; None for more points than trials, which Optuna chooses.

    Raises ValueError where Optuna would choose and is not installed.
    """
    points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    listed = [dict(usual), *(point for point in points if point != usual)]
    if len(listed) <= num_trials:
        return listed
    if find_spec("optuna") is None:
        raise InvalidInput(
            "a search of more points than trials needs Optuna: `pip install dyformer[tuning]`, or give more trials"
        )
    return None


def search(
    grid: Mapping[str, tuple[Any, ...]],
    usual: Settings,
    score: Callable[[dict[str, Any]], float],
    *,
    num_trials: int,
    seed: int,
) -> Iterator[Tried]:
    """Score points of a grid and yield each: all of them, or `num_trials` where there are more.

    The first is `usual`. Of a grid with more points the others are those of the tree-structured Parzen estimator
    (Bergstra et al., 2011; Optuna's), whose first ten draws are random and whose choices depend on the seed and the
    scores alone: a search that starts again with known scores tries the same points. No point is tried twice; one with
    the score NaN counts as a trial. Raises as points_of does.
    """
    listed = points_of(grid, usual, num_trials)
    if listed is not None:
        yield from (Tried(point, score(point)) for point in listed)
        return
    yield (first := Tried(dict(usual), score(dict(usual))))
    study, draws = _study(grid, seed)
    tried = {tuple(usual.values()): first}
    if all(usual[name] in values for name, values in grid.items()):  # a changed experiment may have other values
        study.enqueue_trial(dict(usual))

    def objective(trial: Any) -> float:
        point = {name: draw(trial) for name, draw in draws.items()}
        key = tuple(point.values())
        if key not in tried:
            tried[key] = Tried(point, score(point))
        return tried[key].score

    while len(tried) < num_trials:
        num_before = len(tried)
        study.optimize(objective, n_trials=1)
        yield from list(tried.values())[num_before:]


def best(tried: list[Tried]) -> Tried:
    """Return the point with the best score, of equal ones the first: usual settings stay where none are better.

    Raises ValueError where every training has diverged.
    """
    scored = [trial for trial in tried if not np.isnan(trial.score)]
    if not scored:
        raise InvalidInput(f"all {len(tried)} points of the grid diverged, the usual settings too: nothing is chosen")
    return max(scored, key=lambda each: each.score)


def _study(grid: Mapping[str, tuple[Any, ...]], seed: int) -> tuple[Any, dict[str, Callable[[Any], Any]]]:
    """Give a study of Optuna, and for each setting the function that draws its value in a trial."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    return study, {name: partial(_drawn, name, values) for name, values in grid.items()}


def _drawn(name: str, values: tuple[Any, ...], trial: Any) -> Any:
    return trial.suggest_categorical(name, values)


NUM_STEPS = 3  # the newest ones of the past: they are most like the reported ones


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
    Raises ValueError.
    """
    for parts in (1, 2):
        graph = past if parts == 1 else halved(past)
        steps = evaluated_steps(graph)[-NUM_STEPS:]
        if steps:
            return PastSteps(graph, tuple(steps), parts)
    raise InvalidInput(
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
