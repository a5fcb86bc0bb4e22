"""Snapshots, and what was published before -> how far the newest step differs, and an alarm."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import Any

import numpy as np
import polars as pl

from dyformer.evaluation.drift import (
    DRIFT_SCHEMA,
    alarms_of,
    calibration,
    compared_steps,
    probability_shift,
    step_periods,
    step_values,
    vector_shift,
    with_deviations,
)
from dyformer.experiments.settings import Experiment, as_record
from flows.console import ongoing
from flows.tasks.complete_windows import make_complete_snapshots
from flows.tasks.made import made, plan
from flows.tasks.snapshots import Snapshots, open_snapshots
from storage.artifacts.artifact import ArtifactMissing, read_bytes, read_table
from storage.artifacts.made import Contents, Planned
from storage.champions import complete_rows, ledger

DRIFT, ALARMS, ALARM = "drift", "alarms.json", "alarm.json"
SENT = "sent"
WEBHOOK = "DYFORMER_ALARM_WEBHOOK"  # an address that may hold a secret, so it is no setting
SECONDS_TO_SEND = 5.0
ID = ["side", "id"]


def write_drift(snapshots: str, experiment: Experiment) -> str:
    """Compare the newest step with the earlier ones; return the address of the rows and of the alarms."""
    opened = open_snapshots(snapshots)
    published = _known(opened)
    settings = {
        **as_record(experiment, "drift"),
        "publications": published["number"].to_list(),
        "outcomes": published.drop_nulls("num_pairs")["number"].to_list(),
    }

    def compare() -> Contents:
        with ongoing(f"compare the newest step of {opened.dataset} with earlier ones", to_errors=True):
            graph = opened.graph(opened.num_steps)
            periods = step_periods(graph)
            published = _published_values(opened, periods[opened.num_steps])
            drift = with_deviations(pl.concat([step_values(graph), published]), periods)
        return {DRIFT: drift, ALARMS: json.dumps(alarms_of(drift, opened.num_steps, experiment.drift)).encode()}

    return made(opened, DRIFT, until=opened.num_steps, settings=settings, make=compare, code=(step_values,))


def send_alarm(snapshots: str, alarms: list[str]) -> str:
    """Post the alarms to the address in DYFORMER_ALARM_WEBHOOK, and return what became of it; never raises.

    The same metrics of the same step and history raise one alarm. That it was sent is stored after the request: if the
    process ends between the two, or the request fails, the next run sends it again.
    """
    if not alarms:
        return "none"
    opened = open_snapshots(snapshots)
    alarm = _planned_alarm(opened, alarms)
    became = SENT if alarm.is_current else _posted(opened, alarms)
    if became == SENT:
        alarm.made(lambda: {ALARM: json.dumps(became).encode()})
    return became


def send_again(snapshots: str, alarms: list[str]) -> str | None:
    """Post the alarms of a finished run that was not sent; None where it was, or where no address is set."""
    if not os.environ.get(WEBHOOK) or _planned_alarm(open_snapshots(snapshots), alarms).is_current:
        return None
    return send_alarm(snapshots, alarms)


def _planned_alarm(opened: Snapshots, alarms: list[str]) -> Planned:
    settings = {"alarms": sorted(text.split(" ")[0] for text in alarms)}
    # An alarm is not sent again where the code changes.
    return plan(opened, DRIFT, until=opened.num_steps, settings=settings, code=())


def read_drift(address: str) -> tuple[pl.DataFrame, list[str]]:
    """Read the rows of DRIFT_SCHEMA, and the alarms."""
    return read_table(address, DRIFT), json.loads(read_bytes(address, ALARMS))


def drift_line(drift: dict[str, Any]) -> str:
    """Write what differs from the earlier steps, and whether an alarm was sent."""
    if not drift["alarms"]:
        return "drift: none that raises an alarm"
    return f"drift: {'; '.join(drift['alarms'])}; alarm {drift['alarm']}"


def measured(dataset: str, experiment: Experiment) -> tuple[pl.DataFrame, list[str]]:
    """Measure the drift of a dataset's newest complete step, without an alarm; return what `read_drift` does."""
    return read_drift(write_drift(make_complete_snapshots(dataset), experiment))


