"""A seed -> a log of 12 weeks with planted structure, for trying everything without a download.

People belong to communities, and some move to another one (drift). They write mostly to recent contacts, then to the
contacts of these, then within their community, and rarely to anyone. Some people join later (newcomers).

The bytes are the same on every machine and with every numpy, because numpy guarantees PCG64's stream of raw 64-bit
words. Exact arithmetic alone turns these words into numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

NUM_INTERACTIONS = 20_000
NUM_DAYS = 84
NUM_PEOPLE = 300
NUM_FOUNDERS = 120  # the others join by day NUM_JOINING_DAYS
NUM_JOINING_DAYS = 75
NUM_COMMUNITIES = 8
NUM_RECENT = 8  # latest contacts that are stored for a person
REPEAT, FRIEND_OF_FRIEND, COMMUNITY = 0.55, 0.25, 0.17  # probabilities of the choices; else any person
MOVING = 0.4  # fraction of people who change their community once
WAKING_HOURS = (7, 23)
DAY = 86_400
START = datetime(2024, 1, 1, tzinfo=UTC)  # a Monday


@dataclass(frozen=True, kw_only=True)
class People:
    """When each person joins and moves, and their communities; P people."""

    joins_P: NDArray[np.int64]  # day
    moves_P: NDArray[np.int64]  # day; NUM_DAYS for those who stay
    first_home_P: NDArray[np.int64]
    second_home_P: NDArray[np.int64]
    activity_P: NDArray[np.int64]
    recent: dict[int, list[int]] = field(default_factory=dict)  # person -> latest contacts, the newest last


def generated_log(seed: int = 0) -> bytes:
    """Make a CSV log with the columns `source,target,time` (ISO 8601, UTC), sorted by time."""
    draw = uniform(np.random.PCG64(seed))
    people = _people(draw)
    lines = ["source,target,time"]
    for day, seconds in _times(draw):
        present = np.flatnonzero(people.joins_P <= day)
        home_P = np.where(people.moves_P <= day, people.second_home_P, people.first_home_P)
        reach = np.cumsum(people.activity_P[present])
        for second in seconds:
            source = int(present[np.searchsorted(reach, below(draw, int(reach[-1])), side="right")])
            target = _target(source, people, present, home_P, draw)
            _remember(people, source, target)
            time = START + timedelta(days=day, seconds=second)
            lines.append(f"u{source:04d},u{target:04d},{time:%Y-%m-%dT%H:%M:%SZ}")
    return "\n".join([*lines, ""]).encode()


def uniform(words: np.random.PCG64) -> Iterator[float]:
    """Give numbers in [0, 1): the top 53 bits of each raw word."""
    while True:
        yield from ((words.random_raw(4096) >> np.uint64(11)) * 2.0**-53).tolist()


def below(draw: Iterator[float], bound: int) -> int:
    """Draw a whole number from 0 to `bound` - 1."""
    return int(next(draw) * bound)


def _people(draw: Iterator[float]) -> People:
    def column(value) -> NDArray[np.int64]:
        return np.array([value(person) for person in range(NUM_PEOPLE)], np.int64)

    first_home_P = column(lambda _: below(draw, NUM_COMMUNITIES))
    return People(
        joins_P=column(lambda person: 0 if person < NUM_FOUNDERS else 1 + below(draw, NUM_JOINING_DAYS)),
        moves_P=column(lambda _: below(draw, NUM_DAYS) if next(draw) < MOVING else NUM_DAYS),
        first_home_P=first_home_P,
        second_home_P=(first_home_P + column(lambda _: 1 + below(draw, NUM_COMMUNITIES - 1))) % NUM_COMMUNITIES,
        activity_P=column(lambda _: 100 // (1 + below(draw, 20))),
    )


def _times(draw: Iterator[float]) -> Iterator[tuple[int, list[int]]]:
    """Yield each day and its times, sorted seconds, most of them in the waking hours."""
    seconds: list[list[int]] = [[] for _ in range(NUM_DAYS)]
    first, last = (hour * 3600 for hour in WAKING_HOURS)
    for number in range(NUM_INTERACTIONS):
        day = number * NUM_DAYS // NUM_INTERACTIONS
        second = first + below(draw, last - first) if next(draw) < 0.9 else below(draw, DAY)
        seconds[day].append(second)
    yield from enumerate(map(sorted, seconds))


def _target(
    source: int, people: People, present: NDArray[np.int64], home_P: NDArray[np.int64], draw: Iterator[float]
) -> int:
    """Choose a person to write to; a choice without candidates falls through to the next one."""
    kind = next(draw)
    partners = people.recent.get(source, [])
    if partners and kind < REPEAT:
        return partners[below(draw, len(partners))]
    if partners and kind < REPEAT + FRIEND_OF_FRIEND:
        theirs = people.recent.get(partners[below(draw, len(partners))], [])
        others = [person for person in theirs if person != source]
        if others:
            return others[below(draw, len(others))]
    pool = present[present != source]
    if kind < REPEAT + FRIEND_OF_FRIEND + COMMUNITY:
        near = pool[home_P[pool] == home_P[source]]
        pool = near if near.size else pool
    return int(pool[below(draw, pool.size)])


def _remember(people: People, source: int, target: int) -> None:
    for person, contact in ((source, target), (target, source)):
        partners = people.recent.setdefault(person, [])
        partners.append(contact)
        del partners[:-NUM_RECENT]
