"""Two hundred simulated daily retrainings with their retention: whether disk, memory and time of a day stay bounded.

Each day has its rows and its retraining with a small model, without Prefect and without plots; old versions are
removed every day. The days are those of the rows, so that no clock is waited for.
"""

import argparse
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import measure
from matplotlib.figure import Figure
from results_page import surroundings, write_section

NUM_DAYS, KEEP, PERIOD = 200, 10, 20  # a period is a number of days that is summarised in a line
ROWS_A_DAY, DAY = 80, 86_400
MOST_MINUTES = 30
GROWTH = 2.0  # of a day at the end, to one after the first 40
METHODS_USED = ("EdgeBank (last)", "L3", "Forecaster without vectors", "DyFormer")
SMALL = {"epochs": 1, "batches_per_epoch": 2, "validation_batches": 1, "num_targets": 32, "num_positives": 16}
CHANGES = {
    "model.width": 16,
    "model.num_heads": 2,
    "model.num_layers": 1,
    "model.num_context": 16,
    "pretrain": None,
    **{f"finetune.{name}": value for name, value in SMALL.items()},
}


def rows_of(day: int) -> str:
    """Give the rows of a day among 60 members, of whom one in ten is replaced every 20 days."""
    generator, lines = random.Random(day), []
    for index in range(ROWS_A_DAY):
        group, member = generator.randrange(10), generator.randrange(6)
        other = (member + generator.choice((1, 1, 2))) % 6
        names = [f"u{group}-{each}-{day // 20 if (group, each) == (0, 0) else 0}" for each in (member, other)]
        lines.append(f"{names[0]},{names[1]},{DAY * day + index * (DAY // ROWS_A_DAY)}")
    return "\n".join(["source,target,time", *lines, ""])


def without_prefect() -> None:
    """Call the tasks of a retraining as plain functions, with few methods and few trees, and draw nothing."""
    import flows.retrain as retraining
    from dyformer.evaluation import labelled_steps
    from dyformer.experiments.methods import METHODS
    from dyformer.scoring import heads
    from storage import removal

    heads.NUM_ROUNDS, labelled_steps.TRAINING_PER_FAMILY = 10, 2  # how much is stored does not depend on them
    removal.YOUNG_SECONDS = 0.0  # a simulated day takes seconds
    for name, task in vars(retraining).copy().items():
        if name.endswith("_task") and hasattr(task, "fn"):
            setattr(retraining, name, task.fn)
    for title in METHODS.keys() - set(METHODS_USED):
        del METHODS[title]
    Figure.savefig = lambda figure, file, **options: (  # pyright: ignore[reportAttributeAccessIssue]
        Path(file).write_bytes(b"") if isinstance(file, str | Path) else None
    )


def size_of(folder: Path) -> int:
    """Add up the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Retrain every day; write the periods, and the growth of a day's disk, seconds and memory, to RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=NUM_DAYS)
    days = parser.parse_args().days
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        store, incoming = Path(folder) / "store", Path(folder) / "in"
        incoming.mkdir()
        os.environ["DYFORMER_STORAGE"] = str(store)
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        without_prefect()
        found = [measured_day(day, store, incoming) for day in range(days)]
    minutes = (time.monotonic() - started) / 60
    middle = [each for each in found[: 3 * PERIOD][2 * PERIOD :] if each]
    last = [each for each in found[-PERIOD:] if each]
    lines = [measure.verdict("soak-minutes", minutes, MOST_MINUTES, at_most=True, unit="minutes")]
    for index, name in enumerate(("disk", "seconds", "memory")):
        growth = [late[index] / early[index] for early, late in zip(middle, last, strict=False)]
        lines.append(measure.verdict(f"soak-{name}-growth", growth, GROWTH, at_most=True, unit="x"))
    if days == NUM_DAYS:
        write_section("Soak", "\n\n".join([surroundings(), table(found), "\n".join(["```", *lines, "```"])]))


def table(found: list[tuple[int, float, int] | None]) -> str:
    """Give the last day of each period: the store's size, the median CPU seconds of its days, the peak memory."""
    rows = ["| days | store (MiB) | CPU seconds a day | peak memory (MiB) |", "|---:|---:|---:|---:|"]
    for end in range(PERIOD, len(found) + 1, PERIOD):
        period = [each for each in found[end - PERIOD : end] if each]
        seconds = statistics.median(each[1] for each in period)
        rows.append(f"| {end} | {period[-1][0] / 2**20:.1f} | {seconds:.2f} | {period[-1][2]} |")
    return "\n".join(rows)


def measured_day(day: int, store: Path, incoming: Path) -> tuple[int, float, int] | None:
    """Drop a day's rows, retrain and prune; give the store's bytes, the CPU seconds and the process's peak memory."""
    from dyformer.experiments.settings import Experiment
    from flows.retrain import retrain
    from flows.tasks.retention import pruned

    started = time.process_time()
    (incoming / f"{day:04}.csv").write_text(rows_of(day))
    reading = {"log": [str(incoming)], "window": "1d", "time_unit": "s", "bipartite": False}
    report = retrain.fn("soak", reading, Experiment().changed(CHANGES), 0)
    if report is None:
        return None
    pruned("soak", KEEP)
    seconds, memory = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    size = size_of(store)
    if (day + 1) % PERIOD == 0:
        print(f"day {day + 1}: {size / 2**20:.1f} MiB, {seconds:.1f} s, {memory} MiB", file=sys.stderr, flush=True)
    return size, seconds, memory


if __name__ == "__main__":
    main()
