"""A retraining -> its run in MLflow: losses while it trains; of its report scores, metrics, files and the model."""

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import polars as pl

from dyformer.evaluation.drift import drift_texts
from dyformer.evaluation.forecasts.stored_forecast import history_tables
from dyformer.evaluation.protocols.forecasts import PROTOCOL as FORECASTS
from dyformer.evaluation.protocols.paper import PROTOCOL as PAPER
from dyformer.evaluation.protocols.prequential import PROTOCOL as PREQUENTIAL
from dyformer.experiments.tables import run_tables
from dyformer.experiments.verdict import verdict
from dyformer.logs.moments import written_moment
from dyformer.scoring.packed_ranking import PackedRanking
from flows.tasks.drift import read_drift
from flows.tasks.evaluation.promote import champion_of
from flows.tasks.live import packed_ranking
from flows.tasks.made import made
from flows.tasks.models import Contender, model_losses, model_times
from flows.tasks.report import forecast_facts, read_report, report_page
from flows.tasks.snapshots import Snapshots, newest_until, open_snapshots
from flows.tasks.spaces import OWN, read_rotation, space_record, unrotated_vectors
from flows.tasks.tracking.content import (
    described,
    difference_tags,
    flow_run_tag,
    main_metrics,
    run_key,
    tags_of,
    track_data,
    track_metrics,
    track_tables,
)
from flows.tasks.train import EpochRow, OnEpoch
from storage.artifacts.artifact import Lineage, digest, lineage_of, open_artifact, read_bytes, read_table
from storage.artifacts.code import code_version
from storage.layout import FORECAST, WEIGHTS
from storage.tracking.model_package import packed_model
from storage.tracking.runs import LiveCurves, TrackedRun, Tracker, experiment_name, open_tracker

TRAINING = "training.json"
OF_A_TEST = ("num_queries", "level")
NUM_DESCRIBED = 5  # methods in the description of a run


@contextmanager
def tracked_epochs(snapshots: str) -> Iterator[OnEpoch]:
    """Return a callback that sends every epoch of a training to the run that `send_report` completes.

    The run begins with the first epoch: a finished training begins none, and a training that resumes after a crash
    continues its run.
    """
    opened = open_snapshots(snapshots)
    curves: list[LiveCurves] = []

    def on_epoch(trained: Lineage, rows: list[EpochRow]) -> None:
        if rows and not curves:
            tracker = open_tracker(opened.layout)
            start = partial(_started, tracker, opened, trained)
            curves.append(LiveCurves(tracker=tracker, dataset=opened.dataset, start=start))
        for stage, epoch, name, value in rows:
            curves[0].add({f"{stage}/{name}": value}, epoch)

    try:
        yield on_epoch
    except BaseException:
        for curve in curves:
            curve.flush("FAILED")
        raise
    for curve in curves:
        curve.flush()


def _started(tracker: Tracker, opened: Snapshots, trained: Lineage) -> TrackedRun:
    run = tracker.start_run(**_training_run(opened, trained, code=code_version()))
    run.tags(flow_run_tag())  # that of a resumed training is another one
    run.params(trained.settings)
    return run


def write_training(snapshots: str, model: str) -> str:
    """Record that a model was trained alone, so that the projection completes its run; return the address."""
    opened, trained = open_snapshots(snapshots), lineage_of(model)
    layout = opened.layout
    assert trained.until is not None
    settings = {"model": layout.relative(model), "seed": trained.settings["seed"]}
    record = {**settings, "snapshots": layout.relative(snapshots), "code": code_version()}
    return made(
        opened,
        "training",
        until=trained.until,
        settings=settings,
        make=lambda: {TRAINING: json.dumps(record).encode()},
        code=(),
        inputs=(model,),
    )


def send_training(tracker: Tracker, address: str) -> dict[str, Any]:
    """Track a training alone: its settings and its losses."""
    layout, record = tracker.layout, json.loads(read_bytes(address, TRAINING))
    model = layout.absolute(record["model"])
    opened = open_snapshots(layout.absolute(record["snapshots"]))
    with tracker.run(**_training_run(opened, lineage_of(model), code=record["code"])) as run:
        _track_epochs(run, opened, model)
    return run.where


def send_report(tracker: Tracker, address: str) -> dict[str, Any]:
    """Track the retraining of a report; returns the id of its run and the registered version of its model."""
    return track_run(tracker, *read_report(address))


