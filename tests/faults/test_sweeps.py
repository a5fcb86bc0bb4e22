"""A sample of the sweeps over ingests: `make test-faults` runs all of them, over every command."""

import os
import subprocess
import sys
from pathlib import Path


def test_ingests_survive_kills_errors_and_each_other():
    seed = int.from_bytes(os.urandom(4))
    environment = {name: value for name, value in os.environ.items() if name != "DYFORMER_STATE"}
    command = [sys.executable, str(Path(__file__).with_name("sample.py")), str(seed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"repeat it: python tests/faults/sample.py {seed}\n{done.stdout}{done.stderr}"
