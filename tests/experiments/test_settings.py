"""Settings are changed by name; wrong names and values are refused, and so are settings that no method reads."""

import resource
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest

from dyformer.baselines.dysat.method import DySAT
from dyformer.experiments.methods import METHODS, VARIATIONS, NoEffect, capped, changes_of, check_effect, settings_of
from dyformer.experiments.settings import (
    RENAMED_SETTINGS,
    Experiment,
    OldSettings,
    UnknownSetting,
    as_record,
    from_record,
    settings_table,
)

L3, DYFORMER, PUBLISHED = METHODS["L3"], METHODS["DyFormer"], METHODS["DyFormer (as published)"]


def value_of(experiment: Experiment, name: str) -> Any:
    value: Any = experiment
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("graph.max_distance", 3, 3),
        ("graph.max_distance", "3", 3),
        ("graph.history_window", None, None),
        ("graph.history_window", "none", None),
        ("graph.history_window", " 7 ", 7),
        ("model.num_context", "none", None),
        ("pretrain.step_half_life", "none", None),
        ("pretrain.patience", "5", 5),
        ("model.output", "plain", "plain"),
        ("graph.teleport", "0.1", 0.1),
        ("graph.teleport", 0.2, 0.2),
        ("finetune.learning_rate", "1e-4", 1e-4),
        ("finetune.learning_rate", 1, 1.0),
        ("pretrain.mask_lag", "false", False),
        ("pretrain.mask_lag", True, True),
        ("pretrain.view", "normalised", "normalised"),
        ("model.inputs", "structure", "structure"),
        ("pretrain", "none", None),
        ("pretrain", None, None),
    ],
)
def test_value_is_read_as_its_own_kind(name: str, given: object, expected: object) -> None:
    found = value_of(Experiment().changed({name: given}), name)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("graph.max_distance", "three", "graph.max_distance: expected int, got 'three'"),
        ("graph.max_distance", 3.0, "expected int, got 3.0 .float."),
        ("graph.max_distance", True, "expected int, got True"),
        ("graph.max_distance", None, "expected int, got None"),
        ("graph.history_window", "all", "expected int or none"),
        ("graph.teleport", "nan", "expected float"),
        ("graph.teleport", float("inf"), "expected float"),
        ("graph.teleport", "1_0", "expected float"),
        ("pretrain.mask_lag", 1, "expected bool"),
        ("pretrain.mask_lag", "yes", "expected bool"),
        ("pretrain", 3, "expected default or none"),
        ("model.num_layers", 0, "model.num_layers: expected at least 1, got 0"),
        ("model.residual_dropout", 1.0, "at most 0.99"),
        ("finetune.learning_rate", "-1", "finetune.learning_rate: expected at least"),
        ("graph.max_distance", 256, "graph.max_distance"),
        ("model.num_context", 0, "model.num_context: expected at least 1, got 0"),
        ("pretrain.step_half_life", 0.0, "pretrain.step_half_life: expected at least 0.001, got 0.0"),
        ("model.id_fraction", 1.0, "leaves no width for structural features"),
        ("warm_start", 0, "warm_start: expected at least 0.01 and at most 1, got 0"),
    ],
)
def test_value_that_does_not_fit_is_refused(name: str, given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Experiment().changed({name: given})


def test_noise_is_refused_where_interactions_are_read() -> None:
    assert Experiment().check_interactions() == Experiment()
    with pytest.raises(ValueError, match=r"graph\.noise=0\.1 .* leave graph\.noise out"):
        Experiment().changed({"graph.noise": 0.1}).check_interactions()


def test_a_warm_start_needs_models_of_equal_shape() -> None:
    with pytest.raises(ValueError, match=r"with graph\.history_window=none each step adds a lag"):
        Experiment().changed({"warm_start": 0.5, "graph.history_window": None})
    assert Experiment().changed({"warm_start": "0.5"}).changed({"warm_start": "none"}) == Experiment()


@pytest.mark.parametrize("name", ["graph.max_distanc", "model", "modle.width", "graph.", ".width", "", "graph.a.b"])
def test_unknown_name_is_refused_with_the_three_nearest_ones(name: str) -> None:
    with pytest.raises(UnknownSetting) as error:
        Experiment().changed({name: 3})
    start, _, rest = str(error.value).partition("; the nearest are ")
    near, _, end = rest.partition("; ")
    assert (start, end) == (f"there is no setting {name!r}", "`dyformer settings` lists all")
    assert len(set(near.split(", ")) & {setting.name for setting in settings_table()}) == 3


@pytest.mark.parametrize(("old", "new"), RENAMED_SETTINGS.items())
def test_old_name_is_refused_with_the_new_one(old: str, new: str) -> None:
    assert new in (setting.name for setting in settings_table())
    with pytest.raises(UnknownSetting, match=f"the setting {old} is now called {new}"):
        Experiment().changed({old: 3})


def test_near_name_is_proposed() -> None:
    with pytest.raises(UnknownSetting, match=r"the nearest are graph\.max_distance, "):
        Experiment().changed({"graph.max_distanc": 3})


def test_values_that_need_each_other_are_changed_together() -> None:
    experiment = Experiment().changed({"model.width": 60, "model.num_heads": 6})
    assert (experiment.model.width, experiment.model.num_heads) == (60, 6)
    with pytest.raises(ValueError, match="num_heads"):
        Experiment().changed({"model.width": 60})


def test_part_that_is_none_takes_no_change_until_it_is_set_again() -> None:
    without = Experiment().changed({"pretrain": None})
    with pytest.raises(ValueError, match="pretrain=default"):
        without.changed({"pretrain.epochs": 3})
    again = without.changed({"pretrain": "default", "pretrain.epochs": "3"})
    assert again.pretrain is not None
    assert again.pretrain.epochs == 3


def test_changes_of_a_part_that_is_none_have_no_effect_but_their_names_are_checked() -> None:
    assert Experiment().changed({"pretrain.epochs": 3, "pretrain": None}).pretrain is None
    with pytest.raises(UnknownSetting):
        Experiment().changed({"pretrain": None, "pretrain.epoch": 3})


def test_change_leaves_the_original_and_other_parts_alone() -> None:
    before = Experiment()
    after = before.changed({"graph.max_distance": 3})
    assert before == Experiment()
    assert (after.model, after.pretrain, after.finetune) == (before.model, before.pretrain, before.finetune)


def test_record_gives_the_experiment_back() -> None:
    for experiment in (Experiment(), Experiment().changed({"pretrain": None, "graph.history_window": None})):
        assert from_record(as_record(experiment)) == experiment


def test_record_of_another_version_is_refused() -> None:
    record = as_record(Experiment())
    record["pretrain"]["num_linked"] = record["pretrain"].pop("num_positives")
    with pytest.raises(OldSettings, match=r"\(pretrain\.num_linked\): train again"):
        from_record(record)


def test_record_follows_its_parts_and_nothing_else() -> None:
    base, changed = Experiment(), Experiment().changed({"model.width": 64})
    assert as_record(base) != as_record(changed)
    assert as_record(base, "graph") == as_record(changed, "graph")
    assert as_record(base, ("graph", "model")) != as_record(changed, ("graph", "model"))
    assert as_record(base) == as_record(Experiment())
    assert list(as_record(base, "graph")) == ["graph"]
    with pytest.raises(UnknownSetting, match="has no part 'grph'"):
        as_record(base, "grph")


def test_every_default_is_allowed_by_its_own_limits() -> None:
    experiment = Experiment()
    for name in (setting.name for setting in settings_table()):
        if name != "pretrain" and (experiment.pretrain is not None or not name.startswith("pretrain.")):
            value = value_of(experiment, name)
            assert value_of(experiment.changed({name: value}), name) == value
            assert value_of(experiment.changed({name: str(value)}), name) == value


def test_the_table_of_settings_has_a_default_a_kind_and_a_meaning_for_each() -> None:
    table = {setting.name: setting for setting in settings_table()}
    assert all(setting.meaning and setting.kind for setting in table.values())
    assert table["graph.history_window"][1:3] == ("5", "int or none, at least 1")
    assert table["model.residual_dropout"][1:3] == ("0.1", "float, at least 0 and at most 0.99")
    assert table["pretrain"][1:3] == ("default", "default or none")
    assert table["pretrain.mask_lag"][1:3] == ("true", "bool")
    for setting in table.values():
        assert Experiment().changed({setting.name: setting.default}) == Experiment()


def test_text_that_looks_like_another_value_keeps_its_kind() -> None:
    for name, text in (("model.inputs", "3"), ("model.inputs", "none"), ("graph.max_distance", "default")):
        with pytest.raises(ValueError, match=name):
            Experiment().changed({name: text})
    assert Experiment().changed({"graph.history_window": "NULL"}).graph.history_window is None


def test_a_value_of_a_part_that_is_set_to_none_is_checked_too() -> None:
    with pytest.raises(ValueError, match=r"pretrain\.epochs: expected int"):
        Experiment().changed({"pretrain": None, "pretrain.epochs": "many"})


def test_a_misspelt_setting_is_refused_within_a_second_without_the_libraries_that_compute() -> None:
    code = "import sys; from flows.cli import main; main()"
    command = [sys.executable, "-X", "importtime", "-c", code, "run", "uci", "--set", "model.numlayers=3"]
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)  # other processes add none
        assert done.returncode == 1
        assert "the nearest are model.num_layers, " in done.stderr
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import")}
        assert not imported & {"torch", "sklearn", "polars", "pyarrow", "numpy", "scipy", "prefect", "mlflow"}
    assert min(seconds) < 1


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
        ("model.num_layers", [VARIATIONS["Published DyFormer, 4 layers"]], False),
    ],
)
def test_a_change_is_taken_where_a_method_reads_it(name: str, methods: list, is_read: bool):
    if is_read:
        check_effect([name], methods)
    else:
        with pytest.raises(NoEffect, match=f"{name} has no effect"):
            check_effect([name], methods)


def test_changes_are_those_that_differ_from_the_usual_ones():
    assert changes_of(Experiment()) == {}
    usual = {"model.num_layers": Experiment().model.num_layers}
    changed = Experiment().changed({"model.width": 64, "max_epochs": 3, **usual})
    assert changes_of(changed) == {"model.width": 64, "max_epochs": 3}
    assert changes_of(Experiment().changed({"pretrain": None})) == {"pretrain": None}
    assert changes_of(Experiment().changed({"promotion.level": 0.9})) == {}


def test_changes_are_in_the_order_of_the_settings_so_that_a_runs_key_is_the_same_in_each_process():
    changes = {"finetune.epochs": 3, "graph.noise": 0.1, "max_epochs": 2, "model.width": 8, "pretrain.epochs": 4}
    ordered = ["graph.noise", "model.width", "pretrain.epochs", "finetune.epochs", "max_epochs"]
    assert list(changes_of(Experiment().changed(changes))) == ordered


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