def track_run(tracker: Tracker, table: pl.DataFrame, summary: dict[str, Any]) -> dict[str, Any]:
    """Track a retraining as one run, which began with the training of its newest model.

    Its own metrics are test/...; the main ones of the other methods are baseline/mrr/METHOD and baseline/auc/METHOD.
    Where the same training is evaluated again, as after late rows, the newest evaluation replaces the one before.

    Args:
        tracker: MLflow.
        table: the metrics of the newest step in both protocols.
        summary: of the report: addresses, challenger, code, promotion and training.

    Returns:
        run: MLflow's id of the model's run; model_version: the registered version.
    """
    addresses, promotion = summary["addresses"], summary["promotion"]
    opened, challenger = open_snapshots(addresses["snapshots"]), summary["challenger"]
    contender = Contender(title=challenger["title"], models=tuple(challenger["models"]))
    model = (contender.models or (addresses["model"],))[-1]
    published = {kind: addresses[kind] for kind in ("vectors", "forecasts")}
    trained = lineage_of(model)
    pairs, ranked = table.filter(protocol=PAPER.name), table.filter(protocol=PREQUENTIAL.name)
    is_old = trained.until != newest_until(opened.address)
    with tracker.run(**_training_run(opened, trained, code=summary["code"], is_old=is_old)) as run:
        run.tags(run.start_tags)  # a continued run has those of the evaluation before
        track_data(run, opened)
        _track_epochs(run, opened, model)
        track_metrics(run, pl.concat([pairs.filter(method="DyFormer"), ranked.filter(method=contender.title)]))
        run.metrics(_of_others(table, {"DyFormer", contender.title}), step=opened.num_steps, replace=True)
        run.tags(_evaluation_tags(table, ranked.filter(method=contender.title)))
        _track_published(run, table.filter(protocol=FORECASTS.name, slice="all"))
        if not pairs.is_empty():
            track_tables(run, PAPER, pairs, opened.dataset)
        from dyformer.experiments.plots import loss_curve  # late, as in flows/tasks/report.py

        run.plot("plots/losses.png", loss_curve(model_losses(model)))
        _track_page(run, report_page(table, summary))
        run.table("metrics.csv", table)
        _track_promotion(run, promotion)
        _track_drift(run, opened, addresses["drift"])
        _track_space(run, opened, published["vectors"])
        _attach(run, published)
        aliases = aliases_of(opened, contender, promotion, published["forecasts"])
        description = _description(opened, promotion, table, published["forecasts"])
        version = register(
            run,
            opened,
            addresses["model"],
            published,
            aliases,
            description,
            (promotion["champion"] or challenger)["title"],
        )
    return {**run.where, "model_version": version}


def _evaluation_tags(table: pl.DataFrame, own_rows: pl.DataFrame) -> dict[str, str]:
    """Give the tags of what a retraining is evaluated by, and how far its own method is from the best baseline."""
    protocols = ", ".join(table["protocol"].unique(maintain_order=True))
    return {"best_baseline": "none", "difference": "none", "protocol": protocols, **difference_tags(own_rows)}


def _track_epochs(run: TrackedRun, opened: Snapshots, model: str) -> None:
    """Track the settings of a training and all its epochs, of which the run may have some."""
    run.params(lineage_of(model).settings)
    for table in (model_losses(model), model_times(opened, model)):
        for stage, epoch, name, value in table.iter_rows():
            run.metrics({f"{stage}/{name}": value}, step=epoch)


def _training_run(opened: Snapshots, trained: Lineage, *, code: str, is_old: bool = False) -> dict[str, Any]:
    """Name the run of a training; one that publishes by an old training has a run of its own."""
    tags = {"stage": "publish" if is_old else "retrain", "until": trained.until, "method": "DyFormer"}
    tags |= {"settings": trained.settings_hash[:12], **tags_of(opened, trained.settings["seed"], code=code)}
    parts = ["training", json.dumps(asdict(trained), sort_keys=True), *([digest(opened.address)] if is_old else [])]
    return {"dataset": opened.dataset, "name": opened.title, "tags": tags, "key": run_key(*parts)}


def _of_others(table: pl.DataFrame, own: set[str]) -> dict[str, float]:
    """Name the main metrics of the methods that the run's own is compared with."""
    others = main_metrics(table).filter(~pl.col("method").is_in(list(own)), pl.col("step").str.contains(r"^\d+$"))
    return {
        f"{'baseline' if row['is_baseline'] else 'ours'}/{row['metric']}/{re.sub('[()]', '', row['method'])}": row[
            "value"
        ]
        for row in others.iter_rows(named=True)
    }


def _description(opened: Snapshots, promotion: dict[str, Any], table: pl.DataFrame, forecasts: str) -> str:
    """Write as Markdown what a reader of the run's page looks for first: the verdict, and the best methods."""
    first, *others = verdict(promotion, table, forecast_facts(forecasts, opened.address)).sentences
    lines = [f"**{first}**", *others]
    for printed in run_tables(table, opened.dataset)[:1]:
        lines += described(printed, NUM_DESCRIBED)
    return "\n\n".join([*lines, "All metrics are in `metrics.csv`, and the whole report is `report.html`."])


def _track_promotion(run: TrackedRun, promotion: dict[str, Any]) -> None:
    """Track the outcome as the tags promoted, promotion_reason, champion, and as metrics promotion/difference, ..."""
    champion = promotion["champion"]
    run.tags({"promoted": promotion["promoted"], "promotion_reason": promotion["reason"]})
    run.tags({"champion": champion["title"] if champion else "none"})
    names = [f"promotion/{name}" for name in ("difference_low", "difference", "difference_high", *OF_A_TEST)]
    if promotion["difference"] is None:  # MLflow removes no metric, so that those of a promotion before are NaN
        metrics = dict.fromkeys(run.metric_names().intersection(names), math.nan)
    else:
        values = [*promotion["difference"], *(promotion[name] for name in OF_A_TEST)]
        metrics = dict(zip(names, values, strict=True))
    run.metrics(metrics, replace=True)


