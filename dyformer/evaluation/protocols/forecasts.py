"""The protocol of forecasts: what would have been published for past steps, against the links that came."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import polars as pl

from dyformer.evaluation.fitting import FORECASTER_WITH, model_steps
from dyformer.evaluation.forecasts.best_partners import BUSIEST, PUBLISHED
from dyformer.evaluation.forecasts.forecast import calibration_steps, fit_forecast
from dyformer.evaluation.forecasts.forecast_rows import (
    BEST_NEW,
    backtests,
    forecast_metrics,
    new_partner_metrics,
    reliability,
)
from dyformer.evaluation.protocols.prequential import rankable_steps
from dyformer.evaluation.protocols.protocol import Column, Job, Log, Protocol, Result, TableOf, Tables
from dyformer.evaluation.seasons import period_before
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring.interfaces import Embedder, Scorer


class Known(NamedTuple):
    """The steps before the forecast one, and the graph that ends with it."""

    job: Job
    past: PreparedGraph
    graph: DynamicGraph


def backtestable_steps(log: Log) -> list[int]:
    """List the steps for which forecasts can be made and calibrated."""
    graph, rankable = log.graph(log.num_steps), set(rankable_steps(log))
    return [
        step for step in sorted(rankable) if rankable.intersection(calibration_steps(step, period_before(graph, step)))
    ]


def _trial(job: Job) -> Known:
    # The graph of the forecast ends before the step, so no method can read it.
    past = prepare_graph(job.log.graph(job.unit - 1, interactions=True), until=job.unit - 1, config=job.config)
    return Known(job, past, job.log.graph(job.unit, interactions=True))


def _evaluate(title: str, method: Embedder | Scorer, known: Known) -> Tables:
    """Forecast a past step as a run does that publishes: vectors are read by the forecaster alone."""
    job = known.job
    forecast = fit_forecast(title, method, known.past, seed=job.seed, candidates_of=job.candidates_of)
    row = title if isinstance(method, Scorer) else FORECASTER_WITH + title
    return backtests(row, forecast, known.graph, seed=job.seed)


def _rows(results: Sequence[Result], log: Log, baselines: Collection[str]) -> Tables:
    """Give the metrics of all forecasts, and how reliable their probabilities were."""
    all_links, new = (pl.concat(result.table(name) for result in results) for name in ("backtest", "new_partners"))
    metrics = [
        forecast_metrics(all_links, log.dataset, baselines=baselines),
        new_partner_metrics(new, log.dataset, baselines=baselines),
    ]
    return {
        "metrics": pl.concat(metrics),
        "reliability": reliability(all_links, baselines=baselines),
    }


def _column(title: str, metric: str, form: str, family: str = PUBLISHED, **more: str) -> Column:
    return Column(title=title, metric=metric, family=family, form=form, **more)  # pyright: ignore[reportArgumentType]


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
        TableOf(
            name="new_partners",
            key="forecasts-of-new-partners",
            slice=BEST_NEW,
            columns=(
                _column("precision@10", "precision_at_10", "{:.4f}"),
                _column("difference", "precision_at_10", "{:+.4f}", value="difference"),
                _column("busiest hundred", "precision_at_10", "{:.4f}", family=BUSIEST),
                _column("difference, busiest", "precision_at_10", "{:+.4f}", value="difference", family=BUSIEST),
                _column("calibration error", "calibration_error", "{:.4f}"),
                _column("sum of probabilities / links", "probability_sum", "{:.2f}", over="micro"),
            ),
            title="{dataset}, each node's ten best new partners, and the links that came: mean over {steps}"
            " [95 % interval]; {num} pairs, {seeds}{best}",
            contents="best new partners",
            measure="precision [95 % interval]",
            counted="pairs",
        ),
    ),
    # The step before the forecast one decides on the promotion, so that a published model was trained without it.
    trained_until=lambda log, steps: model_steps(max(steps) - 2, period_before(log.graph(max(steps) - 1), max(steps))),
    kind="backtests",
    plots=("reliability",),
)
