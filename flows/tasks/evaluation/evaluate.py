"""A protocol, methods and units of a log -> what is drawn, scored and measured, each stored once."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import polars as pl

from dyformer.evaluation.fitting import FORECASTER_WITH, NUM_LABELLED_STEPS
from dyformer.evaluation.forecasts.forecast import calibration_steps
from dyformer.evaluation.protocols.forecasts import PROTOCOL as FORECASTS
from dyformer.evaluation.protocols.forecasts import backtestable_steps
from dyformer.evaluation.protocols.prequential import rankable_steps
from dyformer.evaluation.protocols.protocol import Job, Protocol, chosen_units, evaluated
from dyformer.evaluation.seasons import period_before
from dyformer.experiments.methods import TrainingStage, Variation, own_errors, pair_scorers
from dyformer.experiments.settings import Experiment, as_record
from dyformer.graphs.snapshots import StepOutOfRange
from dyformer.sampling.pairs import TooFewLinks
from dyformer.scoring.event_forecaster import EventForecaster
from dyformer.scoring.interfaces import RankEvents
from dyformer.streams.event_log import EventLog, EventQueries
from flows.console import ongoing
from flows.tasks.evaluation.measure import protocol_record
from flows.tasks.made import made
from flows.tasks.methods import fitted_once, record_of
from flows.tasks.models import Contender, method_code, method_of, space_of, stored_method, trained_until
from flows.tasks.predict import candidate_pairs
from flows.tasks.snapshots import Snapshots, open_snapshots
from storage.artifacts.artifact import lineage_of, open_artifact
from storage.artifacts.code import project_modules


class Group(NamedTuple):
    """Methods that one task evaluates, by title, and stored weights of one that is trained, the newest last."""

    methods: Mapping[str, Any]
    models: tuple[str, ...] = ()

    def __str__(self) -> str:  # on a page, which 22 titles would make unreadable
        first, *others = self.methods
        return f"{first} and {len(others)} more" if others else first


@dataclass(frozen=True, kw_only=True)
class Posed:
    """Units of the log of some snapshots that a protocol evaluates together, with one seed."""

    snapshots: str
    protocol: Protocol
    units: tuple[Any, ...]
    seed: int = 0
    experiment: Experiment | None = None

    def __str__(self) -> str:
        named = self.units if len(self.units) == 1 else (f"{self.units[0]} to {self.units[-1]}",)
        return f"{self.protocol.unit} {named[0]}"


def units_of(snapshots: str, protocol: Protocol, wanted: str | None = None) -> list[Any]:
    """List the units that a protocol evaluates; raises as chosen_units does."""
    return chosen_units(protocol, open_snapshots(snapshots), wanted)


def draw(posed: Posed) -> str | None:
    """Draw what all methods are evaluated on, unless it exists; return its address, None where nothing is stored.

    Its checksums are in the lineage of the methods' scores.
    """
    protocol, opened = posed.protocol, open_snapshots(posed.snapshots)
    if protocol.draw is None:
        return None
    for unit in posed.units if protocol.unit == "step" else ():
        opened.check(unit)
    seed = 0 if protocol.same_draw else posed.seed
    settings = {"protocol": protocol.name, "seed": seed, "units": list(posed.units), "directed": opened.directed}
    return made(
        opened,
        "queries",
        until=opened.num_steps,  # because candidates may be links of later steps
        settings={**settings, **protocol_record(protocol)},
        make=partial(protocol.draw, Job(log=opened, units=posed.units, seed=seed, settings=protocol.chosen)),
        code=project_modules(protocol.draw),
    )


def evaluate(posed: Posed, group: Group) -> str:
    """Evaluate methods, unless their results exist; return the address.

    Stored weights have the settings with which they were trained; other methods are fitted on what is known before a
    unit. Raises StepOutOfRange for weights that were trained on a step that they forecast.
    """
    opened, protocol = open_snapshots(posed.snapshots), posed.protocol
    methods, experiment, records = _prepared(opened, posed, group)
    drawn = draw(posed)
    inputs = () if drawn is None else (drawn,)
    settings: dict[str, Any] = {
        "protocol": protocol.evaluated_as or protocol.name,
        "seed": posed.seed,
        "units": list(posed.units),
        "drawn": [opened.layout.relative(address) for address in inputs],
        "directed": opened.directed,
        **protocol_record(protocol),
        **records,
        **as_record(experiment, "graph"),
    }

    def results() -> dict[str, pl.DataFrame]:
        job = Job(
            log=opened,
            units=posed.units,
            seed=posed.seed,
            config=experiment.graph,
            drawn={} if drawn is None else open_artifact(drawn).tables(),
            settings=protocol.chosen,
            candidates_of=candidate_pairs,
        )
        printed = {title: _with_printed_fit(title, method, opened.dataset) for title, method in methods.items()}
        with ongoing(f"evaluate {group} on {opened.dataset} {posed} ({protocol.name})", len(methods)) as done:
            return evaluated(protocol, job, printed, partial(_counted, done, str(posed), methods))

    return made(
        opened,
        protocol.kind,
        until=opened.num_steps if protocol.whole_log else max(posed.units),
        settings=settings,
        make=results,
        code=code_behind(protocol, methods.values()),
        inputs=(*inputs, *group.models),
    )


@contextmanager
def _counted(
    done: Callable[[], None], where: str, methods: Mapping[str, Any], title: str, printed: Any
) -> Iterator[None]:
    """Name the user's own method and the step in its errors, and count it once it has been evaluated."""
    with own_errors(title, methods[title], where):
        yield
    done()


