"""A benchmark or a leak audit -> MLflow: one run for each method and seed, and one with the comparison."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

from dyformer.evaluation.fitting import FORECASTER_WITH
from dyformer.evaluation.node_classification import COUNTS_AND
from dyformer.evaluation.protocols import protocol_of
from dyformer.evaluation.protocols.protocol import Protocol
from dyformer.experiments.methods import Method, changes_of, settings_of
from dyformer.experiments.settings import Experiment
from dyformer.experiments.tables import printed_tables, units_of
from dyformer.scoring.interfaces import NodeScorer
from flows.tasks.evaluation.audit import RECORD, read_audit
from flows.tasks.evaluation.measure import read_beside, read_metrics
from flows.tasks.made import made
from flows.tasks.snapshots import Snapshots, open_snapshots
from flows.tasks.tracking.content import (
    described,
    difference_tags,
    draw,
    run_key,
    tags_of,
    track_data,
    track_metrics,
    track_tables,
)
from storage.artifacts.artifact import digest, lineage_of, open_artifact, read_bytes
from storage.artifacts.code import code_version
from storage.bytes.checksums import sha256
from storage.tracking.runs import Tracker, flat_texts

BENCHMARK, STUDY = "benchmark.json", "study.json"
LONGEST_CHANGES = 60  # characters in a run's name, of which a database of MLflow takes 250


class Compared(NamedTuple):
    """What a benchmark compared: tags, names and settings of its runs."""

    experiment: Experiment
    methods: Mapping[str, Method | NodeScorer]  # by title in the table, as they were trained
    study: str | None = None  # the experiment of `--experiment` that the runs belong to, which makes them other runs

    def changes(self) -> str:
        """Write the changed settings, as in "max_epochs=3, model.width=64"."""
        return ", ".join(f"{name}={value}" for name, value in changes_of(self.experiment).items())

    def tags(self) -> dict[str, str]:
        """Give the tags of all runs of the benchmark: the experiment and the changed settings, where there are."""
        values = {"experiment": self.study, "changed_settings": self.changes()}
        return {name: value for name, value in values.items() if value}

    def key(self, protocol: Protocol, scores: list[str]) -> str:
        """Derive the key of the run with all methods."""
        kind = ("benchmark",) if self.study is None else ("benchmark", self.study)
        changes = filter(None, [self.changes()])
        return run_key(*kind, protocol.name, *(digest(address) for address in scores), *changes)

    def settings(self, title: str, seed: int) -> dict[str, Any]:
        """Give the settings of a row of the table; of one that reads a method's vectors, those of the method."""
        named = title if title in self.methods else title.removeprefix(FORECASTER_WITH).removeprefix(COUNTS_AND)
        return settings_of(self.methods[named], self.experiment.of_seed(seed))


def write_benchmark(snapshots: str, protocol: Protocol, scores: list[str], metrics: str, compared: Compared) -> str:
    """Record a benchmark that has ended, with the settings of each method, and return the record's address.

    Args:
        snapshots: address of the snapshots.
        protocol: how the methods were evaluated.
        scores: addresses of the results.
        metrics: address of their metrics.
        compared: the methods and their settings.
    """
    opened, table = open_snapshots(snapshots), read_metrics(metrics)
    layout = opened.layout
    rows = table.filter(pl.col("seed").is_not_null())
    # MLflow shows the newest runs first, and charts of ten: those of our methods.
    rows = rows.sort("is_baseline", descending=True, maintain_order=True)
    pairs = rows.select("method", "seed").unique(maintain_order=True).rows()
    settings = {
        "protocol": protocol.name,
        "chosen": protocol.chosen,
        "study": compared.study,
        "changes": compared.changes(),
        "metrics": layout.relative(metrics),
        "scores": [layout.relative(address) for address in scores],
    }
    record = {
        **settings,
        "snapshots": layout.relative(snapshots),
        "key": compared.key(protocol, scores),
        "tags": {
            **tags_of(opened, None, code=code_version()),
            "protocol": protocol.name,
            **protocol.chosen,
            **compared.tags(),
        },
        "methods": [
            {"method": method, "seed": seed, "params": flat_texts(compared.settings(method, seed))}
            for method, seed in pairs
        ],
    }
    return made(
        opened,
        "benchmark",
        until=opened.num_steps,
        settings=settings,
        make=lambda: {BENCHMARK: json.dumps(record, indent=1).encode()},
        code=(),
        inputs=(*scores, metrics),
    )


