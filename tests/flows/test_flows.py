"""One whole run, from a user's own raw log to a tracked model and its forecasts, on a real Prefect server."""

import html
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from own_log import own_log
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

import flows.cli
from dyformer.evaluation.drift import drift_texts
from dyformer.evaluation.query_slices import KNOWN
from dyformer.evaluation.rows import METRICS_SCHEMA
from dyformer.evaluation.scored_queries import MIXED
from dyformer.experiments.methods import METHODS, pair_scorers
from flows.service import TAG
from flows.tasks.report import newest_report, promotion_line, read_report, verdict_of
from flows.tasks.tracking.projection import project
from flows.tasks.tracking.retraining import track_run
from storage.artifacts.artifact import read_table
from storage.artifacts.code import code_version
from storage.bytes.files import write_bytes
from storage.layout import Layout
from storage.tracking.marks import unmark
from storage.tracking.runs import open_tracker, tracking_of
from storage.tracking.view import COLUMNS

pytestmark = pytest.mark.usefixtures("few_trees")

SMALL = {
    "pretrain.epochs": 1,
    "pretrain.batches_per_epoch": 2,
    "finetune.epochs": 1,
    "finetune.batches_per_epoch": 2,
    "model.width": 16,
    "model.num_heads": 2,
    "model.num_context": 20,
}
SETTINGS = tuple(text for name, value in SMALL.items() for text in ("--set", f"{name}={value}"))
READING = ("--source", "user", "--target", "item", "--time", "created_at", "--max-bad", "5%")
Run = dict[str, Any]


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        flows.cli.main(list(arguments))
    return int(ending.value.code or 0)


