"""Drift of what was published: which publications are compared, with tables that are not stored."""

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from dyformer.evaluation.config import DriftConfig
from dyformer.evaluation.drift import alarms_of, compared_steps, with_deviations
from dyformer.experiments.settings import Experiment
from flows.tasks import drift
from storage.artifacts.artifact import ArtifactMissing

SCHEMA = {"step": pl.Int64, "metric": pl.String, "value": pl.Float64}
VECTORS = {
    "v1": [[1.0, 0.0], [0.0, 1.0]],
    "v2": [[0.0, 1.0], [1.0, 0.0]],
    "wide": [[1.0, 0, 0], [0, 1.0, 0]],
    "one": [[1.0, 0.0], [1.0, 0.0]],
}


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
    monkeypatch.setattr(drift, "_shifts", lambda opened, compared: iter(()))
    found = with_deviations(drift._published_values(None, 1))  # pyright: ignore
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
    found = list(drift._shifts(None, [([publication(5, *before)], publication(6, *now))]))  # pyright: ignore
    assert {step for step, _, _ in found} <= {6}
    assert {metric: value for _, metric, value in found} == pytest.approx(expected)


def test_the_smallest_distance_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drift, "_read", stored)
    earlier = [publication(5, "f1", "v1"), publication(1, "f2", "one")]
    found = list(drift._shifts(None, [(earlier, publication(6, "f2", "v2"))]))  # pyright: ignore
    assert found == [(6, "probabilities", 0.0), (6, "vectors", pytest.approx(0.0))]


def test_where_days_of_a_week_recur_publications_are_also_compared_with_those_a_week_before():
    """Step 21 was not published, and from step 30 on the newest seven are compared."""
    steps = [*range(20, 21), *range(22, 31)]
    assert compared_steps(steps, 7) == [((step - 1, step - 7), step) for step in range(27, 31) if step != 28]
    assert compared_steps(steps, 1) == [((step - 1,), step) for step in range(24, 31)]
    assert compared_steps(steps[:3], 1) == [((20,), 22), ((22,), 23)]
    assert compared_steps(range(40), 7) == [((step - 1, step - 7), step) for step in range(33, 40)]
    assert compared_steps([], 7) == compared_steps([4], 1) == []


@pytest.mark.parametrize(
    ("changed_from", "alarmed"),
    [(None, []), (57, [57, 61, 63]), (61, [61, 63])],
    ids=["nothing changes", "from a Tuesday on", "from a Saturday on"],
)
def test_weekends_raise_no_alarm_and_a_lasting_change_few(changed_from: int | None, alarmed: list[int]):
    """The distance of two days is large if one alone is a day off, or one alone comes after a change.

    After a change the first weekend is unlike both its Friday and the weekend before, and so is the Monday.
    """

    def distance(a: int, b: int) -> float:
        is_unlike = (a % 7 > 4) != (b % 7 > 4) or (changed_from is not None and a < changed_from <= b)
        return 0.6 if is_unlike else 0.02

    def has_alarm(last: int) -> bool:
        compared = compared_steps(range(40, last + 1), 7)
        values = [min(distance(step, now) for step in steps) for steps, now in compared]
        rows = pl.DataFrame({"step": [now for _, now in compared], "metric": "probabilities", "value": values})
        return bool(alarms_of(with_deviations(rows, dict.fromkeys(range(80), 7)), last, DriftConfig()))

    assert [last for last in range(52, 78) if has_alarm(last)] == alarmed


def test_published_values_are_compared_a_period_of_the_newest_step_before(monkeypatch: pytest.MonkeyPatch):
    columns = {"late": False, "num_pairs": None, "num_came": None, "probability": None}
    rows = pl.DataFrame([{"number": step, "step": step, "start_time": step, **columns} for step in range(1, 10)])
    compared: list[tuple[list[int], int]] = []
    opened = SimpleNamespace(num_steps=9, dataset="mylog", graph=lambda until: None)
    monkeypatch.setattr(drift, "open_snapshots", lambda address: opened)
    monkeypatch.setattr(drift, "_known", lambda opened: rows.cast({"num_pairs": pl.Int64}))
    monkeypatch.setattr(drift, "step_values", lambda graph: pl.DataFrame(schema=SCHEMA))
    monkeypatch.setattr(drift, "step_periods", lambda graph: {8: 1, 9: 7})
    monkeypatch.setattr(drift, "made", lambda *_, make, **__: make())
    monkeypatch.setattr(
        drift,
        "_shifts",
        lambda opened, pairs: compared.extend(([row["step"] for row in a], b["step"]) for a, b in pairs) or [],
    )
    drift.write_drift("", Experiment())
    assert compared == [([7, 1], 8), ([8, 2], 9)]


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
    seen: list[tuple[list[int], int]] = []
    monkeypatch.setattr(drift, "_known", lambda opened: rows)
    monkeypatch.setattr(
        drift,
        "_shifts",
        lambda opened, pairs: seen.extend(([row["number"] for row in a], b["number"]) for a, b in pairs) or [],
    )
    assert drift._published_values(None, 1).is_empty()  # pyright: ignore
    assert seen == [([1], 2)]


def test_publications_of_windows_that_were_replaced_have_the_present_numbers(monkeypatch: pytest.MonkeyPatch):
    """Windows of five were replaced by those of ten: the forecast of the time 30 was of step 7, and is of step 4."""
    published = pl.DataFrame({"number": [1, 2, 3], "step": [7, 8, 5], "start_time": [30, 35, 40]})
    monkeypatch.setattr(drift, "ledger", lambda layout, dataset: published)
    steps = pl.DataFrame({"step": [1, 2, 3, 4], "start_time": [0, 10, 20, 30]})
    opened: Any = SimpleNamespace(layout=None, dataset="mylog", steps=steps)
    assert drift._known(opened).select("number", "step").rows() == [(1, 4)]
