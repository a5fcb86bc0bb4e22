"""The registered model predicts by the user's own ids, wherever MLflow runs."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pandas as pd
import polars as pl
import pytest
from mlflow.pyfunc import scoring_server
from mlflow.pyfunc.model import PythonModelContext
from mlflow.utils import environment, requirements_utils
from packed_rankings import log_rows, packed, ranking_of
from ranked_logs import growing_log

import dyformer
from dyformer.evaluation.forecasts.forecast import Forecast, fit_forecast
from dyformer.evaluation.forecasts.stored_forecast import forecast_record, history_tables
from dyformer.experiments.methods import METHODS
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.scoring.interfaces import Embed
from dyformer.scoring.live_ranking import LiveRanking
from dyformer.scoring.packed_ranking import PackedRanking
from storage.layout import Layout
from storage.tracking.model_package import packed_model
from storage.tracking.runs import Tracker, open_tracker
from storage.tracking.served_model import ServedModel, WrongRequest

pytestmark = pytest.mark.usefixtures("few_trees")

UNTIL = 6
GRAPH = growing_log(num_steps=7)
NUM_NODES = GRAPH.snapshots[UNTIL - 1].num_nodes
VECTORS_ND = np.random.default_rng(0).normal(size=(NUM_NODES, 4)).astype(np.float32)
SIDES = np.arange(len(GRAPH.side_N)) % 2


class Given:
    """A method with the same vectors for every step."""

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        return lambda node_N: VECTORS_ND[node_N]


def fitted(name: str, *, directed: bool = True) -> tuple[Forecast, bytes]:
    """A forecast of step 7 and its record."""
    method = Given() if name == "Given" else METHODS[name]
    graph = replace(GRAPH, directed=directed)
    forecast = fit_forecast(name, method, prepare_graph(graph, until=UNTIL, config=GraphConfig()), seed=0)
    return forecast, json.dumps(forecast_record(forecast, method, seed=0)).encode()


@pytest.fixture(scope="module")
def forecast() -> tuple[Forecast, bytes]:
    return fitted("Given")


def id_table(ids: list[Any], sides: Any = None) -> pl.DataFrame:
    column = pl.Series(np.zeros(len(ids)) if sides is None else sides, dtype=pl.Int8)
    return pl.DataFrame({"side": column, "id": ids})


def vector_table() -> pl.DataFrame:
    return pl.DataFrame({"vector": pl.Series(VECTORS_ND.tolist(), dtype=pl.List(pl.Float32))})


def tables_of(forecast: Forecast) -> dict[str, pl.DataFrame]:
    return history_tables(forecast.past.history)


def opened(given: tuple[Forecast, bytes], ids: list[Any], folder: Path, sides: Any = None) -> ServedModel:
    forecast, record = given
    tables = {**tables_of(forecast), "ids": id_table(ids, sides), "vectors": vector_table()}
    for name, table in tables.items():
        table.write_parquet(folder / f"{name}.parquet")
    (folder / "forecast.json").write_bytes(record)
    model = ServedModel()
    model.load_context(PythonModelContext(artifacts={"files": str(folder)}, model_config={}))
    return model


def names(prefix: str = "n") -> list[str]:
    return [f"{prefix}{number}" for number in range(NUM_NODES)]


@pytest.fixture
def tracker(empty_database: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    empty_database(tmp_path / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)  # a tracker without a folder of its own writes ./mlruns
    return open_tracker(Layout(str(tmp_path)))


def test_vectors_come_in_the_order_of_the_nodes(forecast: tuple[Forecast, bytes], tmp_path: Path) -> None:
    found = opened(forecast, names(), tmp_path).predict(None, pd.DataFrame({"node": ["n2", "n0", "n2"]}))
    np.testing.assert_array_equal(np.stack(found["vector"].to_list()), VECTORS_ND[[2, 0, 2]])


def test_saving_a_model_looks_at_no_installed_package(
    forecast: tuple[Forecast, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[None] = []
    monkeypatch.setattr(requirements_utils, "_init_packages_to_modules_map", lambda: looks.append(None))
    before = dict(vars(environment))
    with packed_model(record=forecast[1], history=tables_of(forecast[0]), ids=id_table(names())) as folder:
        assert f"numpy=={np.__version__}" in (folder / "requirements.txt").read_text().splitlines()
    assert looks == []
    assert vars(environment) == before


def test_rotated_vectors_are_given_and_the_models_own_are_scored(
    forecast: tuple[Forecast, bytes], tmp_path: Path
) -> None:
    rotation_DD = np.diag([-1.0, 1.0, -1.0, 1.0])[[2, 1, 0, 3]]
    np.save(tmp_path / "rotation.npy", rotation_DD)
    model = opened(forecast, names(), tmp_path)
    found = model.predict(None, pd.DataFrame({"node": ["n2", "n0"]}))
    np.testing.assert_array_equal(np.stack(found["vector"].to_list()), VECTORS_ND[[2, 0]] @ rotation_DD)
    source_P, target_P = np.triu_indices(NUM_NODES, 1)
    pairs = pd.DataFrame({"source": np.array(names())[source_P], "target": np.array(names())[target_P]})
    expected = forecast[0].probability(source_P, target_P)
    np.testing.assert_allclose(model.predict(None, pairs)["probability"], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    ["Given", "Forecaster without vectors", "Event forecaster by pair", "Contact recency", "Boosted trees"],
)
@pytest.mark.parametrize("directed", [True, False])
def test_one_pair_has_one_number(name: str, directed: bool, tmp_path: Path) -> None:
    name = "Boosted trees on pair features" if name == "Boosted trees" else name
    given = fitted(name, directed=directed)
    source_P, target_P = np.triu_indices(NUM_NODES, 1)
    pairs = pd.DataFrame({"source": 10 * source_P, "target": 10 * target_P})
    found = opened(given, [10 * number for number in range(NUM_NODES)], tmp_path).predict(None, pairs)
    np.testing.assert_allclose(found["probability"], given[0].probability(source_P, target_P), rtol=0, atol=1e-12)


def test_best_partners_are_those_of_the_forecast(forecast: tuple[Forecast, bytes], tmp_path: Path) -> None:
    model, rows = opened(forecast, names(), tmp_path), pd.DataFrame({"node": ["n3", "n1"]})
    for links in ("all", "new", "repeat"):
        found = model.predict(None, rows, {"k": 4, "links": links})
        for node in (3, 1):
            expected = forecast[0].top(4, links=links, query_A=np.array([node]))
            own = found[found["node"] == f"n{node}"]
            assert own["partner"].tolist() == [f"n{partner}" for partner in expected["partner"]]
            assert own["rank"].tolist() == expected["rank"].to_list()
            np.testing.assert_allclose(own["probability"], expected["probability"])
            assert own["linked_before"].tolist() == expected["linked_before"].to_list()
    repeated = model.predict(None, pd.DataFrame({"node": ["n3", "n1", "n3"]}), {"k": 4})
    assert repeated["node"].tolist() == ["n3"] * 4 + ["n1"] * 4  # in the order of the rows, each node once


class Loaded:
    """What MLflow's server reads of a loaded model."""

    def __init__(self, model: ServedModel) -> None:
        self.model, self.metadata = model, SimpleNamespace(get_input_schema=lambda: None)

    def predict(self, data: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        return self.model.predict(None, data, params)


async def responses(model: Loaded, *rows: dict[str, str], **params: str) -> list[httpx.Response]:
    """What MLflow's own server sends for each row."""
    app = httpx.ASGITransport(app=scoring_server.init(model))  # pyright: ignore[reportArgumentType]
    async with httpx.AsyncClient(transport=app, base_url="http://localhost") as client:
        return [await client.post("/invocations", json={"dataframe_records": [row], "params": params}) for row in rows]


def test_a_wrong_request_over_http_is_named_without_a_stack_trace(
    forecast: tuple[Forecast, bytes], tmp_path: Path
) -> None:
    model = Loaded(opened(forecast, names(), tmp_path))
    right, unknown, other = asyncio.run(
        responses(model, {"source": "n1", "target": "n2"}, {"node": "nobody"}, {"user": "n1"})
    )
    assert (right.status_code, list(right.json())) == (200, ["predictions"])
    assert f"unknown nodes: nobody; the model knows {NUM_NODES} nodes" in unknown.json()["message"]
    assert (
        "expected the column node (and side), or the columns source and target; found user" in other.json()["message"]
    )
    for wrong in (unknown, other):
        assert wrong.status_code == 400
        assert "Traceback" not in wrong.text


def test_partners_among_too_many_nodes_are_refused(
    forecast: tuple[Forecast, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.tracking.served_model.MAX_NODES", 3)
    with pytest.raises(ValueError, match=r"nodes are too many to compare all pairs \(up to 3\): read the forecasts"):
        opened(forecast, names(), tmp_path).predict(None, pd.DataFrame({"node": ["n3"]}), {"k": 2})


def test_bipartite_pair_reads_its_target_on_the_other_side(forecast: tuple[Forecast, bytes], tmp_path: Path) -> None:
    ids = [number // 2 for number in range(NUM_NODES)]
    model = opened(forecast, ids, tmp_path, sides=SIDES[:NUM_NODES])
    found = model.predict(None, pd.DataFrame({"source": [2], "target": [2]}))
    expected = forecast[0].probability(np.array([4]), np.array([5]))
    np.testing.assert_allclose(found["probability"], expected, rtol=0, atol=1e-12)
    vectors = model.predict(None, pd.DataFrame({"node": [2, 2], "side": [1, 0]}))["vector"].to_list()
    np.testing.assert_array_equal(np.stack(vectors), VECTORS_ND[[5, 4]])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"node": [1]}, "1 is on both sides"),
        ({"node": [501, 600]}, "unknown nodes: 501 on side 0, 600 on side 0; the model knows"),
        ({"source": [1], "target": [800]}, "unknown nodes: 800 on side 1"),
        ({"source": [1]}, "expected the column node"),
        ({"node": [1], "source": [1], "target": [2]}, "expected the column node"),
        ({"user": [1]}, "found user"),
    ],
)
def test_rows_that_cannot_be_predicted_are_refused(
    forecast: tuple[Forecast, bytes], rows: dict[str, Any], message: str, tmp_path: Path
) -> None:
    ids = [number // 2 for number in range(NUM_NODES)]
    model = opened(forecast, ids, tmp_path, sides=SIDES[:NUM_NODES])
    with pytest.raises(ValueError, match=message):
        model.predict(None, pd.DataFrame(rows))


def test_a_pair_of_a_node_with_itself_is_a_wrong_request(forecast: tuple[Forecast, bytes], tmp_path: Path) -> None:
    model = opened(forecast, names(), tmp_path)
    with pytest.raises(ValueError, match=r"expected pairs of two nodes.* 1 of a node with itself, such as 'n1'"):
        model.predict(None, pd.DataFrame({"source": ["n0", "n1"], "target": ["n1", "n1"]}))


def test_which_links_needs_the_number_of_partners(forecast: tuple[Forecast, bytes], tmp_path: Path) -> None:
    model, rows = opened(forecast, names(), tmp_path), pd.DataFrame({"node": ["n1"]})
    with pytest.raises(ValueError, match="links = 'new' needs the parameter k"):
        model.predict(None, rows, {"links": "new"})
    with pytest.raises(ValueError, match="links = 'repeated': expected one of all, new, repeat"):
        model.predict(None, rows, {"k": 3, "links": "repeated"})


def test_a_baseline_has_partners_and_no_vectors(tmp_path: Path) -> None:
    given = fitted("Contact recency")
    model = opened(given, names(), tmp_path)
    (tmp_path / "vectors.parquet").unlink()
    model.load_context(PythonModelContext(artifacts={"files": str(tmp_path)}, model_config={}))
    rows = pd.DataFrame({"node": ["n1"]})
    assert len(model.predict(None, rows, {"k": 3})) == 3
    with pytest.raises(ValueError, match="this model is a baseline and has no vectors"):
        model.predict(None, rows)


def test_a_forecast_of_another_history_is_not_packed(forecast: tuple[Forecast, bytes]) -> None:
    with (
        pytest.raises(ValueError, match="a forecast as of step 6 needs its history, found 7 steps"),
        packed_model(record=forecast[1], history=history_tables(GRAPH), ids=id_table(names())),
    ):
        pass


EVENT_ROWS = log_rows()
NUM_PACKED = 560
MORE: list[dict[str, Any]] = [
    {"source": "u1", "target": "p9", "time": EVENT_ROWS[NUM_PACKED][2]},
    {"source": "came", "target": "p1", "time": EVENT_ROWS[NUM_PACKED][2] + 60, "weight": 2},
    {"source": "u1", "target": "new", "time": EVENT_ROWS[NUM_PACKED][2] + 60},
]


@pytest.fixture(scope="module")
def live() -> PackedRanking:
    return packed(EVENT_ROWS[:NUM_PACKED])


@pytest.fixture(scope="module")
def live_folder(
    forecast: tuple[Forecast, bytes], live: PackedRanking, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A package with the event state."""
    parts = {"history": tables_of(forecast[0]), "ids": id_table(names()), "vectors": vector_table()}
    with packed_model(record=forecast[1], **parts, live=live) as folder:
        return shutil.copytree(folder, tmp_path_factory.mktemp("live") / "model")


@pytest.fixture
def live_model(live_folder: Path) -> ServedModel:
    model = ServedModel()
    files = str(live_folder / "artifacts" / "files")
    model.load_context(PythonModelContext(artifacts={"files": files}, model_config={}))
    return model


def everything() -> list[tuple[str, str, int]]:
    return [*EVENT_ROWS[:NUM_PACKED], *((row["source"], row["target"], row["time"]) for row in MORE)]


def test_a_request_with_events_ranks_as_of_now(live_model: ServedModel, live: PackedRanking) -> None:
    rows, expected = pd.DataFrame({"source": ["u3", "u1", "came", "u3"]}), ranking_of(live.fitted, everything())
    found = live_model.predict(None, rows, {"k": 4, "events": json.dumps(MORE)})
    assert found["source"].drop_duplicates().tolist() == ["u3", "u1", "came"]
    for source in ("u3", "u1", "came"):
        own, best = found[found["source"] == source], expected.rank(source, k=4)
        assert own["target"].tolist() == best.targets
        assert own["rank"].tolist() == [1, 2, 3, 4]
        assert own["linked_before"].tolist() == (~best.is_new_K).tolist()
        assert own["num_events"].tolist() == [best.num_events] * 4
        assert own["reasons"].tolist() == best.reasons
        np.testing.assert_allclose(own["probability"], best.probability_K, rtol=0, atol=1e-9)
    all_of_one = live_model.predict(None, pd.DataFrame({"source": ["u1"]}), {"k": 20, "events": json.dumps(MORE)})
    assert "new" in all_of_one["target"].tolist()


def test_a_request_with_events_scores_pairs_as_of_now(live_model: ServedModel, live: PackedRanking) -> None:
    ends = {"source": ["u1", "u3", "u1", "u1", "came"], "target": ["new", "p2", "p3", "nothing", "p1"]}
    found = live_model.predict(None, pd.DataFrame(ends), {"events": json.dumps(MORE)})
    expected = ranking_of(live.fitted, everything())
    for source, target, score, probability, linked in found.itertuples(index=False):
        scores = expected.scores(source, [target])
        assert score == pytest.approx(scores.score_P[0], abs=1e-9)
        wanted = None if np.isnan(scores.probability_P[0]) else scores.probability_P[0]
        assert probability == (None if wanted is None else pytest.approx(wanted, abs=1e-9))
        assert linked == bool(scores.num_contacts_P[0])
    assert list(found.columns) == ["source", "target", "score", "probability", "linked_before"]
    assert found["linked_before"].tolist()[0]
    assert found["probability"].tolist()[3] is None


def test_events_at_the_time_of_a_request_do_not_count_in_it(live_model: ServedModel, live: PackedRanking) -> None:
    rows, text = pd.DataFrame({"source": ["u1"]}), json.dumps(MORE)
    for more, num_before in ((60, 1), (61, 3)):
        at = EVENT_ROWS[NUM_PACKED][2] + more
        best = ranking_of(live.fitted, everything()[: NUM_PACKED + num_before]).rank("u1", at=at * 1_000_000)
        found = live_model.predict(None, rows, {"events": text, "at": str(at)})
        assert found["target"].tolist() == best.targets
        np.testing.assert_allclose(found["probability"], best.probability_K, rtol=0, atol=1e-9)
    with pytest.raises(WrongRequest, match="the parameter at needs events"):
        live_model.predict(None, rows, {"at": str(at)})


def test_no_event_of_a_request_is_left_for_the_next_one(live_model: ServedModel) -> None:
    rows, nothing = pd.DataFrame({"source": ["u1", "came"]}), {"events": "[]"}
    before = live_model.predict(None, rows, nothing)
    live_model.predict(None, rows, {"events": json.dumps(MORE)})
    with pytest.raises(WrongRequest, match="event 3: the weight -1"):
        live_model.predict(None, rows, {"events": json.dumps([*MORE, {**MORE[0], "weight": -1}])})
    pd.testing.assert_frame_equal(live_model.predict(None, rows, nothing), before, check_exact=True)
    assert before.set_index("source")["num_events"]["came"].tolist() == [0] * 10


@pytest.mark.parametrize(
    ("rows", "params", "message"),
    [
        ({"source": ["u1"]}, {"events": "soon"}, "the events are not JSON"),
        ({"source": ["u1"]}, {"events": json.dumps([{**MORE[0], "time": "soon"}])}, "event 0: the time 'soon'"),
        ({"source": ["u1"]}, {"events": json.dumps([{**MORE[0], "time": 5}])}, "expected times that continue the log"),
        ({"source": ["u1"]}, {"events": "[]", "at": "5"}, "as of 1970-01-01T00:00:05.000000Z: expected a time from"),
        ({"source": ["u1"]}, {"events": "[]", "at": "soon"}, "the time 'soon': expected a date"),
        ({"source": ["u1"]}, {"events": "[]", "k": -1}, "k = -1: expected at least 1"),
        ({"source": ["u1", 7.0]}, {"events": "[]"}, "the source '7.0': expected an id as the log has it"),
        ({"source": ["u1"], "target": [" p1"]}, {"events": "[]"}, "the target ' p1': expected an id"),
        ({"source": ["u1"]}, {"events": "[]", "links": "new"}, "no parameter links"),
        ({"node": ["u1"]}, {"events": "[]"}, "needs the column source, or source and target.*; found node"),
        ({"target": ["p1"]}, {"events": "[]"}, "needs the column source, or source and target.*; found target"),
    ],
)
def test_a_wrong_request_with_events_is_named(
    live_model: ServedModel, rows: dict[str, Any], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(WrongRequest, match=message):
        live_model.predict(None, pd.DataFrame(rows), params)


def test_a_model_without_an_event_forecaster_takes_no_events(
    forecast: tuple[Forecast, bytes], live_model: ServedModel, tmp_path: Path
) -> None:
    """All else is the same with and without it."""
    model = opened(forecast, names(), tmp_path)
    with pytest.raises(WrongRequest, match="this model has no event forecaster, so that it takes no events"):
        model.predict(None, pd.DataFrame({"source": ["n1"]}), {"events": "[]"})
    for rows, params in (
        ({"source": ["n1"], "target": ["n2"]}, None),
        ({"source": ["n1"], "target": ["n2"]}, {"k": 0, "links": "all", "events": "", "at": ""}),
        ({"node": ["n1"]}, {"k": 3, "events": ""}),
        ({"node": ["n1"]}, {}),
    ):
        frame = pd.DataFrame(rows)
        one, other = (each.predict(None, frame, params) for each in (model, live_model))
        assert one.to_json(double_precision=15) == other.to_json(double_precision=15)
        pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_integer_ids_stay_integers_as_of_now(live_folder: Path, tmp_path: Path) -> None:
    rows = log_rows(integers=True)
    files = shutil.copytree(live_folder / "artifacts" / "files", tmp_path / "files")
    pack = packed(rows[:NUM_PACKED], integers=True)
    (files / "event_forecaster.json").write_text(json.dumps(pack.record()))
    np.savez_compressed(files / "event_state.npz", allow_pickle=False, **pack.state.to_arrays())
    pack.id_table().write_parquet(files / "event_ids.parquet")
    model = ServedModel()
    model.load_context(PythonModelContext(artifacts={"files": str(files)}, model_config={}))
    events = [{"source": 1, "target": 900, "time": rows[NUM_PACKED][2]}]
    found = model.predict(None, pd.DataFrame({"source": [1]}), {"k": 20, "events": json.dumps(events)})
    assert found["source"].tolist() == [1] * len(found)
    assert found["target"].dtype == pd.Int64Dtype()
    assert 900 in found["target"].tolist()
    for wrong in ("abc", "007", "9" * 25):
        for ends in ({"source": [1, wrong]}, {"source": [1], "target": [wrong]}):
            with pytest.raises(WrongRequest, match=f"the {list(ends)[-1]} '{wrong}': expected an integer, as the log"):
                model.predict(None, pd.DataFrame(ends), {"events": "[]"})


def test_mlflows_server_compiles_before_it_is_ready(live_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranked: list[str] = []
    for name in ("rank", "scores"):
        monkeypatch.setattr(LiveRanking, name, lambda ranking, *given, name=name: ranked.append(name))
    context = PythonModelContext(artifacts={"files": str(live_folder / "artifacts" / "files")}, model_config={})
    ServedModel().load_context(context)
    assert ranked == []
    monkeypatch.setenv(scoring_server._SERVER_MODEL_PATH, str(live_folder))
    ServedModel().load_context(context)
    assert ranked == ["rank", "scores"]


def test_events_over_http(live_model: ServedModel, live: PackedRanking) -> None:
    best = ranking_of(live.fitted, everything()).rank("u1", k=10)
    ranked, scored, wrong = asyncio.run(
        responses(
            Loaded(live_model),
            {"source": "u1"},
            {"source": "u1", "target": "nothing"},
            {"node": "u1"},
            events=json.dumps(MORE),
        )
    )
    assert [row["target"] for row in ranked.json()["predictions"]] == best.targets
    assert "NaN" not in scored.text
    assert scored.json()["predictions"][0]["probability"] is None
    assert wrong.status_code == 400
    assert "Traceback" not in wrong.text


LOAD = """
import sys
import mlflow, pandas
model = mlflow.pyfunc.load_model("models:/dyformer-toy@challenger")
pairs = pandas.DataFrame({"source": ["n0", "n1"], "target": ["n3", "n2"]})
print(*map(repr, model.predict(pairs)["probability"].tolist()))
print(*model.predict(pandas.DataFrame({"node": ["n1"]}))["vector"][0])
print(*model.predict(pandas.DataFrame({"node": ["n1"]}), params={"k": 3})["partner"])
events = '[{"source": "u1", "target": "new", "time": "%s"}]' % sys.argv[1]
print(*model.predict(pandas.DataFrame({"source": ["u1"]}), params={"k": 3, "events": events})["target"])
print(sorted({"torch", "storage", "prefect", "safetensors"} & set(sys.modules)))
import dyformer
print(dyformer.__file__)
try:
    model.predict(pandas.DataFrame({"node": ["nobody"]}))
except Exception as error:
    print(error)
"""


def lend_machine_code(model: Path) -> None:
    """Put what numba compiled here beside the same files of a package, which has none: it takes half a minute."""
    own = Path(dyformer.__file__).parent
    for file in own.rglob("__pycache__/*.nb?"):
        copy = model / "code" / "dyformer" / file.relative_to(own)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy2(file, copy)


def test_model_loads_in_a_fresh_process_with_the_code_that_it_was_packed_with(
    forecast: tuple[Forecast, bytes], live: PackedRanking, tracker: Tracker, tmp_path: Path
) -> None:
    run = tracker.start_run(dataset="toy", name="DyFormer")
    parts = {"history": tables_of(forecast[0]), "ids": id_table(names()), "vectors": vector_table(), "weights": b"w"}
    with packed_model(record=forecast[1], **parts, live=live) as folder:
        assert not [path for path in folder.rglob("*") if path.suffix in (".pkl", ".pickle", ".pt")]
        assert "torch" not in (folder / "requirements.txt").read_text()
        lend_machine_code(folder)
        assert run.register_model(folder, name="dyformer-toy") == "1"
        assert run.register_model(folder, name="dyformer-toy") == "1"  # one run, one model
    run.finish()
    environment = {**os.environ, "MLFLOW_TRACKING_URI": tracker.uri, "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(EVENT_ROWS[NUM_PACKED][2])],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    probabilities, vector, partners, targets, modules, code, error = done.stdout.splitlines()
    expected = forecast[0].probability(np.array([0, 1]), np.array([3, 2]))
    np.testing.assert_allclose([float(value) for value in probabilities.split()], expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose([float(value) for value in vector.split()], VECTORS_ND[1], rtol=1e-6)
    best = forecast[0].top(3, query_A=np.array([1]))["partner"]
    assert partners.split() == [f"n{partner}" for partner in best]
    more = [*EVENT_ROWS[:NUM_PACKED], ("u1", "new", EVENT_ROWS[NUM_PACKED][2])]
    assert targets.split() == ranking_of(live.fitted, more).rank("u1", k=3).targets
    assert modules == "[]"
    assert "/code/dyformer/" in code
    assert "unknown nodes: nobody" in error
