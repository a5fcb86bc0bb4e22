"""Flow: one dataset from new interactions to a champion that was chosen on them, and its forecasts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prefect import flow

from dyformer.evaluation.protocols.paper import PROTOCOL as PAPER
from dyformer.evaluation.protocols.paper import possible_steps
from dyformer.evaluation.protocols.prequential import PROTOCOL as PREQUENTIAL
from dyformer.evaluation.protocols.prequential import rankable_steps
from dyformer.experiments.methods import USUAL_KINDS, baselines_of, pair_scorers
from dyformer.experiments.settings import Experiment
from dyformer.experiments.tables import run_tables
from flows.console import no_new_line, print_once, timed_stage
from flows.service.managed import managed, stored_task
from flows.service.pages import show_first, show_report, show_tables
from flows.stages import (
    Changes,
    Seed,
    baselines_task,
    draw_task,
    evaluate_task,
    experiment_of,
    forecasts_task,
    ingest_task,
    publish_task,
    track_task,
    tracked_train_task,
    train_task,
    vectors_task,
)
from flows.tasks.complete_windows import complete_snapshots, later_windows
from flows.tasks.drift import drift_line, read_drift, send_again, send_alarm, write_drift
from flows.tasks.evaluation.evaluate import Group, Posed, backtest_published, check_forecast, units_of
from flows.tasks.evaluation.promote import champion_of, promote_if_better, unranked
from flows.tasks.finished import finished_report, unsent_alarm
from flows.tasks.models import DYFORMER, Contender
from flows.tasks.predict import first_rows, write_first_forecasts
from flows.tasks.publishing.ledger import write_outcomes
from flows.tasks.publishing.publications import taken_back_line
from flows.tasks.report import run_metrics, write_report
from flows.tasks.snapshots import newest_until, open_snapshots
from flows.tasks.start import SHORTEST, STAGES, Pause, Plan, Start, expected_line, pause_of, plan_of, start_of, warm
from flows.tasks.train import trained_steps

METHOD = "DyFormer"
FROM_SCRATCH = "trained from scratch, as every `run` does"
CURVE_STEPS = 5  # newest steps in the baselines' curve

start_task = stored_task(name="choose start")(start_of)
pause_task = stored_task(name="choose pause")(pause_of)
complete_task = stored_task(name="make snapshots", task_run_name="snapshots of {dataset}")(complete_snapshots)
drift_task = stored_task(name="measure drift")(write_drift)
alarm_task = stored_task(name="send alarm")(send_alarm)
again_task = stored_task(name="send alarm again")(send_again)
first_task = stored_task(name="first forecasts")(write_first_forecasts)
promote_task = stored_task(name="promote if better")(promote_if_better)
published_task = stored_task(name="backtest published")(backtest_published)
outcomes_task = stored_task(name="compare published")(write_outcomes)
report_task = stored_task(name="write report")(write_report)


class _Evaluated(NamedTuple):
    """The method that a run publishes if it is champion, or trained, and what it was evaluated by."""

    contender: Contender
    rankings: list[str]
    promotion: dict[str, Any]
    scores: list[str]
    earlier: list[str]
    training: str  # from which weights, and why, or why there was none


@dataclass(kw_only=True)
class _Timer:
    """The seconds of the stages so far, and those that are planned."""

    seconds: dict[str, float] = field(default_factory=dict)
    plan: Plan | None = None

    def follow(self, plan: Plan) -> None:
        """Print a plan, and the time left by it from now on."""
        self.plan = plan
        if plan.line is not None:
            print(plan.line, flush=True)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Take the time of a stage."""
        started, plan = time.monotonic(), self.plan
        title, planned = ("", None) if plan is None else (f"{plan.dataset}: {STAGES[name]}", plan.seconds.get(name))
        with timed_stage(title, planned):
            yield
        self.seconds[name] = round(time.monotonic() - started, 2)


