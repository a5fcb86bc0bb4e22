"""A log that may grow -> the snapshots of its complete windows, of which a retraining makes everything."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.graphs.snapshots import FIRST_EVALUATED_STEP
from dyformer.graphs.windows import WindowsMove, complete_ends
from dyformer.logs.counts import counted
from dyformer.logs.datasets import DATASETS
from dyformer.logs.moments import UnreadableMoment, read_moment
from dyformer.logs.time_windows import EPOCH, MICROSECOND, TimeUnit, Window, WindowError
from flows.tasks.snapshots import make_snapshots, open_snapshots
from storage.artifacts.artifact import MANIFEST, manifest
from storage.bytes import files
from storage.events.declarations import declared_record
from storage.events.table import history, newest_version
from storage.layout import Layout


class TooFewWindows(InvalidInput):
    """A growing log has too few complete windows to evaluate a forecast."""


class LaterWindows(InvalidInput):
    """A run as of a time after which further windows of the log are complete already."""


def make_complete_snapshots(
    dataset: str,
    as_of: str | None = None,
    version: int | None = None,
    show: Callable[[str], None] = lambda text: None,
) -> str:
    """Cut the complete windows of a table version (the newest by default) into snapshots; return their address.

    A window is complete when it ends at or before the time of the newest row, or the time `as_of`, less the lateness
    that is declared for the log. As long as no window is completed and no row of a complete one comes, the address
    stays the same. All windows of a log that is finished are complete, its last one too: a log is finished if it is
    declared so, or if it is a known one and has no other rows than those of the published file.

    Args:
        dataset: name of the log.
        as_of: "now", a time (in UTC if it has no zone), or a step of a log with integer steps.
        version: a version of the event table.
        show: called with a sentence about the window that is left out, if there is one.

    Raises:
        TooFewWindows: fewer complete windows than an evaluation needs.
        WindowsMove: a number of windows divides a log that has grown.
        WindowError: `as_of` or the lateness does not fit the log.
    """
    layout = Layout.from_environment()
    version = newest_version(layout, dataset) if version is None else version
    commits = history(layout, dataset, version)
    record = declared_record(layout, dataset)
    window, time_unit = Window.parse(record["window"]), record["time_unit"]
    end_T = _complete_ends(dataset, record, commits, as_of)
    if end_T is None:
        address = make_snapshots(dataset, version)
        _check_number(dataset, open_snapshots(address).num_steps, window)
        return address
    _check_number(dataset, len(end_T), window)
    end_time, newest = int(end_T[-1]), max(commits["last_time"])
    if newest >= end_time:
        until = "" if as_of is None else f" as of {as_of}"
        are = "is" if len(end_T) == 1 else "are"
        show(
            f"{dataset}: {counted(len(end_T), 'window')} {are} complete{until}, the last one until"
            f" {_text(end_time, time_unit)}; later rows, the newest of {_text(newest, time_unit)}, have no effect yet"
        )
    return make_snapshots(dataset, version, end_time)


def later_windows(snapshots: str) -> str | None:
    """Say in one line that windows after those of the snapshots are complete; None where these are the newest ones.

    Forecasts of a step that is known already are made to look at, or to evaluate: they are not published. None, too,
    where a number of windows divides a log that has grown, because its windows have moved.
    """
    opened = open_snapshots(snapshots)
    dataset, end_time = opened.dataset, opened.time("end_time", opened.num_steps)
    try:
        if complete_until(opened.layout, dataset) <= end_time:
            return None
    except WindowsMove:
        return None
    return (
        f"{dataset}: later windows than those until {_text(end_time, opened.time_unit)} are complete already, and"
        " forecasts of a step that is known are not published"
    )


def complete_until(layout: Layout, dataset: str) -> int:
    """Return the end of the newest complete window of a log as of its newest row; the first row's time without one.

    Raises WindowsMove where a number of windows divides a log that has grown.
    """
    commits = history(layout, dataset)
    end_T = _complete_ends(dataset, declared_record(layout, dataset), commits, None)
    if end_T is None:
        whole = open_snapshots(make_snapshots(dataset, layout=layout))
        return whole.time("end_time", whole.num_steps)
    return int(end_T[-1]) if len(end_T) else min(commits["first_time"])


def _complete_ends(
    dataset: str, record: dict[str, Any], commits: pl.DataFrame, as_of: str | None
) -> NDArray[np.int64] | None:
    """Give the ends of the complete windows; None where all are complete, because no more rows are to come."""
    window, time_unit, lateness = Window.parse(record["window"]), record["time_unit"], record.get("lateness", "0")
    if as_of is None and (_is_finished(dataset, record, commits) or _has_not_grown(window, commits)):
        return None
    first, newest = min(commits["first_time"]), max(commits["last_time"])
    now = None if as_of is None else moment(as_of, time_unit)
    try:
        return complete_ends(first, newest, window, time_unit, now=now, lateness=lateness)
    except WindowsMove as error:
        raise WindowsMove(f"{dataset}: {error}; or declare that no more rows will come (`finished=True`)") from error


def complete_snapshots(
    dataset: str, as_of: str | None = None, show: Callable[[str], None] = lambda text: None
) -> str | None:
    """Do the same for the newest version; None, and a sentence to `show`, if there are too few complete windows."""
    try:
        return make_complete_snapshots(dataset, as_of, show=show)
    except TooFewWindows as error:
        show(str(error))
        return None


def has_report(snapshots: str) -> bool:
    """Whether a run has reported on the steps of these snapshots, of the same windows and commits."""
    opened = open_snapshots(snapshots)
    keys = {"version": opened.steps["version"][-1], "until": opened.num_steps}
    manifests = files.find(opened.layout.artifacts("report", opened.dataset, **keys), MANIFEST)
    reports = (manifest(location.removesuffix(f"/{MANIFEST}")) for location in manifests)
    return any(report is not None and opened.has_history(report) for report in reports)


def moment(text: str, time_unit: TimeUnit) -> int:
    """Read "now", or a time as `dyformer rank --at` does, in the unit of the events' times.

    Raises:
        WindowError: anything else, or a time that does not fit the log.
    """
    if text == "now" and time_unit != "step":
        return (datetime.now(UTC) - EPOCH) // MICROSECOND
    try:
        return read_moment(text, time_unit)
    except UnreadableMoment as error:
        now = "" if time_unit == "step" else ', or "now"'
        raise WindowError(f"`as_of`: {error}{now}") from None


def _check_number(dataset: str, num_complete: int, window: Window) -> None:
    if num_complete < FIRST_EVALUATED_STEP:
        windows = counted(num_complete, "complete window")
        raise TooFewWindows(
            f"{dataset} has {windows} of {str(window)!r}, and a run needs {FIRST_EVALUATED_STEP}:"
            " wait for rows, choose shorter windows (`window`), or declare that no more rows will come"
            " (`finished=True`)"
        )


def _is_finished(dataset: str, record: dict[str, Any], commits: pl.DataFrame) -> bool:
    if record.get("finished") is not None or dataset not in DATASETS:
        return bool(record.get("finished"))
    published = DATASETS[dataset].sha256
    return commits.height == 1 and published in (None, commits["batch"][0])


def _has_not_grown(window: Window, commits: pl.DataFrame) -> bool:
    """Whether the windows divide the rows of a first ingest: these are complete until a row comes."""
    return window.count is not None and commits["version"].n_unique() == 1


def _text(time: int, time_unit: TimeUnit) -> str:
    return str(time) if time_unit == "step" else f"{(EPOCH + time * MICROSECOND):%Y-%m-%d %H:%M:%S} UTC"
