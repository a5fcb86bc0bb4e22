"""An experiment in two processes that is killed at random again and again, then finished: its files are those of one
run in one process, byte for byte.

`python tests/faults/experiments.py --tries 5` does it (`make test-faults`); `--seed S` repeats the times of the kills.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dyformer.baselines.dysat.method import DySAT
from dyformer.baselines.node2vec import Node2Vec
from dyformer.experiments.methods import METHODS
from dyformer.experiments.studies.studies import STUDIES, Study

ROWS = ("L3", "Toy walks", "Toy attention", "Forecaster with Toy walks", "DyFormer")
SHORT = ("epochs", "batches_per_epoch", "validation_batches")
TINY = ("model.width=8", "model.num_heads=2", "model.num_context=8", *(f"pretrain.{name}=1" for name in SHORT))
TINY += tuple(f"finetune.{name}=1" for name in SHORT)
# Here, because each process of the experiment imports this file.
METHODS["Toy walks"] = Node2Vec(width=8, num_walks=1, walk_length=5)
METHODS["Toy attention"] = DySAT(width=16, num_walks=1, walk_length=5, batches=1)
STUDIES["toy"] = Study(
    sentence="", rows=dict.fromkeys(ROWS), datasets=("generated",), paper={"all": {}}, plot="comparison"
)


def command(folder: Path, parallel: int) -> list[str]:
    """Give the command that runs the experiment with its store in a folder, and writes its files there."""
    settings = [part for setting in TINY for part in ("--set", setting)]
    about = ["--experiment", "toy", "--steps", "5-6", "--seeds", "3", "--parallel", str(parallel)]
    store = ["--storage", str(folder / "store")]
    return [sys.executable, __file__, *store, "benchmark", *about, "--out", str(folder / "out"), *settings]


def finished(folder: Path, parallel: int) -> tuple[dict[str, bytes], float]:
    """Run the experiment to its end; return its files by name, and its seconds."""
    started = time.monotonic()
    done = subprocess.run(command(folder, parallel), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the experiment ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return {file.name: file.read_bytes() for file in (folder / "out").iterdir()}, time.monotonic() - started


def killed(folder: Path, seconds: float, whole_group: bool) -> bool:
    """Start the experiment and kill it after so many seconds: all its processes, or the first, which the others follow.

    Returns whether it was at work then.
    """
    process = subprocess.Popen(
        command(folder, 2), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


def main() -> None:
    """Compare the files, and print what held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=5, help="number of kills")
    parser.add_argument("--seed", type=int, default=0)
    options, started = parser.parse_args(), time.monotonic()
    generator = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        once, seconds = finished(Path(folder) / "once", 1)
        own = Path(folder) / "killed"
        num_killed = sum(
            killed(own, generator.uniform(0.2, 1) * seconds, generator.random() < 0.5) for _ in range(options.tries)
        )
        again, _ = finished(own, 2)
    differ = sorted(name for name in {*once, *again} if once.get(name) != again.get(name))
    held = f"{len(once)} files equal" if not differ else f"files differ: {', '.join(differ)}"
    print(f"experiments: killed {num_killed} times, {held}, seed {options.seed}, {time.monotonic() - started:.0f} s")
    sys.exit(bool(differ))


if __name__ == "__main__":
    if "benchmark" in sys.argv:
        from flows.cli import main as dyformer

        dyformer()
    else:
        main()