@pytest.fixture(scope="module")
def store(
    server: str, empty_database: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("whole")
    empty_database(folder / "store" / "mlflow.db")
    with pytest.MonkeyPatch.context() as environment:  # only these names: the S3 server sets others meanwhile
        environment.setenv("DYFORMER_STORAGE", str(folder / "store"))
        environment.setenv("PREFECT_LOGGING_LEVEL", "CRITICAL")
        environment.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield folder / "store"


@pytest.fixture(scope="module")
def run(store: Path) -> Run:
    """Content of the file that `dyformer run ... --json FILE` wrote."""
    log, report = own_log(store.parent / "mylog.csv"), store.parent / "out" / "run.json"
    assert command("run", "mylog", "--log", str(log), *READING, *SETTINGS, "--json", str(report)) == 0
    return json.loads(report.read_text())


def test_counts_scores_addresses_and_seconds_are_reported(run: Run):
    counts = {name: value for name, value in run["counts"].items() if name.startswith("num_")}
    assert counts == {
        "num_read": 1530,
        "num_accepted": 1500,
        "num_quarantined": 30,
        "num_dropped": 0,
        "num_duplicates": 0,
        "num_alike": 0,
        "num_comments": 0,
    }
    assert set(run["seconds"]) == {"ingest", "drift", "first_forecasts", "train", "rank", "evaluate", "predict"}
    assert all(seconds >= 0 for seconds in run["seconds"].values())
    for protocol in ("prequential", "paper"):
        rows = [row for row in run["scores"] if (row["method"], row["protocol"]) == ("DyFormer", protocol)]
        assert {row["step"] for row in rows if row["metric"] == "auc"} >= {12, "macro"}
    addresses = run["addresses"]
    for address in (
        addresses["model"],
        addresses["vectors"],
        addresses["forecasts"],
        *addresses["scores"],
        *addresses["rankings"],
    ):
        assert (Path(address) / "manifest.json").is_file()


def test_vectors_and_forecasts_carry_the_ids_of_the_log(run: Run, store: Path):
    text = (store.parent / "mylog.csv").read_text(errors="replace")
    known = set(re.findall(r"^[^,]+,(user-\d+),(item/\d+),\d+$", text, re.MULTILINE))
    ids = {("user", user) for user, _ in known} | {("item", item) for _, item in known}
    vectors = pl.read_parquet(Path(run["addresses"]["vectors"]) / "vectors.parquet")
    assert set(zip(vectors["side"].replace_strict({0: "user", 1: "item"}), vectors["id"], strict=True)) == ids
    assert {len(vector) for vector in vectors["vector"]} == {16}
    assert vectors["step"].unique().to_list() == [12]
    assert vectors["space_id"].n_unique() == 1
    forecasts = pl.read_parquet(Path(run["addresses"]["forecasts"]) / "forecasts.parquet")
    assert set(forecasts.columns) >= {"id", "partner_id", "probability", "rank", "linked_before", "reasons"}
    assert forecasts["step"].unique().to_list() == [13]
    new = pl.read_parquet(Path(run["addresses"]["forecasts"]) / "new.parquet")
    for table in (forecasts, new):
        pairs = table.select(
            user=pl.when(side=0).then("id").otherwise("partner_id"),
            item=pl.when(side=0).then("partner_id").otherwise("id"),
        )
        assert table["linked_before"].to_list() == [pair in known for pair in pairs.iter_rows()]
        best = table.sort("rank").group_by("side", "id", maintain_order=True).agg("rank", "probability")
        assert all(row == list(range(1, len(row) + 1)) for row in best["rank"].to_list())
        assert all(row == sorted(row, reverse=True) for row in best["probability"].to_list())
    assert 0 < forecasts["linked_before"].sum() < len(forecasts)
    assert not new["linked_before"].any()


def test_run_is_tracked_and_its_model_returns_the_ids_of_the_log(run: Run, store: Path):
    import mlflow
    import pandas as pd

    tracked = run["tracking"]
    assert tracked["problem"] is None
    mlflow.set_tracking_uri(tracked["tracker"])
    found = mlflow.MlflowClient(tracked["tracker"]).get_run(tracked["run"])
    assert found.info.status == "FINISHED"
    assert found.data.params["model.width"] == "16"
    assert {"test/auc", "test/macro_auc", "pretrain/link", "pretrain/waiting_fraction"} <= set(found.data.metrics)
    assert {"test/mrr", "test/macro_auc_active", "test/macro_mrr_difference_low"} <= set(found.data.metrics)
    history = mlflow.MlflowClient(tracked["tracker"]).get_metric_history(tracked["run"], "pretrain/link")
    assert [point.step for point in history] == [1]  # tracked during the training, and not again at its end
    model = mlflow.pyfunc.load_model(f"models:/dyformer-mylog/{tracked['model_version']}")
    vectors = model.predict(pd.DataFrame({"node": ["user-0", "item/1"]}))
    stored = pl.read_parquet(Path(run["addresses"]["vectors"]) / "vectors.parquet")
    assert list(vectors["vector"].iloc[0]) == stored.filter(id="user-0")["vector"].item().to_list()
    forecasts = pl.read_parquet(Path(run["addresses"]["forecasts"]) / "forecasts.parquet").filter(side=0)
    pairs = pd.DataFrame({"source": forecasts["id"].to_list(), "target": forecasts["partner_id"].to_list()})
    np.testing.assert_allclose(model.predict(pairs)["probability"], forecasts["probability"], rtol=0, atol=1e-9)
    best = model.predict(pd.DataFrame({"node": ["user-0"]}), params={"k": 3})
    assert best["partner"].tolist() == forecasts.filter(id="user-0").sort("rank")["partner_id"][:3].to_list()


def test_outcome_of_the_promotion_is_printed_reported_and_tracked(run: Run, store: Path):
    import mlflow

    outcome, tracked = run["promotion"], run["tracking"]
    title = outcome["champion"]["title"]
    assert outcome["compared"] is not None
    assert outcome["num_queries"] > 20
    found = mlflow.MlflowClient(tracked["tracker"]).get_run(tracked["run"]).data
    expected = {"promoted": str(outcome["promoted"]), "promotion_reason": outcome["reason"], "champion": title}
    assert expected.items() <= found.tags.items()
    names = ("difference_low", "difference", "difference_high")
    values = dict(zip(names, outcome["difference"], strict=True))
    values |= {"num_queries": outcome["num_queries"], "level": outcome["level"]}
    assert {name: found.metrics[f"promotion/{name}"] for name in values} == pytest.approx(values)
    champion = store / "5_checkpoints" / "champion" / "dataset=mylog" / "champion.json"
    record = json.loads(champion.read_text())["record"]
    assert (record["title"], record["step"]) == (title, 12)
    models = [str(store / model) for model in record["models"]]
    assert run["addresses"]["model"] == (models or [run["addresses"]["model"]])[-1]
    assert ("note" in outcome) is (not models)
    with get_client(sync_client=True) as client:
        (summary,) = [found for found in client.read_artifacts() if found.key == "summary-mylog"]
    sentences = verdict_of(*read_report(newest_report("mylog"))).sentences
    assert title in sentences[0]
    assert all(sentence in str(summary.data) for sentence in sentences)
    assert summary.description == sentences[0]


def test_a_retraining_is_one_run_with_the_metrics_of_all_methods_and_a_description(
    run: Run, store: Path, capsys: pytest.CaptureFixture[str]
):
    import mlflow

    tracked = run["tracking"]
    client = mlflow.MlflowClient(tracked["tracker"])
    is_whole = "tags.stage = 'retrain' and tags.protocol = 'prequential, paper, forecasts'"
    (found,) = client.search_runs([client.get_run(tracked["run"]).info.experiment_id], is_whole)
    assert (found.info.run_id, found.info.run_name) == (tracked["run"], "mylog v1 step 12")
    for title, name in (("L3", "L3"), ("EdgeBank (ever)", "EdgeBank ever")):
        for metric in ("auc", "mrr"):
            part = {"auc": ("paper", "random", "all"), "mrr": ("prequential", MIXED, KNOWN)}[metric]
            (value,) = [
                row["value"]
                for row in run["scores"]
                if (row["method"], row["metric"], row["step"]) == (title, metric, 12)
                and (row["protocol"], row["family"], row["slice"]) == part
            ]
            assert found.data.metrics[f"baseline/{metric}/{name}"] == pytest.approx(value)
    assert not [name for name in found.data.metrics if re.match(r"baseline/.*/Forecaster", name)]
    assert len([name for name in found.data.metrics if name.startswith("test/")]) < 60  # MLflow draws a chart for each
    description = found.data.tags["mlflow.note.content"]
    assert all(sentence in description for sentence in verdict_of(*read_report(newest_report("mylog"))).sentences)
    assert "| method | MRR" in description
    has = {"tags": found.data.tags, "metrics": found.data.metrics}
    for kind, name in (column.split(".", 1) for column in COLUMNS):
        assert name.strip("`") in has[kind], f"the list of runs has an empty column {name}"
    assert re.fullmatch(r"[+-]\d\.\d{3} \[[+-]\d\.\d{3}, [+-]\d\.\d{3}\]", found.data.tags["difference"])
    assert f"{found.data.metrics['test/macro_mrr_difference']:+.3f} " in found.data.tags["difference"]
    version = client.get_model_version("dyformer-mylog", tracked["model_version"])
    assert version.description == description
    assert version.tags["forecasts"] == run["addresses"]["forecasts"]
    assert version.tags["method"] == read_table(run["addresses"]["forecasts"], "forecasts")["method"][0]
    assert "@champion" in str(client.get_registered_model("dyformer-mylog").description)
    assert command("compare", tracked["run"][:12], "mylog v1 step 12", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["kind"] for row in rows} == {"metric"}  # a run has the settings of itself
    assert rows[0].keys() == {"kind", "name", f"mylog v1 step 12 ({tracked['run'][:8]})"}
    assert command("compare", "nothing") == 1
    assert "mylog v1 step 12" in capsys.readouterr().err


def test_reliability_of_the_published_method_is_that_of_a_forecast_of_the_newest_step(run: Run, store: Path):
    import mlflow

    title = run["promotion"]["champion"]["title"]
    rows = [row for row in run["scores"] if row["protocol"] == "forecasts"]
    assert {(row["method"], row["step"]) for row in rows} == {(title, 12)}
    (file,) = (store / "7_forecasts" / "backtests").rglob("backtest.parquet")
    pairs = pl.read_parquet(file)
    probability_P, came_P = pairs["probability"].to_numpy(), pairs["came"].to_numpy()
    bins = np.clip(np.ceil(probability_P * 15) - 1, 0, 14)
    parts = [(bins == k) for k in range(15)]
    error = sum(abs(probability_P[part].sum() - came_P[part].sum()) for part in parts) / len(pairs)
    value = {row["metric"]: row for row in rows if row["slice"] == "all"}
    assert value["calibration_error"]["value"] == pytest.approx(error)
    assert value["calibration_error"]["num_pairs"] == len(pairs)
    assert value["probability_sum"]["value"] == pytest.approx(probability_P.sum() / came_P.sum())
    assert value["probability_sum"]["num_pairs"] == came_P.sum()
    found = mlflow.MlflowClient(run["tracking"]["tracker"]).get_run(run["tracking"]["run"]).data.metrics
    assert found["published/calibration_error"] == pytest.approx(error)
    assert found["published/probability_sum_num_pairs"] == came_P.sum()


def test_report_is_one_page_with_plots_and_forecasts_and_is_tracked(
    run: Run, store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    import mlflow

    assert run["code"] == code_version()
    monkeypatch.setattr("flows.tasks.report.code_version", lambda: "the code that draws")
    file = store.parent / "pages" / "mylog.html"
    assert command("report", "mylog", "--out", str(file)) == 0
    assert str(file) in capsys.readouterr().out
    page = file.read_text()
    best = pl.read_parquet(Path(run["addresses"]["forecasts"]) / "forecasts.parquet").sort("score").tail(1)
    reliability = "reliability of the probabilities on step 12, which this forecast had not read: "
    texts = (promotion_line(run["promotion"]), reliability, "1,500 accepted")
    for text in (best["id"].item(), best["partner_id"].item(), run["code"], *texts, *run["verdict"]):
        assert re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text)) in page
    for plot in ("AUC of each method by family", "Precision of the ten best", "AUC of each step, all links"):
        assert f'alt="{plot}' in page
    client = mlflow.MlflowClient(run["tracking"]["tracker"])
    for plot in ("plots/auc_of_each_method_by_family_of_negatives.png", "plots/drift_of_each_step.png"):
        picture = client.download_artifacts(run["tracking"]["run"], plot, str(store.parent))
        assert Path(picture).read_bytes().startswith(b"\x89PNG")
    found = client.download_artifacts(run["tracking"]["run"], "report.html", str(store.parent))
    assert Path(found).read_text() == page
    drift = client.download_artifacts(run["tracking"]["run"], "drift.csv", str(store.parent))
    assert re.search(r"^12,repeats,[\d.]+ %,[\d.]+ %", Path(drift).read_text(), re.MULTILINE)
    assert command("report", "other") == 1
    assert "no events of 'other'" in capsys.readouterr().err


