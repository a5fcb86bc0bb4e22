"""An artifact is complete or absent, and every changed byte is detected."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from storage.artifacts import artifact
from storage.artifacts.artifact import (
    ArtifactDamaged,
    ArtifactMissing,
    Lineage,
    digest,
    faults,
    is_complete,
    is_current,
    lineage_of,
    manifest,
    open_artifact,
    read_bytes,
    read_table,
    settings_hash,
    write_artifact,
)
from storage.artifacts.made import Planned
from storage.bytes import files

EDGES = pl.DataFrame({"step": [1, 1, 2], "source": [0, 0, 1], "target": [1, 2, 2], "weight": [1.0, 2.0, 1.0]})
LINEAGE = Lineage(kind="snapshots", dataset="uci", table_version=3, until=12, settings={"window": ("7d", 1)})
CONTENTS = {"edges": EDGES, "record.json": b"{}"}


def verified(address: str) -> Lineage | None:
    """Read every file of an artifact with its checksum verified, and return its lineage; None where there is none."""
    lineage = manifest(address)
    for name in sorted(open_artifact(address).entries) if lineage else ():
        read_bytes(address, name)
    return lineage


@pytest.fixture
def address(tmp_path: Path) -> str:
    return write_artifact(str(tmp_path / "dataset=uci"), CONTENTS, LINEAGE)


def test_written_contents_are_read_back(address: str):
    assert_frame_equal(read_table(address, "edges"), EDGES)
    assert_frame_equal(open_artifact(address).scan("edges").filter(pl.col("step") == 2).collect(), EDGES.tail(1))
    assert read_bytes(address, "record.json") == b"{}"
    assert sorted(open_artifact(address).entries) == ["edges.parquet", "record.json"]
    assert verified(address) == LINEAGE


def test_lineage_names_settings_and_code(address: str):
    lineage = manifest(address)
    assert lineage is not None
    assert lineage.settings == {"window": ["7d", 1]}
    assert lineage.settings_hash == settings_hash({"window": ["7d", 1]})
    assert lineage.code_version
    with pytest.raises(ValueError, match="settings hash"):
        Lineage(kind="x", dataset="uci", table_version=1, settings={"a": 1}, settings_hash="ff")


def test_settings_hash_depends_on_values_and_not_on_their_spelling():
    assert settings_hash({"a": 1, "b": [1, 2]}) == settings_hash({"b": (1, 2), "a": 1})
    assert (
        len({settings_hash(s) for s in ({"a": 1}, {"a": 2}, {"a": "1"}, {"a": None}, {"a": True}, {"b": 1}, {})}) == 7
    )
    # SHA-256 of the two characters {}: the hash must never change between releases
    assert settings_hash({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}])
def test_settings_that_are_not_plain_values_are_refused(value: object):
    with pytest.raises(ValueError, match=r"plain values|not JSON compliant"):
        settings_hash({"a": value})


def test_an_address_has_no_artifact_before_it_is_written(tmp_path: Path):
    nowhere = str(tmp_path / "dataset=none")
    assert manifest(nowhere) is None
    assert not is_complete(nowhere)
    assert not is_current(nowhere, LINEAGE)
    with pytest.raises(ArtifactMissing, match="run the command that makes it"):
        read_table(nowhere, "edges")


def test_an_error_for_a_missing_name_lists_the_names_of_the_artifact(address: str):
    with pytest.raises(ArtifactMissing, match=r"has no 'nodes\.parquet'; it has edges\.parquet, record\.json"):
        read_table(address, "nodes")


@pytest.mark.parametrize("name", ["edges.parquet", "record.json"])
def test_a_tampered_file_is_refused_by_name(address: str, name: str):
    path = Path(address) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactDamaged, match=rf"{name} was changed .* run the command that makes it again"):
        read_bytes(address, name)


def test_a_tampered_record_is_refused(address: str):
    path = Path(address) / "manifest.json"
    record = json.loads(path.read_text())
    record["lineage"]["until"] = 11
    path.write_text(json.dumps(record))
    with pytest.raises(ArtifactDamaged, match=r"manifest\.json"):
        manifest(address)


def test_an_artifact_without_one_of_its_files_is_incomplete_and_is_made_again(address: str):
    (Path(address) / "edges.parquet").unlink()
    assert not is_complete(address)
    with pytest.raises(ArtifactDamaged, match=r"edges\.parquet is missing"):
        read_table(address, "edges")
    write_artifact(address, CONTENTS, LINEAGE)
    assert_frame_equal(read_table(address, "edges"), EDGES)


def test_the_first_of_one_lineage_stays_and_another_lineage_replaces_it(address: str):
    write_artifact(address, {"edges": EDGES.head(1)}, LINEAGE)
    assert read_table(address, "edges").height == 3
    newer = dataclasses.replace(LINEAGE, code_version="99")
    before = digest(address)
    write_artifact(address, {"edges": EDGES.head(1)}, newer)
    assert manifest(address) == newer
    assert read_table(address, "edges").height == 1
    assert sorted(open_artifact(address).entries) == ["edges.parquet"]
    assert digest(address) != before


@pytest.mark.parametrize("read", [lambda opened: opened.table("edges"), lambda opened: opened.scan("edges")])
def test_a_file_that_another_process_replaced_since_is_no_damage(address: str, read: Callable[[Any], object]):
    opened = open_artifact(address)
    write_artifact(address, {"edges": EDGES.with_columns(weight=7.0)}, dataclasses.replace(LINEAGE, code_version="99"))
    with pytest.raises(ArtifactDamaged, match=r"edges\.parquet was replaced by another process.*: run the same"):
        read(opened)
    (Path(address) / "edges.parquet").write_bytes(b"damaged")
    with pytest.raises(ArtifactDamaged, match="delete its folder"):
        read(open_artifact(address))


def test_the_digest_is_of_content_and_lineage(tmp_path: Path, address: str):
    assert digest(write_artifact(str(tmp_path / "again"), CONTENTS, LINEAGE)) == digest(address)
    other = write_artifact(str(tmp_path / "other"), CONTENTS | {"record.json": b"[]"}, LINEAGE)
    later = write_artifact(str(tmp_path / "later"), CONTENTS, dataclasses.replace(LINEAGE, until=13))
    assert len({digest(address), digest(other), digest(later)}) == 3


class Killed(BaseException):
    """Simulates the end of the process, because the code under test cannot catch it."""


@pytest.fixture
def killed_before(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Allow a number of calls that write to the disk, then raise."""
    real = {name: getattr(os, name) for name in ("fsync", "mkdir", "rename")}

    def arm(num_calls: int) -> None:
        left = iter(range(num_calls))

        def counted(name: str) -> Callable:
            def call(*arguments: Any, **keywords: Any) -> Any:
                if next(left, None) is None:
                    raise Killed
                return real[name](*arguments, **keywords)

            return call

        for name in real:
            monkeypatch.setattr(os, name, counted(name))

    return arm


