"""A log that grows by drops: what a retraining does at each, with the tasks called directly and few methods."""

import json
import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlflow
import numpy as np
import pandas as pd
import polars as pl
import pytest

import flows.retrain as retraining
from dyformer.evaluation import promotion
from dyformer.experiments.html_report import html_report
from dyformer.experiments.methods import METHODS
from dyformer.experiments.settings import Experiment
from dyformer.scoring.event_forecaster import EventForecaster
from flows.commands import results
from flows.tasks import start, train
from flows.tasks.complete_windows import make_complete_snapshots
from flows.tasks.drift import read_drift, write_drift
from flows.tasks.evaluation.promote import champion_contender
from flows.tasks.event_state import make_model, read_model
from flows.tasks.ingest import undo_ingest
from flows.tasks.live import current_ranking
from flows.tasks.models import Contender, space_of
from flows.tasks.predict import write_forecasts, write_vectors
from flows.tasks.publishing.champions import rollback, send_rollback
from flows.tasks.publishing.publications import publish, taken_back_line
from flows.tasks.report import read_report, report_page, verdict_of
from flows.tasks.retention import prune_published, pruned
from flows.tasks.snapshots import StepOutOfRange, open_snapshots
from flows.tasks.spaces import read_rotation
from flows.tasks.tracking.projection import project
from storage import removal
from storage.artifacts.artifact import digest, lineage_of, read_table
from storage.bytes import files
from storage.champions import ledger, numbered_after, publications, read_champion, replace_champion
from storage.events.table import read_events
from storage.layout import Layout
from storage.queries import query
from storage.removal import removable
from storage.tracking.marks import due
from storage.tracking.runs import open_tracker, tracking_of
from storage.verification import faults

pytestmark = pytest.mark.usefixtures("few_trees")

METHODS_USED = ("EdgeBank (last)", "L3", "Forecaster without vectors", "DyFormer")
TINY_STAGE = {"epochs": 1, "batches_per_epoch": 1, "validation_batches": 1, "num_targets": 16, "num_positives": 8}
EXPERIMENT = Experiment().changed(
    {
        "model.width": 8,
        "model.num_heads": 2,
        "model.num_layers": 1,
        "model.feed_forward_width": 8,
        "model.num_context": 8,
        "pretrain": None,
        **{f"finetune.{name}": value for name, value in TINY_STAGE.items()},
    }
)
HOUR = 3_600
ROWS_A_DAY = 60


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch, no_plots: None) -> Iterator[list[int]]:
    """Call tasks without a server, leave few methods, draw nothing; list the steps until which models are trained."""
    counted: list[int] = []
    finetune = train.finetune

    def counting(graph: Any, *given: Any, **options: Any) -> Any:
        counted.append(graph.until)
        return finetune(graph, *given, **options)

    monkeypatch.setattr(train, "finetune", counting)
    for name, task in vars(retraining).copy().items():
        if name.endswith("_task") and hasattr(task, "fn"):
            monkeypatch.setattr(retraining, name, task.fn)
    for name in ("show_first", "show_report", "show_tables"):
        monkeypatch.setattr(retraining, name, lambda *given: None)
    every = dict(METHODS)
    for title in METHODS.keys() - set(METHODS_USED):
        del METHODS[title]
    yield counted
    METHODS.clear()
    METHODS.update(every)


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Callable[[Path], Path]) -> Callable[..., Any]:
    """Retrain after a drop of rows: of whole days, or of one at an hour of a day."""
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    empty_database(tmp_path / "store" / "mlflow.db")
    (tmp_path / "in").mkdir()

    def dropped(*rows: str, **options: Any) -> str | None:
        number = len(list((tmp_path / "in").iterdir()))
        if rows:
            (tmp_path / "in" / f"{number:02}.csv").write_text("\n".join(["source,target,time", *rows, ""]))
        reading = {"log": [str(tmp_path / "in")], "window": "1d", "time_unit": "s", "bipartite": False}
        experiment = EXPERIMENT.changed(options.pop("changes", {}))
        return retraining.retrain.fn("mylog", reading, experiment, 0, **options)

    return dropped


def day(number: int) -> list[str]:
    """Rows of a day among three groups, each of whose members writes to two others most of the time."""
    generator, rows = random.Random(number), []
    for index in range(ROWS_A_DAY):
        group, member = generator.randrange(3), generator.randrange(6)
        other = (member + generator.choice((1, 1, 2))) % 6
        rows.append(f"u{group}-{member},u{group}-{other},{24 * HOUR * number + 1_400 * index}")
    return rows


