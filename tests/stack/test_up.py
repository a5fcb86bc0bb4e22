"""`dyformer up` becomes ready, refuses a second one, and leaves no process, however it ends."""

import os
import re
import signal
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from stack_processes import command, running, seconds_to_ready, wait_until

from flows.service.processes import marked

pytestmark = pytest.mark.stack


def test_stack_is_ready_refuses_a_second_one_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    with running(tmp_path / "store") as up:
        print(f"ready after {seconds_to_ready(up):.0f} s")
        pages = [line.split()[1] for line in up.lines if re.match(r"(Prefect|MLflow):", line)]
        assert len(pages) == 2
        for page in pages:
            assert page.startswith("http://127.0.0.1:")
            with urlopen(Request(page, headers={"accept": "text/html"}), timeout=30) as response:
                assert (response.status, response.headers.get_content_type()) == (200, "text/html")
        second = command(tmp_path / "store", "up")
        assert second.returncode == 1
        assert f"`dyformer up` runs already for {tmp_path / 'store'}: process {up.process.pid}" in second.stderr
        assert up.request("/health") is True
        for again in (command(tmp_path / "store", "deploy"), command(tmp_path / "store", "deploy")):
            assert again.returncode == 0, again.stderr
            assert "up to date" in again.stdout
            assert "made" not in again.stdout
        assert len(marked(up.record["mark"])) >= 3
        output = up.stop(signal.SIGINT)
        assert up.process.returncode == 0, output
        assert output.splitlines() == ["stopping"]
        assert marked(up.record["mark"]) == []
    assert command(tmp_path / "store", "deploy").returncode == 1  # no server is configured any more


def test_stack_ends_at_sigterm_and_the_next_one_ends_what_a_killed_one_left(tmp_path: Path) -> None:
    with running(tmp_path / "store") as killed:
        killed.process.kill()
        killed.process.wait()
        worker = marked(f"{killed.record['mark']}-worker")
        assert worker
        with running(tmp_path / "store") as up:
            assert marked(killed.record["mark"]) == []
            mark = f"{up.record['mark']}-worker"
            before = set(marked(mark))
            assert len(before) == 2  # one that stops the runs first, and Prefect's
            os.kill(min(before), signal.SIGKILL)
            wait_until(lambda: not before & set(marked(mark)), 60, "a part of the worker was left")
            wait_until(lambda: len(marked(mark)) == 2, 60, "the worker was not started again")
            up.process.send_signal(signal.SIGTERM)
            output = up.process.communicate(timeout=90)[0]
            assert "worker-1 ended with code -9" in output
            assert up.process.returncode == 0
            assert marked(up.record["mark"]) == []
