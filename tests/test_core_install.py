"""Without extras the project is installed into a bare environment, which has no torch, and runs there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from core_programs import API, COMMANDS, core_commands

from dyformer.experiments.extras import EXTRAS

pytestmark = pytest.mark.bare

ROOT = Path(__file__).resolve().parents[1]
FOUND = f"""
import json
from importlib.util import find_spec

print(json.dumps([name for name in {sorted(EXTRAS)} if find_spec(name)]))
"""


def test_the_core_is_installed_and_runs_without_extras(tmp_path: Path) -> None:
    python, store = tmp_path / "bare" / "bin" / "python", tmp_path / "store"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "bare"], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", ROOT], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DYFORMER"))}
    environment |= {"DYFORMER_STORAGE": str(store)}

    def run(*arguments: str | Path) -> str:
        command = [python, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert json.loads(run("-c", FOUND)) == []
    run("-m", "pip", "check")
    run("-c", API)
    run("-c", COMMANDS, json.dumps(core_commands(tmp_path)))
