"""A challenger's training starts from the champion of the steps before, or from scratch for a named reason."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dyformer.experiments.settings import Experiment, as_record
from flows.tasks.evaluation.promote import STEP_IN_TEST
from flows.tasks.ingest import ingest_log
from flows.tasks.models import PARTS, TRAINING
from flows.tasks.snapshots import make_snapshots, open_snapshots
from flows.tasks.start import FRESH, Start, start_of, warm
from storage import files
from storage.artifacts.artifact import Lineage, write_artifact
from storage.artifacts.checkpoints import to_bytes
from storage.champions import read_champion, replace_champion, succession

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
        **succession(before),
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
    assert start_of(snapshots, EXPERIMENT) == Start(reason=f"{FRESH} there was no champion")
    champion(snapshots, NUM_STEPS, model(snapshots, 6))
    assert start_of(snapshots, EXPERIMENT) == Start(reason=f"{FRESH} there was no champion")


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
