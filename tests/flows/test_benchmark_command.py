"""The command `benchmark`: what it refuses, before any row is read or anything is trained."""

from pathlib import Path
from unittest.mock import Mock

import pytest
import typer

from dyformer.experiments.methods import NoEffect
from dyformer.logs.raw_file import LogNotFound
from flows.commands.benchmark import _check_study_options, _run_protocol, _run_study, reading_of
from flows.tasks.snapshots import StepOutOfRange


def test_several_logs_have_each_its_own_files():
    reading = {"log": ["uci=a=b.gz", "yelp=c.gz"], "max_bad": "1%"}
    assert reading_of("uci", ["uci", "yelp"], reading) == {"log": ["a=b.gz"], "max_bad": "1%"}
    assert reading_of("rds", ["uci", "yelp", "rds"], reading) == {"max_bad": "1%"}
    assert reading_of("uci", ["uci"], {"log": ["a=b.gz"]}) == {"log": ["a=b.gz"]}
    with pytest.raises(typer.BadParameter, match=r"uci=other\.gz"):
        reading_of("uci", ["uci", "yelp"], {"log": ["other.gz"]})


@pytest.mark.parametrize(
    ("epochs", "changes", "parallel", "problem"),
    [(3, None, 1, "--epochs"), (None, ["pretrain=none"], 1, "pretrain=none"), (None, None, 2, "--parallel")],
)
def test_options_that_costs_cannot_have_are_refused_before_anything_is_measured(
    epochs: int | None, changes: list[str] | None, parallel: int, problem: str
):
    with pytest.raises(typer.BadParameter, match=problem):
        _run_study("cost", ["mylog"], {}, None, 1, epochs, changes, parallel, None)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("layers", "model.num_layers=3", "model.num_layers is not changed for a whole experiment"),
        ("pretraining", "promotion.level=0.9", "promotion.level has no effect"),
        ("noise", "graph.noise=0.3", "graph.noise is not changed for a whole experiment"),
        ("pretraining", "pretrain=none", "pretrain is not changed for a whole experiment"),
        ("hops", "model.towers=one", "model.towers is not changed for a whole experiment"),
        ("cost", "max_epochs=3", "max_epochs has no effect"),
        ("cost", "finetune.patience=3", "finetune.patience has no effect"),
        ("cost", "warm_start=0.3", "warm_start has no effect"),
        ("links", "modle.width=64", "model.width"),
        ("links", "graph.noise=0.3", "graph.noise=0.3 changes the edges"),
    ],
)
def test_a_change_without_effect_or_that_leaves_no_interactions_is_refused(
    name: str, change: str, problem: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("flows.commands.benchmark.ingested", Mock(side_effect=AssertionError("it was not refused")))
    with pytest.raises(ValueError, match=problem):
        _run_study(name, ["mylog"], {}, None, 1, None, [change], 1, None)


@pytest.mark.parametrize("change", ["model.width=64", "max_epochs=3", "promotion.level=0.9"])
def test_a_benchmark_refuses_a_change_that_no_method_reads(change: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("flows.commands.benchmark.ingested", Mock(side_effect=AssertionError("it was not refused")))
    name = change.partition("=")[0]
    with pytest.raises(NoEffect, match=f"{name} has no effect"):
        _run_protocol("mylog", {}, "3", 1, "paper", ["l3,edgebank_ever"], None, [change], None)


@pytest.mark.parametrize(("epochs", "change"), [(3, None), (None, "max_epochs=3")])
def test_a_protocol_that_measures_an_epoch_refuses_a_cap_on_their_number(epochs: int | None, change: str | None):
    option = "--epochs" if change is None else "--set max_epochs"
    with pytest.raises(typer.BadParameter, match=f"cost measures an epoch, whatever their number: leave {option} out"):
        _run_protocol("mylog", {}, "3", 1, "cost", ["DyFormer"], epochs, None if change is None else [change], None)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((["l3"], "paper", None, None), "leave --methods out"),
        ((None, "forecasts", None, None), "leave --protocol out"),
        ((None, "paper", "strict", None), "leave --visible out"),
        ((["l3"], "paper", None, Path("scores.json")), "leave --methods and --json out"),
    ],
)
def test_options_that_an_experiment_cannot_have_are_named(given: tuple, named: str):
    with pytest.raises(typer.BadParameter, match=named):
        _check_study_options(None, "uci", *given)


def test_wrong_steps_and_a_dataset_without_a_log_are_refused_before_any_row_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path))
    log = tmp_path / "mylog.csv"
    log.write_text("user,item,time\n1,2,3\n")
    monkeypatch.setattr("flows.commands.benchmark.ingested", Mock(side_effect=AssertionError("it was not refused")))
    with pytest.raises(StepOutOfRange, match="abc"):
        _run_study("layers", ["mylog"], {"log": [str(log)]}, "abc", 1, None, None, 1, None)
    with pytest.raises(ValueError, match="nosuchlog"):
        _run_study("layers", ["mylog", "nosuchlog"], {"log": [f"mylog={log}"]}, "3", 1, None, None, 1, None)
    with pytest.raises(LogNotFound, match="nofile"):
        _run_study("layers", ["mylog"], {"log": [f"{tmp_path}/nofile.csv"]}, "3", 1, None, None, 1, None)
