"""Commits of a log -> the stored state of all its events, and the stored forecaster that reads it.

A state is brought up to date from the newest stored one by the events of the commits since. If one of these is older
than an event that the state has, the state is made anew from the earliest event. An event of the same time is not
older: it follows in the order of the commits, as in a pass from the beginning. Either way the bytes are the same.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors.numpy import load, save

from dyformer.logs.moments import written_moment
from dyformer.scoring.event_forecaster import EventForecaster, FittedEventForecaster, TooFewPastEvents, fit_on_past
from dyformer.scoring.event_horizon import FittedHorizon, fit_horizon
from dyformer.streams.event_log import MICROSECOND, EventLog, NumberedEvents, event_log_of
from dyformer.streams.event_state import EventState, StateSettings
from flows.console import ongoing
from storage.artifacts.artifact import MANIFEST, Lineage, is_current, open_artifact, read_bytes
from storage.artifacts.code import code_digest
from storage.artifacts.made import Planned, planned
from storage.bytes import files
from storage.events import versions
from storage.events.declarations import declared_record
from storage.events.table import history, newest_version, node_dictionary, read_events, scan_events
from storage.layout import EVENT_MODEL, STATE, Layout

STATE_CODE = ("dyformer.streams.event_state", "dyformer.streams.event_log")
HORIZON_CODE = ("dyformer.scoring.event_horizon", "dyformer.streams.event_log")
MODEL_CODE = ("dyformer.scoring.event_forecaster", "dyformer.streams.event_log")
SEED = 0  # of every stored event forecaster

Show = Callable[[str], None]


def events_before(layout: Layout, dataset: str, version: int, before: int | None = None) -> NumberedEvents:
    """Number the events of a version in order of time; with `before`, only those that are older."""
    events = read_events(layout, dataset, version)
    if before is not None:
        events = events.filter(pl.col("time") < before)
    return event_log_of(events, has_steps=has_steps(layout, dataset))


def has_steps(layout: Layout, dataset: str) -> bool:
    """Whether the times of a log are integer steps."""
    return declared_record(layout, dataset)["time_unit"] == "step"


def newest_time(layout: Layout, dataset: str, version: int) -> int:
    """Give the time of the newest event of a version."""
    return max(history(layout, dataset, version)["last_time"])


def settings_of(layout: Layout, dataset: str, version: int) -> StateSettings:
    """Give the settings of a log's state: those of the fitted forecaster, which reads it."""
    record = declared_record(layout, dataset)
    two_sides = bool((node_dictionary(layout, dataset, version)["side"] > 0).any())
    seconds = 1.0 if record["time_unit"] == "step" else MICROSECOND
    return StateSettings(
        two_sides=two_sides, seconds=seconds, directed=two_sides or record.get("directed") is not False
    )


def open_state(dataset: str, version: int, layout: Layout, show: Show) -> EventState:
    """Open the state of all events of a version, stored unless it is; show why where it cannot be written.

    A query then has its result from a disk that is full or read-only, and the next one makes the state again.
    """
    plan = _planned_state(layout, dataset, version)
    if plan.is_current:
        return read_state(plan.address)
    contents = save(_brought_up_to(layout, dataset, version).to_arrays())
    try:
        return read_state(plan.made(lambda: {STATE: contents}))
    except files.WriteFailed as error:
        show(f"the state of {dataset} is not stored, and the next query makes it again: {error}")
        return EventState.from_arrays(load(contents), settings_of(layout, dataset, version))


def is_state_stored(layout: Layout, dataset: str, version: int) -> bool:
    """Whether the state of all events of a version is stored, so that `open_state` has nothing to make."""
    return _planned_state(layout, dataset, version).is_current


def read_state(address: str) -> EventState:
    """Read a stored state, after a check of its checksum."""
    artifact = open_artifact(address)
    settings = StateSettings.from_record(artifact.lineage.settings)
    return EventState.from_arrays(load(artifact.content(STATE)), settings)


def _planned_state(layout: Layout, dataset: str, version: int) -> Planned:
    settings = asdict(settings_of(layout, dataset, version))
    return _planned(layout, "event_state", dataset, version, settings, STATE_CODE)


