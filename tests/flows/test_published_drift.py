"""Drift of what was published: which publications are compared, with tables that are not stored."""

from typing import Any

import polars as pl
import pytest

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
