"""MLflow is a view of the store: what it lacks is sent once, whatever was away, killed or done at the same time."""

import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from mlflow import MlflowClient

import flows.cli
from flows.tasks.tracking import results
from flows.tasks.tracking.projection import FILE, project
from storage.artifacts.artifact import (
    ArtifactMissing,
    Lineage,
    lineage_of,
    note_pending,
    open_artifact,
    read_bytes,
    write_artifact,
)
from storage.bytes import files
from storage.bytes.objects import StoreUnreachable
from storage.layout import Layout
from storage.tracking.marks import MARK, due, mark, marked, noted
from storage.tracking.mlflow_client import connect
from storage.tracking.runs import Tracker, open_tracker, tracking_of
from storage.verification import faults, repaired

AWAY = "http://127.0.0.1:9"
CALLS = (
    "create_experiment",
    "search_runs",
    "create_run",
    "log_batch",
    "log_artifacts",
    "create_registered_model",
    "create_model_version",
    "set_registered_model_alias",
    "set_terminated",
)


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Callable[[Path], Path]) -> Layout:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    for name in ("DYFORMER_STATE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    empty_database(tmp_path / "store" / "mlflow.db")
    monkeypatch.setitem(results.SEND, "study", send)
    return Layout.from_environment()


def result(layout: Layout, dataset: str = "log", number: int = 1) -> str:
    """Store a finished result, whose run `send` makes."""
    lineage = Lineage(kind="study", dataset=dataset, table_version=number, until=3)
    address = layout.artifact("study", dataset, version=number, until=3, settings="0" * 12)
    write_artifact(address, {"note.txt": str(number).encode()}, lineage)
    moment = 1_000 + number
    os.utime(Path(address, "manifest.json"), (moment, moment))
    return address


def send(tracker: Tracker, address: str) -> dict[str, Any]:
    """Make every kind of call to MLflow for a result."""
    found = lineage_of(address)
    run = tracker.run(dataset=found.dataset, name=f"run {found.table_version}", key=f"key {found.table_version}")
    with run as opened:
        opened.params({"width": 8})
        for epoch in range(3):
            opened.metrics({"loss": epoch / 2}, step=epoch)
        opened.metrics({"test/auc": 0.5}, replace=True)
        for name in sorted(open_artifact(address).entries):
            opened.artifact(f"files/{name}", read_bytes(address, name))
        version = opened.register_model(_model(tracker), name=f"dyformer-{found.dataset}", aliases=("champion",))
    return {"run": opened.run_id, "model_version": version}


def _model(tracker: Tracker) -> Path:
    folder = Path(tracker.layout.state, "locks", "model")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "MLmodel").write_text("flavors: {}")
    return folder


