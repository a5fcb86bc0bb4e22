"""Tasks as plain functions: a rerun continues after a crash and does not repeat finished work."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest
import torch
from own_snapshots import own_snapshots
from posed import evaluate_model

from dyformer.experiments.methods import Variation
from dyformer.experiments.settings import Experiment, as_record
from dyformer.training.checkpoint import WeightsDoNotFit
from flows.stages import trained as trained_models
from flows.tasks.models import PARTS, Contender, open_model, space_of
from flows.tasks.predict import read_vectors, write_forecasts, write_vectors
from flows.tasks.snapshots import StepOutOfRange, check_range, open_snapshots
from flows.tasks.train import EpochRow, ignore_epoch, train_model
from storage.artifacts.artifact import ArtifactDamaged, Lineage, lineage_of, read_bytes, read_table, write_artifact
from storage.artifacts.checkpoints import has_checkpoint, save_checkpoint, to_bytes
from storage.artifacts.made import address_of
from storage.layout import FORECAST, WEIGHTS

pytestmark = pytest.mark.usefixtures("few_trees")

CHANGES = {
    "pretrain.epochs": 6,
    "pretrain.batches_per_epoch": 3,
    "finetune.epochs": 6,
    "finetune.batches_per_epoch": 3,
    "model.width": 16,
    "model.num_heads": 2,
    "model.num_context": 20,
}
EXPERIMENT = Experiment().changed(CHANGES)
UNTIL = 8


def snapshots_in(store: Path) -> str:
    with patch.dict(os.environ, {"DYFORMER_STORAGE": str(store)}):
        return own_snapshots(store.parent)


def trained(store: Path, snapshots: str, seed: int = 0) -> tuple[bytes, bytes]:
    with patch.dict(os.environ, {"DYFORMER_STORAGE": str(store)}):
        return trained_files(train_model(snapshots, UNTIL, EXPERIMENT, seed))


def trained_files(model: str) -> tuple[bytes, bytes]:
    return Path(model, WEIGHTS).read_bytes(), Path(model, "losses.parquet").read_bytes()


class Terminated(BaseException):
    """Raised by the handler of SIGTERM, as in a flow."""


def test_sigterm_in_a_training_loses_no_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def end(number: int, frame: object) -> None:
        raise Terminated

    whole = trained(tmp_path / "whole", snapshots_in(tmp_path / "whole"))
    monkeypatch.setattr("flows.tasks.train.SECONDS_BETWEEN_CHECKPOINTS", 1e9)
    snapshots, epochs = snapshots_in(tmp_path / "store"), []

    def on_epoch(lineage: Lineage, rows: list[EpochRow]) -> None:
        epochs.extend(row[:2] for row in rows if row[2] == "loss")
        if epochs[-1:] == [("pretrain", 3)]:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        with patch.dict(os.environ, {"DYFORMER_STORAGE": str(tmp_path / "store")}):
            with pytest.raises(Terminated):
                train_model(snapshots, UNTIL, EXPERIMENT, on_epoch=on_epoch)
            assert [epoch for _, epoch in epochs] == [1, 2, 3]
            epochs.clear()
            resumed = trained_files(train_model(snapshots, UNTIL, EXPERIMENT, on_epoch=on_epoch_of(epochs)))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert resumed == whole
    assert epochs.count(("pretrain", 3)) == 1


def on_epoch_of(epochs: list[tuple[str, int]]):
    return lambda lineage, rows: epochs.extend(row[:2] for row in rows if row[2] == "loss")


def test_finished_training_is_not_repeated(tmp_path: Path):
    snapshots = snapshots_in(tmp_path / "store")
    first = trained(tmp_path / "store", snapshots)
    (left,) = (Path(path.parent.as_posix().replace("/model/", "/finetune/")) for path in tmp_path.rglob(WEIGHTS))
    save_checkpoint(str(left), {}, {})  # by a process that was killed before it removed its own
    started = time.monotonic()
    with patch("flows.tasks.train.pretrain", side_effect=AssertionError("trained again")):
        assert trained(tmp_path / "store", snapshots) == first
    assert time.monotonic() - started < 5
    assert not has_checkpoint(str(left))


def test_a_training_starts_from_the_weights_of_an_earlier_step(tmp_path: Path):
    """Without a learning rate the weights that a training starts from stay as they are."""
    still = {
        f"{stage}.{rate}": 0.0 for stage in ("pretrain", "finetune") for rate in ("learning_rate", "id_learning_rate")
    }
    experiment = Variation().changed(EXPERIMENT.changed({**still, "warm_start": 0.4, "max_epochs": 5}))
    snapshots = snapshots_in(tmp_path / "store")
    with patch.dict(os.environ, {"DYFORMER_STORAGE": str(tmp_path / "store")}):
        start = train_model(snapshots, UNTIL - 2, EXPERIMENT, seed=1)
        warm, cold = (train_model(snapshots, UNTIL, experiment, start=each) for each in (start, None))
        assert warm != cold
        (before, _, _), (after, _, lineage) = open_model(start), open_model(warm)
        assert lineage.settings["start"] == space_of(start)
        assert [address for address in lineage.inputs if "checkpoints/model" in address] == [
            open_snapshots(snapshots).layout.relative(start)
        ]
        epochs = read_table(warm, "losses").group_by("stage").agg(pl.col("epoch").max())
        assert dict(epochs.iter_rows()) == {"pretrain": 3, "finetune": 3}  # of 6, before the cap
        assert read_table(cold, "losses")["epoch"].max() == 5
        for name, value in after.items():
            np.testing.assert_array_equal(value.numpy(), before[name].numpy(), err_msg=name)
        with pytest.raises(StepOutOfRange, match="expected a model of an earlier step to start from"):
            train_model(snapshots, UNTIL - 2, experiment, start=start)


def test_an_interrupted_warm_start_ends_with_the_same_weights(tmp_path: Path):
    """The checkpoint is of the start too: the training from scratch of the same step has another one."""
    weights = []

    def stop(lineage: Lineage, rows: list[EpochRow]) -> None:
        if rows and rows[-1][:2] == ("finetune", 2):
            raise KeyboardInterrupt

    for name, callbacks in (("whole", [ignore_epoch]), ("interrupted", [stop, ignore_epoch])):
        snapshots = snapshots_in(tmp_path / name)
        with patch.dict(os.environ, {"DYFORMER_STORAGE": str(tmp_path / name)}):
            start = train_model(snapshots, UNTIL - 1, EXPERIMENT)
            with patch("flows.tasks.train.SECONDS_BETWEEN_CHECKPOINTS", 0.0):
                for on_epoch in callbacks:
                    with contextlib.suppress(KeyboardInterrupt):
                        weights.append(trained_files(train_model(snapshots, UNTIL, EXPERIMENT, 0, on_epoch, start)))
    assert weights[0] == weights[1]


def test_models_of_a_benchmark_start_from_the_newest_earlier_one(monkeypatch: pytest.MonkeyPatch):
    calls: list[tuple[int, str | None]] = []

    def train(snapshots: str, until: int, experiment: Experiment, seed: int, *, start: str | None) -> str:
        calls.append((until, start))
        return f"model {until}"

    monkeypatch.setattr("flows.stages.train_task", train)
    for warm_start, starts in ((None, [None] * 5), (0.5, [None, "model 2", "model 3", "model 4", "model 7"])):
        models: dict[int, str] = {}
        for untils in ([2, 3], [3, 4], [7, 8]):
            made = trained_models("snapshots", untils, Experiment(warm_start=warm_start), 0, models)
            assert made == [f"model {until}" for until in untils]
        assert calls == list(zip([2, 3, 4, 7, 8], starts, strict=True))
        calls.clear()


def test_a_new_release_trains_a_challenger_and_leaves_the_weights_of_the_old_one(tmp_path: Path):
    snapshots = snapshots_in(tmp_path / "store")
    short = EXPERIMENT.changed({"pretrain": None, "finetune.epochs": 1})
    with patch.dict(os.environ, {"DYFORMER_STORAGE": str(tmp_path / "store")}):
        old = train_model(snapshots, UNTIL, short)
        before = trained_files(old)
        with patch("flows.tasks.snapshots.code_digest", return_value="99"):
            new = train_model(snapshots, UNTIL, short)
        assert lineage_of(new).code_version == "99"
    assert new != old
    assert trained_files(old) == before


def test_a_model_of_the_whole_history_gives_vectors_and_forecasts_of_later_steps(tmp_path: Path):
    snapshots = snapshots_in(tmp_path / "store")
    with patch.dict(os.environ, {"DYFORMER_STORAGE": str(tmp_path / "store")}):
        whole_history = EXPERIMENT.changed({"graph.history_window": None, "finetune.epochs": 1})
        model = train_model(snapshots, UNTIL, whole_history)
        assert open_model(model)[1].graph.history_window == UNTIL
        vectors, later = (write_vectors(snapshots, model, step) for step in (UNTIL, UNTIL + 1))
        assert len(read_vectors(vectors)) <= len(read_vectors(later))
        contender = Contender(title="Forecaster with DyFormer", models=(model,))
        forecasts = read_table(write_forecasts(snapshots, contender, later, k=2), "forecasts")
        assert forecasts["step"].unique().to_list() == [UNTIL + 2]
        assert read_table(evaluate_model(snapshots, model, UNTIL + 1), "pairs").height


def test_edges_of_nodes_that_do_not_exist_are_refused(tmp_path: Path):
    """The compiled loops would read beyond their arrays."""
    address = snapshots_in(tmp_path / "store")
    with patch.dict(os.environ, {"DYFORMER_STORAGE": str(tmp_path / "store")}):
        tables = {name: read_table(address, name) for name in ("edges", "steps", "nodes")}
        for wrong in (-1, tables["nodes"].height):
            forged = tables["edges"].with_columns(target=pl.lit(wrong).cast(tables["edges"]["target"].dtype))
            other = write_artifact(f"{address}{wrong}", {**tables, "edges": forged}, lineage_of(address))
            with pytest.raises(ArtifactDamaged, match="has edges of nodes that it lacks"):
                open_snapshots(other).graph(2)


def test_weights_that_do_not_fit_are_named(tmp_path: Path):
    address = snapshots_in(tmp_path / "store")
    with patch.dict(os.environ, {"DYFORMER_STORAGE": str(tmp_path / "store")}):
        opened = open_snapshots(address)
        weights = to_bytes({"more": torch.zeros(2)}, {})
        settings = {"seed": 0, **as_record(EXPERIMENT, PARTS)}
        lineage = opened.lineage("model", until=UNTIL, settings=settings)
        model = write_artifact(address_of(opened.layout, lineage), {WEIGHTS: weights}, lineage)
        for use in (lambda: write_vectors(address, model), lambda: evaluate_model(address, model, UNTIL + 1)):
            with pytest.raises(WeightsDoNotFit, match=f"^{model}: the weights do not fit"):
                use()


def test_the_seed_reaches_the_heads_of_the_forecasts(tmp_path: Path):
    snapshots = snapshots_in(tmp_path / "store")
    with patch.dict(os.environ, {"DYFORMER_STORAGE": str(tmp_path / "store")}):
        contender = Contender(title="Forecaster without vectors")
        records = [read_bytes(write_forecasts(snapshots, contender, seed=seed), FORECAST) for seed in (0, 1)]
    assert json.loads(records[0])["fitted"] != json.loads(records[1])["fitted"]


def test_training_needs_a_history(tmp_path: Path):
    snapshots = snapshots_in(tmp_path / "store")
    with patch.dict(os.environ, {"DYFORMER_STORAGE": str(tmp_path / "store")}):
        for until in (1, 13):
            with pytest.raises(StepOutOfRange):
                train_model(snapshots, until, EXPERIMENT)


@pytest.mark.parametrize(("steps", "allowed"), [([3, 12], True), ([2], False), ([13], False), ([], True)])
def test_steps_in_range_are_allowed_and_others_refused(steps: list[int], allowed: bool):
    if allowed:
        check_range("mylog", steps, 3, 12)
    else:
        with pytest.raises(StepOutOfRange, match=r"mylog has 12 snapshots; choose from 3 to 12"):
            check_range("mylog", steps, 3, 12)


def test_a_log_with_too_few_steps_is_named_without_a_step_that_nobody_chose():
    with pytest.raises(StepOutOfRange, match=r"^mylog has 1 snapshot, and at least 3 are needed: add later rows, or"):
        check_range("mylog", [3], 3, 1)
