"""Forecasts and vectors of the champion -> the publication that names them, by which views and the ledger find them."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import polars as pl

from dyformer import InvalidInput
from dyformer.experiments.settings import OldSettings
from dyformer.graphs.windows import WindowsMove, next_window
from dyformer.logs.time_windows import Window
from dyformer.training.checkpoint import WeightsDoNotFit
from flows.tasks.complete_windows import complete_until
from flows.tasks.evaluation.promote import MOST_TRIES, champion_of, identity
from flows.tasks.models import Contender, space_of
from flows.tasks.predict import write_vectors
from flows.tasks.snapshots import Snapshots, open_snapshots
from flows.tasks.spaces import space_record
from storage.artifacts.artifact import Lineage, digest, lineage_of, manifest, read_table
from storage.artifacts.code import code_digest
from storage.artifacts.made import planned
from storage.champions import (
    PUBLICATION_SCHEMA,
    PUBLICATIONS,
    PUBLISHED_KINDS,
    champion_lock,
    next_publication,
    publications,
    read_champion,
    replace_champion,
)
from storage.events.declarations import declared_record
from storage.events.table import history
from storage.layout import Layout

ROLLBACK = "rollback.json"


def publish(snapshots: str, contender: Contender, forecasts: str, vectors: str | None) -> str | None:
    """Record forecasts as the newest of the champion; return the address of the publication.

    None, without effect, if the contender is not the champion, because none was chosen yet, or another one meanwhile.
    Forecasts that the champion published last are not published twice. Those whose step is complete by now, as after a
    training that took longer than a window, are late: they are published, and are no forecast that the ledger counts.
    """
    opened = open_snapshots(snapshots)
    layout, dataset, until = opened.layout, opened.dataset, lineage_of(forecasts).until
    assert until is not None
    addresses = {
        "forecasts": layout.relative(forecasts),
        "vectors": None if vectors is None else layout.relative(vectors),
    }
    with champion_lock(layout, dataset):
        for _ in range(MOST_TRIES):
            record, stamp = read_champion(layout, dataset)
            if record is None or record["identity"] != identity(contender):
                return None
            if {**(record.get("published") or {}), **addresses} == record.get("published"):
                return _written(layout, dataset, record)
            published = {
                "number": next_publication(layout, dataset, record),
                "step": until + 1,
                **addresses,
                "published_at": now(),
                "late": is_late(layout, dataset, forecasts),
            }
            if replace_champion(layout, dataset, {**record, "published": published}, stamp):
                return _written(layout, dataset, {**record, "published": published})
    raise InvalidInput(f"dataset {dataset!r}: other machines changed the champion {MOST_TRIES} times; try again")


def is_late(layout: Layout, dataset: str, forecasts: str) -> bool:
    """Whether the step of forecasts is complete by now.

    The steps of a log that a number of windows divides are never so: they move when rows come.
    """
    lineage = lineage_of(forecasts)
    window, newest = Window.parse(lineage.settings["window"]), lineage.max_event_time
    assert newest is not None
    if window.count is not None:
        return False
    unit = declared_record(layout, dataset)["time_unit"]
    end = next_window(newest + 1, newest + 1, 0, window, unit).end  # fixed lengths follow from their own start
    assert end is not None
    with suppress(WindowsMove):
        return complete_until(layout, dataset) >= end
    return False


def taken_back_line(layout: Layout, dataset: str) -> str | None:
    """Say in one line that the newest forecasts were made from rows that the log no longer has; None where it has them.

    Champions and publications stay as they are when a commit is taken back.
    """
    published = publications(layout, dataset)["forecasts"].to_list()
    lineage = manifest(layout.absolute(published[-1])) if published else None
    if lineage is None or lineage.table_version in history(layout, dataset)["version"]:
        return None
    return (
        f"{dataset}: the forecasts published last were made from rows that were taken back, and stay published until"
        f" `dyformer predict {dataset}` or a retraining on new rows"
    )


def now() -> str:
    """Give the present time in UTC, as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def published_vectors(snapshots: str, model: str, seed: int = 0) -> str:
    """Write a model's vectors as of the newest step, in the space of those published last; return the address.

    What was published of this model and step is returned as it is. Vectors of a later step are not read, and of earlier
    publications only the newest one whose vectors are there.
    """
    opened = open_snapshots(snapshots)
    step, space, end_time = opened.num_steps, space_of(model), opened.time("end_time", opened.num_steps)
    published = publications(opened.layout, opened.dataset).drop_nulls("vectors").reverse()
    for address, lineage in _lineages(opened.layout, published.filter(step=step + 1)["vectors"]):
        if lineage.until == step and lineage.settings["model"] == space and opened.has_history(lineage):
            return address
    lineages = _lineages(opened.layout, published["vectors"])
    earlier = (address for address, lineage in lineages if (lineage.max_event_time or 0) < end_time)
    return write_vectors(snapshots, model, seed=seed, onto=next(earlier, None))


