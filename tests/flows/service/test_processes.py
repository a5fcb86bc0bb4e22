"""A service has a log and an end; all that it started is found by its mark and ended with it."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.service.processes import MARK, Service, ServiceFailed, called_with, end_marked, marked

CHILD = "import subprocess, sys, time; print(sys.argv, flush=True)\n"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('started', flush=True); time.sleep(600)"
)


@pytest.fixture
def mark() -> Iterator[str]:
    value = uuid.uuid4().hex
    yield value
    for left in marked(value):
        os.kill(left, signal.SIGKILL)


def service(folder: Path, mark: str, code: str) -> Service:
    (folder / "mine.py").write_text(code)
    path = {"PYTHONPATH": str(folder)}
    return Service(
        name="mine", arguments=["mine"], environment={MARK: mark, **path}, folder=folder, is_ready=lambda: False
    )


def started(one: Service) -> Service:
    one.start()
    until = time.monotonic() + 30
    while not one.log.read_bytes() and time.monotonic() < until:
        time.sleep(0.05)
    return one


def test_a_process_in_a_session_of_its_own_and_one_that_ignores_sigterm_are_ended(tmp_path: Path, mark: str) -> None:
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {STUBBORN!r}], start_new_session=True)"
    one = started(service(tmp_path, mark, code))
    assert one.process is not None
    assert len(marked(mark)) == 2
    assert one.process.pid in marked(mark)
    began = time.monotonic()
    end_marked(mark, seconds=1.0)
    assert marked(mark) == []
    assert 1.0 <= time.monotonic() - began < 10.0  # the stubborn one had its second
    one.process.wait(10)


def test_marks_of_others_are_left_alone(tmp_path: Path, mark: str) -> None:
    one = started(service(tmp_path, f"{mark}-worker", "import time; print(1, flush=True); time.sleep(600)"))
    end_marked(f"{mark}-server", seconds=5.0)
    one.check()
    end_marked(f"{mark}-worker", seconds=5.0)
    assert one.process is not None
    one.process.wait(10)  # an ending process loses its mark a moment before it has ended
    with pytest.raises(ServiceFailed, match=rf"mine ended with code -15: its log is {tmp_path}/mine.log"):
        one.check()


def test_a_service_that_ends_or_is_never_ready_is_named_with_its_log(tmp_path: Path, mark: str) -> None:
    one = started(service(tmp_path, mark, "print('sorry', flush=True); raise SystemExit(3)"))
    with pytest.raises(ServiceFailed, match="mine ended with code 3"):
        one.wait_until_ready(30, lambda: False)
    assert one.log.read_text() == "sorry\n"
    one = started(service(tmp_path, mark, "import time; time.sleep(600)"))
    with pytest.raises(ServiceFailed, match="was not ready after 0 s"):
        one.wait_until_ready(0.1, lambda: False)
    one.wait_until_ready(600, lambda: True)  # the stack is stopping: no one waits for it
    end_marked(mark, seconds=5.0)
    assert one.process is not None
    assert one.process.wait(10) == -signal.SIGTERM


def test_modules_are_not_imported_from_the_working_folder(tmp_path: Path, mark: str) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(7)")
    one = service(tmp_path, mark, "")
    one.arguments, one.environment = ["json.tool", "--help"], {MARK: mark}
    one.start()
    assert one.process is not None
    assert one.process.wait(30) == 0, one.log.read_text()
    assert isinstance(one.process.args, list)
    assert sys.executable in one.process.args


def test_processes_are_found_by_parts_of_their_command_line() -> None:
    with subprocess.Popen(["sleep", "60", "0", "0.1"]) as process:
        until = time.monotonic() + 10  # for a moment after its start a process has no command line
        while process.pid not in called_with("sleep 60", "0 0.1") and time.monotonic() < until:
            time.sleep(0.01)
        assert process.pid in called_with("sleep 60", "0 0.1")
        assert process.pid not in called_with("sleep 60", "0 0")
        assert process.pid not in called_with("sleep 0")
        process.kill()
