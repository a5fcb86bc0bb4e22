"""`dyformer verify`: each damaged part is named once, and what can be made again is."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from test_commits import DAMAGE, commit_file, data_paths, flipped, flipped_lineage, truncated
from test_drop import HOLDER
from test_events_table import FIRST, SECOND, append, ids

from storage.artifacts import artifact
from storage.artifacts.artifact import Lineage, write_artifact
from storage.artifacts.checkpoints import save_checkpoint
from storage.bytes import checksums, files
from storage.bytes.checksums import Damaged, RecordDamaged, read_record, write_record
from storage.champions import read_champion
from storage.events.declarations import declaration, declare
from storage.events.table import history, ingested_datasets, read_events
from storage.events.versions import TableDamaged
from storage.layout import Layout
from storage.locks import DatasetInUse
from storage.queries import query
from storage.removal import remove_leftovers
from storage.tracking.marks import mark
from storage.verification import Fault, dataset_of, faults, repaired

CHAMPION = {"title": "L3", "models": [], "identity": "L3", "num_tests": 0, "tests": {}, "number": 1, "earlier": []}
START = {"id": "1", "kind": "start", "time": 5, "run_key": "run", "experiment": "e", "artifact_root": None}
START |= {"name": "DyFormer", "tags": {}}
KEYS = {"version": 1, "until": 3, "settings": "0" * 12, "seed": 0}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store of two datasets once; each test gets a copy."""
    tmp_path = tmp_path_factory.mktemp("made")
    layout = Layout(str(tmp_path / "store"))
    for dataset in ("chat", "shop"):
        declare(layout, dataset, {"window": "7d", "time_unit": "s"})
        append(layout, dataset, FIRST, "sha-1")
        append(layout, dataset, SECOND, "sha-2")
        write_record(layout.champion(dataset), CHAMPION)
        lineage = Lineage(kind="vectors", dataset=dataset, table_version=1, until=3)
        vectors = pl.DataFrame({"id": [f"{dataset}-1"], "vector": [[0.5, 1.0]]})
        write_artifact(layout.artifact("vectors", dataset, **KEYS), {"vectors": vectors}, lineage)
        save_checkpoint(layout.artifact("pretrain", dataset, **KEYS), {}, {"epoch": 1})
        mark(layout, layout.artifact("vectors", dataset, **KEYS), {"run": "a", "model_version": "1"})
    return tmp_path / "store"


@pytest.fixture
def layout(made: Path, tmp_path: Path) -> Layout:
    shutil.copytree(made, tmp_path / "store")
    return Layout(str(tmp_path / "store"))


def found(layout: Layout, dataset: str | None = None) -> list[Fault]:
    return list(faults(layout, dataset))


def test_a_sound_store_has_no_fault(layout: Layout):
    assert found(layout) == []


def chat(layout: Layout, pattern: str) -> Path:
    (path,) = [path for path in Path(layout.root).glob(pattern) if "dataset=shop" not in str(path)]
    return path


REPAIRED = {
    "champion": "5_checkpoints/champion/dataset=chat/champion.json",
    "artifact": "6_vectors/vectors/dataset=chat/**/vectors.parquet",
    "manifest": "6_vectors/vectors/dataset=chat/**/manifest.json",
    "checkpoint": "5_checkpoints/pretrain/dataset=chat/**/checkpoint.safetensors",
    "mark": "6_vectors/vectors/dataset=chat/**/tracked.json",
}


@pytest.mark.parametrize("part", REPAIRED)
def test_a_part_that_can_be_made_again_is_named_and_repaired(layout: Layout, part: str):
    before = read_events(layout, "chat")
    path = min(path for path in Path(layout.root).glob(REPAIRED[part]) if "shop" not in str(path))
    flipped(path)
    (fault,) = found(layout)
    assert Path(fault.address.partition(", line")[0]) in (path, *path.parents)
    assert dataset_of(fault) == "chat"
    assert "changed" in fault.problem or "not a complete" in fault.problem
    assert repaired(layout, dataset_of(fault), fault)
    assert found(layout) == []
    assert read_events(layout, "chat").equals(before)
    assert ids(layout) == ["cy", "ann", "bob", "dan"]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("part", ["commit", "newest commit", "rows", "nodes", "quarantine", "sources"])
