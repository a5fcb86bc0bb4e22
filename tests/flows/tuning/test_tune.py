"""The command `tune` and its trials: equal budgets, no reported step in any choice, and searches that go on."""

import json
import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
import pytest

import flows.tune
from dyformer.experiments.methods import METHODS
from dyformer.experiments.tuning import grids
from dyformer.experiments.tuning.search import Tried
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.interfaces import Embed
from flows.cli import main
from flows.commands.tune import _table
from flows.tasks.evaluation.tune import steps_to_tune_on, tune_trial, tuning_score
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots, open_snapshots
from flows.tune import Searched
from storage.artifacts.artifact import read_bytes

GRID = {"power": (0.0, 0.5, 1.0, 2.0), "noise": (0.0, 1.0)}
NUM_ROWS, NUM_WINDOWS = 400, 4
READING = {"source": "source", "target": "target", "time": "time", "window": "100", "time_unit": "step"}


class Stopped(RuntimeError):
    """A kill."""


@dataclass(frozen=True, kw_only=True)
class Powers:
    """Vectors made of a node's degree; `fits` are the settings and the last steps that were fitted."""

    power: float = 1.0
    noise: float = 0.0
    fits: ClassVar[list[tuple[float, float, int]]] = []
    stop_after: ClassVar[int | None] = None

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        if len(self.fits) == self.stop_after:
            raise Stopped
        self.fits.append((self.power, self.noise, graph.until))
        noise_N2 = self.noise * np.random.default_rng(seed).normal(size=(len(graph.history.node_N), 2))
        vector_N2 = np.stack([graph.union.degree**self.power] * 2, axis=1) + noise_N2
        return lambda node_N: vector_N2[node_N]


def ingest(path: Path, *, later: int = 0) -> str:
    """Ingest a log whose rows of the windows from the third on depend on `later`; return its snapshots."""
    generator, other = np.random.default_rng(0), np.random.default_rng([later])
    times = np.sort(generator.integers(0, 100 * NUM_WINDOWS, NUM_ROWS))
    early, late = (np.minimum(draw.geometric(0.08, size=(NUM_ROWS, 2)), 40) for draw in (generator, other))
    ends = np.where(times[:, None] < 200, early, late)
    rows = pl.DataFrame({"source": ends[:, 0], "target": ends[:, 1], "time": times})
    rows = pl.concat([pl.DataFrame({"source": [1], "target": [2], "time": [0]}), rows])
    rows.write_csv(path / "log.csv")
    ingest_log("mylog", {"log": [str(path / "log.csv")], **READING}, lambda text: None)
    return make_snapshots("mylog")


@pytest.fixture
def snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setitem(METHODS, "Powers", Powers())
    monkeypatch.setattr(grids, "GRIDS", {"Powers": GRID})
    monkeypatch.setattr(Powers, "fits", [])
    monkeypatch.setattr(flows.tune, "ingest", lambda dataset, reading: {"snapshots": make_snapshots("mylog")})
    monkeypatch.setattr(flows.tune, "trial_task", tune_trial)
    return ingest(tmp_path)


def tune(num_trials: int):
    return flows.tune.tune.fn("mylog", ["Powers"], num_trials=num_trials)


def test_a_search_chooses_the_best_point_within_its_budget(snapshots: str):
    searched = tune(5)
    tried = searched.tried["Powers"]
    assert searched.steps == "steps 3, 4 of windows cut in 2"
    assert len(tried) == 5
    assert Powers.fits == [(*each.settings.values(), until) for each in tried for until in (2, 3)]
    record = json.loads(json.dumps(searched.record()))["Powers"]
    assert record["auc"] == round(max(each.score for each in tried), 4) >= record["usual_auc"]
    assert record["settings"] in [each.settings for each in tried]
    assert (record["trials"], record["chosen_on"]) == (5, searched.steps)


@pytest.mark.parametrize("num_trials", [5, 8])  # chosen by Optuna, and all of the grid
def test_a_search_goes_on_beside_settings_that_diverge(
    snapshots: str, monkeypatch: pytest.MonkeyPatch, num_trials: int
):
    whole = tune(num_trials).tried["Powers"]
    monkeypatch.setattr(grids, "GRIDS", {"Powers": {**GRID, "power": (0.0, math.inf, 1.0, 2.0)}})
    searched = tune(num_trials)
    tried = searched.tried["Powers"]
    assert len(tried) == num_trials == len(whole)
    diverged = [each for each in tried if math.isnan(each.score)]
    assert diverged
    assert all(each.settings["power"] == math.inf for each in diverged)
    assert searched.record()["Powers"]["auc"] == round(max(each.score for each in tried if each not in diverged), 4)
    num_fits = len(Powers.fits)
    assert str(tune(num_trials)) == str(searched)  # the stored scores, NaN as well
    assert len(Powers.fits) == num_fits
    printed = _table(tried)
    assert printed.filter(AUC="diverged").height == len(diverged)
    assert printed.filter(chosen="x")["power"].to_list() == [str(searched.record()["Powers"]["settings"]["power"])]


