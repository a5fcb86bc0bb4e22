"""Rows of a log in order of time -> the interactions of a graph, each placed on the time line of its windows.

R interactions in order of (time, log order)    T steps
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Interactions:
    """The rows behind the snapshots: directed as in the log, repeated contacts and self-loops included."""

    source_R: NDArray[np.int64]  # node numbers of the graph
    target_R: NDArray[np.int64]
    time_R: NDArray[np.int64]  # microseconds since the epoch, or the log's own step
    weight_R: NDArray[np.float64]  # the log's weights; 1 where it has none
    position_R: NDArray[np.float64]  # time in windows: step t covers [t - 1, t), linear between its start and end

    def head(self, num_interactions: int) -> "Interactions":
        """Give the earliest interactions."""
        return Interactions(**{name: value_R[:num_interactions] for name, value_R in vars(self).items()})


def positions(
    time_R: NDArray[np.int64], windows: Sequence[tuple[int, int]], num_interactions_T: Sequence[int]
) -> NDArray[np.float64]:
    """Give the time of each row in windows, so that its age as of a step `until` is `until - position`.

    Args:
        time_R: times of the rows, in order.
        windows: first moment (included) and last moment (excluded) of each step.
        num_interactions_T: number of rows of each step. Counts and not times divide the rows between the steps,
            because windows of equal count may share one moment.
    """
    start_T, end_T = np.array(windows, dtype=np.int64).reshape(-1, 2).T
    index_R = np.repeat(np.arange(len(start_T)), num_interactions_T)
    fraction_R = (time_R - start_T[index_R]) / (end_T - start_T)[index_R]
    # Rounding may lift the last moments of a window to its end.
    return np.minimum(index_R + fraction_R, np.nextafter(index_R + 1.0, 0))
