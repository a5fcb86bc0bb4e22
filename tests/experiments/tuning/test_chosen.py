"""Chosen settings: what is committed fits the methods, and benchmarks use it."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from dyformer.baselines.dysat import DySAT
from dyformer.evaluation.protocols import protocol_of
from dyformer.experiments.methods import METHODS, VARIATIONS, Variation
from dyformer.experiments.printed import PrintedTable
from dyformer.experiments.settings import Experiment, experiment_for
from dyformer.experiments.tuning import chosen
from dyformer.experiments.tuning.chosen import FOLDER, chosen_settings, tuned, tuned_sentence
from dyformer.experiments.tuning.grids import grid_of, with_settings
from dyformer.logs.datasets import DATASETS
from flows.commands.benchmark import tables_of
from flows.tasks.methods import chosen_methods, searched_dataset

RECORD = {
    "DySAT": {"settings": {"width": 256, "negative_weight": 0.01}},
    "DyFormer": {"settings": {"model.width": 256}},
}


@pytest.fixture
def mylog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "mylog.json").write_text(json.dumps(RECORD))
    monkeypatch.setattr(chosen, "FOLDER", tmp_path)
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
    methods = chosen_methods(["dysat", "graphsage", "dyformer"], dataset=mylog)
    assert methods["DySAT"] == DySAT(width=256, negative_weight=0.01)
    assert methods["GraphSAGE"] is METHODS["GraphSAGE"]
    assert isinstance(methods["DyFormer"], Variation)
    assert dict(methods["DyFormer"].all_changes) == {"model.width": 256}
    assert chosen_methods(["dysat"], dataset="another")["DySAT"] is METHODS["DySAT"]
    assert chosen_methods(["dysat"])["DySAT"] is METHODS["DySAT"]


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
    monkeypatch.setattr("flows.benchmark.searched_steps", lambda *given: mylog)
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
    monkeypatch.setattr(chosen, "FOLDER", tmp_path)
    titles = ["DyFormer without pre-training", "Published DyFormer, one tower", "Published DyFormer, 4 layers"]
    methods = chosen_methods(titles, dataset="mylog")
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
            fitted.changed(experiment_for(file.stem))
