"""The registered model predicts by the user's own ids, wherever MLflow runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from mlflow.pyfunc.model import PythonModelContext

from dyformer.scoring.decoder import LinkDecoder, hadamard, score
from storage.layout import Layout
from storage.tracking.model_package import packed_model
from storage.tracking.runs import Tracker, open_tracker
from storage.tracking.served_model import ServedModel
from storage.tracking.spool import spooled_runs

DECODER = LinkDecoder(
    kind="paper",
    mean_F=np.array([0.1, -0.2]),
    scale_F=np.array([2.0, 0.5]),
    coefficient_F=np.array([1.5, -0.7]),
    intercept=0.3,
)
DECODER_JSON = json.dumps(
    {
        "kind": "paper",
        "mean_F": [0.1, -0.2],
        "scale_F": [2.0, 0.5],
        "coefficient_F": [1.5, -0.7],
        "intercept": 0.3,
    }
).encode()
VECTORS_ND = np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.25], [-2.0, 1.5]], dtype=np.float32)


def vector_table(ids: list[Any], sides: tuple[int, ...] = (0, 0, 0, 0)) -> pl.DataFrame:
    vectors = pl.Series(VECTORS_ND.tolist(), dtype=pl.List(pl.Float32))
    return pl.DataFrame({"side": pl.Series(sides, dtype=pl.Int8), "id": ids, "vector": vectors})


def opened(ids: list[Any], folder: Path, sides: tuple[int, ...] = (0, 0, 0, 0)) -> ServedModel:
    vector_table(ids, sides).write_parquet(folder / "vectors.parquet")
    (folder / "decoder.json").write_bytes(DECODER_JSON)
    model = ServedModel()
    model.load_context(PythonModelContext(artifacts={"files": str(folder)}, model_config={}))
    return model


@pytest.fixture
def tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return open_tracker(Layout(str(tmp_path)))


def test_vectors_come_in_the_order_of_the_nodes(tmp_path: Path) -> None:
    found = opened(["a", "b", "c", "d"], tmp_path).predict(None, pd.DataFrame({"node": ["c", "a", "c"]}))
    np.testing.assert_array_equal(np.stack(found["vector"].to_list()), VECTORS_ND[[2, 0, 2]])


def test_pairs_give_the_scores_of_the_decoder(tmp_path: Path) -> None:
    source_P, target_P = np.array([0, 1, 2]), np.array([3, 2, 0])
    pairs = pd.DataFrame({"source": 10 * (source_P + 1), "target": 10 * (target_P + 1)})
    found = opened([10, 20, 30, 40], tmp_path).predict(None, pairs)
    expected_P = score(DECODER, hadamard(VECTORS_ND, source_P, target_P))
    np.testing.assert_allclose(found["score"], expected_P, rtol=1e-12)


def test_bipartite_pair_reads_its_target_on_the_other_side(tmp_path: Path) -> None:
    model = opened([7, 8, 7, 9], tmp_path, sides=(0, 0, 1, 1))
    found = model.predict(None, pd.DataFrame({"source": [7], "target": [7]}))
    expected_P = score(DECODER, hadamard(VECTORS_ND, np.array([0]), np.array([2])))
    np.testing.assert_allclose(found["score"], expected_P, rtol=1e-12)
    vectors = model.predict(None, pd.DataFrame({"node": [7, 7], "side": [1, 0]}))["vector"].to_list()
    np.testing.assert_array_equal(np.stack(vectors), VECTORS_ND[[2, 0]])
    np.testing.assert_array_equal(model.predict(None, pd.DataFrame({"node": [9]}))["vector"][0], VECTORS_ND[3])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"node": [7]}, "7 is on both sides"),
        ({"node": [5, 6]}, "unknown nodes: 5 on side 0, 6 on side 0; the model has vectors of 4"),
        ({"source": [7], "target": [8]}, "unknown nodes: 8 on side 1"),
        ({"source": [7]}, "expected the column node"),
        ({"node": [7], "source": [7], "target": [9]}, "expected the column node"),
        ({"user": [7]}, "found user"),
    ],
)
def test_rows_that_cannot_be_predicted_are_refused(rows: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = opened([7, 8, 7, 9], tmp_path, sides=(0, 0, 1, 1))
    with pytest.raises(ValueError, match=message):
        model.predict(None, pd.DataFrame(rows))


def test_decoder_that_needs_more_than_vectors_is_not_packed() -> None:
    decoder = json.dumps({**json.loads(DECODER_JSON), "kind": "features"}).encode()
    with (
        pytest.raises(ValueError, match="expected a decoder of kind paper with 2 inputs"),
        packed_model(vectors=vector_table([1, 2, 3, 4]), decoder=decoder, weights=b""),
    ):
        pass


LOAD = """
import sys
import mlflow, pandas
model = mlflow.pyfunc.load_model("models:/dyformer-toy@challenger")
pairs = pandas.DataFrame({"source": ["a", "b"], "target": ["d", "c"]})
print(*model.predict(pairs)["score"])
print(*model.predict(pandas.DataFrame({"node": ["b"]}))["vector"][0])
print(sorted({"torch", "storage", "dyformer", "prefect"} & set(sys.modules)))
try:
    model.predict(pandas.DataFrame({"node": ["nobody"]}))
except Exception as error:
    print(error)
"""


def test_model_loads_in_a_fresh_process_with_nothing_but_mlflow(tracker: Tracker, tmp_path: Path) -> None:
    table = vector_table(["a", "b", "c", "d"])
    run = tracker.start_run(dataset="toy", name="DyFormer")
    with packed_model(vectors=table, decoder=DECODER_JSON, weights=b"w") as folder:
        assert not [path for path in folder.rglob("*") if path.suffix in (".pkl", ".pickle", ".pt")]
        assert "torch" not in (folder / "requirements.txt").read_text()
        assert run.register_model(folder, name="dyformer-toy") == "1", run.problem
        assert run.register_model(folder, name="dyformer-toy") == "1"  # one run, one model
    run.finish()
    environment = {**os.environ, "MLFLOW_TRACKING_URI": tracker.uri, "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    scores, vector, modules, error = done.stdout.splitlines()
    expected_P = score(DECODER, hadamard(VECTORS_ND, np.array([0, 1]), np.array([3, 2])))
    np.testing.assert_allclose([float(value) for value in scores.split()], expected_P, rtol=1e-12)
    np.testing.assert_array_equal([float(value) for value in vector.split()], VECTORS_ND[1])
    assert modules == "[]"
    assert "unknown nodes: nobody" in error


def test_model_of_a_tracker_that_is_away_is_registered_by_the_replay(tracker: Tracker) -> None:
    away = Tracker(uri="http://127.0.0.1:9", spool=tracker.spool)
    run = away.start_run(dataset="toy", name="DyFormer")
    with packed_model(vectors=vector_table([1, 2, 3, 4]), decoder=DECODER_JSON, weights=b"w") as folder:
        assert run.register_model(folder, name="dyformer-toy") is None
    run.finish()
    tracker.replay_spool()
    assert spooled_runs(tracker.spool) == []
    versions = tracker.client().search_model_versions("name = 'dyformer-toy'")
    assert [version.version for version in versions] in ([1], ["1"])
    challenger = tracker.client().get_model_version_by_alias("dyformer-toy", "challenger")
    assert tracker.client().get_run(str(challenger.run_id)).info.status == "FINISHED"
