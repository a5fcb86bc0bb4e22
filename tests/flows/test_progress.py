"""Work that takes minutes prints that it goes on."""

import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from own_snapshots import ingest_own, own_snapshots
from posed import evaluate_methods, rank_methods, write_queries
from rich.console import Console

import flows.cli
import flows.console
import flows.tasks.drift
import flows.tasks.ingest
import flows.tasks.snapshots
import storage.verification
from dyformer.evaluation.event_splits import SPLITS
from dyformer.evaluation.protocols import protocol_of
from dyformer.experiments.settings import Experiment
from dyformer.scoring.event_forecaster import EventForecaster
from flows.console import ongoing, timed_stage, tracked
from flows.tasks.evaluation.evaluate import Group, Posed, draw, evaluate
from flows.tasks.models import Contender
from flows.tasks.predict import write_forecasts, write_vectors
from flows.tasks.train import train_model

pytestmark = pytest.mark.usefixtures("few_trees")

SMALL = {
    "pretrain": None,
    "model.width": 8,
    "model.num_heads": 2,
    "finetune.epochs": 1,
    "finetune.batches_per_epoch": 1,
}


def test_an_ongoing_stage_prints_seconds_and_then_stops(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.02)
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        _fails_after(0.3)
    assert "rank mylog step 5: 0 s so far" in capsys.readouterr().out
    assert threading.active_count() == before
    time.sleep(0.1)
    assert capsys.readouterr().out == ""


def _fails_after(seconds: float) -> float:
    with ongoing("rank mylog step 5"):
        time.sleep(seconds)
        return 1 / 0


def test_a_stage_of_several_parts_prints_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.02)
    assert flows.console._so_far(18, [0.0], 7.0) == "0 of 18, 7 s so far"
    # Two parts took 8 s, so 16 others take 64 s, of which the third part has taken 3 s already.
    assert flows.console._so_far(18, [0.0, 2.0, 8.0], 11.0) == "2 of 18, 11 s, about 61 s left"
    with ongoing("rank mylog step 5", 3) as done:
        time.sleep(0.1)
        done()
        time.sleep(0.1)
    printed = capsys.readouterr().out
    assert "rank mylog step 5: 0 of 3, 0 s so far" in printed
    assert re.search(r"rank mylog step 5: 1 of 3, \d+ s, about \d+ s left", printed)
    with ongoing("rank mylog step 5", 1) as done:
        time.sleep(0.1)
        done()
    assert "rank mylog step 5: 0 s so far" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("slow_part", "line"),
    [
        ("fit_on_past", r"fit the event forecaster of mylog: 0 of 960, \d+ s so far"),
        ("events_before", r"rank mylog: \d+ s so far"),
    ],
)
def test_rank_prints_that_it_goes_on_beside_its_output(
    slow_part: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    """While it fits, and while it reads the events before."""
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.02)
    ingest_own(tmp_path)

    def slow(*_: object, **__: object) -> None:
        time.sleep(0.3)
        raise ValueError("it took long")

    monkeypatch.setattr(f"flows.tasks.event_state.{slow_part}", slow)
    with pytest.raises(SystemExit):
        flows.cli.main(["rank", "mylog", "u1", "--json"])
    printed = capsys.readouterr()
    assert re.search(line, printed.err), printed.err
    assert "it took long" in printed.err
    assert printed.out == ""  # of JSON alone


def test_a_stage_of_a_plan_prints_its_time_left_where_nothing_else_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.1)
    with timed_stage("mylog: evaluation", 40.0):
        time.sleep(0.3)
        assert "mylog: evaluation: 0 s so far, about 40 s left" in capsys.readouterr().out
        with ongoing("fit L3 to mylog"):  # without a number of parts
            time.sleep(0.3)
        inside = capsys.readouterr().out
        with ongoing("evaluate mylog", 3) as done:
            done()
            time.sleep(0.3)
        counted = capsys.readouterr().out
    assert re.search(r"fit L3 to mylog: 0 s so far; mylog: evaluation: about \d\d s left\n", inside)
    assert "evaluate mylog: 1 of 3, 0 s, about 0 s left\n" in counted
    capsys.readouterr()  # a line that the stage has printed since
    with timed_stage("mylog: evaluation", None), ongoing("fit L3 to mylog"):  # without a plan
        time.sleep(0.3)
    assert re.fullmatch(r"(fit L3 to mylog: \d+ s so far\n)+", capsys.readouterr().out)


def test_a_stage_prints_a_line_where_none_was_printed_for_a_quarter_of_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    stage = flows.console._Stage(title="mylog: evaluation", begun=100.0, seconds=40.0, newest_line=100.0)
    printed = []
    for now, is_other_line in ((114, False), (115, False), (129, True), (143, False), (144, False)):
        monkeypatch.setattr("flows.console.time.monotonic", lambda now=now: float(now))
        stage.print_if_silent()
        printed += [(now, line) for line in capsys.readouterr().out.splitlines()]
        if is_other_line:
            stage.newest_line = now
    assert printed == [
        (115, "mylog: evaluation: 15 s so far, about 25 s left"),
        (144, "mylog: evaluation: 44 s so far, longer than planned"),
    ]


