"""A run without new rows finds the report of the earlier run, and loads little to do so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dyformer.experiments.settings import Experiment, as_record
from flows.commands.runs import finished_run
from flows.tasks import complete_windows, finished, ingest
from flows.tasks.finished import SUMMARY, lacks_published
from flows.tasks.retention import KEEP
from flows.tasks.tracking import projection
from storage.artifacts.artifact import Lineage, write_artifact
from storage.bytes import files
from storage.layout import Layout

NUMBERS = dict.fromkeys(ingest.COUNTS, 0)
COUNTS = {"dataset": "mylog", "version": 1, "changed": False, "num_comments": 0, "num_alike": 0} | NUMBERS
COUNTS |= {"before": NUMBERS | {"num_files": 0}}


def test_what_mlflow_lacks_is_sent_by_a_run_without_new_rows(monkeypatch: pytest.MonkeyPatch):
    sent: list[Layout] = []
    monkeypatch.setattr(ingest, "ingest_log", lambda *arguments: COUNTS)
    monkeypatch.setattr(complete_windows, "make_complete_snapshots", lambda *arguments, show: "snapshots")
    monkeypatch.setattr(projection, "project", sent.append)
    for found in (None, "address"):
        monkeypatch.setattr(finished, "finished_report", lambda *arguments, found=found: found)
        monkeypatch.setattr(finished, "unsent_alarm", lambda report: None)
        assert finished_run("mylog", {}, Experiment(), 0, None, few=False) == (found, pytest.approx(0, abs=1))
    assert len(sent) == 1  # without a report the run itself sends them


def test_an_alarm_that_was_not_sent_is_sent_by_a_run_without_new_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setattr(ingest, "ingest_log", lambda *arguments: COUNTS)
    monkeypatch.setattr(complete_windows, "make_complete_snapshots", lambda *arguments, show: "snapshots")
    monkeypatch.setattr(projection, "project", lambda layout: None)
    monkeypatch.setattr(finished, "finished_report", lambda *arguments: str(tmp_path))
    monkeypatch.setattr(finished, "read_bytes", lambda address, name: (Path(address) / name).read_bytes())
    sent: list[tuple[str, list[str]]] = []
    monkeypatch.setattr("flows.tasks.drift.send_again", lambda *alarm: sent.append(alarm) or "sent")
    for alarms, became in (([], "none"), (["interactions fell"], "sent"), (["interactions fell"], "not sent, because")):
        (tmp_path / SUMMARY).write_text(json.dumps({"drift": {"alarms": alarms, "alarm": became}}))
        finished_run("mylog", {}, Experiment(), 0, None, few=False)
    assert sent == [("snapshots", ["interactions fell"])]
    assert capsys.readouterr().out.count("drift: interactions fell; alarm sent") == 1


def test_it_loads_nothing_that_trains_evaluates_or_draws():
    names = "flows.commands.runs, flows.tasks.complete_windows, flows.tasks.ingest, flows.tasks.finished"
    names += ", flows.tasks.tracking.projection"
    heavy = {"torch", "lightgbm", "sklearn", "matplotlib", "prefect", "mlflow"}
    program = f"import sys, {names}; raise SystemExit(' '.join({heavy} & sys.modules.keys()) or None)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(str(tmp_path / "store"))


def written(layout: Layout, kind: str, version: int, experiment: Experiment, content: bytes = b"") -> str:
    settings = {**as_record(experiment), "seed": 0, "window": "1d"}
    lineage = Lineage(kind=kind, dataset="mylog", table_version=version, until=version, settings=settings)
    keys = {"version": version, "until": version, "settings": lineage.settings_hash, "seed": 0}
    return write_artifact(layout.artifact(kind, "mylog", **keys), {SUMMARY: content}, lineage)


def reported(layout: Layout, version: int, experiment: Experiment) -> tuple[str, str]:
    """Write the report of a version and what it names; return its address and that of its forecasts."""
    published = {kind: written(layout, kind, version, experiment) for kind in ("vectors", "forecasts")}
    names = {kind: layout.relative(address) for kind, address in published.items()}
    content = json.dumps({"addresses": names}).encode()
    return written(layout, "report", version, experiment, content), published["forecasts"]


OWN, OTHER = Experiment(), Experiment().changed({"model.width": 64})


def test_a_damaged_report_is_named_and_the_others_are_looked_at(layout: Layout):
    _, forecasts = reported(layout, 1, OWN)
    report, _ = reported(layout, 2, OTHER)
    Path(report, "manifest.json").write_bytes(b"?")
    problems: list[str] = []
    assert not lacks_published(layout, "mylog", OWN, 0, problems.append)
    files.remove_folder(forecasts)
    assert lacks_published(layout, "mylog", OWN, 0, problems.append)
    assert [problem.split()[0] for problem in problems] == [f"{report}/manifest.json"] * 2


def test_the_damaged_summary_of_a_report_of_these_settings_is_named_and_an_earlier_one_is_read(layout: Layout):
    _, forecasts = reported(layout, 1, OWN)
    report, _ = reported(layout, 2, OWN)
    summary = Path(report, SUMMARY)
    summary.write_bytes(b"?" * summary.stat().st_size)
    files.remove_folder(forecasts)
    problems: list[str] = []
    assert lacks_published(layout, "mylog", OWN, 0, problems.append)
    assert [problem.split()[0] for problem in problems] == [str(summary)]


def test_no_more_reports_are_opened_in_an_old_store(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    for version in range(1, 2 * KEEP + 1):
        reported(layout, version, OTHER)
    opened: list[str] = []
    monkeypatch.setattr(finished, "manifest", opened.append)
    assert not lacks_published(layout, "mylog", OWN, 0)
    versions = [int(layout.describe(address)[1]["version"]) for address in opened]
    assert versions == list(range(2 * KEEP, KEEP, -1))


def test_a_folder_that_is_no_version_is_no_report(layout: Layout):
    _, forecasts = reported(layout, 9, OWN)
    reported(layout, 10, OTHER)  # after 9, though its name comes before
    files.write_bytes(f"{layout.artifacts('report', 'mylog')}/version=old/until=1/manifest.json", b"{}")
    assert not lacks_published(layout, "mylog", OWN, 0)
    files.remove_folder(forecasts)
    assert lacks_published(layout, "mylog", OWN, 0)