def at(number: int, hour: int) -> str:
    return f"u0-{hour % 6},u1-{hour % 5},{HOUR * (24 * number + hour)}"


def in_numbers(row: str) -> str:
    """The same row with integers for ids."""
    return row.replace("u", "1").replace("-", "0")


def test_a_first_id_of_letters_after_integers_changes_the_kind_of_ids_and_nothing_ends(
    drop: Callable[..., Any], trainings: list[int]
):
    first = read_report(drop(*map(in_numbers, [row for number in range(4) for row in day(number)]), "1,2,345600"))[1]
    assert str(read_table(first["addresses"]["vectors"], "vectors")["id"].dtype) == "Int64"
    second = read_report(drop("anna,1002,345601", *map(in_numbers, day(4)[1:]), "1,2,432000"))[1]
    third = read_report(drop(*map(in_numbers, day(5)[1:]), "1,2,518400"))[1]
    for summary in (second, third):
        for name in ("vectors", "forecasts"):
            assert str(read_table(summary["addresses"][name], name)["id"].dtype) == "String"
    compared, _ = read_drift(third["addresses"]["drift"])
    assert set(compared.filter(metric="vectors")["step"]) == {6}  # numbers and letters, on the nodes of both
    assert (ledger(Layout.from_environment(), "mylog")["num_came"].drop_nulls() > 0).all()
    assert query(Layout.from_environment(), "select count(distinct id) from latest_forecasts where id = 'anna'").item()


def test_each_window_is_trained_evaluated_and_published_for_once_it_is_complete(
    drop: Callable[..., Any], trainings: list[int]
):
    assert drop(*day(0), *day(1)) is None  # one window is complete: the drop is committed, and nothing fails
    first = drop(*day(2), *day(3), at(4, 0))
    assert open_snapshots(read_report(first)[1]["addresses"]["snapshots"]).num_steps == 4
    assert trainings == [2, 3]
    for hour in range(1, 6):  # five drops of the window that has begun change nothing
        assert drop(*[at(4, hour)] * hour) == first
    assert trainings == [2, 3]
    second = drop(*day(4), at(5, 0))
    assert trainings == [2, 3, 4]  # the model until 3 is that of the first run
    summary = read_report(second)[1]
    assert read_table(summary["addresses"]["forecasts"], "forecasts")["step"].unique().to_list() == [6]
    check_ledger(second)
    third = drop(at(7, 0), at(7, 1))  # the window of day 5 has one row, and that of day 6 none
    assert trainings == [2, 3, 4, 5, 6]
    assert read_report(third)[1]["promotion"]["reason"].startswith("step 7 cannot be ranked")
    layout = Layout.from_environment()
    assert publications(layout, "mylog")["step"].to_list() == [5, 6, 8]
    assert ledger(layout, "mylog")["num_came"].is_null().to_list() == [False, False, True]
    client, [run] = ledger_runs(layout)
    points = client.get_metric_history(run.info.run_id, "ledger/precision_at_10")
    assert [point.step for point in points] == [5, 6]
    check_rollback(layout, read_report(second)[1])


def test_a_retraining_as_of_a_time_before_later_complete_windows_changes_nothing(
    drop: Callable[..., Any], trainings: list[int], capsys: pytest.CaptureFixture[str]
):
    report = drop(*[row for number in range(4) for row in day(number)], at(4, 0))
    layout = Layout.from_environment()
    before = publications(layout, "mylog"), read_champion(layout, "mylog"), list(trainings)
    assert drop(as_of="1970-01-04") is None
    assert "later windows than those until 1970-01-04 00:00:00 UTC are complete already" in capsys.readouterr().out
    assert drop(as_of="1970-01-05") == report  # the newest ones
    assert drop(as_of="1970-01-06 12:00") is not None  # as of a time after all rows, one more is complete
    after = publications(layout, "mylog"), read_champion(layout, "mylog"), trainings
    assert before[0].equals(after[0].head(1))
    assert after[0]["step"].to_list() == [5, 6]
    assert after[0]["late"].to_list() == [False, False]
    assert (before[1] == after[1], after[2] == [*before[2], 4]) == (False, True)


