"""Files, events, artifacts and queries keep their guarantees on an object store."""

import copy
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import obstore
import polars as pl
import pytest
import torch
from obstore.exceptions import AlreadyExistsError, PreconditionError
from test_artifacts import CONTENTS, EDGES, LINEAGE, verified
from test_events_table import BATCH_ROWS, FIRST, SECOND, append, assert_consistent, batch, quarantine

from storage.artifacts import artifact
from storage.artifacts.artifact import (
    ArtifactDamaged,
    ArtifactMissing,
    Draft,
    Lineage,
    is_complete,
    open_artifact,
    read_table,
    write_artifact,
)
from storage.artifacts.checkpoints import load_checkpoint, remove_checkpoint, save_checkpoint
from storage.bytes import checksums, files, objects
from storage.bytes.checksums import Damaged
from storage.bytes.objects import StoreUnreachable
from storage.events import versions
from storage.events.declarations import declaration, declare
from storage.events.table import ingested_datasets, newest_version, node_dictionary, read_events
from storage.events.versions import TableDamaged
from storage.layout import Layout
from storage.queries import query
from storage.tracking.marks import due, mark
from storage.verification import faults, repaired


@pytest.fixture
def layout(s3_bucket: str, tmp_path: Path) -> Layout:
    return Layout(f"{s3_bucket}/{tmp_path.name}", state=str(tmp_path))


def test_bytes_are_written_listed_and_removed(layout: Layout):
    address = f"{layout.root}/a/b.bin"
    assert files.size(address) is None
    with pytest.raises(FileNotFoundError):
        files.read_bytes(address)
    files.write_bytes(address, b"one")
    files.write_bytes(address, b"three")
    assert (files.size(address), files.read_bytes(address)) == (5, b"three")
    assert files.find(layout.root, "b.bin") == [address]
    assert files.children(layout.root) == ["a"]
    assert files.children(f"{layout.root}/none") == []
    files.remove(address)
    files.remove(address)
    assert files.size(address) is None


def test_an_ingest_is_committed_and_read_back(layout: Layout):
    assert append(layout, "chat", FIRST, "sha-1").changed
    assert append(layout, "chat", SECOND, "sha-2").changed
    assert not append(layout, "chat", FIRST, "sha-1").changed
    assert node_dictionary(layout, "chat")["id"].to_list() == ["cy", "ann", "bob", "dan"]
    assert read_events(layout, "chat")["time"].to_list() == [20, 10, 20, 5, 30]
    assert quarantine(layout).height == 1
    assert ingested_datasets(layout) == ["chat"]
    found = files.find(layout.commits("chat"), "manifest.json")
    assert found == [f"{layout.commit('chat', version)}/manifest.json" for version in (1, 2)]


WRITER = """
import sys
import threading
sys.path.insert(0, sys.argv[1])
from test_events_table import append, batch, Layout

for number in range(4):
    append(Layout(sys.argv[2]), "chat", batch(sys.argv[3], number), f"{sys.argv[3]}-{number}")
"""


def test_writers_at_once_lose_nothing(layout: Layout):
    arguments = [sys.executable, "-c", WRITER, str(Path(__file__).parent), layout.root]
    writers = [subprocess.Popen([*arguments, name], env=os.environ) for name in ("a", "b", "a")]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    assert assert_consistent(layout) == {f"{name}-{number}" for name in "ab" for number in range(4)}
    assert read_events(layout, "chat").height == 8 * BATCH_ROWS
    assert not append(layout, "chat", batch("b", 3), "b-3").changed


@pytest.fixture
def killed_before_the_record(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def cut(location: str, content: bytes) -> bool:
        assert location.endswith("manifest.json")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files, "create_bytes", cut)
        yield


def test_an_artifact_is_visible_once_its_manifest_is_written(layout: Layout, killed_before_the_record: None):
    address = layout.artifact("snapshots", "uci", version=1, settings="ab")
    with pytest.raises(KeyboardInterrupt):
        write_artifact(address, CONTENTS, LINEAGE)
    assert len(files.children(address)) == 2
    assert not is_complete(address)
    with pytest.raises(ArtifactMissing):
        read_table(address, "edges")


