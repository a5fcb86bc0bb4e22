"""A generated log of 12M interactions from raw text to forecasts, through the product's own functions.

    python benchmarks/scale.py [s10k|s100k|s1m|s10m]

Every stage runs in a process of its own, as in a worker, so that its peak memory is measured. Results stay in
DYFORMER_STORAGE, where it is set: a stopped run continues with its next stage.

E unique edges    X drawn ends    R rows of the log
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DATASET = "scale"
SIZES = {
    "s10k": (1_000, 10_000),
    "s100k": (10_000, 100_000),
    "s1m": (100_000, 1_000_000),
    "s10m": (1_000_000, 10_000_000),
}
MAX_GB, MAX_MINUTES = 12, 5  # of a whole run
NUM_STEPS = 16
EXPONENT = 2.5
REPEATS = 5  # one interaction in REPEATS + 1 repeats a pair of the log
ROWS_AT_ONCE = 500_000
SECONDS = 365 * 86_400
START = 1_700_000_000
CHANGES = {
    "graph.history_window": NUM_STEPS,  # the union graph has the edges of all steps
    "pretrain.epochs": 10,
    "pretrain.batches_per_epoch": 10,
    "finetune.epochs": 10,
    "finetune.batches_per_epoch": 10,
}


def generate(size: str, folder: Path) -> str:
    """Write the raw log, in order of time, a piece at a time."""
    import numpy as np
    import polars as pl

    num_nodes, num_edges = SIZES[size]
    generator = np.random.default_rng(0)
    key_E = _unique_pairs(num_nodes, num_edges, generator)
    num_rows = num_edges + num_edges // REPEATS
    edge_R = np.concatenate([np.arange(num_edges), generator.integers(num_edges, size=num_rows - num_edges)])
    generator.shuffle(edge_R)
    time_R = START + np.sort(generator.integers(SECONDS, size=num_rows))
    with (folder / "log.csv").open("wb") as log:
        log.write(b"source,target,time\n")
        for first in range(0, num_rows, ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            low_R, high_R = np.divmod(key_E[edge_R[rows]], num_nodes)
            turned_R = generator.random(len(low_R)) < 0.5
            source_R, target_R = np.where(turned_R, high_R, low_R), np.where(turned_R, low_R, high_R)
            frame = pl.DataFrame({"source": source_R, "target": target_R, "time": time_R[rows]})
            frame.write_csv(log, include_header=False)
    return f"{num_rows:,} rows, {num_edges:,} different pairs, {(folder / 'log.csv').stat().st_size / 1e6:.0f} MB"


def _unique_pairs(num_nodes: int, num_edges: int, generator: Any) -> Any:
    """Draw unique undirected pairs with power-law expected degrees (Chung and Lu 2002), a million ends at a time."""
    import numpy as np

    cumulative_N = np.cumsum(np.arange(1, num_nodes + 1) ** (-1 / (EXPONENT - 1)))
    cumulative_N /= cumulative_N[-1]
    number_N = generator.permutation(num_nodes)
    key_E = np.empty(0, dtype=np.int64)
    while len(key_E) < num_edges:
        parts, num_drawn = [key_E], len(key_E)
        while num_drawn <= num_edges:
            end_2X = number_N[np.searchsorted(cumulative_N, generator.random((2, ROWS_AT_ONCE)))]
            low_X, high_X = end_2X.min(axis=0), end_2X.max(axis=0)
            parts.append((low_X * num_nodes + high_X)[low_X != high_X])
            num_drawn += len(parts[-1])
        key_E = np.unique(np.concatenate(parts))
    return generator.choice(key_E, size=num_edges, replace=False)


def ingest(size: str, folder: Path) -> str:
    """Commit the log's rows to the event table."""
    from flows.tasks.ingest import ingest_log

    log = {"log": str(folder / "log.csv"), "window": f"{NUM_STEPS} equal", "time_unit": "s"}
    counts = ingest_log(DATASET, log, show=lambda text: None)
    return f"{counts['num_accepted']:,} of {counts['num_read']:,} rows accepted"


def snapshots(size: str, folder: Path) -> str:
    """Split the table into snapshots."""
    from flows.tasks.snapshots import make_snapshots, open_snapshots

    return f"{open_snapshots(make_snapshots(DATASET)).num_steps} snapshots"


def union_graph(size: str, folder: Path) -> str:
    """Read the snapshots and unite them all."""
    from dyformer.experiments.settings import Experiment
    from dyformer.graphs.prepared_graph import prepare_graph
    from flows.tasks.snapshots import make_snapshots, open_snapshots

    opened = open_snapshots(make_snapshots(DATASET))
    config = Experiment().changed(CHANGES).graph
    graph = prepare_graph(opened.graph(NUM_STEPS), until=NUM_STEPS, config=config)
    assert len(graph.union.source_E) == SIZES[size][1], "every pair of the log is an edge"
    return f"{graph.union.num_nodes:,} nodes, {len(graph.union.source_E):,} edges"


