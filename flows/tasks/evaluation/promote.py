"""Scores of the newest step's queries -> the champion of the dataset, recorded with the outcome of every test."""

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from dyformer import InvalidInput
from dyformer.evaluation.config import PromotionConfig
from dyformer.evaluation.fitting import FORECASTER_WITH
from dyformer.evaluation.promotion import Decision, Gain, decide
from dyformer.evaluation.protocols.prequential import PROTOCOL as PREQUENTIAL
from dyformer.evaluation.scored_queries import ScoredQueries, from_table
from dyformer.experiments.methods import METHODS
from dyformer.experiments.settings import OldSettings
from dyformer.experiments.titles import UnknownMethod
from dyformer.sampling.ranking_queries import RankingQueries
from dyformer.scoring.interfaces import Scorer
from dyformer.training.checkpoint import WeightsDoNotFit
from flows.tasks.evaluation.evaluate import Group, Posed, evaluate
from flows.tasks.evaluation.measure import read_queries
from flows.tasks.methods import resolved
from flows.tasks.models import Contender, space_of, trained_until
from flows.tasks.snapshots import Snapshots, open_snapshots
from storage.artifacts.artifact import lineage_of, manifest, open_artifact, read_table
from storage.artifacts.made import HISTORY
from storage.champions import champion_lock, numbered_after, read_champion, replace_champion, update_copy
from storage.layout import Layout

CHAMPION = "champion"
MISSING = "the champion's weights are missing"
TAKEN_BACK = "the champion was trained on rows after the newest step, which were taken back"
REPEATED = "another machine recorded a test of its own meanwhile, so this contender was compared again"
MOST_TRIES = 5
STEP_IN_TEST = " on the step that ends at "  # between contender with windows and time, in the key of a test


class NotEvaluated(InvalidInput):
    """A contender without scores of the queries cannot be promoted."""


class _Ranked(NamedTuple):
    """What all methods of one comparison share: the snapshots, the queries with their address, and all given scores."""

    opened: Snapshots
    queries: str
    drawn: RankingQueries
    rankings: list[str]
    seed: int


def promote_if_better(
    snapshots: str,
    queries: str,
    rankings: list[str],
    contender: Contender,
    seed: int = 0,
    rule: PromotionConfig | None = None,
) -> dict[str, Any]:
    """Decide who is the dataset's champion after the step of the queries, by the rule of dyformer.evaluation.promotion.

    The contender, the champion, the baselines and the forecaster without vectors are compared on the same queries; a
    champion without scores among `rankings` is evaluated here. One that was trained on the step stays without a test.
    One whose weights are missing, do not fit this version, or are of rows after the step, which were taken back since,
    is replaced. A contender is tested once against a champion on a step, which is known by the windows' length and its
    end time: after that the recorded outcome is returned, whatever rows have come. Where another machine recorded a
    test meanwhile, the contender is compared again, with the champion of then. Without models of its own, the contender
    may be the champion: then the baselines alone are compared with it.

    Args:
        snapshots: address of the snapshots.
        queries: address of the queries of the newest step.
        rankings: addresses of scores of these queries, those of the contender and of the baselines among them.
        contender: the challenger.
        seed: seed of the scores.
        rule: metric, level and slices; by default those of PromotionConfig.

    Returns:
        promoted: whether the contender is champion now because of this step; champion, previous: title and models;
        difference: low, mean and high of the difference in the metric between the two methods of `compared`, or None;
        metric; num_queries; level: of the interval; reason; tied: the more expensive method that the champion is as
        good as; gain: of the champion over the best simple method (method, value, other, other_value, difference); and
        vectors: of the challenger over the forecaster without vectors; None where they are not known; rule: the
        settings of a test.
    """
    opened = open_snapshots(snapshots)
    ranked = _Ranked(opened, queries, read_queries(queries), rankings, seed)
    with champion_lock(opened.layout, opened.dataset):
        update_copy(opened.layout, opened.dataset)
        for number in range(MOST_TRIES):
            outcome = _decided(ranked, contender, rule or PromotionConfig(), REPEATED if number else None)
            if outcome is not None:
                return _absolute(opened.layout, outcome)
    raise InvalidInput(
        f"dataset {opened.dataset!r}: other machines recorded their tests first {MOST_TRIES} times; run it again later"
    )


