"""The features of an event's candidate, each from plain loops over all events before; and small random logs."""

import math
from itertools import pairwise

import numpy as np

from dyformer.streams.event_log import EventLog, EventQueries

Row = tuple[int, int, int, float]  # source, target, time, weight


def random_log(
    seed: int,
    *,
    num_events: int = 400,
    num_sources: int = 12,
    num_targets: int = 9,
    two_sides: bool = True,
    seconds: float = 30.0,
    per_time: int = 3,
) -> EventLog:
    """Events with about `per_time` at each time, and targets that repeat."""
    generator = np.random.default_rng(seed)
    num_targets = num_targets if two_sides else num_sources
    source_E = generator.integers(0, num_sources, num_events) ** 2 // num_sources
    usual_E = (source_E * 3 + generator.integers(0, 2, num_events)) % num_targets
    target_E = np.where(generator.random(num_events) < 0.6, usual_E, generator.integers(0, num_targets, num_events))
    return EventLog(
        source_E=source_E,
        target_E=target_E,
        time_E=np.sort(generator.integers(0, num_events // per_time, num_events)) * 7,
        weight_E=generator.integers(1, 5, num_events).astype(np.float64),
        num_sources=num_sources,
        num_targets=num_targets,
        two_sides=two_sides,
        seconds=seconds,
    )


def strict_queries(log: EventLog, first: int, end: int | None = None) -> EventQueries:
    """Queries about the events from `first` on, which read all events of earlier times."""
    time_Q = log.time_E[first:end]
    visible_Q = np.searchsorted(log.time_E, time_Q)
    return EventQueries(source_Q=log.source_E[first:end], time_Q=time_Q, num_visible_Q=visible_Q)


def rows_of(log: EventLog, num_events: int, *, both_ways: bool) -> list[Row]:
    """The first events as plain rows; with `both_ways` each is followed by its reverse."""
    columns = (log.source_E, log.target_E, log.time_E, log.weight_E)
    rows = list(zip(*(column[:num_events].tolist() for column in columns), strict=True))
    if not both_ways:
        return rows
    doubled = []
    for source, target, time, weight in rows:
        doubled.append((source, target, time, weight))
        if source != target:
            doubled.append((target, source, time, weight))
    return doubled


def partners_of(log: EventLog, num_events: int, source: int) -> list[int]:
    """The partners of a source in the first events, the newest first; with one side those of both directions."""
    rows = [row[:2] for row in rows_of(log, num_events, both_ways=False)]
    others = [
        target if sender == source else sender
        for sender, target in rows
        if sender == source or (target == source and not log.two_sides)
    ]
    return list(dict.fromkeys(reversed(others)))


def _to_front(newest_first: list[int], node: int) -> None:
    if node in newest_first:
        newest_first.remove(node)
    newest_first.insert(0, node)


class SlowEvents:
    """The same numbers as the state's, from a list of events."""

    def __init__(
        self, rows: list[Row], at: int, *, seconds: float, half_lives: tuple[float, ...], has_replies: bool = False
    ) -> None:
        self.has_replies = has_replies  # partners are those of both directions
        self.rows, self.at, self.seconds, self.half_lives = rows, at, seconds, half_lives
        self.moves: list[tuple[int, int, int, int]] = []  # source, last, next, time
        self.fresh: list[Row] = []
        self.is_fresh: list[bool] = []
        self.firsts: list[Row] = []
        self.shared: list[tuple[int, int, int]] = []  # partner, partner, time
        targets: dict[int, list[int]] = {}
        partners: dict[int, list[int]] = {}
        for row in rows:
            source, target, time, _ = row
            newest_first = targets.setdefault(source, [])
            if newest_first and newest_first[0] != target:
                self.moves.append((source, newest_first[0], target, time))
            if target not in newest_first:
                self.shared += [(partner, target, time) for partner in newest_first[:16]]
            self.is_fresh.append(target not in partners.get(source, []))
            if self.is_fresh[-1]:
                self.fresh.append(row)
                self.firsts += [] if newest_first else [row]
            _to_front(newest_first, target)
            for one, other in ((source, target), (target, source))[: 1 + has_replies]:
                _to_front(partners.setdefault(one, []), other)
        self.targets, self.partners = targets, partners

    def age(self, time: int) -> float:
        return (self.at - time) * self.seconds

    def decayed(self, times: list[int], name: str) -> dict[str, float]:
        sums = [sum(0.5 ** (self.age(time) / half_life) for time in times) for half_life in self.half_lives]
        return {f"{name}_{index}": value for index, value in enumerate(sums)}

    def pair(self, source: int, target: int) -> dict[str, float]:
        own = [row for row in self.rows if row[0] == source]
        contacts = [row for row in own if row[1] == target]
        if not contacts:
            return {}
        recency = self.targets[source].index(target)
        targets = [row[1] for row in own]
        values = {
            "recency": recency,
            "events_back": targets[::-1].index(target) + 1,
            "is_last": recency == 0,
            "is_before_last": recency == 1,
            "since": self.age(contacts[-1][2]),
            "since_first": self.age(contacts[0][2]),
            "contacts": len(contacts),
            "of_5": targets[-5:].count(target),
            "of_20": targets[-20:].count(target),
            "mean_weight": np.mean([row[3] for row in contacts]),
        }
        counts = self.decayed([row[2] for row in contacts], "contacts")
        totals = self.decayed([row[2] for row in own], "all")
        fractions = {f"fraction_{i}": counts[f"contacts_{i}"] / totals[f"all_{i}"] for i in range(4)}
        return values | counts | fractions

    def reply(self, source: int, target: int) -> dict[str, float]:
        between = [row for row in self.rows if row[:2] in ((source, target), (target, source))]
        own, back = ([row[2] for row in self.rows if row[:2] == ends] for ends in ((source, target), (target, source)))
        either = [row[2] for row in self.rows if source in row[:2]]
        values: dict[str, float] = {"replies": len(back)}
        values |= {
            "pending": self._pending(source, target),
            "pending_own": self._pending(target, source),
        }
        if back:
            values["reply_since"] = self.age(back[-1])
        if back and own:
            values["reply_after"] = (back[-1] - own[-1]) * self.seconds
        if between:
            values["met_since"] = self.age(between[-1][2])
            values["met_recency"] = self.partners[source].index(target)
        values |= self.decayed(back, "reply") | self.decayed([row[2] for row in between], "met")
        totals = self.decayed(either + [row[2] for row in self.rows if row[:2] == (source, source)], "all")
        values |= {f"met_fraction_{i}": values[f"met_{i}"] / (totals[f"all_{i}"] or 1) for i in range(4)}
        times = [row[2] for row in self.rows if row[0] == target]
        return values | self.decayed(times, "partner") | ({"partner_since": self.age(times[-1])} if times else {})

    def _pending(self, source: int, target: int) -> int:
        """The events from the target to the source since the newest one the other way."""
        count = 0
        for sender, receiver, _, _ in self.rows:
            if (sender, receiver) == (source, target):
                count = 0
            elif (sender, receiver) == (target, source):
                count += 1
        return count

    def received(self, source: int) -> dict[str, float]:
        own, rows = ([row for row in self.rows if row[end] == source] for end in (0, 1))
        values: dict[str, float] = {
            "received_events": len(rows),
            "received_sources": len({row[0] for row in rows}),
            "received_pending": sum(self._pending(source, other) > 0 for other in {row[0] for row in rows}),
        }
        if rows:
            values["received_since"] = self.age(rows[-1][2])
        if rows and own:
            values["received_after"] = (rows[-1][2] - own[-1][2]) * self.seconds
        return values | self.decayed([row[2] for row in rows], "received")

    def source(self, source: int) -> dict[str, float]:
        own = [row for row in self.rows if row[0] == source]
        times, targets = [row[2] for row in own], [row[1] for row in own]
        fresh = [is_fresh for row, is_fresh in zip(self.rows, self.is_fresh, strict=True) if row[0] == source]
        values: dict[str, float] = {"source_events": len(own), "partners": sum(fresh), "streak": 0}
        if not own:
            return values
        stays = [before == after for before, after in pairwise(targets)]
        while values["streak"] < len(own) and targets[-1 - int(values["streak"])] == targets[-1]:
            values["streak"] += 1
        stay_rate = fresh_rate = 0.0
        for stay in stays:
            stay_rate += 0.1 * (stay - stay_rate)
        for is_fresh in fresh:
            fresh_rate += 0.1 * (is_fresh - fresh_rate)
        values |= {
            "source_since": self.age(times[-1]),
            "source_between": (times[-1] - times[max(len(times) - 2, 0)]) * self.seconds,
            "source_since_first": self.age(times[0]),
            "stays": sum(stays) / len(own),
            "stays_lately": stay_rate,
            "new": sum(fresh) / len(own),
            "new_lately": fresh_rate,
        }
        return values | self.decayed(times, "source")

    def target(self, source: int, target: int) -> dict[str, float]:
        at_target = [row for row in self.rows if row[1] == target]
        others = [row for row in at_target if row[0] != source]
        values: dict[str, float] = {
            "target_is_own": bool(at_target) and at_target[-1][0] == source,
            "target_events": len(at_target),
            "target_sources": len({row[0] for row in at_target}),
        }
        if at_target:
            values["target_since"] = self.age(at_target[-1][2])
            values["target_weight"] = float(np.mean([row[3] for row in at_target]))
        if others:
            values["target_since_other"] = self.age(others[-1][2])
        for name, rows in (("target", at_target), ("target_other", others)):
            values |= self.decayed([row[2] for row in rows], name)
        for name, rows in (("target_new", self.fresh), ("target_first", self.firsts)):
            values |= self.decayed([row[2] for row in rows if row[1] == target], name)
        return values

    def move(self, source: int, target: int) -> dict[str, float]:
        if source not in self.targets:
            return {}
        last = self.targets[source][0]
        from_last = [move for move in self.moves if move[1] == last]
        moves = [move for move in from_last if move[2] == target]
        own = [move for move in moves if move[0] == source]
        values: dict[str, float] = {"moves": len(moves), "own_moves": len(own)}
        if moves:
            values["move_since"] = self.age(moves[-1][3])
        values |= self.decayed([move[3] for move in moves], "move")
        values |= self.decayed([move[3] for move in moves if move[0] != source], "move_other")
        leaving = self.decayed([move[3] for move in from_last], "last_left")
        fractions = {f"move_fraction_{i}": values[f"move_{i}"] / (leaving[f"last_left_{i}"] or 1) for i in range(4)}
        return values | leaving | fractions

    def _editors(self, target: int) -> list[int]:
        newest_first: list[int] = []
        for row in reversed(self.rows):
            if row[1] == target and row[0] not in newest_first:
                newest_first.append(row[0])
        return newest_first[:8]

    def shared_with(self, source: int, target: int) -> dict[str, float]:
        if source not in self.partners:
            return {}

        def times(partner: int) -> list[int]:
            return [time for *ends, time in self.shared if sorted(ends) == sorted((partner, target))]

        def num_sources(node: int) -> int:
            return len({row[0] for row in self.rows if row[1] == node})

        joined = self.partners[source][:8]
        counts = [len(times(partner)) for partner in joined]
        sizes = [math.sqrt(num_sources(partner) * num_sources(target)) for partner in joined]
        cosines = [count / size if count else 0.0 for count, size in zip(counts, sizes, strict=True)]
        values: dict[str, float] = {
            "editors": len(set(self._editors(joined[0])) & set(self._editors(target))),
            "shared": counts[0],
            "shared_sum": sum(counts),
            "cosine": cosines[0],
            "cosine_sum": sum(cosines),
            "cosine_max": max(cosines),
        }
        return values | self.decayed(times(joined[0]), "shared")

    def context(self, source: int) -> dict[str, float]:
        if source not in self.targets:
            return {}
        last = self.targets[source][0]
        pair, target = self.pair(source, last), self.target(source, last)
        values = {"last_contacts": pair["contacts"]}
        if "target_since_other" in target:
            values["last_since_other"] = target["target_since_other"]
        for index in range(4):
            values[f"last_contacts_{index}"] = pair[f"contacts_{index}"]
            values[f"last_target_{index}"] = target[f"target_{index}"]
        return values

    def features(self, source: int, target: int) -> dict[str, float]:
        """All features by name; missing ones are left out."""
        values = self.pair(source, target)
        if self.has_replies:
            values |= self.reply(source, target) | self.received(source)
        values |= self.source(source) | self.target(source, target) | self.move(source, target)
        return values | self.shared_with(source, target) | self.context(source)
