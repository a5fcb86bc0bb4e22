"""Searches of the paper's grids on past steps: their budget, what they choose, and what is committed of it."""

import json
import math
import os
import re
import sys
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score
from toy_graphs import random_graph

from dyformer.baselines.dysat.method import DySAT
from dyformer.evaluation.protocols import protocol_of
from dyformer.evaluation.protocols.paper import Trial, evaluate_method
from dyformer.experiments.methods import METHODS, TRAINED_BASELINES, VARIATIONS, Variation
from dyformer.experiments.printed import PrintedTable
from dyformer.experiments.settings import Experiment, UnknownSetting
from dyformer.experiments.tuning import grids
from dyformer.experiments.tuning.grids import (
    FOLDER,
    GRIDS,
    chosen_settings,
    grid_of,
    tuned,
    tuned_sentence,
    usual_point,
    with_settings,
)
from dyformer.experiments.tuning.search import NUM_STEPS, Tried, best, halved, macro_auc, past_steps, points_of, search
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.snapshots import build_snapshots, interactions_of, prefix
from dyformer.logs.datasets import DATASETS
from dyformer.logs.time_windows import Window
from flows.commands.benchmark import tables_of
from flows.tasks.methods import configured, resolved, searched_dataset

GRID = {"a": (1, 2, 3, 4, 5), "b": ("x", "y", "z")}
USUAL = {"a": 3, "b": "y"}
ROWS = 400
RECORD = {
    "DySAT": {"settings": {"width": 256, "negative_weight": 0.01}},
    "DyFormer": {"settings": {"model.width": 256}},
}


def peak(point: dict[str, Any]) -> float:
    return -abs(point["a"] - 5) - (point["b"] != "z")


def test_of_trainings_that_all_diverged_none_is_the_best():
    tried = [Tried({"a": value}, math.nan) for value in (1, 2)]
    assert best([*tried, Tried({"a": 3}, 0.1)]) == Tried({"a": 3}, 0.1)
    with pytest.raises(ValueError, match="all 2 points of the grid diverged"):
        best(tried)


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
    with pytest.raises(ValueError, match="pip install dyformer"):
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
    with pytest.raises(ValueError, match="pip install dyformer"):
        next(search(grid, {"a": 1, "b": 1}, lambda point: scored.append(point) or 0.0, num_trials=3, seed=0))
    assert scored == []


@pytest.mark.parametrize("title", GRIDS)
def test_every_value_of_a_grid_is_a_setting_of_the_method(title: str):
    usual = usual_point(title, Experiment())
    for name, values in GRIDS[title].items():
        assert len(set(values)) == len(values) > 1
        for value in values:
            method = with_settings(METHODS[title], {name: value})
            assert type(method) is type(METHODS[title])
            if isinstance(method, Variation):
                part, _, inner = name.partition(".")
                assert getattr(getattr(method.changed(Experiment()), part), inner) == value
            else:
                assert getattr(method, name) == value
                assert type(value) is type(usual[name])


def test_every_trained_baseline_has_a_grid_with_its_usual_settings():
    assert set(GRIDS) >= TRAINED_BASELINES
    for title in GRIDS:
        if title != "DyFormer":  # its own weight of negatives is none of the paper's
            assert all(value in GRIDS[title][name] for name, value in usual_point(title, Experiment()).items()), title


def test_an_unknown_title_or_setting_is_refused():
    with pytest.raises(ValueError, match="'L3' has no settings to search: expected one of node2vec"):
        grid_of("L3")
    with pytest.raises(ValueError, match="no_such"):
        with_settings(METHODS["DySAT"], {"no_such": 1})
    with pytest.raises(UnknownSetting, match="no_such"):
        with_settings(METHODS["DyFormer"], {"no_such": 1})


def test_the_values_are_those_of_the_paper():
    data = Path(os.environ.get("DYFORMER_SHARED_DATA", Path(__file__).resolve().parents[3].parent / "shared" / "data"))
    source = data.parent / "paper" / "dyformer.tex"
    if not source.exists():
        reason = f"the source of the paper is not at {source}; set DYFORMER_SHARED_DATA to the folder beside it"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    text = source.read_text().partition("paragraph{Model setups.}")[2].partition("Pre-training can reduce")[0]

    def numbers(sentence: str) -> list[tuple[float, ...]]:
        part = text[text.index(sentence) :].partition("\n\n")[0]
        sets = re.findall(r"\\\{([^}]*(?:\{[^}]*\}[^}]*)*?)\\\}", part)
        return [
            tuple(eval(value.replace("^{", "**(").replace("}", ")")) for value in found.split(",")) for found in sets
        ]

    assert numbers(r"\textsc{Node2Vec}") == [GRIDS["node2vec"]["return_parameter"]]
    alpha, beta, nu = numbers(r"\textsc{DynGEM}")
    assert [tuple(map(pytest.approx, alpha)), beta, nu] == [
        GRIDS["DynGEM"][key] for key in ("first_order", "edge_factor", "l1")
    ]
    assert GRIDS["DynAERNN"]["edge_factor"] == beta
    assert numbers(r"\textsc{DySAT}") == [GRIDS["DySAT"][key] for key in ("negative_weight", "temporal_heads", "width")]
    assert numbers("The hyper-parameters") == list(GRIDS["DyFormer (as published)"].values())
    assert math.prod(map(len, GRIDS["DySAT"].values())) == 24