def contents(layout: Layout, dataset: str = "log") -> dict[str, Any]:
    """Give all that MLflow has of a dataset, by the keys of its runs."""
    client = MlflowClient(layout.tracking_database, layout.tracking_database)
    experiment = client.get_experiment_by_name(f"dyformer-{dataset}")
    found: dict[str, Any] = {}
    for run in client.search_runs([experiment.experiment_id]) if experiment is not None else []:
        curves = {
            name: [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
        versions = client.search_model_versions(f"run_id = '{run.info.run_id}'")
        key = run.data.tags["dyformer.run_key"]
        assert key not in found
        found[key] = {
            "status": run.info.status,
            "params": run.data.params,
            "curves": curves,
            "files": [file.path for file in client.list_artifacts(run.info.run_id, "files")],
            "num_versions": len(versions),
        }
    return found


DROP = "import flows.cli; flows.cli.main(['drop', 'log', '--yes'])"
WHOLE = {
    "status": "FINISHED",
    "params": {"width": "8"},
    "curves": {"loss": [(0, 0.0), (1, 0.5), (2, 1.0)], "test/auc": [(0, 0.5)]},
    "files": ["files/note.txt"],
    "num_versions": 1,
}


def test_what_mlflow_lacks_is_sent_in_its_order_once_it_is_back_and_marked(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [result(layout, number=number) for number in (2, 1)]
    before = files.find(layout.root)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", AWAY)
    assert project(layout).sent == []
    assert "Connection refused" in str(tracking_of(addresses[0])["problem"])
    assert [path for path in files.find(layout.root) if "/locks/" not in path] == before
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert project(layout) == ([layout.relative(address) for address in reversed(addresses)], [])
    assert contents(layout) == {"key 1": WHOLE, "key 2": WHOLE}
    where = tracking_of(addresses[0])
    assert where == {**where, "tracker": layout.tracking_database, "problem": None, "model_version": "2"}
    client = open_tracker(layout).client()
    assert client.get_run(where["run"]).info.run_name == "run 2"
    assert client.get_model_version_by_alias("dyformer-log", "champion").run_id == where["run"]
    record = marked(addresses[0])
    assert record is not None
    assert layout.absolute(record["artifact"]) == addresses[0]


def test_mlflow_is_not_opened_if_nothing_is_due(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    result(layout)
    project(layout)
    monkeypatch.setattr("flows.tasks.tracking.projection.open_tracker", None)
    assert project(layout) == ([], [])


class Failing:
    """MLflow's client, whose n-th call fails, before it or after it had its effect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, after: bool):
        self.after, self.left = after, 0
        for name in CALLS:
            monkeypatch.setattr(MlflowClient, name, self.counted(getattr(MlflowClient, name)))

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise ConnectionError("gone")
            made = call(*arguments, **options)
            if self.left == 0:
                raise ConnectionError("gone")  # the response was lost
            return made

        return called


@pytest.mark.parametrize("after", [False, True])
def test_a_projection_that_fails_at_any_call_is_completed_by_the_next_one(
    layout: Layout, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, number, problems = Failing(monkeypatch, after=after), 0, ["gone"]
    while problems:
        number += 1
        failing.left = number
        result(layout, f"log{number}")
        problems = project(layout).problems
        assert problems in ([], ["gone"])
        failing.left = 0
        assert project(layout).problems == []
        assert contents(layout, f"log{number}") == {"key 1": WHOLE}
    assert number > len(CALLS)


def test_a_killed_process_leaves_a_result_due_and_the_mark_comes_last(layout: Layout) -> None:
    address = result(layout)
    send(open_tracker(layout), address)  # and was killed
    assert due(layout) == [address]
    assert project(layout).sent == [layout.relative(address)]
    assert contents(layout) == {"key 1": WHOLE}


def test_a_silent_server_costs_one_call_however_much_is_due(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    for number in range(5):
        result(layout, number=number)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # accepts and never responds
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{listening.getsockname()[1]}")
        started = time.monotonic()
        assert len(project(layout).problems) == 1
        assert time.monotonic() - started < 6
    assert len(due(layout)) == 5


def test_a_locked_database_keeps_results_due(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.tracking.mlflow_client.LOCKED_SECONDS", 0.2)
    result(layout)
    holder = sqlite3.connect(Path(layout.state, "mlflow.db"), isolation_level=None)
    holder.execute("begin immediate")
    [problem] = project(layout).problems
    holder.execute("rollback")
    holder.close()
    assert "locked" in problem
    assert project(layout).problems == []
    assert contents(layout) == {"key 1": WHOLE}


def test_a_file_that_is_no_database_keeps_results_due(layout: Layout) -> None:
    Path(layout.state, "mlflow.db").write_bytes(b"this is no database at all, only text" * 100)
    address = result(layout)
    monkeypatched = open_tracker(layout)
    monkeypatched._client = None
    assert "not a database" in project(layout).problems[0]
    assert due(layout) == [address]


def test_a_missing_driver_of_the_artifact_store_is_named(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    address = result(layout)
    monkeypatch.setattr(open_tracker(layout), "artifact_root", "s3://nobody/mlflow")
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", AWAY)  # of no test before: MLflow keeps a client for each address
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert "pip install 'dyformer[server]'" in project(layout).problems[0]
    assert due(layout) == [address]


def test_results_whose_files_need_a_server_wait_alone_and_say_so(layout: Layout) -> None:
    open_tracker(layout).client().create_experiment("dyformer-served", artifact_location="mlflow-artifacts:/served")
    served, other = result(layout, "served", 1), result(layout, "log", 2)
    done = project(layout)
    assert done.sent == [layout.relative(other)]
    assert "start `dyformer up`" in done.problems[0]
    assert due(layout) == [served]


def test_a_fault_of_one_result_keeps_no_other_one(layout: Layout) -> None:
    damaged, other = result(layout, number=1), result(layout, number=2)
    Path(damaged, "note.txt").write_text("x")
    done = project(layout)
    assert done.sent == [layout.relative(other)]
    assert layout.relative(damaged) in done.problems[0]


def test_a_refused_result_is_named_once_and_tried_after_longer_and_longer_pauses(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, other = result(layout, number=1), result(layout, number=2)
    calls, name = list[str](), layout.relative(refused)

    def send_or_refuse(tracker: Tracker, address: str) -> dict[str, Any]:
        calls.append(address)
        if address == refused:
            raise ValueError("a metric's name is refused")
        return send(tracker, address)

    def later(minutes: float) -> None:
        file = Path(layout.service, FILE)
        records = json.loads(file.read_text())
        moment = datetime.fromisoformat(records[name]["since"]) - timedelta(minutes=minutes)
        file.write_text(json.dumps({name: {**records[name], "since": moment.isoformat()}}))

    monkeypatch.setitem(results.SEND, "study", send_or_refuse)
    assert project(layout, patient=True) == ([layout.relative(other)], [f"{name}: a metric's name is refused"])
    assert project(layout, patient=True) == ([], [])
    [problem] = project(layout, whole=True, patient=True).problems  # of each hour
    assert re.match(f"{name}: a metric's name is refused; it is sent again after [0-9:]{{5}} UTC", problem)
    assert calls == [refused, other]
    for number, minutes in enumerate((5, 20, 80), start=2):
        later(minutes - 1)
        assert project(layout, patient=True) == ([], [])
        later(1)
        assert project(layout, patient=True) == ([], [])  # it is tried, and named no more
        assert calls.count(refused) == number
    tries = json.loads(Path(layout.service, FILE).read_text())[name]["num_tries"]
    assert len(project(layout).problems) == 1  # a run, and `dyformer track`, try everything
    assert json.loads(Path(layout.service, FILE).read_text())[name]["num_tries"] == tries  # and lengthen no pause
    monkeypatch.setitem(results.SEND, "study", send)
    later(1_440)
    assert project(layout, patient=True) == ([name], [])
    assert not Path(layout.service, FILE).exists()


@pytest.mark.parametrize(
    "content", ["null", "[1]", '{"NAME": {}}', '{"NAME": {"since": "x", "num_tries": 1, "reason": "b"}}', "{"]
)
def test_a_file_of_refusals_that_is_none_keeps_nothing_back(layout: Layout, content: str) -> None:
    address = result(layout)
    Path(layout.service).mkdir(parents=True, exist_ok=True)
    Path(layout.service, FILE).write_text(content.replace("NAME", layout.relative(address)))
    assert project(layout, patient=True) == ([layout.relative(address)], [])


def test_a_refusal_of_a_time_to_come_waits_no_longer(layout: Layout) -> None:
    address = result(layout)
    since = (datetime.now(UTC) + timedelta(days=400)).isoformat()  # the clock was set back since
    record = {"since": since, "num_tries": 2, "reason": "refused"}
    Path(layout.service).mkdir(parents=True, exist_ok=True)
    Path(layout.service, FILE).write_text(json.dumps({layout.relative(address): record}))
    assert project(layout, patient=True) == ([layout.relative(address)], [])


def test_a_store_that_is_away_is_no_refusal(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    address = result(layout)

    def away(*_: object) -> None:
        raise StoreUnreachable("s3://bucket", "it is away")

    monkeypatch.setitem(results.SEND, "study", away)
    assert len(project(layout, patient=True).problems) == 1
    monkeypatch.setitem(results.SEND, "study", send)
    assert project(layout, patient=True).sent == [layout.relative(address)]


def test_a_result_whose_inputs_were_removed_is_said_once_and_not_tried_again(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pruned(tracker: Tracker, address: str) -> dict[str, Any]:
        raise ArtifactMissing("its forecasts were removed")

    monkeypatch.setitem(results.SEND, "study", pruned)
    address = result(layout)
    assert "its forecasts were removed" in project(layout).problems[0]
    assert project(layout) == ([], [])
    assert "cannot be sent any more" in tracking_of(address)["problem"]


def test_a_result_that_is_removed_meanwhile_ends_nothing(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    removed, other = result(layout, number=1), result(layout, number=2)

    def pruned(tracker: Tracker, address: str) -> dict[str, Any]:
        if address == removed:
            files.remove_folder(removed)
        return send(tracker, address)

    monkeypatch.setitem(results.SEND, "study", pruned)
    assert project(layout, again=True) == ([layout.relative(other)], [])
    assert due(layout) == []


def test_a_result_that_cannot_be_sent_again_keeps_its_mark(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    address = result(layout)
    project(layout)
    before = marked(address)

    def pruned(tracker: Tracker, address: str) -> dict[str, Any]:
        raise ArtifactMissing("its forecasts were removed")

    monkeypatch.setitem(results.SEND, "study", pruned)
    assert "its forecasts were removed" in project(layout, again=True).problems[0]
    assert marked(address) == before


def test_a_result_that_is_made_anew_while_it_is_sent_stays_due(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    address = result(layout)
    other = Lineage(kind="study", dataset="log", table_version=1, until=3, inputs={"other": "input"})

    def replaced(tracker: Tracker, address: str) -> dict[str, Any]:
        where = send(tracker, address)
        write_artifact(address, {"note.txt": b"1"}, other)
        return where

    monkeypatch.setitem(results.SEND, "study", replaced)
    assert project(layout).sent == []
    assert due(layout) == [address]


def test_a_file_that_is_refused_keeps_no_other_result_and_no_curve(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, other = result(layout, number=1), result(layout, number=2)

    def too_large(tracker: Tracker, address: str) -> dict[str, Any]:
        if address == refused:
            response = requests.Response()
            response.status_code = 413
            raise requests.HTTPError("413: the file is too large", response=response)
        return send(tracker, address)

    monkeypatch.setitem(results.SEND, "study", too_large)
    done = project(layout)
    assert (done.sent, due(layout)) == ([layout.relative(other)], [refused])
    assert done.problems == [f"{layout.relative(refused)}: 413: the file is too large"]
    assert not open_tracker(layout).is_paused


def test_a_dataset_in_use_waits_for_the_next_look(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.tasks.tracking.projection.MOST_SECONDS", 0.1)
    address = result(layout)
    holder = "import sys; from storage.layout import Layout; from storage.locks import not_in_use\n"
    holder += "with not_in_use(Layout.from_environment(), 'log', 'drop'): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        [problem] = project(layout).problems
        process.communicate("")
    assert "it is sent at the next look" in problem
    assert project(layout).sent == [layout.relative(address)]


def test_a_ledger_is_sent_once_for_all_of_its_outcomes(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setitem(results.SEND, "outcomes", lambda tracker, address: calls.append(address) or {"run": "a"})
    addresses = []
    for dataset, number in (("log", 1), ("log", 2), ("other", 3)):
        lineage = Lineage(kind="outcomes", dataset=dataset, table_version=number, until=3)
        addresses.append(layout.artifact("outcomes", dataset, version=number, until=3, settings="0" * 12))
        write_artifact(addresses[-1], {"note.txt": str(number).encode()}, lineage)
    assert len(project(layout).sent) == 3
    assert sorted(calls) == sorted([addresses[0], addresses[2]]) or sorted(calls) == sorted(
        [addresses[1], addresses[2]]
    )
    assert [(marked(address) or {})["run"] for address in addresses] == ["a"] * 3


def test_a_result_is_noted_before_it_is_finished_and_one_listing_finds_what_is_due(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("storage.artifacts.artifact._publish_local", killed)
        with pytest.raises(KeyboardInterrupt):
            result(layout)
    assert len(files.children(layout.absolute("pending"))) == 1
    assert noted(layout) == []
    address = result(layout)  # the same command again
    listings: list[str] = []
    find, children = files.find, files.children
    with monkeypatch.context() as patch:
        patch.setattr(files, "find", lambda folder, *rest: listings.append(folder) or find(folder, *rest))
        patch.setattr(files, "children", lambda folder: listings.append(folder) or children(folder))
        assert noted(layout) == [address]
    assert listings == [layout.absolute("pending")]
    mark(layout, address, {"run": "a"})
    assert files.children(layout.absolute("pending")) == []
    note_pending(address)  # as if killed between the mark and the removal of the note
    assert noted(layout) == []
    assert files.children(layout.absolute("pending")) == []


def test_a_result_whose_note_was_lost_is_found_by_a_look_at_the_whole_store(layout: Layout) -> None:
    address = result(layout)
    files.remove_folder(layout.absolute("pending"))
    Path(layout.absolute("pending")).mkdir()
    Path(layout.absolute("pending"), "damaged").write_bytes(b"../\0")
    assert project(layout) == ([], [])
    assert project(layout, whole=True) == ([layout.relative(address)], [])


def test_a_run_whose_result_lost_its_parts_is_ended(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    def pruned(tracker: Tracker, address: str) -> dict[str, Any]:
        with tracker.run(dataset="log", name="run 1", key="key 1"):
            raise ArtifactMissing("its forecasts were removed")

    monkeypatch.setitem(results.SEND, "study", pruned)
    result(layout)
    project(layout)
    assert contents(layout)["key 1"]["status"] == "KILLED"


def test_a_damaged_mark_is_named_and_after_the_repair_the_result_is_sent_again(layout: Layout) -> None:
    address = result(layout)
    project(layout)
    sound = Path(address, MARK).read_bytes()
    for content in (b"", sound[:-9], sound.replace(b"run", b"nur", 1)):
        Path(address, MARK).write_bytes(content)
        assert "tracked.json" in tracking_of(address)["problem"]
        [fault] = [each for each in faults(layout) if each.address == f"{address}/{MARK}"]
        assert repaired(layout, "log", fault) is not None
        assert due(layout) == [address]
        project(layout)
        assert list(faults(layout)) == []
    assert contents(layout) == {"key 1": WHOLE}


def test_a_result_that_is_made_anew_is_due_again(layout: Layout) -> None:
    address = result(layout)
    project(layout)
    lineage = Lineage(kind="study", dataset="log", table_version=1, until=3, inputs={"other": "input"})
    write_artifact(address, {"note.txt": b"1"}, lineage)
    assert due(layout) == [address]


def test_a_store_that_is_moved_is_sent_no_second_time(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    result(layout)
    project(layout)
    moved = shutil.move(layout.root, f"{layout.root}-moved")
    assert due(Layout(moved)) == []


def test_the_command_gives_the_runs_of_a_moved_store_the_addresses_of_its_files(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = result(layout)
    project(layout)
    run = tracking_of(address)["run"]
    moved = Layout(shutil.move(layout.root, f"{layout.root}-moved"))
    monkeypatch.setenv("DYFORMER_STORAGE", moved.root)
    monkeypatch.delenv("DYFORMER_STATE", raising=False)
    with pytest.raises(SystemExit) as ending:
        flows.cli.main(["track"])
    assert not ending.value.code
    uri = connect(moved.tracking_database).get_run(run).info.artifact_uri  # as a program of another project reads it
    assert str(uri).startswith(f"{moved.root}/mlflow/")


def test_an_empty_mlflow_gets_the_whole_store_by_the_command(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, empty_database: Callable[[Path], Path], capsys: Any
) -> None:
    def command(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ending:
            flows.cli.main(["track", *arguments])
        return int(ending.value.code or 0)

    address = result(layout)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", AWAY)
    assert command() == 1
    printed = capsys.readouterr().out
    assert printed.startswith("not sent: ")
    assert printed.endswith("0 results sent to MLflow, 1 waits\n")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{empty_database(Path(layout.root, 'other.db'))}")
    assert command() == 0
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert command() == 0
    assert capsys.readouterr().out.endswith("0 results sent to MLflow, 0 wait\n")
    assert contents(layout) == {}
    for _ in range(2):
        assert command("--again") == 0
        assert capsys.readouterr().out == "1 result sent to MLflow, 0 wait\n"
    assert contents(layout) == {"key 1": WHOLE}
    assert open_tracker(layout).client().get_run(tracking_of(address)["run"]).info.run_name == "run 1"


def test_a_dataset_is_not_dropped_while_its_result_is_sent(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    def dropping(tracker: Tracker, address: str) -> dict[str, Any]:
        run = subprocess.run([sys.executable, "-c", DROP], capture_output=True, text=True, check=False)
        assert "is being ingested or trained on" in run.stderr
        return send(tracker, address)

    monkeypatch.setitem(results.SEND, "study", dropping)
    commit = Path(layout.commit("log", 1))
    commit.mkdir(parents=True)
    (commit / "part").touch()
    address = result(layout)
    assert project(layout).problems == []
    assert json.loads(Path(address, MARK).read_text())["record"]["model_version"] == "1"


def test_a_mark_of_another_process_is_found_before_the_result_is_sent(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = result(layout)

    def marked_meanwhile(*arguments: Any, **options: Any) -> list[str]:
        mark(layout, address, {"run": "other"})
        return [address]

    monkeypatch.setattr("flows.tasks.tracking.projection.noted", marked_meanwhile)
    assert project(layout) == ([], [])
    assert contents(layout) == {}
