"""The command `benchmark --protocol tgb` on a user's own log: rows, stored results and candidates, tracked runs."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from own_log import READING, own_log

import flows.cli
import flows.commands.benchmark
from dyformer.evaluation import event_splits as splits
from dyformer.evaluation.audit.events import NUM_EVENT_CHECKS
from dyformer.evaluation.event_splits import SPLITS, sampled_negatives, split_events
from dyformer.evaluation.protocols import protocol_of
from dyformer.evaluation.protocols.tgb import log_of
from dyformer.experiments.methods import EVENT_METHODS
from flows.tasks.evaluation.audit import event_checks
from flows.tasks.evaluation.evaluate import Group, Posed, draw, evaluate
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots, open_snapshots
from storage.artifacts.artifact import MANIFEST, lineage_of, read_table
from storage.layout import Layout

COLUMNS = {"method", "split", "visible", "metric", "value", "low", "high", "num_queries", "cpu_seconds"}
OWN = """
import numpy as np


class Constant:
    def fit_events(self, log, training, validation, *, seed):
        with open("fits.txt", "a") as file:
            file.write(f"{seed} ")
        return lambda log, queries: [np.zeros((len(queries), log.num_targets))]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: str, empty_database: Callable[[Path], Path]):
    folder = tmp_path_factory.mktemp("tgb")
    own_log(folder / "mylog.csv")
    (folder / "mine.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DYFORMER_STORAGE", str(folder / "store"))
        environment.setenv("PREFECT_LOGGING_LEVEL", "CRITICAL")
        environment.delenv("MLFLOW_TRACKING_URI", raising=False)
        empty_database(folder / "store" / "mlflow.db")
        environment.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Callable[..., list[dict]]:
    def command(*arguments: str) -> list[dict]:
        own = ("--methods", "pair_recency,event_edgebank_unlimited,mine:Constant")
        reading = [text for name, value in READING.items() for text in (f"--{name.replace('_', '-')}", value)]
        options = [*reading, "--protocol", "tgb", *own, *arguments, "--json", str(folder / "rows.json")]
        with pytest.raises(SystemExit) as ending:
            flows.cli.main(["benchmark", "mylog", "--log", "mylog.csv", *options])
        assert not ending.value.code
        return json.loads((folder / "rows.json").read_text())

    return command


def test_rows_have_every_split_metric_and_visibility_and_a_rerun_reads_them(
    folder: Path, run: Callable[..., list[dict]], capsys: pytest.CaptureFixture[str]
):
    rows = run("--seeds", "2")
    assert {frozenset(COLUMNS - set(row)) for row in rows} == {frozenset()}
    assert len(rows) == 3 * 2 * 2
    assert {row["visible"] for row in rows} == {"strict"}
    assert {row["num_seeds"] for row in rows} == {2}
    assert "visible: strict" in capsys.readouterr().out
    constant = [row for row in rows if row["method"] == "Constant" and row["metric"] == "mrr"]
    num_targets = int(rows[0]["candidates"].split()[1])
    for row in constant:  # nearly (C + 1) / 2, as some events share source and time
        assert row["value"] == pytest.approx(2 / (num_targets + 1), rel=0.02)
        assert row["is_baseline"] is False
        assert row["difference"] < 0
    assert (folder / "fits.txt").read_text() == "0 1 "
    assert run("--seeds", "2") == rows
    assert (folder / "fits.txt").read_text() == "0 1 "
    batches = run("--visible", "batch:200")
    assert {row["visible"] for row in batches} == {"batch:200"}
    assert (folder / "fits.txt").read_text() == "0 1 0 "


