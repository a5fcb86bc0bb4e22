"""Metrics of the prequential protocol -> the table that is printed, with a sentence on the best method and baseline."""

import polars as pl

from dyformer.evaluation.forecasts.best_partners import PUBLISHED
from dyformer.evaluation.live_update import live_update_table
from dyformer.evaluation.prequential import PROTOCOL
from dyformer.evaluation.protocols import PROTOCOL as PAPER
from dyformer.evaluation.query_slices import KNOWN
from dyformer.evaluation.ranking_rows import MIXED
from dyformer.experiments.tables import PrintedTable, printed_tables

CELLS = {
    "MRR": ("mrr", MIXED),
    "precision@10": ("precision_at_10", PUBLISHED),
    "AUC random": ("auc", "random"),
    "AUC active": ("auc", "active"),
}
"""Columns of the printed table: metric and family of negatives, over the queries between known nodes."""

FORECAST_COLUMNS = (
    ("precision@10", "precision_at_10", "value", "{:.4f}"),
    ("difference", "precision_at_10", "difference", "{:+.4f}"),
    ("calibration error", "calibration_error", "value", "{:.4f}"),
    ("sum of probabilities / links", "probability_sum", "value", "{:.2f}"),
    ("Brier", "brier", "value", "{:.4f}"),
)
"""Columns of the table of forecasts: title, metric, which value of it, format."""

POOLED = ("probability_sum", "confident")  # few links of a step, or none, may decide these


def ranking_table(metrics: pl.DataFrame, dataset: str) -> pl.DataFrame:
    """Give one row per method, the best MRR on top: the mean over steps of each of CELLS, averaged over seeds.

    Columns: method, is_baseline, best_baseline (in MRR), num_seeds, num_queries; for each of CELLS its name, the same
    with _low and _high for the 95 % interval; difference, difference_low, difference_high of the MRR.
    """
    rows = _rows(metrics, dataset).filter(slice=KNOWN, step="macro")
    parts = []
    for name, (metric, family) in CELLS.items():
        own = (
            rows.filter(metric=metric, family=family)
            .group_by("method")
            .agg(
                pl.col("value").mean().alias(name),
                pl.col("low").mean().alias(f"{name}_low"),
                pl.col("high").mean().alias(f"{name}_high"),
            )
        )
        parts.append(own)
    about = (
        rows.filter(metric="mrr", family=MIXED)
        .group_by("method")
        .agg(
            pl.col("is_baseline").first(),
            pl.col("best_baseline").first(),
            pl.col("difference", "difference_low", "difference_high").mean(),
            num_queries=pl.col("num_pairs").max(),
            num_seeds=pl.col("seed").n_unique(),
        )
    )
    for part in parts:
        about = about.join(part, on="method", how="left")
    return about.sort("MRR", "method", descending=[True, False])


def printed_ranking(metrics: pl.DataFrame, dataset: str) -> PrintedTable:
    """Give the table as text: a cell is "value [low, high]"; below it the best baseline and the difference to it."""
    table, log = ranking_table(metrics, dataset), metrics.filter(method="-", step="micro", dataset=dataset)
    rows = table.to_dicts()
    columns: dict[str, list[str]] = {"method": [row["method"] for row in rows]}
    columns |= {name: [_cell(row, name, "{:.3f}") for row in rows] for name in CELLS}
    columns["MRR difference"] = [_cell(row, "difference", "{:+.3f}") for row in rows]
    steps = _rows(metrics, dataset).filter(~pl.col("step").is_in(["micro", "macro"]))["step"].n_unique()
    seeds, queries = max(row["num_seeds"] for row in rows), max(row["num_queries"] for row in rows)
    fraction = {row["metric"]: row["value"] for row in log.filter(protocol=PROTOCOL).to_dicts()}
    title = (
        f"{dataset}, prequential protocol: mean over {steps} step{'s' * (steps > 1)} [95 % interval]; {queries:,} "
        f"queries, {seeds} seed{'s' * (seeds > 1)}"
    )
    covered = (
        f"{100 * fraction['coverage']:.0f} % of the links can be ranked, because both ends are known before; "
        f"{100 * fraction['repeat_rate']:.0f} % of these repeat an earlier link."
    )
    if "retrieved" in fraction:
        covered += (
            f" The first stage retrieves {100 * fraction['retrieved']:.0f} % of the links of the evaluated nodes."
        )
    return PrintedTable(title, pl.DataFrame(columns), [*_comparison(rows), covered])


