"""The order of a training, on standard input -> one more process that shares it, which stores nothing."""

import json
import os
import shutil
import sys
from pathlib import Path
from threading import Thread
from typing import Any

from dyformer.experiments.settings import from_record
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.training.ranks import Rank
from flows.tasks.models import open_model
from flows.tasks.ranks import READY, SECONDS_TO_FOLLOW, joined
from flows.tasks.snapshots import open_snapshots
from flows.tasks.train import last_checkpoint, stage_epochs


def follow(order: dict[str, Any], rank: Rank) -> None:
    """Compute the batches of this process in both stages, from the checkpoints that the first process reads, too.

    That process writes none before all have read theirs, because no epoch ends without a batch of every process.
    """
    experiment, key = from_record(order["experiment"]), order["key"]
    graph = prepare_graph(
        open_snapshots(order["snapshots"]).graph(key["until"]), until=key["until"], config=experiment.graph
    )
    weights = None if order["start"] is None else open_model(order["start"])[0]
    for name, folder in order["folders"].items():
        if getattr(experiment, name) is not None:
            resume, _ = last_checkpoint(folder, {**key, "stage": name})
            best = resume and resume.weights()
            for progress in stage_epochs(name, graph, experiment, weights, seed=key["seed"], resume=resume, rank=rank):
                if progress.is_last:
                    best = progress.checkpoint().weights()
            weights = best


def end_with_the_first(folder: Path) -> None:
    """End this process at the end of its standard input, which the first process holds, and remove their folder."""
    os.read(sys.stdin.fileno(), 1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def main() -> None:
    """Take the order, wait for the others, and follow."""
    order = json.loads(sys.stdin.readline())
    folder = Path(order["folder"])
    ending = Thread(target=end_with_the_first, args=[folder], daemon=True)
    ending.start()
    sys.stdout.write(READY)
    sys.stdout.flush()
    try:
        with joined(order["index"], order["num"], folder) as rank:
            follow(order, rank)
    finally:
        ending.join(SECONDS_TO_FOLLOW)  # where the first has ended, its connections may end before the input does


if __name__ == "__main__":
    main()
