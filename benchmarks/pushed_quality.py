"""Contexts by pushed mass and near distances, as on a large graph, beside the exact ones: DyFormer's AUC on small logs.

    python benchmarks/pushed_quality.py --store FOLDER uci=FILE rds=FILE

Each log's DyFormer is trained anew for its newest steps with each of four ways to make a batch; training, pairs and
seeds are the same. A difference is the mean over steps and seeds of the AUC less that of the exact way, in points of a
percent, with the least and the greatest one. A trial that is finished is not run again, so the command can be repeated.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from dyformer.experiments.printed import markdown_rows

PUSHED = "import dyformer.graphs.pagerank as p, dyformer.sampling.subgraphs as s; p.PUSHED_FROM = s.PUSHED_FROM = 0;"
COMMAND = "from flows.cli import main; main()"
WAYS = {  # what is run before the command, and its settings
    "solved, distances to 5": ("", "graph.max_distance=5"),
    "solved, distances to 3": ("", "graph.max_distance=3"),
    "pushed, distances to 5": (PUSHED, "graph.large_max_distance=5"),
    "pushed, distances to 3": (PUSHED, "graph.large_max_distance=3"),
}
EXACT = next(iter(WAYS))
METHODS = ("DyFormer", "Forecaster with DyFormer")


def aucs(store: Path, name: str, log: str, way: str, given: argparse.Namespace) -> dict[tuple[str, int, int], float]:
    """Train and evaluate DyFormer in one way; give the AUC, in percent, of each method, step and seed."""
    before, setting = WAYS[way]
    result = store / f"{name}-{way.replace(' ', '-').replace(',', '')}.json"
    folder = store / ("pushed" if before else "solved")  # the same settings make the same addresses
    arguments = ["benchmark", name, "--log", log, "--methods", "dyformer"]
    arguments += ["--seeds", str(given.seeds), "--set", setting, "--json", str(result)]
    steps = ("--steps", given.steps[name]) if name in given.steps else ()
    if not result.exists():
        subprocess.run(
            [sys.executable, "-c", before + COMMAND, *arguments, *steps],
            env={**os.environ, "DYFORMER_STORAGE": str(folder)},
            check=True,
        )
    rows = json.loads(result.read_text())
    wanted = ("auc", "random", "all")
    return {
        (row["method"], row["step"], row["seed"]): 100 * row["value"]
        for row in rows
        if (row["metric"], row["family"], row["slice"]) == wanted and isinstance(row["step"], int)
    }


def compared(name: str, auc: dict[str, dict[tuple[str, int, int], float]]) -> Iterator[dict[str, str]]:
    """Yield a row for each way and method: its mean AUC and its difference to the exact way."""
    for method in METHODS:
        trials = sorted(trial for trial in auc[EXACT] if trial[0] == method)
        exact_Q = np.array([auc[EXACT][trial] for trial in trials])
        for way in WAYS:
            own_Q = np.array([auc[way][trial] for trial in trials])
            less_Q = own_Q - exact_Q
            difference = f"{less_Q.mean():+.2f} ({less_Q.min():+.2f} to {less_Q.max():+.2f})" if way != EXACT else ""
            yield {
                "log": name,
                "method": method,
                "batches": way,
                "AUC": f"{own_Q.mean():.2f}",
                "difference": difference,
                "trials": str(len(trials)),
            }


def main() -> None:
    """Print the table of all logs, one log after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("logs", nargs="+", metavar="NAME=FILE", help="known datasets and their files")
    parser.add_argument("--store", type=Path, required=True, help="folder of the trials and of their results")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0")
    parser.add_argument("--steps", action="append", default=[], metavar="NAME=A-B", help="steps of a log; repeat")
    given = parser.parse_args()
    given.steps = dict(text.split("=", 1) for text in given.steps)
    given.store.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, str]] = []
    for text in given.logs:
        name, log = text.split("=", 1)
        rows.extend(compared(name, {way: aucs(given.store, name, log, way, given) for way in WAYS}))
        print("\n".join(markdown_rows(pl.DataFrame(rows))), flush=True)


if __name__ == "__main__":
    main()