def test_no_choice_depends_on_a_reported_step(snapshots: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert open_snapshots(snapshots).num_steps == NUM_WINDOWS
    first = tune(8)
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("DYFORMER_STORAGE", str(other / "store"))
    changed = ingest(other, later=1)
    for name in ("edges.parquet", "steps.parquet"):
        assert read_bytes(changed, name) != read_bytes(snapshots, name)
    assert tune(8) == first


def test_a_choice_depends_on_the_steps_before(snapshots: str):
    graph, steps, _ = steps_to_tune_on(snapshots)
    opened = open_snapshots(snapshots)
    assert graph.snapshots[-1].end_time == opened.time("end_time", 2)
    assert steps == (3, 4)


def test_a_killed_search_goes_on_where_it_was(snapshots: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for stop_after in (3, 7, 8):
        monkeypatch.setattr(Powers, "stop_after", stop_after)
        with pytest.raises(Stopped):
            tune(6)
    monkeypatch.setattr(Powers, "stop_after", None)
    finished = tune(6)
    # The trials that were killed between their two steps were fitted again.
    assert len(Powers.fits) == 2 * 6 + 2
    num_fits = len(Powers.fits)
    assert tune(6) == finished
    assert len(Powers.fits) == num_fits
    whole = tmp_path / "whole"
    whole.mkdir()
    monkeypatch.setenv("DYFORMER_STORAGE", str(whole / "store"))
    ingest(whole)
    assert tune(6) == finished


def test_a_trial_with_another_seed_is_another_one(snapshots: str):
    experiment = flows.tune.experiment_of(None)
    settings = {"power": 1.0, "noise": 1.0}
    addresses = [tune_trial(snapshots, "Powers", settings, experiment, seed) for seed in (0, 1)]
    assert tuning_score(addresses[0]) != tuning_score(addresses[1])


def test_a_method_without_a_grid_is_refused_before_anything_runs(snapshots: str):
    with pytest.raises(ValueError, match="'L3' has no settings to search"):
        flows.tune.tune.fn("mylog", ["Powers", "L3"])
    assert not Powers.fits


@pytest.mark.parametrize(
    ("name", "message"), [("l3", "'L3' has no settings to search: expected one of node2vec"), ("dysta", "Did you mean")]
)
def test_the_command_refuses_a_method_without_a_grid(name: str, message: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ending:
        main(["tune", "uci", "--method", name])
    assert ending.value.code not in (0, None)
    assert message in " ".join(capsys.readouterr().err.split())


def test_what_searches_of_other_methods_chose_stays_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file, tried = tmp_path / "chosen.json", [Tried({"aggregator": "mean"}, 0.7)]
    searched = Searched("steps 3, 4", None, {"GraphSAGE": tried})
    monkeypatch.setattr(flows.tune, "tune", lambda *given: searched)
    monkeypatch.setattr("flows.commands.tune.announced", nullcontext)
    budget = {"trials": 6, "max_epochs": None}
    earlier = {"DySAT": {"settings": {"width": 256}, **budget}, "GraphSAGE": {"settings": {"aggregator": "gcn"}}}
    file.write_text(json.dumps(earlier))
    command = ["tune", "uci", "--method", "graphsage", "--json", str(file)]
    with pytest.raises(SystemExit) as ending:
        main(command)
    assert ending.value.code in (0, None), capsys.readouterr().err
    assert json.loads(file.read_text()) == {**earlier, **searched.record()}
    whole = {"EvolveGCN-O": {"settings": {}, "trials": 6, "max_epochs": None}}  # all points of its grid
    file.write_text(json.dumps(whole))
    with pytest.raises(SystemExit) as ending:
        main([*command, "--trials", "9"])
    assert ending.value.code in (0, None), capsys.readouterr().err
    budgets = [{"trials": 5}, {"trials": 7}, {"max_epochs": 20}]
    refused = [(json.dumps({"DySAT": {**earlier["DySAT"], **other}}), "a search of DySAT with") for other in budgets]
    refused += [(text, "has no chosen settings by method") for text in ("[1]", '{"rows": 3}', "not JSON")]
    for content, problem in refused:
        file.write_text(content)
        with pytest.raises(SystemExit) as ending:
            main(command)
        assert ending.value.code not in (0, None)
        assert problem in " ".join(capsys.readouterr().err.replace("│", " ").split())
        assert file.read_text() == content
