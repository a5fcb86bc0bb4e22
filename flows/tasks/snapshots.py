"""Committed events -> the snapshots artifact, checked before it is written, and the record that later tasks open."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import polars as pl

from dyformer.graphs.disk_snapshots import cut_rows, faults_in, interactions_behind, labels_behind, snapshot_faults
from dyformer.graphs.interactions import Interactions, NodeLabels
from dyformer.graphs.snapshots import (
    DynamicGraph,
    StepOutOfRange,
    build_snapshots,
    from_tables,
    history_digests,
    prefix,
    summary,
    to_tables,
)
from dyformer.graphs.windows import split_windows
from dyformer.logs.counts import counted
from dyformer.logs.time_windows import TimeUnit, Window
from flows.console import ongoing
from storage.artifacts.artifact import REMEDY, Artifact, ArtifactDamaged, Lineage, digest, open_artifact
from storage.artifacts.code import code_digest, code_version
from storage.artifacts.made import HISTORY, planned
from storage.events import scratch_database
from storage.events.declarations import declared_record
from storage.events.table import history, newest_version, read_events, scan_events
from storage.layout import Layout

TABLES = ("edges", "steps", "nodes")
COUNTS = ("step", "interactions", "edges", "active_nodes", "nodes_seen", "new_edges")
CODE = ("dyformer.graphs.disk_snapshots",)
NUM_GRAPHS = 1  # that a process keeps: its tasks read one after another what is made of the same snapshots


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """An opened snapshots artifact; the lineage of every later artifact starts from it."""

    layout: Layout
    artifact: Artifact
    steps: pl.DataFrame  # one row for each step: step, start_time, end_time, ..., version and history

    @property
    def address(self) -> str:
        """Address of the artifact."""
        return self.artifact.address

    @property
    def dataset(self) -> str:
        """Name of the log."""
        return self.artifact.lineage.dataset

    @property
    def version(self) -> int:
        """Version of the newest commit with a row of these snapshots."""
        return self.artifact.lineage.table_version

    @property
    def window(self) -> str:
        """Length of the windows, as declared."""
        return self.artifact.lineage.settings["window"]

    @cached_property
    def declared(self) -> dict[str, Any]:
        """How the log was declared when this is first used."""
        return declared_record(self.layout, self.dataset)

    @property
    def directed(self) -> bool:
        """Whether links have a direction."""
        return self.declared.get("directed") is not False  # None: not declared

    @property
    def time_unit(self) -> TimeUnit:
        """Unit of the times of events."""
        return self.declared["time_unit"]

    @property
    def num_steps(self) -> int:
        """Number of snapshots."""
        return self.steps.height

    @property
    def title(self) -> str:
        """Name of the data of a run: "mylog v3 step 12", the version of the event table and the newest step."""
        return f"{self.dataset} v{self.version} step {self.num_steps}"

    def time(self, name: Literal["start_time", "end_time"], step: int) -> int:
        """Return the time at which a step starts or ends; raises StepOutOfRange."""
        self.check(step)
        return self.steps.filter(step=step)[name].item()

    def num_nodes(self, step: int) -> int:
        """Return the number of nodes known at a step; raises StepOutOfRange."""
        self.check(step)
        return self.steps.filter(step=step)["num_nodes"].item()

    def check(self, step: int) -> None:
        """Raise StepOutOfRange if the snapshots lack the step."""
        if not 1 <= step <= self.num_steps:
            raise StepOutOfRange(f"{self.dataset} has steps 1 to {self.num_steps}; step {step} is not one of them")

    def lineage(
        self,
        kind: str,
        *,
        until: int,
        settings: dict[str, Any],
        inputs: tuple[str, ...] = (),
        code: Sequence[str] | None = None,
    ) -> Lineage:
        """Return the lineage of an artifact that the modules `code` make of the steps up to `until`.

        Its table version is that of the newest commit with a row of these steps, and its first input the digest of
        their history: an artifact stays current when later rows come.
        """
        self.check(until)
        version, history = self.steps.filter(step=until).select("version", HISTORY).row(0)
        return Lineage(
            kind=kind,
            dataset=self.dataset,
            table_version=version,
            until=until,
            settings={"window": self.window, **settings},
            max_event_time=self.time("end_time", until) - 1,
            code_version=code_version() if code is None else code_digest(*code),
            inputs={HISTORY: history, **{self.layout.relative(address): digest(address) for address in inputs}},
        )

    def has_history(self, lineage: Lineage) -> bool:
        """Whether an artifact is made of the same history as the steps up to its own."""
        digests = self.steps.filter(pl.col("step") == lineage.until)[HISTORY].to_list()
        return digests == [lineage.inputs.get(HISTORY)]

    def graph(self, until: int, *, interactions: bool = False) -> DynamicGraph:
        """Read the snapshots up to `until`, and their interactions where these are wanted.

        Raises StepOutOfRange if there is no such step.
        """
        self.check(until)
        graph = _graph(self.artifact)
        if interactions:
            graph = replace(graph, interactions=_interactions(self.artifact, self.layout))
        return replace(prefix(graph, until), directed=self.directed)

    def labels(self) -> NodeLabels:
        """Read the labels of the rows of all steps."""
        return labels_behind(scan_events(self.layout, self.dataset, self.version), self.graph(self.num_steps))

    def events(self) -> pl.DataFrame:
        """Read all events, in log order; those of the newest call stay in memory."""
        return _events_of(self.artifact, self.layout)

    def divided(self, window: Window) -> DynamicGraph:
        """Give the log in other snapshots, with their interactions; those of the newest call stay in memory."""
        return replace(_divided(self.artifact, self.layout, window, self.time_unit), directed=self.directed)


@lru_cache(maxsize=1)  # the tasks of a flow read one log; a log that was dropped has other snapshots
def _events_of(artifact: Artifact, layout: Layout) -> pl.DataFrame:
    return read_events(layout, artifact.lineage.dataset, artifact.lineage.table_version)


@lru_cache(maxsize=1)  # a flow evaluates one window after the other
def _divided(artifact: Artifact, layout: Layout, window: Window, time_unit: TimeUnit) -> DynamicGraph:
    return build_snapshots(_events_of(artifact, layout), window, time_unit)


@lru_cache(maxsize=NUM_GRAPHS)
def _graph(artifact: Artifact) -> DynamicGraph:
    """Read the graph of all steps; each earlier one is a part of it."""
    tables = {name: artifact.table(name) for name in TABLES}
    is_known = pl.col("source", "target").is_between(0, tables["nodes"].height - 1).all()
    if not all(tables["edges"].select(is_known).row(0)):  # the compiled loops would leave their arrays
        raise ArtifactDamaged(artifact.address, "has edges of nodes that it lacks", REMEDY)
    return from_tables({**tables, "steps": tables["steps"].drop("version", HISTORY)})


@lru_cache(maxsize=NUM_GRAPHS)
def _interactions(artifact: Artifact, layout: Layout) -> Interactions:
    lineage = artifact.lineage
    return interactions_behind(scan_events(layout, lineage.dataset, lineage.table_version), _graph(artifact))


def make_snapshots(
    dataset: str, version: int | None = None, end_time: int | None = None, layout: Layout | None = None
) -> str:
    """Cut the events of a table version (the newest by default) into snapshots and return the artifact's address.

    With `end_time` these are the windows that end by then. Their version is that of the newest commit with a row of
    theirs, so that the address stays the same when later rows come, and is again that of before when they are taken
    back. The store is that of the environment by default.
    """
    layout = layout or Layout.from_environment()
    version = newest_version(layout, dataset) if version is None else version
    record = declared_record(layout, dataset)
    settings = {name: record[name] for name in ("window", "time_unit")}
    commits = history(layout, dataset, version)
    if end_time is None:
        version_read, newest = max(commits["version"]), max(commits["last_time"])
    else:
        settings, version_read, newest = (
            {**settings, "end_time": end_time},
            _version_at(commits, end_time),
            end_time - 1,
        )
    lineage = Lineage(
        kind="snapshots",
        dataset=dataset,
        table_version=version_read,
        settings=settings,
        code_version=code_digest(*CODE),
        max_event_time=newest,
    )
    return planned(layout, lineage).made(lambda: _checked_tables(layout, dataset, commits, settings))


def _checked_tables(
    layout: Layout, dataset: str, commits: pl.DataFrame, settings: dict[str, Any]
) -> dict[str, pl.DataFrame]:
    with ongoing(f"divide {dataset} into snapshots", to_errors=True):
        tables, problems = _tables(layout, dataset, commits, settings)
    assert not problems, f"snapshots of {dataset} are inconsistent: {'; '.join(problems)}"
    return tables


def _tables(
    layout: Layout, dataset: str, commits: pl.DataFrame, settings: dict[str, Any]
) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """Cut the events, in memory or on disk, into the tables of a graph; return these and their faults."""
    version, window, time_unit = max(commits["version"]), Window.parse(settings["window"]), settings["time_unit"]
    if not scratch_database.is_large(0, int(commits["num_accepted"].sum())):
        graph = build_snapshots(read_events(layout, dataset, version), window, time_unit)
        tables = _tables_of(graph, commits, settings)
        return tables, snapshot_faults(tables)
    with scratch_database.open_spill(layout) as database:
        time_R = scratch_database.rows_in_time(database, scan_events(layout, dataset, version))
        graph = cut_rows(database, time_R, window, time_unit)
        tables = _tables_of(graph, commits, settings)
        for name, table in tables.items():
            scratch_database.create(database, name, table.select(pl.exclude(pl.List)))
        return tables, faults_in(database)


def _tables_of(graph: DynamicGraph, commits: pl.DataFrame, settings: dict[str, Any]) -> dict[str, pl.DataFrame]:
    """Give the tables of a graph, with the version and the digest of each step's history."""
    if "end_time" in settings:
        graph = prefix(graph, sum(snapshot.end_time <= settings["end_time"] for snapshot in graph.snapshots))
    window, newest = Window.parse(settings["window"]), max(commits["version"])
    versions = [_version_at(commits, snapshot.end_time) for snapshot in graph.snapshots]
    if window.count is not None:  # every row of the log moves the windows
        versions = [newest] * len(versions)
    elif window.trim_end is not None and "end_time" not in settings:  # the newest rows decide what the last one lacks
        versions[-1] = newest
    tables = to_tables(graph)
    columns = {"version": pl.Series(versions, dtype=pl.Int64), HISTORY: pl.Series(history_digests(graph))}
    return {**tables, "steps": tables["steps"].with_columns(**columns)}