def _planned(
    layout: Layout, kind: str, dataset: str, version: int, settings: dict[str, Any], code: tuple[str, ...]
) -> Planned:
    """Plan an artifact of the events of a version; with `before` in the settings, of those that are older."""
    newest, before = newest_time(layout, dataset, version), settings.get("before")
    lineage = Lineage(
        kind=kind,
        dataset=dataset,
        table_version=version,
        settings=settings,
        code_version=code_digest(*code),
        max_event_time=newest if before is None else min(newest, before - 1),
        inputs=_commit_input(layout, dataset, version),
    )
    return planned(layout, lineage)


def _commit_input(layout: Layout, dataset: str, version: int) -> dict[str, str]:
    # The digest of a commit depends on those before it.
    return {layout.relative(layout.commit(dataset, version)): versions.opened(layout, dataset, version).digest}


def _brought_up_to(layout: Layout, dataset: str, version: int) -> EventState:
    """Make the state of a version from the newest stored one that its events follow, else from the beginning."""
    for earlier in _stored_versions(layout, dataset, below=version):
        plan = _planned_state(layout, dataset, earlier)
        if not plan.is_current or not _parts(layout, dataset, earlier) <= _parts(layout, dataset, version):
            continue  # a part that the version lacks is of a commit that was taken back
        newer = _events_since(layout, dataset, earlier, version)
        if newer.height and int(newer["time"][0]) < newest_time(layout, dataset, earlier):
            break
        state = read_state(plan.address)
        state.observe(_numbered(layout, dataset, version, newer))
        return state
    log = _numbered(layout, dataset, version, _events_since(layout, dataset, 0, version))
    state = EventState(log.num_sources, log.num_targets, settings_of(layout, dataset, version))
    state.observe(log)
    return state


def _parts(layout: Layout, dataset: str, version: int) -> set[tuple[int, str, str]]:
    parts = versions.opened(layout, dataset, version).parts
    return {(part["version"], part["path"], part["sha256"]) for part in parts}


def _stored_versions(layout: Layout, dataset: str, below: int) -> list[int]:
    names = files.children(layout.artifacts("event_state", dataset))
    numbers = (name.removeprefix("version=") for name in names if name.startswith("version="))
    return sorted((int(number) for number in numbers if number.isdecimal() and int(number) < below), reverse=True)


def _events_since(layout: Layout, dataset: str, earlier: int, version: int) -> pl.DataFrame:
    """Read the events of the commits after `earlier`, in order of time, else of the log."""
    events = scan_events(layout, dataset, version).filter(pl.col("ingest") > earlier)
    columns = ("ingest", "row", "source_node", "target_node", "time", "weight")
    return events.select(columns).sort("time", "ingest", "row").collect()


def _numbered(layout: Layout, dataset: str, version: int, events: pl.DataFrame) -> EventLog:
    """Number the nodes of events as `node_numbers` does: nodes of a commit that was taken back have numbers, too."""
    settings = settings_of(layout, dataset, version)
    sources, targets = node_numbers(layout, dataset, version)
    return EventLog(
        source_E=np.searchsorted(sources, events["source_node"].to_numpy()),
        target_E=np.searchsorted(targets, events["target_node"].to_numpy()),
        time_E=events["time"].to_numpy().astype(np.int64),
        weight_E=events["weight"].fill_null(1.0).to_numpy().astype(np.float64),
        num_sources=len(sources),
        num_targets=len(targets),
        two_sides=settings.two_sides,
        seconds=settings.seconds,
    )