def test_events_that_cannot_be_made_again_are_named_with_their_raw_files(
    layout: Layout, damage: Callable[[Path], None], part: str
):
    path = commit_file(layout, 2 if part == "newest commit" else 1)
    if "commit" not in part:
        path = path.with_name(f"{'interactions' if part == 'rows' else part}.parquet")
    (flipped_lineage if damage is flipped and "commit" in part else damage)(path)
    (fault,) = found(layout)
    assert str(path) in f"{fault.address} {fault.problem}"
    assert "`dyformer drop chat`, then ingest its raw files again: " in fault.remedy
    assert ("more.csv" if part == "commit" else "log.csv") in fault.remedy
    assert not repaired(layout, "chat", fault)
    assert found(layout, "shop") == []


def test_a_commit_that_was_replaced_is_noticed(layout: Layout):
    declare(layout, "other", {"window": "7d"})
    append(layout, "other", SECOND, "sha-2")
    append(layout, "other", FIRST, "sha-1")
    address = layout.commit("other", 1)
    shutil.rmtree(address)
    shutil.copytree(layout.commit("shop", 1), address)
    path = Path(address, "manifest.json")
    record = json.loads(path.read_text())
    record["lineage"]["dataset"] = "other"
    path.write_text(json.dumps({**record, "digest": artifact._digest(record)}))
    (fault,) = found(layout, "other")
    assert fault.address == f"{layout.commit('other', 2)}/manifest.json"
    assert fault.problem == "does not follow commit 1 as it is now"


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_declaration_is_named_and_never_guessed(layout: Layout, damage: Callable[[Path], None]):
    path = Path(layout.declaration("chat"))
    damage(path)
    for read in (declaration, lambda layout, name: declare(layout, name, {"window": "1d"})):
        with pytest.raises(RecordDamaged, match=rf"{path} .*: remove the log with `dyformer drop chat`"):
            read(layout, "chat")
    (fault,) = found(layout)
    assert fault.address == str(path)
    assert fault.repair is None


def test_one_damaged_dataset_hurts_no_other(layout: Layout):
    truncated(commit_file(layout, 2))
    flipped(chat(layout, "6_vectors/vectors/**/vectors.parquet"))
    assert ingested_datasets(layout) == ["chat", "shop"]
    damage: list[Damaged] = []
    assert query(layout, "select distinct dataset from events", damage.append).rows() == [("shop",)]
    assert len(damage) == 1
    assert str(commit_file(layout, 2)) in str(damage[0])
    assert query(layout, "select id from vectors", damage.append).rows() == [("shop-1",)]
    assert "vectors.parquet was changed" in str(damage[1])
    assert append(layout, "shop", SECOND, "sha-3").version == 3
    assert append(layout, "new", FIRST, "sha-1").version == 1


def test_only_the_files_behind_the_statement_are_verified(layout: Layout):
    flipped(chat(layout, "6_vectors/vectors/**/vectors.parquet"))
    assert query(layout, "select count(*) from events").item() == 10
    assert query(layout, "select view_name from duckdb_views() where view_name = 'events'").item() == "events"


def test_nothing_is_repaired_while_the_dataset_is_in_use(layout: Layout):
    flipped(chat(layout, "6_vectors/vectors/**/vectors.parquet"))
    (fault,) = found(layout)
    command = [sys.executable, "-c", HOLDER.replace("one", "chat"), layout.root, layout.state]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DatasetInUse, match="repair it after"):
            repaired(layout, "chat", fault)
        holder.kill()
    assert repaired(layout, "chat", fault)


