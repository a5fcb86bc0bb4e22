"""Settings of a planted rule -> a log whose rows follow it, and the hidden groups that the rule reads.

Each row's source is drawn first, then its target: one of the source's latest partners, or a node of the group that the
source's group contacts, or any node. The probabilities are those of a PlantedLog, whose group of a node may change from
week to week. Rows are equally far apart in time, so that each week has the same number of them.

As in `dyformer.logs.synthetic`, the bytes are the same on every machine. Limits: nobody joins late, all nodes are
equally active, and groups have no structure inside.

W weeks    N nodes
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from dyformer.logs.synthetic import DAY, START, below, uniform

NUM_RECENT = 4  # latest partners that are stored for a node
WEEK = 7 * DAY


@dataclass(frozen=True, kw_only=True)
class PlantedLog:
    """How large a log is, and the rule behind its rows."""

    num_nodes: int
    num_groups: int
    num_weeks: int
    num_interactions: int  # of each week
    repeating: float = 0.0  # probability of one of the source's NUM_RECENT latest partners, of both directions
    following: float  # probability of a node of the group that the source's group contacts; else any node
    step: int = 0  # group g contacts group g + step, in a ring: 0 is its own
    moving: float = 0.0  # probability that a node is in another group from one week to the next
    num_seasons: int = 1  # in week w only nodes of the groups g with g = w modulo this number are sources


PLANTED = {
    "generated-communities": PlantedLog(
        num_nodes=900, num_groups=6, num_weeks=10, num_interactions=400, following=0.85, moving=0.05
    ),
    "generated-roles": PlantedLog(
        num_nodes=900, num_groups=6, num_weeks=10, num_interactions=400, following=0.85, step=1
    ),
    "generated-season": PlantedLog(
        num_nodes=600, num_groups=12, num_weeks=12, num_interactions=300, following=0.85, num_seasons=4
    ),
    "generated-repeats": PlantedLog(
        num_nodes=400, num_groups=1, num_weeks=10, num_interactions=600, repeating=0.85, following=0.0
    ),
}
"""The known planted logs, by name of their dataset."""


def planted_log(planted: PlantedLog, seed: int = 0) -> bytes:
    """Make a CSV log with the columns `source,target,time` (ISO 8601, UTC), sorted by time."""
    lines = ["source,target,time"]
    for number, (_, source, target) in enumerate(planted_rows(planted, seed)):
        time = START + timedelta(seconds=number * WEEK // planted.num_interactions)
        lines.append(f"n{source:03d},n{target:03d},{time:%Y-%m-%dT%H:%M:%SZ}")
    return "\n".join([*lines, ""]).encode()


def planted_rows(planted: PlantedLog, seed: int = 0) -> Iterator[tuple[int, int, int]]:
    """Yield the week, source and target of each row, as numbers from 0."""
    draw = uniform(np.random.PCG64(seed))
    recent: list[list[int]] = [[] for _ in range(planted.num_nodes)]  # node -> its latest partners, the newest last
    for week, group_N in enumerate(_groups(planted, draw)):
        sources = np.flatnonzero(group_N % planted.num_seasons == week % planted.num_seasons)
        for _ in range(planted.num_interactions):
            source = int(sources[below(draw, len(sources))])
            target = _target(source, planted, group_N, recent[source], draw)
            for node, partner in ((source, target), (target, source)):
                recent[node] = [*recent[node], partner][-NUM_RECENT:]
            yield week, source, target


def planted_groups(planted: PlantedLog, seed: int = 0) -> NDArray[np.int64]:
    """Give the hidden group of each node in each week, [W, N]; node k is called `n` and k with three digits."""
    return np.array(_groups(planted, uniform(np.random.PCG64(seed))))


def _groups(planted: PlantedLog, draw: Iterator[float]) -> list[NDArray[np.int64]]:
    """Draw the groups of all weeks before any row, so that they can be drawn again without the rows."""
    group_N = np.array([below(draw, planted.num_groups) for _ in range(planted.num_nodes)])
    weeks = [group_N]
    for _ in range(planted.num_weeks - 1):
        moves_N = np.array([next(draw) < planted.moving for _ in range(planted.num_nodes)])
        others_N = np.array([1 + below(draw, max(planted.num_groups - 1, 1)) for _ in range(planted.num_nodes)])
        weeks.append(np.where(moves_N, (weeks[-1] + others_N) % planted.num_groups, weeks[-1]))
    return weeks


def _target(
    source: int, planted: PlantedLog, group_N: NDArray[np.int64], partners: list[int], draw: Iterator[float]
) -> int:
    """Choose a node to contact; a choice without candidates falls through to any node."""
    kind = next(draw)
    if partners and kind < planted.repeating:
        return partners[below(draw, len(partners))]
    pool_N = np.arange(planted.num_nodes) != source
    if planted.repeating <= kind < planted.repeating + planted.following:
        near_N = pool_N & (group_N == (group_N[source] + planted.step) % planted.num_groups)
        pool_N = near_N if near_N.any() else pool_N
    pool = np.flatnonzero(pool_N)
    return int(pool[below(draw, len(pool))])
