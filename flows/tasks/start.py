"""The champion before a step, and the settings -> whether a challenger is trained, from which weights, and why.

Seconds of an earlier run's stages, or of the first forecasts, or the links of the newest steps -> a plan with times.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from dyformer.evaluation.fitting import FORECASTER_WITH
from dyformer.evaluation.labelled_steps import TRAINING_QUERIES
from dyformer.evaluation.promotion import FORECASTER_WITHOUT
from dyformer.evaluation.seasons import alike_steps, period_before
from dyformer.experiments.methods import METHODS
from dyformer.experiments.settings import Experiment
from dyformer.experiments.verdict import expected_in_words
from dyformer.logs.counts import counted
from dyformer.scoring.retrieval import MAX_NODES
from flows.tasks.drift import read_drift
from flows.tasks.evaluation.promote import STEP_IN_TEST, champion_of, unusable
from flows.tasks.models import TRAINING, Contender, open_model, trained_until
from flows.tasks.publishing.publications import model_of_vectors
from flows.tasks.report import newest_report, read_report
from flows.tasks.snapshots import Snapshots, open_snapshots
from flows.tasks.train import trained_steps
from storage.artifacts.artifact import ArtifactMissing, Lineage, lineage_of
from storage.artifacts.code import code_digest
from storage.bytes.checksums import Damaged

FRESH = "trained from scratch, because"


@dataclass(frozen=True, kw_only=True)
class Start:
    """Models of a champion by the last step of their training, none for a training from scratch, and the reason."""

    models: Mapping[int, str] = field(default_factory=dict)
    reason: str

    def before(self, until: int) -> str | None:
        """Return the newest model that was trained on no step from `until` on; None without one: from scratch."""
        steps = [step for step in self.models if step < until]
        return self.models[max(steps)] if steps else None


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A retraining without a training: the champion, the model whose vectors are published beside it, and why."""

    champion: Contender
    model: str
    reason: str


def start_of(snapshots: str, experiment: Experiment) -> Start:
    """Choose the weights from which the trainings for the newest step start.

    They are those of the champion before the newest step was compared, so that a run which is repeated after its own
    promotion starts where it did before. One of `retrain.scratch_every` retrainings is from scratch, and it is not
    trained beside a warm one: the champion that it is compared with is the newest good one of the warm trainings, and
    two challengers on one step would cost two trainings and make two tests where one decides. Retrainings are counted
    by the steps on which a champion was chosen.
    """
    opened = open_snapshots(snapshots)
    end_time = opened.time("end_time", opened.num_steps)
    newest = champion_of(opened.layout, opened.dataset)
    record = _before(newest, end_time)
    if newest is None or record is None:
        return Start(reason=f"{FRESH} there was no champion before step {opened.num_steps} was compared")
    if not record["models"]:
        return Start(reason=f"{FRESH} the champion, {record['title']}, has no weights")
    if (problem := unusable(opened, record)) is not None:
        return Start(reason=f"{FRESH} {problem}")
    number, every = len(_outcomes(newest, end_time)), experiment.retrain.scratch_every
    if number % every == 0:
        return Start(reason=f"{FRESH} one of {every} retrainings is (retrain.scratch_every), and {number} were before")
    models = [opened.layout.absolute(model) for model in record["models"]]
    lineages = {model: lineage_of(model) for model in models}
    problems = [_unlike(model, lineage, experiment) for model, lineage in lineages.items()]
    if problems[-1] is not None:
        return Start(reason=f"{FRESH} the champion {problems[-1]}")
    fitting = [model for model, problem in zip(models, problems, strict=True) if problem is None]
    by_step = {trained_until(lineages[model], opened): model for model in fitting}
    return Start(models=by_step, reason=f"trained from the champion's weights of step {max(by_step)}")


def pause_of(snapshots: str, experiment: Experiment, drift: str) -> Pause | None:
    """Return the pause of the trainings, by the settings `retrain.pause_...`; None where a challenger is trained.

    As the weights of `start_of`, it rests on what was known before the newest step was compared, so that a repeated run
    decides the same. A training says nothing clear where too few links could be ranked: it never begins a pause.
    """
    opened, rule = open_snapshots(snapshots), experiment.retrain
    end_time = opened.time("end_time", opened.num_steps)
    newest = champion_of(opened.layout, opened.dataset)
    record = _before(newest, end_time)
    if rule.pause_after is None or record is None or record["models"] or record["title"] not in METHODS:
        return None
    outcomes = _outcomes(newest, end_time)
    trained = [index for index, outcome in enumerate(outcomes) if outcome["trained"]]
    useless = [_added_nothing(outcomes[index]) for index in trained[-rule.pause_after :]]
    if len(useless) < rule.pause_after or not all(useless) or read_drift(drift)[1]:
        return None
    number = len(outcomes) - trained[-1]  # of this retraining, among those without a training
    model = model_of_vectors(opened)
    if number >= rule.pause_every or model is None or _unlike(model, lineage_of(model), experiment) is not None:
        return None
    reason = (
        f"no model was trained: the vectors of the last {rule.pause_after} trainings added nothing clear"
        f" (retrain.pause_after), so one of {rule.pause_every} retrainings trains (retrain.pause_every), and this is"
        f" number {number} since the last one"
    )
    return Pause(champion=Contender(title=record["title"]), model=model, reason=reason)


