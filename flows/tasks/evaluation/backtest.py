"""Snapshots and a published method -> the forecast of the newest step that it would have made, and what came of it."""

from dyformer.evaluation.fitting import FORECASTER_WITH, NUM_LABELLED_STEPS
from dyformer.evaluation.protocols.forecasts import PROTOCOL as FORECASTS
from dyformer.evaluation.protocols.forecasts import backtestable_steps
from dyformer.evaluation.protocols.prequential import rankable_steps
from dyformer.graphs.snapshots import StepOutOfRange
from dyformer.sampling.pairs import TooFewLinks
from flows.tasks.evaluation.evaluate import Group, Posed, evaluate
from flows.tasks.models import Contender, method_of, trained_until
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import lineage_of


def backtest_published(snapshots: str, contender: Contender, seed: int = 0) -> str | None:
    """Forecast the newest step as a contender would have, from the steps before; return the outcome's address.

    Nothing that this forecast is made of has read the step: its method is fitted, and its probabilities are calibrated,
    on earlier ones, and of the contender's models those count that were trained before its calibration step, as for a
    forecast that is published. None where the newest step allows no such forecast, or no model is old enough.
    """
    opened = open_snapshots(snapshots)
    step = opened.num_steps
    models = tuple(model for model in contender.models if trained_until(lineage_of(model), opened) < step - 1)
    if step not in backtestable_steps(opened) or (contender.models and not models):
        return None
    method, experiment = method_of(opened, contender)
    title = contender.title.removeprefix(FORECASTER_WITH) if models else contender.title
    posed = Posed(snapshots=snapshots, protocol=FORECASTS, units=(step,), seed=seed, experiment=experiment)
    try:
        return evaluate(posed, Group({title: None if models else method}, models))
    except TooFewLinks:
        return None


def check_forecast(snapshots: str) -> None:
    """Raise StepOutOfRange if no step is recent enough to calibrate a forecast as of the newest one."""
    opened = open_snapshots(snapshots)
    if not any(step > opened.num_steps - NUM_LABELLED_STEPS for step in rankable_steps(opened)):
        raise StepOutOfRange(
            f"{opened.dataset}: none of the last {NUM_LABELLED_STEPS} of {opened.num_steps} steps has links between"
            " known nodes and a step with some before it, so that no forecast can be calibrated: choose longer windows"
            " (`window`), or wait for rows"
        )