def _decided(ranked: _Ranked, contender: Contender, rule: PromotionConfig, note: str | None) -> dict[str, Any] | None:
    """Return the recorded outcome or that of a comparison; None if another machine recorded one meanwhile."""
    opened = ranked.opened
    record, stamp = read_champion(opened.layout, opened.dataset)
    tested = f"{identity(contender)}, windows of {opened.window}"  # another window may end at the same time
    key = f"{tested}{STEP_IN_TEST}{opened.time('end_time', ranked.drawn.step)}"
    present = record if record is not None and unusable(opened, record) is None else None
    if present is not None and key in present["tests"]:
        return _recorded(present["tests"][key], rule)
    if present is not None and present["identity"] == identity(contender) and contender.models:
        return _outcome(present, present, "the challenger is the champion already")
    outcome, after = _tested(ranked, contender, record, rule, note)
    if after is None:
        return outcome
    outcome["rule"] = asdict(rule)
    after["tests"] = {**after["tests"], key: outcome}
    return outcome if replace_champion(opened.layout, opened.dataset, after, stamp) else None


def _recorded(outcome: dict[str, Any], rule: PromotionConfig) -> dict[str, Any]:
    """Return a recorded outcome; its reason names what it was tested by where the rule is another one now."""
    rule_then, now = outcome["rule"], asdict(rule)
    changed = ", ".join(f"promotion.{name}={rule_then[name]}" for name in now if rule_then[name] != now[name])
    if not changed:
        return outcome
    note = f"tested with {changed}, and a model is tested once a step: other settings count from the next one"
    return {**outcome, "reason": f"{outcome['reason']}; {note}"}


def unranked(snapshots: str, reason: str) -> dict[str, Any]:
    """Give the outcome of a run whose newest step cannot be ranked: nobody is promoted."""
    opened = open_snapshots(snapshots)
    record = champion_of(opened.layout, opened.dataset)
    if record is not None and (problem := unusable(opened, record)) is not None:
        record, reason = None, f"{reason}; {problem}"
    return _absolute(opened.layout, _outcome(record, record, reason))


def champion_of(layout: Layout, dataset: str) -> dict[str, Any] | None:
    """Read the record of a dataset's champion; None where there is none.

    title; models: addresses below the root, the newest last; identity: title and the models' spaces; version, until,
    space: of the newest model; step, end_time, seed: of the comparison that it won; metrics; difference; num_tests: how
    often it was tested since; tests: the outcome of each; since, reason; number: of the champion; earlier: the records
    of those before it; published: its newest forecasts.
    """
    return read_champion(layout, dataset)[0]


def champion_contender(snapshots: str) -> Contender | None:
    """Return the dataset's champion with the addresses of its models; None without one, or without its weights."""
    opened = open_snapshots(snapshots)
    layout, record = opened.layout, champion_of(opened.layout, opened.dataset)
    if record is None or not is_usable(layout, record):
        return None
    return Contender(title=record["title"], models=tuple(layout.absolute(model) for model in record["models"]))


def champion_to_publish(snapshots: str) -> Contender:
    """Return the champion. Raises ValueError where there is none, or its weights are gone."""
    contender = champion_contender(snapshots)
    if contender is None:
        dataset = open_snapshots(snapshots).dataset
        raise InvalidInput(
            f"{dataset} has no champion whose forecasts could be written: `dyformer run {dataset}` chooses one and "
            f"publishes its forecasts; with a setting, as in --set model.num_layers=4, DyFormer is trained by it"
        )
    return contender


def identity(contender: Contender) -> str:
    """Return what a contender is known by: its title, and the ids of its models' spaces, equal for equal weights."""
    return " ".join([contender.title, *map(space_of, contender.models)])