@flow(flow_run_name="retrain {dataset}")
@managed
def retrain(
    dataset: str,
    reading: dict[str, Any] | None = None,
    changes: Changes = None,
    seed: Seed = 0,
    as_of: str | None = None,
    from_scratch: bool = False,
) -> str | None:
    """Bring a dataset from new interactions to a champion and its forecasts; returns the address of the report.

    Only windows that are complete count, as of the newest row or the time `as_of`. Nothing is published before the
    promotion. The settings `retrain` say whether a challenger is trained, and from which weights; with `from_scratch`
    one is, from random ones. Without a newly completed window, rows of a complete one or other settings, it returns the
    report of the earlier run; and None as long as there are too few complete windows, or where later ones than those as
    of `as_of` are complete.
    """
    experiment = experiment_of(changes).check_interactions()
    timer = _Timer()
    with timer.stage("ingest"):
        counts = ingest_task(dataset, reading)
        snapshots = complete_task(dataset, as_of, show=print_once)
    if snapshots is None:
        return None
    finished = finished_report(snapshots, experiment, seed)
    if finished is not None:
        _finish_again(snapshots, finished)
        return finished
    if as_of is not None and (line := later_windows(snapshots)):
        print(line, flush=True)
        return None
    with timer.stage("drift"):
        outcomes_task(snapshots)  # of earlier publications
        drift = drift_task(snapshots, experiment)
        alarms = read_drift(drift)[1]
        alarm = alarm_task(snapshots, alarms)
        pause = None if from_scratch else pause_task(snapshots, experiment, drift)
    made = _challenged(snapshots, experiment, seed, timer, drift, pause, from_scratch=from_scratch)
    with timer.stage("predict"):
        published, backtest = _published(snapshots, made.contender, made.promotion, seed, pause)
        rows = run_metrics(snapshots, made.rankings, made.scores, backtest)
    addresses = {"snapshots": snapshots, "scores": made.scores, "earlier": made.earlier, "rankings": made.rankings}
    summary = {
        "dataset": dataset,
        "counts": {**counts, "snapshots": snapshots},
        "addresses": {**addresses, **published, "drift": drift, "backtest": backtest},
        "promotion": made.promotion,
        "training": made.training,
        "challenger": {"title": made.contender.title, "models": list(made.contender.models)},
        "drift": {"alarms": alarms, "alarm": alarm},
        "baselines": sorted(baselines_of(USUAL_KINDS)),  # so that the page of the report imports no method
    }
    seconds = dict(timer.seconds)
    with timer.stage("report"):
        report = report_task(snapshots, rows, {**summary, "seconds": seconds}, experiment, seed)
        track_task(open_snapshots(snapshots).layout)
        show_report(report)
    return report


def _finish_again(snapshots: str, report: str) -> None:
    """Print what has become of a finished run since, and send what it could not send."""
    opened = open_snapshots(snapshots)
    print(no_new_line(opened.dataset), flush=True)
    if line := taken_back_line(opened.layout, opened.dataset):
        print(line, flush=True)
    if (drift := unsent_alarm(report)) and (became := again_task(snapshots, drift["alarms"])):
        print(drift_line(drift | {"alarm": became}), flush=True)
    track_task(opened.layout)


def _challenged(
    snapshots: str,
    experiment: Experiment,
    seed: int,
    timer: _Timer,
    drift: str,
    pause: Pause | None,
    *,
    from_scratch: bool,
) -> _Evaluated:
    """Train a challenger, compare it with the champion and the baselines, and evaluate it.

    In a pause the champion is compared with the baselines alone.
    """
    opened = open_snapshots(snapshots)
    check_forecast(snapshots)  # before the training, if its forecasts could not be calibrated
    if pause is None and (line := expected_line(opened.dataset, drift)):
        print(line, flush=True)
    stages = {"trains": pause is None, "shows_first": champion_of(opened.layout, opened.dataset) is None}
    timer.follow(plan_of(snapshots, experiment, **stages))
    with timer.stage("first_forecasts"):
        first = first_task(snapshots, seed)
        if first is not None:
            show_first(opened.dataset, *first_rows(first))
    if first is not None and timer.seconds["first_forecasts"] >= SHORTEST:
        stages["shows_first"] = False
        timer.follow(plan_of(snapshots, experiment, **stages, first_seconds=timer.seconds["first_forecasts"]))
    with timer.stage("train"):
        if pause is not None:
            contender, reason = pause.champion, pause.reason
        else:
            start = Start(reason=FROM_SCRATCH) if from_scratch else start_task(snapshots, experiment)
            contender, reason = _trained(snapshots, experiment, seed, start), start.reason
    with timer.stage("rank"):
        rankings, promotion = _promoted(snapshots, contender, experiment, seed)
    with timer.stage("evaluate"):
        scores, earlier = _evaluated(snapshots, contender, seed)
        rows = run_metrics(snapshots, rankings, scores)
        names = ("rankings", "scores", "new-scores")
        tables = run_tables(rows, opened.dataset)
        show_tables(opened.dataset, dict(zip(names[0 if rankings else 1 :], tables, strict=False)))
    return _Evaluated(contender, rankings, promotion, scores, earlier, reason)


