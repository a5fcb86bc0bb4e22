"""`dyformer up` becomes ready, refuses a second one, and leaves no process, however it ends."""

import base64
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
from free_ports import free_port
from stack_processes import COMMAND, called, command, environment, running, seconds_to_ready, wait_until

from flows.service.processes import called_with, marked
from flows.service.running import PREFECT

pytestmark = pytest.mark.stack


def test_stack_is_ready_refuses_a_second_one_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    with running(tmp_path / "store") as up:
        print(f"ready after {seconds_to_ready(up):.0f} s")
        pages = [line.split()[1] for line in up.lines if re.match(r"(Prefect|MLflow):", line)]
        assert len(pages) == 2
        login = base64.b64encode(up.login[PREFECT].encode()).decode()
        for page in pages:
            assert page.startswith("http://127.0.0.1:")
            headers = {"accept": "text/html", "authorization": f"Basic {login}"}
            with urlopen(Request(page, headers=headers), timeout=30) as response:
                assert (response.status, response.headers.get_content_type()) == (200, "text/html")
        second = command(tmp_path / "store", "up")
        assert second.returncode == 1
        assert f"`dyformer up` runs already for {tmp_path / 'store'}: process {up.process.pid}" in second.stderr
        assert up.request("/health") is True
        for again in (command(tmp_path / "store", "deploy"), command(tmp_path / "store", "deploy")):
            assert again.returncode == 0, again.stderr
            assert "up to date" in again.stdout
            assert "made" not in again.stdout
        emit = "from prefect.events import emit_event; emit_event('by-a-socket', {'prefect.resource.id': 'a'})"
        subprocess.run([sys.executable, "-c", emit], env=up.environment | up.login, check=True)
        events = {"filter": {"event": {"name": ["by-a-socket"]}}}
        wait_until(lambda: up.request("/events/filter", events)["total"], 30, "the event did not arrive")
        assert len(marked(up.record["mark"])) >= 3
        own = Path(f"/proc/{up.process.pid}")
        assert "libtorch" not in (own / "maps").read_text()  # what deployed has ended
        assert len((own / "task" / own.name / "children").read_text().split()) == 3  # two servers and a worker
        output = up.stop(signal.SIGINT)
        assert up.process.returncode == 0, output
        assert output.splitlines() == ["stopping"]
        assert marked(up.record["mark"]) == []
    assert command(tmp_path / "store", "deploy").returncode == 1  # no server is configured any more


def parts(mark: str) -> set[int]:
    """The processes of a worker without its runs: one that stops the runs first, Prefect's, and those that look."""
    return set(marked(mark)) - set(marked("", "PREFECT__FLOW_RUN_ID"))


def looking(mark: str) -> set[int]:
    """The process of a worker that waits for the next look, and the look that goes on."""
    return parts(mark) & set(called_with("flows.service.looks"))


def is_complete(mark: str) -> bool:
    """Whether a worker has its two processes beside those that look."""
    return len(parts(mark) - looking(mark)) == 2 and bool(looking(mark))


def test_all_of_a_killed_stack_ends_with_it_and_the_next_one_ends_at_sigterm(tmp_path: Path) -> None:
    with running(tmp_path / "store") as killed:
        assert len(marked(killed.record["mark"])) >= 4  # two servers, the worker and Prefect's
        killed.process.kill()
        killed.process.wait()
        wait_until(lambda: not marked(killed.record["mark"]), 20, "a part of a killed stack was left")
        for name in ("prefect", "mlflow"):
            with pytest.raises(URLError, match="refused"):
                urlopen(killed.record[name], timeout=10)
        with running(tmp_path / "store") as up:
            assert up.login[PREFECT] != killed.login[PREFECT]
            mark = f"{up.record['mark']}-worker"
            wait_until(lambda: is_complete(mark), 60, "the worker has not all processes")
            killed_looks = looking(mark)
            for process in killed_looks:
                with suppress(ProcessLookupError):  # of a look that has ended
                    os.kill(process, signal.SIGKILL)
            wait_until(lambda: looking(mark) - killed_looks, 60, "the process that looks was not started again")
            before = parts(mark)
            os.kill(min(before), signal.SIGKILL)
            wait_until(lambda: not before & set(marked(mark)), 60, "a part of the worker was left")
            wait_until(lambda: is_complete(mark), 60, "the worker was not started again")
            up.process.send_signal(signal.SIGTERM)
            output = up.process.communicate(timeout=90)[0]
            assert "worker-1 ended with code -9" in output
            assert up.process.returncode == 0
            assert marked(up.record["mark"]) == []


def test_pages_alone_want_their_login_and_end_at_ctrl_c(tmp_path: Path) -> None:
    store = tmp_path / "store"
    arguments = [*COMMAND, "ui", "--port", str(free_port())]
    with subprocess.Popen(arguments, env=environment(store), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [line.rstrip() for line in iter(process.stdout.readline, "Ctrl-C stops it.\n")]
        [page] = [line.split()[1] for line in lines if line.startswith("MLflow:")]
        second = command(store, "ui")
        assert (second.returncode, "`dyformer ui` runs already" in second.stderr) == (1, True)
        printed = command(store, "login").stdout
        [(address, user, password)] = re.findall(r"MLflow +(\S+)  user (\S+), password (\S+)\n", printed)
        assert page.startswith(address)
        assert password not in "".join(lines)
        search = f"{address}/api/2.0/mlflow/experiments/search?max_results=9"
        with pytest.raises(HTTPError, match="401"):
            urlopen(search, timeout=30)
        assert called(search, None, f"{user}:{password}")["experiments"]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert command(store, "login").returncode == 1
    with pytest.raises(URLError, match="refused"):
        urlopen(search, timeout=30)
