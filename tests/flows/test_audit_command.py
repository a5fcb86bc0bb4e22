"""The command `audit`: a whole one on a real Prefect server, and leaks in the store that it finds."""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from own_log import READING, own_log

import flows.cli
import flows.stages
import flows.tasks.snapshots
from dyformer.evaluation.audit.case import Check
from dyformer.evaluation.audit.checks import NUM_CHECKS
from dyformer.evaluation.audit.events import NUM_EVENT_CHECKS
from dyformer.experiments.methods import MethodFailed
from dyformer.experiments.settings import Experiment
from dyformer.graphs.snapshots import build_snapshots
from dyformer.logs.time_windows import Window
from flows.tasks.evaluation.audit import PAGE, STORE_CHECKS, audit_log, audit_store, read_audit
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import StepOutOfRange, make_snapshots, open_snapshots
from storage.artifacts.artifact import open_artifact
from storage.events.table import read_events
from storage.layout import Layout
from storage.queries import query

UNTIL = 5


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        flows.cli.main(list(arguments))
    return int(ending.value.code or 0)


@pytest.fixture(scope="module")
def folder(empty_database: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("audit")
    empty_database(folder / "store" / "mlflow.db")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DYFORMER_STORAGE", str(folder / "store"))
        environment.setenv("PREFECT_LOGGING_LEVEL", "CRITICAL")
        environment.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield folder


@pytest.fixture(scope="module")
def snapshots(folder: Path) -> str:
    log = own_log(folder / "mylog.csv")
    ingest_log("mylog", {"log": [str(log)], "window": "5d", **READING}, lambda text: None)
    return make_snapshots("mylog")


@pytest.fixture(scope="module")
def audited(server: str, folder: Path, snapshots: str) -> dict[str, Any]:
    """Content of the file that `dyformer audit ... --json FILE` wrote."""
    files = ("--json", str(folder / "out" / "audit.json"), "--report", str(folder / "out" / "audit.md"))
    assert command("audit", "mylog", "--methods", "edgebank_last,logistic", *files) == 0
    return json.loads((folder / "out" / "audit.json").read_text())


BROKEN = """
class Broken:
    def fit_pairs(self, graph, labelled):
        return {}["missing"]
"""


def test_an_error_of_a_users_method_is_named_with_its_step(
    snapshots: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "broken_scorer.py"
    file.write_text(BROKEN)
    with pytest.raises(MethodFailed, match=rf"^Broken, step {UNTIL + 1}: KeyError: 'missing' \({file}, line 4\)"):
        audit_log(snapshots, ["L3", "broken_scorer:Broken"], UNTIL, Experiment())


def test_every_check_is_in_the_report(audited: dict[str, Any], folder: Path):
    assert len(audited["checks"]) == NUM_CHECKS + NUM_EVENT_CHECKS + len(STORE_CHECKS)
    assert {row["outcome"] for row in audited["checks"]} == {"passed"}
    assert audited["failed"] == []
    assert audited["methods"] == ["EdgeBank (last)", "Logistic regression on pair features"]
    page = (folder / "out" / "audit.md").read_text()
    assert "No check failed." in page
    assert all(f"| {row['check']} | passed |" in page for row in audited["checks"])


def test_an_audit_is_tracked_beside_the_runs_of_the_log(audited: dict[str, Any], folder: Path):
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder}/store/mlflow.db")
    experiment = client.get_experiment_by_name("dyformer-mylog")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], "tags.stage = 'audit'")
    assert run.info.run_name == f"audit, mylog v1 step {audited['step']}"
    assert run.data.tags["passed"] == "True"
    assert run.data.metrics["audit/num_failed"] == 0
    assert run.data.metrics["audit/num_checks"] == len(audited["checks"])
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"audit.json", "audit.md", "checks.csv"}


def test_checks_are_a_view(audited: dict[str, Any], folder: Path):
    statement = "select \"check\", outcome from audit where until = 7 and outcome = 'passed'"
    rows = query(Layout(str(folder / "store")), statement)
    assert rows["check"].to_list() == [row["check"] for row in audited["checks"]]


def test_failed_checks_are_named_and_exit_with_1(
    snapshots: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def checks(case: object) -> Iterator[Check]:
        yield Check(name="chance", compared="a | b", methods=("L3",), passed=False, detail="AUC 0.9")
        yield Check(name="label permutation", compared="", methods=(), passed=None, detail="too few links")

    monkeypatch.setattr("flows.tasks.evaluation.audit.audit", checks)
    for name in ("audit_store", "event_checks"):
        monkeypatch.setattr(f"flows.tasks.evaluation.audit.{name}", lambda *arguments: iter(()))
    report = audit_log(snapshots, ["l3"], UNTIL, Experiment())
    table, page, record = read_audit(report)
    assert table["detail"].to_list() == ["AUC 0.9", "too few links"]
    assert record["failed"] == ["chance"]
    assert "1 of 2 checks failed: chance." in page
    assert "| label permutation | not possible |" in page
    assert PAGE in sorted(open_artifact(report).entries)
    made = {"report": report, "tracking": {"run": "7", "model_version": None, "problem": None}, "failed": ["chance"]}
    monkeypatch.setattr(flows.stages, "audit", lambda *arguments: made)
    monkeypatch.setattr("flows.commands.runs.announced", nullcontext)
    assert command("audit", "mylog") == 1
    assert "1 of 2 checks failed: chance" in capsys.readouterr().out


def test_a_step_without_a_later_one_is_refused(snapshots: str):
    with pytest.raises(StepOutOfRange, match=r"^step 9, after which step 10 is forecast: .*10 cannot be evaluated"):
        audit_log(snapshots, ["l3"], 9, Experiment())


def outcomes(snapshots: str) -> dict[str, bool | None]:
    return {check.name: check.passed for check in audit_store(open_snapshots(snapshots), UNTIL, Experiment())}


def windows_of_equal_count(monkeypatch: pytest.MonkeyPatch):
    """Windows divide the whole log, although a length was declared."""
    window = Window(rule="equal_count", count=9)
    changed = lambda events, declared, time_unit: build_snapshots(events, window, time_unit)  # noqa: E731
    monkeypatch.setattr(flows.tasks.snapshots, "build_snapshots", changed)


def rows_of_every_version(monkeypatch: pytest.MonkeyPatch):
    """Rows that arrive later are in the snapshots of an earlier version."""
    newest = lambda layout, dataset, version: read_events(layout, dataset)  # noqa: E731
    monkeypatch.setattr(flows.tasks.snapshots, "read_events", newest)


@pytest.mark.parametrize(
    ("leak", "check"), [(windows_of_equal_count, "malformed bytes"), (rows_of_every_version, "late rows")]
)
def test_a_leak_in_the_store_is_found(
    leak: Callable[[pytest.MonkeyPatch], None], check: str, snapshots: str, monkeypatch: pytest.MonkeyPatch
):
    leak(monkeypatch)
    assert outcomes(snapshots)[check] is False


def test_the_store_is_the_users_own_again_after_an_audit(snapshots: str, folder: Path):
    before = sorted((folder / "store").rglob("*"))
    assert outcomes(snapshots) == dict.fromkeys(STORE_CHECKS, True)
    assert sorted((folder / "store").rglob("*")) == before
    assert open_snapshots(snapshots).layout.root == str(folder / "store")


def test_rows_of_a_log_with_windows_by_number_are_late_only(folder: Path, snapshots: str):
    ingest_log("counted", {"log": [str(folder / "mylog.csv")], "window": "9 equal", **READING}, lambda text: None)
    assert outcomes(make_snapshots("counted")) == {"malformed bytes": None, "late rows": True}