@pytest.mark.parametrize("older", [False, True], ids=["nothing-there", "an-older-one-there"])
def test_a_writer_killed_at_any_point_leaves_no_artifact_or_a_complete_one(
    tmp_path: Path, killed_before: Callable[[int], None], older: bool
):
    newer, seen, num_calls = dataclasses.replace(LINEAGE, code_version="99"), [], 0
    while True:
        address = str(tmp_path / f"try={num_calls}")
        killed_before(10**6)
        if older:
            write_artifact(address, CONTENTS, LINEAGE)
        killed_before(num_calls)
        try:
            write_artifact(address, {"edges": EDGES.head(1), "more": EDGES}, newer)
        except Killed:
            seen.append(verified(address))
            num_calls += 1
        else:
            break
    # Killed once after each call: make folder, write three files, sync folder, rename, sync parent.
    assert num_calls >= 7
    assert verified(address) == newer
    outcomes = [None, newer, *([LINEAGE] if older else [])]
    assert all(outcome in seen for outcome in outcomes)
    assert all(lineage in outcomes for lineage in seen)


def test_a_writer_killed_by_the_system_leaves_nothing_visible(tmp_path: Path):
    program = """
import os, sys
import polars as pl
from pathlib import Path
from typing import Any
from storage.artifacts.artifact import Lineage, write_artifact

Path.rename = lambda *_: os.kill(os.getpid(), 9)
write_artifact(sys.argv[1], {"edges": pl.DataFrame({"a": [1]})}, Lineage(kind="x", dataset="uci", table_version=1))
"""
    address = str(tmp_path / "dataset=uci")
    assert subprocess.run([sys.executable, "-c", program, address], check=False).returncode == -9
    assert manifest(address) is None
    assert files.find(str(tmp_path), "manifest.json") == []


def test_one_of_simultaneous_writers_wins_and_all_get_its_address(tmp_path: Path):
    frames = [EDGES.with_columns(weight=pl.lit(float(i))) for i in range(8)]
    for round_number in range(10):
        address = str(tmp_path / f"round={round_number}")
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(write_artifact, [address] * 8, [{"edges": frame} for frame in frames], [LINEAGE] * 8))
        assert set(found) == {address}
        assert verified(address) == LINEAGE
        assert read_table(address, "edges")["weight"].n_unique() == 1
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_writers_of_different_lineages_at_once_leave_one_whole_artifact(tmp_path: Path):
    address = str(tmp_path / "dataset=uci")

    def write(version: int) -> None:
        lineage = Lineage(kind="x", dataset="uci", table_version=version)
        write_artifact(address, {"edges": EDGES.with_columns(weight=pl.lit(float(version)))}, lineage)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    lineage = verified(address)
    assert lineage is not None
    assert set(read_table(address, "edges")["weight"]) == {float(lineage.table_version)}