def warm(experiment: Experiment) -> Experiment:
    """Give the settings of a training that starts from the champion's weights: it takes a fraction of the epochs."""
    return replace(experiment, warm_start=experiment.retrain.warm_epochs)


def _before(record: dict[str, Any] | None, end_time: int) -> dict[str, Any] | None:
    """Return the record of the champion that was chosen on the last step before one that ends at a time."""
    held = [] if record is None else [*record["earlier"], record]
    before = [champion for champion in held if champion.get("end_time") is not None and champion["end_time"] < end_time]
    return before[-1] if before else None


def _outcomes(record: dict[str, Any] | None, end_time: int) -> list[dict[str, Any]]:
    """List the newest outcome of each step that ends before a time, with `trained`: whether a model was compared."""
    outcomes = {}
    for champion in () if record is None else (*record["earlier"], record):
        for key, outcome in champion["tests"].items():
            title, _, end = key.rpartition(STEP_IN_TEST)
            if re.fullmatch(r"-?\d+", end) and int(end) < end_time:
                outcomes[int(end)] = {**outcome, "trained": title.startswith(FORECASTER_WITH)}
    return [outcomes[end] for end in sorted(outcomes)]


def _added_nothing(outcome: dict[str, Any]) -> bool:
    vectors = outcome["vectors"]
    return vectors is not None and vectors["difference"] is not None and vectors["difference"][0] <= 0


def _unlike(model: str, trained: Lineage, experiment: Experiment) -> str | None:
    """Say why weights cannot be those that a training starts from."""
    if trained.code_version != code_digest(*TRAINING):  # whose weights may have other names and shapes
        return f"is of another version of the code ({trained.code_version})"
    _, settings, _ = open_model(model)
    if experiment.graph.history_window is None:
        return "has weights for fewer steps: with graph.history_window=none each step adds some"
    if (settings.graph, settings.model) != (experiment.graph, experiment.model):
        return "has other settings of the graph or of the model"
    return None


def expected_line(dataset: str, drift: str) -> str | None:
    """Write which case a log is, by the newest step's links; None where it has none."""
    repeats = read_drift(drift)[0].filter(pl.col("step") == pl.col("step").max(), metric="repeats")["value"]
    return None if repeats.is_empty() else f"{dataset}: {expected_in_words(float(repeats[0]))}"


STAGES = {
    "first_forecasts": "first forecasts",
    "train": "training",
    "rank": "ranking",
    "evaluate": "evaluation",
    "predict": "forecasts",
    "report": "report",
}
"""The long stages of a run, in their order."""

TO_FIRST = {"rank": 1.2, "evaluate": 1.0, "predict": 1.0}
"""Seconds of a stage by those of the first forecasts: rough, as in runs of three logs they were .4 to 2.4."""

SECONDS_A_LINK = 0.0046
"""Of the first forecasts, by links of the steps that they learn from: CPU seconds on two logs.

Most of them are the trees of two fits, on some twenty pairs a link.
"""

START_SECONDS = 1.0
"""Of the first forecasts, whatever their links: CPU seconds, about so many on four logs of 19 to 370 links."""

SECONDS_A_BATCH = 0.1
"""Of a training on two cores; `pretrain` and `finetune` say how many batches there are at most."""

REPORT_SECONDS = 8.0  # its plots and its run in MLflow; the report cannot have its own time
SHORTEST = 1.0  # seconds of a stage that was really made: one that is stored already takes less
LEAST_PRINTED = 3.0  # seconds before the report for which a plan is worth a line
MINUTE = 60


@dataclass(frozen=True, kw_only=True)
class Plan:
    """About how many seconds each of the stages to come takes, in their order, and where these numbers come from."""

    dataset: str
    seconds: Mapping[str, float]
    origin: str

    @property
    def line(self) -> str | None:
        """All of it in a line, without stages of 0 s; None where all stages before the report take a moment."""
        total = sum(self.seconds.values())
        if total - self.seconds.get("report", 0.0) < LEAST_PRINTED:
            return None
        long = {stage: seconds for stage, seconds in self.seconds.items() if round(seconds) > 0}
        listed = ", ".join(f"{STAGES[stage]} {_about(seconds)}" for stage, seconds in long.items())
        return f"{self.dataset}: about {_about(total)} to go, {self.origin}: {listed}"


