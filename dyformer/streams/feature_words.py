"""A feature of a candidate and its value -> plain words, as a reason for its rank.

The formulas are those of `dyformer.streams.event_state`. "Lately" is an average that forgets half within the time in
brackets.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

from dyformer.streams.event_state import FEATURES, HALF_LIVES

Form = Literal["age", "gap", "count", "amount", "fraction", "yes"]

UNITS = ((31_557_600.0, "year"), (86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute"), (1.0, "second"))
LEAST = 0.005
FEW = 10.0  # below it an amount is written with a decimal

WORDS: Mapping[str, tuple[Form, str]] = {
    "recency": ("count", "partners of the source that it met since: {}"),
    "events_back": ("count", "events of the source since their newest contact, that one included: {}"),
    "is_last": ("yes", "the last partner of the source: {}"),
    "is_before_last": ("yes", "the partner before the last: {}"),
    "since": ("age", "their newest contact was {} ago"),
    "since_first": ("age", "their first contact was {} ago"),
    "contacts": ("count", "contacts with the source so far: {}"),
    "contacts_h": ("amount", "contacts with the source lately ({half_life}): {}"),
    "fraction_h": ("fraction", "of the source's events lately ({half_life}) with this target: {}"),
    "of_5": ("count", "of the source's last 5 events with this target: {}"),
    "of_20": ("count", "of the source's last 20 events with this target: {}"),
    "mean_weight": ("amount", "mean weight of their contacts: {}"),
    "reply_since": ("age", "the newest contact from the target to the source was {} ago"),
    "replies": ("count", "contacts from the target to the source so far: {}"),
    "reply_after": ("gap", "the target's newest contact with the source came {} than the source's with it"),
    "reply_h": ("amount", "contacts from the target to the source lately ({half_life}): {}"),
    "pending": ("count", "contacts from the target that had no reply yet: {}"),
    "pending_own": ("count", "contacts from the source that had no reply yet: {}"),
    "met_since": ("age", "their newest contact in either direction was {} ago"),
    "met_recency": ("count", "partners with which the source had a newer contact in either direction: {}"),
    "met_h": ("amount", "contacts in both directions lately ({half_life}): {}"),
    "met_fraction_h": (
        "fraction",
        "of the source's contacts in both directions lately ({half_life}) with this one: {}",
    ),
    "partner_since": ("age", "the newest event by the target itself was {} ago"),
    "partner_h": ("amount", "events by the target itself lately ({half_life}): {}"),
    "received_since": ("age", "the newest event at the source was {} ago"),
    "received_events": ("count", "events at the source so far: {}"),
    "received_sources": ("count", "nodes that contacted the source so far: {}"),
    "received_after": ("gap", "the newest event at the source came {} than its own newest one"),
    "received_h": ("amount", "events at the source lately ({half_life}): {}"),
    "received_pending": ("count", "partners to whose newest contact the source has not replied: {}"),
    "source_since": ("age", "the newest event of the source was {} ago"),
    "source_between": ("age", "between the last two events of the source: {}"),
    "source_since_first": ("age", "the first event of the source was {} ago"),
    "source_events": ("count", "events of the source so far: {}"),
    "source_h": ("amount", "events of the source lately ({half_life}): {}"),
    "stays": ("fraction", "how often the source keeps the partner of the event before: {}"),
    "stays_lately": ("fraction", "how often the source keeps the partner of the event before, lately: {}"),
    "new": ("fraction", "how often the source takes a new partner: {}"),
    "new_lately": ("fraction", "how often the source takes a new partner, lately: {}"),
    "partners": ("count", "partners of the source so far: {}"),
    "streak": ("count", "newest events of the source with one and the same partner: {}"),
    "target_since": ("age", "the newest event at the target was {} ago"),
    "target_since_other": ("age", "the newest event at the target by another source was {} ago"),
    "target_is_own": ("yes", "the newest event at the target is the source's own: {}"),
    "target_events": ("count", "events at the target so far: {}"),
    "target_sources": ("count", "sources that the target has had: {}"),
    "target_weight": ("amount", "mean weight of the events at the target: {}"),
    "target_h": ("amount", "events at the target lately ({half_life}): {}"),
    "target_other_h": ("amount", "events of other sources at the target lately ({half_life}): {}"),
    "target_new_h": ("amount", "sources that were new to the target lately ({half_life}): {}"),
    "target_first_h": ("amount", "sources that began with the target lately ({half_life}): {}"),
    "move_since": ("age", "a source last went on from the last partner to the target {} ago"),
    "moves": ("count", "times that sources went on from the last partner to the target: {}"),
    "own_moves": ("count", "times that this source went on from the last partner to the target: {}"),
    "move_h": ("amount", "moves from the last partner to the target lately ({half_life}): {}"),
    "move_fraction_h": ("fraction", "of all moves from the last partner lately ({half_life}) to the target: {}"),
    "move_other_h": ("amount", "moves of other sources from the last partner to the target lately ({half_life}): {}"),
    "editors": ("count", "sources in common with the last partner, among the last 8 of each: {}"),
    "shared_h": ("amount", "sources that came to have both the last partner and the target lately ({half_life}): {}"),
    "shared": ("count", "sources that have both the last partner and the target: {}"),
    "shared_sum": ("count", "sources that have both the target and one of the source's newest partners, summed: {}"),
    "cosine": ("amount", "likeness of the target's sources to those of the last partner, 0 to 1: {}"),
    "cosine_sum": ("amount", "likeness of the target's sources to those of the newest partners, summed: {}"),
    "cosine_max": ("amount", "greatest likeness of the target's sources to those of a newest partner, 0 to 1: {}"),
    "last_contacts": ("count", "contacts of the source with its last partner: {}"),
    "last_since_other": ("age", "another source was at the last partner {} ago"),
    "last_contacts_h": ("amount", "contacts of the source with its last partner lately ({half_life}): {}"),
    "last_target_h": ("amount", "events at the last partner lately ({half_life}): {}"),
    "last_left_h": ("amount", "moves away from the last partner lately ({half_life}): {}"),
    "vector_cosine": ("amount", "likeness of the target to those that sources like this one contact, -1 to 1: {}"),
    "partner_cosine": ("amount", "likeness of the target to the newest partners by their sources, -1 to 1: {}"),
    "partner_cosine_max": ("amount", "greatest likeness of the target to a newest partner by sources, -1 to 1: {}"),
    "rank_contacts_2": ("count", "candidates with more contacts lately: {}"),
    "rank_target_1": ("count", "candidates with more events lately: {}"),
    "rank_target_new_2": ("count", "candidates with more new sources lately: {}"),
    "rank_move_fraction_2": ("count", "candidates to which more move from the last partner lately: {}"),
    "rank_cosine_sum": ("count", "candidates whose sources are more like those of the newest partners: {}"),
    "rank_target_since_other": ("count", "candidates that another source left alone for longer: {}"),
    "rank_met_1": ("count", "candidates with more contacts in both directions lately: {}"),
    "rank_partner_1": ("count", "candidates that were more active themselves lately: {}"),
}
"""Form of the value and words of each feature; one with `_h` stands for its four half-lives."""


def stem_of(feature: str) -> str:
    """Give the key of WORDS that a feature has: `contacts_h` for `contacts_2`."""
    if feature in WORDS:
        return feature
    return f"{feature.rpartition('_')[0]}_h"


STEMS = tuple(map(stem_of, FEATURES))


def in_words(feature: str, value: float, half_lives: Sequence[float] = HALF_LIVES, *, has_steps: bool = False) -> str:
    """Write a feature and its value, which is a number, as a sentence without a full stop.

    In a log with integer steps, a step stands for a second.
    """
    form, words = _words(feature, tuple(half_lives), has_steps)
    written = _steps if has_steps else duration
    if form == "gap":
        return words.format(f"{written(abs(value))} {'later' if value >= 0 else 'earlier'}")
    return words.format(written(value) if form == "age" else _FORMS[form](value))


@lru_cache(maxsize=1024)
def _words(feature: str, half_lives: tuple[float, ...], has_steps: bool) -> tuple[Form, str]:
    """Give the form of a feature's value and the words around it."""
    form, words = WORDS[stem_of(feature)]
    if "{half_life}" not in words:
        return form, words
    written = _steps if has_steps else duration
    return form, words.replace("{half_life}", written(half_lives[int(feature.rpartition("_")[2])]))


def _steps(value: float) -> str:
    return f"{value:,.0f} step{'' if value == 1 else 's'}"


def duration(seconds: float) -> str:
    """Write a number of seconds in the largest unit of which it has at least two, or in seconds."""
    for length, unit in UNITS:
        count = math.floor(seconds / length + 0.5)
        if count >= 2 or (count == 1 and abs(seconds - length) < 0.01 * length):
            return f"{count:,} {unit}{'' if count == 1 else 's'}"
    return "less than a second" if seconds < 1 else "1 second"


def _amount(value: float) -> str:
    if 0 < value < LEAST:
        return "nearly 0"
    return f"{value:,.0f}" if value >= FEW else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


_FORMS: Mapping[Form, Callable[[float], str]] = {
    "count": lambda value: f"{value:,.0f}",
    "amount": _amount,
    "fraction": lambda value: f"{value:.0%}",
    "yes": lambda value: "yes" if value else "no",
}