def test_a_full_disk_raises_and_does_not_wait_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_artifact(str(tmp_path / "x"), CONTENTS, LINEAGE)


@pytest.mark.parametrize("path", ["../other/edges.parquet", "/etc/hostname", "..", "a/../../x", "s3://bucket/x"])
def test_a_manifest_that_lists_a_path_outside_its_folder_is_refused(tmp_path: Path, path: str):
    address = write_artifact(str(tmp_path / "mine"), CONTENTS, LINEAGE)
    location = Path(address, "manifest.json")
    record = json.loads(location.read_text())
    record["files"]["edges.parquet"]["path"] = path
    record["digest"] = artifact._digest(record)  # forged together with the path
    location.write_text(json.dumps(record))
    for read in (read_table, lambda address, name: open_artifact(address).scan(name)):
        with pytest.raises(ArtifactDamaged, match="which is not in the artifact's folder"):
            read(address, "edges")


def test_a_link_instead_of_a_file_is_not_followed(tmp_path: Path):
    address = write_artifact(str(tmp_path / "mine"), CONTENTS, LINEAGE)
    file = Path(address, "edges.parquet")
    file.rename(tmp_path / "elsewhere.parquet")
    file.symlink_to(tmp_path / "elsewhere.parquet")
    for read in (read_table, lambda address, name: open_artifact(address).scan(name)):
        with pytest.raises(ArtifactDamaged, match="symbolic link to"):
            read(address, "edges")


def test_nothing_is_written_over_a_link_to_a_folder(tmp_path: Path):
    outside, store = tmp_path / "outside", tmp_path / "store"
    outside.mkdir()
    store.symlink_to(outside)
    with pytest.raises(ArtifactDamaged, match="symbolic link to"):
        write_artifact(str(store / "mine"), CONTENTS, LINEAGE)
    assert not list(outside.iterdir())


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"lineage": 1}', b'{"digest": "x", "files": {}, "lineage": {}}', b"\xff\xfe"]
)
def test_a_manifest_that_is_none_is_named(tmp_path: Path, damage: bytes):
    address = write_artifact(str(tmp_path / "mine"), CONTENTS, LINEAGE)
    Path(address, "manifest.json").write_bytes(damage)
    with pytest.raises(ArtifactDamaged, match=r"manifest.json was changed .*run the command that makes it again"):
        is_complete(address)


def test_an_artifact_that_was_copied_to_another_dataset_is_refused(tmp_path: Path):
    address = write_artifact(str(tmp_path / "dataset=uci" / "version=3"), CONTENTS, LINEAGE)
    assert lineage_of(address) == LINEAGE
    copy = tmp_path / "dataset=chat" / "version=3"
    shutil.copytree(address, copy)
    expected = rf"{copy}/manifest.json is of the dataset 'uci', and was copied here: delete its folder"
    for read in (is_complete, lineage_of, digest, open_artifact, lambda address: read_table(address, "edges")):
        with pytest.raises(ArtifactDamaged, match=expected):
            read(str(copy))
    ((location, problem),) = faults(str(copy))
    assert (location, problem.partition(" ")[0]) == (f"{copy}/manifest.json", "is")


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 300, "..", "a\\b", ""])
def test_a_file_name_that_no_disk_has_is_refused(tmp_path: Path, path: str):
    address = write_artifact(str(tmp_path / "mine"), CONTENTS, LINEAGE)
    manifest = Path(address, "manifest.json")
    record = json.loads(manifest.read_text())
    record["files"]["edges.parquet"]["path"] = path
    manifest.write_text(json.dumps(record))
    with pytest.raises(ArtifactDamaged, match="which is not in the artifact's folder") as raised:
        read_table(address, "edges")
    str(raised.value).encode()


def test_nothing_is_made_where_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    looked_at: list[str] = []

    def forbidden(path: Path, _mode: int) -> bool:
        looked_at.append(str(path))
        return False

    def make() -> dict[str, bytes]:
        made.append(1)
        return {"record.json": b"{}"}

    plan = Planned(address=str(tmp_path / "dataset=uci" / "step=1"), lineage=LINEAGE)
    with monkeypatch.context() as patch:
        patch.setattr("os.access", forbidden)
        with pytest.raises(files.WriteFailed, match="step=1 cannot be written"):
            plan.made(make)
    assert (made, looked_at) == ([], [str(tmp_path)])
    assert plan.made(make) == plan.made(make) == plan.address
    assert made == [1]
