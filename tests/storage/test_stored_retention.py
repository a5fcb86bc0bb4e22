"""What is removed of a synthetic store: nothing young, nothing that a champion needs, no file of a user."""

from pathlib import Path

import polars as pl
import pytest
from test_events_table import append, result

from storage import removal
from storage.artifacts.artifact import Lineage, digest, manifest, write_artifact
from storage.artifacts.made import planned
from storage.bytes import files
from storage.bytes.files import remove_folder
from storage.champions import replace_champion
from storage.events.commits import take_back
from storage.events.declarations import declare
from storage.layout import EVENT_MODEL, Layout
from storage.removal import prune, removable

KEYS = {"settings": "abc", "seed": 0}


def written(layout: Layout, kind: str, version: int, inputs: tuple[str, ...] = ()) -> str:
    """Write an artifact of a version, whose newest step is the version."""
    lineage = Lineage(
        kind=kind,
        dataset="chat",
        table_version=version,
        until=version,
        inputs={layout.relative(address): digest(address) for address in inputs},
    )
    if kind == "snapshots":
        steps = pl.DataFrame({"step": range(1, version + 1), "version": range(1, version + 1)})
        return write_artifact(
            layout.artifact("snapshots", "chat", version=version, settings="abc"), {"steps": steps}, lineage
        )
    address = layout.artifact(kind, "chat", version=version, until=version, **KEYS)
    return write_artifact(address, {"content": b"bytes"}, lineage)


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """Ten versions of snapshots, models, vectors and forecasts; a baseline is champion and published at version 1."""
    layout = Layout(str(tmp_path / "store"))
    files.write_bytes(f"{layout.commit('chat', 1)}/part", b"rows")
    published = {}
    for version in range(1, 11):
        written(layout, "snapshots", version)
        model = written(layout, "model", version)
        made = {
            "vectors": written(layout, "vectors", version, (model,)),
            "forecasts": written(layout, "forecasts", version),
        }
        published = published or {kind: layout.relative(address) for kind, address in made.items()}
    record = {"title": "L3", "models": [], "identity": "L3", "num_tests": 0, "tests": {}, "number": 1, "earlier": []}
    record |= {"number": 1, "published": {"number": 1, "step": 2, "published_at": "", "late": False, **published}}
    assert replace_champion(layout, "chat", record, None)
    monkeypatch.setattr(removal, "YOUNG_SECONDS", 0.0)
    return layout


def versions(layout: Layout, addresses: list[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for address in addresses:
        kind, keys = layout.describe(address)
        found.setdefault(kind, []).append(int(keys["version"]))
    return {kind: sorted(numbers) for kind, numbers in found.items()}


def test_old_versions_go_but_for_what_a_champion_published_and_the_model_behind_its_vectors(layout: Layout):
    old = [1, 2, 3]  # of ten, the newest two and five steps before them stay
    needed = old[1:]
    expected = {"snapshots": old, "model": needed, "vectors": needed, "forecasts": needed}
    assert versions(layout, removable(layout, "chat", 2)) == expected
    removed = prune(layout, "chat", 2)
    assert not any(files.find(address) for address in removed)
    assert removable(layout, "chat", 2) == []


def test_what_was_written_within_a_day_stays(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(removal, "YOUNG_SECONDS", 3_600.0)
    assert removable(layout, "chat", 2) == []


def test_a_version_of_which_anything_was_written_within_a_day_stays_whole(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
):
    report = written(layout, "report", 2)
    monkeypatch.setattr(removal, "_is_young", lambda address: address == report)
    assert versions(layout, removable(layout, "chat", 2)) == {
        "snapshots": [1, 3],
        "model": [3],
        "vectors": [3],
        "forecasts": [3],
    }


def test_a_killed_removal_leaves_no_report_without_what_it_names_and_its_repetition_removes_the_rest(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
):
    reports = {version: written(layout, "report", version) for version in range(1, 11)}
    expected = removable(layout, "chat", 2)
    while removable(layout, "chat", 2):
        with monkeypatch.context() as patch:
            patch.setattr(removal.files, "remove_folder", killed_after_one)
            with pytest.raises(Killed):
                prune(layout, "chat", 2)
        for version, report in reports.items():
            forecasts = layout.artifact("forecasts", "chat", version=version, until=version, **KEYS)
            assert not files.find(report) or files.find(forecasts)
    assert {versions(layout, [each]).popitem()[0] for each in expected} >= {"report", "snapshots", "forecasts"}
    assert not any(files.find(address) for address in expected)


class Killed(Exception):
    """Ends a removal."""


def killed_after_one(address: str) -> None:
    remove_folder(address)
    raise Killed


def test_the_event_forecaster_that_rankings_as_of_now_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(removal, "YOUNG_SECONDS", 0.0)
    layout = Layout(str(tmp_path / "ranked"))
    declare(layout, "chat", {"window": "1d"})
    forecasters = []
    for number in range(1, 11):
        append(layout, "chat", result([("a", "b", number)]), f"sha-{number}")
        if number in (1, 2, 4):
            forecasters.append(forecaster(layout, number, before=None))
        if number == 4:
            take_back(layout, "chat")
    as_of_then = forecaster(layout, 3, before=2)
    for version in range(1, 12):
        written(layout, "snapshots", version)
    assert {*forecasters, as_of_then} - set(removable(layout, "chat", 2)) == {forecasters[1]}
    prune(layout, "chat", 2)
    assert manifest(forecasters[1])


def forecaster(layout: Layout, version: int, before: int | None) -> str:
    """Write an event forecaster that was fitted on the events of a version."""
    settings = {"before": before, "seed": 0}
    lineage = Lineage(kind="event_model", dataset="chat", table_version=version, settings=settings)
    return planned(layout, lineage).made(lambda: {EVENT_MODEL: b"{}"})


@pytest.mark.parametrize("wide", ["aaa", "xyz"])
def test_the_newest_steps_of_all_windows_of_the_newest_version_stay(layout: Layout, wide: str):
    """Of the two snapshots of version 10, the one of wider windows has its seven newest steps from version 2 on."""
    steps = pl.DataFrame({"step": range(1, 8), "version": [2, 3, 4, 5, 6, 8, 10]})
    lineage = Lineage(kind="snapshots", dataset="chat", table_version=10, until=7)
    write_artifact(layout.artifact("snapshots", "chat", version=10, settings=wide), {"steps": steps}, lineage)
    assert versions(layout, removable(layout, "chat", 2)) == {"snapshots": [1]}


def test_snapshots_that_a_killed_writer_left_unfinished_stop_no_removal(layout: Layout):
    files.write_bytes(f"{layout.artifact('snapshots', 'chat', version=10, settings='aaa')}/steps.parquet", b"part")
    assert versions(layout, removable(layout, "chat", 2))["snapshots"] == [1, 2, 3]


def test_a_file_without_a_version_in_its_address_stays(layout: Layout):
    folder = layout.of_dataset(f"{layout.artifact_folders[0]}/notes", "chat")
    files.write_bytes(f"{folder}/author=anna/note.txt", b"mine")
    prune(layout, "chat", 2)
    assert files.read_bytes(f"{folder}/author=anna/note.txt") == b"mine"


def test_fewer_than_two_versions_are_refused(layout: Layout):
    with pytest.raises(ValueError, match="at least 2"):
        removable(layout, "chat", 1)
