"""A disk that is full while rows are stored: an error with the path and a remedy, and no file is left."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from storage.disk import WriteFailed
from storage.events.data_files import store


@pytest.mark.parametrize("num_rows", [1, 20_000])  # written when the file is closed, and before
def test_a_full_disk_is_named_and_leaves_nothing(
    num_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / ".hidden"
    hidden.symlink_to("/dev/full")
    monkeypatch.setattr("storage.events.data_files.files.temporary_beside", lambda address: hidden)
    rows = pl.DataFrame({"time": np.random.default_rng(0).integers(0, 2**60, num_rows)})
    with pytest.raises(WriteFailed, match="No space left on device"):
        store(str(tmp_path / "events"), [rows], {"time": pl.Int64})
    assert not hidden.is_symlink()
