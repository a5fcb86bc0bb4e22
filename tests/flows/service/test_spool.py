"""What waits for MLflow is counted, sent by a command, and sent before a run does anything."""

from collections.abc import Callable
from pathlib import Path

import pytest

import flows.cli
from flows.service.spool import replay, waiting
from storage.layout import Layout
from storage.tracking.runs import open_tracker


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A store with one run that waits, because nothing listens at MLflow's address."""
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path))
    monkeypatch.delenv("DYFORMER_STATE", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    layout = Layout.from_environment()
    with open_tracker(layout).run(dataset="uci", name="waits", key="k") as run:
        run.metrics({"loss": 1.0})
    assert len(waiting(layout)) == 1
    return layout


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        flows.cli.main(["spool", *arguments])
    return int(ending.value.code or 0)


def test_the_command_sends_what_waits_once_mlflow_is_back(
    layout: Layout,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    empty_database: Callable[[Path], Path],
) -> None:
    assert command() == 0
    assert capsys.readouterr().out == f"0 runs sent to MLflow, 1 wait in {layout.spool}\n"
    assert command("--replay") == 1
    printed = capsys.readouterr().out
    assert printed.startswith("not sent: ")
    assert printed.endswith(f"0 runs sent to MLflow, 1 wait in {layout.spool}\n")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    empty_database(Path(layout.state) / "mlflow.db")
    assert command("--replay") == 0
    assert capsys.readouterr().out == f"1 runs sent to MLflow, 0 wait in {layout.spool}\n"
    client = open_tracker(layout).client()
    [run] = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert (run.info.run_name, run.info.status, run.data.metrics) == ("waits", "FINISHED", {"loss": 1.0})
    assert replay(layout) == ([], [])


def test_an_empty_spool_costs_no_import_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(layout: Layout) -> None:
        raise AssertionError

    monkeypatch.setattr("storage.tracking.runs.open_tracker", refused)
    assert replay(Layout(str(tmp_path))) == ([], [])
    assert list(tmp_path.iterdir()) == []
