"""A file that vanishes while it is listed is left out; a full disk is an error with a remedy, and leaves no file."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from storage.artifacts.artifact import Lineage, drafted, write_artifact
from storage.bytes import files
from storage.bytes.files import WriteFailed
from storage.events.commits import write_rows
from storage.layout import Layout
from storage.tracking.marks import due


@pytest.fixture
def vanishing(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of files and folders that vanish between the list of a folder and a look at what it has."""
    names: set[str] = set()
    for method in ("iterdir", "glob"):
        listed: Any = getattr(Path, method)

        def then_vanish(folder: Path, *arguments: str, listed: Any = listed) -> Iterator[Path]:
            found = list(listed(folder, *arguments))
            for path in found:
                if names.intersection(path.parts):
                    path.unlink()
            return iter(found)

        monkeypatch.setattr(Path, method, then_vanish)
    return names


def test_results_that_another_process_has_removed_are_not_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(str(tmp_path))
    addresses = [layout.artifact("study", "uci", version=k, until=3, settings="0" * 12) for k in (1, 2)]
    for address in addresses:
        write_artifact(address, {}, Lineage(kind="study", dataset="uci", table_version=1, until=3))
    modified = files.modified

    def after_a_removal(address: str) -> float:
        shutil.rmtree(addresses[0], ignore_errors=True)
        return modified(address)

    monkeypatch.setattr(files, "modified", after_a_removal)
    assert due(layout) == addresses[1:]


@pytest.mark.parametrize("num_rows", [1, 20_000])  # written when the file is closed, and before
def test_a_full_disk_is_named_and_leaves_nothing(num_rows: int, tmp_path: Path) -> None:
    rows = pl.DataFrame({"time": np.random.default_rng(0).integers(0, 2**60, num_rows)})
    with drafted(str(tmp_path / "commit=1")) as draft:
        draft.path("interactions.parquet").symlink_to("/dev/full")
        with pytest.raises(WriteFailed, match=r"commit=1/interactions.parquet .*No space left on device"):
            write_rows(draft, "interactions", [rows], {"time": pl.Int64})
    assert list(tmp_path.iterdir()) == []