def train(size: str, folder: Path) -> str:
    """Pre-train and fine-tune on the steps before the newest."""
    _model()
    return "100 batches of pre-training and 100 of fine-tuning"


def vectors(size: str, folder: Path) -> str:
    """Give every node its vector."""
    from flows.tasks.predict import write_vectors
    from flows.tasks.snapshots import make_snapshots
    from storage.artifacts.artifact import read_table

    return f"{read_table(write_vectors(make_snapshots(DATASET), _model()), 'vectors').height:,} vectors"


def forecasts(size: str, folder: Path) -> str:
    """Rank the best partners of every node."""
    from flows.tasks.models import DYFORMER, Contender
    from flows.tasks.predict import write_forecasts, write_vectors
    from flows.tasks.snapshots import make_snapshots
    from storage.artifacts.artifact import read_table

    address, model = make_snapshots(DATASET), _model()
    contender = Contender(title=DYFORMER, models=(model,))
    links = read_table(write_forecasts(address, contender, write_vectors(address, model)), "forecasts")
    return f"{links.height:,} links of {links.select('side', 'id').n_unique():,} nodes"


def _model() -> str:
    from dyformer.experiments.settings import Experiment
    from flows.tasks.snapshots import make_snapshots, newest_until
    from flows.tasks.train import train_model

    address = make_snapshots(DATASET)
    return train_model(address, newest_until(address), Experiment().changed(CHANGES))


STAGES = {
    "generate": generate,
    "ingest": ingest,
    "snapshots": snapshots,
    "union graph": union_graph,
    "train": train,
    "vectors": vectors,
    "forecasts": forecasts,
}


def run_stage(size: str, stage: str) -> dict[str, Any]:
    """Run a stage in a process of its own: seconds, CPU seconds, peak GB, and the result."""
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, __file__, size, stage], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "stage": stage,
        "seconds": time.monotonic() - started,
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak": usage.ru_maxrss * 1024 / 1e9,
        "made": output.strip().splitlines()[-1] if process.returncode == 0 else f"failed with {process.returncode}",
        "failed": process.returncode != 0,
    }


def report(size: str, rows: list[dict[str, Any]]) -> list[str]:
    """Write the section of RESULTS.md up to the finished stage; give the verdict lines of a complete run."""
    from results_page import surroundings, write_section

    num_nodes, num_edges = SIZES[size]
    table = [
        "| stage | seconds | CPU seconds | peak GB | made |",
        "|---|---:|---:|---:|---|",
        *(f"| {r['stage']} | {r['seconds']:.1f} | {r['cpu']:.1f} | {r['peak']:.2f} | {r['made']} |" for r in rows),
    ]
    product = [row for row in rows if row["stage"] != "generate"]
    whole = len(rows) == len(STAGES) and not any(row["failed"] for row in rows)
    peak, minutes = max(r["peak"] for r in product or rows), sum(r["seconds"] for r in rows) / 60
    lines = []
    if whole:
        lines = [
            _verdict(f"{size}-memory", "GB", peak, MAX_GB),
            _verdict(f"{size}-time", "minutes", minutes, MAX_MINUTES),
        ]
    state = "" if whole else "\n\n**The run did not reach its end.**"
    text = (
        f"{size}: {num_nodes:,} nodes, {num_edges:,} unique edges, {num_edges + num_edges // REPEATS:,} interactions."
    )
    body = [text, surroundings(), "\n".join(table) + state, "```\n" + "\n".join(lines) + "\n```" if lines else ""]
    write_section(f"Scale: {size}", "\n\n".join(part for part in body if part))
    return lines


def _verdict(name: str, unit: str, value: float, most: float) -> str:
    return f"{name} {unit} {value:.4g} target at most {most:g} {'met' if value <= most else 'missed'}"


def run(size: str, store: Path) -> None:
    """Run all stages that no earlier run finished, and print the verdicts on the whole."""
    log = store / "stages.json"
    rows = json.loads(log.read_text()) if log.exists() else []
    for stage in list(STAGES)[len(rows) :]:
        row = run_stage(size, stage)
        print(
            f"{stage}: {row['seconds']:.1f} s, {row['cpu']:.1f} s of CPU, peak {row['peak']:.2f} GB; {row['made']}",
            flush=True,
        )
        lines = report(size, [*rows, row])
        if row["failed"]:
            sys.exit(1)
        rows.append(row)
        log.write_text(json.dumps(rows))
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    size, *stage = [*sys.argv[1:], "s10m"][: max(1, len(sys.argv) - 1)]
    if stage:
        store = Path(os.environ["DYFORMER_STORAGE"])
        print(STAGES[stage[0]](size, store))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            store = Path(os.environ.setdefault("DYFORMER_STORAGE", temporary))
            store.mkdir(parents=True, exist_ok=True)
            run(size, store)
