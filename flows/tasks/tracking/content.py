"""Rows of metrics -> metrics, tables and plots of a run in MLflow, which all kinds of runs share."""

from typing import Any

import polars as pl

from dyformer.evaluation.protocols import protocol_of
from dyformer.evaluation.protocols.paper import PROTOCOL as PAPER
from dyformer.evaluation.protocols.protocol import Protocol
from dyformer.experiments.printed import PrintedTable, markdown_rows
from dyformer.experiments.tables import score_table, significance_table, units_of
from flows.tasks.snapshots import Snapshots, snapshot_counts
from storage.artifacts.artifact import digest
from storage.bytes.checksums import sha256
from storage.tracking.runs import TrackedRun
from storage.tracking.upkeep import FLOW_RUN

SHORT_NAMES = {"average_precision": "ap"}  # of tracked metrics; others have the name that they have in tables
METRICS = {"auc", "average_precision", "mrr", "ndcg_at_10", "precision_at_10", "recall_at_10", "brier"}
METRICS |= {"hits_at_1", "hits_at_10", "calibration_error", "probability_sum", "confident"}
SLICES = ("all", "known", "new", "repeat")
BESIDE = ("low", "high", "num_pairs", "difference", "difference_low", "difference_high")


def track_metrics(run: TrackedRun, rows: pl.DataFrame) -> None:
    """Track the steps' metrics as curves, micro and macro as numbers: test/auc, test/auc_new, test/macro_auc, ...

    Beside the main metrics are the ends of their interval (test/auc_low, test/auc_high); beside their micro and macro
    values also the number of pairs (test/macro_auc_num_pairs) and the difference to the best baseline with its interval
    (..._difference, ..._difference_low, ..._difference_high). A value that does not exist, such as a ratio to no link,
    is left out. All that is left out is in metrics.csv, because MLflow draws a chart for each name.
    """
    for protocol in protocols_in(rows):
        _track_protocol(run, protocol, rows.filter(protocol=protocol.name))


def protocols_in(rows: pl.DataFrame) -> list[Protocol]:
    """List the protocols of rows of metrics, in their order."""
    return [protocol_of(name) for name in rows["protocol"].unique(maintain_order=True)]


def _track_protocol(run: TrackedRun, protocol: Protocol, rows: pl.DataFrame) -> None:
    is_single = len(units_of(rows)) == 1
    rows = rows.filter(pl.col("value").is_not_null(), _is_tracked(protocol))
    numbers = {name: number for number, name in enumerate(units_of(rows))}
    for row in rows.iter_rows(named=True):
        name, is_unit = metric_name(protocol, row), row["step"] in numbers
        if is_single and row["step"] == "micro":  # the same as macro
            continue
        name = f"test/{name}" if is_unit else f"test/{row['step']}_{name}"
        has_interval = protocol.main in (None, (row["metric"], row["family"], row["slice"]))
        keys = BESIDE[:2] if is_unit else BESIDE
        beside = {f"{name}_{key}": row[key] for key in keys if has_interval and row[key] is not None}
        step = int(row["step"]) if row["step"].isdecimal() else numbers.get(row["step"], 0)
        run.metrics({name: row["value"], **beside}, step=step, replace=True)


def _is_tracked(protocol: Protocol) -> pl.Expr:
    """Whether a row is tracked: of a known metric or one of the protocol's columns, as the protocol chooses."""
    all_metrics = {*METRICS, *(column.metric for table in protocol.tables for column in table.columns)}
    is_known = pl.col("metric").is_in(list(all_metrics)) & pl.col("slice").is_in([*SLICES, protocol.usual_slice])
    return is_known if protocol.is_tracked is None else is_known & protocol.is_tracked


def main_metrics(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the metric that decides in each protocol: AUC over all pairs, MRR over all queries."""
    is_main = pl.lit(value=False)
    for protocol in protocols_in(rows):
        if protocol.main is not None:
            cell = zip(("metric", "family", "slice"), protocol.main, strict=True)
            is_cell = pl.all_horizontal(pl.col(name) == value for name, value in cell)
            is_main = is_main | (is_cell & (pl.col("protocol") == protocol.name))
    return rows.filter(is_main & pl.col("value").is_not_null())


def metric_name(protocol: Protocol, row: dict[str, Any]) -> str:
    """Join metric, family of negatives and slice; the usual family and slice of a protocol have no name."""
    parts = [SHORT_NAMES.get(str(row["metric"]), str(row["metric"]))]
    parts += [row["family"]] if protocol.usual_families and row["family"] not in protocol.usual_families else []
    return "_".join(parts + ([row["slice"]] if row["slice"] != protocol.usual_slice else []))


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


def track_tables(run: TrackedRun, protocol: Protocol, table: pl.DataFrame, dataset: str) -> None:
    """Attach all metrics, and of the paper's protocol the scores and the tests against the baselines."""
    run.table("metrics.csv", table)
    if protocol.name == PAPER.name:
        run.table("scores.csv", score_table(table, dataset))
        run.table("significance.csv", significance_table(table))


def described(table: PrintedTable, num_rows: int | None = None) -> list[str]:
    """Write a table as paragraphs of Markdown, for the description of a run."""
    return [table.title, "\n".join(markdown_rows(table.frame.head(num_rows or table.frame.height))), *table.sentences]


def track_data(run: TrackedRun, opened: Snapshots) -> None:
    """Name the data of a run, and attach the counts of its steps."""
    counts = snapshot_counts(opened.address)
    name = f"{opened.dataset} v{opened.version}"
    run.dataset(counts, name=name, digest=f"v{opened.version}-{digest(opened.address)}", source=opened.address)
    run.table("snapshots.csv", counts)


def draw(run: TrackedRun, rows: pl.DataFrame, beside: dict[str, pl.DataFrame] | None = None) -> None:
    """Plot what the protocols of the rows have; `beside` has the tables beside the rows, and `course` for curves."""
    from dyformer.experiments.plots import benchmark_plots  # late, because most runs draw nothing and it takes .4 s

    for protocol in protocols_in(rows):
        for name, figure in benchmark_plots(protocol.plots, rows.filter(protocol=protocol.name), beside or {}):
            run.plot(f"plots/{name}.png", figure)


def tags_of(opened: Snapshots, seed: int | None, *, code: str) -> dict[str, Any]:
    """Give the tags of every run on these snapshots; `code` is the version that made what is tracked."""
    tags = {"table_version": opened.version, "window": opened.window, "code": code}
    return {**tags, **flow_run_tag(), **({} if seed is None else {"seed": seed})}


def flow_run_tag() -> dict[str, str]:
    """Give the tag of the flow run that tracks; none outside of one."""
    from prefect.runtime import flow_run

    run_id = flow_run.get_id()
    return {} if run_id is None else {FLOW_RUN: run_id}


def run_key(*parts: str) -> str:
    """Derive a run's key from its content, so that tracking the same content again finds the run."""
    return sha256("\n".join(parts).encode())[:32]
