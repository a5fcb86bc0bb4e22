"""A run -> MLflow: losses after each epoch; at the end scores, metrics, files and the registered model.

A run never fails because of MLflow: unsent records go to the spool, and a later run sends them.
"""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

import polars as pl

from dyformer.evaluation.forecasts.best_partners import BUSIEST, PUBLISHED
from dyformer.evaluation.forecasts.forecast_rows import PROTOCOL as FORECASTS_PROTOCOL
from dyformer.evaluation.forecasts.stored_forecast import history_tables
from dyformer.evaluation.prequential import PROTOCOL as RANKING_PROTOCOL
from dyformer.evaluation.protocols import PROTOCOL
from dyformer.evaluation.query_slices import KNOWN
from dyformer.evaluation.ranking_rows import MIXED
from dyformer.experiments.plots import comparison_chart, family_heat_map, loss_curve, reliability_diagram, step_curve
from dyformer.experiments.tables import score_table, significance_table
from flows.tasks.evaluation.audit import RECORD, read_audit
from flows.tasks.evaluation.evaluate import metrics
from flows.tasks.models import Contender, model_losses, model_times
from flows.tasks.snapshots import Snapshots, open_snapshots, snapshot_counts
from flows.tasks.train import EpochRow, OnEpoch
from storage.artifacts.artifact import Lineage, digest, lineage_of, names, read_bytes, read_table
from storage.artifacts.code import code_version
from storage.checksums import sha256
from storage.layout import FORECAST, WEIGHTS, Layout
from storage.tracking.model_package import packed_model
from storage.tracking.runs import TrackedRun, Tracker, experiment_name, open_tracker

METRIC_NAMES = {
    "auc": "auc",
    "average_precision": "ap",
    "mrr": "mrr",
    "hits_at_1": "hits_at_1",
    "hits_at_10": "hits_at_10",
    "ndcg_at_10": "ndcg_at_10",
    "precision_at_1": "precision_at_1",
    "precision_at_2": "precision_at_2",
    "precision_at_5": "precision_at_5",
    "precision_at_10": "precision_at_10",
    "recall_at_10": "recall_at_10",
    "brier": "brier",
    "calibration_error": "calibration_error",
    "probability_sum": "probability_sum",
    "confident": "confident",
}
SLICES = ("all", "known", "new", "repeat", BUSIEST)
BESIDE = ("low", "high", "num_pairs", "difference", "difference_low", "difference_high")


@contextmanager
def tracked_epochs(snapshots: str) -> Iterator[OnEpoch]:
    """Return a callback that tracks every epoch of a training, in the run that `track_run` completes.

    The run begins with the first epoch: a finished training begins none, and a training that resumes
    after a crash continues its run.
    """
    opened = open_snapshots(snapshots)
    with ExitStack() as ending:
        runs: list[TrackedRun] = []

        def on_epoch(trained: Lineage, rows: list[EpochRow]) -> None:
            if rows and not runs:
                runs.append(ending.enter_context(_training_run(open_tracker(opened.layout), opened, trained)))
                runs[0].params(trained.settings)
            for stage, epoch, name, value in rows:
                runs[0].metrics({f"{stage}/{name}": value}, step=epoch)

        yield on_epoch


