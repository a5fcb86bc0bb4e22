"""The protocol of forecasts: what would have been published for past steps, against the links that came."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import polars as pl

from dyformer.embedder import Embedder, Scorer
from dyformer.evaluation.fitting import FORECASTER_WITH, NUM_OLDER_STEPS, model_steps
from dyformer.evaluation.forecasts.best_partners import PUBLISHED
from dyformer.evaluation.forecasts.forecast import fit_forecast
from dyformer.evaluation.forecasts.forecast_rows import backtest, forecast_metrics, reliability
from dyformer.evaluation.protocols.prequential import rankable_steps
from dyformer.evaluation.protocols.protocol import Column, Job, Log, Protocol, Result, TableOf, Tables
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph


class Known(NamedTuple):
    """The steps before the forecast one, and the graph that ends with it."""

    job: Job
    past: PreparedGraph
    graph: DynamicGraph


def backtestable_steps(log: Log) -> list[int]:
    """List the steps for which forecasts can be made and calibrated."""
    rankable = rankable_steps(log)
    return [step for step in rankable if any(step - NUM_OLDER_STEPS <= before < step for before in rankable)]


def _trial(job: Job) -> Known:
    # The graph of the forecast ends before the step, so no method can read it.
    past = prepare_graph(job.log.graph(job.unit - 1, interactions=True), until=job.unit - 1, config=job.config)
    return Known(job, past, job.log.graph(job.unit, interactions=True))


def _evaluate(title: str, method: Embedder | Scorer, known: Known) -> Tables:
    """Forecast a past step as a run does that publishes: vectors are read by the forecaster alone."""
    job = known.job
    forecast = fit_forecast(title, method, known.past, seed=job.seed, candidates_of=job.candidates_of)
    row = title if isinstance(method, Scorer) else FORECASTER_WITH + title
    return {"backtest": backtest(row, forecast, known.graph, seed=job.seed)}


def _rows(results: Sequence[Result], log: Log, baselines: Collection[str]) -> Tables:
    """Give the metrics of all forecasts, and how reliable their probabilities were."""
    backtests = pl.concat(result.table("backtest") for result in results)
    return {
        "metrics": forecast_metrics(backtests, log.dataset, baselines=baselines),
        "reliability": reliability(backtests, baselines=baselines),
    }


def _column(title: str, metric: str, form: str, **more: str) -> Column:
    return Column(title=title, metric=metric, family=PUBLISHED, form=form, **more)  # pyright: ignore[reportArgumentType]


PROTOCOL = Protocol(
    name="forecasts",
    sentence="what would have been published, against what came",
    heading="Forecasts that would have been published",
    methods=(Embedder, Scorer),
    units=backtestable_steps,
    need="a step needs an earlier one on which the probabilities are calibrated",
    trial=_trial,
    evaluate=_evaluate,
    rows=_rows,
    tables=(
        TableOf(
            name="all",
            key="forecasts",
            slice="all",
            # Few links of a step, or none, may decide the sum and those of 0.8 and more: all steps are pooled there.
            columns=(
                _column("precision@10", "precision_at_10", "{:.4f}"),
                _column("difference", "precision_at_10", "{:+.4f}", value="difference"),
                _column("calibration error", "calibration_error", "{:.4f}"),
                _column("sum of probabilities / links", "probability_sum", "{:.2f}", over="micro"),
                _column("Brier", "brier", "{:.4f}"),
                Column(
                    title="came of 0.8 and more",
                    metric="confident",
                    family=PUBLISHED,
                    over="micro",
                    form="{:.2f} of {num:,}",
                    interval=False,
                    missing="-",
                ),
            ),
            title="{dataset}, forecasts that would have been published, and the links that came: mean over {steps}"
            " [95 % interval]; {num} pairs, {seeds}{best}",
            contents="published pairs",
            measure="precision [95 % interval]",
            counted="pairs",
        ),
    ),
    # The step before the forecast one decides on the promotion, so that a published model was trained without it.
    trained_until=lambda steps: model_steps(max(steps) - 2),
    kind="backtests",
    plots=("reliability",),
)
