"""A model that was saved, or pickled, is the same model; progress and device of a fit and an evaluation."""

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import dyformer
from dyformer.experiments import api, saved_models
from dyformer.experiments.methods import Variation
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.interfaces import Embed, LabelledStep, Score

pytestmark = pytest.mark.usefixtures("few_trees")

SMALL = {"model.num_layers": 1, "model.width": 16, "model.num_heads": 2, "pretrain": None, "finetune.epochs": 2}


class OfDegrees:
    """A method of the user's own with vectors."""

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        vector_ND = np.random.default_rng(seed).normal(size=(len(graph.history.node_N), 4))
        return lambda node_N: vector_ND[node_N]


class OwnScorer:
    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        return lambda source_P, target_P: np.zeros(len(source_P))


METHODS = {
    "Common neighbours": "Common neighbours",
    "EdgeBank (decayed)": "EdgeBank (decayed)",
    "Logistic regression on pair features": "Logistic regression on pair features",
    "Forecaster without vectors": "Forecaster without vectors",
    "degree vectors": OfDegrees(),
    "DyFormer": "DyFormer",
}


def graph_of(*, two_sides: bool) -> dyformer.Graph:
    generator = np.random.default_rng(5)
    rows = [
        (int(generator.integers(17)), f"v{generator.integers(13)}", 1_700_000_000 + row * 10_000) for row in range(700)
    ]
    return dyformer.read_log(rows, bipartite=two_sides).snapshots("7d")


def same(one: dyformer.Model, other: dyformer.Model) -> None:
    pairs = one.top(3).select(source="id", target="partner")
    if "side" in one.graph.nodes.columns and one.graph.nodes["side"].n_unique() > 1:
        pairs = one.top(3).filter(pl.col("side") == "source").select(source="id", target="partner")
    assert_frame_equal(one.top(4), other.top(4))
    assert_frame_equal(one.top(4, links="new"), other.top(4, links="new"))
    assert_frame_equal(one.scores(pairs), other.scores(pairs))
    assert_frame_equal(one.graph.summary(), other.graph.summary())
    assert repr(one) == repr(other)
    if one.vector_ND is not None:
        assert_frame_equal(one.vectors(), other.vectors())


@pytest.mark.parametrize("two_sides", [False, True])
@pytest.mark.parametrize("title", METHODS)
def test_a_saved_and_a_pickled_model_are_the_same(title: str, two_sides: bool, tmp_path: Path) -> None:
    model = dyformer.fit(graph_of(two_sides=two_sides), METHODS[title], settings=SMALL, seed=3)
    model.save(tmp_path / "model")
    same(model, dyformer.load(tmp_path / "model"))
    same(model, pickle.loads(pickle.dumps(model)))
    assert {path.suffix for path in (tmp_path / "model").iterdir()} <= {".json", ".parquet", ".safetensors"}
    again = dyformer.load(tmp_path / "model")
    again.save(tmp_path / "model")  # a model may replace one
    same(model, dyformer.load(tmp_path / "model"))


def test_a_scorer_of_the_users_own_cannot_be_stored(tmp_path: Path) -> None:
    model = dyformer.fit(graph_of(two_sides=False), OwnScorer())
    for use in (lambda: model.save(tmp_path / "model"), lambda: pickle.dumps(model)):
        with pytest.raises(ValueError, match="a scorer of your own cannot be stored"):
            use()
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("damage", ["no record", "no table", "no vectors", "cut vectors", "other format", "no JSON"])
def test_a_folder_without_a_whole_model_is_named(damage: str, tmp_path: Path) -> None:
    dyformer.fit(graph_of(two_sides=False), OfDegrees()).save(tmp_path)
    record = tmp_path / "model.json"
    if damage == "other format":
        record.write_text(json.dumps(json.loads(record.read_text()) | {"format": 99}))
    elif damage == "no JSON":
        record.write_text("{")
    elif damage == "cut vectors":
        (tmp_path / "arrays.safetensors").write_bytes((tmp_path / "arrays.safetensors").read_bytes()[:50])
    else:
        names = {"no record": "model.json", "no table": "edges.parquet", "no vectors": "arrays.safetensors"}
        (tmp_path / names[damage]).unlink()
    with pytest.raises(ValueError, match=str(tmp_path)):
        dyformer.load(tmp_path)


