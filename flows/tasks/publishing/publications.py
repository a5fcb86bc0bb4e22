"""Forecasts and vectors of the champion -> the publication that names them, by which views and the ledger find them."""

from typing import Any

import polars as pl

from flows.tasks.evaluation.promote import MOST_TRIES, ChampionChanged, champion_of, identity, record_and_stamp
from flows.tasks.models import Contender
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import Lineage, digest, lineage_of, write_artifact
from storage.champions import champion_lock, next_publication, replace_champion, tenure
from storage.layout import Layout
from storage.published import PUBLICATION_SCHEMA, PUBLICATIONS


def publish(snapshots: str, contender: Contender, forecasts: str, vectors: str | None) -> str | None:
    """Record forecasts as the newest of the champion; return the address of the publication.

    None, without effect, if the contender is not the champion, because none was chosen yet, or another one meanwhile.
    Forecasts that the champion published last are not published twice.
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
            record, stamp = record_and_stamp(layout, dataset)
            if record is None or record["identity"] != identity(contender):
                return None
            if {**(record.get("published") or {}), **addresses} == record.get("published"):
                return _written(layout, dataset, record)
            published = {"number": next_publication(record), "step": until + 1, **addresses}
            if replace_champion(layout, dataset, {**record, "published": published}, stamp):
                return _written(layout, dataset, {**record, "published": published})
    raise ChampionChanged(f"dataset {dataset!r}: other machines changed the champion {MOST_TRIES} times; try again")


def publish_again(layout: Layout, dataset: str) -> None:
    """Write the publication that the champion's record names, after a rollback."""
    record = champion_of(layout, dataset)
    if record is not None and record.get("published") is not None:
        _written(layout, dataset, record)


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
    row = {
        "number": published["number"],
        "champion": tenure(record)["number"],
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
        max_event_time=made.max_event_time,
        inputs=inputs,
    )
    keys = {"version": made.table_version, "until": made.until, "settings": lineage.settings_hash}
    return write_artifact(
        layout.publication(dataset, **keys), {PUBLICATIONS: pl.DataFrame([row], schema=PUBLICATION_SCHEMA)}, lineage
    )
