"""Scored pairs as tables."""

import io
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scored_cases import evaluated_pairs

from dyformer.evaluation.scored_pairs import PAIRS_SCHEMA, OtherColumns, from_table, to_table
from flows.tasks.report import read_report
from storage.artifacts.artifact import ArtifactMissing, Lineage, write_artifact


def test_scored_pairs_survive_parquet():
    evaluated = evaluated_pairs()
    file = io.BytesIO()
    to_table(evaluated).write_parquet(file)
    table = pl.read_parquet(io.BytesIO(file.getvalue()))
    assert table.schema == PAIRS_SCHEMA
    for before, after in zip(evaluated, from_table(table), strict=True):
        assert (before.method, before.seed, before.step, before.family) == (
            after.method,
            after.seed,
            after.step,
            after.family,
        )
        for name in ("source_P", "target_P", "positive_P", "new_P", "score_P"):
            np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    assert from_table(to_table([])) == []


def test_a_table_of_an_earlier_version_is_refused_with_the_command_that_makes_it_again():
    earlier = to_table(evaluated_pairs()).rename({"positive": "linked"})
    with pytest.raises(OtherColumns, match=r"linked.*expected.*positive.*earlier version.*dyformer benchmark"):
        from_table(earlier)


def test_a_report_of_an_earlier_version_is_refused_with_the_command_that_makes_it_again(tmp_path: Path):
    lineage = Lineage(kind="report", dataset="mylog", table_version=1)
    for name in ("former_name", "metrics"):
        earlier = {name: pl.DataFrame({"value": [0.5]}), "summary.json": b"{}"}
        address = write_artifact(str(tmp_path / name), earlier, lineage)
        with pytest.raises(ArtifactMissing, match="earlier version of dyformer: delete it and run `dyformer run`"):
            read_report(address)