def test_a_save_that_fails_leaves_the_model_of_before_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parts_of(number: int) -> saved_models.Parts:
        return {"number": number}, {"ids": pl.DataFrame({"id": [number]})}, {"vectors": np.full(3, number)}

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    def check(number: int) -> None:
        record, tables, arrays = saved_models.read_model(folder, "steps")
        assert (record["number"], tables["ids"]["id"].to_list(), arrays["vectors"].tolist()) == (
            number,
            [number],
            [number] * 3,
        )

    for folder in (tmp_path / "before", tmp_path / "new"):
        if folder.name == "before":
            saved_models.write_model(folder, "steps", parts_of(1))
        with monkeypatch.context() as patch:
            patch.setattr(saved_models, "save_file", full)
            with pytest.raises(OSError, match="No space"):
                saved_models.write_model(folder, "steps", parts_of(2))
        if folder.name == "before":
            check(1)
        saved_models.write_model(folder, "steps", parts_of(3))
        check(3)
        assert sorted(path.name for path in folder.iterdir()) == ["arrays.safetensors", "ids.parquet", "model.json"]


def test_a_save_after_one_that_was_killed_replaces_the_model(tmp_path: Path) -> None:
    (tmp_path / f"{saved_models.PART}killed").mkdir()
    saved_models.write_model(tmp_path, "steps", ({}, {}, {"vectors": np.zeros(1)}))
    assert saved_models.read_model(tmp_path, "steps")[2]["vectors"].tolist() == [0.0]


def test_a_fit_reports_its_epochs_and_changes_nothing_by_it() -> None:
    graph, said = graph_of(two_sides=False), []
    quiet = dyformer.fit(graph, settings=SMALL, device="cpu")
    same(quiet, dyformer.fit(graph, settings=SMALL, progress=said.append))
    assert len(said) == 5  # two epochs for each of two steps, and the forecaster
    assert " finetune, epoch 1: loss " in said[0]
    assert all(text.startswith("DyFormer until step ") for text in said[:4])
    assert said[-1] == f"DyFormer: fitting the forecast of step {graph.num_steps + 1}"


def test_an_evaluation_reports_its_epochs_and_methods_and_changes_nothing_by_it() -> None:
    graph, said = graph_of(two_sides=False), []
    given = {"steps": [4, 5], "settings": SMALL}
    table = dyformer.evaluate(graph, ["L3", "DyFormer"], progress=said.append, **given)
    assert table.equals(dyformer.evaluate(graph, ["L3", "DyFormer"], device="cpu", **given))
    assert said[:2] == ["drawing the pairs of step 4, seed 0 (1 of 2)", "L3: evaluating step 4, seed 0 (1 of 2)"]
    assert [text for text in said if text.startswith("DyFormer: ")] == [
        "DyFormer: evaluating step 4, seed 0 (1 of 2)",
        "DyFormer: evaluating step 5, seed 0 (2 of 2)",
    ]
    first = said.index("DyFormer: evaluating step 4, seed 0 (1 of 2)")
    assert said[first + 1].startswith("DyFormer until step 3, finetune, epoch 1: loss ")
    assert said[-1] == "computing the table"


def test_an_evaluation_trains_where_the_caller_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    devices, trained = [], Variation.trained

    def on_the_cpu(self: Variation, *args: Any, device: str, **given: Any) -> Any:
        devices.append(device)
        return trained(self, *args, device="cpu", **given)

    monkeypatch.setattr(Variation, "trained", on_the_cpu)
    monkeypatch.setattr(api, "check_device", lambda device: None)
    titles = ["DyFormer", "DyFormer without pre-training", "L3"]
    dyformer.evaluate(graph_of(two_sides=False), titles, steps=5, settings=SMALL, device="cuda:1")
    assert set(devices) == {"cuda:1"}
    assert len(devices) >= 2
