"""The environment of every process that runs a flow."""

import os
import subprocess
import sys


def test_importing_a_flow_sets_variables_that_the_user_has_not_set() -> None:
    unset = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "DO_NOT_TRACK")}
    code = "import flows, os; print(os.environ['OMP_WAIT_POLICY'], os.environ['DO_NOT_TRACK'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**unset, "DO_NOT_TRACK": "0"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["PASSIVE", "0"]