@pytest.mark.usefixtures("no_plots")  # the plots of the run are tested above
def test_another_evaluation_of_the_same_training_replaces_the_one_before(run: Run, store: Path):
    """As after late rows of the newest step, or by another rule of promotion."""
    import mlflow

    rows, summary = read_report(newest_report("mylog"))
    tracked, tracker = run["tracking"], open_tracker(Layout.from_environment())
    client = mlflow.MlflowClient(tracked["tracker"])

    def track(rows: pl.DataFrame, promotion: dict[str, Any]) -> dict[str, float]:
        outcome = track_run(tracker, rows, {**summary, "promotion": promotion})
        assert (outcome["run"], outcome["model_version"]) == (tracked["run"], tracked["model_version"])
        return client.get_run(tracked["run"]).data.metrics

    before = client.get_run(tracked["run"]).data.metrics
    changed = track(
        rows.with_columns(pl.col("value") / 2), {**summary["promotion"], "difference": [0.1, 0.2, 0.3], "level": 0.75}
    )
    halved = {
        name: value / 2
        for name, value in before.items()
        if name in ("test/auc", "test/mrr", "baseline/mrr/L3", "published/calibration_error")
    }
    assert len(halved) == 4
    assert {name: changed[name] for name in halved} == pytest.approx(halved)
    assert (changed["promotion/difference"], changed["promotion/level"]) == (0.2, 0.75)
    untested = track(rows, {**summary["promotion"], "difference": None, "num_queries": None, "level": None})
    of_a_test = {name for name in before if name.startswith("promotion/")}
    assert len(of_a_test) == 5
    assert {name for name, value in untested.items() if math.isnan(value)} == of_a_test
    assert track(rows, summary["promotion"]) == before
    assert client.get_run(tracked["run"]).data.tags["code"] == summary["code"] == run["code"]
    track_run(tracker, rows, {**summary, "code": "of an earlier version"})
    assert client.get_run(tracked["run"]).data.tags["code"] == "of an earlier version"
    track(rows, summary["promotion"])


