"""Rows of metrics -> metrics, tables and plots of a run in MLflow, which all kinds of runs share."""

from typing import Any

import polars as pl

from dyformer.evaluation.forecasts.best_partners import PUBLISHED
from dyformer.evaluation.prequential import PROTOCOL as RANKING_PROTOCOL
from dyformer.evaluation.protocols import PROTOCOL
from dyformer.evaluation.query_slices import KNOWN
from dyformer.evaluation.ranking_rows import MIXED
from dyformer.experiments.plots import comparison_chart, family_heat_map, step_curve
from dyformer.experiments.tables import score_table, significance_table
from flows.tasks.snapshots import Snapshots, snapshot_counts
from storage.artifacts.artifact import digest
from storage.artifacts.code import code_version
from storage.checksums import sha256
from storage.tracking.addresses import without_password
from storage.tracking.dead_runs import FLOW_RUN
from storage.tracking.runs import TrackedRun, Tracker

METRIC_NAMES = {
    "auc": "auc",
    "average_precision": "ap",
    "mrr": "mrr",
    "hits_at_1": "hits_at_1",
    "hits_at_10": "hits_at_10",
    "ndcg_at_10": "ndcg_at_10",
    "precision_at_10": "precision_at_10",
    "recall_at_10": "recall_at_10",
    "brier": "brier",
    "calibration_error": "calibration_error",
    "probability_sum": "probability_sum",
    "confident": "confident",
}
SLICES = ("all", "known", "new", "repeat")
BESIDE = ("low", "high", "num_pairs", "difference", "difference_low", "difference_high")


def track_metrics(run: TrackedRun, rows: pl.DataFrame) -> None:
    """Track the steps' metrics as curves, micro and macro as numbers: test/auc, test/auc_new, test/macro_auc, ...

    Beside the main metrics are the ends of their interval (test/auc_low, test/auc_high); beside their micro and macro
    values also the number of pairs (test/macro_auc_num_pairs) and the difference to the best baseline with its interval
    (..._difference, ..._difference_low, ..._difference_high). A value that does not exist, such as a ratio to no link,
    is left out. All that is left out is in metrics.csv, because MLflow draws a chart for each name.
    """
    is_single = rows.filter(pl.col("step").str.contains(r"^\d+$"))["step"].n_unique() == 1
    rows = rows.filter(pl.col("value").is_not_null(), _is_tracked())
    main = {_cell_of(row) for row in main_metrics(rows).iter_rows(named=True)}
    for row in rows.iter_rows(named=True):
        name, is_step = metric_name(row), row["step"].isdecimal()
        if is_single and row["step"] == "micro":  # the same as macro
            continue
        name = f"test/{name}" if is_step else f"test/{row['step']}_{name}"
        keys = BESIDE[:2] if is_step else BESIDE
        has_interval = _cell_of(row) in main or row["protocol"] not in (PROTOCOL, RANKING_PROTOCOL)
        beside = {f"{name}_{key}": row[key] for key in keys if has_interval and row[key] is not None}
        run.metrics({name: row["value"], **beside}, step=int(row["step"]) if is_step else 0, replace=True)


def _is_tracked() -> pl.Expr:
    """Whether a row is tracked: of a ranking, the slices of the MRR alone, and of each family of negatives the AUC."""
    is_usual = pl.col("family").is_in([MIXED, PUBLISHED])
    is_whole = is_usual & ((pl.col("slice") == KNOWN) | (pl.col("metric") == "mrr"))
    of_family = ~is_usual & (pl.col("slice") == KNOWN) & (pl.col("metric") == "auc")
    is_known = pl.col("metric").is_in(list(METRIC_NAMES)) & pl.col("slice").is_in(SLICES)
    return is_known & ((pl.col("protocol") != RANKING_PROTOCOL) | is_whole | of_family)


def _cell_of(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("protocol", "metric", "family", "slice"))