def track_run(
    snapshots: str,
    contender: Contender,
    table: pl.DataFrame,
    earlier: list[str],
    made: dict[str, str],
    promotion: dict[str, Any],
    page: str,
) -> dict[str, Any]:
    """Track a retraining: one run for its newest model, with all its results, and one for each method.

    Args:
        snapshots: address of the snapshots of the training.
        contender: the challenger, with the trained models.
        table: the metrics of the newest step in both protocols.
        earlier: addresses of the pairs of the newest steps by the baselines alone, for the curve.
        made: addresses of the model that is published, its vectors and its forecasts, by kind.
        promotion: the outcome of promote_if_better.
        page: the report of the run, as HTML.

    Returns:
        tracker: its address; run: MLflow's id of the model's run, or its key in the spool; model_version: the
        registered version, None while MLflow is unreachable; problem: the reason; damage: why an earlier run in the
        spool could not be sent, if there is one.
    """
    opened, model = open_snapshots(snapshots), contender.models[-1]
    tracker = open_tracker(opened.layout)
    tracker.replay_spool()  # records of earlier runs that could not be sent
    trained = lineage_of(model)
    pairs, ranked = table.filter(protocol=PROTOCOL), table.filter(protocol=RANKING_PROTOCOL)
    _track_methods(tracker, opened, table, _training_tags(opened, trained, "evaluate"), _key(table.write_csv()))
    with _training_run(tracker, opened, trained) as run:
        run.params(trained.settings)
        _track_data(run, opened)
        for table_of_epochs in (model_losses(model), model_times(opened, model)):
            for stage, epoch, name, value in table_of_epochs.iter_rows():
                run.metrics({f"{stage}/{name}": value}, step=epoch)
        _track_figures(run, pl.concat([pairs.filter(method="DyFormer"), ranked.filter(method=contender.title)]))
        _track_published(run, table.filter(protocol=FORECASTS_PROTOCOL, slice="all"))
        if not pairs.is_empty():
            _draw(run, pairs, pl.concat([pairs, *(metrics([address], snapshots) for address in earlier)]))
            _track_tables(run, pairs, opened.dataset)
        _draw_families(run, ranked)
        run.plot("plots/losses.png", loss_curve(model_losses(model)))
        run.artifact("report.html", page.encode())
        run.table("metrics.csv", table)
        _track_promotion(run, promotion)
        published = made["model"]
        made = {kind: address for kind, address in made.items() if kind != "model"}
        _attach(run, made)
        is_challenger = promotion["champion"] in (None, {"title": contender.title, "models": list(contender.models)})
        aliases = ["challenger"] * is_challenger + ["champion"] * (promotion["champion"] is not None)
        version = _register(run, opened, published, made, tuple(aliases))
    return _outcome(tracker, run, version)


def track_benchmark(snapshots: str, scores: list[str]) -> dict[str, Any]:
    """Track a benchmark: one run per method and seed with its metrics of every step, and one with the comparison."""
    opened = open_snapshots(snapshots)
    table = metrics(scores, snapshots)
    tracker = open_tracker(opened.layout)
    tracker.replay_spool()  # records of earlier runs that could not be sent
    whole = _key("benchmark", *(digest(address) for address in scores))
    tags = {**_tags(opened, None), "stage": "benchmark", "steps": _steps(table)}
    _track_methods(tracker, opened, table, tags, whole)
    name = "comparison of methods"
    with tracker.run(dataset=opened.dataset, name=name, tags={**tags, "method": "all"}, key=whole) as run:
        _track_data(run, opened)
        _draw(run, table, table)
        _track_tables(run, table, opened.dataset)
    return _outcome(tracker, run, None)


def track_rankings(
    snapshots: str, scores: list[str], table: pl.DataFrame, reliability_rows: pl.DataFrame | None = None
) -> dict[str, Any]:
    """Track a benchmark of ranks or forecasts: one run per method and seed with its metrics, and one with all.

    Args:
        snapshots: address of the snapshots.
        scores: addresses of the scored queries, the ranks or the backtests.
        table: their metrics, of one protocol.
        reliability_rows: the reliability of the probabilities, where the protocol has some.
    """
    opened = open_snapshots(snapshots)
    tracker = open_tracker(opened.layout)
    tracker.replay_spool()  # records of earlier runs that could not be sent
    whole = _key("benchmark", *(digest(address) for address in scores))
    tags = {**_tags(opened, None), "protocol": table["protocol"][0], "stage": "benchmark", "steps": _steps(table)}
    _track_methods(tracker, opened, table, tags, whole)
    name = "comparison of methods"
    with tracker.run(dataset=opened.dataset, name=name, tags={**tags, "method": "all"}, key=whole) as run:
        _track_data(run, opened)
        _draw_families(run, table)
        run.table("metrics.csv", table)
        if reliability_rows is not None:
            run.table("reliability.csv", reliability_rows)
            if (reliability_rows["fraction"] > 0).any():
                run.plot("plots/reliability.png", reliability_diagram(reliability_rows))
    return _outcome(tracker, run, None)