def _trained(snapshots: str, experiment: Experiment, seed: int, start: Start) -> Contender:
    """Train the challenger's models, all from the champion's weights or all from scratch; the newest one is tracked.

    Where the champion has a model of an older step, that is the challenger's, too. One that lies before all of the
    champion's is trained from scratch.
    """
    *older, until = trained_steps(snapshots)
    own = warm(experiment) if start.models else experiment
    models = [
        start.models.get(step) or train_task(snapshots, step, own, seed, start=start.before(step)) for step in older
    ]
    newest = tracked_train_task(snapshots, until, own, seed, start.before(until))
    return Contender(title=DYFORMER, models=(*models, newest))


def _promoted(
    snapshots: str, contender: Contender, experiment: Experiment, seed: int
) -> tuple[list[str], dict[str, Any]]:
    """Score the newest step's queries by the challenger and by all methods without a model, and promote on them."""
    step = newest_until(snapshots) + 1
    if step not in rankable_steps(open_snapshots(snapshots)):
        reason = f"step {step} cannot be ranked: it has no link between known nodes, or no step before it has one"
        return [], unranked(snapshots, reason)
    posed = Posed(snapshots=snapshots, protocol=PREQUENTIAL, units=(step,), seed=seed, experiment=experiment)
    queries = draw_task(posed)
    assert queries is not None, "the protocol draws queries"
    scorers = Group(pair_scorers(on_request=experiment.promotion.events))
    groups = [Group({METHOD: None}, contender.models)] if contender.models else []
    rankings = [evaluate_task(posed, group) for group in (*groups, scorers)]
    return rankings, promote_task(snapshots, queries, rankings, contender, seed, experiment.promotion)


def _evaluated(snapshots: str, contender: Contender, seed: int) -> tuple[list[str], list[str]]:
    """Evaluate the newest step in the paper's protocol, if it has enough links, and the newest five by baselines."""
    step = newest_until(snapshots) + 1
    if step not in possible_steps(open_snapshots(snapshots)):
        return [], []
    posed = Posed(snapshots=snapshots, protocol=PAPER, units=(step,), seed=seed)
    trained = [evaluate_task(posed, Group({METHOD: None}, contender.models))] if contender.models else []
    scores = [*trained, baselines_task(snapshots, PAPER, step, seed)]
    # A growing log has a new version at every retraining, and all its steps would be evaluated again.
    newest = units_of(snapshots, PAPER)[-CURVE_STEPS:]
    return scores, [baselines_task(snapshots, PAPER, each, seed) for each in newest]


def _published(
    snapshots: str, contender: Contender, promotion: dict[str, Any], seed: int, pause: Pause | None = None
) -> tuple[dict[str, str], str | None]:
    """Write the champion's forecasts and vectors; a baseline has none, so that they are those of the newest training.

    Beside these, give the address of the champion's forecast of the newest step as it would have been, if there is one.
    """
    champion = promotion["champion"]
    published = contender if champion is None else Contender(title=champion["title"], models=tuple(champion["models"]))
    model = (published.models or ((pause.model,) if pause is not None else contender.models))[-1]
    if not published.models:
        promotion["note"] = (
            f"the vectors are the challenger's, because {published.title} has none"
            if pause is None
            else f"the vectors are those of the newest training, because {pause.reason}"
        )
    vectors = vectors_task(snapshots, model, seed=seed)
    forecasts = forecasts_task(snapshots, published, vectors if published.models else None, seed=seed)
    publish_task(snapshots, published, forecasts, vectors)
    return {"model": model, "vectors": vectors, "forecasts": forecasts}, published_task(snapshots, published, seed)