def test_the_first_run_shows_forecasts_before_its_training_and_publishes_them_only_if_they_earn_it(
    drop: Callable[..., Any],
    trainings: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    printed: list[pd.DataFrame] = []
    planned: list[str] = []
    layout = Layout.from_environment()

    def show(dataset: str, title: str, rows: Any) -> None:
        assert trainings == []
        assert publications(layout, dataset).is_empty()
        assert (dataset, "not published" in title) == ("mylog", True)
        planned.append(capsys.readouterr().out)
        printed.append(rows)

    monkeypatch.setattr(retraining, "show_first", show)
    monkeypatch.setattr(start.os, "getloadavg", lambda: (0.0, 0.0, 0.0))  # no other programs run
    # As if the log were large; the first forecasts may take half a second.
    for name, value in {"SECONDS_A_LINK": 0.1, "LEAST_PRINTED": 0.0, "SHORTEST": 0.0}.items():
        monkeypatch.setattr(start, name, value)
    monkeypatch.setattr(retraining, "SHORTEST", 0.0)
    summary = read_report(drop(*[row for number in range(4) for row in day(number)], at(4, 0)))[1]
    [rows] = printed
    assert re.search(
        r"mylog: \d+ % of the newest step's links repeat an earlier one: .*\n"
        r"mylog: about \d+ s to go, estimated from \d+ links to learn from: first forecasts",
        planned[0],
    )
    assert trainings == [2, 3]
    without = Contender(title="Forecaster without vectors")
    first = write_forecasts(summary["addresses"]["snapshots"], without)  # stored already
    table = read_table(first, "forecasts")
    assert lineage_of(first).until == 4
    assert rows["probability"].to_list() == table["probability"].sort(descending=True)[:10].to_list()
    champion = summary["promotion"]["champion"]["title"]
    check_published_without_vectors(summary, first)
    published = query(layout, "select distinct method from latest_forecasts")
    assert published["method"].to_list() == [champion]
    # Two trainings of one batch each at .1 s are left out; other stages are about as long as the first forecasts.
    assert re.search(
        r"mylog: about \d+ s to go, estimated from the \d+ s of the first forecasts:"
        r"( (ranking|evaluation|forecasts) \d+ s,)* report 8 s\n",
        capsys.readouterr().out,
    )
    check_plan_of_the_next_run(summary, drop, monkeypatch, capsys)
    assert len(printed) == 1


def check_plan_of_the_next_run(
    summary: dict[str, Any],
    drop: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a champion, whose forecasts are published already, it has no first forecasts."""
    seconds = dict.fromkeys(summary["seconds"], 7.0) | {"train": 200.0, "rank": 30.4}
    before = {"seconds": seconds, "promotion": {"champion": None}}
    monkeypatch.setattr(start, "read_report", lambda report: (None, before))
    drop(*day(4), at(5, 0))
    stages = "training 3 min, ranking 30 s, evaluation 7 s, forecasts 7 s, report 8 s"
    assert f"mylog: about 4 min to go, as in the run before: {stages}" in capsys.readouterr().out.splitlines()


def check_published_without_vectors(summary: dict[str, Any], first: str) -> None:
    """As champion the forecaster without vectors publishes its first forecasts, which are not made again."""
    challenger = Contender(title=summary["challenger"]["title"], models=tuple(summary["challenger"]["models"]))
    champion, before = {"title": "Forecaster without vectors", "models": []}, digest(first)
    found, _ = retraining._published(summary["addresses"]["snapshots"], challenger, {"champion": champion}, 0)
    assert found["forecasts"] == first
    assert digest(first) == before


def test_a_drop_that_is_taken_back_leaves_all_as_it_was_before_it(
    drop: Callable[..., Any], trainings: list[int], capsys: pytest.CaptureFixture[str]
):
    first = drop(*[row for number in range(4) for row in day(number)], at(4, 0))
    layout = Layout.from_environment()
    before = make_complete_snapshots("mylog")
    wrong_report = drop(*[",".join([*row.split(",")[1::-1], row.split(",")[2]]) for row in day(4)], at(5, 0))
    assert query(layout, "select max(step) from latest_forecasts").item() == 6
    assert taken_back_line(layout, "mylog") is None
    assert first_outcome(layout)["table_version"] == 2
    [wrong] = undo_ingest("mylog").files
    assert make_complete_snapshots("mylog") == before
    assert first_outcome(layout)["num_came"] is None  # it was compared with rows that were taken back
    Path(wrong).unlink()
    assert drop() == first
    assert "forecasts published last were made from rows that were taken back" in capsys.readouterr().out
    contender = champion_contender(before)
    assert contender is not None
    vectors = read_report(first)[1]["addresses"]["vectors"]
    assert publish(before, contender, write_forecasts(before, contender), vectors) is not None

    latest = query(layout, "select distinct step, until from latest_forecasts")
    assert latest.rows() == [(5, 4)]
    assert taken_back_line(layout, "mylog") is None
    Path(wrong).write_text("\n".join(["source,target,time", *day(4), at(5, 0), ""]))
    second = drop()
    assert query(layout, "select max(step) from latest_forecasts").item() == 6
    outcome = first_outcome(layout)
    came = num_linked(layout, outcome["forecasts"], [at(4, 0), *day(4)])
    assert (outcome["table_version"], outcome["num_came"]) == (4, came)
    both = [read_report(report)[1]["addresses"]["snapshots"] for report in (wrong_report, second)]
    assert [open_snapshots(address).version for address in both] == [2, 4]
    assert not list(faults(layout, "mylog"))


def first_outcome(layout: Layout) -> dict[str, Any]:
    return ledger(layout, "mylog").row(0, named=True)


def num_linked(layout: Layout, forecasts: str, rows: list[str]) -> int:
    """Count the best ten partners of each node that have one of the rows, by plain sets."""
    came = {tuple(row.split(",")[:2]) for row in rows}
    best = read_table(layout.absolute(forecasts), "forecasts").filter(pl.col("rank") <= 10)
    return sum((row["id"], row["partner_id"]) in came for row in best.iter_rows(named=True))


def check_rollback(layout: Layout, summary: dict[str, Any]) -> None:
    """The registered model with the alias `champion` is the one that is rolled back to, with its forecasts."""
    snapshots = make_complete_snapshots("mylog")
    record, stamp = read_champion(layout, "mylog")
    assert record is not None
    placed = rotated_vectors(summary)
    addresses = {"forecasts": layout.relative(summary["addresses"]["forecasts"]), "vectors": layout.relative(placed)}
    record = {**record, "published": {**record["published"], **addresses, "step": 6}}  # those of the second run
    other = {"title": "L3", "models": [], "identity": "L3", "tests": {}, "published": None}
    assert replace_champion(layout, "mylog", {**record, **other, **numbered_after(record)}, stamp)
    contender = Contender(title="L3")
    vectors = write_vectors(snapshots, summary["addresses"]["model"])
    assert publish(snapshots, contender, write_forecasts(snapshots, contender), vectors) is not None
    model = small_event_forecaster(layout, summary)
    assert rollback("mylog")["title"] == record["title"]
    [address] = due(layout)
    assert project(layout).problems == []
    version = tracking_of(address)["model_version"]
    client, _ = ledger_runs(layout)
    assert str(client.get_model_version_by_alias("dyformer-mylog", "champion").version) == version
    check_newer_keeps_alias(layout, address)
    client.set_registered_model_alias("dyformer-mylog", "champion", version)
    mlflow.set_tracking_uri(layout.tracking_uri)
    served = mlflow.pyfunc.load_model("models:/dyformer-mylog@champion")
    forecasts = read_table(summary["addresses"]["forecasts"], "forecasts").head(20)
    pairs = pd.DataFrame({"source": forecasts["id"].to_list(), "target": forecasts["partner_id"].to_list()})
    np.testing.assert_allclose(served.predict(pairs)["probability"], forecasts["probability"], rtol=0, atol=1e-9)
    table = read_table(placed, "vectors")
    given = served.predict(pd.DataFrame({"node": table["id"].to_list()}))["vector"]
    np.testing.assert_array_equal(np.stack(given.to_list()), np.array(table["vector"].to_list(), dtype=np.float32))
    check_as_of_now(layout, served, str(client.get_model_version("dyformer-mylog", version).description), model)


def small_event_forecaster(layout: Layout, summary: dict[str, Any]) -> str:
    method = EventForecaster(gate_rounds=4, past_rounds=4, new_rounds=4)
    version = lineage_of(summary["addresses"]["forecasts"]).table_version
    return make_model("mylog", version, method=method, layout=layout)


def check_as_of_now(layout: Layout, served: Any, described: str, model: str) -> None:
    """The model that was registered after an event forecaster was made ranks as the live ranking of its version."""
    version = lineage_of(model).table_version
    ranking = current_ranking(layout, "mylog", version, read_model(model))
    source = ranking.ids.sources[0]
    best = ranking.rank(source, k=3)
    now = served.predict(pd.DataFrame({"source": [source]}), params={"events": "[]", "k": 3})
    assert now["target"].tolist() == best.targets
    np.testing.assert_allclose(now["probability"], best.probability_K, rtol=0, atol=1e-9)
    assert f"has the {read_events(layout, 'mylog', version).height:,} events up to" in described


def check_newer_keeps_alias(layout: Layout, rollback: str) -> None:
    """A rollback that is sent after the restored champion published again leaves the alias alone."""
    client, (record, stamp) = open_tracker(layout).client(), read_champion(layout, "mylog")
    assert record is not None
    newer = {**record, "published": {**record["published"], "forecasts": "7_forecasts/newer"}}
    assert replace_champion(layout, "mylog", newer, stamp)
    client.delete_registered_model_alias("dyformer-mylog", "champion")
    send_rollback(open_tracker(layout), rollback)
    assert "champion" not in client.get_registered_model("dyformer-mylog").aliases
    assert replace_champion(layout, "mylog", record, read_champion(layout, "mylog")[1])


def rotated_vectors(summary: dict[str, Any]) -> str:
    """The published vectors of a run, rotated onto those of another model, though such small ones hardly agree."""
    layout, snapshots = Layout.from_environment(), summary["addresses"]["snapshots"]
    champion, others = summary["addresses"]["model"], summary["addresses"]["rankings"][0]
    names = [layout.absolute(name) for name in lineage_of(others).inputs if "/model/" in name]
    other = next(name for name in names if space_of(name) != space_of(champion))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dyformer.scoring.vector_spaces.MIN_LIFT", -1.0)
        placed = write_vectors(snapshots, champion, onto=write_vectors(snapshots, other))
    assert read_rotation(placed) is not None
    return placed


def check_ledger(report: str) -> None:
    """The forecasts of the first run were for step 5, which is complete now: in SQL, MLflow and the page."""
    layout = Layout.from_environment()
    rows = ledger(layout, "mylog")
    assert rows["step"].to_list() == [5, 6]
    assert rows["num_pairs"].is_null().to_list() == [False, True]
    assert rows["num_came"][0] > 0
    client, [run] = ledger_runs(layout)
    [first, _] = rows.to_dicts()
    names = ("precision_at_10", "precision_at_10_low", "precision_at_10_high", "calibration_error", "brier", "num_came")
    assert run.data.metrics == pytest.approx({f"ledger/{name}": first[name] for name in names})
    assert first["calibration_error"] > 0
    assert {item.path for item in client.list_artifacts(run.info.run_id)} == {"ledger.csv"}
    came = f"{first['method']} | {first['num_came']} of {first['num_pairs']}"
    row = f"| 5 | {first['valid_from']:%Y-%m-%d %H:%M} | {came} |"
    assert row in run.data.tags["mlflow.note.content"]
    assert query(layout, "select distinct step from latest_forecasts").rows() == [(6,)]
    with patch("dyformer.experiments.html_report.html_report", wraps=html_report) as made:
        page = report_page(*read_report(report))
    assert made.call_args.kwargs["starts"][5] == first["valid_from"]
    assert "What came of the published forecasts" in page
    assert f"<td>{first['valid_from']}</td>" in page
    method = query(layout, "select distinct method from latest_forecasts").item()
    assert re.search(rf"Forecasts by {method} for \d{{4}}-\d\d-\d\d \d\d:\d\d to \d.* UTC, all links", page)


def ledger_runs(layout: Layout) -> tuple[mlflow.MlflowClient, list[Any]]:
    client = mlflow.MlflowClient(layout.tracking_uri)
    experiment = client.get_experiment_by_name("dyformer-mylog")
    assert experiment is not None
    return client, client.search_runs([experiment.experiment_id], "tags.stage = 'ledger'")


@pytest.fixture
def equal_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all methods cost alike, so that a trained one stays champion where the forecaster without vectors ties."""
    monkeypatch.setattr(promotion, "cost", lambda title: 0)


@pytest.mark.usefixtures("equal_costs")
def test_a_challenger_starts_from_the_champion_and_every_second_from_scratch(
    drop: Callable[..., Any], trainings: list[int]
):
    rule = {"retrain.scratch_every": 2, "promotion.level": 0.9999}  # so that the first champion stays
    reports = [drop(*day(0), *day(1), *day(2), *day(3), at(4, 0), changes=rule)]
    reports += [drop(*day(number), at(number + 1, 0), changes=rule) for number in range(4, 7)]
    champion = read_report(reports[0])[1]["promotion"]["champion"]
    assert champion["title"] == "Forecaster with DyFormer"
    assert [read_report(each)[1]["promotion"]["champion"] for each in reports] == [champion] * 4
    assert [read_report(each)[1]["training"].partition(",")[0] for each in reports] == [
        "trained from scratch",
        "trained from the champion's weights of step 3",
        "trained from scratch",
        "trained from the champion's weights of step 3",
    ]
    # The champion is the older model where it has the step; after the one from scratch the older is trained warm.
    assert trainings == [2, 3, 4, 4, 5, 5, 6]
    check_starts(reports, champion)
    files.remove_folder(reports[-1])  # as after a kill between the promotion and the report
    trainings.clear()
    assert drop(changes=rule) == reports[-1]
    assert trainings == []


def test_trainings_pause_where_vectors_add_nothing_and_the_champion_is_still_compared(
    drop: Callable[..., Any], trainings: list[int], capsys: pytest.CaptureFixture[str]
):
    rule = {"retrain.pause_after": 1, "retrain.pause_every": 3}
    reports = [drop(*day(0), *day(1), *day(2), *day(3), at(4, 0), changes=rule)]
    reports += [drop(*day(number), at(number + 1, 0), changes=rule) for number in range(4, 7)]
    assert capsys.readouterr().out.count("links repeat an earlier one: ") == 2  # without a training nothing is expected
    summaries = [read_report(each)[1] for each in reports]
    assert [each["promotion"]["champion"]["models"] for each in summaries] == [[]] * 4
    assert summaries[0]["promotion"]["vectors"]["difference"][0] <= 0
    assert ["no model was trained" in each["training"] for each in summaries] == [False, True, True, False]
    assert trainings == [2, 3, 5, 6]
    models = [newest_model(each["addresses"]["vectors"]) for each in summaries]
    assert models[0] == models[1] == models[2] != models[3]
    steps = [lineage_of(each["addresses"]["vectors"]).until for each in summaries]
    assert steps == [4, 5, 6, 7]  # the same weights, and what is known by then
    for summary in summaries[1:3]:
        assert summary["promotion"]["num_queries"] >= promotion.MIN_QUERIES  # compared with the baselines
        assert "one of 3 retrainings trains" in summary["promotion"]["note"]
        assert len(summary["addresses"]["rankings"]) == 1
    assert "no model was trained, and no simple method is clearly better" in report_texts(reports[1])
    assert [run.data.tags["stage"] for run in runs_of("mylog")] == ["retrain", "publish", "publish", "retrain"]
    trainings.clear()
    for report in reports[1:]:
        files.remove_folder(report)
    assert drop(changes=rule) == reports[-1]
    assert trainings == []


def runs_of(dataset: str) -> list[Any]:
    """Runs of retrainings in MLflow, the newest last."""
    client = mlflow.MlflowClient(Layout.from_environment().tracking_uri)
    [experiment] = [each for each in client.search_experiments() if each.name == f"dyformer-{dataset}"]
    stages = "tags.stage != 'ledger'"
    return list(client.search_runs([experiment.experiment_id], stages, order_by=["start_time ASC"]))


def report_texts(report: str) -> str:
    return "\n".join(verdict_of(*read_report(report)).sentences)


def check_starts(reports: list[str], champion: dict[str, Any]) -> None:
    """The lineage of each challenger's newest model names the weights that it started from."""
    layout = Layout.from_environment()
    rankings = [read_report(report)[1]["addresses"]["rankings"][0] for report in reports]
    challengers = [layout.absolute(newest_model(address)) for address in rankings]
    starts = [lineage_of(model).settings.get("start") for model in challengers]
    assert starts == [space_of(champion["models"][-1]) if number in (1, 3) else None for number in range(4)]
    assert layout.relative(champion["models"][-1]) in lineage_of(challengers[1]).inputs
    row = ledger(layout, "mylog").row(1, named=True)
    run = mlflow.MlflowClient(layout.tracking_uri).get_run(read_report(reports[1])[1]["tracking"]["run"]).data
    assert run.tags["space_id"] == row["space_id"] == space_of(champion["models"][-1])
    assert run.metrics["published/vector_agreement"] == pytest.approx(row["agreement"])
    assert 0 < row["agreement_of_others"] < row["agreement"] <= 1


def newest_model(ranking: str) -> str:
    """The model of a ranking that was trained on most steps."""
    models = [name for name in lineage_of(ranking).inputs if "/model/" in name]
    layout = Layout.from_environment()
    return max(models, key=lambda name: lineage_of(layout.absolute(name)).until or 0)


def test_windows_too_small_to_calibrate_a_forecast_are_named_before_a_training(
    drop: Callable[..., Any], trainings: list[int]
):
    newcomers = [f"a{n},b{n},{24 * HOUR * n}" for n in range(4, 10)]
    with pytest.raises(StepOutOfRange, match="choose longer windows"):
        drop(*day(0), *day(1), *day(2), *day(3), *newcomers)
    assert trainings == []


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """A local server that collects the records posted to it."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *given: Any) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("DYFORMER_ALARM_WEBHOOK", f"http://127.0.0.1:{server.server_port}/secret-token")
        yield posted
        server.shutdown()


@pytest.mark.usefixtures("equal_costs")
def test_a_quiet_day_raises_an_alarm_once(
    drop: Callable[..., Any], trainings: list[int], webhook: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
):
    days = [row for number in range(6) for row in day(number)]
    first = drop(*days, at(6, 0))
    assert read_report(first)[1]["drift"]["alarms"] == []
    assert webhook == []
    second = drop(at(6, 3), at(7, 0))  # two rows instead of sixty
    check_alarm(second, webhook)
    capsys.readouterr()
    results.drift("mylog", as_json=False)
    assert "no alarm" not in capsys.readouterr().out
    assert drop() == second
    assert write_drift(*measured_of(second)) == read_report(second)[1]["addresses"]["drift"]  # though published
    drop(changes={"drift.alarm_at": 5.0})
    assert len(webhook) == 1  # the step has one alarm, whatever is published, and the command sends none
    third = drop(*day(7), at(8, 0))
    drift, _ = read_drift(read_report(third)[1]["addresses"]["drift"])
    of_step = {step: set(rows["metric"]) for (step,), rows in drift.group_by("step")}
    assert {"probabilities", "vectors"} <= of_step[8]
    assert "calibration" in of_step[8]
    assert "probabilities" not in of_step[7]  # nothing was published before


def measured_of(report: str) -> tuple[str, Experiment]:
    """The snapshots and the settings of a run, of which its drift was measured."""
    return read_report(report)[1]["addresses"]["snapshots"], EXPERIMENT


def check_alarm(report: str, webhook: list[dict[str, Any]]) -> None:
    """The alarm was sent, and MLflow and the page have the drift."""
    assert [alarm["step"] for alarm in webhook] == [7]
    assert any("interactions" in alarm for alarm in webhook[0]["alarms"])
    assert webhook[0]["text"].startswith("mylog, step 7: ")
    assert read_report(report)[1]["drift"]["alarm"] == "sent"
    assert publications(Layout.from_environment(), "mylog")["step"].to_list() == [7, 8]
    assert runs_of("mylog")[-1].data.metrics["drift/interactions"] < -6
    assert "Drift of the log" in report_page(*read_report(report))


NO_WEBHOOKS = (
    ("", "is not set"),
    ("file:///etc/passwd", "http"),
    ("http://127.0.0.1:9/token", "failed"),
    ("http://127.0.0.1:9/token passwd", "InvalidURL"),
)


def test_an_alarm_that_cannot_be_sent_names_no_address(
    drop: Callable[..., Any], trainings: list[int], monkeypatch: pytest.MonkeyPatch
):
    drops = [[row for number in range(6) for row in day(number)] + [at(5, 5), at(6, 1), at(7, 0)]]
    for address, problem in NO_WEBHOOKS:
        monkeypatch.setenv("DYFORMER_ALARM_WEBHOOK", address)
        report = drop(*(drops.pop() if drops else []))
        summary = read_report(report)[1]
        assert summary["drift"]["alarm"].startswith("not sent, because ")
        assert problem in summary["drift"]["alarm"]
        assert "token" not in str(summary)
        assert "passwd" not in str(summary)
        assert not list(Path(Layout.from_environment().root).rglob("alarm.json"))
        files.remove_folder(report)  # as after a kill in the middle of a run


@pytest.mark.usefixtures("equal_costs")
def test_an_alarm_that_could_not_be_sent_is_sent_once_by_a_later_run(
    drop: Callable[..., Any],
    trainings: list[int],
    webhook: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    address = os.environ["DYFORMER_ALARM_WEBHOOK"]
    monkeypatch.setenv("DYFORMER_ALARM_WEBHOOK", "http://127.0.0.1:9/token")
    report = drop(*[row for number in range(6) for row in day(number)], at(5, 5), at(6, 1), at(7, 0))
    assert read_report(report)[1]["drift"]["alarm"].startswith("not sent, because the webhook failed")
    capsys.readouterr()
    assert drop() == report
    assert "alarm not sent, because the webhook failed" in capsys.readouterr().out
    monkeypatch.delenv("DYFORMER_ALARM_WEBHOOK")
    assert drop() == report
    assert "alarm" not in capsys.readouterr().out
    monkeypatch.setenv("DYFORMER_ALARM_WEBHOOK", address)
    assert drop() == report
    assert "alarm sent" in capsys.readouterr().out
    assert drop() == report
    assert "alarm" not in capsys.readouterr().out
    assert [alarm["step"] for alarm in webhook] == [7]
    assert webhook[0]["alarms"] == read_report(report)[1]["drift"]["alarms"]


@pytest.mark.usefixtures("equal_costs")
def test_old_versions_go_and_a_rollback_still_finds_its_weights(
    drop: Callable[..., Any], trainings: list[int], monkeypatch: pytest.MonkeyPatch
):
    first = drop(*day(0), *day(1), *day(2), *day(3), at(4, 0))
    champion = read_report(first)[1]["promotion"]["champion"]
    later = [drop(*day(number), at(number + 1, 0)) for number in range(4, 8)]
    layout = Layout.from_environment()
    before = ledger(layout, "mylog")
    assert removable(layout, "mylog", 2) == []  # all were written today
    monkeypatch.setattr(removal, "YOUNG_SECONDS", 0.0)
    assert removable(layout, "mylog", 2) == []  # a run may read the models of five older steps
    monkeypatch.setattr(removal, "READ_STEPS", 0)
    assert removable(layout, "mylog", 5) == []  # there are five versions of snapshots
    removed = removable(layout, "mylog", 2)
    assert read_report(first)[1]["addresses"]["snapshots"] in removed
    assert not {address for address in removed if "publications" in address or "outcomes" in address}
    assert not {model for model in champion["models"] if model in removed}
    assert prune_published(layout, 5) == ([], [])
    lines, problems = prune_published(layout, 2)
    assert problems == []
    assert lines[0].startswith(f"removed {len(removed)} artifacts of mylog")
    assert pruned("mylog", 2) == [
        lines[0].replace(f"removed {len(removed)} ", "removed 0 "),
        "removed the files and model versions of 0 runs from MLflow; their metrics stay",
    ]
    assert not any(files.find(address) for address in removed)
    assert ledger(layout, "mylog").equals(before)
    assert list(faults(layout)) == []
    check_files_of_runs(layout)
    assert drop() == later[-1]  # nothing is made again
    # A training with another start is another one: the fifth retraining is from scratch, as is its older step's model,
    # and the sixth starts from the champion's weights again, with one of its own.
    assert trainings == [2, 3, 4, 5, 6, 6, 7]
    drop(*day(8), at(9, 0))
    assert trainings == [2, 3, 4, 5, 6, 6, 7, 7, 8]


def check_files_of_runs(layout: Layout) -> None:
    """The two newest runs have their files, and those whose model has an alias; the metrics of all are there."""
    client = mlflow.MlflowClient(layout.tracking_uri)
    [experiment] = [each for each in client.search_experiments() if each.name == "dyformer-mylog"]
    runs = client.search_runs([experiment.experiment_id], "tags.stage = 'retrain'", order_by=["attributes.start_time"])
    assert len(runs) == 5
    assert all(run.data.metrics["finetune/link"] > 0 for run in runs)
    are_empty = [not client.list_artifacts(run.info.run_id) for run in runs]
    named = {client.get_model_version_by_alias("dyformer-mylog", alias).run_id for alias in ("champion", "challenger")}
    expected = [run.info.run_id not in named for run in runs[:3]] + [False, False]
    assert are_empty == expected