def track_audit(report: str) -> dict[str, Any]:
    """Track a leak audit: the number of checks that passed and failed, and the report as table, Markdown and JSON."""
    audited = lineage_of(report)
    table, page, record = read_audit(report)
    layout = Layout.from_environment()
    tracker = open_tracker(layout)
    tracker.replay_spool()  # records of earlier runs that could not be sent
    tags = {"stage": "audit", "method": "all", "seed": record["seed"], "until": record["step"]}
    tags |= {"table_version": audited.table_version, "window": record["window"], "passed": record["passed"]}
    with tracker.run(dataset=audited.dataset, name="audit", tags=tags, key=_key("audit", digest(report))) as run:
        num_failed = len(record["failed"])
        counts = {"num_checks": table.height, "num_failed": num_failed, "seconds": record["seconds"]}
        run.metrics({f"audit/{name}": value for name, value in counts.items()})
        run.table("checks.csv", table.with_columns(pl.col("methods").list.join(", ")))
        run.artifact("audit.md", page.encode())
        run.artifact("audit.json", read_bytes(report, RECORD))
    return _outcome(tracker, run, None)


def _training_run(tracker: Tracker, opened: Snapshots, trained: Lineage) -> AbstractContextManager[TrackedRun]:
    """Begin the run of a training, or continue it."""
    tags = {**_training_tags(opened, trained, "retrain"), "method": "DyFormer"}
    key = _key("training", json.dumps(asdict(trained), sort_keys=True))
    return tracker.run(dataset=opened.dataset, name="DyFormer", tags=tags, key=key)


def _training_tags(opened: Snapshots, trained: Lineage, stage: str) -> dict[str, Any]:
    tags = {"stage": stage, "until": trained.until, "settings": trained.settings_hash[:12]}
    return {**_tags(opened, trained.settings["seed"]), **tags}


def _track_promotion(run: TrackedRun, promotion: dict[str, Any]) -> None:
    """Track the outcome as the tags promoted, promotion_reason, champion, and as metrics promotion/difference, ..."""
    champion = promotion["champion"]
    run.tags({"promoted": promotion["promoted"], "promotion_reason": promotion["reason"]})
    run.tags({"champion": champion["title"] if champion else "none"})
    if promotion["difference"] is not None:
        names = ("difference_low", "difference", "difference_high")
        values = dict(zip(names, promotion["difference"], strict=True))
        values |= {name: promotion[name] for name in ("num_queries", "level")}
        run.metrics({f"promotion/{name}": value for name, value in values.items()})


def _track_published(run: TrackedRun, rows: pl.DataFrame) -> None:
    """Track how reliable the published method's probabilities were, as published/calibration_error, ..._num_pairs."""
    for row in rows.filter(pl.col("value").is_not_null()).iter_rows(named=True):
        name, keys = f"published/{row['metric']}", ("low", "high", "num_pairs")
        beside = {f"{name}_{key}": row[key] for key in keys if row[key] is not None}
        run.metrics({name: row["value"], **beside}, step=int(row["step"]))


def _track_methods(tracker: Tracker, opened: Snapshots, table: pl.DataFrame, tags: dict[str, Any], key: str) -> None:
    evaluated = table.filter(pl.col("seed").is_not_null())
    for (method, seed), rows in evaluated.group_by("method", "seed", maintain_order=True):
        protocols = ", ".join(rows["protocol"].unique(maintain_order=True))
        own = {**tags, "protocol": protocols, "method": method, "seed": seed, "sweep": key[:12], **_best_baseline(rows)}
        with tracker.run(
            dataset=opened.dataset, name=str(method), tags=own, key=_key(key, str(method), str(seed))
        ) as run:
            _track_figures(run, rows)


def _track_figures(run: TrackedRun, rows: pl.DataFrame) -> None:
    """Track the steps' metrics as curves, micro and macro as numbers: test/auc, test/auc_new, test/macro_auc, ...

    Beside each are the ends of its interval (test/auc_low, test/auc_high); beside micro and macro also the number of
    pairs (test/macro_auc_num_pairs) and the difference to the best baseline with its interval (..._difference,
    ..._difference_low, ..._difference_high). A value that does not exist, such as a ratio to no link, is left out.
    """
    wanted = pl.col("metric").is_in(list(METRIC_NAMES)) & pl.col("slice").is_in(SLICES)
    for row in rows.filter(wanted & pl.col("value").is_not_null()).iter_rows(named=True):
        name = _metric_name(row)
        is_step = row["step"].isdecimal()
        name = f"test/{name}" if is_step else f"test/{row['step']}_{name}"
        keys = BESIDE[:2] if is_step else BESIDE
        beside = {f"{name}_{key}": row[key] for key in keys if row[key] is not None}
        run.metrics({name: row["value"], **beside}, step=int(row["step"]) if is_step else 0)