def test_a_link_is_no_part_of_the_store_and_its_target_stays(layout: Layout, tmp_path: Path):
    folder = Path(layout.artifact("vectors", "chat", **KEYS))
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="symbolic link to"):
        query(layout, "select * from vectors")
    assert all(fault.repair is None for fault in found(layout))
    assert len(list((tmp_path / "elsewhere").iterdir())) == 3  # with the mark


@pytest.mark.parametrize("names", [("dataset", "window"), ("digest",), ("record",)])
def test_a_record_without_its_checksum_is_refused(layout: Layout, names: tuple[str, ...]):
    path = Path(layout.declaration("chat"))
    written = json.loads(path.read_text())
    values = {**written, **written["record"]}
    path.write_text(json.dumps({name: values[name] for name in names}))
    with pytest.raises(RecordDamaged, match="is no record, or was changed after it was written"):
        declaration(layout, "chat")
    assert str(path) in [fault.address for fault in found(layout)]


def test_every_changed_byte_of_a_record_is_noticed_or_without_effect(tmp_path: Path):
    path, record = tmp_path / "record.json", {"window": "7d", "columns": {"source": 0, "é": None}, "step": 1.5}
    write_record(str(path), record)
    content = path.read_bytes()
    noticed = 0
    for position in range(len(content)):
        for bit in range(8):
            path.write_bytes(content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :])
            try:
                read = read_record(str(path), "remedy")
            except RecordDamaged as error:
                noticed += str(path) in str(error)
            else:
                assert read == record
    assert noticed > 7 * len(content)


def test_leftovers_of_killed_writers_are_removed_after_a_day(layout: Layout):
    folder = Path(layout.artifact("vectors", "chat", **KEYS)).parent
    old, new = (folder / files.temporary_name(name) for name in ("seed=1", "seed=2"))
    for left in (old, new):
        left.mkdir()
        (left / "vectors.parquet").write_bytes(b"half")
    declared = Path(layout.declaration("chat")).with_name(files.temporary_name("declaration.json"))
    declared.write_bytes(b"half")
    for left in (old, declared):
        os.utime(left, (0, 0))
    own = folder / ".keep"
    own.touch()
    os.utime(own, (0, 0))
    remove_leftovers(layout, "chat")
    assert own.exists()  # a user's file
    assert (old.exists(), declared.exists(), new.exists()) == (False, False, True)
    assert found(layout) == []


def test_parts_that_nobody_has_made_for_a_day_are_removed(layout: Layout):
    lineage = Lineage(kind="part", dataset="chat", table_version=1, until=1, settings={})
    rows = {"part": pl.DataFrame({"vector": [1.0]})}
    keys = {"version": 1, "until": 1}
    addresses = [
        write_artifact(layout.artifact("part", "chat", **keys, settings=12 * name), rows, lineage) for name in "ab"
    ]
    manifests = [Path(address) / "manifest.json" for address in addresses]
    os.utime(manifests[0], (0, 0))
    remove_leftovers(layout, "chat")
    assert all(manifest.exists() for manifest in manifests)  # the other one is new: a process is at work
    os.utime(manifests[1], (0, 0))
    remove_leftovers(layout, "chat")
    assert not any(Path(address).exists() for address in addresses)


def test_a_disk_that_cannot_read_a_file_is_one_named_error(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    (broken, *_) = data_paths(layout)
    real = hashlib.file_digest

    def failing(stream: Any, name: Any) -> Any:
        if stream.name == str(broken):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", failing)
    os.utime(broken)  # so that it is read again
    with pytest.raises(TableDamaged, match=rf"{broken} cannot be read \(Input/output error\), check the disk"):
        read_events(layout, "chat")
    damage: list[Damaged] = []
    assert query(layout, "select distinct dataset from events", damage.append).rows() == [("shop",)]
    assert "cannot be read" in str(damage[0])
    (fault,) = found(layout)
    assert "cannot be read" in fault.problem


@pytest.mark.parametrize("part", ["commit", "declaration", "manifest"])
def test_a_record_that_the_disk_cannot_read_is_named_and_hurts_no_other(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, part: str
):
    (manifest,) = Path(layout.root).glob("6_vectors/vectors/dataset=chat/**/manifest.json")
    broken = {"commit": commit_file(layout, 2), "declaration": Path(layout.declaration("chat")), "manifest": manifest}[
        part
    ]
    real = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path == broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path)

    os.utime(broken)
    monkeypatch.setattr(Path, "read_bytes", failing)
    (fault,) = found(layout)
    assert str(broken) in f"{fault.address} {fault.problem}"
    assert "cannot be read (Input/output error)" in f"{fault.address} {fault.problem}"
    assert "shop" in ingested_datasets(layout)
    assert query(layout, "select id from vectors where dataset = 'shop'", [].append).rows() == [("shop-1",)]


