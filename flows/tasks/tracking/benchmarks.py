"""A benchmark or a leak audit -> MLflow: one run for each method and seed, and one with the comparison."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

from dyformer.embedder import NodeScorer
from dyformer.evaluation.fitting import FORECASTER_WITH
from dyformer.evaluation.node_classification import COUNTS_AND
from dyformer.evaluation.protocols.protocol import Protocol
from dyformer.experiments.changes import changes_of, settings_of
from dyformer.experiments.methods import Method
from dyformer.experiments.settings import Experiment
from flows.tasks.evaluation.audit import RECORD, read_audit
from flows.tasks.evaluation.evaluate import read_beside, read_metrics
from flows.tasks.snapshots import Snapshots, open_snapshots
from flows.tasks.tracking.content import (
    difference_tags,
    draw,
    outcome,
    run_key,
    tags_of,
    track_data,
    track_metrics,
    track_tables,
)
from storage.artifacts.artifact import digest, lineage_of, read_bytes
from storage.layout import Layout
from storage.tracking.runs import Tracker, open_tracker

LONGEST_CHANGES = 60  # characters in a run's name, of which a database of MLflow takes 250


class Compared(NamedTuple):
    """What a benchmark compared: tags, names and settings of its runs."""

    experiment: Experiment
    methods: Mapping[str, Method | NodeScorer]  # by title in the table, as they were trained
    study: str | None = None  # the experiment of `--experiment` that the runs belong to, which makes them other runs

    def changes(self, dataset: str) -> str:
        """Write the changed settings, as in "max_epochs=3, model.width=64"."""
        return ", ".join(f"{name}={value}" for name, value in changes_of(self.experiment, dataset).items())

    def tags(self, dataset: str) -> dict[str, str]:
        """Give the tags of all runs of the benchmark: the experiment and the changed settings, where there are."""
        values = {"experiment": self.study, "changed_settings": self.changes(dataset)}
        return {name: value for name, value in values.items() if value}

    def key(self, dataset: str, protocol: Protocol, scores: list[str]) -> str:
        """Derive the key of the run with all methods."""
        kind = ("benchmark",) if self.study is None else ("benchmark", self.study)
        changes = self.changes(dataset)
        return run_key(*kind, protocol.name, *(digest(address) for address in scores), *([changes] if changes else []))

    def settings(self, title: str, seed: int) -> dict[str, Any]:
        """Give the settings of a row of the table; of one that reads a method's vectors, those of the method."""
        named = title if title in self.methods else title.removeprefix(FORECASTER_WITH).removeprefix(COUNTS_AND)
        return settings_of(self.methods[named], self.experiment.of_seed(seed))


def track_benchmark(
    snapshots: str, protocol: Protocol, scores: list[str], metrics: str, compared: Compared
) -> dict[str, Any]:
    """Track a benchmark: one run per method and seed with its metrics of every step, and one with the comparison.

    Args:
        snapshots: address of the snapshots.
        protocol: how the methods were evaluated.
        scores: addresses of the results.
        metrics: address of their metrics.
        compared: the methods and their settings.
    """
    opened, table, beside = open_snapshots(snapshots), read_metrics(metrics), read_beside(metrics)
    tracker = open_tracker(opened.layout)
    tracker.replay_spool()  # records of earlier runs that could not be sent
    tags = {**tags_of(opened, None), "protocol": protocol.name, "stage": "benchmark", "steps": _steps(table)}
    tags |= protocol.chosen
    whole = compared.key(opened.dataset, protocol, scores)
    tags |= compared.tags(opened.dataset)
    _track_methods(tracker, opened, table, tags, whole, compared)
    name = _run_name(opened, "comparison of methods", table, compared)
    with tracker.run(dataset=opened.dataset, name=name, tags={**tags, "method": "all"}, key=whole) as run:
        track_data(run, opened)
        draw(run, table, beside)
        track_tables(run, protocol, table, opened.dataset)
        for title, rows in beside.items():
            run.table(f"{title}.csv", rows)
    return outcome(tracker, run, None)


