"""A run without new rows finds the report of the earlier run, and loads little to do so."""

import subprocess
import sys

import pytest

from dyformer.experiments.settings import Experiment
from flows.commands.runs import finished_run
from flows.tasks import complete_windows, finished, ingest
from flows.tasks.tracking import projection
from storage.layout import Layout

COUNTS = {"dataset": "mylog", "version": 1, "changed": False, "num_comments": 0} | dict.fromkeys(ingest.COUNTS, 0)


def test_what_mlflow_lacks_is_sent_by_a_run_without_new_rows(monkeypatch: pytest.MonkeyPatch):
    sent: list[Layout] = []
    monkeypatch.setattr(ingest, "ingest_log", lambda *arguments: COUNTS)
    monkeypatch.setattr(complete_windows, "make_complete_snapshots", lambda *arguments, show: "snapshots")
    monkeypatch.setattr(projection, "project", sent.append)
    for found in (None, "address"):
        monkeypatch.setattr(finished, "finished_report", lambda *arguments, found=found: found)
        assert finished_run("mylog", {}, Experiment(), 0, None, few=False) == (found, pytest.approx(0, abs=1))
    assert len(sent) == 1  # without a report the run itself sends them


def test_it_loads_nothing_that_trains_evaluates_or_draws():
    names = "flows.commands.runs, flows.tasks.complete_windows, flows.tasks.ingest, flows.tasks.finished"
    names += ", flows.tasks.tracking.projection"
    heavy = {"torch", "lightgbm", "sklearn", "matplotlib", "prefect", "mlflow"}
    program = f"import sys, {names}; raise SystemExit(' '.join({heavy} & sys.modules.keys()) or None)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