@pytest.mark.parametrize("above", ["", "/dataset=chat"])
def test_a_stray_file_above_artifacts_costs_none_of_them(layout: Layout, above: str):
    vectors = Path(layout.artifact("vectors", "chat", **KEYS)) / "vectors.parquet"
    kind = Path(layout.artifact("vectors", "chat", **KEYS).partition("/dataset=")[0])
    shutil.copy(vectors, f"{kind}{above}/mine.parquet")
    for fault in found(layout):
        repaired(layout, dataset_of(fault), fault)
    assert vectors.exists()
    assert found(layout) == []


def test_events_whose_manifests_are_lost_are_damage_and_are_never_removed(layout: Layout):
    data = data_paths(layout)
    for version in (1, 2):
        commit_file(layout, version).unlink()
    assert {dataset_of(fault) for fault in found(layout)} == {"chat"}
    with pytest.raises(TableDamaged, match=r"commit=2/manifest.json is missing"):
        append(layout, "chat", FIRST, "sha-3")
    for fault in found(layout):
        assert repaired(layout, "chat", fault) is None
    assert all(path.exists() for path in data)
    assert ingested_datasets(layout) == ["chat", "shop"]


def test_the_remedy_of_a_damaged_commit_says_that_names_are_lost(layout: Layout):
    commit_file(layout, 2).write_bytes(b"{")
    assert any("and those of the damaged commits, whose names are lost" in fault.remedy for fault in found(layout))


def test_a_repair_deletes_nothing_behind_a_link_above_artifacts(layout: Layout, tmp_path: Path):
    folder = Path(layout.artifact("vectors", "chat", **KEYS).partition("/vectors/")[0])
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    before = sorted(tmp_path.joinpath("moved").rglob("*"))
    (fault,) = found(layout)
    assert fault.address == str(folder)
    assert "symbolic link" in fault.problem
    assert not repaired(layout, dataset_of(fault), fault)
    assert sorted(tmp_path.joinpath("moved").rglob("*")) == before


def test_a_part_that_was_made_again_meanwhile_is_left_alone(layout: Layout):
    vectors = Path(layout.artifact("vectors", "chat", **KEYS)) / "vectors.parquet"
    content = vectors.read_bytes()
    vectors.write_bytes(content[:-1])
    (fault,) = found(layout)
    vectors.write_bytes(content)
    assert repaired(layout, dataset_of(fault), fault)
    assert vectors.read_bytes() == content


def test_folders_of_other_names_are_no_datasets(layout: Layout):
    (Path(layout.datasets) / "dataset=my log~").mkdir()
    assert found(layout) == []


@pytest.mark.parametrize("version", [1, 2])
def test_a_lost_end_of_the_commits_is_noticed_by_what_was_made_of_it(layout: Layout, version: int):
    lineage = Lineage(kind="snapshots", dataset="chat", table_version=2)
    address = write_artifact(
        layout.artifact("snapshots", "chat", version=2, settings="ab"), {"edges": pl.DataFrame()}, lineage
    )
    for number in range(version, 3):
        shutil.rmtree(layout.commit("chat", number))
    lost = layout.commit("chat", version)
    for use in (read_events, lambda layout, name: append(layout, name, FIRST, "sha-9")):
        with pytest.raises(TableDamaged, match=f"{lost} is missing, though snapshots of version 2 exist"):
            use(layout, "chat")
    assert [(fault.address, fault.repair) for fault in found(layout, "chat")][:1] == [(lost, None)]
    assert "chat" in ingested_datasets(layout)
    files.remove_folder(address)
    Path(address).mkdir()  # an empty folder was made of nothing
    assert found(layout, "shop") == []


