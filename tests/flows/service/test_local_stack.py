"""Ports of a stack, its lock, and the addresses that other commands of the store take from it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import uuid
from pathlib import Path

import pytest
from filelock import FileLock

from flows.service.listening import port_of
from flows.service.processes import MARK, Stopping
from flows.service.running import ADDRESSES, LOCK, RECORD, running_stack, use_running_stack
from flows.service.stack import HOST, Ports, _write, run_stack
from storage.layout import Layout


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path))
    monkeypatch.delenv("DYFORMER_STATE", raising=False)
    for variable in ADDRESSES.values():
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    (tmp_path / "service").mkdir()
    return Layout.from_environment()


def record(layout: Layout) -> dict[str, object]:
    content = {"mark": "m", "process": 7, "prefect": "http://127.0.0.1:1/api", "mlflow": "http://127.0.0.1:2"}
    (Path(layout.service) / RECORD).write_text(json.dumps(content))
    return content


def test_a_given_port_that_is_taken_is_refused_and_a_usual_one_is_replaced() -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        taken = other.getsockname()[1]
        refused = pytest.raises(ValueError, match=f"port {taken} for mlflow is taken .* --mlflow-port")
        with refused, Ports(mlflow=taken).listening():
            pass
        with Ports(prefect=None, mlflow=None).listening() as listeners:
            ports = [port_of(listener) for listener in listeners.values()]
            assert len({*ports, taken}) == 3
            with Ports(prefect=None, mlflow=None).listening() as others:
                assert not {port_of(listener) for listener in others.values()} & set(ports)
        with Ports(prefect=ports[0], mlflow=ports[1]).listening():  # they are free again
            pass


def test_a_command_uses_the_stack_that_runs_and_no_other(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    assert running_stack(layout) is None
    content = record(layout)
    use_running_stack()
    assert "PREFECT_API_URL" not in os.environ  # a stack that was killed left its record
    with FileLock(Path(layout.service) / LOCK):
        assert running_stack(layout) == content
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
        use_running_stack()
        assert os.environ["PREFECT_API_URL"] == content["prefect"]
        assert os.environ["MLFLOW_TRACKING_URI"] == "http://elsewhere"
        (Path(layout.service) / RECORD).write_text('{"mark": "m"}')  # it is starting
        assert running_stack(layout) is None


def test_a_second_stack_is_refused_with_the_first_ones_process(layout: Layout) -> None:
    record(layout)
    with (
        FileLock(Path(layout.service) / LOCK),
        pytest.raises(
            ValueError, match=rf"runs already for {layout.root}: process 7, Prefect at http://127.0.0.1:1/api"
        ),
    ):
        run_stack(layout, Ports(), 1, print)
    assert (Path(layout.service) / RECORD).exists()


@pytest.mark.parametrize("is_copy", [False, True])
def test_what_a_killed_stack_left_is_ended_and_a_stack_on_a_copy_ends_nothing_of_the_original(
    layout: Layout, tmp_path: Path, *, is_copy: bool
) -> None:
    mark = uuid.uuid4().hex
    _write(Path(layout.service), {"mark": mark, "process": 7})
    if is_copy:
        shutil.copytree(layout.service, tmp_path / "copy" / "service")
    started = Layout(str(tmp_path / "copy"), state=str(tmp_path / "copy")) if is_copy else layout
    left = subprocess.Popen(["/bin/sleep", "60"], env={MARK: f"{mark}-server-prefect"})
    try:
        with socket.socket() as other:
            other.bind((HOST, 0))
            other.listen()
            with pytest.raises(ValueError, match="is taken by another program"):  # after those left were ended
                run_stack(started, Ports(mlflow=other.getsockname()[1]), 1, print)
        if is_copy:
            assert left.poll() is None
        else:
            assert left.wait(5) == -signal.SIGTERM
    finally:
        left.kill()
        left.wait()


def test_a_wrong_store_does_not_stop_a_command_that_needs_none(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    content = record(layout)
    with FileLock(Path(layout.service) / LOCK):
        monkeypatch.setenv("DYFORMER_STORAGE", "ftp://nowhere")
        with pytest.raises(ValueError, match="ftp://nowhere"):
            Layout.from_environment()
        use_running_stack()
        assert not any(variable in os.environ for variable in ADDRESSES.values())
        monkeypatch.setenv("DYFORMER_STORAGE", layout.root)
        use_running_stack()  # the setting alone made the difference
        assert os.environ["PREFECT_API_URL"] == content["prefect"]


def test_the_first_signal_stops_and_the_second_hurries() -> None:
    stopping, before = Stopping(), signal.getsignal(signal.SIGTERM)
    with stopping.listening():
        assert not stopping()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.wait(5)
        assert not stopping.is_hurried()
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping()
        assert stopping.is_hurried()
    assert signal.getsignal(signal.SIGTERM) is before