def test_an_artifact_comes_back_whole(layout: Layout):
    address = write_artifact(layout.artifact("snapshots", "uci", version=1, settings="ab"), CONTENTS, LINEAGE)
    assert verified(address) == LINEAGE
    assert sorted(open_artifact(address).entries) == ["edges.parquet", "record.json"]
    assert read_table(address, "edges").equals(EDGES)
    assert open_artifact(address).scan("edges").select(pl.len()).collect().item() == 3


def test_an_object_of_a_known_checksum_is_read_once_and_its_successor_is_read(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
):
    address = write_artifact(layout.artifact("snapshots", "uci", version=1, settings="ab"), CONTENTS, LINEAGE)
    reads, read = [], files.read_bytes
    monkeypatch.setattr(files, "read_bytes", lambda location: (reads.append(location), read(location))[1])
    for _ in range(3):
        assert read_table(address, "edges").equals(EDGES)
    assert [location.endswith("manifest.json") for location in reads] == [True, False, True, True]
    write_artifact(address, {"edges": EDGES.head(1)}, Lineage(kind="x", dataset="uci", table_version=9))
    assert read_table(address, "edges").equals(EDGES.head(1))
    [edges] = [location for location in open_artifact(address).locations if location.endswith(".parquet")]
    files.write_bytes(edges, b"damaged")
    checksums._object.cache_clear()  # as in another process
    with pytest.raises(ArtifactDamaged):
        read_table(address, "edges")


def test_the_older_artifact_stays_whole_until_the_newer_is(layout: Layout, request: pytest.FixtureRequest):
    address = write_artifact(layout.artifact("snapshots", "uci", version=1, settings="ab"), CONTENTS, LINEAGE)
    request.getfixturevalue("killed_before_the_record")
    with pytest.raises(KeyboardInterrupt):
        write_artifact(address, {"edges": EDGES.head(1)}, Lineage(kind="x", dataset="uci", table_version=9))
    assert verified(address) == LINEAGE
    assert read_table(address, "edges").equals(EDGES)


def test_an_object_that_is_replaced_meanwhile_is_read_whole(layout: Layout):
    address = f"{layout.root}/replaced"
    contents = [bytes([number]) * (1 + number * 300_000) for number in range(6)]
    files.write_bytes(address, contents[0])
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [files.write_bytes(address, content) for content in contents * 5])
        while not writing.done():
            assert files.read_bytes(address) in contents
    assert files.read_bytes(address) == contents[-1]


def test_an_opened_object_is_read_from_the_position_sought(layout: Layout):
    address = f"{layout.root}/long"
    content = os.urandom(objects.BUFFER_BYTES + 1000)
    files.write_bytes(address, content)
    with files.open_stream(address) as stream:
        assert stream.read(10) == content[:10]
        stream.seek(-20, os.SEEK_END)
        assert stream.read() == content[-20:]
        stream.seek(5)
        assert (stream.seek(0, os.SEEK_CUR), stream.read()) == (5, content[5:])
    with pytest.raises(FileNotFoundError, match="there is no object s3://"):
        files.open_stream(f"{layout.root}/none")


def test_a_local_file_is_copied_to_an_object(layout: Layout, tmp_path: Path):
    (tmp_path / "fetched").write_bytes(b"x" * 6_000_000)  # more than one part of a multipart upload
    files.write_bytes(f"{layout.root}/copy", tmp_path / "fetched")
    assert files.read_bytes(f"{layout.root}/copy") == b"x" * 6_000_000


