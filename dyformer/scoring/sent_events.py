"""Events as programs send them -> checked events of a log, which a later ingest accepts, too."""

import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dyformer import InvalidInput
from dyformer.logs.contract import TimeRange, far_time
from dyformer.logs.moments import UnreadableMoment, expected_times, read_moment, written_moment
from dyformer.logs.time_windows import TimeUnit
from dyformer.logs.validation import LAST_STEP, WHOLE_FLOAT
from dyformer.scoring.live_ranking import NamedEvents

MOST_LETTERS = 1_000  # of an id
MOST_NAMED = 40  # letters of a wrong value in an error
AHEAD = 86_400_000_000  # microseconds that an event may be ahead of this machine's clock
CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
FLOAT = re.compile(WHOLE_FLOAT)  # an ingest reads 7.0 as 7


class BadEvent(InvalidInput):
    """An event that does not fit the log; the message says what was expected."""


@dataclass(frozen=True, kw_only=True)
class SentEvent:
    """An event of a log: the user's ids as texts, and the time in units of the log."""

    source: str
    target: str
    time: int
    weight: float

    def record(self, unit: TimeUnit) -> dict[str, Any]:
        """Give the event as a line of the file; `moment` is the time as the state has it."""
        written = written_moment(self.time, unit)
        return {
            "source": self.source,
            "target": self.target,
            "time": written,
            "weight": self.weight,
            "moment": self.time,
        }


def checked_event(source: str | int, target: str | int, time: str | float, weight: float, unit: TimeUnit) -> SentEvent:
    """Check one event; raises BadEvent, so that a later ingest rejects no event that was accepted."""
    if not math.isfinite(weight) or weight < 0:
        raise BadEvent(f"the weight {weight}: expected a finite number from 0 on")
    try:
        moment = read_moment(time, unit)
    except UnreadableMoment as error:
        raise BadEvent(str(error)) from error
    if unit == "step" and not 0 <= moment <= LAST_STEP:
        raise BadEvent(f"the time {moment}: expected a step from 0 to {LAST_STEP:,}")
    return SentEvent(source=_id("source", source), target=_id("target", target), time=moment, weight=float(weight))


def check_era(times: Sequence[int], stored: TimeRange, unit: TimeUnit) -> None:
    """Raise BadEvent for times far from those of the log, or after tomorrow: all later events would be late."""
    for moment in (min(times), max(times)):
        far = far_time(moment, stored, unit)
        if far is not None:
            raise BadEvent(f"its times are {far}: expected times that continue the log, {expected_times(unit)}")
    if unit != "step" and max(times) > time.time_ns() // 1_000 + AHEAD:
        raise BadEvent(f"the time {written_moment(max(times), unit)}: expected none after tomorrow")


def named_events(events: Sequence[SentEvent]) -> NamedEvents:
    """Put events in order of time; those of one time stay in their order."""
    ordered = sorted(events, key=lambda event: event.time)
    return NamedEvents(
        sources=[event.source for event in ordered],
        targets=[event.target for event in ordered],
        times=[event.time for event in ordered],
        weights=[event.weight for event in ordered],
    )


def _id(end: str, value: str | int) -> str:
    text = str(value)
    if not text or text != text.strip() or len(text) > MOST_LETTERS or CONTROL.search(text) or FLOAT.fullmatch(text):
        raise BadEvent(
            f"the {end} {text[:40]!r}: expected an integer, or a text of 1 to {MOST_LETTERS:,} letters without control"
            " characters, spaces at its ends, or the form of a number like 7.0"
        )
    return text


def check_id(end: str, text: str) -> None:
    """Raise BadEvent for a text that no ingest reads as an id, such as 7.0, which is read as 7."""
    if not text or text != text.strip() or FLOAT.fullmatch(text):
        raise BadEvent(
            f"the {end} {text[:MOST_NAMED]!r}: expected an id as the log has it, neither empty nor with spaces at its"
            " ends, and 7 instead of 7.0"
        )


ID = ((str, int), "a text or an integer")
FIELDS = {"source": ID, "target": ID, "time": ((str, int, float), "a text or a number")}
"""Fields of an event in JSON: the types of their values, in Python and in words."""
OPTIONAL = {"weight": ((int, float), "a number")}
EXPECTED = "source, target, time and, where it is not 1, weight"


def read_events(text: str, unit: TimeUnit) -> list[SentEvent]:
    """Read a JSON list of objects {source, target, time, weight}, whose weight is 1 by default, and check each event.

    Raises BadEvent, with the position of the first wrong event.
    """
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadEvent(f"the events are not JSON ({error}): expected a list of objects with {EXPECTED}") from error
    if not isinstance(rows, list):
        raise BadEvent(f"the events are {type(rows).__name__} in JSON: expected a list of objects with {EXPECTED}")
    events = []
    for position, row in enumerate(rows):
        try:
            events.append(_event_of(row, unit))
        except BadEvent as error:
            raise BadEvent(f"event {position}: {error}") from error
    return events


def _event_of(row: Any, unit: TimeUnit) -> SentEvent:
    fields = FIELDS | OPTIONAL
    if not isinstance(row, dict) or not FIELDS.keys() <= row.keys() <= fields.keys():
        sent = ", ".join(map(ascii, row)) if isinstance(row, dict) else type(row).__name__
        raise BadEvent(f"expected an object with {EXPECTED}; found {sent[: 3 * MOST_NAMED] or 'no field'}")
    for name, value in row.items():
        types, words = fields[name]
        if isinstance(value, bool) or not isinstance(value, types):
            raise BadEvent(f"the {name} {ascii(value)[:MOST_NAMED]}: expected {words}")
    try:
        weight = float(row.get("weight", 1.0))
    except OverflowError as error:
        raise BadEvent("the weight is too large: expected a finite number from 0 on") from error
    return checked_event(row["source"], row["target"], row["time"], weight, unit)
