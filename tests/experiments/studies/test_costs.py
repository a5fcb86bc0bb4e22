"""The study of costs: the difference of two fits is an epoch, and the paper's values stand beside ours."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from own_snapshots import own_snapshots
from posed import evaluate_methods
from toy_graphs import random_graph

from dyformer.baselines.dyngem.method import DynGEM
from dyformer.evaluation.fitting import FittedOnce
from dyformer.evaluation.protocols.cost import PROTOCOL, SCHEMA, seconds_of, train
from dyformer.evaluation.protocols.protocol import Result
from dyformer.experiments.methods import METHODS, STAGES, TrainingStage, Variation
from dyformer.experiments.settings import Experiment
from dyformer.experiments.studies.studies import STUDIES
from dyformer.experiments.studies.study_tables import Setup, study_tables
from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.training import stages
from flows.tasks.methods import resolved

GRAPH = prepare_graph(
    random_graph(np.random.default_rng(0), num_nodes=20, num_steps=3, num_edges=30), until=3, config=GraphConfig()
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the fits of a test set on."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("time.process_time", lambda: clock.now)
    return clock


@dataclass(frozen=True)
class Timed:
    """Five seconds of preparation and two for each epoch."""

    clock: SimpleNamespace
    fits: list[tuple[int, int]] = field(default_factory=list)
    epochs: int | None = 9
    batches: int = 4

    def fit(self, graph, *, seed):
        assert self.epochs is not None
        self.fits.append((self.epochs, self.batches))
        self.clock.now += 5 + 2 * self.epochs
        return lambda node_N: np.zeros((len(node_N), 1))


def test_an_epoch_is_the_difference_of_two_fits_without_what_they_prepare(clock: SimpleNamespace):
    method = Timed(clock)
    assert seconds_of(method, GRAPH, 0) == (2.0, 7.0)
    assert [epochs for epochs, _ in method.fits] == [1, 1, 3]
    assert all(batches > 10**9 for _, batches in method.fits)  # or they would end an epoch early


def test_a_method_without_a_number_of_epochs_is_refused():
    """Two fits of it last as long, and their difference is noise."""
    plain: Any = type("Plain", (), {"fit": lambda self, graph, *, seed: None})()
    for method in (FittedOnce(method=DynGEM()), plain):
        with pytest.raises(ValueError, match=f"field first_epochs or epochs; found {type(method).__name__}"):
            seconds_of(method, GRAPH, 0)


def test_the_trained_baselines_of_a_benchmark_are_fitted_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fits = []

    def fit(method: DynGEM, graph: Any, *, seed: int) -> Any:
        fits.append((method.first_epochs, method.epochs))
        return lambda node_N: np.zeros((len(node_N), 1))

    monkeypatch.setattr(DynGEM, "fit", fit)
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    evaluate_methods(own_snapshots(tmp_path), ["DynGEM"], 9, protocol="cost")
    assert fits == [(1, 1), (1, 1), (3, 3)]


@pytest.mark.parametrize("pretraining", [True, False])
def test_an_epoch_of_dyformer_is_one_of_each_of_its_stages(pretraining: bool, monkeypatch: pytest.MonkeyPatch):
    ran = []
    monkeypatch.setattr(TrainingStage, "train_epochs", lambda own, *given, **_: ran.append((own.stage, given[1])))
    train(Variation() if pretraining else Variation(changes={"pretrain": None}), GRAPH, 3, 0)
    assert ran == [("pretrain", 3), ("finetune", 3)][not pretraining :]


@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
def test_a_stage_of_dyformer_is_measured_alone_with_its_own_settings(stage: str, monkeypatch: pytest.MonkeyPatch):
    ran = []
    monkeypatch.setattr(
        stages, "pretrain", lambda graph, model, config, seed: ran.append(("pretrain", model, config)) or []
    )
    monkeypatch.setattr(
        stages, "finetune", lambda graph, weights, model, config, seed: ran.append(("finetune", model, config)) or []
    )
    experiment = Experiment().changed({f"{stage}.patience": 2, f"{stage}.epochs": 1})
    [own] = [
        each for title, each in STAGES.items() if title.startswith("DyFormer (as published)") and each.stage == stage
    ]
    train(replace(own, variation=replace(own.variation, experiment=experiment)), GRAPH, 3, 0)
    ((name, model, config),) = ran
    assert (name, config.epochs, config.patience) == (stage, 3, None)
    assert (model.inputs, config.num_targets) == ("id", {"pretrain": 256, "finetune": 1024}[stage])


def test_rows_are_methods_and_both_stages_of_dyformer():
    rows = resolved(STUDIES["cost"].methods)
    assert list(rows) == list(STUDIES["cost"].rows)
    assert rows["DySAT"] == METHODS["DySAT"]
    assert rows["DyFormer, fine-tuning"] == TrainingStage(variation=Variation(), stage="finetune")
    assert all((", " in title) == isinstance(method, TrainingStage) for title, method in rows.items())
    assert all(map(PROTOCOL.evaluates, rows.values()))


def test_the_papers_memory_and_seconds_stand_beside_ours():
    rows = pl.DataFrame([("DySAT", 0, 16, 3.0, 9.0, 0.5), ("DySAT", 1, 16, 5.0, 9.0, 0.7)], orient="row", schema=SCHEMA)
    log: Any = SimpleNamespace(dataset="yelp")
    metrics = PROTOCOL.rows([Result((16,), 0, lambda name: rows, lambda name: rows)], log, ())["metrics"]
    (made,) = study_tables("cost", STUDIES["cost"], metrics, "yelp", Setup())
    own = made.frame.filter(method="DySAT").to_dicts()[0]
    assert (own["CPU s an epoch"], own["CPU s an epoch_paper"], own["CPU s an epoch_minus_paper"]) == (
        4,
        29.4,
        4 - 29.4,
    )
    assert (own["peak GB"], own["peak GB_paper"]) == (pytest.approx(0.6), 5.4)
    assert own["CPU s an epoch_std"] == pytest.approx(2**0.5)
    assert made.frame["method"].to_list() == list(STUDIES["cost"].rows)
    assert made.frame.filter(method="node2vec")["num_seeds"].item() == 0
    assert "trained until the step before 16" in made.title
    assert "the paper's values are of a GPU" in made.title
    (other,) = study_tables("cost", STUDIES["cost"], metrics, "yelp", Setup(is_papers=False))
    assert other.frame["CPU s an epoch_paper"].is_null().all()
    assert "without the paper's values" in other.title
    assert "of a GPU" not in other.title
    assert set(made.files()) == {f"cost-yelp-cost.{ending}" for ending in ("md", "csv", "tex")}