@dataclass(frozen=True)
class Degrees:
    """Vectors of a node's links and a random number."""

    def fit(self, graph, *, seed):
        noise_N = np.random.default_rng(seed).normal(size=len(graph.history.node_N))
        vector_N2 = np.stack([graph.union.degree.astype(float), noise_N], axis=1)
        return lambda node_N: vector_N2[node_N]


def rows(num: int = ROWS) -> pl.DataFrame:
    generator = np.random.default_rng(0)
    ends = np.minimum(generator.geometric(0.05, size=(num, 2)), 60)
    return pl.DataFrame(
        {"source": ends[:, 0], "target": ends[:, 1], "time": np.sort(10 * generator.integers(0, 80, num))}
    )


def graph_of(events: pl.DataFrame, length: int):
    return build_snapshots(events, Window(rule="equal_time", length=str(length)), "step")


def test_the_newest_steps_choose():
    past = graph_of(rows(), 100)
    found = past_steps(past)
    assert found.graph is past
    assert found.steps == (6, 7, 8)
    assert len(found.steps) == NUM_STEPS
    assert str(found) == "steps 6, 7, 8"


def test_two_windows_are_cut_in_halves_which_are_those_of_a_log_with_half_the_window():
    found, expected = past_steps(graph_of(rows(), 400)), graph_of(rows(), 200)
    assert (found.steps, found.parts, str(found)) == ((3, 4), 2, "steps 3, 4 of windows cut in 2")
    for ours, theirs in zip(found.graph.snapshots, expected.snapshots, strict=True):
        for name, value in vars(theirs).items():
            np.testing.assert_array_equal(getattr(ours, name), value)
    for name, value in vars(interactions_of(expected)).items():
        np.testing.assert_array_equal(getattr(interactions_of(found.graph), name), value)
    np.testing.assert_array_equal(found.graph.node_N, expected.node_N)


def test_halves_keep_sides_directions_and_permanent_numbers():
    past = replace(graph_of(rows(), 400), directed=False)
    past = replace(past, side_N=(past.node_N % 2).astype(np.int8))
    cut = halved(past)
    assert not cut.directed
    np.testing.assert_array_equal(cut.side_N, past.side_N)
    np.testing.assert_array_equal(cut.node_N, past.node_N)


def test_a_past_without_links_is_refused():
    with pytest.raises(ValueError, match="1 steps before the first reported one"):
        past_steps(graph_of(rows(3), 800))


@pytest.mark.usefixtures("few_trees")
def test_the_score_is_that_of_the_papers_protocol():
    graph = random_graph(np.random.default_rng(1), num_nodes=40, num_steps=4, num_edges=60)
    values = macro_auc("degrees", Degrees(), graph, [3, 4], config=GraphConfig(), seed=2)
    scored, _ = evaluate_method("degrees", Degrees(), Trial(graph=prefix(graph, 4), step=4, seed=2))
    assert values[1] == pytest.approx(roc_auc_score(scored.positive_P, scored.score_P))
    assert values[0] != values[1]
    assert values[:1] == macro_auc("degrees", Degrees(), prefix(graph, 3), [3], config=GraphConfig(), seed=2)


@pytest.fixture
def mylog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "mylog.json").write_text(json.dumps(RECORD))
    monkeypatch.setattr(grids, "FOLDER", tmp_path)
    return "mylog"


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.json")), ids=lambda file: file.stem)
def test_what_is_committed_are_points_of_the_grids_with_one_budget(file: Path):
    records = json.loads(file.read_text())
    assert file.stem in DATASETS
    assert len({record["max_epochs"] for record in records.values()}) == 1
    assert len({record["chosen_on"] for record in records.values()}) == 1
    most = max(record["trials"] for record in records.values())
    for title, record in records.items():
        grid = grid_of(title)
        num_points = 1
        for name, values in grid.items():
            assert record["settings"][name] in values
            num_points *= len(values)
        assert record["trials"] == min(most, num_points)
        assert record["auc"] >= record["usual_auc"]
        with_settings(METHODS[title], record["settings"])