def track_study(study: str, snapshots: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Track the tables and plots of a study on one dataset as the files of one run."""
    opened = open_snapshots(snapshots)
    tracker = open_tracker(opened.layout)
    with tracker.run(
        dataset=opened.dataset,
        name=f"tables of {study}, {opened.dataset} v{opened.version}",
        tags={**tags_of(opened, None), "experiment": study, "stage": "experiment", "method": "all"},
        key=run_key("experiment", study, *(content.hex() for _, content in sorted(files.items()))),
    ) as run:
        for name, content in files.items():
            run.artifact(name, content)
    return outcome(tracker, run, None)


def track_audit(report: str) -> dict[str, Any]:
    """Track a leak audit: the number of checks that passed and failed, and the report as table, Markdown and JSON."""
    audited = lineage_of(report)
    table, page, record = read_audit(report)
    layout = Layout.from_environment()
    tracker = open_tracker(layout)
    tracker.replay_spool()  # records of earlier runs that could not be sent
    tags = {"stage": "audit", "method": "all", "seed": record["seed"], "until": record["step"]}
    tags |= {"table_version": audited.table_version, "window": record["window"], "passed": record["passed"]}
    with tracker.run(
        dataset=audited.dataset,
        name=f"audit, {audited.dataset} v{audited.table_version} step {record['step']}",
        tags=tags,
        key=run_key("audit", digest(report)),
    ) as run:
        num_failed = len(record["failed"])
        counts = {"num_checks": table.height, "num_failed": num_failed, "seconds": record["seconds"]}
        run.metrics({f"audit/{name}": value for name, value in counts.items()})
        run.table("checks.csv", table.with_columns(pl.col("methods").list.join(", ")))
        run.artifact("audit.md", page.encode())
        run.artifact("audit.json", read_bytes(report, RECORD))
    return outcome(tracker, run, None)


def _track_methods(
    tracker: Tracker,
    opened: Snapshots,
    table: pl.DataFrame,
    tags: dict[str, Any],
    key: str,
    compared: Compared,
) -> None:
    """Track a run for each method and seed; `key` is that of the run with the comparison."""
    evaluated = table.filter(pl.col("seed").is_not_null())
    # MLflow shows the newest runs first, and charts of ten: those of our methods.
    evaluated = evaluated.sort("is_baseline", descending=True, maintain_order=True)
    for (method, seed), rows in evaluated.group_by("method", "seed", maintain_order=True):
        protocols = ", ".join(rows["protocol"].unique(maintain_order=True))
        own = {
            **tags,
            "protocol": protocols,
            "method": method,
            "seed": seed,
            "sweep": key[:12],
            **difference_tags(rows),
        }
        with tracker.run(
            dataset=opened.dataset,
            name=_run_name(opened, str(method), rows, compared, seed),
            tags=own,
            key=run_key(key, str(method), str(seed)),
        ) as run:
            run.params(compared.settings(str(method), int(str(seed))))
            track_metrics(run, rows)


def _run_name(opened: Snapshots, title: str, table: pl.DataFrame, compared: Compared, seed: object = None) -> str:
    """Name a run: "DySAT, uci v1 steps 3-13, max_epochs=3, seed 0"; the changed settings are its tag, too."""
    changes = compared.changes(opened.dataset)
    changes = changes if len(changes) <= LONGEST_CHANGES else "changed settings"
    parts = [title, f"{opened.dataset} v{opened.version} steps {_steps(table)}", changes]
    return ", ".join([*(part for part in parts if part), *([] if seed is None else [f"seed {seed}"])])


def _steps(table: pl.DataFrame) -> str:
    units = table.filter(~pl.col("step").is_in(["micro", "macro"]))["step"].unique(maintain_order=True).to_list()
    steps = sorted(units, key=lambda unit: int(unit) if unit.isdecimal() else 0)
    return f"{steps[0]}-{steps[-1]}"
