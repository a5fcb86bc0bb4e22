"""A challenger's training starts from the champion of the steps before, or from scratch for a named reason."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
from ranked_logs import weekly_log

from dyformer.experiments.settings import Experiment, as_record
from dyformer.graphs.snapshots import StepOutOfRange, prefix
from flows.tasks import start as starts
from flows.tasks import train as training
from flows.tasks.evaluation import evaluate as evaluation
from flows.tasks.evaluation.promote import STEP_IN_TEST
from flows.tasks.ingest import ingest_log
from flows.tasks.models import DYFORMER, PARTS, TRAINING, Contender
from flows.tasks.publishing import publications as publishing
from flows.tasks.snapshots import make_snapshots, open_snapshots
from flows.tasks.start import FRESH, Start, expected_line, pause_of, start_of, warm
from storage.artifacts.artifact import Lineage, write_artifact
from storage.artifacts.checkpoints import to_bytes
from storage.bytes import files
from storage.champions import numbered_after, read_champion, replace_champion

EXPERIMENT = Experiment().changed({"model.width": 8, "model.num_heads": 2, "retrain.scratch_every": 5})
NUM_STEPS = 7


@pytest.fixture
def snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Snapshots of seven steps of ten units of time: step k ends at time 10 k."""
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    (tmp_path / "log.csv").write_text("\n".join(["source,target,time", *(f"1,{2 + n % 3},{n}" for n in range(70))]))
    reading = {"log": [str(tmp_path / "log.csv")], "time_unit": "step", "window": "10", "bipartite": False}
    ingest_log("mylog", reading, lambda text: None)
    return make_snapshots("mylog")


def model(snapshots: str, until: int, experiment: Experiment = EXPERIMENT, code: str = "") -> str:
    """Weights with the settings of an experiment; nothing is trained."""
    opened = open_snapshots(snapshots)
    settings = {**as_record(experiment, PARTS), "seed": 0}
    lineage = opened.lineage("model", until=until, settings=settings, code=TRAINING)
    if code:
        lineage = Lineage(**{**vars(lineage), "code_version": code})
    keys = {"version": 1, "until": until, "settings": f"{lineage.settings_hash}{code}", "seed": 0}
    weights = {"weights.safetensors": to_bytes({"weight": torch.tensor(float(until))}, {})}
    return write_artifact(opened.layout.artifact("model", "mylog", **keys), weights, lineage)


def champion(snapshots: str, step: int, *models: str, tested: tuple[int, ...] = ()) -> None:
    """Record a champion that was chosen on a step, and the steps on which challengers lost to it."""
    layout = open_snapshots(snapshots).layout
    before, stamp = read_champion(layout, "mylog")
    tests: dict[str, dict[str, Any]] = {f"it{STEP_IN_TEST}{10 * each}": {} for each in (step, *tested)}
    record = {
        "title": "Forecaster with DyFormer" if models else "L3",
        "models": [layout.relative(each) for each in models],
        "identity": f"of step {step}",
        "num_tests": 1,
        "end_time": 10 * step,
        "tests": tests,
        **numbered_after(before),
    }
    assert replace_champion(layout, "mylog", record, stamp)


def test_the_training_starts_from_the_newest_model_that_has_not_read_its_last_step(snapshots: str) -> None:
    older, newer = model(snapshots, 4), model(snapshots, 5)
    champion(snapshots, 6, older, newer)
    start = start_of(snapshots, EXPERIMENT)
    assert start == Start(models={4: older, 5: newer}, reason="trained from the champion's weights of step 5")
    assert [start.before(until) for until in (4, 5, 6, 7)] == [None, older, newer, newer]
    assert warm(EXPERIMENT).warm_start == EXPERIMENT.retrain.warm_epochs


def test_a_run_that_is_repeated_after_its_own_promotion_starts_where_it_did(snapshots: str) -> None:
    champion(snapshots, 6, model(snapshots, 4), model(snapshots, 5))
    before = start_of(snapshots, EXPERIMENT)
    assert before.models
    champion(snapshots, NUM_STEPS, model(snapshots, 6))
    assert start_of(snapshots, EXPERIMENT) == before


def test_the_first_run_repeated_is_from_scratch_again(snapshots: str) -> None:
    expected = Start(reason=f"{FRESH} there was no champion before step {NUM_STEPS} was compared")
    assert start_of(snapshots, EXPERIMENT) == expected
    champion(snapshots, NUM_STEPS, model(snapshots, 6))
    assert start_of(snapshots, EXPERIMENT) == expected


