"""Metrics and losses -> the plots of a run and of a benchmark, drawn without a screen.

The frame of metrics has the columns of METRICS_SCHEMA, with step a number, "micro" or "macro".
"""

import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

METRIC_TITLES = {"auc": "AUC", "average_precision": "average precision"}
MARKERS = "osD^vPX*<>"
# These colours remain distinguishable for colour-blind readers too (Okabe and Ito, 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")


def step_curve(metrics: pl.DataFrame, *, metric: str = "auc", slice_name: str = "all") -> Figure:
    """Draw a metric per step, one line a method: mean over seeds, with a band of one standard deviation (Fig. 5).

    Raises ValueError when the frame has no per-step value of this metric and slice.
    """
    rows = _rows(metrics, metric, slice_name).filter(~pl.col("step").is_in(["micro", "macro"]))
    rows = _not_empty(rows.with_columns(pl.col("step").cast(pl.Int64)), metrics, metric, slice_name)
    figure, axes = _empty(8.5, 4.8)
    for index, method in enumerate(_ranked(rows)):
        line = _over_seeds(rows.filter(pl.col("method") == method), "step").sort("step")
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        axes.plot(line["step"], 100 * line["mean"], label=method, color=colour, marker=marker, linewidth=1.6)
        axes.fill_between(
            line["step"].to_list(),
            (100 * (line["mean"] - line["deviation"])).to_list(),
            (100 * (line["mean"] + line["deviation"])).to_list(),
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("predicted step")
    axes.set_ylabel(f"{METRIC_TITLES.get(metric, metric)} (%)")
    axes.set_title(_title(rows, slice_name), loc="left")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return figure


def comparison_chart(metrics: pl.DataFrame, *, metric: str = "auc", slice_name: str = "all") -> Figure:
    """Draw Micro and Macro of every method as bars, the best macro on top; whiskers are one standard deviation.

    Raises ValueError when the frame has neither a micro nor a macro value of this metric and slice.
    """
    rows = _rows(metrics, metric, slice_name).filter(pl.col("step").is_in(["micro", "macro"]))
    rows = _not_empty(rows, metrics, metric, slice_name)
    ranked = _ranked(rows)[::-1]  # bars grow upwards
    figure, axes = _empty(8.5, 1.4 + 0.5 * len(ranked))
    for name, colour, shift in (("macro", COLOURS[0], 0.2), ("micro", COLOURS[5], -0.2)):
        table = _over_seeds(rows.filter(pl.col("step") == name), "method")
        _bars(axes, table, ranked, colour=colour, shift=shift, label=name)
    axes.set_yticks(range(len(ranked)), ranked)
    low = 100 * float(rows["value"].min())  # pyright: ignore[reportArgumentType]
    axes.set_xlim(max(0.0, 5 * (low // 5) - 5), 103)
    axes.set_xlabel(f"{METRIC_TITLES.get(metric, metric)} (%)")
    axes.set_title(_title(rows, slice_name), loc="left")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return figure


def _bars(axes: Axes, table: pl.DataFrame, ranked: list[str], *, colour: str, shift: float, label: str) -> None:
    values = {row["method"]: (100 * row["mean"], 100 * row["deviation"]) for row in table.iter_rows(named=True)}
    drawn = [(index + shift, *values[method]) for index, method in enumerate(ranked) if method in values]
    position, length, whisker = ([bar[column] for bar in drawn] for column in range(3))
    axes.barh(position, length, height=0.38, color=colour, label=label, xerr=whisker, error_kw={"linewidth": 1})
    for position, mean, deviation in drawn:
        axes.text(mean + deviation + 0.3, position, f"{mean:.1f}", va="center", fontsize=8)


def loss_curve(losses: pl.DataFrame) -> Figure:
    """Draw the losses of a training, one panel a stage, from rows of stage, epoch, loss (its name), value.

    Raises ValueError without a row.
    """
    if losses.is_empty():
        raise ValueError("there is no loss to draw: expected rows of stage, epoch, loss")
    stages = losses["stage"].unique(maintain_order=True).to_list()
    figure = Figure(figsize=(5.2 * len(stages) + 0.6, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, stage in zip(figure.subplots(1, len(stages), squeeze=False)[0], stages, strict=True):
        _loss_panel(axes, stage, losses.filter(pl.col("stage") == stage))
    return figure


def _loss_panel(axes: Axes, stage: str, rows: pl.DataFrame) -> None:
    for index, name in enumerate(rows["loss"].unique(maintain_order=True)):
        line = rows.filter(pl.col("loss") == name).sort("epoch")
        axes.plot(line["epoch"], line["value"], label=name, color=COLOURS[index % len(COLOURS)], linewidth=1.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss")
    axes.set_title(stage, loc="left")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)


def _rows(metrics: pl.DataFrame, metric: str, slice_name: str) -> pl.DataFrame:
    wanted = (pl.col("metric") == metric) & (pl.col("slice") == slice_name) & (pl.col("family") == "random")
    return metrics.with_columns(pl.col("step").cast(pl.String)).filter(wanted).drop_nulls("value")


def _not_empty(rows: pl.DataFrame, metrics: pl.DataFrame, metric: str, slice_name: str) -> pl.DataFrame:
    if rows.is_empty():
        names, slices = metrics["metric"].unique().sort().to_list(), metrics["slice"].unique().sort().to_list()
        raise ValueError(f"no value of {metric}, slice {slice_name}; there are metrics {names} and slices {slices}")
    return rows


def _ranked(rows: pl.DataFrame) -> list[str]:
    """Order methods by their mean over macro values, or over all where there is no macro, the best first."""
    deciding = rows.filter(pl.col("step") == "macro") if rows["step"].dtype == pl.String else rows
    deciding = rows if deciding.is_empty() else deciding
    order = deciding.group_by("method").agg(pl.col("value").mean()).sort(["value", "method"], descending=[True, False])
    missing = sorted(set(rows["method"]) - set(order["method"]))
    return order["method"].to_list() + missing


def _over_seeds(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    mean, deviation = pl.col("value").mean(), pl.col("value").std(ddof=0)
    return rows.group_by(key).agg(mean=mean, deviation=deviation)


def _empty(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _title(rows: pl.DataFrame, slice_name: str) -> str:
    datasets, protocols = rows["dataset"].unique().sort(), rows["protocol"].unique().sort()
    which = "all links" if slice_name == "all" else f"{slice_name} links only"
    num_seeds = rows["seed"].n_unique()
    return f"{', '.join(datasets)}, {', '.join(protocols)} protocol, {which}, {num_seeds} seed{'s' * (num_seeds > 1)}"
