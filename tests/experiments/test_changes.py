"""Changed settings: those that no method reads are refused, and each method's run lists its own."""

from dataclasses import asdict

import pytest

from dyformer.baselines.dysat import DySAT
from dyformer.experiments.changes import NoEffect, changes_of, check_effect, settings_of
from dyformer.experiments.methods import METHODS, VARIATIONS, capped
from dyformer.experiments.settings import Experiment

L3, DYFORMER, PUBLISHED = METHODS["L3"], METHODS["DyFormer"], METHODS["DyFormer (as published)"]


@pytest.mark.parametrize(
    ("name", "methods", "is_read"),
    [
        ("model.width", [L3], False),
        ("model.width", [L3, DYFORMER], True),
        ("model.width", [PUBLISHED], False),  # which has the paper's width
        ("model.width", [PUBLISHED, DYFORMER], True),
        ("pretrain.epochs", [METHODS["DyFormer without pre-training"]], False),
        ("graph.history_window", [L3], True),
        ("max_epochs", [L3], False),
        ("max_epochs", [METHODS["DySAT"]], True),
        ("max_epochs", [DYFORMER], True),
        ("warm_start", [METHODS["DySAT"]], False),
        ("retrain.scratch_every", [DYFORMER], False),
        ("model.num_layers", [VARIATIONS["Published DyFormer, 2 layers"]], False),
    ],
)
def test_a_change_is_taken_where_a_method_reads_it(name: str, methods: list, is_read: bool):
    if is_read:
        check_effect([name], methods)
    else:
        with pytest.raises(NoEffect, match=f"{name} has no effect"):
            check_effect([name], methods)


def test_changes_are_those_that_differ_from_the_usual_ones():
    assert changes_of(Experiment(), "mylog") == {}
    usual = {"model.num_layers": Experiment().model.num_layers}
    changed = Experiment().changed({"model.width": 64, "max_epochs": 3, **usual})
    assert changes_of(changed, "mylog") == {"model.width": 64, "max_epochs": 3}
    assert changes_of(Experiment().changed({"pretrain": None}), "mylog") == {"pretrain": None}
    assert changes_of(Experiment().changed({"promotion.level": 0.9}), "mylog") == {}


def test_changes_are_in_the_order_of_the_settings_so_that_a_runs_key_is_the_same_in_each_process():
    changes = {"finetune.epochs": 3, "graph.noise": 0.1, "max_epochs": 2, "model.width": 8, "pretrain.epochs": 4}
    ordered = ["graph.noise", "model.width", "pretrain.epochs", "finetune.epochs", "max_epochs"]
    assert list(changes_of(Experiment().changed(changes), "mylog")) == ordered


def test_settings_are_those_with_which_a_method_is_trained():
    experiment = Experiment().changed({"model.width": 64, "max_epochs": 2})
    own = settings_of(DYFORMER, experiment)
    assert (own["model"]["width"], own["finetune"]["epochs"]) == (64, 2)
    assert settings_of(METHODS["DyFormer without pre-training"], experiment)["pretrain"] is None
    assert settings_of(PUBLISHED, experiment)["model"]["width"] != 64
    walks = settings_of(capped(DySAT(width=8), 2), experiment)
    assert (walks["width"], walks["epochs"]) == (8, 2)
    assert walks["graph"] == asdict(experiment.graph)
    assert "model" not in walks