@pytest.mark.parametrize(("every", "fresh"), [(1, True), (2, False), (3, True), (4, False)])
def test_one_of_so_many_retrainings_is_from_scratch(snapshots: str, every: int, fresh: bool) -> None:
    """Challengers were compared on the steps 3, 5 and 6: the next one is the fourth."""
    champion(snapshots, 3, model(snapshots, 1), model(snapshots, 2), tested=(5, 6))
    experiment = EXPERIMENT.changed({"retrain.scratch_every": every})
    for step in (None, NUM_STEPS):  # also when it is repeated after its own test
        if step is not None:
            champion(snapshots, NUM_STEPS, model(snapshots, 6))
        start = start_of(snapshots, experiment)
        assert (not start.models, "and 3 were before" in start.reason) == (fresh, fresh)


@pytest.mark.parametrize(
    "changes", [{"model.width": 16}, {"graph.max_distance": 3}, {"graph.history_window": 4}, {"model.num_layers": 1}]
)
def test_a_model_of_other_settings_is_no_start(snapshots: str, changes: dict[str, Any]) -> None:
    champion(snapshots, 6, model(snapshots, 5))
    start = start_of(snapshots, EXPERIMENT.changed(changes))
    assert start == Start(reason=f"{FRESH} the champion has other settings of the graph or of the model")


def test_what_else_is_no_start_has_its_reason(snapshots: str) -> None:
    champion(snapshots, 3, model(snapshots, 2, code="0a1b"))
    other = f"{FRESH} the champion is of another version of the code (0a1b)"
    assert start_of(snapshots, EXPERIMENT) == Start(reason=other)
    champion(snapshots, 4)
    assert start_of(snapshots, EXPERIMENT) == Start(reason=f"{FRESH} the champion, L3, has no weights")
    address = model(snapshots, 4)
    champion(snapshots, 5, address)
    whole = start_of(snapshots, EXPERIMENT.changed({"graph.history_window": None}))
    assert whole.reason.endswith("with graph.history_window=none each step adds some")
    files.remove_folder(address)
    assert start_of(snapshots, EXPERIMENT) == Start(reason=f"{FRESH} the champion's weights are missing")


def test_other_settings_of_training_and_a_new_seed_are_no_obstacle(snapshots: str) -> None:
    champion(snapshots, 6, model(snapshots, 5))
    assert start_of(snapshots, EXPERIMENT.changed({"finetune.epochs": 3, "pretrain": None})).models


PAUSED = EXPERIMENT.changed({"retrain.pause_after": 2, "retrain.pause_every": 3})
NOTHING, ADDED, UNKNOWN = (
    {"vectors": {"difference": [-0.1, 0.0, 0.1]}},
    {"vectors": {"difference": [0.01, 0.1, 0.2]}},
    {"vectors": None},
)
TRAINED = f"{DYFORMER} 0a1b 2c3d"


