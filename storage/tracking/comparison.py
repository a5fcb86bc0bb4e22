"""Runs of MLflow, by their ids or names -> their settings that differ, and their metrics, side by side."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from dyformer import InvalidInput
from storage.tracking.runs import Tracker

LAST_RUNS = 2000  # among which a name is looked for
DETAIL = ("_low", "_high", "_num_pairs", "/seconds", "/waiting_fraction")


def compare_runs(tracker: Tracker, wanted: Sequence[str], *, details: bool = False) -> pl.DataFrame:
    """Give a row for each setting that differs and each metric: kind, name, and a column of texts for each run.

    A run is named by its id, the beginning of its id, or its name. With `details` also intervals and seconds.
    Of a curve the newest value is given. Raises ValueError, and an error of `failures()` if MLflow is unreachable.
    """
    client = tracker.client()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, order_by=["attributes.start_time desc"], max_results=LAST_RUNS)
    names = {run.info.run_id: run.info.run_name or "" for run in runs}
    found = [client.get_run(run) for run in dict.fromkeys(_id_of(name, names) for name in wanted)]
    columns = [f"{run.info.run_name} ({run.info.run_id[:8]})" for run in found]
    rows = []
    for name, texts in _texts([run.data.params for run in found]):
        rows += [("setting", name, *texts)] if len(set(texts)) > 1 else []
    for name, texts in _texts([run.data.metrics for run in found]):
        rows += [("metric", name, *texts)] if details or not name.endswith(DETAIL) else []
    return pl.DataFrame(rows, dict.fromkeys(("kind", "name", *columns), pl.String), orient="row")


def _id_of(wanted: str, names: dict[str, str]) -> str:
    """Find the one run that a text names."""
    same = [run for run in names if run == wanted] or [run for run, name in names.items() if name == wanted]
    same = same or [run for run in names if wanted and run.startswith(wanted)]
    if len(same) == 1:
        return same[0]
    if same:
        ids = ", ".join(same[:5])
        raise InvalidInput(f"{len(same)} runs have the name {wanted!r}, or ids that begin so: choose one of {ids}")
    newest = "; ".join(f"{run[:8]} {name}" for run, name in list(names.items())[:5])
    raise InvalidInput(
        f"none of the newest {LAST_RUNS:,} runs has the id or the name {wanted!r}; the newest are: {newest or 'none'}"
    )


def _texts(values: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Give each name with its value in each run, those of the baselines last."""
    names = sorted(
        {name for of_run in values for name in of_run}, key=lambda name: (name.startswith("baseline/"), name)
    )
    return [(name, [_text(of_run.get(name)) for of_run in values]) for name in names]


def _text(value: object) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