def node_numbers(layout: Layout, dataset: str, version: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give the permanent numbers of the nodes that are sources, and of those that are targets, in ascending order."""
    nodes = node_dictionary(layout, dataset, version)
    numbers = [nodes.filter(side=side)["node"].cast(pl.Int64).to_numpy() for side in (0, 1)]
    return numbers[0], numbers[1] if len(numbers[1]) else numbers[0]


def make_model(
    dataset: str,
    version: int | None = None,
    *,
    before: int | None = None,
    method: EventForecaster | None = None,
    layout: Layout | None = None,
) -> str:
    """Store a forecaster fitted on the events of a version, unless it is stored; return its address.

    With `before`, only the events that are older than this time are read. Raises TooFewPastEvents.
    """
    layout = layout or Layout.from_environment()
    version = newest_version(layout, dataset) if version is None else version
    chosen = EventForecaster() if method is None else method
    directed = settings_of(layout, dataset, version).directed
    unit = declared_record(layout, dataset)["time_unit"]
    settings: dict[str, Any] = {"method": {**asdict(chosen), "directed": directed}, "before": before, "seed": SEED}
    plan = _planned(layout, "event_model", dataset, version, settings, MODEL_CODE)

    def make() -> dict[str, bytes]:
        log = events_before(layout, dataset, version, before).log
        forecaster = EventForecaster(**settings["method"])
        with ongoing(f"fit the event forecaster of {dataset}", forecaster.num_rounds, to_errors=True) as done:
            try:
                fitted = fit_on_past(forecaster, log, seed=SEED, done=done)
            except TooFewPastEvents as error:
                when = "" if before is None else f"before {written_moment(before, unit)}: "
                raise TooFewPastEvents(f"{when}{error}") from error
        return {EVENT_MODEL: json.dumps(fitted.record()).encode()}

    return plan.made(make)


def read_model(address: str) -> FittedEventForecaster:
    """Read a stored forecaster, after a check of its checksum."""
    return FittedEventForecaster.from_record(json.loads(read_bytes(address, EVENT_MODEL)))


def make_horizon(
    dataset: str,
    length: int,
    *,
    version: int | None = None,
    before: int | None = None,
    layout: Layout | None = None,
) -> str:
    """Store the event forecaster by pair of a version, the newest by default, for a length of time; give its address.

    With `before`, only the events that are older than this time are read. Raises TooFewPastEvents.
    """
    layout = layout or Layout.from_environment()
    version = newest_version(layout, dataset) if version is None else version
    of_state = settings_of(layout, dataset, version)
    settings = {"state": asdict(of_state), "length": length, "before": before, "seed": SEED}
    plan = _planned(layout, "horizon_model", dataset, version, settings, HORIZON_CODE)

    def make() -> dict[str, bytes]:
        log = events_before(layout, dataset, version, before).log
        fitted = fit_horizon(log, of_state, length=length, seed=SEED)
        return {EVENT_MODEL: json.dumps(fitted.record()).encode()}

    return plan.made(make)


def read_horizon(address: str) -> FittedHorizon:
    """Read a stored event forecaster by pair, after a check of its checksum."""
    return FittedHorizon.from_record(json.loads(read_bytes(address, EVENT_MODEL)))


def newest_model(layout: Layout, dataset: str, *, before: int | None = None, version: int | None = None) -> str | None:
    """Give the address of the stored forecaster that was fitted on the newest events; None where none is stored.

    With `before`, of those that have read no event at this time or later; without, of those that were fitted on all
    events of their version, because one for an earlier time knows less. With `version`, of those that were fitted on
    this version of the log or an earlier one, else on any. One is left out if a commit of its version was taken back,
    or if other code made it.
    """
    code = code_digest(*MODEL_CODE)
    newest = versions.newest(layout, dataset).number if version is None else version
    candidates: list[tuple[int, int, str]] = []
    parts = _parts(layout, dataset, newest)  # read once, because a server looks each second
    for location in files.find(layout.artifacts("event_model", dataset), MANIFEST):
        address = location.removesuffix(f"/{MANIFEST}")
        lineage = open_artifact(address).lineage
        if lineage.code_version != code or not 1 <= lineage.table_version <= newest:
            continue
        last, fitted_version = lineage.max_event_time or 0, lineage.table_version
        if not (lineage.settings["before"] is None if before is None else last < before):
            continue
        is_of_log = (
            lineage.inputs == _commit_input(layout, dataset, fitted_version)
            and _parts(layout, dataset, fitted_version) <= parts
        )
        if is_of_log and is_current(address, lineage):
            candidates.append((last, lineage.table_version, address))
    return max(candidates)[2] if candidates else None