def test_a_refused_key_is_an_error_with_the_address_and_what_to_check(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    for call in (files.read_bytes, files.size, files.find, files.children, files.remove, files.open_stream):
        with pytest.raises(OSError, match=r"s3://.*/a cannot be reached \(.*\); check AWS_ENDPOINT_URL") as raised:
            list(call(f"{layout.root}/a"))  # pyright: ignore[reportArgumentType]
        assert "\n" not in str(raised.value)


def test_keys_may_stand_in_a_profile(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = [f"{key.lower()} = {os.environ[key]}" for key in objects.KEYS[:2]]
    (tmp_path / "credentials").write_text("\n".join(["[mine]", *lines]))
    for key in objects.KEYS[:2]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert append(layout, "chat", FIRST, "sha-1").changed
    assert read_events(layout, "chat").height == 3


def test_the_server_honours_conditional_writes(layout: Layout):
    """A compare-and-swap of small records needs both: `create` (If-None-Match) and an ETag (If-Match)."""
    store, key = objects.object_at(f"{layout.root}/record.json")
    first = obstore.put(store, key, b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, key, b"second", mode="create")
    obstore.put(store, key, b"third", mode={"e_tag": first["e_tag"]})
    with pytest.raises(PreconditionError):
        obstore.put(store, key, b"fourth", mode={"e_tag": first["e_tag"]})
    assert files.read_bytes(f"{layout.root}/record.json") == b"third"


def test_a_tampered_object_is_refused(layout: Layout):
    address = write_artifact(layout.artifact("snapshots", "uci", version=1, settings="ab"), CONTENTS, LINEAGE)
    (location,) = files.find(address, "edges-*")
    content = bytearray(files.read_bytes(location))
    content[len(content) // 2] ^= 1
    files.write_bytes(location, bytes(content))
    with pytest.raises(ArtifactDamaged, match="edges"):
        read_table(address, "edges")


def test_writers_of_different_content_at_once_leave_one_whole_artifact(layout: Layout):
    address = layout.artifact("snapshots", "uci", version=1, settings="ab")

    def write(version: int) -> None:
        lineage = Lineage(kind="x", dataset="uci", table_version=version)
        write_artifact(address, {"edges": EDGES.with_columns(weight=pl.lit(float(version)))}, lineage)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(12)))
    lineage = verified(address)
    assert lineage is not None
    assert set(read_table(address, "edges")["weight"]) == {float(lineage.table_version)}


def test_a_checkpoint_is_replaced(layout: Layout):
    address = layout.artifact("pretrain", "uci", version=1, until=3, settings="ab", seed=0)
    for epoch in (1, 2):
        save_checkpoint(address, {"weight": torch.tensor([epoch, 2**62])}, {"epoch": epoch})
    tensors, record = load_checkpoint(address, expected={"epoch": 2})
    assert (tensors["weight"].tolist(), record) == ([2, 2**62], {"epoch": 2})
    remove_checkpoint(address)


def test_the_views_have_the_rows_of_the_object_store(layout: Layout):
    declare(layout, "chat", {"window": "7d", "time_unit": "s"})
    append(layout, "chat", FIRST, "sha-1")
    address = layout.artifact("pagerank", "chat", version=1, until=3, settings="123")
    lineage = Lineage(kind="pagerank", dataset="chat", table_version=1)
    write_artifact(address, {"pagerank": pl.DataFrame({"node": [0], "score": [0.5]})}, lineage)
    assert query(layout, "select count(*) from events").item() == 3
    assert query(layout, "select dataset, until, settings, score from pagerank").rows() == [("chat", 3, "123", 0.5)]


def test_a_declaration_is_stored(layout: Layout):
    declare(layout, "chat", {"window": "7d", "columns": ["a", "b"]})
    assert declaration(layout, "chat") == {"window": "7d", "columns": ["a", "b"]}
    assert declaration(layout, "shop") is None


def test_a_declaration_follows_one_that_another_machine_stored_meanwhile(layout: Layout):
    read: list[dict[str, Any]] = []

    def with_column(record: dict[str, Any], name: str) -> dict[str, Any]:
        read.append(record)
        if len(read) == 1:  # a machine has no lock of another one
            checksums.write_record(
                layout.declaration("chat"), {"window": "7d", "columns": ["theirs"], "dataset": "chat"}
            )
        return {"window": "7d", "columns": [*record.get("columns", []), name]}

    for columns in (["theirs", "ours"], ["theirs", "mine"]):  # the first record of a dataset, and a later one
        read.clear()
        declare(layout, "chat", partial(with_column, name=columns[-1]))
        assert declaration(layout, "chat") == {"window": "7d", "columns": columns}
        assert len(read) == 2


def test_an_artifact_without_a_manifest_is_damage_once_its_writer_must_have_ended(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
):
    address = write_artifact(layout.artifact("snapshots", "uci", version=1, settings="ab"), CONTENTS, LINEAGE)
    files.remove(f"{address}/manifest.json")
    assert not list(faults(layout))
    monkeypatch.setattr(artifact, "WRITING_SECONDS", -60.0)
    (fault,) = faults(layout)
    assert fault.address == address
    with pytest.raises(Damaged, match=r"has files but no manifest\.json"):
        query(layout, "select * from snapshots_edges")
    repaired(layout, "uci", fault)
    assert not files.find(address)


def test_a_replaced_artifact_leaves_no_mark_that_mlflow_has_it(layout: Layout):
    address = layout.artifact("study", "log", version=1, until=3, settings="0" * 12)
    lineage = Lineage(kind="study", dataset="log", table_version=1, until=3)
    write_artifact(address, {"note.txt": b"1"}, lineage)
    mark(layout, address, {"run": "a"})
    write_artifact(address, {"note.txt": b"1"}, lineage)  # the same one stays, with its mark
    assert due(layout) == []
    write_artifact(address, {"note.txt": b"2"}, Lineage(**{**vars(lineage), "code_version": "99"}))
    assert due(layout) == [address]


def test_old_files_of_a_replaced_artifact_are_removed_a_day_after_it_was_replaced(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
):
    """The time at which they were written does not count: readers of the replaced artifact may have begun just now."""
    modified, old = files.modified, [""]

    def two_days_ago(location: str) -> float:
        return modified(location) - (2 * 86_400 if old[0] in location else 0)

    monkeypatch.setattr(files, "modified", two_days_ago)
    address = layout.artifact("snapshots", "uci", version=1, settings="ab")

    def written(number: int) -> set[str]:
        contents = CONTENTS if number == 1 else {"edges": EDGES.head(number - 1)}
        write_artifact(address, contents, Lineage(kind="x", dataset="uci", table_version=number))
        return set(files.find(address)) - {f"{address}/manifest.json"}

    first = written(1)
    second = written(2) - first
    assert (len(first), len(second)) == (2, 1)
    assert written(2) == first | second
    assert first < set(files.find(address))  # replaced just now, though written two days ago
    third = written(3) - second
    assert len(third) == 1  # the second artifact is two days old, so that the first was replaced by then
    old[0] = ".parquet"  # and not the manifest, so that the second artifact was replaced just now
    assert second | third < written(4)


def test_the_manifest_of_a_removed_artifact_goes_first(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    address = write_artifact(layout.artifact("snapshots", "uci", version=1, settings="ab"), CONTENTS, LINEAGE)
    removed: list[str] = []
    monkeypatch.setattr(files, "remove", removed.append)
    files.remove_folder(address)
    assert removed[0] == f"{address}/manifest.json"
    assert len(removed) == len(CONTENTS) + 1


def test_a_log_whose_removal_is_killed_is_whole_or_has_no_commit(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    declare(layout, "chat", {"window": "7d"})
    for number in range(11):
        append(layout, "chat", FIRST, f"sha-{number}")
    remove, found = files.remove, []

    def removed(address: str) -> None:
        remove(address)
        if address.endswith("manifest.json"):
            found.append(versions.newest(layout, "chat").number)

    monkeypatch.setattr(files, "remove", removed)
    files.remove_folder(layout.of_dataset(layout.datasets, "chat"))
    assert found == [11] * 10 + [0]


def test_a_damaged_table_in_an_object_store_is_named(layout: Layout):
    declare(layout, "chat", {"window": "7d"})
    append(layout, "chat", FIRST, "sha-1")
    append(layout, "chat", SECOND, "sha-2")
    (rows,) = files.find(layout.commit("chat", 1), "quarantine-*.parquet")
    (record,) = files.find(layout.commit("chat", 2), "manifest.json")
    for address in (rows, record):
        content = files.read_bytes(address)
        files.write_bytes(address, content[:-60] + bytes([content[-60] ^ 1]) + content[-59:])
        with pytest.raises(TableDamaged, match=f"{address} was changed"):
            quarantine(layout)
    assert [fault.address for fault in faults(layout)] == [rows, record]


def test_a_commit_counts_once_its_manifest_is_written(layout: Layout):
    declare(layout, "chat", {"window": "7d"})
    append(layout, "chat", FIRST, "sha-1")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Draft, "_uploaded", lambda draft, content: killed(draft))
        with pytest.raises(KeyboardInterrupt):
            append(layout, "chat", SECOND, "sha-2")
    assert len(files.find(layout.commit("chat", 2))) == 5
    assert (newest_version(layout, "chat"), read_events(layout, "chat").height) == (1, 3)
    assert not list(faults(layout))
    append(layout, "chat", SECOND, "sha-2")
    assert read_events(layout, "chat").height == 5
    assert len(files.find(layout.commit("chat", 2))) == 11  # another writer may be at work, so that they stay for a day
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "LEFTOVER_SECONDS", -60)
        assert not append(layout, "chat", SECOND, "sha-2").changed
    assert len(files.find(layout.commit("chat", 2))) == 6
    assert read_events(layout, "chat").height == 5


def killed(draft: Draft) -> None:
    """Upload the files of a commit without its manifest, as a writer that is killed then."""
    for entry in draft.entries.values():
        files.write_bytes(f"{draft.address}/{entry['path']}", draft.folder / entry["path"])
    raise KeyboardInterrupt


def test_the_loser_of_two_writers_removes_its_own_files_alone(layout: Layout, tmp_path: Path):
    real, raced = files.create_bytes, iter([True])

    def race(location: str, content: bytes) -> bool:
        if location.endswith("commit=1/manifest.json") and next(raced, False):
            append(Layout(layout.root, str(tmp_path / "elsewhere")), "chat", FIRST, "sha-1")
        return real(location, content)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "create_bytes", race)
        ingests = [append(layout, "chat", source, name) for source, name in ((FIRST, "sha-1"), (SECOND, "sha-2"))]
    assert [ingest.changed for ingest in ingests] == [False, True]
    assert [len(files.find(layout.commit("chat", version))) for version in (1, 2)] == [6, 6]
    assert read_events(layout, "chat").height == 5


