"""A file that another process removes or renames while a folder is listed is left out, and is no error."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import files
from storage.tracking.spool import RECORDS, spooled_runs


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


def test_stamps_are_of_the_files_that_stay(tmp_path: Path, vanishing: set[str]) -> None:
    for name in ("0.json", ".1.json.tmp", "2.json"):
        (tmp_path / name).write_text(name)
    vanishing.add(".1.json.tmp")
    found = files.stamps(str(tmp_path))
    assert sorted(found) == ["0.json", "2.json"]
    assert found["0.json"] == files.stamp(str(tmp_path / "0.json"))


def test_runs_that_another_process_has_sent_wait_no_more(tmp_path: Path, vanishing: set[str]) -> None:
    for name in ("first", "sent", "last"):
        (tmp_path / name).mkdir()
        (tmp_path / name / RECORDS).write_text("{}\n")
    vanishing.add("sent")
    assert {folder.name for folder in spooled_runs(tmp_path)} == {"first", "last"}
