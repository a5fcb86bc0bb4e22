"""Vectors that cannot be used."""

from pathlib import Path

import polars as pl
import pytest

from flows.tasks.predict import WrongVectors, check_vectors, read_vectors
from storage.artifacts.artifact import Lineage, write_artifact


def test_vectors_that_cannot_be_used_are_named():
    sound = pl.Series([[0.5, 1.0], [2.0, 3.0]], dtype=pl.List(pl.Float32))
    check_vectors(sound, "the artifact")
    for wrong in ([[0.5, float("nan")], [1.0, 1.0]], [[0.5, 1e39], [1.0, 1.0]]):
        with pytest.raises(WrongVectors, match="the artifact are not finite"):
            check_vectors(pl.Series(wrong, dtype=pl.List(pl.Float32)), "the artifact")
    others = [[[0.5], [1.0, 1.0]], [[], []], [[0.5, None], [1.0, 1.0]], [None, [1.0, 1.0]]]
    for wrong in (*(pl.Series(rows, dtype=pl.List(pl.Float32)) for rows in others), sound.cast(pl.List(pl.Float64))):
        with pytest.raises(WrongVectors, match="the artifact"):
            check_vectors(wrong, "the artifact")


def test_a_table_without_vectors_is_named(tmp_path: Path):
    lineage = Lineage(kind="vectors", dataset="mine", table_version=1)
    address = write_artifact(str(tmp_path / "vectors"), {"vectors": pl.DataFrame({"id": ["a"]})}, lineage)
    with pytest.raises(WrongVectors, match=address):
        read_vectors(address)