def _version_at(commits: pl.DataFrame, end_time: int) -> int:
    """Return the version of the newest commit with a row before a time."""
    return max(commits.filter(pl.col("first_time") < end_time)["version"])


def open_snapshots(address: str) -> Snapshots:
    """Open a snapshots artifact, in whichever store it is; raises ArtifactMissing where there is none."""
    artifact = open_artifact(address)
    return Snapshots(layout=Layout.holding(address), artifact=artifact, steps=artifact.table("steps"))


def check_range(dataset: str, steps: list[int], first: int, last: int) -> None:
    """Raise StepOutOfRange unless all steps lie from `first` to `last`."""
    wrong, has = [step for step in steps if not first <= step <= last], f"{dataset} has {counted(last, 'snapshot')}"
    if wrong and first > last:
        remedy = "add later rows, or choose shorter windows (`window`)"
        raise StepOutOfRange(f"{has}, and at least {first} are needed: {remedy}")
    if wrong:
        raise StepOutOfRange(f"step {', '.join(map(str, wrong))} is out of range: {has}; choose from {first} to {last}")


def newest_until(snapshots: str) -> int:
    """Return the last step of a training: the newest step is kept for the evaluation."""
    return open_snapshots(snapshots).num_steps - 1


def snapshot_counts(snapshots: str) -> pl.DataFrame:
    """Count each snapshot: step, interactions, edges, active_nodes, nodes_seen, new_edges."""
    opened = open_snapshots(snapshots)
    return summary(opened.graph(opened.num_steps)).select(*COUNTS)


def weights_and_labels(snapshots: str) -> pl.DataFrame:
    """Sum the rows' weights and positive labels by step; each column exists only if the log has it."""
    opened = open_snapshots(snapshots)
    events = scan_events(opened.layout, opened.dataset, opened.version).sort("time", "ingest", "row")
    rows = events.select("time", "weight", "label").collect()
    windows = split_windows(rows["time"].to_numpy(), Window.parse(opened.window), opened.time_unit)
    values: dict[str, pl.Series] = {}
    if (rows["weight"] != 1).any():
        values["weight"] = rows["weight"]
    if rows["label"].count():
        values["positive_labels"] = (rows["label"] > 0).cast(pl.Int64)
    ranges = list(zip(windows.first_row_T.tolist(), windows.end_row_T.tolist(), strict=True))
    return pl.DataFrame({name: [column[first:end].sum() for first, end in ranges] for name, column in values.items()})
