"""Complete windows: a window that has begun changes nothing, and the same history has the same addresses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from posed import baselines_on

import flows.tasks.complete_windows
from dyformer.experiments.settings import Experiment
from dyformer.graphs.snapshots import to_tables
from dyformer.graphs.windows import WindowsMove, complete_ends
from dyformer.logs.time_windows import Window, WindowError
from flows import retrain
from flows.cli import main
from flows.commands.runs import finished_run
from flows.tasks import train
from flows.tasks.complete_windows import (
    TooFewWindows,
    complete_snapshots,
    has_report,
    make_complete_snapshots,
    moment,
)
from flows.tasks.finished import planned_report
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots, newest_until, open_snapshots
from flows.tasks.train import train_model
from storage.artifacts.artifact import lineage_of, read_bytes, write_artifact
from storage.artifacts.made import address_of
from storage.events.table import newest_version
from storage.layout import Layout

pytestmark = pytest.mark.usefixtures("few_trees")

DAY = 86_400_000_000
TINY = Experiment().changed(
    {
        "model.width": 8,
        "model.num_heads": 2,
        "model.num_layers": 1,
        "model.num_context": 8,
        "pretrain": None,
        "finetune.epochs": 1,
        "finetune.batches_per_epoch": 1,
    }
)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store for each test."""
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    return tmp_path


def rows_of(*steps: int, num: int = 60) -> list[str]:
    """Rows of windows of ten integer steps: window k lasts from time 10 k to 10 k + 9."""
    found = []
    for step in steps:
        pairs = np.random.default_rng(step).integers(12, size=(num, 2)).tolist()
        found += [f"{a},{b},{10 * step + index % 9}" for index, (a, b) in enumerate(pairs) if a != b]
    return found


def dropped(folder: Path, name: str, rows: list[str], **reading: Any) -> int:
    """Commit rows as one more file; return the version."""
    (folder / f"{name}.csv").write_text("\n".join(["source,target,time", *rows, ""]))
    reading = {"log": [str(folder / f"{name}.csv")], "time_unit": "step", "window": "10", "bipartite": False} | reading
    return ingest_log("mylog", reading, lambda text: None)["version"]


def ends(first: float, newest: float, window: str, **options: Any) -> list[float]:
    """Ends of the complete windows, all times in days."""
    options |= {"now": int(options["now"] * DAY)} if "now" in options else {}
    found = complete_ends(int(first * DAY), int(newest * DAY), Window.parse(window), "us", **options)
    return (found / DAY).tolist()


@pytest.mark.parametrize(
    ("newest", "options", "expected"),
    [
        (21.0, {}, [7, 14, 21]),  # a row at the end itself is of the next window
        (20.9, {}, [7, 14]),
        (21.0, {"lateness": "1d"}, [7, 14]),
        (22.0, {"lateness": "1d"}, [7, 14, 21]),
        (15.0, {"now": 30.0}, [7, 14, 21]),  # windows after that of the newest row are none yet
        (40.0, {"now": 15.0}, [7, 14]),
        (15.0, {"now": 22.0, "lateness": "2d"}, [7, 14]),
        (3.0, {}, []),
    ],
)
def test_a_window_is_complete_when_the_newest_row_or_the_clock_is_past_its_end(
    newest: float, options: dict[str, Any], expected: list[int]
):
    assert ends(0, newest, "7d", **options) == expected


def test_windows_of_the_calendar_and_trimmed_ones_are_complete_by_the_same_rule():
    january = ends(0, 31, "calendar 1mo")  # the epoch is the first of a January
    assert (january, ends(0, 30.9, "calendar 1mo")) == ([31], [])
    # 5 to 15, 15 to 25 and 25 to 35; 60 days before the newest row is within the third, so that rows of it are removed
    assert ends(0, 90, "10d trim 5d 60d") == [15, 25]
    assert ends(0, 95, "10d trim 5d 60d") == [15, 25, 35]
    assert ends(0, 50, "10d trim 5d 60d") == []


