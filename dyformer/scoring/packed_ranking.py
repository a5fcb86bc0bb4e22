"""The event state, the ids and the forecaster of a log, as a package has them -> the ranking of one request.

The ranking of a request has the events of the package and those of the request. It is a copy, so that no event of a
request counts in another one, and a wrong event leaves nothing behind.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.logs.contract import TimeRange
from dyformer.logs.moments import written_moment
from dyformer.logs.time_windows import TimeUnit
from dyformer.scoring.event_forecaster import FittedEventForecaster
from dyformer.scoring.live_ranking import LiveRanking, NodeIds
from dyformer.scoring.sent_events import BadEvent, SentEvent, check_era, check_id, named_events
from dyformer.streams.event_state import EventState, StateSettings

MOST_EVENTS = 100_000  # of a request, because each takes up to 2 kB of memory


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedRanking:
    """All that ranks the sources of a log from its events so far; none of it changes."""

    fitted: FittedEventForecaster
    state: EventState
    ids: NodeIds
    time_unit: TimeUnit
    first_time: int  # of the events, in units of the log
    has_integer_ids: bool

    @property
    def newest_time(self) -> int:
        """Time of the newest event of the package."""
        newest = self.state.newest_time
        assert newest is not None, "a forecaster is fitted on events"
        return newest

    def record(self) -> dict[str, Any]:
        """Give plain values for JSON: all but the arrays of the state and the table of ids."""
        return {
            "forecaster": self.fitted.record(),
            "state": asdict(self.state.settings),
            "time_unit": self.time_unit,
            "first_time": self.first_time,
            "has_integer_ids": self.has_integer_ids,
        }

    def id_table(self) -> pl.DataFrame:
        """Give side (0 source, 1 target) and id of the nodes, in the order of their numbers; one side is 0."""
        sides = (self.ids.sources, self.ids.targets) if self.ids.two_sides else (self.ids.sources,)
        parts = [{"side": [side] * len(names), "id": names} for side, names in enumerate(sides)]
        return pl.concat([pl.DataFrame(part, schema={"side": pl.Int8, "id": pl.String}) for part in parts])

    @classmethod
    def from_parts(
        cls, record: Mapping[str, Any], arrays: Mapping[str, NDArray], id_table: pl.DataFrame
    ) -> "PackedRanking":
        """Read what `record`, `state.to_arrays` and `id_table` gave."""
        settings = StateSettings.from_record(record["state"])
        sources, targets = (id_table.filter(side=side)["id"].to_list() for side in (0, 1))
        return cls(
            fitted=FittedEventForecaster.from_record(record["forecaster"]),
            state=EventState.from_arrays(arrays, settings),
            ids=NodeIds(sources=sources, targets=targets if settings.two_sides else sources),
            time_unit=record["time_unit"],
            first_time=record["first_time"],
            has_integer_ids=record["has_integer_ids"],
        )

    def ranking(self, events: Sequence[SentEvent], *, at: int | None = None) -> LiveRanking:
        """Give a ranking of its own from the events of the package and further ones, in any order.

        Give `at` to its queries, too: events at this time or later do not count.

        Raises:
            BadEvent: an event that is older than those of the package, or does not continue the log.
            ValueError: `at` is before the newest event of the package.
        """
        self._check(events)
        if at is not None and at < self.newest_time:
            raise InvalidInput(
                f"as of {written_moment(at, self.time_unit)}: expected a time from"
                f" {written_moment(self.newest_time, self.time_unit)} on, that of the newest event of the model"
            )
        sources = list(self.ids.sources)
        ids = NodeIds(sources=sources, targets=list(self.ids.targets) if self.ids.two_sides else sources)
        ranking = LiveRanking(self.fitted, copy.deepcopy(self.state), ids)
        ranking.observe(named_events([event for event in events if at is None or event.time < at]))
        return ranking

    def check_ids(self, end: str, ids: Iterable[str]) -> None:
        """Raise BadEvent for a text that cannot be a source or a target (`end`) of the log, such as 7.0 for 7."""
        for name in ids:
            check_id(end, name)
            self._check_kind(f"the {end}", name)

    def _check_kind(self, where: str, name: str) -> None:
        if self.has_integer_ids and not _is_integer(name):
            raise BadEvent(f"{where} {name[:40]!r}: expected an integer, as the log has")

    def _check(self, events: Sequence[SentEvent]) -> None:
        if len(events) > MOST_EVENTS:
            raise BadEvent(f"{len(events):,} events: expected at most {MOST_EVENTS:,} in a request")
        if not events:
            return
        stored = TimeRange(first=self.first_time, last=self.newest_time)
        check_era([event.time for event in events], stored, self.time_unit)
        for position, event in enumerate(events):
            if event.time < self.newest_time:
                raise BadEvent(
                    f"event {position}: the time {written_moment(event.time, self.time_unit)}: expected one from"
                    f" {written_moment(self.newest_time, self.time_unit)} on, that of the newest event of the model,"
                    " which has all events before"
                )
            for end, name in (("source", event.source), ("target", event.target)):
                self._check_kind(f"event {position}: the {end}", name)


def _is_integer(name: str) -> bool:
    """Whether an id is the usual text of a 64-bit integer."""
    try:
        return str(int(name)) == name and -(1 << 63) <= int(name) < 1 << 63
    except ValueError:
        return False
