"""Snapshots and rankers -> sampled negatives, ranks of all validation and test events, and their rows of metrics."""

from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
import polars as pl

from dyformer.embedder import Ranker
from dyformer.evaluation.audit.case import Check
from dyformer.evaluation.audit.events import EventAuditCase, audit_events
from dyformer.evaluation.events.rows import PROTOCOL, event_rows, seed_rows
from dyformer.evaluation.events.splits import (
    SPLITS,
    EventTrial,
    Negatives,
    Split,
    TooFewEvents,
    Visibility,
    sampled_negatives,
    samples_negatives,
    split_events,
)
from dyformer.evaluation.events.trials import ranked_events
from dyformer.experiments.methods import EVENT_BASELINES, EVENT_METHODS
from dyformer.streams.event_log import EventLog
from dyformer.streams.log_rows import event_log_of
from flows.made import made
from flows.tasks.methods import is_built_in, own_errors, record_of
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import read_table
from storage.events.declarations import declaration
from storage.events.table import read_events
from storage.layout import Layout

NEGATIVES, RANKS = "negatives", "ranks"


def check_events(snapshots: str, visible: str) -> None:
    """Raise TooFewEvents for a log that cannot be split, and UnknownVisibility for one that does not fit it."""
    log = events_of(snapshots)
    trial = EventTrial(log=log, splits=split_events(log), visibility=Visibility.parse(visible))
    assert len(trial.num_visible_E) == len(log)


def event_checks(snapshots: str, seed: int = 0) -> Iterator[Check]:
    """Audit EVENT_METHODS on the log's events; a log that cannot be split has one check that is not possible."""
    log = events_of(snapshots)
    try:
        trial = EventTrial(log=log, splits=split_events(log), visibility=Visibility())
    except TooFewEvents as error:
        yield Check(name="events", compared="the log's events", methods=(), passed=None, detail=str(error))
        return
    yield from audit_events(EventAuditCase(trial=trial, methods=EVENT_METHODS, seed=seed))


def draw_events(snapshots: str) -> str:
    """Draw the negatives of validation and test events, unless they exist; return the address.

    Where all targets are candidates, the table is empty.
    """
    opened = open_snapshots(snapshots)
    return made(
        opened,
        "queries",
        until=opened.num_steps,
        settings={"protocol": PROTOCOL, "seed": 0},
        make=lambda: {NEGATIVES: _negatives_table(events_of(snapshots))},
        code=(sampled_negatives, event_log_of),
    )


def _negatives_table(log: EventLog) -> pl.DataFrame:
    if not samples_negatives(log):
        return pl.DataFrame(schema={"split": pl.String(), NEGATIVES: pl.List(pl.Int32())})
    drawn = sampled_negatives(log, split_events(log))
    parts = [
        pl.DataFrame({NEGATIVES: rows}).select(pl.lit(split).alias("split"), NEGATIVES) for split, rows in drawn.items()
    ]
    return pl.concat(parts)


def rank_events(snapshots: str, negatives: str, methods: Mapping[str, Ranker], visible: str, seed: int = 0) -> str:
    """Rank the validation and test events by methods, by title, unless the ranks exist; return their address."""
    opened = open_snapshots(snapshots)

    def make() -> dict[str, pl.DataFrame]:
        log, table = events_of(snapshots), read_table(negatives, NEGATIVES)
        trial = EventTrial(
            log=log, splits=split_events(log), visibility=Visibility.parse(visible), negatives=_read_negatives(table)
        )
        frames = []
        for title, method in methods.items():
            with own_errors(title, method):
                frames.append(ranked_events(title, method, trial, seed=seed))
        return {RANKS: pl.concat(frames)}

    records = {title: record_of(method) for title, method in methods.items()}
    return made(
        opened,
        "ranks",
        until=opened.num_steps,
        settings={"protocol": PROTOCOL, "visible": visible, "seed": seed, "methods": records},
        make=make,
        code=(ranked_events, event_log_of, *(type(method) for method in methods.values() if is_built_in(method))),
        inputs=(negatives,),
    )


def _read_negatives(table: pl.DataFrame) -> Negatives | None:
    if table.is_empty():
        return None
    rows: dict[Split, np.ndarray] = {
        split: np.stack(list(table.filter(split=split)[NEGATIVES].to_numpy())) for split in SPLITS
    }
    return rows


def event_metrics(ranks: list[str], snapshots: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows averaged over seeds (ROWS_SCHEMA), and those of each seed (METRICS_SCHEMA)."""
    table, dataset = pl.concat([read_table(address, RANKS) for address in ranks]), open_snapshots(snapshots).dataset
    baselines = EVENT_BASELINES
    return event_rows(table, dataset, baselines=baselines), seed_rows(table, dataset, baselines=baselines)


def events_of(snapshots: str) -> EventLog:
    """Give all events of a log, those included that its windows leave out."""
    opened = open_snapshots(snapshots)
    return _read_log(opened.layout.root, opened.dataset, opened.version)


@lru_cache(maxsize=1)  # several tasks of a flow read one log
def _read_log(root: str, dataset: str, version: int) -> EventLog:
    layout = Layout(root)
    record = declaration(layout, dataset, needed=("time_unit",)) or {}
    return event_log_of(read_events(layout, dataset, version), has_steps=record["time_unit"] == "step").log