def _tested(
    ranked: _Ranked, contender: Contender, record: dict[str, Any] | None, rule: PromotionConfig, note: str | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Compare; returns the outcome, and the champion's record after a test (None if there was none)."""
    opened, step = ranked.opened, ranked.drawn.step
    challenger = _scores_of(ranked, contender)
    if challenger is None:
        raise NotEvaluated(
            f"{contender.title}: expected its scores of {opened.layout.relative(ranked.queries)} with seed "
            f"{ranked.seed}, and the rankings have none by these models: rank it first"
        )
    if record is not None and unusable(opened, record) is None and _was_trained_on(ranked, record):
        reason = f"the champion was trained on step {step}, so it cannot be compared there"
        return _outcome(record, record, reason), None
    champion, problem = _champions_scores(ranked, record)
    graph = opened.graph(step - 1, interactions=True)
    num_tests = record["num_tests"] if record is not None and champion is not None else 0
    is_champion = champion is not None and record is not None and record["identity"] == identity(contender)
    baselines = _without_models(ranked, challenger.method)
    decision = decide(None if is_champion else challenger, champion, baselines, graph, rule, num_tests)
    notes = [sentence for sentence in (note, problem) if sentence is not None]
    decision = decision._replace(reason="; ".join([*notes, decision.reason]))
    if record is not None and champion is not None:
        decision = _titled(decision, champion.method, record["title"])
    is_same = champion is not None and decision.winner == champion.method
    if record is not None and is_same and decision.difference is None:
        return _outcome(record, record, decision.reason), None  # so that a later test on more queries is the first
    promoted = decision.winner == challenger.method and not is_same
    winner = contender if promoted else Contender(title=decision.winner)
    if record is None or not is_same:
        after = {**_new_record(ranked, winner, decision, rule.metric), **numbered_after(record)}
    else:
        after = {**record}
    outcome = _outcome(after, record, decision.reason, decision, metric=rule.metric, promoted=promoted)
    return outcome, {**after, "num_tests": decision.num_tests}


def _scores_of(ranked: _Ranked, contender: Contender) -> ScoredQueries | None:
    """Find the scores of the queries by exactly these models; None where they are not among the given ones."""
    rows = [row for row in _rows(ranked, contender.models) if row.method == contender.title]
    return rows[0] if rows else None


def _without_models(ranked: _Ranked, challenger: str) -> list[ScoredQueries]:
    """List the scores by the baselines and by the forecaster without vectors."""
    scorers = [row for row in _rows(ranked, ()) if isinstance(METHODS.get(row.method), Scorer)]
    return [row for row in scorers if row.method != challenger]


def _rows(ranked: _Ranked, models: tuple[str, ...]) -> list[ScoredQueries]:
    """Read the given scores of the queries that were made with exactly these models."""
    layout, scored = ranked.opened.layout, []
    others = {HISTORY, layout.relative(ranked.queries)}
    names = {layout.relative(model) for model in models}
    for rankings in map(open_artifact, ranked.rankings):
        if set(rankings.lineage.inputs) - others == names:
            scored += from_table(rankings.table("rankings"), ranked.drawn)
    return [row for row in scored if row.seed == ranked.seed]


def _was_trained_on(ranked: _Ranked, record: dict[str, Any]) -> bool:
    trained = [manifest(ranked.opened.layout.absolute(model)) for model in record["models"]]
    return any(model and trained_until(model, ranked.opened) >= ranked.drawn.step for model in trained)


def unusable(opened: Snapshots, record: dict[str, Any]) -> str | None:
    """Say why a champion's weights cannot be used as of the newest step; None where they can."""
    if not is_usable(opened.layout, record):
        return MISSING
    end_time = opened.time("end_time", opened.num_steps)
    newest = [lineage_of(opened.layout.absolute(model)).max_event_time for model in record["models"]]
    return TAKEN_BACK if any(time is not None and time >= end_time for time in newest) else None


def is_usable(layout: Layout, record: dict[str, Any]) -> bool:
    """Whether all weights of a champion are there."""
    return all(manifest(layout.absolute(model)) for model in record["models"])


def _champions_scores(ranked: _Ranked, record: dict[str, Any] | None) -> tuple[ScoredQueries | None, str | None]:
    """Give the champion's scores, or None and why there are none."""
    if record is None:
        return None, None
    opened, title = ranked.opened, record["title"]
    models = tuple(opened.layout.absolute(model) for model in record["models"])
    if (problem := unusable(opened, record)) is not None:
        return None, problem
    try:
        scored = _scores_of(ranked, Contender(title=title, models=models)) or _ranked(ranked, title, models)
    except (WeightsDoNotFit, OldSettings):
        return None, "the champion's weights do not fit the model of this version"
    except UnknownMethod:
        return None, f"this version has no method {title}"
    return replace(scored, method=CHAMPION) if models else scored, None


def _ranked(ranked: _Ranked, title: str, models: tuple[str, ...]) -> ScoredQueries:
    """Evaluate the champion on the queries; a title of its own keeps its scores beside those of the challenger."""
    posed = Posed(snapshots=ranked.opened.address, protocol=PREQUENTIAL, units=(ranked.drawn.step,), seed=ranked.seed)
    if models:
        address = evaluate(posed, Group({CHAMPION: None}, models))
        title = FORECASTER_WITH + CHAMPION if title.startswith(FORECASTER_WITH) else CHAMPION
    else:
        address = evaluate(posed, Group(resolved([title])))
    rows = from_table(read_table(address, "rankings"), ranked.drawn)
    return next(row for row in rows if row.method == title)


def _new_record(ranked: _Ranked, winner: Contender, decision: Decision, metric: str) -> dict[str, Any]:
    opened, step = ranked.opened, ranked.drawn.step
    keys = {"version": opened.version, "until": step - 1, "space": None}
    if winner.models:
        trained = lineage_of(winner.models[-1])
        keys = {"version": trained.table_version, "until": trained.until, "space": space_of(winner.models[-1])}
    return {
        "title": winner.title,
        "models": [opened.layout.relative(model) for model in winner.models],
        "identity": identity(winner),
        **keys,
        "step": step,
        "end_time": opened.time("end_time", step),
        "seed": ranked.seed,
        "metrics": {} if decision.value is None else {metric: decision.value},
        "difference": _interval(decision),
        "reason": decision.reason,
        "tests": {},
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _outcome(
    after: dict[str, Any] | None,
    before: dict[str, Any] | None,
    reason: str,
    decision: Decision | None = None,
    *,
    metric: str | None = None,
    promoted: bool = False,
) -> dict[str, Any]:
    """Write an outcome as plain values, with addresses below the root of the store."""
    tested = None if decision is None else decision.difference
    return {
        "promoted": promoted,
        "champion": _named(after),
        "previous": _named(before),
        "difference": None if decision is None else _interval(decision),
        "compared": None if decision is None or decision.compared is None else list(decision.compared),
        "metric": metric,
        "num_queries": None if tested is None else tested.num_queries,
        "level": None if tested is None else tested.level,
        "reason": reason,
        "tied": None if decision is None else decision.tied,
        "gain": None if decision is None else _gain(decision.gain),
        "vectors": None if decision is None else _gain(decision.vectors),
    }


def _titled(decision: Decision, name: str, title: str) -> Decision:
    """Give the champion its title where it is described; the winner stays under the name that it is compared by."""
    gain, tied = decision.gain, decision.tied
    if gain is not None and gain.method == name:
        gain = gain._replace(method=title)
    return decision._replace(gain=gain, tied=title if tied == name else tied)


def _gain(gain: Gain | None) -> dict[str, Any] | None:
    """Write a comparison as plain values; its interval is null where all queries are those of one source or target."""
    if gain is None:
        return None
    interval = list(gain.difference[:3]) if np.isfinite(gain.difference[:3]).all() else None
    return {**gain._asdict(), "difference": interval, "num_queries": gain.difference.num_queries}


def _named(record: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if record is None else {"title": record["title"], "models": record["models"]}


def _interval(decision: Decision) -> list[float] | None:
    tested = decision.difference
    return None if tested is None or not np.isfinite(tested[:3]).all() else list(tested[:3])


def _absolute(layout: Layout, outcome: dict[str, Any]) -> dict[str, Any]:
    """Give an outcome with full addresses."""
    named = {name: outcome[name] for name in ("champion", "previous") if outcome[name] is not None}
    full = {
        name: {**entry, "models": [layout.absolute(model) for model in entry["models"]]}
        for name, entry in named.items()
    }
    return {**outcome, **full}