def _track_drift(run: TrackedRun, opened: Snapshots, drift: str) -> None:
    """Track the distances of the newest step from the earlier ones as drift/interactions, ..., and all as a table."""
    rows, alarms = read_drift(drift)
    newest = rows.filter(pl.col("step") == opened.num_steps, pl.col("deviation").is_not_null())
    values = {f"drift/{row['metric']}": row["deviation"] for row in newest.to_dicts()}
    run.metrics(values, step=opened.num_steps, replace=True)
    run.tags({"alarms": "; ".join(alarms) or "none"})
    run.table("drift.csv", drift_texts(rows))


def _track_page(run: TrackedRun, page: str) -> None:
    """Attach the report, and each of its plots as a file named by its title."""
    from dyformer.experiments.html_report import plots_of

    run.artifact("report.html", page.encode())
    for title, image in plots_of(page).items():
        run.artifact(f"plots/{'_'.join(re.findall('[a-z0-9]+', title.lower()))}.png", image)


def _track_published(run: TrackedRun, rows: pl.DataFrame) -> None:
    """Track how reliable the published method's probabilities were, as published/calibration_error, ..._num_pairs."""
    for row in rows.filter(pl.col("value").is_not_null()).iter_rows(named=True):
        name, keys = f"published/{row['metric']}", ("low", "high", "num_pairs")
        beside = {f"{name}_{key}": row[key] for key in keys if row[key] is not None}
        run.metrics({name: row["value"], **beside}, step=int(row["step"]), replace=True)


def _track_space(run: TrackedRun, opened: Snapshots, vectors: str) -> None:
    """Track the space of the vectors as a tag, and how far they agree with those before as published/agreement, ..."""
    record = space_record(vectors)
    run.tags({"space_id": record["space_id"], "space": record["reason"]})
    keys = ("agreement_before", "agreement", "agreement_of_others")
    values = {f"published/vector_{key}": record[key] for key in keys if record[key] is not None}
    run.metrics(values, step=opened.num_steps, replace=True)


def _attach(run: TrackedRun, artifacts: dict[str, str]) -> None:
    for kind, address in artifacts.items():
        artifact = open_artifact(address)
        for name in sorted(artifact.entries.keys() - {f"{OWN}.parquet"}):  # which the registered model has
            run.artifact(f"{kind}/{name}", artifact.content(name))


def aliases_of(opened: Snapshots, contender: Contender, promotion: dict[str, Any], forecasts: str) -> tuple[str, ...]:
    """Give the aliases of a registered forecast: `champion` only for what the present champion published last.

    Another machine, or a rollback, may have chosen another champion since the promotion.
    """
    is_challenger = promotion["champion"] in (None, {"title": contender.title, "models": list(contender.models)})
    published = (champion_of(opened.layout, opened.dataset) or {}).get("published") or {}
    is_champion = published.get("forecasts") == opened.layout.relative(forecasts)
    return ("challenger",) * is_challenger + ("champion",) * is_champion


def register(
    run: TrackedRun,
    opened: Snapshots,
    model: str,
    made: dict[str, str],
    aliases: tuple[str, ...],
    description: str,
    method: str,
) -> str:
    """Describe the run and register the forecast of a method, whose version has the description and its address.

    Where an event forecaster is stored, the version ranks as of now, too.
    """
    live = packed_ranking(opened.layout, opened.dataset, opened.version)
    description = f"{description}\n\n{_how_it_is_served(live)}"
    run.tags({"mlflow.note.content": description})
    vectors = read_table(made["vectors"], "vectors")
    with packed_model(
        record=read_bytes(made["forecasts"], FORECAST),
        history=history_tables(opened.graph(opened.num_steps, interactions=True)),
        ids=vectors,
        vectors=unrotated_vectors(made["vectors"]).to_frame(),
        rotation=read_rotation(made["vectors"]),
        weights=read_bytes(model, WEIGHTS),
        live=live,
    ) as folder:
        tags = {"forecasts": made["forecasts"], "vectors": made["vectors"], "method": method}
        name = experiment_name(opened.dataset)
        return run.register_model(folder, name=name, aliases=aliases, tags=tags, description=description)


def _how_it_is_served(live: PackedRanking | None) -> str:
    """Describe in Markdown which events a version has and what a request with events gives."""
    if live is None:
        return (
            "The registered model has no event forecaster, so that it takes no `events`: `dyformer rank` makes one, and"
            " the next version has it."
        )
    newest = written_moment(live.newest_time, live.time_unit)
    return (
        f"The registered model has the {live.state.num_events:,} events up to {newest}, and the event forecaster. With"
        ' the parameter `events`, a JSON text such as `[{"source": 26, "target": 19, "time": "2025-01-01T00:00:00Z"}]`'
        " or `[]`, it ranks the targets of each `source` as of now, from all events before, or scores `source` and"
        " `target`."
    )
