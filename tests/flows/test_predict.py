"""Vectors and settings that cannot be used, and the first forecasts."""

from pathlib import Path

import polars as pl
import pytest

from flows.stages import audit, predict
from flows.tasks.predict import check_vectors, first_rows, read_vectors
from storage.artifacts.artifact import Lineage, write_artifact


def test_vectors_that_cannot_be_used_are_named():
    sound = pl.Series([[0.5, 1.0], [2.0, 3.0]], dtype=pl.List(pl.Float32))
    check_vectors(sound, "the artifact")
    for wrong in ([[0.5, float("nan")], [1.0, 1.0]], [[0.5, 1e39], [1.0, 1.0]]):
        with pytest.raises(ValueError, match="the artifact are not finite"):
            check_vectors(pl.Series(wrong, dtype=pl.List(pl.Float32)), "the artifact")
    others = [[[0.5], [1.0, 1.0]], [[], []], [[0.5, None], [1.0, 1.0]], [None, [1.0, 1.0]]]
    for wrong in (*(pl.Series(rows, dtype=pl.List(pl.Float32)) for rows in others), sound.cast(pl.List(pl.Float64))):
        with pytest.raises(ValueError, match="the artifact"):
            check_vectors(wrong, "the artifact")


def test_flows_refuse_noise_before_they_ingest_or_train(monkeypatch: pytest.MonkeyPatch):
    for first in ("complete_task", "ingest"):
        monkeypatch.setattr(f"flows.stages.{first}", lambda *_: pytest.fail("it has begun"))
    with pytest.raises(ValueError, match=r"leave graph\.noise out"):
        predict.fn("mylog", {"graph.noise": 0.1})
    with pytest.raises(ValueError, match=r"leave graph\.noise out"):
        audit.fn("mylog", changes={"graph.noise": 0.1})


def test_the_first_forecasts_show_each_pair_once_its_source_first(monkeypatch: pytest.MonkeyPatch):
    """User 7 and item 9 are a pair of two id spaces; item 7 and user 9 are another one."""
    rows = [(0, "7", 1, "9", 0.9), (1, "9", 0, "7", 0.9), (1, "7", 0, "9", 0.8), (0, "9", 1, "7", 0.8)]
    table = pl.DataFrame(rows, schema=["side", "id", "partner_side", "partner_id", "score"], orient="row")
    times = {"valid_from": pl.datetime(2024, 3, 25, 0, 4), "valid_to": pl.datetime(2024, 4, 1, 0, 4)}
    table = table.with_columns(probability=0.5, linked_before=True, method=pl.lit("Katz"), step=pl.lit(14), **times)
    monkeypatch.setattr("flows.tasks.predict.read_table", lambda *_: table)
    title, pairs = first_rows("address")
    assert pairs.select("id", "partner_id").rows() == [("7", "9"), ("9", "7")]
    assert title.startswith(
        "first forecasts, by Katz for 2024-03-25 00:04 to 2024-04-01 00:04 UTC, before any training"
    )
    monkeypatch.setattr("flows.tasks.predict.read_table", lambda *_: table.clear())
    title, pairs = first_rows("address")
    assert pairs.is_empty()
    assert title.startswith("first forecasts, before any training: not yet compared")


def test_a_table_without_vectors_is_named(tmp_path: Path):
    lineage = Lineage(kind="vectors", dataset="mine", table_version=1)
    address = write_artifact(str(tmp_path / "vectors"), {"vectors": pl.DataFrame({"id": ["a"]})}, lineage)
    with pytest.raises(ValueError, match=address):
        read_vectors(address)