@pytest.mark.parametrize("window", ["12 equal", "12 equal time"])
def test_a_number_of_windows_has_no_complete_ones(window: str):
    with pytest.raises(WindowsMove, match="every new row moves all windows"):
        ends(0, 90, window)


def test_complete_windows_are_those_that_later_rows_leave_as_they_are(store: Path):
    """The rule against its meaning: the complete windows of a prefix of the log are windows of the whole log."""
    rows = sorted(rows_of(1, 2, 3, 4, 5, 6), key=lambda row: int(row.split(",")[2]))
    dropped(store, "whole", rows)
    whole = open_snapshots(make_snapshots("mylog"))
    for number in (200, 260, 300):
        first, newest = (int(row.split(",")[2]) for row in (rows[0], rows[number]))
        num = len(complete_ends(first, newest, Window.parse("10"), "step"))
        assert num == newest // 10 - 1
        ingest_log(f"part{number}", reading_of(store, rows[: number + 1]), lambda text: None)
        part = open_snapshots(make_complete_snapshots(f"part{number}"))
        assert part.num_steps == num
        found, expected = (to_tables(opened.graph(num)) for opened in (part, whole))
        for name in ("edges", "steps"):
            assert found[name].equals(expected[name])


def reading_of(folder: Path, rows: list[str]) -> dict[str, Any]:
    path = folder / f"part{len(rows)}.csv"
    path.write_text("\n".join(["source,target,time", *rows, ""]))
    return {"log": [str(path)], "time_unit": "step", "window": "10", "bipartite": False}


def test_rows_of_a_window_that_has_begun_change_no_address(store: Path):
    dropped(store, "first", [*rows_of(1, 2, 3, 4), "1,2,50"])
    before = make_complete_snapshots("mylog")
    opened = open_snapshots(before)
    assert (opened.num_steps, opened.version, opened.time("end_time", 4)) == (4, 1, 50)
    assert open_snapshots(make_snapshots("mylog")).num_steps == 5
    for number in range(5):
        dropped(store, f"more{number}", [f"{number},{number + 5},{51 + number}"])
        assert make_complete_snapshots("mylog") == before
    assert newest_version(Layout.from_environment(), "mylog") == 6
    dropped(store, "next", ["1,2,60"])
    after = open_snapshots(make_complete_snapshots("mylog"))
    assert (after.num_steps, after.version) == (5, 6)  # the row at 60 is of no complete window
    dropped(store, "late", ["3,4,25"])
    late = open_snapshots(make_complete_snapshots("mylog"))
    assert (late.num_steps, late.version) == (5, 8)
    assert late.steps["num_interactions"].to_list()[1] == after.steps["num_interactions"].to_list()[1] + 1


def test_empty_windows_between_rows_are_complete(store: Path):
    dropped(store, "first", [*rows_of(1, 2, 3), "1,2,65"])
    opened = open_snapshots(make_complete_snapshots("mylog"))
    assert opened.steps["num_interactions"].to_list()[3:] == [0, 0]
    assert opened.graph(5, interactions=True).num_steps == 5


def test_lateness_and_the_clock_decide_and_are_declared_or_given(store: Path):
    dropped(store, "first", [*rows_of(1, 2, 3, 4), "1,2,52"], lateness="3")
    assert open_snapshots(make_complete_snapshots("mylog")).num_steps == 3
    assert open_snapshots(make_complete_snapshots("mylog", "53")).num_steps == 4
    assert open_snapshots(make_complete_snapshots("mylog", "49")).num_steps == 3
    dropped(store, "second", ["1,2,53"])  # the lateness is remembered
    assert open_snapshots(make_complete_snapshots("mylog")).num_steps == 4
    dropped(store, "third", ["1,2,55"], lateness="0")
    with pytest.raises(WindowError, match="does not fit a log with integer steps"):
        dropped(store, "fourth", ["1,2,56"], lateness="1d")
    assert newest_version(Layout.from_environment(), "mylog") == 3


