"""Machines with one S3 store that track the same runs at one MLflow server: nothing is there twice.

`python tests/faults/machines.py --tries 6` runs the whole sweep (`make test-faults`). Each machine is a process with a
folder of state of its own, so that no lock of a file reaches the others; only the lease in S3 does.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # of the module with the S3 server
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "storage"))  # of the module with the processes

from free_ports import free_port
from object_store import BUCKET, object_store
from test_tracking_at_once import assert_once, started  # pyright: ignore[reportMissingImports]

from storage.tracking.mlflow_client import set_environment

START_SECONDS = 120.0


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Start a server on a free port; give its address."""
    port = free_port()
    program = shutil.which("mlflow", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert program is not None
    stores = ["--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "files")]
    command = [program, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *stores]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}", server, folder / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # with its workers
        server.wait(timeout=30)


def _wait_until_ready(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5):
            return
        time.sleep(0.2)
    raise AssertionError(f"the MLflow server did not start:\n{log.read_text()[-2000:]}")


def held(number: int, address: str, folder: Path) -> bool:
    """Let two or three machines track the same runs at once."""
    states = [folder / f"round-{number}" / name for name in ("one", "two", "three")[: 2 + number % 2]]
    dataset, go = f"round-{number}", folder / f"go-{number}"
    processes = started(f"s3://{BUCKET}/store", states, go, dataset, MLFLOW_TRACKING_URI=address)
    try:
        assert_once(address, processes, states, dataset)
    except AssertionError:
        traceback.print_exc()
        return False
    return True


def main() -> None:
    """Run the sweep and print how many rounds held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=6)
    options = parser.parse_args()
    set_environment()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name, object_store(Path(name)) as keys, mlflow_server(Path(name)) as address:
        os.environ.update(keys)
        num_held = sum(held(number, address, Path(name)) for number in range(options.tries))
    print(f"machines: {num_held} of {options.tries} held, {time.monotonic() - begun:.0f} s")
    sys.exit(num_held < options.tries)


if __name__ == "__main__":
    main()