def test_the_first_of_two_writers_of_an_artifact_wins(layout: Layout):
    """The second one finds the manifest of the first, or replaces that of another lineage and no other."""
    address = layout.artifact("snapshots", "uci", version=1, settings="ab")
    location, stamps = f"{address}/manifest.json", []
    real = files.create_bytes

    def race(created: str, content: bytes) -> bool:
        if created == location and not stamps:
            stamps.append(None)
            write_artifact(address, CONTENTS, LINEAGE)
            stamps[0] = files.stamp(location)
        return real(created, content)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "create_bytes", race)
        write_artifact(address, {"edges": EDGES.head(1)}, LINEAGE)
    assert files.stamp(location) == stamps[0]
    assert read_table(address, "edges").equals(EDGES)
    newer = Lineage(kind="x", dataset="uci", table_version=9)
    write_artifact(address, {"edges": EDGES.head(2)}, newer)
    assert verified(address) == newer
    assert read_table(address, "edges").height == 2


def test_one_of_two_first_writers_writes(layout: Layout):
    address = f"{layout.root}/first"
    assert files.create_bytes(address, b"one")
    assert not files.create_bytes(address, b"two")
    assert files.read_bytes(address) == b"one"


def test_a_store_that_cannot_be_reached_says_nothing_about_its_files(monkeypatch: pytest.MonkeyPatch):
    def stamp(address: str) -> files.Stamp:
        raise StoreUnreachable(address, "the response is not from an S3 server")

    monkeypatch.setattr(files, "stamp", stamp)
    with pytest.raises(StoreUnreachable, match=r"steps.parquet cannot be reached"):
        checksums.fault_of("s3://bucket/steps.parquet", 10, "0")
    with pytest.raises(StoreUnreachable), files.named_read("s3://bucket/steps.parquet"):
        raise StoreUnreachable("s3://bucket/steps.parquet", "no response")
    error = StoreUnreachable("s3://bucket/steps.parquet", "no response")
    assert (type(copy.copy(error)), str(copy.copy(error))) == (StoreUnreachable, str(error))  # as between processes


def test_objects_are_read_at_the_same_time_and_given_in_their_order() -> None:
    together = threading.Barrier(3)

    def read(address: str) -> str:
        together.wait(30)  # broken where one is read after the other
        return address

    addresses = [f"s3://bucket/{name}" for name in "cab"]
    assert files.read_each(read, addresses) == addresses
    assert files.read_each(str.upper, ["/b", "/a"]) == ["/B", "/A"]


def test_a_machine_without_keys_gets_advice_on_keys():
    reason = "Error performing PUT http://169.254.169.254/latest/api/token in 2ms - Server returned 403"
    with pytest.raises(
        StoreUnreachable, match=r"x cannot be reached \(no credentials found: .*; set AWS_ACCESS_KEY_ID"
    ):
        raise StoreUnreachable("s3://bucket/x", reason)
