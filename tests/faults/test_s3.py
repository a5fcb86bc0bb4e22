"""A sample of the sweep over an S3 server that fails; `make test-faults` runs all commands."""

import io
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import polars as pl
import pytest
from flaky_store import KINDS, Fault, Proxy, proxy
from ingests import DATASET, ingested, write_logs

from dyformer.logs.events import ReadResult
from flows.tasks.tracking import results
from flows.tasks.tracking.projection import project
from storage.artifacts.artifact import Lineage, write_artifact
from storage.bytes import checksums, files, objects
from storage.events.commits import append_all
from storage.events.rows import EVENT_COLUMNS, QUARANTINE_COLUMNS
from storage.events.table import history, read_events
from storage.events.versions import TableDamaged
from storage.layout import Layout
from storage.removal import drop_dataset
from storage.tracking.runs import Tracker
from storage.verification import faults

NUM_TRIES = 4
MOST_SECONDS_OF_MLFLOW = 15.0  # three tries, and boto3's pauses of up to a second before each


@pytest.fixture(scope="module")
def failing(s3_bucket: str) -> Iterator[Proxy]:
    """Reach the S3 server of the tests through a proxy that fails on demand; nothing waits for long."""
    with proxy(urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 0) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", made.address)
        for name, seconds in {"REQUEST_SECONDS": 0.4, "RETRY_SECONDS": 0.7, "FIRST_PAUSE_SECONDS": 0.01}.items():
            patch.setattr(objects, name, seconds)
        objects._store.cache_clear()
        yield made
    objects._store.cache_clear()


