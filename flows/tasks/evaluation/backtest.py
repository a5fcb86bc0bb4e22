"""Snapshots and a past step -> the forecasts that methods would have published for it, and what came of them."""

import polars as pl

from dyformer.embedder import Scorer
from dyformer.evaluation.forecasts.forecast import fit_forecast
from dyformer.evaluation.forecasts.forecast_rows import PROTOCOL, backtest, forecast_metrics
from dyformer.evaluation.protocols import FORECASTER_WITH, NUM_OLDER_STEPS
from dyformer.experiments.methods import BASELINES
from dyformer.experiments.settings import Experiment, as_record
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.sampling.pairs import TooFewLinks
from dyformer.scoring.candidate_pairs import candidate_pairs
from flows.tasks.evaluation.evaluate import chosen_steps
from flows.tasks.evaluation.rank import rankable_steps
from flows.tasks.methods import chosen_methods, own_errors, record_of, title_of
from flows.tasks.models import Contender, method_of, space_of, trained_until
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import is_current, lineage_of, read_table, write_artifact


def backtest_forecasts(
    snapshots: str,
    name: str,
    step: int,
    experiment: Experiment,
    seed: int = 0,
    models: tuple[str, ...] = (),
    searched: str | None = None,
) -> str:
    """Forecast a past step from the steps before it, as `write_forecasts` does; return the address of the outcome.

    `name` as in chosen_methods; `models` are the stored weights of a method that is trained, the newest last. Without
    them the method has the settings that a search chose for the dataset `searched`.
    """
    opened = open_snapshots(snapshots)
    if models:
        method, experiment = method_of(opened, Contender(title=name, models=models))
        record: object = list(map(space_of, models))
    else:
        [method] = chosen_methods([name], experiment.max_epochs, searched).values()
        record = record_of(method)
    title = title_of(name) if isinstance(method, Scorer) else FORECASTER_WITH + title_of(name)
    settings = {"protocol": PROTOCOL, "method": title, "record": record, "step": step, "seed": seed}
    settings |= {"directed": opened.directed, **as_record(experiment, "graph")}
    lineage = opened.lineage("backtests", until=step, settings=settings, inputs=models)
    keys = {"version": lineage.table_version, "until": step, "settings": lineage.settings_hash, "seed": seed}
    address = opened.layout.backtests(opened.dataset, **keys)
    if is_current(address, lineage):
        return address
    # The graph of the forecast ends before the step, so no method can read it.
    past = prepare_graph(opened.graph(step - 1, interactions=True), until=step - 1, config=experiment.graph)
    with own_errors(title, method):
        forecast = fit_forecast(name, method, past, seed=seed, candidates_of=candidate_pairs)
        outcome = backtest(title, forecast, opened.graph(step, interactions=True), seed=seed)
    return write_artifact(address, {"backtest": outcome}, lineage)


def backtest_published(snapshots: str, contender: Contender, seed: int = 0) -> str | None:
    """Forecast the newest step as a contender would have, from the steps before; return the outcome's address.

    Nothing that this forecast is made of has read the step: its method is fitted, and its probabilities are calibrated,
    on earlier ones, and of the contender's models those count that were trained before its calibration step, as for a
    forecast that is published. None where the newest step allows no such forecast, or no model is old enough.
    """
    opened = open_snapshots(snapshots)
    step = opened.num_steps
    models = tuple(model for model in contender.models if trained_until(lineage_of(model), opened) < step - 1)
    if step not in backtestable_steps(snapshots) or (contender.models and not models):
        return None
    _, experiment = method_of(opened, contender)
    name = contender.title.removeprefix(FORECASTER_WITH) if models else contender.title
    try:
        return backtest_forecasts(snapshots, name, step, experiment, seed, models)
    except TooFewLinks:
        return None


def steps_to_backtest(snapshots: str, wanted: str | None = None) -> list[int]:
    """List the steps for which forecasts can be made and calibrated, from the dataset's first evaluated step on.

    Raises:
        StepOutOfRange: a wanted step without links between known nodes, or without an earlier step that has some.
    """
    need = "a step needs an earlier one on which the probabilities are calibrated"
    return chosen_steps(snapshots, backtestable_steps(snapshots), wanted, need)


def backtestable_steps(snapshots: str) -> list[int]:
    """List the steps for which forecasts can be made and calibrated."""
    rankable = rankable_steps(snapshots)
    return [step for step in rankable if any(step - NUM_OLDER_STEPS <= before < step for before in rankable)]


def backtest_metrics(backtests: list[str], snapshots: str) -> pl.DataFrame:
    """Return the metrics of backtests as rows of METRICS_SCHEMA."""
    return forecast_metrics(read_backtests(backtests), open_snapshots(snapshots).dataset, baselines=BASELINES)


def read_backtests(addresses: list[str]) -> pl.DataFrame:
    """Read the forecasts of backtests and what came of them as one table."""
    return pl.concat([read_table(address, "backtest") for address in addresses])
