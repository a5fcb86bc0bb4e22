"""Drift of what was published: which publications are compared, with tables that are not stored."""

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from dyformer.evaluation.config import DriftConfig
from dyformer.evaluation.drift import alarms_of, with_deviations
from flows.tasks import drift
from storage.artifacts.artifact import ArtifactMissing

VECTORS = {"v1": [[1.0, 0.0], [0.0, 1.0]], "v2": [[0.0, 1.0], [1.0, 0.0]], "wide": [[1.0, 0, 0], [0, 1.0, 0]]}


def stored(opened: Any, address: str, name: str) -> pl.DataFrame:
    if address == "removed":
        raise ArtifactMissing(address)
    ids = pl.DataFrame({"side": [0, 0], "id": ["a", "b"]})
    if name == "vectors":
        return ids.with_columns(vector=pl.Series(VECTORS[address], dtype=pl.List(pl.Float32)))
    return pl.DataFrame({"probability": {"f1": [0.1, 0.2], "f2": [0.8, 0.9]}[address]})


def test_forecasts_of_which_nothing_came_raise_an_alarm(monkeypatch: pytest.MonkeyPatch):
    """Six steps with about as many links as expected, and a seventh without any."""
    came = [10, 9, 11, 10, 12, 9, 0]
    rows = [
        {"step": step, "start_time": step, "num_pairs": 40, "num_came": num_came, "probability": 0.25, "late": False}
        for step, num_came in enumerate(came, start=5)
    ]
    incomplete = {**rows[-1], "step": 12, "start_time": 12, "num_pairs": None, "num_came": None, "probability": None}
    known = pl.DataFrame([*rows, incomplete])
    monkeypatch.setattr(drift, "_known", lambda opened: known)
    monkeypatch.setattr(drift, "_shifts", lambda opened, published: iter(()))
    found = with_deviations(drift._published_values(None))  # pyright: ignore
    assert found["step"].to_list() == list(range(5, 12))
    assert alarms_of(found, 10, DriftConfig()) == []
    [alarm] = alarms_of(found, 11, DriftConfig())
    assert alarm.startswith("calibration 2000 %, usually 100 % (")


def publication(step: int, forecasts: str, vectors: str | None) -> dict[str, Any]:
    return {"step": step, "forecasts": forecasts, "vectors": vectors}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (("f1", "v1"), ("f2", "v2"), {"probabilities": 1.0, "vectors": 0.0}),  # a rotation of the same vectors
        (("f1", "v1"), ("f1", "v1"), {"probabilities": 0.0}),  # the same vectors
        (("f1", "v1"), ("f2", "wide"), {"probabilities": 1.0}),
        (("f1", None), ("f2", "v1"), {"probabilities": 1.0}),
        (("removed", "v1"), ("f2", "v2"), {}),
    ],
)
def test_publications_that_can_be_compared_are(
    monkeypatch: pytest.MonkeyPatch, before: tuple, now: tuple, expected: dict[str, float]
):
    monkeypatch.setattr(drift, "_read", stored)
    found = list(drift._shifts(None, [publication(5, *before), publication(6, *now)]))  # pyright: ignore
    assert {step for step, _, _ in found} <= {6}
    assert {metric: value for _, metric, value in found} == pytest.approx(expected)


def test_late_publications_are_no_part_of_the_drift(monkeypatch: pytest.MonkeyPatch):
    rows = pl.DataFrame(
        {
            "number": [1, 2, 3],
            "step": [5, 6, 5],
            "start_time": [50, 60, 50],
            "late": [False, False, True],
            "num_pairs": [None] * 3,
        },
        schema_overrides={"num_pairs": pl.Int64},
    )
    seen: list[int] = []
    monkeypatch.setattr(drift, "_known", lambda opened: rows)
    monkeypatch.setattr(drift, "_shifts", lambda opened, own: seen.extend(row["number"] for row in own) or [])
    assert drift._published_values(None).is_empty()  # pyright: ignore
    assert seen == [1, 2]


def test_publications_of_windows_that_were_replaced_have_the_present_numbers(monkeypatch: pytest.MonkeyPatch):
    """Windows of five were replaced by those of ten: the forecast of the time 30 was of step 7, and is of step 4."""
    published = pl.DataFrame({"number": [1, 2, 3], "step": [7, 8, 5], "start_time": [30, 35, 40]})
    monkeypatch.setattr(drift, "ledger", lambda layout, dataset: published)
    steps = pl.DataFrame({"step": [1, 2, 3, 4], "start_time": [0, 10, 20, 30]})
    opened: Any = SimpleNamespace(layout=None, dataset="mylog", steps=steps)
    assert drift._known(opened).select("number", "step").rows() == [(1, 4)]
