"""A history -> after how many steps its counts of links recur, as days of a week do, and the steps that are alike.

A forecast learns from the steps that are like the forecast one, the newest first. On days of a working week this is
the same weekday: what the links of a Monday say of those before them, after a Sunday, does not hold on a Tuesday.

T steps    D steps with one a period before them
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyformer.evaluation.fitting import NUM_LABELLED_STEPS
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.pairs import known_edges, nodes_known_before

NO_SEASON = 1
MIN_LABELLED = 2  # positive pairs of a labelled step, and negative ones
MAX_STEPS = 200  # newest steps that are compared
NUM_PERIODS = 3  # that the steps hold at least,
MIN_STEPS = 20  # and so many steps: of fewer, one in ten without a period seems to have one
MOST_ERROR = 0.7  # of the counts a period before, as a fraction of that of the counts one step before
ALIKE = 1.5  # times that of a week: if that of a day is no larger, the steps recur every day
HOUR = 3_600_000_000  # microseconds: days of a calendar may be an hour shorter or longer
LENGTHS = (24 * HOUR, 7 * 24 * HOUR)


def period_of(count_T: ArrayLike, start_T: ArrayLike) -> int:
    """Find after how many steps counts recur: a day or a week of them; NO_SEASON where they do not, or steps are few.

    The count a period before must forecast the next one (the seasonal naive forecast; Hyndman and Athanasopoulos, 2021,
    section 5.2) better than the count one step before does: by the mean absolute difference of the logarithms, which is
    at most MOST_ERROR of the other. `start_T` are the first moments of the steps, in microseconds.
    """
    value_T = np.log1p(np.asarray(count_T, dtype=np.float64)[-MAX_STEPS:])
    ratios = {period: _ratio(value_T, period) for period in _lengths(np.asarray(start_T, dtype=np.int64)[-MAX_STEPS:])}
    smallest = min(ratios.values(), default=np.inf)
    if not smallest <= MOST_ERROR:
        return NO_SEASON
    return next(period for period, ratio in ratios.items() if ratio <= ALIKE * smallest)


def period_before(graph: DynamicGraph, step: int, *, num_steps: int = NUM_LABELLED_STEPS) -> int:
    """Give the period of the links of the steps before `step`, if one of its `alike_steps` has enough to learn from."""
    before = graph.snapshots[: step - 1][-MAX_STEPS:]
    period = period_of([len(each.source_E) for each in before], [each.start_time for each in before])
    return period if have_links(graph, alike_steps(step, period, num_steps)) else NO_SEASON


def alike_steps(step: int, period: int, num_steps: int = NUM_LABELLED_STEPS) -> range:
    """List the `num_steps` newest steps that lie some periods before `step`, the newest first; none before step 2."""
    return range(step - period, max(step - num_steps * period, 2) - 1, -period)


def have_links(graph: DynamicGraph, steps: Iterable[int]) -> bool:
    """Check whether one of some steps has enough links between nodes known before it to be a labelled step."""
    return any(
        len(known_edges(graph.snapshots[step - 1], nodes_known_before(graph, step))[0]) >= MIN_LABELLED
        for step in steps
    )


def _lengths(start_T: NDArray[np.int64]) -> list[int]:
    """Give the number of steps of a day and of a week, where so many steps are one, but for a change of the clock.

    The first step counts for nothing, because it may be cut short.
    """
    if len(start_T) < MIN_STEPS:
        return []
    later_T, periods = start_T[1:], []
    for length in LENGTHS:
        period = round(length / max(np.median(np.diff(later_T)), 1))
        if period <= NO_SEASON or len(start_T) <= NUM_PERIODS * period:
            continue
        distance_D = later_T[period:] - later_T[:-period]
        if np.median(distance_D) == length and np.abs(distance_D - length).max() <= HOUR:
            periods.append(period)
    return periods


def _ratio(value_T: NDArray[np.float64], period: int) -> float:
    """Give how far values are from those a period before, over how far from those one step before; all alike: inf."""
    step_D, period_D = np.abs(np.diff(value_T[period - 1 :])), np.abs(value_T[period:] - value_T[:-period])
    return float(period_D.mean() / step_D.mean()) if step_D.any() else np.inf