@pytest.fixture
def layout(s3_bucket: str, failing: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv("DYFORMER_STORAGE", f"{s3_bucket}/{tmp_path.name}")
    monkeypatch.setenv("DYFORMER_STATE", str(state))
    failing.set(Fault())
    return Layout.from_environment()


def requests_of(layout: Layout) -> dict[str, tuple[Callable[[], object], object]]:
    """Give each kind of request, and what it returns; each can be done again."""
    root = layout.root
    files.write_bytes(f"{root}/a/read", b"content")
    return {
        "read": (lambda: files.read_bytes(f"{root}/a/read"), b"content"),
        "stream": (lambda: files.open_stream(f"{root}/a/read").read(), b"content"),
        "size": (lambda: files.size(f"{root}/a/read"), 7),
        "find": (lambda: files.find(f"{root}/a", "read"), [f"{root}/a/read"]),
        "children": (lambda: files.children(root), ["a"]),
        "write": (lambda: files.write_bytes(f"{root}/a/read", b"content"), None),
        "remove": (lambda: files.remove(f"{root}/a/none"), None),
        "create": (lambda: (files.remove(f"{root}/b"), files.create_bytes(f"{root}/b", b"new"))[1], True),
        "replace": (lambda: files.replace_bytes(f"{root}/b", os.urandom(9), files.stamp(f"{root}/b")), True),
    }


def test_one_failed_request_has_no_effect(layout: Layout, failing: Proxy):
    generator = random.Random(seed := int.from_bytes(os.urandom(4)))
    for name, (request, expected) in requests_of(layout).items():
        failing.set(Fault())
        assert request() == expected
        num_requests = len(failing.requests())
        for kind in KINDS:
            at = generator.randrange(num_requests) + 1
            fault = Fault(kind=kind, number=at, is_after=generator.random() < 0.5)
            failing.set(fault)
            assert request() == expected, f"seed {seed}, {name}: {fault}"


def test_a_write_that_succeeded_is_not_taken_for_another_writers(layout: Layout, failing: Proxy):
    address = f"{layout.root}/record"
    for kind in KINDS:
        files.remove(address)
        failing.set(Fault(kind=kind, number=1, is_after=True))
        assert files.create_bytes(address, b"first"), kind
        stamp = files.stamp(address)
        failing.set(Fault(kind=kind, number=1, is_after=True))
        assert files.replace_bytes(address, b"second", stamp), kind
        failing.set(Fault())
        assert not files.create_bytes(address, b"third")
        assert not files.replace_bytes(address, b"third", stamp)


@pytest.mark.parametrize(("kind", "names"), [("HTML", ("size", "read", "find", "create")), ("nothing", ("find",))])
def test_a_store_that_is_away_is_one_named_error_in_time(
    layout: Layout, failing: Proxy, kind: str, names: tuple[str, ...]
):
    for name, (request, _) in requests_of(layout).items():
        if name in names:
            failing.set(Fault(kind=kind, number=1, seconds=60.0))
            started = time.monotonic()
            with pytest.raises(
                objects.StoreUnreachable, match=rf"^{layout.root}.* cannot be reached .*; check"
            ) as error:
                request()
            assert time.monotonic() - started < 2 * (objects.RETRY_SECONDS + 2 * objects.REQUEST_SECONDS), name
            assert "\n" not in str(error.value)
            failing.set(Fault())


def test_a_store_that_is_away_for_a_while_is_waited_for(layout: Layout, failing: Proxy):
    request, expected = requests_of(layout)["create"]
    failing.set(Fault(kind="503", number=1, seconds=0.7 * objects.RETRY_SECONDS))
    assert request() == expected


def test_a_listing_that_may_go_on_is_requested_again(layout: Layout):
    pages = [range(objects.PAGE_ENTRIES), range(objects.PAGE_ENTRIES + 5)]
    assert objects.listed(layout.root, lambda: pages.pop(0)) == range(objects.PAGE_ENTRIES + 5)
    assert not pages


def test_ingests_survive_failed_requests(layout: Layout, failing: Proxy, tmp_path: Path):
    write_logs(tmp_path)
    ingested("first")
    num_requests, expected = len(failing.requests()), read_events(layout, DATASET)
    generator = random.Random(seed := int.from_bytes(os.urandom(4)))
    for number in range(NUM_TRIES):
        files.remove_folder(layout.root)
        at = generator.randrange(num_requests) + 1
        fault = Fault(kind=generator.choice(KINDS), number=at, is_after=generator.random() < 0.5)
        failing.set(fault)
        ingested("first")
        failing.set(Fault())
        assert read_events(layout, DATASET).equals(expected), f"seed {seed}, try {number}: {fault}"
        assert history(layout, DATASET)["version"].to_list() == [1]
        assert not list(faults(layout)), f"seed {seed}, try {number}: {fault}"


def without_own_copies() -> None:
    """Remove the copies of objects that this process has made, as if it had just started."""
    for copy in Path(checksums._folder().name).iterdir():
        copy.unlink()


def without_copies(layout: Layout) -> None:
    """Remove all copies of the dataset's objects, as if this process had just started on another machine."""
    without_own_copies()
    files.remove_folder(layout.copies(DATASET))


def requests_for(failing: Proxy, read: Callable[[], object]) -> list[str]:
    failing.set(Fault())
    read()
    return failing.requests()


def committed(layout: Layout, dataset: str, num_commits: int) -> None:
    """Commit one row after the other to a local store, which takes less time, and copy it."""
    local = Layout(f"{layout.state}/local")
    events = pl.DataFrame({"source": ["ann"], "target": ["bob"], "weight": [1.0], "file": ["log.csv"], "line": [1]})
    counts = {"num_read": 1, "num_accepted": 1, "num_quarantined": 0, "num_dropped": 0, "num_duplicates": 0}
    for number in range(num_commits):
        table = events.with_columns(time=pl.lit(number, pl.Int64), label=pl.lit(None, pl.Int8))
        result = ReadResult(
            events=table.select(EVENT_COLUMNS.keys()).cast(pl.Schema(EVENT_COLUMNS)),
            quarantine=pl.DataFrame(schema=QUARANTINE_COLUMNS),
            **counts,
        )
        append_all(local, dataset, {f"sha-{number}": result})
    for address in files.find(local.commits(dataset)):
        files.write_bytes(layout.absolute(local.relative(address)), Path(address))


def test_a_commit_costs_one_request_of_a_process(layout: Layout, failing: Proxy):
    first, again = {}, {}
    for num_commits in (10, 60):
        dataset = f"of-{num_commits}"
        committed(layout, dataset, num_commits)
        without_copies(layout)
        first[num_commits] = requests_for(failing, lambda name=dataset: read_events(layout, name))
        again[num_commits] = requests_for(failing, lambda name=dataset: read_events(layout, name))
        assert read_events(layout, dataset)["time"].to_list() == list(range(num_commits))
    assert len(first[60]) - len(first[10]) == 60 - 10, first
    assert len(again[60]) == len(again[10]) < 10, again


def test_a_later_process_reads_the_rows_from_the_copies_of_this_machine(layout: Layout, failing: Proxy):
    committed(layout, "chat", 3)
    assert requests_for(failing, lambda: read_events(layout, "chat"))
    copies = sorted(Path(layout.copies("chat")).iterdir())
    assert len(copies) == 3
    assert Path(layout.copies("chat")).stat().st_mode & 0o777 == 0o700
    without_own_copies()
    again = requests_for(failing, lambda: read_events(layout, "chat"))
    assert not [name for name in again if "/interactions" in name], again
    copies[1].write_bytes(copies[1].read_bytes()[::-1])
    copies[2].write_bytes(b"")
    without_own_copies()
    repaired = requests_for(failing, lambda: read_events(layout, "chat"))
    assert len([name for name in repaired if "/interactions" in name]) == 2, repaired
    without_own_copies()
    assert len(requests_for(failing, lambda: read_events(layout, "chat"))) == len(again)
    assert read_events(layout, "chat")["time"].to_list() == [0, 1, 2]
    drop_dataset(layout, "chat")
    assert not Path(layout.copies("chat")).exists()
    committed(layout, "chat", 1)
    without_own_copies()
    read_events(layout, "chat")
    assert Path(layout.copies("chat")).stat().st_mode & 0o777 == 0o700


def test_copies_that_no_process_uses_are_removed_after_a_month(layout: Layout, failing: Proxy):
    committed(layout, "chat", 2)
    read_events(layout, "chat")
    used, unused = sorted(Path(layout.copies("chat")).iterdir())
    for copy, days in ((used, 29), (unused, 31)):
        written = time.time() - days * 24 * 3600
        os.utime(copy, (written, written))
    checksums._remove_unused.cache_clear()
    committed(layout, "chat", 3)
    read_events(layout, "chat")
    assert used.exists()
    assert not unused.exists()
    os.utime(used, (0, 0))
    without_own_copies()
    read_events(layout, "chat")
    assert time.time() - used.stat().st_mtime < 3600  # it was used


def test_damage_is_named_by_a_verification_though_a_copy_is_whole(layout: Layout, failing: Proxy):
    committed(layout, "chat", 2)
    read_events(layout, "chat")
    (location,) = files.find(layout.commit("chat", 2), "interactions*")
    files.write_bytes(location, files.read_bytes(location)[::-1])
    without_own_copies()
    assert read_events(layout, "chat")["time"].to_list() == [0, 1]
    assert location in {fault.address for fault in faults(layout)}


def test_rows_are_read_where_no_copy_can_be_stored(layout: Layout, failing: Proxy):
    committed(layout, "chat", 2)
    copies = Path(layout.copies("chat"))
    copies.parent.mkdir(parents=True)
    copies.write_text("no folder")
    for _ in range(2):
        without_own_copies()
        assert read_events(layout, "chat")["time"].to_list() == [0, 1]


def test_a_pipe_where_a_copy_would_be_is_replaced(layout: Layout, failing: Proxy):
    committed(layout, "chat", 1)
    read_events(layout, "chat")
    [copy] = Path(layout.copies("chat")).iterdir()
    copy.unlink()
    os.mkfifo(copy)
    without_own_copies()
    assert read_events(layout, "chat")["time"].to_list() == [0]
    assert copy.is_file()


@pytest.mark.parametrize(("free", "num_copies"), [(1000, 0), (100_000, 1)])
def test_copies_leave_a_tenth_of_the_disk_free(
    free: int, num_copies: int, layout: Layout, failing: Proxy, monkeypatch: pytest.MonkeyPatch
):
    committed(layout, "chat", 1)
    monkeypatch.setattr(checksums.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free, total=10_000))
    assert read_events(layout, "chat")["time"].to_list() == [0]
    assert len(list(Path(layout.copies("chat")).iterdir())) == num_copies