def main_metrics(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the metric that decides in each protocol: AUC over all pairs, MRR over all queries."""
    of_pairs = (pl.col("protocol") == PROTOCOL) & (pl.col("metric") == "auc") & (pl.col("slice") == "all")
    of_queries = (pl.col("metric") == "mrr") & (pl.col("slice") == KNOWN) & (pl.col("family") == MIXED)
    return rows.filter((of_pairs | of_queries) & pl.col("value").is_not_null())


def metric_name(row: dict[str, Any]) -> str:
    """Join metric, family of negatives and slice; the usual family and slice of a protocol have no name."""
    parts = [METRIC_NAMES[row["metric"]]]
    if row["protocol"] == RANKING_PROTOCOL:
        parts += [row["family"]] if row["family"] not in (MIXED, PUBLISHED) else []
        return "_".join(parts + ([row["slice"]] if row["slice"] != KNOWN else []))
    return "_".join(parts + ([row["slice"]] if row["slice"] != "all" else []))


def difference_tags(rows: pl.DataFrame) -> dict[str, str]:
    """Give the tags best_baseline and difference, of the AUC over all pairs or of the MRR over all queries.

    The difference is the mean over steps with its interval: "+0.012 [+0.003, +0.021]".
    """
    best = main_metrics(rows).filter(pl.col("best_baseline").is_not_null(), step="macro").to_dicts()
    if not best:
        return {}
    low, high = best[0]["difference_low"], best[0]["difference_high"]
    difference = "" if best[0]["difference"] is None else f"{best[0]['difference']:+.3f}"
    return {
        "best_baseline": best[0]["best_baseline"],
        "difference": difference if low is None else f"{difference} [{low:+.3f}, {high:+.3f}]",
    }


def track_tables(run: TrackedRun, table: pl.DataFrame, dataset: str) -> None:
    """Attach the scores as a table, all metrics, and the tests against the baselines."""
    run.table("scores.csv", score_table(table, dataset))
    run.table("metrics.csv", table)
    run.table("significance.csv", significance_table(table))


def track_data(run: TrackedRun, opened: Snapshots) -> None:
    """Name the data of a run, and attach the counts of its steps."""
    counts = snapshot_counts(opened.address)
    name = f"{opened.dataset} v{opened.version}"
    run.dataset(counts, name=name, digest=f"v{opened.version}-{digest(opened.address)}", source=opened.address)
    run.table("snapshots.csv", counts)


def draw(run: TrackedRun, compared: pl.DataFrame, per_step: pl.DataFrame) -> None:
    """Plot the comparison of methods evaluated on the same steps, and each method's curve over its steps."""
    course = per_step.unique(["method", "seed", "step", "metric", "slice"], maintain_order=True)
    for part in ("all", "new"):
        if compared.filter((pl.col("slice") == part) & (pl.col("metric") == "auc")).height:
            run.plot(f"plots/auc_per_step_{part}.png", step_curve(course, slice_name=part))
            run.plot(f"plots/comparison_{part}.png", comparison_chart(compared, slice_name=part))


def draw_families(run: TrackedRun, table: pl.DataFrame) -> None:
    """Plot the AUC of each method by family of negatives, where the table has the prequential protocol."""
    if not table.filter(protocol=RANKING_PROTOCOL, metric="auc", slice=KNOWN, step="macro").is_empty():
        run.plot("plots/auc_by_family.png", family_heat_map(table))


def outcome(tracker: Tracker, run: TrackedRun, version: str | None) -> dict[str, Any]:
    """Say where a run is: in MLflow, or in the spool with the reason."""
    where = {
        "tracker": without_password(tracker.uri),
        "run": run.run_id or f"spool:{run.start['run_key']}",
        "model_version": version,
        "problem": run.problem,
    }
    return where if tracker.damage is None else {**where, "damage": tracker.damage}


def tags_of(opened: Snapshots, seed: int | None) -> dict[str, Any]:
    """Give the tags of every run on these snapshots."""
    tags = {"table_version": opened.version, "protocol": PROTOCOL, "window": opened.window, "code": code_version()}
    return {**tags, **flow_run_tag(), **({} if seed is None else {"seed": seed})}


def flow_run_tag() -> dict[str, str]:
    """Give the tag of the flow run that tracks; none outside of one."""
    from prefect.runtime import flow_run

    own = flow_run.get_id()
    return {} if own is None else {FLOW_RUN: own}


def run_key(*parts: str) -> str:
    """Derive a run's key from its content, so that tracking the same content again finds the run."""
    return sha256("\n".join(parts).encode())[:32]