def test_a_rerun_prints_the_verdict_and_then_the_ranking_and_the_papers_tables(
    run: Run, store: Path, capsys: pytest.CaptureFixture[str]
):
    log = str(store.parent / "mylog.csv")
    assert command("run", "mylog", "--log", log, *READING, *SETTINGS) == 0
    printed = capsys.readouterr().out
    marks = (
        *run["verdict"],
        "drift: ",
        "mylog, prequential protocol",
        "The best baseline in MRR is",
        "mylog, paper protocol",
        "tracked: ",
    )
    found = [printed.index(mark) for mark in marks]
    assert found == sorted(found)
    assert not re.search(r"\d\.\d+ % interval", printed)  # the level of a test
    assert "17 more: --table prints all" in printed
    assert "EdgeBank (ever)" not in printed  # the last row
    assert command("run", "mylog", "--log", log, "--table", *READING, *SETTINGS) == 0
    whole = capsys.readouterr().out
    assert "EdgeBank (ever)" in whole
    assert "more: --table" not in whole


def test_next_commands_of_a_run_succeed(run: Run, store: Path, capsys: pytest.CaptureFixture[str]):
    log = str(store.parent / "mylog.csv")
    assert command("run", "mylog", "--log", log, *READING, *SETTINGS) == 0
    lines = capsys.readouterr().out.partition("next:\n")[2].splitlines()
    assert len(lines) == 5
    assert "from latest_forecasts where dataset = 'mylog'" in lines[0]
    assert "from latest_vectors where dataset = 'mylog'" in lines[1]
    for line in lines[:3]:
        program, *arguments = shlex.split(line)
        assert program == "dyformer"
        assert command(*arguments) == 0
        assert "train" not in capsys.readouterr().out  # `predict` uses the model of the run
    assert "--set" not in lines[2]  # settings would train a challenger, and leave the champion out
    assert shlex.split(lines[3]) == ["dyformer", "ui"]  # which shows the runs of the tracker of this store
    assert run["tracking"]["tracker"] == Layout.from_environment().tracking_database
    page = f"experiments/{run['tracking']['experiment']}/runs/{run['tracking']['run']}?workflowType=machine_learning"
    assert shlex.split(lines[4]) == ["open", f"http://127.0.0.1:5000/#/{page}"]