def test_a_finished_log_has_its_last_window(store: Path):
    dropped(store, "first", rows_of(1, 2, 3, 4))
    assert open_snapshots(make_complete_snapshots("mylog")).num_steps == 3
    dropped(store, "first", rows_of(1, 2, 3, 4), finished=True)
    assert make_complete_snapshots("mylog") == make_snapshots("mylog")


def test_too_few_complete_windows_are_named(store: Path):
    dropped(store, "first", rows_of(1, 2, 3))
    with pytest.raises(TooFewWindows, match="mylog has 2 complete windows of '10', and a run needs 3"):
        make_complete_snapshots("mylog")
    sentences: list[str] = []
    assert complete_snapshots("mylog", show=sentences.append) is None
    assert "wait for rows" in sentences[0]


def test_windows_by_number_are_refused_once_the_log_has_grown(store: Path):
    dropped(store, "first", rows_of(1, 2, 3), window="6 equal")
    assert make_complete_snapshots("mylog") == make_snapshots("mylog")
    dropped(store, "second", rows_of(4), window="6 equal")
    with pytest.raises(WindowsMove, match="windows of fixed length"):
        make_complete_snapshots("mylog")
    dropped(store, "second", rows_of(4), window="6 equal", finished=True)
    assert make_complete_snapshots("mylog") == make_snapshots("mylog")


def test_a_known_log_is_finished_until_it_grows(store: Path, shared_log: Callable[[str], Path]):
    ingest_log("uci", {"log": [str(shared_log("uci"))]}, lambda text: None)
    whole = make_snapshots("uci")
    assert make_complete_snapshots("uci") == whole
    assert open_snapshots(whole).num_steps == 13
    with_clock = open_snapshots(make_complete_snapshots("uci", "now"))
    assert with_clock.num_steps == 12  # the trim removes rows of the last one
    (store / "more.txt").write_text("1 2 1 1098800000\n")
    ingest_log("uci", {"log": [str(store / "more.txt")]}, lambda text: None)
    assert open_snapshots(make_complete_snapshots("uci")).num_steps == 12


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("1970-01-02", "iso", DAY),
        ("1970-01-01T01:00+01:00", "s", 0),
        ("1970-01-01T00:00:01Z", "us", 1_000_000),
        ("60", "step", 60),
        ("-5", "step", -5),
        ("1709251200", "s", 1_709_251_200_000_000),  # as with --at
    ],
)
def test_a_moment_is_read_in_the_unit_of_the_events(text: str, unit: Any, expected: int):
    assert moment(text, unit) == expected


@pytest.mark.parametrize(
    ("text", "unit"), [("now", "step"), ("--5", "step"), ("yesterday", "iso"), ("60", "iso"), ("0000-12-31", "iso")]
)
def test_a_moment_that_does_not_fit_is_refused(text: str, unit: Any):
    with pytest.raises(WindowError, match="as_of"):
        moment(text, unit)


