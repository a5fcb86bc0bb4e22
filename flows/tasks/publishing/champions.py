"""A dataset with several champions -> the way back to an earlier one."""

import json
from datetime import UTC, datetime
from typing import Any

from dyformer import InvalidInput
from flows.tasks.evaluation.promote import MISSING, MOST_TRIES, champion_of, is_usable
from flows.tasks.publishing.publications import ROLLBACK, is_late, publish_again
from flows.tasks.snapshots import make_snapshots, open_snapshots
from flows.tasks.tracking.retraining import register
from storage.artifacts.artifact import Lineage, lineage_of, manifest, read_bytes
from storage.artifacts.made import HISTORY
from storage.bytes.checksums import sha256
from storage.champions import (
    PUBLISHED_KINDS,
    champion_lock,
    next_publication,
    numbered_after,
    publications,
    read_champion,
    replace_champion,
    update_copy,
)
from storage.events.table import check_dataset, first_arrival
from storage.layout import Layout
from storage.tracking.runs import Tracker


def rollback(dataset: str, number: int | None = None) -> dict[str, Any]:
    """Make an earlier champion the present one again, with its newest forecasts and vectors; return its record.

    The outcomes of the tests against it are those of before, and a test that the present champion won is recorded as
    one that it does not win: neither is compared again. The next comparison, on a later step or of other weights, may
    replace it again. A rollback that ended before it had published is finished by the next one, unless that names
    another champion.

    Args:
        dataset: name of the log.
        number: of `champions`; by default that of the champion before.

    Raises:
        ValueError: there is no such earlier champion, or its weights or what it published last are missing.
        ValueError: other machines replaced the record on every try.
    """
    layout = Layout.from_environment()
    check_dataset(layout, dataset)
    with champion_lock(layout, dataset):
        update_copy(layout, dataset)
        for _ in range(MOST_TRIES):
            record, stamp = read_champion(layout, dataset)
            if record is not None and _is_unfinished(layout, dataset, record, number):
                publish_again(layout, dataset)
                return record
            restored = _restored(layout, dataset, record, number)
            if replace_champion(layout, dataset, restored, stamp):
                publish_again(layout, dataset)
                return restored
    raise InvalidInput(f"dataset {dataset!r}: other machines changed the champion {MOST_TRIES} times; try again")


def send_rollback(tracker: Tracker, address: str) -> dict[str, Any]:
    """Register what a champion that was restored had published last; it has the alias `champion` while it is champion.

    Returns the run and the version; none of them if it had published no vectors, which a registered model has.
    """
    layout, record = tracker.layout, json.loads(read_bytes(address, ROLLBACK))
    dataset, title = lineage_of(address).dataset, record["title"]
    addresses = {kind: layout.absolute(record[kind]) for kind in PUBLISHED_KINDS if record[kind]}
    if "vectors" not in addresses:
        return {}
    forecast, vectors = lineage_of(addresses["forecasts"]), lineage_of(addresses["vectors"])
    assert forecast.max_event_time is not None
    opened = open_snapshots(make_snapshots(dataset, forecast.table_version, forecast.max_event_time + 1))
    present = champion_of(layout, dataset)
    is_present = present is not None and present["number"] == record["number"]
    published = (present or {}).get("published") or {}  # it may have published something newer since
    aliases = ("champion",) * (is_present and published.get("forecasts") == record["forecasts"])
    tags = {"stage": "rollback", "method": title, "champion": title, "reason": record["reason"]}
    key = sha256(f"rollback {dataset} {first_arrival(layout, dataset)} {record['number']}".encode())[:32]
    with tracker.run(dataset=dataset, name=f"champion {record['number']}", tags=tags, key=key) as run:
        model = layout.absolute(_model_of(vectors))
        version = register(run, opened, model, addresses, aliases, record["reason"], title)
    return {**run.where, "model_version": version}


def _model_of(vectors: Lineage) -> str:
    """Give the address of the weights that gave vectors, whose other inputs are their history and earlier vectors."""
    [model] = set(vectors.inputs) - {HISTORY, vectors.settings.get("onto")}
    return model


def _is_unfinished(layout: Layout, dataset: str, record: dict[str, Any], number: int | None) -> bool:
    """Whether a rollback to this champion was recorded, and its publication was not written.

    A retraining that was killed there records forecasts that no earlier champion has published.
    """
    published = record.get("published")
    if published is None or published["number"] in publications(layout, dataset)["number"]:
        return False
    restored = [champion["number"] for champion in record["earlier"] if _publishes_the_same(champion, record)]
    return (bool(restored) if number is None else number in restored) and _missing(layout, record) is None


def _publishes_the_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    kinds = [[(champion.get("published") or {}).get(kind) for kind in PUBLISHED_KINDS] for champion in (one, other)]
    return one["identity"] == other["identity"] and kinds[0] == kinds[1]


def _missing(layout: Layout, record: dict[str, Any]) -> str | None:
    """Name the first thing missing that a rollback to this champion needs; None if all is there."""
    if not is_usable(layout, record):
        return MISSING
    published = record.get("published") or {}
    addresses = {kind: layout.absolute(published[kind]) for kind in PUBLISHED_KINDS if published.get(kind)}
    for kind, address in addresses.items():
        if not manifest(address):
            return f"the {kind} that were published last are missing"
    # A baseline publishes a challenger's vectors.
    if "vectors" in addresses and not manifest(layout.absolute(_model_of(lineage_of(addresses["vectors"])))):
        return "the weights of the vectors that were published last are missing"
    return None


def _restored(layout: Layout, dataset: str, record: dict[str, Any] | None, number: int | None) -> dict[str, Any]:
    """Give the record of an earlier champion as that of the present one."""
    earlier = [] if record is None else record["earlier"]
    if record is None or not earlier:
        raise InvalidInput(f"{dataset} has no earlier champion: `dyformer champions {dataset}` lists all")
    chosen = earlier[-1]["number"] if number is None else number
    holders = [champion for champion in earlier if champion["number"] == chosen]
    if not holders:
        numbers = ", ".join(str(champion["number"]) for champion in earlier)
        raise InvalidInput(f"{dataset} has no earlier champion {chosen}: expected one of {numbers}")
    target = holders[0]
    missing = _missing(layout, target)
    if missing is not None:
        raise InvalidInput(f"{dataset}: {missing}, those of champion {chosen} ({target['title']}): choose another one")
    reason = f"champion {record['number']} ({record['title']}) was rolled back to champion {chosen}"
    named = {"title": target["title"], "models": target["models"]}
    again = {
        key: {**outcome, "promoted": False, "champion": named, "reason": reason}
        for key, outcome in record["tests"].items()
    }
    changes: dict[str, Any] = {"reason": reason, "since": datetime.now(UTC).isoformat(timespec="seconds")}
    published = target.get("published")
    if published is not None:
        changes["published"] = {
            **published,
            "number": next_publication(layout, dataset, record),
            "published_at": changes["since"],
            "late": is_late(layout, dataset, layout.absolute(published["forecasts"])),
        }
    return {**target, **numbered_after(record), **changes, "tests": {**target["tests"], **again}}