def published_by(snapshots: str, model_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of a model, as those that were published last."""
    opened = open_snapshots(snapshots)
    lineage = opened.lineage("vectors", until=5, settings={"model": "0a1b"}, code=(), inputs=(model_address,))
    address = opened.layout.artifact("vectors", "mylog", version=1, until=5, settings=lineage.settings_hash, seed=0)
    write_artifact(address, {"vectors": pl.DataFrame({"node": [0]})}, lineage)
    rows = pl.DataFrame({"vectors": [opened.layout.relative(address)]})
    monkeypatch.setattr(publishing, "publications", lambda layout, dataset: rows)


def record_tests(snapshots: str, outcomes: dict[int, tuple[str, dict[str, Any]]], title: str = "L3") -> None:
    """A champion without weights, chosen on the first of these steps, and the outcomes of its tests by their steps."""
    layout = open_snapshots(snapshots).layout
    before, stamp = read_champion(layout, "mylog")
    tests = {f"{name}{STEP_IN_TEST}{10 * step}": outcome for step, (name, outcome) in outcomes.items()}
    record = {"title": title, "models": [], "identity": title, "num_tests": 1, "end_time": 10 * min(outcomes)}
    assert replace_champion(layout, "mylog", {**record, "tests": tests, **numbered_after(before)}, stamp)


@pytest.fixture
def alarms(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(starts, "read_drift", lambda address: (None, found))
    return found


@pytest.mark.parametrize(
    ("outcomes", "number"),
    [
        ({5: (TRAINED, NOTHING), 6: (TRAINED, NOTHING)}, 1),
        ({4: (TRAINED, NOTHING), 5: (TRAINED, NOTHING), 6: ("L3", UNKNOWN)}, 2),
        ({3: (TRAINED, NOTHING), 4: (TRAINED, NOTHING), 5: ("L3", UNKNOWN), 6: ("L3", UNKNOWN)}, None),  # one of three
        ({4: (TRAINED, ADDED), 5: (TRAINED, NOTHING), 6: (TRAINED, NOTHING)}, 1),
        ({5: (TRAINED, NOTHING), 6: (TRAINED, ADDED)}, None),
        ({5: (TRAINED, ADDED), 6: (TRAINED, NOTHING)}, None),
        ({5: (TRAINED, NOTHING), 6: (TRAINED, UNKNOWN)}, None),
        ({6: (TRAINED, NOTHING)}, None),
        ({5: (TRAINED, NOTHING), 6: (TRAINED, NOTHING), 7: (TRAINED, ADDED)}, 1),  # its own step is not read
    ],
)
def test_trainings_pause_where_the_vectors_of_the_last_ones_added_nothing(
    snapshots: str,
    monkeypatch: pytest.MonkeyPatch,
    alarms: list[str],
    outcomes: dict[int, tuple[str, dict[str, Any]]],
    number: int | None,
) -> None:
    address = model(snapshots, 5)
    published_by(snapshots, address, monkeypatch)
    record_tests(snapshots, outcomes)
    pause = pause_of(snapshots, PAUSED, "drift")
    assert (pause is None) == (number is None)
    if pause is not None:
        assert (pause.champion, pause.model) == (Contender(title="L3"), address)
        assert pause.reason.endswith(f"this is number {number} since the last one")


def test_nothing_pauses_without_the_setting_a_model_or_a_cheap_champion_or_at_an_alarm(
    snapshots: str, monkeypatch: pytest.MonkeyPatch, alarms: list[str]
) -> None:
    address = model(snapshots, 5)
    published_by(snapshots, address, monkeypatch)
    useless = {5: (TRAINED, NOTHING), 6: (TRAINED, NOTHING)}
    record_tests(snapshots, useless)
    assert pause_of(snapshots, PAUSED, "drift") is not None
    for changes in ({"retrain.pause_after": None}, {"retrain.pause_after": 3}, {"model.width": 16}):
        assert pause_of(snapshots, PAUSED.changed(changes), "drift") is None
    alarms.append("interactions 8.29, usually 5.97")
    assert pause_of(snapshots, PAUSED, "drift") is None
    alarms.clear()
    files.remove_folder(address)
    assert pause_of(snapshots, PAUSED, "drift") is None
    published_by(snapshots, model(snapshots, 5), monkeypatch)
    assert pause_of(snapshots, PAUSED, "drift") is not None
    champion(snapshots, 6, model(snapshots, 5))
    assert pause_of(snapshots, PAUSED, "drift") is None
    record_tests(snapshots, useless, title="A method that is gone")
    assert pause_of(snapshots, PAUSED, "drift") is None


@pytest.mark.parametrize(
    ("repeats", "case"),
    [(0.4, "40 % of the newest step's links repeat"), (0.399, "most of its pairs are new"), (None, "")],
)
def test_the_case_of_a_log_is_that_of_its_newest_links(
    repeats: float | None, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(1, "repeats", 0.4 if repeats == 0.399 else 0.1), (2, "new_nodes", 0.9), (2, "repeats", repeats)]
    found = pl.DataFrame([row for row in rows if row[2] is not None], ("step", "metric", "value"), orient="row")
    monkeypatch.setattr(starts, "read_drift", lambda address: (found, []))
    line = expected_line("mylog", "drift")
    assert (line is None) == (repeats is None)
    assert case in (line or "")
    assert ("come again" in (line or "")) == (repeats == 0.4)


@pytest.mark.parametrize(
    ("newest", "untils"),
    [(35, [20, 27, 34]), (22, [7, 14, 20, 21]), (21, [19, 20])],
    ids=["a week", "a first day with a period", "a day before"],
)
def test_models_are_trained_for_the_newest_step_and_the_next_one(
    newest: int, untils: list[int], monkeypatch: pytest.MonkeyPatch
):
    graph = prefix(weekly_log(num_weeks=5), newest)
    opened = SimpleNamespace(num_steps=newest, graph=lambda until: prefix(graph, until))
    monkeypatch.setattr(training, "open_snapshots", lambda address: opened)
    assert training.trained_steps("") == untils


def test_a_run_needs_a_step_that_can_calibrate_its_forecasts_a_week_before_or_among_the_newest(
    monkeypatch: pytest.MonkeyPatch,
):
    opened = SimpleNamespace(dataset="weekly", num_steps=35, graph=lambda until: weekly_log(num_weeks=5))
    monkeypatch.setattr(evaluation, "open_snapshots", lambda address: opened)
    for rankable in ([29], [15], [33]):
        monkeypatch.setattr(evaluation, "rankable_steps", lambda opened, rankable=rankable: rankable)
        evaluation.check_forecast("")
    monkeypatch.setattr(evaluation, "rankable_steps", lambda opened: [28, 30, 32])
    with pytest.raises(StepOutOfRange, match="weekly: none of the last 3 of 35 steps"):
        evaluation.check_forecast("")