def test_a_finished_benchmark_runs_no_flow_until_rows_metrics_or_arguments_are_others(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("flows.commands.benchmark.announced", nullcontext)
    started, honest = [], flows.commands.benchmark._benchmarked
    monkeypatch.setattr(
        "flows.commands.benchmark._benchmarked",
        lambda *given, **more: (started.append(given), honest(*given, **more))[1],
    )

    def printed(*arguments: str, log: str = "mylog.csv") -> str:
        own = ["--log", log, "--source", "user", "--target", "item", "--time", "created_at", "--max-bad", "50%"]
        with pytest.raises(SystemExit):
            flows.cli.main(["benchmark", "again", *own, "--protocol", "tgb", "--methods", "last_partner", *arguments])
        return capsys.readouterr().out.partition("protocol tgb")[2]

    table = printed()
    assert "Last partner" in table
    assert (printed("--json", str(folder / "again.json")), len(started)) == (table, 1)
    assert {row["method"] for row in json.loads((folder / "again.json").read_text())} == {"Last partner"}
    assert printed("--visible", "batch:200") != table
    assert len(started) == 2
    (folder / "later.csv").write_text("created_at,user,item,note\n2024-03-05T10:00:00Z,user-1,item/1,1\n")
    assert printed(log="later.csv") != table
    assert len(started) == 3
    for metrics in (folder / "store").rglob("metrics.parquet"):
        metrics.unlink()
        (metrics.parent / MANIFEST).unlink()
    printed(log="later.csv")
    assert len(started) == 4


def test_each_method_and_seed_has_a_run_and_the_comparison_has_the_rows(folder: Path, run: Callable[..., list[dict]]):
    import mlflow

    rows = run("--seeds", "2")
    client = mlflow.MlflowClient(f"sqlite:///{folder / 'store' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("dyformer-mylog")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    strict = [each for each in runs if each.data.tags.get("visible") == "strict"]
    assert len(strict) == 3 * 2 + 1
    recency = [each for each in strict if each.data.tags["method"] == "Pair recency"]
    for each in recency:
        own = {(row["split"], row["metric"]): row for row in rows if row["method"] == "Pair recency"}
        assert each.data.metrics["test/mrr"] == pytest.approx(own["test", "mrr"]["value"])
        assert each.data.metrics["test/hits_at_10_validation"] == pytest.approx(own["validation", "hits@10"]["value"])
        assert each.data.metrics["test/macro_mrr_low"] == pytest.approx(own["test", "mrr"]["low"])


@pytest.fixture(scope="module")
def snapshots(folder: Path) -> str:
    ingest_log("mylog", {"log": ["mylog.csv"], **READING}, show=lambda text: None)
    return make_snapshots("mylog")


def posed(snapshots: str, seed: int = 0) -> Posed:
    return Posed(snapshots=snapshots, protocol=protocol_of("tgb"), units=SPLITS, seed=seed)


def test_many_targets_are_sampled_once_and_the_ranks_record_them(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(splits, "MAX_TARGETS", 10)
    monkeypatch.setattr(sampled_negatives, "__kwdefaults__", {"num_negatives": 6, "seed": 42})
    log = log_of(open_snapshots(snapshots))
    for address in Path(draw(posed(snapshots)) or "").glob("*"):
        address.unlink()
    negatives = draw(posed(snapshots, seed=3))
    assert negatives is not None
    assert negatives == draw(posed(snapshots))
    drawn = sampled_negatives(log, split_events(log))
    table = read_table(negatives, "negatives")
    for split in SPLITS:
        rows = np.stack(list(table.filter(split=split)["negatives"].to_numpy()))
        np.testing.assert_array_equal(rows, drawn[split])
    ranks = evaluate(posed(snapshots, seed=3), Group({"Recency": EVENT_METHODS["Pair recency"]}))
    assert Layout.from_environment().relative(negatives) in lineage_of(ranks).inputs
    found = read_table(ranks, "ranks")
    assert found["candidates"].unique().to_list() == ["sampled 6"]
    assert found["rank"].is_between(1, 7).all()
    assert found.filter(pl.col("seed") != 3).is_empty()


def test_rows_that_no_window_has_are_events_as_well(folder: Path):
    reading = {**READING, "window": "7d trim 2d 2d"}
    ingest_log("trimmed", {"log": ["mylog.csv"], **reading}, show=lambda text: None)
    method = Group({"Recency": EVENT_METHODS["Pair recency"]})
    before = read_table(evaluate(posed(make_snapshots("trimmed")), method), "ranks")
    (folder / "early.csv").write_bytes(b"".join((folder / "mylog.csv").read_bytes().splitlines(keepends=True)[:20]))
    ingest_log("trimmed", {"log": ["mylog.csv", "early.csv"], **reading}, show=lambda text: None)
    after = read_table(evaluate(posed(make_snapshots("trimmed")), method), "ranks")
    assert after.height != before.height


def test_the_methods_of_events_are_audited_on_the_log(snapshots: str):
    checks = list(event_checks(open_snapshots(snapshots)))
    assert len(checks) == NUM_EVENT_CHECKS
    assert [check for check in checks if not check.passed] == []
    assert set(checks[-1].methods) == set(EVENT_METHODS)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--visible", "all"), "is no visibility"),
        (("--steps", "3"), "leave --steps out"),
        (("--set", "model.width=64"), "model.width has no effect here"),
        (("--set", "graph.max_distance=3"), "graph.max_distance has no effect here"),
        (("--set", "tgb.candidates=all"), "has no setting 'candidates'; it has visible"),
        (("--methods", "l3"), "L3: the tgb protocol evaluates methods that rank candidates as of a moment"),
        (("--epochs", "3"), "--epochs has no effect here"),
        (("--epochs", "3", "--set", "max_epochs=4"), "--epochs and --set max_epochs are the same cap: leave one"),
        (("--protocol", "cost", "--methods", "l3"), "evaluates methods with vectors and stages of a training"),
        (("--methods", "nosuch:Class"), "the module nosuch cannot be imported"),
        (("--protocol", "paper", "--visible", "strict"), "--visible belongs to"),
        (("--experiment", "links", "--visible", "strict"), "leave --protocol and --visible out"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    folder: Path, arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ending:
        flows.cli.main(["benchmark", "other", "--protocol", "tgb", *arguments])
    assert ending.value.code
    assert problem in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (folder / "store" / "2_events" / "dataset=other").exists()