def send_benchmark(tracker: Tracker, address: str) -> dict[str, Any]:
    """Track a benchmark: one run per method and seed with its metrics of every step, and one with the comparison."""
    layout, record = tracker.layout, json.loads(read_bytes(address, BENCHMARK))
    opened, metrics = open_snapshots(layout.absolute(record["snapshots"])), layout.absolute(record["metrics"])
    table, beside, protocol = read_metrics(metrics), read_beside(metrics), protocol_of(record["protocol"])
    tags = {**record["tags"], "stage": "benchmark", "steps": _steps(table)}
    for method_record in record["methods"]:
        _track_method(tracker, opened, table, tags, record, method_record)
    name = _run_name(opened, "comparison of methods", table, record["changes"])
    with tracker.run(dataset=opened.dataset, name=name, tags={**tags, "method": "all"}, key=record["key"]) as run:
        track_data(run, opened)
        draw(run, table, beside)
        track_tables(run, protocol, table, opened.dataset)
        for printed in list(printed_tables(protocol, table, opened.dataset).values())[:1]:
            run.tags({"mlflow.note.content": "\n\n".join([*described(printed), "All is in `metrics.csv`."])})
        for title, rows in beside.items():
            run.table(f"{title}.csv", rows)
    return run.where


def _track_method(
    tracker: Tracker,
    opened: Snapshots,
    table: pl.DataFrame,
    tags: dict[str, Any],
    record: dict[str, Any],
    each: dict[str, Any],
) -> None:
    """Track the run of a method and a seed."""
    method, seed, rows = each["method"], each["seed"], table.filter(method=each["method"], seed=each["seed"])
    settings = {
        **tags,
        "protocol": ", ".join(rows["protocol"].unique(maintain_order=True)),
        "method": method,
        "seed": seed,
        "sweep": record["key"][:12],
        **difference_tags(rows),
    }
    name, key = _run_name(opened, method, rows, record["changes"], seed), run_key(record["key"], method, str(seed))
    with tracker.run(dataset=opened.dataset, name=name, tags=settings, key=key) as run:
        run.params(each["params"])
        track_metrics(run, rows)


def write_study(study: str, snapshots: str, contents: Mapping[str, bytes]) -> str:
    """Write the tables and plots of a study on one dataset, and return their address."""
    opened, key = open_snapshots(snapshots), run_key(*(sha256(content) for _, content in sorted(contents.items())))
    settings = {"study": study, "contents": key}
    record = {"study": study, "snapshots": opened.layout.relative(snapshots), "code": code_version()}
    files = {**contents, STUDY: json.dumps(record).encode()}
    return made(opened, "study", until=opened.num_steps, settings=settings, make=lambda: files, code=())


def send_study(tracker: Tracker, address: str) -> dict[str, Any]:
    """Track the tables and plots of a study on one dataset as the files of one run."""
    artifact = open_artifact(address)
    record = json.loads(artifact.content(STUDY))
    opened, study = open_snapshots(tracker.layout.absolute(record["snapshots"])), record["study"]
    with tracker.run(
        dataset=opened.dataset,
        name=f"tables of {study}, {opened.dataset} v{opened.version}",
        tags={
            **tags_of(opened, None, code=record["code"]),
            "experiment": study,
            "stage": "experiment",
            "method": "all",
        },
        key=run_key("experiment", artifact.digest),
    ) as run:
        for name in sorted(artifact.entries.keys() - {STUDY}):
            run.artifact(name, artifact.content(name))
    return run.where


def send_audit(tracker: Tracker, report: str) -> dict[str, Any]:
    """Track a leak audit: the number of checks that passed and failed, and the report as table, Markdown and JSON."""
    audited = lineage_of(report)
    table, page, record = read_audit(report)
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
    return run.where


def _run_name(opened: Snapshots, title: str, table: pl.DataFrame, changes: str, seed: object = None) -> str:
    """Name a run: "DySAT, uci v1 steps 3-13, max_epochs=3, seed 0"; the changed settings are its tag, too."""
    changes = changes if len(changes) <= LONGEST_CHANGES else "changed settings"
    steps = _steps(table)
    units = f"{'steps' if '-' in steps else 'step'} {steps}"
    parts = [title, f"{opened.dataset} v{opened.version} {units}", changes]
    return ", ".join([*(part for part in parts if part), *([] if seed is None else [f"seed {seed}"])])


def _steps(table: pl.DataFrame) -> str:
    steps = sorted(units_of(table), key=lambda unit: int(unit) if unit.isdecimal() else 0)
    return steps[0] if len(steps) == 1 else f"{steps[0]}-{steps[-1]}"