def _posted(opened: Snapshots, alarms: list[str]) -> str:
    address = os.environ.get(WEBHOOK, "")
    if not address:
        return f"not sent, because {WEBHOOK} is not set"
    if not address.startswith(("http://", "https://")):
        return f"not sent, because {WEBHOOK} does not begin with http:// or https://"
    text = f"{opened.dataset}, step {opened.num_steps}: {'; '.join(alarms)}"
    record = {"text": text, "dataset": opened.dataset, "step": opened.num_steps, "alarms": alarms}
    headers = {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(address, json.dumps(record).encode(), headers)  # noqa: S310, checked above
        with urllib.request.urlopen(request, timeout=SECONDS_TO_SEND):  # noqa: S310
            return SENT
    except urllib.error.HTTPError as error:
        return f"not sent, because the webhook returned the status {error.code}"
    except (OSError, ValueError, HTTPException) as error:  # without its text, which may hold the secret of the address
        return f"not sent, because the webhook failed: {type(error).__name__}"


def _published_values(opened: Snapshots, period: int) -> pl.DataFrame:
    """Give the values of the metrics of published forecasts and vectors, at the step that they forecast."""
    known_edges = _known(opened)
    in_time = known_edges.filter(~pl.col("late").fill_null(value=False))
    newest = in_time.unique("start_time", keep="last", maintain_order=True).sort("start_time")
    by_step = {row["step"]: row for row in newest.to_dicts()}
    compared = compared_steps(list(by_step), period)
    rows = list(_shifts(opened, [([by_step[step] for step in steps], by_step[now]) for steps, now in compared]))
    for row in complete_rows(known_edges).to_dicts():
        value = calibration(row["num_pairs"], row["probability"], row["num_came"])
        rows.append((row["step"], "calibration", value))
    return pl.DataFrame(rows, {name: DRIFT_SCHEMA[name] for name in ("step", "metric", "value")}, orient="row")


def _known(opened: Snapshots) -> pl.DataFrame:
    """Read the ledger of the steps up to the newest one: what this step publishes is no part of its drift.

    `step` is that of these snapshots, because windows that replaced others have other numbers.
    """
    steps = opened.steps.select("start_time", "step").unique("start_time", keep="first", maintain_order=True)
    published = ledger(opened.layout, opened.dataset).drop("step")
    return published.join(steps, on="start_time", maintain_order="left")


def _shifts(
    opened: Snapshots, compared: Sequence[tuple[list[dict[str, Any]], dict[str, Any]]]
) -> Iterator[tuple[int, str, float]]:
    """Give the smallest distances of publications from earlier ones; those removed from the store are left out."""
    for earlier, now in compared:
        with suppress(ArtifactMissing):
            yield now["step"], "probabilities", min(_probability_shift(opened, before, now) for before in earlier)
            shifts = [_vector_shift(opened, before, now) for before in earlier]
            if known := [shift for shift in shifts if shift is not None]:
                yield now["step"], "vectors", min(known)


def _probability_shift(opened: Snapshots, before: dict[str, Any], now: dict[str, Any]) -> float:
    earlier, later = (_read(opened, row["forecasts"], "forecasts")["probability"] for row in (before, now))
    return probability_shift(earlier.to_numpy(), later.to_numpy())


def _vector_shift(opened: Snapshots, before: dict[str, Any], now: dict[str, Any]) -> float | None:
    """Give the distance of two publications' vectors, None if they have not both, the same, or of no common width."""
    if not (before["vectors"] and now["vectors"]) or before["vectors"] == now["vectors"]:
        return None
    text = pl.col("id").cast(pl.String)  # numbers become texts where a log gets its first id of letters
    earlier, later = (_read(opened, row["vectors"], "vectors").with_columns(text) for row in (before, now))
    both = earlier.join(later, on=ID, suffix="_later").select("vector", "vector_later")
    both = both.filter(pl.col("vector").list.len() == pl.col("vector_later").list.len())  # of equal models
    return None if both.is_empty() else vector_shift(*(np.array(both[name].to_list()) for name in both.columns))


def _read(opened: Snapshots, address: str, name: str) -> pl.DataFrame:
    return read_table(opened.layout.absolute(address), name)