WRONG = [None, True, -1, 1.5, float("nan"), "x", "\ud800", "../x", [], [1], {}, {"a": 1}]


def changed(record: Any, keys: tuple[Any, ...], value: Any) -> Any:
    """Copy a record with another value behind the keys; without keys it is the value."""
    if not keys:
        return value
    copy = dict(record) if isinstance(record, dict) else list(record)
    copy[keys[0]] = changed(record[keys[0]], keys[1:], value)
    return copy


def keys_in(record: Any) -> list[tuple[Any, ...]]:
    """List the keys of each value in a record, those of the record itself (none) first."""
    inner = record.items() if isinstance(record, dict) else enumerate(record[:1]) if isinstance(record, list) else ()
    return [(), *((key, *more) for key, value in inner for more in keys_in(value))]


def rewritten(layout: Layout, part: str) -> tuple[Path, Any, Callable[[Any], bytes], Callable[[], object]]:
    """The file of a part, its record, how a record is written with a checksum, and a reader."""
    if part in ("declaration", "champion"):
        path = Path(layout.declaration("chat") if part == "declaration" else layout.champion("chat"))
        reader = declaration if part == "declaration" else read_champion
        return path, json.loads(path.read_text())["record"], checksums.checksummed, lambda: reader(layout, "chat")
    address = layout.artifact("vectors", "chat", **KEYS) if part == "manifest" else layout.commit("chat", 2)
    path = Path(address, "manifest.json")

    def written(record: Any) -> bytes:
        with suppress(Exception):  # what has no digest keeps the old one
            record = {**record, "digest": artifact._digest(record)}
        return json.dumps(record).encode()

    def read() -> object:
        if part == "manifest":
            return artifact.read_table(address, "vectors")
        return history(layout, "chat"), read_events(layout, "chat")

    return path, json.loads(path.read_text()), written, read


@pytest.mark.parametrize("part", ["declaration", "champion", "manifest", "commit"])
def test_a_value_of_the_wrong_kind_is_damage_or_without_effect(layout: Layout, part: str):
    path, record, written, read = rewritten(layout, part)
    messages = []
    for keys in keys_in(record):
        for value in WRONG:
            with suppress(TypeError, AttributeError):  # no list of lines, which the format cannot hold
                path.write_bytes(written(changed(record, keys, value)))
                messages += message_of(read)
    assert len(messages) > 2 * len(WRONG)
    assert not [message for message in messages if "\n" in message or not message.isprintable()]


def message_of(read: Callable[[], object]) -> list[str]:
    try:
        read()
    except (Damaged, artifact.ArtifactMissing) as error:
        return [str(error)]
    return []


@pytest.mark.parametrize(
    "folder",
    ["2_events", "2_events/dataset=chat", "2_events/dataset=chat/commit=2", "6_vectors"],
)
def test_a_file_instead_of_a_folder_is_named(layout: Layout, folder: str):
    path = Path(layout.root, folder)
    shutil.rmtree(path)
    path.write_bytes(b"x")
    (first, *_) = found(layout)
    assert (first.address, first.problem) == (str(path), "is a file, and the store has a folder there")
    for fault in found(layout):
        repaired(layout, dataset_of(fault), fault)
    assert path.read_bytes() == b"x"


def test_a_folder_instead_of_a_manifest_is_named(layout: Layout):
    manifest = commit_file(layout, 2)
    manifest.unlink()
    manifest.mkdir()
    (fault,) = found(layout)
    assert fault.address == str(manifest)
    assert "Is a directory" in fault.problem
    with pytest.raises(TableDamaged, match="Is a directory"):
        append(layout, "chat", FIRST, "sha-9")