WORKS = {
    "a stage": lambda: timed_stage("mylog: ranking", 40.0),
    "work without parts": lambda: ongoing("rank mylog"),
    "work of parts": lambda: ongoing("rank mylog", 3),
}


@pytest.mark.parametrize(
    ("first", "second"),
    [("a stage", "work of parts"), ("work of parts", "work without parts"), ("work without parts", "a stage")],
)
def test_no_silence_is_longer_where_one_stage_ends_and_another_begins(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 1.5)
    monkeypatch.setattr("flows.console._PRINTED", flows.console._Printed())
    with WORKS[first]():
        time.sleep(0.9)
    assert capsys.readouterr().out == ""
    with WORKS[second]():
        time.sleep(1.6)  # a stage looks after a second, and work prints its next line after 2.1 seconds
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_items_after_a_stage_print_a_line_a_quarter_of_a_minute_after_the_newest_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("flows.console._PRINTED", flows.console._Printed(newest=88.0))
    moments = iter([100.0, 102.0, 104.0])
    monkeypatch.setattr("flows.console.time.monotonic", lambda: next(moments))
    assert list(tracked(range(2), "pretrain", 20)) == [0, 1]
    assert capsys.readouterr().out.splitlines() == ["pretrain: 2 of 20, 4 s, about 36 s left"]


def test_a_terminal_shows_the_bar_of_a_stage_above_what_goes_on_in_it(monkeypatch: pytest.MonkeyPatch):
    written = StringIO()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.1)
    console = Console(file=written, force_terminal=True, color_system=None, width=100)
    monkeypatch.setattr("flows.console._terminal", lambda: console)
    with timed_stage("mylog: evaluation", 1.0), ongoing("fit L3"):
        time.sleep(0.7)
        assert list(tracked(range(2), "finetune mylog")) == [0, 1]
    assert re.search(r"mylog: evaluation[^\n]* [5-9]\d%[^\n]* 0:00:0[01]", written.getvalue())
    assert "fit L3" in written.getvalue()
    assert "finetune mylog" in written.getvalue()


def test_the_bar_of_a_stage_that_takes_longer_than_planned_has_that_in_its_title(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.1)
    for seconds, is_longer in ((60.0, False), (0.05, True)):
        written = StringIO()
        console = Console(file=written, force_terminal=True, color_system=None, width=100)
        monkeypatch.setattr("flows.console._terminal", lambda console=console: console)
        with timed_stage("mylog: ranking", seconds):
            time.sleep(0.5)
        assert "mylog: ranking" in written.getvalue()
        assert ("mylog: ranking, longer than planned" in written.getvalue()) == is_longer