# The key of a training is the history that it may read.


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the trainings that are really run, by their last step."""
    counted: list[int] = []
    finetune = train.finetune

    def counting(graph: Any, *given: Any, **options: Any) -> Any:
        counted.append(graph.until)
        return finetune(graph, *given, **options)

    monkeypatch.setattr(train, "finetune", counting)
    return counted


def test_the_same_history_is_trained_once_whatever_rows_come(store: Path, trainings: list[int]):
    dropped(store, "first", [*rows_of(1, 2, 3, 4), "1,2,50"])
    models = {train_model(make_complete_snapshots("mylog"), 3, TINY)}
    for number in range(5):
        dropped(store, f"more{number}", [f"{number},{number + 5},{51 + number}"])
        models.add(train_model(make_complete_snapshots("mylog"), 3, TINY))
        models.add(train_model(make_snapshots("mylog"), 3, TINY))  # the table version and the windows of a benchmark
    assert (trainings, len(models)) == ([3], 1)
    dropped(store, "next", ["1,2,60"])
    snapshots = make_complete_snapshots("mylog")
    assert newest_until(snapshots) == 4
    assert {train_model(snapshots, 3, TINY)} == models
    assert trainings == [3]
    assert train_model(snapshots, 4, TINY) not in models
    assert trainings == [3, 4]


def test_a_late_row_makes_another_history_and_leaves_the_earlier_model(store: Path, trainings: list[int]):
    dropped(store, "first", [*rows_of(1, 2, 3, 4), "1,2,50"])
    first = train_model(make_complete_snapshots("mylog"), 3, TINY)
    weights = read_bytes(first, "weights.safetensors")
    dropped(store, "late", ["1,3,45"])
    later = make_complete_snapshots("mylog")
    assert train_model(later, 3, TINY) == first  # the row is after step 3
    dropped(store, "later", ["100,101,25"])
    second = train_model(make_complete_snapshots("mylog"), 3, TINY)
    assert trainings == [3, 3]
    assert (second == first, read_bytes(first, "weights.safetensors") == weights) == (False, True)
    assert [lineage_of(model).table_version for model in (first, second)] == [1, 3]
    assert train_model(make_snapshots("mylog", version=1), 3, TINY) == first
    assert trainings == [3, 3]


def test_an_evaluation_of_the_same_history_is_not_repeated(store: Path):
    dropped(store, "first", [*rows_of(1, 2, 3, 4), "1,2,50"])
    scores = baselines_on(make_complete_snapshots("mylog"), 4)
    dropped(store, "more", ["3,4,60"])
    assert baselines_on(make_complete_snapshots("mylog"), 4) == scores
    dropped(store, "late", ["3,4,45"])
    assert baselines_on(make_complete_snapshots("mylog"), 4) != scores


def test_the_history_of_a_step_is_that_of_the_windows_that_a_row_before_all_moves(store: Path, trainings: list[int]):
    dropped(store, "first", [*rows_of(1, 2, 3, 4), "1,2,50"])
    train_model(make_complete_snapshots("mylog"), 3, TINY)
    dropped(store, "before", ["1,2,5"])
    moved = open_snapshots(make_complete_snapshots("mylog"))
    assert moved.time("start_time", 1) == 5
    train_model(moved.address, 3, TINY)
    assert trainings == [3, 3]


def test_windows_by_number_have_the_history_of_the_whole_table(store: Path):
    dropped(store, "first", rows_of(1, 2, 3), window="6 equal")
    first = open_snapshots(make_snapshots("mylog"))
    dropped(store, "second", rows_of(4), window="6 equal")
    second = open_snapshots(make_snapshots("mylog"))
    assert second.steps["version"].to_list() == [2] * 6
    assert not set(first.steps["history"]) & set(second.steps["history"])


def test_digests_of_histories_differ_from_the_first_step_that_differs(store: Path):
    rows = rows_of(1, 2, 3, 4)
    dropped(store, "first", rows)
    first = open_snapshots(make_snapshots("mylog")).steps["history"].to_list()
    assert len(set(first)) == 4
    changed = [*rows[:130], *rows[131:]]  # without one row of step 3
    ingest_log("part", reading_of(store, changed), lambda text: None)
    second = open_snapshots(make_snapshots("part")).steps["history"].to_list()
    assert [one == other for one, other in zip(first, second, strict=True)] == [True, True, False, False]


def test_the_lineage_and_the_address_of_a_model_hold_the_digest_of_its_history(store: Path):
    """So that windows that other rows have moved or trimmed, under one version, are no history of before."""
    dropped(store, "first", rows_of(1, 2, 3, 4))
    opened = open_snapshots(make_snapshots("mylog"))
    lineage = opened.lineage("model", until=3, settings={"seed": 0})
    assert lineage.inputs == {"history": opened.steps["history"][2]}
    other = replace(lineage, inputs={"history": opened.steps["history"][3]})
    assert address_of(opened.layout, other) != address_of(opened.layout, lineage)
    assert (opened.has_history(lineage), opened.has_history(other)) == (True, False)


def test_a_report_on_other_windows_is_none_on_these(store: Path):
    rows = [*rows_of(1, 2, 3, 4), "1,2,50"]
    dropped(store, "first", rows)
    tens = make_complete_snapshots("mylog")
    assert not has_report(tens)
    report = planned_report(tens, TINY, 0)
    write_artifact(report.address, {"report.html": b""}, report.lineage)
    assert has_report(tens)
    dropped(store, "first", rows, window="9")
    nines = make_complete_snapshots("mylog")
    assert open_snapshots(nines).num_steps == open_snapshots(tens).num_steps
    assert not has_report(nines)
    dropped(store, "first", rows)
    assert has_report(make_complete_snapshots("mylog"))


# The commands.


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        main(list(arguments))
    return int(ending.value.code or 0)


READING = ("--time-unit", "step", "--window", "10", "--one-space")


def test_retrain_commits_and_has_nothing_to_do_while_there_are_too_few_windows(
    store: Path, capsys: pytest.CaptureFixture[str]
):
    (store / "a.csv").write_text("\n".join(["source,target,time", *rows_of(1, 2), ""]))
    assert command("retrain", "mylog", "--log", str(store / "a.csv"), *READING) == 3
    assert "mylog has 1 complete window of" in capsys.readouterr().out
    assert newest_version(Layout.from_environment(), "mylog") == 1
    (store / "b.csv").write_text("\n".join(["source,target,time", *rows_of(3), ""]))
    assert command("run", "mylog", "--log", str(store / "b.csv"), *READING) == 1
    assert "--finished" in capsys.readouterr().err


def test_a_command_and_its_flow_print_once_that_later_rows_have_no_effect(
    store: Path, capsys: pytest.CaptureFixture[str]
):
    dropped(store, "first", [*rows_of(1, 2, 3, 4), "1,2,50"])
    finished_run("mylog", {}, Experiment(), 0, None, few=False)
    retrain.complete_task.fn("mylog", None, show=retrain.print_once)
    assert capsys.readouterr().out.count("later rows, the newest of 50, have no effect yet") == 1


def test_no_later_row_reaches_the_complete_windows(store: Path):
    """Poison in the window that has begun: its rows are in no table, node or interaction of the complete ones."""
    dropped(store, "first", [*rows_of(1, 2, 3, 4), "1,2,50"])
    opened = open_snapshots(make_complete_snapshots("mylog"))
    clean = to_tables(opened.graph(4))
    interactions = opened.graph(4, interactions=True).interactions
    dropped(store, "poison", [f"ghost{number},{number},5{number % 10}" for number in range(40)])
    made = Path(opened.address)
    for path in made.iterdir():
        path.unlink()
    made.rmdir()
    again = open_snapshots(make_complete_snapshots("mylog"))
    assert again.address == opened.address
    for name, table in to_tables(again.graph(4)).items():
        assert table.equals(clean[name])
    found = again.graph(4, interactions=True).interactions
    assert interactions is not None
    assert found is not None
    for name, values in vars(interactions).items():
        np.testing.assert_array_equal(getattr(found, name), values)


def test_time_now_is_the_clock(monkeypatch: pytest.MonkeyPatch):
    from datetime import UTC, datetime

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(1970, 1, 3, tzinfo=tz or UTC)

    monkeypatch.setattr(flows.tasks.complete_windows, "datetime", Clock)
    assert moment("now", "iso") == 2 * DAY
    assert pl.Series([moment("now", "s")]).cast(pl.Datetime("us"))[0] == datetime(1970, 1, 3)  # noqa: DTZ001