def test_a_dataset_is_dropped_though_another_user_has_copies(
    layout: Layout, failing: Proxy, monkeypatch: pytest.MonkeyPatch
):
    def remove(folder: str) -> None:
        if folder == layout.copies("chat"):
            raise PermissionError(13, "Permission denied", folder)
        remove_folder(folder)

    remove_folder = files.remove_folder
    committed(layout, "chat", 1)
    monkeypatch.setattr(files, "remove_folder", remove)
    drop_dataset(layout, "chat")
    assert not files.find(layout.commits("chat"))


def test_rows_are_read_after_the_folder_of_this_process_was_removed(layout: Layout, failing: Proxy):
    committed(layout, "chat", 2)
    assert read_events(layout, "chat")["time"].to_list() == [0, 1]
    files.remove_folder(checksums._folder().name)
    assert read_events(layout, "chat")["time"].to_list() == [0, 1]
    assert Path(checksums._folder().name).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("problem", [None, "is missing", "cannot be reached"])
def test_a_copy_that_ends_in_the_middle_leaves_nothing(
    problem: str | None, layout: Layout, failing: Proxy, monkeypatch: pytest.MonkeyPatch
):
    class Stream(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if part := super().read(10):
                return part
            if problem == "is missing":
                raise objects.ObjectMissing("there is no object")
            raise objects.StoreUnreachable("s3://bucket", "no response") if problem else OSError(28, "No space left")

    committed(layout, "chat", 1)
    without_copies(layout)
    monkeypatch.setattr(files, "open_of_size", lambda address, num_bytes: Stream(bytes(20)))
    folder = Path(checksums._folder().name)
    before = set(folder.iterdir())
    with pytest.raises((TableDamaged, files.WriteFailed, objects.StoreUnreachable), match=problem or "free space"):
        read_events(layout, "chat")
    assert set(folder.iterdir()) == before


def test_an_object_that_differs_from_its_checksum_is_named_at_each_read(layout: Layout, failing: Proxy):
    committed(layout, "chat", 2)
    location = files.find(layout.commit("chat", 2), "interactions*")[0]
    content = files.read_bytes(location)
    for damaged, problem in {content[:-1]: f"has {len(content) - 1} bytes", content[::-1]: "was changed"}.items():
        files.write_bytes(location, damaged)
        for _ in range(2):
            with pytest.raises(TableDamaged, match=problem):
                read_events(layout, "chat")
    files.remove(location)
    with pytest.raises(TableDamaged, match="is missing"):
        read_events(layout, "chat")
    files.write_bytes(location, content)
    assert read_events(layout, "chat")["time"].to_list() == [0, 1]


def test_a_table_is_read_from_the_bytes_that_were_checked(layout: Layout, tmp_path: Path, failing: Proxy):
    write_logs(tmp_path)
    ingested("first")
    without_copies(layout)
    failing.set(Fault())
    read_events(layout, DATASET)
    (data,) = {name for name in failing.requests() if name.startswith("GET") and "/interactions-" in name}
    assert failing.requests().count(data) == 1


@pytest.mark.parametrize("kind", ["HTML", "nothing"])
def test_files_for_mlflow_wait_in_the_store_while_s3_is_away(
    kind: str, layout: Layout, failing: Proxy, empty_database: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
):
    from mlflow.store.artifact.s3_artifact_repo import _cached_get_s3_client

    _cached_get_s3_client.cache_clear()  # it may have a client of another test
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    empty_database(Path(layout.state) / "mlflow.db")
    problems = []

    def send(tracker: Tracker, address: str) -> dict[str, Any]:
        with tracker.run(dataset="chat", name="a", key="same") as run:
            if not problems:
                failing.set(Fault(kind=kind, number=1, seconds=60.0))
            run.artifact("page.html", b"page")
        return run.where

    monkeypatch.setitem(results.SEND, "study", send)
    lineage = Lineage(kind="study", dataset="chat", table_version=1, until=3)
    write_artifact(layout.artifact("study", "chat", version=1, until=3, settings="0" * 12), {}, lineage)
    started = time.monotonic()
    problems += project(layout).problems
    assert time.monotonic() - started < MOST_SECONDS_OF_MLFLOW
    failing.set(Fault())
    assert len(problems) == 1
    assert not files.find(layout.root, "page.html")
    assert project(layout).problems == []
    (stored,) = files.find(layout.root, "page.html")
    assert files.read_bytes(stored) == b"page"