def printed_forecasts(metrics: pl.DataFrame, dataset: str) -> PrintedTable:
    """Give the table of published forecasts as text: means over seeds, the best precision on top.

    POOLED metrics are those of the pairs of all steps together, the others means over steps.
    """
    rows = metrics.filter(pl.col("seed").is_not_null(), family=PUBLISHED, slice="all", dataset=dataset)
    step = pl.when(pl.col("metric").is_in(POOLED)).then(pl.lit("micro")).otherwise(pl.lit("macro"))
    rows = rows.filter(pl.col("step") == step)
    about = ("value", "low", "high", "difference", "difference_low", "difference_high")
    merged = rows.group_by("method", "metric").agg(pl.col(about).mean(), pl.col("num_pairs").max())
    cells = {(row["method"], row["metric"]): row for row in merged.iter_rows(named=True)}
    order = sorted({method for method, _ in cells}, key=lambda name: (-cells[name, "precision_at_10"]["value"], name))
    columns: dict[str, list[str]] = {"method": order}
    for title, metric, name, form in FORECAST_COLUMNS:
        columns[title] = [_named_cell(cells.get((method, metric)), name, form) for method in order]
    confident = [cells.get((method, "confident")) for method in order]
    columns["came of 0.8 and more"] = [
        f"{row['value']:.2f} of {row['num_pairs']:,}" if row else "-" for row in confident
    ]
    steps = metrics.filter(~pl.col("step").is_in(["micro", "macro"]))["step"].n_unique()
    pairs = max((cells[method, "precision_at_10"]["num_pairs"] for method in order), default=0)
    seeds = rows["seed"].n_unique()
    best = rows["best_baseline"].drop_nulls().first()
    title = (
        f"{dataset}, forecasts that would have been published, and the links that came: mean over {steps} "
        f"step{'s' * (steps > 1)} [95 % interval]; {pairs:,} pairs, {seeds} seed{'s' * (seeds > 1)}"
        + (f"; difference to the best baseline, {best}" if best else "")
    )
    return PrintedTable(title, pl.DataFrame(columns), [])


def run_tables(metrics: pl.DataFrame, dataset: str) -> list[PrintedTable]:
    """Give the tables of a run: that of the prequential protocol, then those of the paper's; each where it has rows."""
    ranked, pairs = metrics.filter(protocol=PROTOCOL), metrics.filter(protocol=PAPER)
    rankings = [] if ranked.is_empty() else [printed_ranking(ranked, dataset)]
    return rankings + ([] if pairs.is_empty() else printed_tables(pairs, dataset))


def printed_live_update(metrics: pl.DataFrame, dataset: str) -> PrintedTable:
    """Give the table of the live-update protocol as text, the published values among ours."""
    rows = live_update_table(metrics, dataset).to_dicts()
    weeks = metrics.filter(pl.col("step") != "macro")["step"].n_unique()
    sources = max(row["num_sources"] or 0 for row in rows)
    columns = {"method": [row["method"] for row in rows], "MRR": [_cell(row, "mrr", "{:.3f}") for row in rows]}
    title = (
        f"{dataset}, ROLAND's live-update protocol: MRR among 1,000 random nodes [95 % interval]; mean over {weeks} "
        f"steps, {sources:,} ranked sources"
    )
    return PrintedTable(title, pl.DataFrame(columns), [])


def _rows(metrics: pl.DataFrame, dataset: str) -> pl.DataFrame:
    return metrics.filter(pl.col("seed").is_not_null(), protocol=PROTOCOL, dataset=dataset)


def _comparison(rows: list[dict]) -> list[str]:
    """Give a sentence on the best baseline, and on the best of the other methods beside it."""
    best = next((row["best_baseline"] for row in rows if row["best_baseline"]), None)
    if best is None:
        return []
    value = next(row["MRR"] for row in rows if row["method"] == best)
    sentence = f"The best baseline in MRR is {best} ({value:.3f})"
    own = next((row for row in rows if not row["is_baseline"]), None)
    if own is None or own["difference"] is None:
        return [f"{sentence}."]
    direction = "above" if own["difference"] > 0 else "below"
    between = f"95 % interval of the difference {own['difference_low']:+.3f} to {own['difference_high']:+.3f}"
    relative = f"{100 * abs(own['difference']) / value:.0f} %"
    return [f"{sentence}; {own['method']} is {abs(own['difference']):.3f} ({relative}) {direction} it, {between}."]


def _named_cell(row: dict | None, name: str, form: str) -> str:
    if row is None:
        return ""
    low, high = (row["low"], row["high"]) if name == "value" else (row[f"{name}_low"], row[f"{name}_high"])
    return _with_interval(row[name], low, high, form)


def _cell(row: dict, name: str, form: str) -> str:
    return _with_interval(row[name], row[f"{name}_low"], row[f"{name}_high"], form)


def _with_interval(value: float | None, low: float | None, high: float | None, form: str) -> str:
    if value is None:
        return ""
    return form.format(value) + ("" if low is None else f" [{form.format(low)}, {form.format(high)}]")
