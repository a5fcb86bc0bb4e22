"""The Python API and the command line give the same numbers."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from posed import evaluate_methods, evaluate_model, metrics_of

import dyformer
from dyformer.experiments.settings import Experiment
from dyformer.experiments.tables import score_table
from dyformer.logs.synthetic import generated_log
from flows.tasks.ingest import ingest_log
from flows.tasks.models import DYFORMER, Contender
from flows.tasks.predict import write_forecasts, write_vectors
from flows.tasks.snapshots import make_snapshots
from flows.tasks.train import train_model
from storage.artifacts.artifact import read_table

pytestmark = pytest.mark.usefixtures("few_trees", "short_generated_log")

SMALL = {"model.num_layers": 1, "model.width": 16, "model.num_heads": 2, "pretrain.epochs": 1, "finetune.epochs": 1}
WINDOW = "7d"
BASELINES = ["EdgeBank (decayed)", "L3", "Logistic regression on pair features"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "generated.csv"
    path.write_bytes(generated_log())
    return path


@pytest.fixture(scope="module")
def snapshots(log: Path, tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYFORMER_STORAGE", str(tmp_path_factory.mktemp("store")))
        ingest_log("mylog", {"log": [str(log)], "window": WINDOW}, lambda text: None)
        yield make_snapshots("mylog")


@pytest.fixture(scope="module")
def model(snapshots: str) -> str:
    return train_model(snapshots, 11, Experiment().changed(SMALL), 0)


def test_table_is_that_of_the_benchmark(log: Path, snapshots: str, model: str) -> None:
    older = (train_model(snapshots, 10, Experiment().changed(SMALL), 0),)
    scores = [evaluate_methods(snapshots, BASELINES, 12), evaluate_model(snapshots, model, 12, older=older)]
    stored = score_table(metrics_of(scores, snapshots), "mylog")
    graph = dyformer.read_log(log).snapshots(WINDOW)
    table = dyformer.evaluate(graph, [*BASELINES, "DyFormer"], steps=[12], settings=SMALL)
    assert_frame_equal(table, stored, check_exact=True)


def test_model_is_that_of_predict(log: Path, snapshots: str, model: str) -> None:
    vectors = write_vectors(snapshots, model)
    older = train_model(snapshots, 10, Experiment().changed(SMALL), 0)
    contender = Contender(title=DYFORMER, models=(older, model))
    address = write_forecasts(snapshots, contender, vectors, k=3)
    fitted = dyformer.fit(dyformer.read_log(log).snapshots(WINDOW), settings=SMALL)
    stored = read_table(vectors, "vectors").sort("id")
    found = fitted.vectors().sort("id")
    assert found["id"].to_list() == stored["id"].to_list()
    np.testing.assert_array_equal(np.stack(found["vector"].to_list()), np.stack(stored["vector"].to_list()))
    for kind, top in (("forecasts", fitted.top(3)), ("new", fitted.top(3, links="new"))):
        in_utc = pl.col("valid_from", "valid_to").dt.replace_time_zone("UTC")  # stored times have no zone
        named = read_table(address, kind).rename({"partner_id": "partner"}).with_columns(in_utc)
        assert_frame_equal(top, named.select(top.columns), check_row_order=False, check_exact=True)


def test_forecasts_by_other_weights_have_an_address_of_their_own(snapshots: str, model: str) -> None:
    older = train_model(snapshots, 10, Experiment().changed(SMALL), 0)
    both, alone = (Contender(title=DYFORMER, models=models) for models in ((older, model), (older,)))
    first = write_forecasts(snapshots, both, k=3)
    before = read_table(first, "forecasts")
    second = write_forecasts(snapshots, alone, k=3)
    assert second != first
    assert_frame_equal(read_table(first, "forecasts"), before)
    vectors = [write_vectors(snapshots, each) for each in (model, older)]
    assert vectors[0] != vectors[1]
