"""A disk that is full while rows are stored: an error with the path and a remedy, and no file is left."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from storage.artifacts.artifact import drafted
from storage.events.commits import write_rows
from storage.files import WriteFailed


@pytest.mark.parametrize("num_rows", [1, 20_000])  # written when the file is closed, and before
def test_a_full_disk_is_named_and_leaves_nothing(num_rows: int, tmp_path: Path) -> None:
    rows = pl.DataFrame({"time": np.random.default_rng(0).integers(0, 2**60, num_rows)})
    with drafted(str(tmp_path / "commit=1")) as draft:
        draft.path("interactions.parquet").symlink_to("/dev/full")
        with pytest.raises(WriteFailed, match=r"commit=1/interactions.parquet .*No space left on device"):
            write_rows(draft, "interactions", [rows], {"time": pl.Int64})
    assert list(tmp_path.iterdir()) == []
