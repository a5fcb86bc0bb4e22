"""A retraining on a store with one damaged file: it does its work, or ends in one line that names the file.

`python tests/faults/damaged_runs.py --tries 100` runs the whole sweep (`make test-faults`); `--seed S --only N` repeats
one. The damages are those of `damage`. After `dyformer verify --repair` the same retraining ends like an undisturbed
one. Events and a declaration, which only a new ingest makes again, are put back from a copy for this, so that what a
retraining has made beside the damaged file is compared, too.
"""

import sys
from collections.abc import Iterator
from pathlib import PurePosixPath

from damage import Trial, opened
from damage import trials as damages
from prepared import Prepared
from sweep import error_line, main

from flows.ending import exit_code
from storage.layout import Layout
from storage.verification import dataset_of, faults, repaired

STAGE = "track"


def trials(made: Prepared, num_tries: int, seed: int) -> Iterator[Trial]:
    """Draw one file and its damage for each try: the kinds of file in turn."""
    made.restore(STAGE)
    drawn = made.read(lambda: [vars(each) for each in damages(opened(str(made.store)), 2 * num_tries, seed)])
    assert drawn.code == 0, drawn.output
    ours = [Trial(**each) for each in drawn.value if not each["path"].startswith("mlflow")]  # MLflow's own are not
    return iter(ours[:num_tries])


def failures(made: Prepared, trial: Trial) -> list[str]:
    """Damage a file and retrain; list the claims that do not hold."""
    made.restore(STAGE)
    undamaged = (made.store / trial.path).read_bytes()
    applied = made.read(lambda: trial.apply(opened(str(made.store))))
    assert applied.code == 0, f"{trial}: {applied.output}"

    def retrained() -> None:
        made.stages[STAGE]()

    end = made.run(lambda: sys.exit(exit_code(retrained)))
    line, wrong = error_line(end.code, end.output)
    if line is not None and str(made.store) not in line:
        wrong.append(f"no file is named: {line}")
    left = made.read(_repair)
    if left.code:
        return [*wrong, f"the repair ended with {left.code}: {left.output[-1500:]}"]
    if left.value:
        (made.store / trial.path).write_bytes(undamaged)
    # The repair removes what no retraining needs any more, and the metrics of results that are removed are not made.
    removed = [f"lost: {PurePosixPath(trial.path).parent}"]
    removed += ["lost: 7_forecasts/metrics/"] * trial.path.startswith("7_forecasts/scores/")
    return wrong + [line for line in made.wrong_after(STAGE) if not line.startswith(tuple(removed))]


def _repair() -> list[str]:
    """Repair what can be made again; name what is left."""
    layout = Layout.from_environment()
    return [str(fault) for fault in list(faults(layout)) if repaired(layout, dataset_of(fault), fault) is None]


if __name__ == "__main__":
    main(__doc__, trials, failures, 100, "retrainings on damaged stores")
