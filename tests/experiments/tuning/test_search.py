"""Searches of a grid: their budget, their first point, and what they choose."""

import sys
from itertools import product
from typing import Any

import pytest

from dyformer.experiments.tuning.search import OptunaMissing, Tried, best, points_of, search

GRID = {"a": (1, 2, 3, 4, 5), "b": ("x", "y", "z")}
USUAL = {"a": 3, "b": "y"}


def peak(point: dict[str, Any]) -> float:
    return -abs(point["a"] - 5) - (point["b"] != "z")


def searched(num_trials: int, seed: int = 0, grid=GRID, usual=USUAL) -> list[Tried]:
    return list(search(grid, usual, peak, num_trials=num_trials, seed=seed))


@pytest.mark.parametrize("num_trials", [1, 2, 6, 14])
def test_a_large_grid_is_tried_as_often_as_allowed_the_usual_point_first_and_none_twice(num_trials: int):
    tried = searched(num_trials)
    assert len(tried) == num_trials
    assert tried[0] == (USUAL, peak(USUAL))
    assert len({tuple(each.settings.items()) for each in tried}) == num_trials
    assert all(each.settings["a"] in GRID["a"] and each.score == peak(each.settings) for each in tried)


@pytest.mark.parametrize("num_trials", [15, 100])
def test_a_small_grid_is_tried_in_full(num_trials: int):
    tried = searched(num_trials)
    assert sorted(tuple(each.settings.values()) for each in tried) == sorted(product(*GRID.values()))
    assert tried[0].settings == USUAL
    assert best(tried).settings == {"a": 5, "b": "z"}


def test_a_search_is_the_same_again_for_its_seed_alone():
    assert searched(8, seed=1) == searched(8, seed=1)
    assert searched(8, seed=1) != searched(8, seed=2)


def test_a_search_learns_from_the_scores():
    grid = {"a": tuple(range(20)), "b": ("x", "y", "z"), "c": tuple(range(20))}
    usual = {"a": 0, "b": "x", "c": 0}
    tried = [
        each
        for seed in range(3)
        for each in list(search(grid, usual, lambda point: float(point["b"] == "z"), num_trials=40, seed=seed))[20:]
    ]
    assert sum(each.score for each in tried) / len(tried) > 0.6  # a third without learning


def test_usual_settings_beside_the_grid_are_tried_too():
    for num_trials, found in ((4, 4), (15, 15), (16, 16), (20, 16)):
        tried = searched(num_trials, usual={"a": 7, "b": "y"})
        assert len(tried) == found
        assert tried[0].settings == {"a": 7, "b": "y"}


def test_a_point_that_comes_again_is_not_scored_again():
    scored: list[dict[str, Any]] = []
    list(search(GRID, USUAL, lambda point: scored.append(point) or peak(point), num_trials=14, seed=0))
    assert len(scored) == 14


def test_of_equal_points_the_usual_one_stays():
    assert best([Tried({"a": 1}, 0.5), Tried({"a": 2}, 0.5), Tried({"a": 3}, 0.4)]).settings == {"a": 1}


def test_a_missing_optuna_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert len(searched(15)) == 15
    with pytest.raises(OptunaMissing, match="pip install dyformer"):
        searched(6)


def test_a_missing_optuna_is_noticed_before_anything_is_scored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    grid = {"a": (1, 2), "b": (1, 2)}
    assert points_of(grid, {"b": 1, "a": 1}, 4) == [
        {"b": 1, "a": 1},
        {"a": 1, "b": 2},
        {"a": 2, "b": 1},
        {"a": 2, "b": 2},
    ]
    scored: list[dict] = []
    with pytest.raises(OptunaMissing, match="pip install dyformer"):
        next(search(grid, {"a": 1, "b": 1}, lambda point: scored.append(point) or 0.0, num_trials=3, seed=0))
    assert scored == []