def test_the_first_of_many_parts_is_no_measure_of_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It compiles and imports what the others find ready."""
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.0)
    moments = iter([0.0, 31.0, 32.0, 33.0])
    monkeypatch.setattr("flows.console.time.monotonic", lambda: next(moments))
    assert list(tracked(range(3), "pretrain", 20)) == [0, 1, 2]
    assert capsys.readouterr().out.splitlines() == [
        "pretrain: 1 of 20, 31 s, about 589 s left",
        "pretrain: 2 of 20, 32 s, about 18 s left",
        "pretrain: 3 of 20, 33 s, about 17 s left",
    ]


def _inside_another(total: int | None) -> None:
    with ongoing("serve mylog: not ready", total):
        time.sleep(0.1)
        print("begins")
        with ongoing("fit mylog", 3):
            time.sleep(0.2)
        print("ends")
        time.sleep(0.1)


def test_an_outer_line_is_hidden_while_an_inner_one_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.02)
    _inside_another(None)
    before, _, rest = capsys.readouterr().out.partition("begins")
    inside, _, after = rest.partition("ends")
    assert "serve mylog: not ready" in before
    assert "fit mylog: 0 of 3" in inside
    assert "serve mylog: not ready" not in inside
    assert "serve mylog: not ready" in after
    _inside_another(2)  # its line has the time left of the whole
    rest = capsys.readouterr().out.partition("begins")[2]
    assert "serve mylog: not ready: 0 of 2" in rest.partition("ends")[0]


def test_a_terminal_hides_the_outer_spinner_while_an_inner_bar_runs(monkeypatch: pytest.MonkeyPatch):
    written = StringIO()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    console = Console(file=written, force_terminal=True)
    monkeypatch.setattr("flows.console._terminal", lambda: console)
    with ongoing("serve mylog: not ready"):
        time.sleep(0.2)
        with ongoing("fit mylog", 3):
            begun = len(written.getvalue())
            time.sleep(0.3)
            inside = written.getvalue()[begun:]
        ended = len(written.getvalue())
        time.sleep(0.2)
    assert "serve mylog" in written.getvalue()[:begun]
    assert "fit mylog" in inside
    assert "serve mylog" not in inside
    assert "serve mylog" in written.getvalue()[ended:]


def test_a_terminal_shows_the_title(monkeypatch: pytest.MonkeyPatch):
    written = StringIO()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    console = Console(file=written, force_terminal=True)
    monkeypatch.setattr("flows.console._terminal", lambda: console)
    with ongoing("rank mylog step 5"):
        assert list(tracked(range(2), "finetune mylog")) == [0, 1]  # a method that trains has a bar of its own
    with ongoing("evaluate mylog", 2) as done:
        assert list(tracked(range(2), "finetune mylog")) == [0, 1]
        done()
        time.sleep(0.2)
    assert "evaluate mylog" in written.getvalue()
    assert "50%" in written.getvalue()
    assert "rank mylog step 5" in written.getvalue()
    assert "finetune mylog" in written.getvalue()


def test_ranking_evaluation_and_forecasts_print_lines(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    snapshots = own_snapshots(tmp_path)
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.002)
    capsys.readouterr()
    rank_methods(snapshots, write_queries(snapshots, 6), ["L3"])
    evaluate_methods(snapshots, ["Forecaster without vectors"], 6)
    model = train_model(snapshots, 12, Experiment().changed(SMALL))
    vectors = write_vectors(snapshots, model)
    write_forecasts(snapshots, Contender(title="L3", models=()), vectors)
    printed = capsys.readouterr().out
    for title in (
        "evaluate L3 on mylog step 6 (prequential)",
        "evaluate Forecaster without vectors on mylog step 6 (paper)",
        "vectors of mylog as of step 12",
        "forecasts of mylog as of step 12",
    ):
        assert f"{title}: 0 s so far" in printed


def test_the_fit_of_the_event_forecaster_in_a_benchmark_prints_its_rounds(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def slow(self: EventForecaster, *given: object, done: Callable[[], None], **more: object) -> None:
        for _ in range(self.num_rounds // 4):
            done()
        time.sleep(0.3)
        raise ValueError("it took long")

    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.02)
    monkeypatch.setattr(EventForecaster, "fit_events", slow)
    posed = Posed(snapshots=own_snapshots(tmp_path), protocol=protocol_of("tgb"), units=SPLITS)
    draw(posed)
    with pytest.raises(ValueError, match="it took long"):
        evaluate(posed, Group({"Event forecaster": EventForecaster()}))
    printed = capsys.readouterr().out
    assert re.search(r"fit Event forecaster to mylog: 240 of 960, \d+ s, about \d+ s left", printed), printed


def test_items_that_an_earlier_run_stored_are_not_in_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.0)
    moments = iter([0.0, 1.0, 1.0, 9.0])  # the start, and after each item
    monkeypatch.setattr("flows.console.time.monotonic", lambda: next(moments))
    items = tracked(["stored", "stored", "new"], "trials", 9, was_stored=lambda item: item == "stored")
    assert list(items) == ["stored", "stored", "new"]
    assert capsys.readouterr().out.splitlines() == [
        "trials: 1 of 9 (1 stored before), 1 s",
        "trials: 2 of 9 (2 stored before), 1 s",
        "trials: 3 of 9 (2 stored before), 9 s, about 54 s left",
    ]


ON_A_TERMINAL = """
import time
from flows.console import ongoing, timed_stage, tracked

with timed_stage("a stage", 3.0):
    print("in the stage", flush=True)
    with ongoing("work"):
        print("in the work", flush=True)
    for number in tracked(range(2), "items"):
        print("item", number, flush=True)
"""


def test_a_bar_on_the_terminal_leaves_what_is_printed_in_its_file(tmp_path: Path):
    terminal, other_end = pty.openpty()
    file, environment = tmp_path / "printed", {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with file.open("w") as stream:
        subprocess.run(
            [sys.executable, "-c", ON_A_TERMINAL], stdout=stream, stderr=other_end, env=environment, check=True
        )
    os.close(other_end)
    assert b"a stage" in os.read(terminal, 100_000)
    os.close(terminal)
    assert file.read_text().splitlines() == ["in the stage", "in the work", "item 0", "item 1"]


def test_long_reading_and_checking_print_lines_beside_their_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr("flows.console._PRINTED", flows.console._Printed())
    (tmp_path / "log.csv").write_text("".join(f"u{row % 7},v{row % 5},{1_600_000_000 + row}\n" for row in range(99)))
    for module, name in (
        (flows.tasks.ingest, "read_files"),
        (flows.tasks.snapshots, "_tables"),
        (flows.tasks.drift, "with_deviations"),
        (storage.verification, "faults"),
    ):
        monkeypatch.setattr(module, name, partial(slowly, getattr(module, name)))
    titles_of = {
        ("snapshots", "mylog", "--log", str(tmp_path / "log.csv"), "--json"): {
            "ingest mylog",
            "divide mylog into snapshots",
        },
        ("drift", "mylog", "--json"): {"compare the newest step of mylog with earlier ones"},
        ("verify", "mylog"): {"verify"},
    }
    for command, expected in titles_of.items():
        with pytest.raises(SystemExit) as ending:
            flows.cli.main(list(command))
        assert not ending.value.code
        output = capsys.readouterr()
        assert "so far" not in output.out
        titles = {line.partition(":")[0] for line in output.err.splitlines() if "so far" in line}
        assert titles == expected


def slowly(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    time.sleep(0.1)
    return function(*given, **options)