@dataclass(frozen=True, kw_only=True)
class _ShownFit:
    """An event forecaster whose fit, which may take minutes, has a bar of its own with the time left."""

    title: str
    method: EventForecaster

    def fit_events(self, log: EventLog, training: EventQueries, validation: EventQueries, *, seed: int) -> RankEvents:
        with ongoing(self.title, self.method.num_rounds) as done:
            return self.method.fit_events(log, training, validation, seed=seed, done=done)


def _with_printed_fit(title: str, method: Any, dataset: str) -> Any:
    return (
        _ShownFit(title=f"fit {title} to {dataset}", method=method) if isinstance(method, EventForecaster) else method
    )


def code_behind(protocol: Protocol, methods: Iterable[object]) -> tuple[str, ...]:
    """Name the modules by which a protocol evaluates methods, those of fitted methods and of stored weights too."""
    kinds = [kind for method in methods for kind in method_code(method)]
    return project_modules(protocol.trial, protocol.evaluate, evaluated, candidate_pairs, *kinds)


def evaluate_baselines(snapshots: str, protocol: Protocol, step: int, seed: int = 0) -> str:
    """Evaluate all METHODS that score pairs without vectors, but those of ON_REQUEST."""
    return evaluate(Posed(snapshots=snapshots, protocol=protocol, units=(step,), seed=seed), Group(pair_scorers()))


def _prepared(opened: Snapshots, posed: Posed, group: Group) -> tuple[dict[str, Any], Experiment, dict[str, Any]]:
    """Give the methods that are fitted, the experiment with the settings of their graph, and the record of both."""
    experiment = (Experiment() if posed.experiment is None else posed.experiment).of_seed(posed.seed)
    if group.models:
        [title] = group.methods
        stored, experiment = stored_method(opened, group.models[-1], group.models[:-1], max(posed.units))
        return {title: stored}, experiment, {"methods": [title], "models": list(map(space_of, group.models))}
    methods = {title: _of_experiment(method, experiment) for title, method in group.methods.items()}
    records = {title: record_of(method) for title, method in methods.items()}
    for method in methods.values():
        if isinstance(method, Variation | TrainingStage):  # one that is alone in its group
            experiment = method.changed(experiment)
    if not posed.protocol.own_process:  # a protocol that measures fits makes several of one step
        methods = fitted_once(methods, posed.snapshots, experiment.graph)
    return methods, experiment, {"methods": records}


def _of_experiment(method: Any, experiment: Experiment) -> Any:
    """Give a method that is trained here the settings of the experiment; an epoch takes as long with a cap on them."""
    if isinstance(method, TrainingStage):
        uncapped = replace(experiment, max_epochs=None)
        return replace(method, variation=replace(method.variation, experiment=uncapped))
    return replace(method, experiment=experiment) if isinstance(method, Variation) else method


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
    step = opened.num_steps + 1
    possible = calibration_steps(step, period_before(opened.graph(opened.num_steps), step))
    if not set(possible).intersection(rankable_steps(opened)):
        raise StepOutOfRange(
            f"{opened.dataset}: none of the last {NUM_LABELLED_STEPS} of {opened.num_steps} steps has links between"
            " known nodes and a step with some before it, so that no forecast can be calibrated: choose longer windows"
            " (`window`), or wait for rows"
        )