def vectors_to_publish(snapshots: str, contender: Contender, seed: int = 0) -> str | None:
    """Write the vectors that are published with a contender's forecasts; return their address.

    They are those of its newest weights, or, for a contender without any, of the weights whose vectors were published
    last. None without such weights, or where this version cannot read them.
    """
    if contender.models:
        return published_vectors(snapshots, contender.models[-1], seed)
    model = model_of_vectors(open_snapshots(snapshots))
    with suppress(WeightsDoNotFit, OldSettings):
        return None if model is None else published_vectors(snapshots, model, seed)
    return None


def model_of_vectors(opened: Snapshots) -> str | None:
    """Return the model of the vectors that were published last; None where it is gone, or of rows taken back since."""
    addresses = publications(opened.layout, opened.dataset)["vectors"].drop_nulls().to_list()
    vectors = manifest(opened.layout.absolute(addresses[-1])) if addresses else None
    inputs = [] if vectors is None else [opened.layout.absolute(name) for name in vectors.inputs]
    end_time = opened.time("end_time", opened.num_steps)
    for address in inputs:
        lineage = manifest(address)
        if lineage is not None and lineage.kind == "model" and (lineage.max_event_time or 0) < end_time:
            return address
    return None


def _lineages(layout: Layout, names: pl.Series) -> Iterator[tuple[str, Lineage]]:
    """Open the artifacts of relative addresses one after the other; those that are not complete are left out."""
    for address in map(layout.absolute, names.unique(maintain_order=True)):
        if (lineage := manifest(address)) is not None:
            yield address, lineage


def publish_again(layout: Layout, dataset: str) -> None:
    """Write the publication that the champion's record names, after a rollback.

    The rollback is recorded first: once the publication is there, it would not be finished by another call.
    """
    record = champion_of(layout, dataset)
    if record is not None and record.get("published") is not None:
        _write_rollback(layout, record)
        _written(layout, dataset, record)


def _write_rollback(layout: Layout, record: dict[str, Any]) -> None:
    """Record which champion was restored, because MLflow then gives its model the alias."""
    published = record["published"]
    forecasts = lineage_of(layout.absolute(published["forecasts"]))
    restored = {"number": record["number"], "title": record["title"], "reason": record["reason"]}
    restored |= {name: published[name] for name in PUBLISHED_KINDS}
    lineage = replace(forecasts, kind="rollback", settings=restored, settings_hash="", inputs={}, code_version="none")
    planned(layout, lineage).made(lambda: {ROLLBACK: json.dumps(restored).encode()})


def _written(layout: Layout, dataset: str, record: dict[str, Any]) -> str:
    published = record["published"]
    inputs = {
        published[name]: digest(layout.absolute(published[name]))
        for name in ("forecasts", "vectors")
        if published[name]
    }
    made = lineage_of(layout.absolute(published["forecasts"]))
    assert made.until is not None
    assert made.max_event_time is not None
    space = dict.fromkeys(("space_id", "agreement_before", "agreement", "agreement_of_others"))
    if published["vectors"]:
        own = space_record(layout.absolute(published["vectors"]))
        space = {name: own[name] for name in space}
    row = {
        "number": published["number"],
        "champion": record["number"],
        "method": record["title"],
        "step": published["step"],
        "start_time": made.max_event_time + 1,  # the forecast step begins where the last known one ends
        "forecasts": published["forecasts"],
        "vectors": published["vectors"],
    }
    lineage = Lineage(
        kind=PUBLICATIONS,
        dataset=dataset,
        table_version=made.table_version,
        until=made.until,
        settings=row,
        code_version=code_digest(),  # a record, of which nothing is computed
        max_event_time=made.max_event_time,
        inputs=inputs,
    )

    def table() -> pl.DataFrame:
        moments = {**_times(layout, published), "late": published["late"]}
        return pl.DataFrame([row | space | moments], schema=PUBLICATION_SCHEMA)

    return planned(layout, lineage).made(lambda: {PUBLICATIONS: table()})


def _times(layout: Layout, published: dict[str, Any]) -> dict[str, datetime | None]:
    """Give the time of a publication, and the times from and until which its forecasts hold; null where not known."""
    newest = read_table(layout.absolute(published["forecasts"]), "forecasts").head(1).to_dicts()
    first = newest[0] if newest else {}
    holds = {name: first.get(name) for name in ("valid_from", "valid_to")}
    return {"published_at": datetime.fromisoformat(published["published_at"]).replace(tzinfo=None), **holds}