def test_methods_of_a_dataset_have_the_chosen_settings(mylog: str):
    methods = configured(resolved(["dysat", "graphsage", "dyformer"]), dataset=mylog)
    assert methods["DySAT"] == DySAT(width=256, negative_weight=0.01)
    assert methods["GraphSAGE"] is METHODS["GraphSAGE"]
    assert isinstance(methods["DyFormer"], Variation)
    assert dict(methods["DyFormer"].all_changes) == {"model.width": 256}
    assert configured(resolved(["dysat"]), dataset="another")["DySAT"] is METHODS["DySAT"]
    assert resolved(["dysat"])["DySAT"] is METHODS["DySAT"]


def test_a_users_own_method_of_the_same_title_stays_as_it_is(mylog: str):
    own = DySAT(batches=3)
    assert tuned("DySAT", own, mylog) is own
    assert tuned("DySAT", METHODS["DySAT"], mylog) == replace(own, width=256, negative_weight=0.01, batches=400)


def test_the_sentence_names_what_was_chosen(mylog: str):
    assert tuned_sentence(["L3", "DySAT"], mylog) == (
        "settings chosen on earlier steps: DySAT (width=256, negative_weight=0.01)"
    )
    assert tuned_sentence(["L3"], mylog) is None
    assert chosen_settings("another") == {}


def test_a_printed_benchmark_names_the_chosen_settings_of_its_methods(mylog: str, monkeypatch: pytest.MonkeyPatch):
    table = PrintedTable("AUC", pl.DataFrame(), ["first"])
    opened: Any = SimpleNamespace(dataset=mylog)
    monkeypatch.setattr("dyformer.experiments.tables.printed_tables", lambda *given: {"scores": table})
    # First, because modules that this imports take `open_snapshots` from where it is defined.
    monkeypatch.setattr("flows.trials.searched_steps", lambda *given: mylog)
    monkeypatch.setattr("flows.tasks.snapshots.open_snapshots", lambda address: opened)
    rows = pl.DataFrame({"step": ["3", "macro"]})
    for names, sentences in (
        (["L3"], ["first"]),
        (["DyFormer without pre-training"], ["first", tuned_sentence(["DyFormer without pre-training"], mylog)]),
        (["L3", "DySAT"], ["first", tuned_sentence(["DySAT"], mylog)]),
    ):
        assert tables_of(protocol_of("paper"), "", rows, Experiment(), names)[0].sentences == sentences


@pytest.mark.parametrize(
    ("window", "step", "searched"),
    [(None, 3, "uci"), (None, 2, None), ("2d", 3, None), ("2d", 40, None)],
    ids=["usual", "too early", "shorter windows", "shorter windows, late"],
)
def test_settings_chosen_on_rows_that_may_lie_after_a_forecast_are_not_used(
    window: str | None, step: int, searched: str | None
):
    opened: Any = SimpleNamespace(dataset="uci", window=window or str(DATASETS["uci"].window))
    assert searched_dataset(opened, step) == searched


def test_a_users_own_log_has_no_chosen_settings():
    opened: Any = SimpleNamespace(dataset="mylog", window="7d")
    assert searched_dataset(opened, 9) is None


def test_a_variation_has_the_settings_of_its_base_but_for_its_own_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    record = {
        "DyFormer": {"settings": {"model.width": 256}},
        "DyFormer (as published)": {"settings": {"model.num_layers": 6, "model.num_heads": 16}},
    }
    (tmp_path / "mylog.json").write_text(json.dumps(record))
    monkeypatch.setattr(grids, "FOLDER", tmp_path)
    titles = ["DyFormer without pre-training", "Published DyFormer, one tower", "Published DyFormer, 4 layers"]
    methods = configured(resolved(titles), dataset="mylog")
    models = [method.changed(Experiment()).model for method in methods.values() if isinstance(method, Variation)]
    assert [(model.width, model.num_layers, model.num_heads) for model in models] == [
        (256, Experiment().model.num_layers, Experiment().model.num_heads),
        (128, 6, 16),
        (128, 4, 16),
    ]
    assert models[1].towers == "one"
    assert tuned_sentence(titles, "mylog") == (
        "settings chosen on earlier steps: DyFormer without pre-training (model.width=256), "
        "Published DyFormer, one tower (model.num_layers=6, model.num_heads=16), "
        "Published DyFormer, 4 layers (model.num_heads=16)"
    )


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.json")), ids=lambda file: file.stem)
def test_every_variation_fits_what_is_committed(file: Path):
    for title, method in {**METHODS, **VARIATIONS}.items():
        if isinstance(method, Variation):
            fitted = tuned(title, method, file.stem)
            assert isinstance(fitted, Variation)
            fitted.changed(Experiment())
