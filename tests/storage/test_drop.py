"""Dropping a dataset removes all of it from the store and changes no other dataset."""

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from storage import files
from storage.artifacts.artifact import Lineage, write_artifact
from storage.artifacts.checkpoints import save_checkpoint
from storage.drop import check_dataset, drop_dataset
from storage.events.declarations import declare
from storage.events.table import DatasetNotIngested
from storage.layout import Layout
from storage.locks import DatasetInUse

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
    layout = Layout(root, str(tmp_path / "state"))
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


def test_a_linked_folder_is_dropped_without_its_target(tmp_path: Path):
    layout = Layout(str(tmp_path / "store"))
    declare(layout, "one", {"window": "7d"})
    target, folder = tmp_path / "elsewhere", Path(layout.of_dataset(layout.datasets, "one"))
    folder.rename(target)
    folder.symlink_to(target)
    files.remove_folder(str(folder))
    assert not folder.exists()
    assert [path.name for path in target.iterdir()] == ["declaration.json"]
