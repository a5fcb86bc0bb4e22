"""Dropping a dataset removes all of it from the store and changes no other dataset."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree as shutil_rmtree

import polars as pl
import pytest

from storage.artifacts.artifact import Lineage, write_artifact
from storage.artifacts.checkpoints import save_checkpoint
from storage.bytes import files
from storage.events.declarations import declare
from storage.events.table import DatasetNotIngested, check_dataset
from storage.layout import Layout
from storage.locks import DatasetInUse
from storage.removal import drop_dataset, remove_dropped, remove_raw
from storage.verification import dataset_of, faults, repaired

KEYS = {"version": 1, "until": 3, "settings": "0" * 12, "seed": 0}
HOLDER = """
import sys
from storage.layout import Layout
from storage.locks import in_use

with in_use(Layout(sys.argv[1], sys.argv[2]), "one").read_lock():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["local", "s3"])
def layout(request: pytest.FixtureRequest, tmp_path: Path) -> Layout:
    root = str(tmp_path / "store")
    if request.param == "s3":
        root = f"{request.getfixturevalue('s3_bucket')}/{tmp_path.name}"
    return made(Layout(root, str(tmp_path / "state")))


def made(layout: Layout) -> Layout:
    """Make two datasets."""
    for dataset in ("one", "one-more"):
        declare(layout, dataset, {"window": "7d"})
        files.write_bytes(f"{layout.commit(dataset, 1)}/interactions.parquet", b"rows")
        files.write_bytes(f"{layout.raw(dataset)}/log.csv", b"rows")
        files.write_bytes(layout.champion(dataset), b"{}")
        lineage = Lineage(kind="vectors", dataset=dataset, table_version=1, until=3)
        write_artifact(layout.artifact("vectors", dataset, **KEYS), {"vectors": pl.DataFrame({"id": [1]})}, lineage)
        save_checkpoint(layout.artifact("pretrain", dataset, **KEYS), {}, {})
    return layout


def addresses(layout: Layout) -> list[str]:
    return [layout.relative(address) for address in files.find(layout.root)]


def test_only_the_raw_files_of_a_dropped_dataset_are_left(layout: Layout):
    others = [address for address in addresses(layout) if "dataset=one-more" in address]
    drop_dataset(layout, "one")
    assert addresses(layout) == sorted([*others, "1_raw/dataset=one/log.csv"])
    with pytest.raises(DatasetNotIngested, match=r"'one'.*it has: one-more"):
        check_dataset(layout, "one")


def test_raw_files_and_received_events_are_removed_if_that_is_wanted(layout: Layout):
    """Those of a server lie in the store if that is local, else on its machine."""
    received = f"{layout.received('one')}/.open-1.jsonl"
    files.write_bytes(received, b"events")
    others = [address for address in addresses(layout) if "1_raw/dataset=one/" not in address]
    assert remove_raw(layout, "one")
    assert addresses(layout) == others
    assert not Path(received).exists()
    assert not remove_raw(layout, "one")
    files.write_bytes(received, b"events")
    assert remove_raw(layout, "one")


def test_a_dataset_in_use_is_not_dropped(layout: Layout):
    before = addresses(layout)
    command = [sys.executable, "-c", HOLDER, layout.root, layout.state]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DatasetInUse, match="'one' is being ingested or trained on"):
            drop_dataset(layout, "one")
        assert addresses(layout) == before
        holder.kill()
    drop_dataset(layout, "one")


class Killed(BaseException):
    """The end of a process, which no handler sees."""


def killed_drop(layout: Layout, dataset: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Drop a dataset and die after each rename, as often as it takes; give what is left, by its relative address."""

    def die(folder: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("storage.bytes.files.shutil.rmtree", die)
        while Path(layout.of_dataset(layout.datasets, dataset)).exists():
            with pytest.raises(Killed):
                drop_dataset(layout, dataset)
    return [layout.relative(str(path)) for path in Path(layout.root).glob("**/.*dataset=*")]


def test_what_killed_drops_leave_is_named_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    layout = made(Layout(str(tmp_path / "store"), str(tmp_path / "state")))
    others = [address for address in addresses(layout) if "dataset=one-more" in address]
    left = killed_drop(layout, "one", monkeypatch)
    assert len(left) >= 4  # events, vectors, checkpoints, the champion
    found = list(faults(layout))
    rests = [fault for fault in found if "`dyformer drop one` has left" in fault.problem]
    assert sorted(layout.relative(fault.address) for fault in rests) == sorted(left)
    assert {dataset_of(fault) for fault in rests} == {"one"}
    assert [fault for fault in faults(layout, "one-more") if fault in rests] == []
    assert repaired(layout, "one", rests[0]) == "removed"
    monkeypatch.setattr("storage.bytes.files.shutil.rmtree", rmtree_once_killed())
    with pytest.raises(Killed):  # a removal that is killed leaves another name
        remove_dropped(layout)
    remove_dropped(layout)
    assert not list(Path(layout.root).glob("**/.*dataset=*"))
    assert addresses(layout) == sorted([*others, "1_raw/dataset=one/log.csv"])


def rmtree_once_killed() -> Callable[[Path], None]:
    calls: list[Path] = []

    def remove(folder: Path) -> None:
        calls.append(folder)
        if len(calls) == 1:
            raise Killed
        shutil_rmtree(folder)

    return remove


def test_what_another_process_is_dropping_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    layout = made(Layout(str(tmp_path / "store"), str(tmp_path / "state")))
    left = killed_drop(layout, "one", monkeypatch)
    command = [sys.executable, "-c", HOLDER, layout.root, layout.state]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        remove_dropped(layout)
        assert all(Path(layout.root, name).exists() for name in left)
        assert not [fault for fault in faults(layout) if "has left" in fault.problem]
        holder.kill()
    remove_dropped(layout)
    assert not any(Path(layout.root, name).exists() for name in left)


def test_a_linked_folder_is_dropped_without_its_target(tmp_path: Path):
    layout = Layout(str(tmp_path / "store"))
    declare(layout, "one", {"window": "7d"})
    target, folder = tmp_path / "elsewhere", Path(layout.of_dataset(layout.datasets, "one"))
    folder.rename(target)
    folder.symlink_to(target)
    files.remove_folder(str(folder))
    assert not folder.exists()
    assert [path.name for path in target.iterdir()] == ["declaration.json"]
