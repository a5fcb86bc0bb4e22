"""A protocol's name -> its benchmark flow, the metrics of the flow's results, and the tables that are printed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import polars as pl

from dyformer.embedder import Scorer
from dyformer.experiments.methods import METHODS, default_methods
from dyformer.experiments.ranking_tables import printed_forecasts, printed_live_update, printed_ranking
from dyformer.experiments.settings import Experiment
from dyformer.experiments.studies.study_tables import epochs_sentence
from dyformer.experiments.tables import PrintedTable, printed_tables
from dyformer.experiments.tuning.chosen import tuned_sentence
from flows.benchmark import benchmark, forecasts, live_update, prequential
from flows.tasks.evaluation.backtest import backtest_metrics, steps_to_backtest
from flows.tasks.evaluation.evaluate import metrics, steps_to_evaluate
from flows.tasks.evaluation.live_update import live_update_metrics, weeks_to_rank
from flows.tasks.evaluation.rank import ranking_metrics, steps_to_rank
from flows.tasks.methods import searched_dataset
from flows.tasks.snapshots import StepOutOfRange, open_snapshots


class ProtocolRun(NamedTuple):
    """How the benchmark of a protocol runs."""

    check_steps: Callable[[str, str | None], Any]  # of snapshots and the wanted steps; raises StepOutOfRange
    flow: Callable[..., dict[str, Any]]
    metrics: Callable[[list[str], str], pl.DataFrame]
    tables: Callable[[pl.DataFrame, str], list[PrintedTable]]


def run_protocol(
    protocol: str,
    dataset: str,
    reading: dict[str, Any],
    steps: str | None,
    seeds: int,
    experiment: Experiment,
    names: list[str],
) -> tuple[pl.DataFrame, list[PrintedTable]]:
    """Run the benchmark of a protocol; return its metrics and the tables to print."""
    chosen = PROTOCOLS[protocol]
    made = chosen.flow(dataset, reading, steps, seeds, experiment, names)
    rows = chosen.metrics(made["scores"], made["snapshots"])
    tables = chosen.tables(rows, dataset)
    searched = _searched(protocol, made["snapshots"], rows)
    tuned = tuned_sentence(names, searched)
    if tuned is not None:
        tables = [table._replace(sentences=[*table.sentences, tuned]) for table in tables]
    if experiment.max_epochs is not None:
        sentence = epochs_sentence(experiment.max_epochs)
        tables = [table._replace(title=f"{table.title}; {sentence}") for table in tables]
    return rows, tables


def _searched(protocol: str, snapshots: str, rows: pl.DataFrame) -> str | None:
    """Return the dataset whose chosen settings the methods had: none in weeks, which are other windows."""
    if protocol == "live-update" or rows.is_empty():
        return None
    steps = rows["step"].cast(pl.Int64, strict=False).drop_nulls().to_list()
    return searched_dataset(open_snapshots(snapshots), min(steps))


def _all_weeks(snapshots: str, wanted: str | None) -> None:
    if wanted is not None:
        raise StepOutOfRange("--protocol live-update evaluates every week: leave --steps out")
    weeks_to_rank(snapshots)


def _live_update(
    dataset: str, reading: dict[str, Any], steps: None, seeds: int, experiment: Experiment, names: list[str]
) -> dict[str, Any]:
    everything = set(names) >= set(default_methods())
    named = [name for name in names if not everything or isinstance(METHODS.get(name), Scorer)]
    return live_update(dataset, reading, seeds, experiment, named)


PROTOCOLS: dict[str, ProtocolRun] = {
    "paper": ProtocolRun(steps_to_evaluate, benchmark, metrics, printed_tables),
    "prequential": ProtocolRun(
        steps_to_rank, prequential, ranking_metrics, lambda rows, dataset: [printed_ranking(rows, dataset)]
    ),
    "forecasts": ProtocolRun(
        steps_to_backtest, forecasts, backtest_metrics, lambda rows, dataset: [printed_forecasts(rows, dataset)]
    ),
    "live-update": ProtocolRun(
        _all_weeks, _live_update, live_update_metrics, lambda rows, dataset: [printed_live_update(rows, dataset)]
    ),
}
