"""The environment of every process that runs a flow."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prefect.exceptions import PrefectHTTPStatusError

from flows.commands.runs import announced
from flows.ending import FAILED, exit_code


def test_importing_a_flow_sets_variables_that_the_user_has_not_set() -> None:
    unset = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "DO_NOT_TRACK")}
    code = "import flows, os; print(os.environ['OMP_WAIT_POLICY'], os.environ['DO_NOT_TRACK'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**unset, "DO_NOT_TRACK": "0"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["PASSIVE", "0"]


LIMITED = """
import os, pathlib, sys
from dyformer.sampling import limits

limits.LIMITS = pathlib.Path(sys.argv[1])
os.sched_getaffinity = lambda process: set(range(8))
import flows, torch

print(os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads())
"""


@pytest.mark.parametrize(
    ("limit", "given", "printed"),
    [
        ("100000 100000", {}, ["1", "1"]),
        ("100000 100000", {"OMP_NUM_THREADS": "2"}, ["2", "2"]),
        ("max 100000", {}, ["None"]),
    ],
)
def test_in_a_container_torch_has_threads_for_the_cpus_of_its_limit(
    tmp_path: Path, limit: str, given: dict[str, str], printed: list[str]
) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | given
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[: len(printed)] == printed


REFUSED = httpx.Response(401, request=httpx.Request("POST", "http://127.0.0.1:4200/api/flow_runs/1/set_state"), json={})


@pytest.mark.parametrize(
    "error",
    [
        PrefectHTTPStatusError("Client error '401 Unauthorized'", request=REFUSED.request, response=REFUSED),
        httpx.ConnectError("All connection attempts failed"),
    ],
)
def test_a_server_that_is_lost_during_a_run_is_named_with_a_remedy(
    server: str, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> None:
        with announced():
            raise error

    assert exit_code(run) == FAILED
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dyformer: the Prefect server was lost during the run ({error})")
    assert "run the same command again" in line


@pytest.mark.parametrize("status", [404, 409, 422])
def test_an_answer_of_a_server_that_is_there_is_no_lost_one(server: str, status: int) -> None:
    response = httpx.Response(status, request=REFUSED.request)
    with pytest.raises(PrefectHTTPStatusError, match="no such run"), announced():
        raise PrefectHTTPStatusError("no such run", request=response.request, response=response)