def plan_of(
    snapshots: str, experiment: Experiment, *, trains: bool, shows_first: bool, first_seconds: float | None = None
) -> Plan:
    """Plan the stages to come: as long as in the run before, or by the time of the first forecasts.

    That time is `first_seconds` once they are made, and before them, or where they were stored, estimated from the
    links that they learn from. The first forecasts are a stage to come where `shows_first`. On a graph with more than
    MAX_NODES nodes, of whose links few are learned from, nothing is planned before they are made. What was not measured
    takes the longer, the more other programs run; and once the first forecasts are made, the more these exceeded what
    their links let expect.
    """
    opened = open_snapshots(snapshots)
    left_out = {stage for stage, is_left in (("first_forecasts", shows_first), ("train", trains)) if not is_left}
    stages = [stage for stage in STAGES if stage not in left_out]
    known, origin = {**_earlier(opened.dataset), "report": REPORT_SECONDS}, "as in the run before"
    if any(stage not in known or known[stage] < SHORTEST for stage in stages):  # it was paused, or found stored parts
        first, times, origin = _first_of(opened, first_seconds)
        known = {} if first is None else _estimated(experiment, first, times, len(trained_steps(snapshots)))
    return Plan(dataset=opened.dataset, seconds={name: known[name] for name in stages if name in known}, origin=origin)


def _first_of(opened: Snapshots, first_seconds: float | None) -> tuple[float | None, float, str]:
    """Give the seconds of the first forecasts, how many times longer stages take here, and where the numbers come from.

    The seconds are None where they cannot be estimated. The links that the first forecasts learn from are those of
    their labelled steps, of each up to TRAINING_QUERIES.
    """
    graph, step = opened.graph(opened.num_steps), opened.num_steps + 1
    labelled = [graph.snapshots[each - 1] for each in alike_steps(step, period_before(graph, step))]
    num_links = sum(min(len(snapshot.source_E), TRAINING_QUERIES) for snapshot in labelled)
    alone = num_links * SECONDS_A_LINK if len(graph.node_N) <= MAX_NODES else None
    if first_seconds is not None and first_seconds >= SHORTEST:
        times = max(first_seconds / (START_SECONDS + alone), 1.0) if alone else 1.0
        return first_seconds, times, f"estimated from the {first_seconds:.0f} s of the first forecasts"
    if alone is None:
        return None, 1.0, "not estimated"
    load, num_cores = os.getloadavg()[0], os.cpu_count() or 1  # of the last minute, before the command itself is busy
    busy = f", beside other programs (a load of {load:.0f} on {counted(num_cores, 'core')})" if load > num_cores else ""
    times = max(load / num_cores, 1.0)
    return alone * times, times, f"estimated from {counted(num_links, 'link')} to learn from{busy}"


def _estimated(experiment: Experiment, first: float, times: float, num_trainings: int) -> dict[str, float]:
    """Estimate the seconds of all stages from those of the first forecasts and from the batches of the trainings.

    The training and the report take so many `times` as long as on a machine without other programs.
    """
    parts = [part for part in (experiment.capped.pretrain, experiment.capped.finetune) if part is not None]
    batches = sum(part.epochs * part.batches_per_epoch for part in parts)
    of_stage = {stage: ratio * first for stage, ratio in TO_FIRST.items()}
    training = num_trainings * batches * SECONDS_A_BATCH * times
    return {"first_forecasts": first, "train": training, **of_stage, "report": REPORT_SECONDS * times}


def _earlier(dataset: str) -> Mapping[str, float]:
    """Give the seconds of the stages of the run before; of the forecasts also those before its training.

    A first run makes the forecasts of the forecaster without vectors first. Where this is champion it publishes them.
    """
    try:
        summary = read_report(newest_report(dataset))[1]
    except (ArtifactMissing, Damaged):  # the run needs no earlier report
        return {}
    seconds, champion = summary["seconds"], summary["promotion"]["champion"]
    is_first = champion is not None and champion["title"] == FORECASTER_WITHOUT
    if is_first and {"predict", "first_forecasts"} <= seconds.keys():
        return {**seconds, "predict": seconds["predict"] + seconds["first_forecasts"]}
    return seconds


def _about(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * MINUTE else f"{seconds / MINUTE:.0f} min"