def _metric_name(row: dict[str, Any]) -> str:
    """Join metric, family of negatives and slice; the usual family and slice of a protocol have no name."""
    parts = [METRIC_NAMES[row["metric"]]]
    if row["protocol"] == RANKING_PROTOCOL:
        parts += [row["family"]] if row["family"] not in (MIXED, PUBLISHED) else []
        return "_".join(parts + ([row["slice"]] if row["slice"] != KNOWN else []))
    return "_".join(parts + ([row["slice"]] if row["slice"] != "all" else []))


def _best_baseline(rows: pl.DataFrame) -> dict[str, str]:
    """Name the baseline of the differences: in AUC over all pairs, or in MRR over all queries."""
    main = (pl.col("metric") == "auc") & (pl.col("slice") == "all")
    ranking = (pl.col("metric") == "mrr") & (pl.col("slice") == KNOWN) & (pl.col("family") == MIXED)
    best = rows.filter(main | ranking)["best_baseline"].drop_nulls()
    return {} if best.is_empty() else {"best_baseline": best[0]}


def _track_tables(run: TrackedRun, table: pl.DataFrame, dataset: str) -> None:
    run.table("scores.csv", score_table(table, dataset))
    run.table("metrics.csv", table)
    run.table("significance.csv", significance_table(table))


def _track_data(run: TrackedRun, opened: Snapshots) -> None:
    counts = snapshot_counts(opened.address)
    name = f"{opened.dataset} v{opened.version}"
    run.dataset(counts, name=name, digest=f"v{opened.version}-{digest(opened.address)}", source=opened.address)
    run.table("snapshots.csv", counts)


def _draw(run: TrackedRun, compared: pl.DataFrame, per_step: pl.DataFrame) -> None:
    """Plot the comparison of methods evaluated on the same steps, and each method's curve over its steps."""
    course = per_step.unique(["method", "seed", "step", "metric", "slice"], maintain_order=True)
    for part in ("all", "new"):
        if compared.filter((pl.col("slice") == part) & (pl.col("metric") == "auc")).height:
            run.plot(f"plots/auc_per_step_{part}.png", step_curve(course, slice_name=part))
            run.plot(f"plots/comparison_{part}.png", comparison_chart(compared, slice_name=part))


def _draw_families(run: TrackedRun, table: pl.DataFrame) -> None:
    """Plot the AUC of each method by family of negatives, where the table has the prequential protocol."""
    if not table.filter(protocol=RANKING_PROTOCOL, metric="auc", slice=KNOWN, step="macro").is_empty():
        run.plot("plots/auc_by_family.png", family_heat_map(table))


def _attach(run: TrackedRun, artifacts: dict[str, str]) -> None:
    for kind, address in artifacts.items():
        for name in names(address):
            run.artifact(f"{kind}/{name}", read_bytes(address, name))


def _register(
    run: TrackedRun, opened: Snapshots, model: str, made: dict[str, str], aliases: tuple[str, ...]
) -> str | None:
    vectors = read_table(made["vectors"], "vectors")
    with packed_model(
        record=read_bytes(made["forecasts"], FORECAST),
        history=history_tables(opened.graph(opened.num_steps, interactions=True)),
        ids=vectors,
        vectors=vectors,
        weights=read_bytes(model, WEIGHTS),
    ) as folder:
        return run.register_model(folder, name=experiment_name(opened.dataset), aliases=aliases)


def _outcome(tracker: Tracker, run: TrackedRun, version: str | None) -> dict[str, Any]:
    key = f"spool:{run.start['run_key']}"
    outcome = {"tracker": tracker.uri, "run": run.run_id or key, "model_version": version, "problem": run.problem}
    return outcome if tracker.damage is None else {**outcome, "damage": tracker.damage}


def _tags(opened: Snapshots, seed: int | None) -> dict[str, Any]:
    tags = {"table_version": opened.version, "protocol": PROTOCOL, "window": opened.window, "code": code_version()}
    return tags if seed is None else {**tags, "seed": seed}


def _steps(table: pl.DataFrame) -> str:
    steps = sorted(int(step) for step in table["step"].unique() if step.isdecimal())
    return f"{steps[0]}-{steps[-1]}"


def _key(*parts: str) -> str:
    """Derive a run's key from its content, so that tracking the same content again finds the run."""
    return sha256("\n".join(parts).encode())[:32]
