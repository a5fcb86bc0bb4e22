"""What the champion publishes: the way back to an earlier champion, the ledger, and the views of the newest."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from published import latest
from test_promote import champion_skill, contender_of, grown, named, promoted, record_of, rows_of, snapshots  # noqa: F401

from dyformer.experiments.settings import Experiment
from flows.cli import main
from flows.ending import NOTHING_TO_DO
from flows.tasks.complete_windows import complete_until, later_windows, make_complete_snapshots
from flows.tasks.finished import planned_report
from flows.tasks.ingest import ingest_log, undo_ingest
from flows.tasks.models import Contender
from flows.tasks.predict import write_forecasts, write_vectors
from flows.tasks.publishing.champions import rollback
from flows.tasks.publishing.ledger import send_ledger, write_outcomes
from flows.tasks.publishing.publications import is_late, publish
from flows.tasks.snapshots import StepOutOfRange, make_snapshots, open_snapshots
from flows.tasks.tracking.retraining import aliases_of
from storage.artifacts.artifact import digest, read_bytes, read_table, write_artifact
from storage.artifacts.made import planned
from storage.bytes import files
from storage.champions import (
    champion_problems,
    champions,
    complete_rows,
    ledger,
    outcomes,
    publications,
)
from storage.layout import FORECAST, Layout
from storage.queries import query
from storage.tracking.runs import open_tracker
from storage.verification import faults, repaired

pytestmark = pytest.mark.usefixtures("few_trees")

L3 = Contender(title="L3")


def layout() -> Layout:
    return Layout.from_environment()


def sql(statement: str) -> list[tuple[Any, ...]]:
    return query(layout(), statement).rows()


@pytest.fixture
def three(snapshots: str, tmp_path: Path, champion_skill: Callable) -> list[str]:  # noqa: F811
    """Snapshots on which three champions followed each other: weights, L3, other weights."""
    champion_skill(1.0)
    promoted(snapshots, contender_of(snapshots, 1.0), 5.0)
    second = grown(tmp_path, "second", rows_of(6))
    promoted(second, contender_of(second, 2.0), 1.0, {"L3": 9.0})
    third = grown(tmp_path, "third", rows_of(7))
    promoted(third, contender_of(third, 3.0), 9.0, {"L3": 1.0})
    return [snapshots, second, third]


def test_champions_are_listed_with_reason_interval_and_version(three: list[str]):
    rows = champions(layout(), "mylog")
    assert rows["number"].to_list() == [1, 2, 3]
    assert rows["title"].to_list() == ["Forecaster with DyFormer", "L3", "Forecaster with DyFormer"]
    assert rows["step"].to_list() == [5, 6, 7]
    assert rows["version"].to_list() == [1, 2, 2]  # of the newest row that the champion was trained on
    assert rows["metric"].to_list() == ["mrr"] * 3
    assert all(rows["reason"].str.len_chars() > 10)
    assert rows.filter(number=3).select("low", "difference", "high").row(0) == tuple(record_of()["difference"])
    assert rows["since"].is_sorted()
    assert rows.schema["since"] == publications(layout(), "mylog").schema["published_at"]
    assert champion_problems(layout(), "mylog") == (None, None)


def test_rollback_restores_the_champion_before_or_any_other(three: list[str]):
    before = record_of()
    first, third = before["earlier"][0], {name: before[name] for name in ("title", "models", "identity")}
    assert rollback("mylog")["title"] == "L3"
    assert champions(layout(), "mylog")["number"].to_list() == [1, 2, 3, 4]
    assert "champion 3 (Forecaster with DyFormer) was rolled back to champion 2" in record_of()["reason"]
    assert rollback("mylog", 1)["models"] == first["models"] == record_of()["models"]
    assert rollback("mylog", 3)["identity"] == third["identity"]
    assert champions(layout(), "mylog")["title"].to_list()[3:] == [
        "L3",
        "Forecaster with DyFormer",
        "Forecaster with DyFormer",
    ]


def test_a_rolled_back_champion_does_not_win_the_same_comparison_again(three: list[str], tmp_path: Path):
    rollback("mylog")
    num_tests = record_of()["num_tests"]
    again = promoted(three[2], contender_of(three[2], 3.0), 9.0, {"L3": 1.0})
    assert (again["promoted"], again["champion"]) == (False, {"title": "L3", "models": []})
    assert "was rolled back" in again["reason"]
    assert (record_of()["title"], record_of()["num_tests"]) == ("L3", num_tests)
    later = grown(tmp_path, "later", rows_of(8))
    contender = contender_of(later, 4.0)
    assert promoted(later, contender, 9.0, {"L3": 1.0})["champion"] == named(contender)  # another comparison
    assert champions(layout(), "mylog")["number"].to_list() == [1, 2, 3, 4, 5]


def test_tests_against_a_champion_are_not_repeated_after_a_rollback(three: list[str]):
    tests = set(record_of()["earlier"][1]["tests"])
    rollback("mylog", 2)
    assert tests < set(record_of()["tests"])


def test_what_cannot_be_rolled_back_to_is_named(snapshots: str, three: list[str]):  # noqa: F811
    with pytest.raises(ValueError, match="no earlier champion 9: expected one of 1, 2"):
        rollback("mylog", 9)
    for model in record_of()["earlier"][0]["models"]:
        files.remove_folder(layout().absolute(model))
    before = record_of()
    with pytest.raises(ValueError, match="weights are missing"):
        rollback("mylog", 1)
    assert record_of() == before


def test_a_first_champion_has_none_before_it(snapshots: str):  # noqa: F811
    promoted(snapshots, contender_of(snapshots, 1.0), 5.0)
    with pytest.raises(ValueError, match="has no earlier champion"):
        rollback("mylog")


# Publications and the ledger, by a champion without weights.


def published_by_l3(snapshots: str) -> str:  # noqa: F811
    """Make L3 champion, if there is none, and publish its forecasts of the next step."""
    if not champions(layout(), "mylog").height:
        promoted(snapshots, contender_of(snapshots, 1.0), 0.0, {"L3": 9.0})
    forecasts = write_forecasts(snapshots, L3)
    assert publish(snapshots, L3, forecasts, None) is not None
    return forecasts


def test_forecasts_of_the_champion_alone_are_published_and_once(snapshots: str):  # noqa: F811
    assert publish(snapshots, L3, write_forecasts(snapshots, L3), None) is None  # there is no champion
    forecasts = published_by_l3(snapshots)
    assert published_by_l3(snapshots) == forecasts
    [row] = publications(layout(), "mylog").rows()
    assert row[:11] == (1, 1, "L3", 6, 60, layout().relative(forecasts), None, None, None, None, None)
    assert row[12:] == (None, None, False)  # the log has integer steps
    assert abs(row[11] - datetime.now(UTC).replace(tzinfo=None)) < timedelta(minutes=5)
    assert publish(snapshots, Contender(title="EdgeBank (last)"), forecasts, None) is None
    assert latest(layout(), "mylog") == {"forecasts": forecasts}


def test_what_was_published_stays_when_other_code_makes_it_anew(
    snapshots: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
):
    first = published_by_l3(snapshots)
    before = digest(first), publications(layout(), "mylog").to_dicts()
    monkeypatch.setattr("flows.tasks.snapshots.code_digest", lambda *modules: "other code")
    second = published_by_l3(snapshots)
    assert second != first
    assert (digest(first), publications(layout(), "mylog").to_dicts()[:1]) == before
    assert publications(layout(), "mylog").select("number", "step").rows() == [(1, 6), (2, 6)]
    assert latest(layout(), "mylog") == {"forecasts": second}


def test_the_record_of_a_publication_that_a_repair_removes_is_written_again_for_the_newest_one(
    snapshots: str,  # noqa: F811
):
    published_by_l3(snapshots)
    before = publications(layout(), "mylog").drop("published_at")
    [table] = files.find(layout().artifacts("publications", "mylog"), "publications.parquet")
    files.write_bytes(table, b"damaged")
    [fault] = [each for each in faults(layout(), "mylog") if each.address == table]
    done = repaired(layout(), "mylog", fault)
    assert done is not None
    assert "the ledger lacks this publication" in done
    assert publications(layout(), "mylog").is_empty()
    published_by_l3(snapshots)
    assert publications(layout(), "mylog").drop("published_at").equals(before)


def test_the_view_of_the_latest_forecasts_has_one_artifact_a_dataset(snapshots: str, tmp_path: Path):  # noqa: F811
    first = published_by_l3(snapshots)
    second = published_by_l3(grown(tmp_path, "second", rows_of(6)))
    write_forecasts(make_snapshots("mylog"), L3, k=3)  # not published
    assert sql("select distinct step from forecasts order by 1") == [(6,), (7,)]
    found, newest = query(layout(), "select * from latest_forecasts"), read_table(second, "forecasts")
    assert newest["step"].unique().to_list() == [7]
    assert_frame_equal(found.select(newest.columns), newest, check_row_order=False)
    assert found["dataset"].unique().to_list() == ["mylog"]
    assert found["published_at"].unique().to_list() == publications(layout(), "mylog")["published_at"].to_list()[-1:]
    assert first != second


@pytest.mark.parametrize(("window", "until"), [("1d", datetime.fromisoformat("2024-01-08")), ("6 equal", None)])
def test_forecasts_have_the_times_for_which_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: str, until: datetime | None
):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    days = [row.rsplit(",", 1) for step in range(1, 7) for row in rows_of(step)]
    hours = [
        f"{ends},{datetime.fromisoformat('2024-01-01') + timedelta(hours=2.4 * (int(time) - 10))}"
        for ends, time in days
    ]
    file = tmp_path / "dated.csv"
    file.write_text("source,target,time\n" + "\n".join(hours) + "\n")
    ingest_log("dated", {"log": [str(file)], "window": window, "finished": True})
    opened = open_snapshots(make_snapshots("dated"))
    table = read_table(write_forecasts(opened.address, L3), "forecasts")
    assert table.select("method", "step").unique().rows() == [("L3", 7)]
    start = datetime.fromisoformat("1970-01-01") + timedelta(microseconds=opened.time("end_time", 6))
    assert table.select("valid_from", "valid_to").unique().rows() == [(start, until)]


def test_the_view_of_the_latest_new_forecasts_has_no_past_link(snapshots: str, tmp_path: Path):  # noqa: F811
    published_by_l3(snapshots)
    second = published_by_l3(grown(tmp_path, "second", rows_of(6)))
    found, newest = query(layout(), "select * from latest_forecasts_new"), read_table(second, "new")
    assert not newest.is_empty()
    assert_frame_equal(found.select(newest.columns), newest, check_row_order=False)
    assert not found["linked_before"].any()
    assert sql("select bool_or(linked_before), count(distinct method) from latest_forecasts") == [(True, 1)]


def test_the_ledger_has_what_came_of_each_publication_once_its_step_is_complete(
    snapshots: str,  # noqa: F811
    tmp_path: Path,
):
    forecasts = published_by_l3(snapshots)
    assert write_outcomes(snapshots) == []
    assert sql("select number, num_pairs from ledger") == [(1, None)]
    grown(tmp_path, "begun", rows_of(6)[:60])
    assert write_outcomes(make_complete_snapshots("mylog")) == []  # the step has begun
    grown(tmp_path, "complete", [*rows_of(6)[60:], "1,2,70"])
    complete = make_complete_snapshots("mylog")
    assert len(write_outcomes(complete)) == 1
    assert write_outcomes(complete) == []
    # The definition, from the rows of the log: a pair came if it has a row in the step.
    came = {tuple(row.split(",")[:2]) for row in rows_of(6)}
    best = read_table(forecasts, "forecasts").filter(pl.col("rank") <= 10)
    hits = [(str(row["id"]), str(row["partner_id"])) in came for row in best.iter_rows(named=True)]
    [row] = query(layout(), "select * from ledger").to_dicts()
    assert (row["num_pairs"], row["num_came"]) == (len(hits), sum(hits))
    assert row["precision_at_10"] == pytest.approx(np.mean(hits))
    first = [hit for hit, rank in zip(hits, best["rank"], strict=True) if rank == 1]
    assert row["precision_at_1"] == pytest.approx(np.mean(first))
    assert row["precision_at_10_low"] < row["precision_at_10"] < row["precision_at_10_high"]
    error = [(probability - hit) ** 2 for probability, hit in zip(best["probability"], hits, strict=True)]
    assert row["brier"] == pytest.approx(np.mean(error))
    assert row["probability"] == pytest.approx(best["probability"].mean())
    bins = np.clip(np.ceil(best["probability"].to_numpy() * 15) - 1, 0, 14)
    excess = [abs((best["probability"].to_numpy() - hits)[bins == k].sum()) for k in range(15)]
    assert row["calibration_error"] == pytest.approx(sum(excess) / len(hits))
    assert 0 < sum(hits) < len(hits)
    parts = outcomes(layout(), "mylog")
    assert parts["slice"].to_list() == ["all", "new", "repeat"]
    assert parts["num_pairs"][0] == parts["num_pairs"][1] + parts["num_pairs"][2]


@pytest.fixture
def tracked_l3(
    snapshots: str,  # noqa: F811
    tmp_path: Path,
    empty_database: Callable[[Path], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let L3 publish, in a store with a database of MLflow."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    empty_database(tmp_path / "store" / "mlflow.db")
    published_by_l3(snapshots)


@pytest.mark.usefixtures("tracked_l3")
def test_a_tracked_outcome_that_is_made_anew_is_replaced(tmp_path: Path):
    tracked = []
    for name, rows in (("wrong", rows_of(8)), ("right", rows_of(6))):
        in_step = [f"{row.rpartition(',')[0]},{60 + number % 10}" for number, row in enumerate(rows)]
        grown(tmp_path, name, [*in_step, "1,2,70"])
        [address] = write_outcomes(make_complete_snapshots("mylog"))
        run = send_ledger(open_tracker(layout()), address)["run"]
        tracked.append(open_tracker(layout()).client().get_run(run).data.metrics["ledger/num_came"])
        assert tracked[-1] == ledger(layout(), "mylog")["num_came"][0]
        if name == "wrong":
            undo_ingest("mylog")
    assert tracked[0] != tracked[1]


@pytest.mark.usefixtures("tracked_l3")
def test_the_tracked_outcome_of_a_number_of_two_windows_is_that_of_the_present_ones(tmp_path: Path):
    """Step 6 of windows of ten is from 60 to 70, of windows of twenty from 110 to 130."""
    grown(tmp_path, "first", [*rows_of(6), "1,2,70"])
    [address] = write_outcomes(make_complete_snapshots("mylog"))
    send_ledger(open_tracker(layout()), address)
    for name, times in (("second", (*range(7, 11), 11)), ("third", (11, 12, 13))):
        rows = [row for step in times[:-1] for row in rows_of(step)] + [f"1,2,{10 * times[-1]}"]
        (tmp_path / f"{name}.csv").write_text("\n".join(["source,target,time", *rows, ""]))
        ingest_log("mylog", {"log": [str(tmp_path / f"{name}.csv")], "window": "20"}, lambda text: None)
        complete = make_complete_snapshots("mylog")
        if name == "second":
            published_by_l3(complete)
    [address] = write_outcomes(complete)
    assert complete_rows(ledger(layout(), "mylog"))["step"].to_list() == [6, 6]
    for _ in range(3):
        run = send_ledger(open_tracker(layout()), address)["run"]
        points = open_tracker(layout()).client().get_metric_history(run, "ledger/num_came")
        assert [point.value for point in points] == ledger(layout(), "mylog")["num_came"].to_list()


def test_nodes_of_rows_that_were_taken_back_have_pairs_that_did_not_come(
    snapshots: str,  # noqa: F811
    tmp_path: Path,
):
    assert open_snapshots(snapshots).num_steps == 5
    wrong = grown(tmp_path, "wrong", [f"{node},{other},57" for node in (900, 901) for other in range(20)])
    forecasts = published_by_l3(wrong)
    undo_ingest("mylog")
    grown(tmp_path, "complete", [*rows_of(6), "1,2,70"])
    assert len(write_outcomes(make_complete_snapshots("mylog"))) == 1
    came = {tuple(row.split(",")[:2]) for row in rows_of(6)}
    best = read_table(forecasts, "forecasts").filter(pl.col("rank") <= 10)
    assert {900, 901} <= set(best["id"])
    hits = [(str(row["id"]), str(row["partner_id"])) in came for row in best.iter_rows(named=True)]
    assert sql("select num_pairs, num_came from ledger") == [(len(hits), sum(hits))]
    assert sum(hits) > 0


def test_publications_are_counted_on_where_the_champions_records_are_lost(snapshots: str):  # noqa: F811
    published_by_l3(snapshots)
    for address in (layout().champion("mylog"), layout().champion_copy("mylog")):
        files.remove(address)
    published_by_l3(snapshots)
    assert publications(layout(), "mylog")["number"].to_list() == [1, 2]


def test_forecasts_and_a_report_are_of_the_directions_that_are_declared(snapshots: str, tmp_path: Path):  # noqa: F811
    def made() -> tuple[str, str]:
        return planned_report(snapshots, Experiment(), 0).address, write_forecasts(snapshots, L3)

    before = made()
    more = tmp_path / "more.csv"
    more.write_text("source,target,time\n1,2,61\n")
    ingest_log("mylog", {"log": [str(more)], "directed": False}, lambda text: None)
    assert not open_snapshots(snapshots).directed
    after = made()
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert read_bytes(before[1], FORECAST) != read_bytes(after[1], FORECAST)


def test_later_and_late_rows_change_no_outcome(snapshots: str, tmp_path: Path):  # noqa: F811
    published_by_l3(snapshots)
    grown(tmp_path, "complete", [*rows_of(6), "1,2,70"])
    write_outcomes(make_complete_snapshots("mylog"))
    before = ledger(layout(), "mylog")
    grown(tmp_path, "more", [*rows_of(7), *[f"{a},{b},65" for a in range(40) for b in range(40) if a != b], "1,2,80"])
    assert write_outcomes(make_complete_snapshots("mylog")) == []
    assert ledger(layout(), "mylog").equals(before)


def test_forecasts_of_windows_that_were_moved_have_no_outcome(snapshots: str, tmp_path: Path):  # noqa: F811
    published_by_l3(snapshots)
    grown(tmp_path, "complete", [*rows_of(6), "1,2,5", "1,2,72"])  # a row before all others
    moved = make_complete_snapshots("mylog")
    assert open_snapshots(moved).time("start_time", 2) == 15
    assert write_outcomes(moved) == []


def test_forecasts_of_windows_that_were_replaced_have_no_outcome(snapshots: str, tmp_path: Path):  # noqa: F811
    published_by_l3(snapshots)  # for the times 60 to 69
    (tmp_path / "complete.csv").write_text("\n".join(["source,target,time", *rows_of(6), "1,2,70", ""]))
    ingest_log("mylog", {"log": [str(tmp_path / "complete.csv")], "window": "5"}, lambda text: None)
    shorter = make_complete_snapshots("mylog")
    assert 60 in open_snapshots(shorter).steps["start_time"]
    assert write_outcomes(shorter) == []


@pytest.fixture
def two_published(snapshots: str, tmp_path: Path, champion_skill: Callable) -> list[str]:  # noqa: F811
    """Two champions without weights, each with the forecasts that it has published."""
    champion_skill(1.0)
    first = published_by_l3(snapshots)
    second = grown(tmp_path, "second", rows_of(6))
    recency = Contender(title="Contact recency")
    promoted(second, contender_of(second, 2.0), 1.0, {"L3": 1.0, "Contact recency": 9.0})
    newer = write_forecasts(second, recency)
    assert publish(second, recency, newer, None) is not None
    return [first, newer]


def test_a_rollback_publishes_the_earlier_forecasts_again(two_published: list[str]):
    first, newer = two_published
    second = make_snapshots("mylog")
    assert latest(layout(), "mylog") == {"forecasts": newer}
    rollback("mylog")
    assert latest(layout(), "mylog") == {"forecasts": first}
    assert publications(layout(), "mylog")["number"].to_list() == [1, 2, 3]
    assert sql("select distinct step from latest_forecasts") == [(6,)]
    made = write_forecasts(second, L3)  # the champion's forecasts as of the newest step
    assert publish(second, L3, made, None) is not None
    assert sql("select distinct step from latest_forecasts") == [(7,)]
    assert publications(layout(), "mylog")["champion"].to_list() == [1, 2, 3, 3]


def test_what_a_rollback_publishes_of_a_complete_step_is_no_forecast_of_it(two_published: list[str], tmp_path: Path):
    grown(tmp_path, "third", ["1,2,70"])
    write_outcomes(make_complete_snapshots("mylog"))
    rollback("mylog")
    assert write_outcomes(make_complete_snapshots("mylog")) != []
    rows = ledger(layout(), "mylog")
    assert rows.select("number", "step", "late").rows() == [(1, 6, False), (2, 7, False), (3, 6, True)]
    assert rows["num_pairs"].null_count() == 1  # of step 7
    assert complete_rows(rows)["number"].to_list() == [1]
    assert latest(layout(), "mylog") == {"forecasts": two_published[0]}


def test_forecasts_as_of_a_time_before_later_complete_windows_are_not_published(
    two_published: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    grown(tmp_path, "third", ["1,2,70"])
    before = publications(layout(), "mylog")
    with pytest.raises(SystemExit):
        main(["predict", "mylog", "--as-of", "60"])
    assert "not published: mylog: later windows than those until 60 are complete" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["run", "mylog", "--as-of", "60"])
    assert "leave --as-of out" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["retrain", "mylog", "--as-of", "60"])
    assert ended.value.code == NOTHING_TO_DO
    assert publications(layout(), "mylog").equals(before)


def test_weights_are_not_used_as_of_a_step_before_the_last_one_of_their_training(
    snapshots: str,  # noqa: F811
    tmp_path: Path,
):
    later = contender_of(grown(tmp_path, "second", rows_of(6)), 1.0, until=6)
    for use in (lambda: write_vectors(snapshots, later.models[-1]), lambda: write_forecasts(snapshots, later)):
        with pytest.raises(StepOutOfRange, match="trained on events after step 5 of mylog"):
            use()


def test_forecasts_whose_step_is_complete_when_they_are_published_are_late(snapshots: str, tmp_path: Path):  # noqa: F811
    promoted(snapshots, contender_of(snapshots, 1.0), 0.0, {"L3": 9.0})
    forecasts = write_forecasts(snapshots, L3)
    grown(tmp_path, "begun", rows_of(6))  # while the forecasts were made
    assert publish(snapshots, L3, forecasts, None) is not None
    assert publications(layout(), "mylog")["late"].to_list() == [False]
    second = make_snapshots("mylog", end_time=70)
    made = write_forecasts(second, L3)
    grown(tmp_path, "complete", [*rows_of(7), "1,2,80"])
    assert publish(second, L3, made, None) is not None
    assert publications(layout(), "mylog")["late"].to_list() == [False, True]
    write_outcomes(make_complete_snapshots("mylog"))
    assert complete_rows(ledger(layout(), "mylog"))["number"].to_list() == [1]


@pytest.mark.parametrize(("window", "end"), [("10 trim 0 20", 70), ("8 equal", 85)])
def test_no_publication_of_a_log_without_later_steps_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: str, end: int
):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    (tmp_path / "a.csv").write_text(
        "\n".join(["source,target,time", *[r for k in range(1, 9) for r in rows_of(k)], ""])
    )
    reading = {"log": [str(tmp_path / "a.csv")], "time_unit": "step", "window": window, "bipartite": False}
    ingest_log("mylog", {**reading, "finished": True}, lambda text: None)
    whole = make_complete_snapshots("mylog")
    opened = open_snapshots(whole)
    assert opened.time("end_time", opened.num_steps) == complete_until(layout(), "mylog") == end
    published_by_l3(whole)
    assert publications(layout(), "mylog")["late"].to_list() == [False]


def test_a_rollback_needs_no_windows_that_new_rows_have_moved(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    champion_skill: Callable,  # noqa: F811
):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    champion_skill(1.0)
    reading = {"time_unit": "step", "window": "6 equal", "bipartite": False}

    def committed(name: str, rows: list[str]) -> None:
        (tmp_path / name).write_text("\n".join(["source,target,time", *rows, ""]))
        ingest_log("mylog", {"log": [str(tmp_path / name)], **reading}, lambda text: None)

    committed("a.csv", [row for step in range(1, 7) for row in rows_of(step)])
    whole = make_complete_snapshots("mylog")
    first = published_by_l3(whole)
    recency = Contender(title="Contact recency")
    promoted(whole, contender_of(whole, 2.0), 1.0, {"L3": 1.0, "Contact recency": 9.0})
    publish(whole, recency, write_forecasts(whole, recency), None)
    committed("b.csv", rows_of(7))
    assert rollback("mylog")["title"] == "L3"
    assert latest(layout(), "mylog") == {"forecasts": first}
    assert later_windows(whole) is None


def test_a_shorter_window_makes_no_forecast_late_whose_own_step_goes_on(snapshots: str, tmp_path: Path):  # noqa: F811
    promoted(snapshots, contender_of(snapshots, 1.0), 0.0, {"L3": 9.0})
    forecasts = write_forecasts(snapshots, L3)
    (tmp_path / "b.csv").write_text("source,target,time\n1,2,66\n")
    ingest_log("mylog", {"log": [str(tmp_path / "b.csv")], "window": "5"}, lambda text: None)
    assert complete_until(layout(), "mylog") == 65
    assert not is_late(layout(), "mylog", forecasts)
    (tmp_path / "c.csv").write_text("source,target,time\n1,2,70\n")
    ingest_log("mylog", {"log": [str(tmp_path / "c.csv")]}, lambda text: None)
    assert is_late(layout(), "mylog", forecasts)


def test_a_rollback_that_ended_before_it_published_is_finished_and_not_undone(
    two_published: list[str], monkeypatch: pytest.MonkeyPatch
):
    def away(*_: object) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as outage:
        outage.setattr("flows.tasks.publishing.champions.publish_again", away)
        with pytest.raises(OSError, match="is away"):
            rollback("mylog")
    half = record_of()
    assert (half["title"], latest(layout(), "mylog")) == ("L3", {"forecasts": two_published[1]})
    assert rollback("mylog") == half == record_of()
    assert latest(layout(), "mylog") == {"forecasts": two_published[0]}
    assert rollback("mylog")["title"] == "Contact recency"  # a finished one is followed by another
    with monkeypatch.context() as outage:
        outage.setattr("flows.tasks.publishing.champions.publish_again", away)
        with pytest.raises(OSError, match="is away"):
            rollback("mylog", 1)
    assert rollback("mylog", 2)["title"] == "Contact recency"  # another one is wanted than the unfinished one


def test_a_rollback_after_a_killed_retraining_is_a_rollback(
    two_published: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    third = grown(tmp_path, "third", rows_of(7))
    recency = Contender(title="Contact recency")
    with monkeypatch.context() as outage:
        outage.setattr("flows.tasks.publishing.publications._written", lambda *_: None)
        publish(third, recency, write_forecasts(third, recency), None)
    assert record_of()["published"]["number"] not in publications(layout(), "mylog")["number"]
    assert rollback("mylog")["title"] == "L3"
    assert latest(layout(), "mylog") == {"forecasts": two_published[0]}


def test_a_champion_whose_publication_is_missing_is_not_rolled_back_to(
    snapshots: str,  # noqa: F811
    two_published: list[str],
):
    opened = open_snapshots(snapshots)
    model = contender_of(snapshots, 5.0).models[-1]
    lineage = opened.lineage("vectors", until=5, settings={}, inputs=(model,))
    address = opened.layout.artifact("vectors", "mylog", version=1, until=5, settings=lineage.settings_hash, seed=0)
    write_artifact(address, {"vectors": pl.DataFrame({"id": [1], "space_id": ["any"]})}, lineage)
    rollback("mylog")
    assert publish(snapshots, L3, two_published[0], address) is not None
    rollback("mylog", 2)
    before = record_of()
    for missing, reason in (
        (model, "weights of the vectors"),
        (address, "the vectors that were published last"),
        (two_published[0], "the forecasts that were published last"),
    ):
        files.remove_folder(missing)
        with pytest.raises(ValueError, match=f"{reason}.* missing, those of champion 3"):
            rollback("mylog", 3)
        assert record_of() == before


def test_a_rollback_needs_no_vectors_onto_which_those_of_its_champion_were_rotated(
    snapshots: str,  # noqa: F811
    two_published: list[str],
):
    opened = open_snapshots(snapshots)
    model = contender_of(snapshots, 5.0).models[-1]
    contents = {"vectors": pl.DataFrame({"id": [1], "space_id": ["any"]})}
    earlier = planned(opened.layout, opened.lineage("vectors", until=5, settings={}, inputs=(model,)))
    write_artifact(earlier.address, contents, earlier.lineage)
    onto = {"onto": opened.layout.relative(earlier.address)}
    inputs = (model, earlier.address)
    rotated = planned(opened.layout, opened.lineage("vectors", until=5, settings=onto, inputs=inputs))
    write_artifact(rotated.address, contents, rotated.lineage)
    rollback("mylog")
    assert publish(snapshots, L3, two_published[0], rotated.address) is not None
    rollback("mylog", 2)
    files.remove_folder(earlier.address)  # as verify --repair does with a damaged one
    assert rollback("mylog", 3)["title"] == "L3"


def test_the_alias_goes_to_what_the_present_champion_published_alone(
    snapshots: str,  # noqa: F811
    two_published: list[str],
):
    recency = {"title": "Contact recency", "models": []}

    def aliases(title: str, forecasts: str) -> tuple[str, ...]:
        opened, promotion = open_snapshots(snapshots), {"champion": recency}
        return aliases_of(opened, Contender(title=title), promotion, forecasts)

    assert aliases("Contact recency", two_published[1]) == ("challenger", "champion")
    assert aliases("DyFormer", two_published[1]) == ("champion",)
    rollback("mylog")  # while a retraining goes on
    assert aliases("DyFormer", two_published[1]) == ()
    assert aliases("DyFormer", two_published[0]) == ("champion",)


def test_commands_list_and_roll_back(three: list[str], capsys: pytest.CaptureFixture[str]):
    def command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ending:
            main(list(arguments))
        printed = capsys.readouterr()
        return int(ending.value.code or 0), printed.out, printed.err

    code, output, _ = command("champions", "mylog")
    assert code == 0
    assert "champions of mylog" in output
    third = champions(layout(), "mylog").row(2, named=True)
    lines = [[cell.strip() for cell in line.split("│")] for line in output.splitlines()]
    [cells] = [cells for cells in lines if cells[1:2] == ["3"]]
    assert "MRR" in cells
    assert f"{third['value']:.3f}" in cells
    assert all(f"{third[name]:+.3f}" in cells for name in ("low", "difference", "high"))
    code, output, _ = command("rollback", "mylog", "--to", "2")
    assert (code, output.splitlines()[0].startswith("champion of mylog: L3, because champion 3")) == (0, True)
    code, _, errors = command("rollback", "mylog", "--to", "17")
    assert (code, "expected one of 1, 2, 3" in errors) == (1, True)
    code, output, _ = command("champions", "mylog", "--json")
    assert '"number": 4' in output
    assert math.isfinite(code)
    assert command("champions", "nothing")[0] == 1