def files(store: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}


def test_the_report_and_the_drift_of_a_run_import_no_method(run: Run, store: Path):
    code = """
import sys
import flows.tasks.drift, flows.tasks.report as report
import flows.commands.results, flows.commands.runs, flows.console, flows.tasks.complete_windows, flows.tasks.finished
import flows.tasks.ingest, flows.tasks.tracking.projection
assert not {"matplotlib", "scipy.stats"} & {*sys.modules}
import dyformer.experiments.html_report as html_report
from dyformer.experiments.settings import Experiment
html_report.html_report = lambda *values, **named: sys.modules.copy()
loaded = report.report_page(*report.read_report(report.newest_report(sys.argv[1])))
flows.tasks.drift.measured(sys.argv[1], Experiment())
assert not {"torch", "sklearn", "dyformer.experiments.methods"} & {*loaded, *sys.modules}
"""
    command, environment = [sys.executable, "-c", code, run["dataset"]], {**os.environ, "DYFORMER_STORAGE": str(store)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("run", "no_plots")
def test_a_store_that_was_moved_reports_and_publishes_from_its_new_root(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    moved, log = tmp_path / "moved", str(store.parent / "mylog.csv")
    shutil.copytree(store, moved)
    aside = store.rename(store.with_name("aside"))  # its old place is gone
    try:
        monkeypatch.setenv("DYFORMER_STORAGE", str(moved))
        assert command("report", "mylog", "--out", str(tmp_path / "report.html")) == 0
        assert "Most probable links" in (tmp_path / "report.html").read_text()
        capsys.readouterr()
        assert command("run", "mylog", "--log", log, *READING, *SETTINGS, "--json", str(tmp_path / "run.json")) == 0
        assert "next:" in capsys.readouterr().out
        assert command("predict", "mylog", *SETTINGS) == 0
        assert not store.exists()  # nothing was written there
    finally:
        aside.rename(store)
    again = json.loads((tmp_path / "run.json").read_text())
    addresses = [again["counts"]["snapshots"], *again["addresses"]["scores"], again["addresses"]["forecasts"]]
    assert all(address.startswith(f"{moved}/") and Path(address, "manifest.json").is_file() for address in addresses)


# Tests of another worker run other flows on the same server, an audit of their own "mylog" among them.
OF_MYLOG = FlowRunFilter(name=FlowRunFilterName(like_="retrain mylog"))


def num_flow_runs() -> int:
    with get_client(sync_client=True) as client:
        return len(client.read_flow_runs(flow_run_filter=OF_MYLOG))


@pytest.mark.parametrize(("name", "code"), [("run", 0), ("retrain", 3)])
def test_second_run_changes_nothing(name: str, code: int, run: Run, store: Path, capsys: pytest.CaptureFixture[str]):
    before, num_before = files(store), num_flow_runs()
    log = str(store.parent / "mylog.csv")
    assert command(name, "mylog", "--log", log, *READING, *SETTINGS) == code
    assert "no new rows" in capsys.readouterr().out
    assert (files(store), num_flow_runs()) == (before, num_before)


def test_flows_write_their_table_and_summary_to_prefect(run: Run):
    with get_client(sync_client=True) as client:
        artifacts = client.read_artifacts()
        runs = client.read_flow_runs(flow_run_filter=OF_MYLOG)
        tasks = [task_run.name for task_run in client.read_task_runs(flow_run_filter=OF_MYLOG)]
    assert {"rankings-mylog", "scores-mylog", "summary-mylog"} <= {artifact.key for artifact in artifacts}
    drift = drift_texts(read_table(run["addresses"]["drift"], "drift").filter(pl.col("step") == 12))
    assert "%" in drift["value"][-1]
    assert drift.to_dicts() in [json.loads(str(each.data)) for each in artifacts if each.key == "drift-mylog"]
    assert "retrain mylog" in {flow_run.name for flow_run in runs}
    assert all(TAG in flow_run.tags for flow_run in runs)  # by which a dead one is found
    others = len(pair_scorers()) - 1
    once = ("ingest mylog", "snapshots of mylog", "train until step 11", "DyFormer on step 12, paper", "vectors")
    once += (f"EdgeBank (ever) and {others} more on step 12, prequential", "write report")
    assert [name for name in once if tasks.count(name) != 1] == []


@pytest.mark.usefixtures("no_plots")
def test_benchmark_writes_one_row_for_each_metric(run: Run, store: Path, capsys: pytest.CaptureFixture[str]):
    report = store.parent / "benchmark.json"
    assert command("benchmark", "mylog", "--steps", "11-12", *SETTINGS, "--json", str(report)) == 0
    rows = json.loads(report.read_text())
    keys = ["dataset", "protocol", "method", "seed", "step", "metric", "family", "slice", "value"]
    assert all(list(row) == list(METRICS_SCHEMA) and list(row)[: len(keys)] == keys for row in rows)
    assert {row["step"] for row in rows} == {11, 12, "micro", "macro"}
    methods = {row["method"] for row in rows}
    assert {"DyFormer", "DyFormer without pre-training", "EdgeBank (ever)", "Preferential attachment", "L3"} <= methods
    assert len({tuple(row[key] for key in keys[: keys.index("value")]) for row in rows}) == len(rows)
    assert "running on the Prefect server at http://127.0.0.1" in capsys.readouterr().out


def test_prequential_benchmark_ranks_all_methods_on_the_same_queries(
    run: Run, store: Path, capsys: pytest.CaptureFixture[str]
):
    report = store.parent / "prequential.json"
    arguments = ("mylog", "--protocol", "prequential", "--steps", "11-12", *SETTINGS)
    methods = ("--methods", "dyformer,l3,contact_recency,logistic")
    assert command("benchmark", *arguments, *methods, "--json", str(report)) == 0
    rows = [row for row in json.loads(report.read_text()) if row["metric"] == "mrr" and row["family"] == "mixed"]
    methods = {"DyFormer", "Forecaster with DyFormer", "L3", "Contact recency", "Logistic regression on pair features"}
    assert {row["method"] for row in rows} == methods
    assert {row["step"] for row in rows} == {11, 12, "micro", "macro"}
    assert {row["protocol"] for row in rows} == {"prequential"}
    printed = capsys.readouterr().out
    assert "mylog, prequential protocol: mean over 2 steps" in printed
    assert "The best baseline in MRR is " in printed
    assert "precision@10" in printed
    assert "The first stage retrieves " in printed
    before = sorted(path for path in store.rglob("*.parquet"))
    out = store.parent / "tables"
    assert command("benchmark", *arguments, "--methods", "dyformer,l3,contact_recency,logistic", "--out", str(out)) == 0
    assert "Contact recency & " in (out / "prequential-mylog-known.tex").read_text()
    assert sorted(path for path in store.rglob("*.parquet")) == before  # nothing is computed twice


def test_forecasts_benchmark_compares_published_pairs_with_links(
    run: Run, store: Path, capsys: pytest.CaptureFixture[str]
):
    report = store.parent / "forecasts.json"
    arguments = ("benchmark", "mylog", *SETTINGS, "--protocol", "forecasts")
    arguments += ("--steps", "12", "--methods", "dyformer,contact_recency")
    assert command(*arguments, "--json", str(report)) == 0
    rows = json.loads(report.read_text())
    assert {row["protocol"] for row in rows} == {"forecasts"}
    assert {row["method"] for row in rows} == {"Forecaster with DyFormer", "Contact recency"}
    assert {"precision_at_10", "brier", "calibration_error", "probability_sum"} <= {row["metric"] for row in rows}
    printed = capsys.readouterr().out
    assert "mylog, forecasts that would have been published" in printed
    assert "difference to the best baseline, Contact recency" in printed
    before = sorted(store.rglob("*.parquet"))
    assert command(*arguments) == 0
    assert sorted(store.rglob("*.parquet")) == before  # nothing is computed twice
    assert command(*arguments[:-3], "3", *arguments[-2:]) == 1
    assert "mylog: 3 cannot be evaluated; steps 4 to 12 can" in capsys.readouterr().err


def test_live_update_benchmark_ranks_the_links_of_each_week(run: Run, store: Path, capsys: pytest.CaptureFixture[str]):
    report = store.parent / "live.json"
    arguments = ("benchmark", "mylog", "--protocol", "live-update", "--methods", "l3,contact_recency")
    assert command(*arguments, "--json", str(report)) == 0
    rows = json.loads(report.read_text())
    assert {row["method"] for row in rows} == {"L3", "Contact recency"}
    assert {row["protocol"] for row in rows} == {"live-update"}
    assert "ROLAND's live-update protocol" in capsys.readouterr().out
    assert command(*arguments, "--steps", "3-4") == 1
    assert "leave --steps out" in capsys.readouterr().err
    assert command("benchmark", "mylog", "--protocol", "live-update", "--methods", "dyformer") == 1
    assert "methods that score pairs" in capsys.readouterr().err


@pytest.mark.usefixtures("no_plots")
def test_forecasts_that_a_repair_removed_are_made_again_by_the_next_run(
    run: Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    monkeypatch.setenv("DYFORMER_STORAGE", str(copy))
    removed = copy / Path(run["addresses"]["forecasts"]).relative_to(store)
    before = (removed / "forecasts.parquet").read_bytes()
    shutil.rmtree(removed)
    layout = Layout(str(copy))
    report = newest_report("mylog")
    unmark(report)
    assert "there is no finished artifact" in project(layout).problems[0]
    assert tracking_of(report)["problem"]  # it is not tried again and again
    log = str(store.parent / "mylog.csv")
    assert command("retrain", "mylog", "--log", log, *READING, *SETTINGS) == 0
    assert (removed / "forecasts.parquet").read_bytes() == before
    assert tracking_of(report)["problem"] is None
    assert command("retrain", "mylog", "--log", log, *READING, *SETTINGS) == 3  # nothing is left to do


@pytest.fixture
def few_methods() -> Iterator[None]:
    """Leave four methods, and restore all in their order."""
    every = dict(METHODS)
    for title in METHODS.keys() - {"DyFormer", "L3", "Contact recency", "Forecaster without vectors"}:
        del METHODS[title]
    yield
    METHODS.clear()
    METHODS.update(every)


@pytest.mark.usefixtures("few_methods", "no_plots")  # addresses are tested, not methods
def test_a_whole_run_lives_in_an_object_store(
    server: str,
    s3_bucket: str,
    empty_database: Callable[[Path], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    import mlflow

    root, log = f"{s3_bucket}/{tmp_path.name}/store", f"{s3_bucket}/{tmp_path.name}/mylog.csv"
    monkeypatch.setenv("DYFORMER_STORAGE", root)
    monkeypatch.setenv("DYFORMER_STATE", str(tmp_path / "state"))
    empty_database(tmp_path / "state" / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_bytes(log, own_log(tmp_path / "mylog.csv", num_rows=600, repeats=1).read_bytes())
    arguments = ("mylog", "--log", log, *READING, *SETTINGS)
    assert command("run", *arguments, "--json", str(tmp_path / "run.json")) == 0
    run = json.loads((tmp_path / "run.json").read_text())
    assert all(address.startswith(f"{root}/") for address in (run["report"], run["addresses"]["model"]))
    assert read_table(run["addresses"]["forecasts"], "forecasts")["step"].unique().to_list() == [13]
    assert command("report", "mylog", "--out", str(tmp_path / "mylog.html")) == 0
    assert "mylog, prequential protocol" in (tmp_path / "mylog.html").read_text()
    assert run["tracking"]["problem"] is None
    tracked = mlflow.MlflowClient(run["tracking"]["tracker"]).get_run(run["tracking"]["run"])
    assert str(tracked.info.artifact_uri).startswith(f"{root}/mlflow/")
    state = sorted(path.name for path in (tmp_path / "state").iterdir())
    assert state == ["copies", "locks", "mlflow.db", "mlflow.db.lock"]
    assert command("retrain", *arguments) == 3


SCRIPT = """
from prefect import flow, task

from flows.stages import ingest

@task
def one():
    return 1

@flow
def two():
    return one()

two()
"""


def test_process_that_ran_a_flow_ends_without_output(server: str, tmp_path: Path):
    (tmp_path / "two.py").write_text(SCRIPT)
    environment = {**os.environ, "PREFECT_API_URL": server, "PREFECT_LOGGING_LEVEL": "CRITICAL"}
    command = [sys.executable, str(tmp_path / "two.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
