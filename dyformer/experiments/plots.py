"""Metrics, losses, outcomes of forecasts and drift -> the plots of a run and of a benchmark, drawn without a screen.

The frame of metrics has the columns of METRICS_SCHEMA, with step a number, "micro" or "macro".
"""

import colorsys
import textwrap
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dyformer import InvalidInput
from dyformer.evaluation.forecasts.best_partners import BUSIEST, PUBLISHED
from dyformer.evaluation.query_slices import KNOWN
from dyformer.experiments.tables import OF_A_UNIT, units_of
from dyformer.sampling.ranking_queries import FAMILIES

METRIC_TITLES = {
    "auc": "AUC",
    "average_precision": "average precision",
    "mrr": "MRR",
    "precision_at_10": "precision@10",
    "precision_at_k": "precision@k",
}
SLICE_TITLES = {"all": "all links", KNOWN: "known nodes", BUSIEST: "the busiest nodes"}
QUIET = 2  # the layer of a plot on which baselines are
GREY = "#9A9A9A"
LETTERS_AN_INCH = 12  # of a title, at least
LETTERS_A_LINE = 42  # of a method's title; the longest of METHODS and VARIATIONS has 41
NEUTRAL = ("#222222", "#6E6E6E", "#A6A6A6")  # of what is no method
ROOM_FOR_NUMBERS = 0.06  # of the width of a comparison, right of the longest interval
DARK = 80  # percent; above it the heat map is dark, so that its numbers are white
# These colours remain distinguishable for colour-blind readers too (Okabe and Ito, 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")

OURS = (
    "DyFormer",
    "Forecaster with DyFormer",
    "Forecaster without vectors",
    "DyFormer without pre-training",
    "DyFormer (as published)",
    "Event forecaster by pair",
)
"""Methods of the package, each with the colour at its position in every plot."""

BASELINE_COLOURS = {
    "EdgeBank (ever)": "#1010F9",
    "EdgeBank (last)": "#F910E2",
    "EdgeBank (decayed)": "#38036D",
    "Preferential attachment": "#7AB620",
    "Preferential attachment (last)": "#F91056",
    "Popularity (decayed)": "#6D0318",
    "Common neighbours": "#106DF9",
    "Adamic-Adar": "#3D6666",
    "L3": "#D1057F",
    "Last contact": "#511F47",
    "Recency rank": "#305F11",
    "Contact recency": "#B14EBC",
    "Adamic-Adar x recent activity": "#F91010",
    "Adamic-Adar x root of recent degree": "#852FDA",
    "L3 x root of recent degree": "#E2685A",
    "Personalized PageRank": "#66453D",
    "Shortest path": "#032D6D",
    "Logistic regression on pair features": "#B69486",
    "Boosted trees on pair features": "#8BA366",
    "node2vec": "#9F0404",
    "GraphSAGE": "#9F9004",
    "DynGEM": "#8472CA",
    "DynAERNN": "#20B64D",
    "DySAT": "#20B6B6",
    "EvolveGCN-O": "#B6204D",
    "EvolveGCN-H": "#8B1868",
}
"""Of the baselines: each as far as could be from the others and from COLOURS (in CIELAB, with a lightness below 68)."""

NUM_NAMED = 5  # best baselines that a plot of lines names; the others are thin and grey behind them
FAR = 12.0  # standard deviations at which the drift plot ends
MAX_DATES = 6  # that an axis names

Starts = Mapping[int, datetime]
"""The time at which each step starts."""


def step_curve(
    metrics: pl.DataFrame,
    *,
    metric: str = "auc",
    slice_name: str = "all",
    family: str = "random",
    starts: Starts | None = None,
    published: str | None = None,
) -> Figure:
    """Draw a metric per step, one line a method: mean over seeds, with a band of the 95 % interval (Fig. 5).

    Our methods are in front; of the baselines the NUM_NAMED best and the `published` one have a name, and the best one
    a band, too. With `starts` the axis has dates.
    Raises ValueError when the frame has no per-step value of this metric, slice and family.
    """
    rows = _rows(metrics, metric, slice_name, family).filter(OF_A_UNIT)
    rows = _not_empty(rows.with_columns(pl.col("step").cast(pl.Int64)), metrics, metric, slice_name)
    figure, axes = empty_axes(6.4, 5.0)
    styles = _styles(rows, published)
    for method in reversed(_ranked(rows)):
        line = _over_seeds(rows.filter(pl.col("method") == method), "step").sort("step")
        style = styles[method]
        time_T = _times(line["step"], starts)
        axes.plot(time_T, line["value"], marker="o", markersize=4, **style)
        if style["zorder"] > QUIET + 1:
            low, high = (line[end].to_numpy() for end in ("low", "high"))  # of a list, None would be refused
            axes.fill_between(time_T, low, high, color=style["color"], alpha=0.15, linewidth=0)
    _name_times(axes, "predicted step", None if starts is None else _times(rows["step"], starts))
    _finish(axes, rows, metric, slice_name, reverse=True, below=True)  # the best line is drawn last
    return figure


def comparison_chart(
    metrics: pl.DataFrame,
    *,
    metric: str = "auc",
    slice_name: str = "all",
    family: str = "random",
    paper: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> Figure:
    """Draw Micro and Macro of every method as points with 95 % intervals, the best macro on top; on one step one point.

    Points, because the length of a bar misleads on an axis that does not begin at 0.
    `paper` gives the paper's micro and macro values in percent by method, as crosses. Raises ValueError when the frame
    has neither a micro nor a macro value of this metric, slice and family.
    """
    every = _rows(metrics, metric, slice_name, family)
    rows = _not_empty(every.filter(~OF_A_UNIT), metrics, metric, slice_name)
    is_single = len(units_of(every)) == 1
    ranked = _ranked(rows)[::-1]  # rows are drawn upwards
    figure, axes = empty_axes(8.5, 1.4 + 0.36 * len(ranked))
    markers = {"macro": "o"} if is_single else {"macro": "o", "micro": "D"}
    for name, marker in markers.items():
        shift = 0.0 if is_single else 0.15 if name == "macro" else -0.15
        values = {row["method"]: row for row in _over_seeds(rows.filter(step=name), "method").iter_rows(named=True)}
        for position, method in enumerate(ranked):
            if method in values:
                _point(axes, values[method], position + shift, marker, colour_of(method))
        axes.plot([], [], linestyle="none", marker=marker, color=GREY, label=metric_title(metric, name, is_single))
        theirs = {ranked.index(method): values[name == "macro"] for method, values in paper.items() if method in ranked}
        for position, value in theirs.items():
            axes.plot(value, position + shift, marker="x", color="black", markersize=6)
    if paper:
        axes.plot([], [], linestyle="none", marker="x", color="black", label="the paper's")
    axes.set_yticks(range(len(ranked)), [label_of(method) for method in ranked])
    left, right = axes.get_xlim()
    axes.set_xlim(left, right + ROOM_FOR_NUMBERS * (right - left))
    axes.set_xlabel(f"{METRIC_TITLES.get(metric, metric)} (%), with 95 % interval")
    _finish(axes, rows, metric, slice_name)
    axes.set_ylabel("")
    return figure


def family_heat_map(metrics: pl.DataFrame) -> Figure:
    """Draw the AUC of every method against each family of negatives: mean over steps and seeds, in percent.

    The best mean over families is on top, the best value of a family in bold, as are the names of our methods. Raises
    ValueError when the frame has no such value of the prequential protocol.
    """
    rows = metrics.filter(pl.col("family").is_in(FAMILIES), metric="auc", slice=KNOWN, step="macro")
    rows = _not_empty(rows.drop_nulls("value"), metrics, "auc", KNOWN)
    ranked, families = _ranked(rows), [name for name in FAMILIES if name in set(rows["family"])]
    baselines = set(rows.filter(pl.col("is_baseline"))["method"])
    mean = {(*key,): 100 * value for *key, value in rows.group_by("method", "family").agg(pl.mean("value")).iter_rows()}
    value_MF = [[mean.get((method, family), float("nan")) for family in families] for method in ranked]
    figure, axes = empty_axes(4.2 + 0.9 * len(families), 1.2 + 0.32 * len(ranked))
    axes.imshow(value_MF, cmap="Blues", vmin=50, vmax=100, aspect="auto")
    for column, family in enumerate(families):
        best = max(value for (_, own), value in mean.items() if own == family)
        for row, method in enumerate(ranked):
            value = mean.get((method, family))
            if value is not None:
                colour, weight = "white" if value > DARK else "black", "bold" if value == best else "normal"
                axes.text(
                    column, row, f"{value:.1f}", ha="center", va="center", color=colour, weight=weight, fontsize=8
                )
    axes.set_xticks(range(len(families)), families)
    axes.set_yticks(range(len(ranked)), [label_of(method) for method in ranked], fontsize=9)
    for label, method in zip(axes.get_yticklabels(), ranked, strict=True):
        label.set_fontweight("normal" if method in baselines else "bold")
    axes.set_title(f"AUC (%) by family of negatives\n{_title(rows, KNOWN)}", loc="left", fontsize=10)
    return figure


def precision_curve(metrics: pl.DataFrame) -> Figure:
    """Draw the precision of the k best partners against k, one line a method: mean over steps and seeds.

    Our methods and the best baseline have 95 % intervals. Raises ValueError when the frame has no such value.
    """
    is_drawn = pl.col("metric").str.starts_with("precision_at_") & (pl.col("slice") == KNOWN)
    rows = metrics.filter(is_drawn, family=PUBLISHED, step="macro").drop_nulls("value")
    rows = _not_empty(rows, metrics, "precision_at_k", KNOWN)
    rows = rows.with_columns(k=pl.col("metric").str.split("_").list.last().cast(pl.Int64))
    figure, axes = empty_axes(7.5, 4.6)
    styles = _styles(rows.filter(pl.col("k") == pl.col("k").max()))
    for method, style in reversed(styles.items()):
        line = _over_seeds(rows.filter(method=method), "k").sort("k")
        axes.plot(line["k"], line["value"], marker="o", markersize=4, **style)
        if style["zorder"] > QUIET + 1:
            low, high = (line[end].to_numpy() for end in ("low", "high"))
            axes.fill_between(line["k"], low, high, color=style["color"], alpha=0.15)
    axes.set_xlabel("k best partners of a node")
    axes.set_xticks(rows["k"].unique().sort().to_list())
    _finish(axes, rows, "precision_at_k", KNOWN, reverse=True)
    return figure


def reliability_diagram(rows: pl.DataFrame) -> Figure:
    """Draw the fraction of pairs that came against their mean probability, by bin, from rows of RELIABILITY_SCHEMA.

    Both axes are logarithmic, because most probabilities are small. Ours have 95 % intervals; of the baselines those
    NUM_NAMED have a name whose pairs are in bins nearest to the diagonal. A bin in which no pair came is left out.
    Raises ValueError where no pair of any bin came.
    """
    came = rows.filter(pl.col("fraction") > 0)
    if came.is_empty():
        raise InvalidInput("there is no reliability to draw: no pair of any bin came")
    figure, axes = empty_axes(6.4, 5.0)
    ours = rows.filter(~pl.col("is_baseline"))["method"].unique(maintain_order=True).to_list()
    least = min(came["probability"].min(), came["fraction"].min())  # pyright: ignore[reportArgumentType]
    axes.plot([least, 1], [least, 1], color="black", linewidth=0.8, linestyle="--", label="exact")
    drawn = [method for method in _by_distance(rows) if method in set(came["method"])]
    others = [method for method in drawn if method not in ours][NUM_NAMED:]
    for method in drawn:
        line = came.filter(method=method).sort("probability")
        if method in ours:
            below = (line["fraction"] - line["low"]).clip(0).to_list()
            above = (line["high"] - line["fraction"]).clip(0).to_list()
            axes.errorbar(
                line["probability"],
                line["fraction"],
                yerr=[below, above],
                color=colour_of(method),
                marker="o",
                label=label_of(method),
            )
        else:
            colour, label = (GREY, None) if method in others else (colour_of(method), label_of(method))
            if others and method == others[-1]:
                label = _of_others(len(others))
            axes.plot(line["probability"], line["fraction"], linewidth=0.8, zorder=1, color=colour, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("mean probability of a bin of published pairs")
    axes.set_ylabel("fraction that came")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return figure


def _by_distance(rows: pl.DataFrame) -> list[str]:
    """Order methods by the distance between probability and fraction of a bin, mean over pairs, the least first."""
    distance, number = (pl.col("probability") - pl.col("fraction")).abs(), pl.col("num_pairs")
    means = rows.group_by("method").agg(distance=(distance * number).sum() / number.sum())
    return means.sort("distance", "method")["method"].to_list()


def metric_title(metric: str, name: str, is_single: bool) -> str:
    """Name a metric over steps: "macro" and "micro", or "AUC" where one step was evaluated."""
    return METRIC_TITLES.get(metric, metric) if is_single else name


def _point(axes: Axes, row: dict[str, float], position: float, marker: str, colour: str) -> None:
    value, low, high = row["value"], row["low"], row["high"]
    known = low is not None
    whisker = [[max(value - low, 0)], [max(high - value, 0)]] if known else None
    axes.errorbar(value, position, xerr=whisker, fmt=marker, color=colour, markersize=6, linewidth=1.4, capsize=3)
    axes.annotate(
        f"{value:.1f}",
        (high if known else value, position),
        (5, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
    )


def benchmark_plots(
    names: Iterable[str], rows: pl.DataFrame, beside: Mapping[str, pl.DataFrame]
) -> Iterator[tuple[str, Figure]]:
    """Draw the plots of a protocol that its rows allow, each with the name of its file.

    Names: "steps", a curve over the steps of `beside["course"]` or of the rows, and "comparison", both of the AUC of
    all pairs and of the new ones; "families"; "reliability", of the table `beside["reliability"]`.
    """
    names = set(names)
    course = beside.get("course", rows).unique(["method", "seed", "step", "metric", "slice"], maintain_order=True)
    for part in ("all", "new"):
        if not rows.filter(slice=part, metric="auc").is_empty():
            if "steps" in names:
                yield f"auc_per_step_{part}", step_curve(course, slice_name=part)
            if "comparison" in names:
                yield f"comparison_{part}", comparison_chart(rows, slice_name=part)
    if "families" in names and not rows.filter(metric="auc", slice=KNOWN, step="macro").is_empty():
        yield "auc_by_family", family_heat_map(rows)
    reliable = beside.get("reliability")
    if "reliability" in names and reliable is not None and (reliable["fraction"] > 0).any():
        yield "reliability", reliability_diagram(reliable)


def loss_curve(losses: pl.DataFrame) -> Figure:
    """Draw the losses of a training, one panel a stage, from rows of stage, epoch, loss (its name), value.

    Raises ValueError without a row.
    """
    if losses.is_empty():
        raise InvalidInput("there is no loss to draw: expected rows of stage, epoch, loss")
    stages = losses["stage"].unique(maintain_order=True).to_list()
    figure = Figure(figsize=(5.2 * len(stages) + 0.6, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, stage in zip(figure.subplots(1, len(stages), squeeze=False)[0], stages, strict=True):
        _loss_panel(axes, stage, losses.filter(pl.col("stage") == stage))
    return figure


def _loss_panel(axes: Axes, stage: str, rows: pl.DataFrame) -> None:
    for index, name in enumerate(rows["loss"].unique(maintain_order=True)):
        line = rows.filter(pl.col("loss") == name).sort("epoch")
        style = neutral_style(index)
        axes.plot(
            line["epoch"],
            line["value"],
            label=name,
            color=style["color"],
            linestyle=style["linestyle"],
            linewidth=1.6,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss")
    axes.set_title(stage, loc="left")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)


def _rows(metrics: pl.DataFrame, metric: str, slice_name: str, family: str) -> pl.DataFrame:
    is_drawn = (pl.col("metric") == metric) & (pl.col("slice") == slice_name) & (pl.col("family") == family)
    return metrics.with_columns(pl.col("step").cast(pl.String)).filter(is_drawn).drop_nulls("value")


def _not_empty(rows: pl.DataFrame, metrics: pl.DataFrame, metric: str, slice_name: str) -> pl.DataFrame:
    if rows.is_empty():
        names, slices = metrics["metric"].unique().sort().to_list(), metrics["slice"].unique().sort().to_list()
        raise InvalidInput(f"no value of {metric}, slice {slice_name}; there are metrics {names} and slices {slices}")
    return rows


def _ranked(rows: pl.DataFrame) -> list[str]:
    """Order methods by their mean over macro values, or over all where there is no macro, the best first."""
    deciding = rows.filter(pl.col("step") == "macro") if rows["step"].dtype == pl.String else rows
    deciding = rows if deciding.is_empty() else deciding
    order = deciding.group_by("method").agg(pl.col("value").mean()).sort(["value", "method"], descending=[True, False])
    missing = sorted(set(rows["method"]) - set(order["method"]))
    return order["method"].to_list() + missing


def _over_seeds(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    """Average value and interval over seeds, in percent."""
    return rows.group_by(key).agg(pl.col("value", "low", "high").mean() * 100)


def label_of(method: str) -> str:
    """Write a title so that matplotlib draws it whole, and a long one on several lines.

    A legend omits labels with `_` first, and `$` begins a formula.
    """
    text = textwrap.fill(method, LETTERS_A_LINE).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def colour_of(method: str) -> str:
    """Give a method its colour, which depends on its title alone: one in all plots, whoever is best or beside it."""
    if method in OURS:
        return COLOURS[OURS.index(method)]
    # Methods of a user's own have a hue by their title.
    own = colorsys.hls_to_rgb(zlib.crc32(method.encode()) / 2**32, 0.35, 0.6)
    return BASELINE_COLOURS.get(method) or to_hex(own)


def _styles(rows: pl.DataFrame, published: str | None = None) -> dict[str, dict[str, Any]]:
    """Give each method its line: ours in front, then the best baseline, and others that have a name."""
    ranked, best = _ranked(rows), rows["best_baseline"].drop_nulls().first()
    baselines = set(rows.filter(pl.col("is_baseline"))["method"])
    named = [published, *[method for method in ranked if method in baselines][:NUM_NAMED]]
    styles: dict[str, dict[str, Any]] = {}
    for method in ranked:
        if method not in baselines:
            style = {"color": colour_of(method), "linewidth": 2.2, "zorder": QUIET + 3}
        elif method == best:
            style = {"color": colour_of(method), "linewidth": 1.8, "zorder": QUIET + 2}
        elif method in named:
            style = {"color": colour_of(method), "linewidth": 1.0, "zorder": QUIET + 1}
        else:
            style = {"color": GREY, "linewidth": 0.8, "zorder": QUIET}
        styles[method] = {**style, "label": label_of(method) if style["zorder"] > QUIET else None}
    quiet = [style for style in styles.values() if style["zorder"] == QUIET]
    for style in quiet[-1:]:  # one entry of the legend for all of them
        style["label"] = _of_others(len(quiet))
    return styles


def _of_others(number: int) -> str:
    """Name the baselines without a name of their own in a legend."""
    return f"{number} other baseline{'s' * (number > 1)}"


def neutral_style(number: int) -> dict[str, Any]:
    """Give the line of a quantity that is no method: a grey, a dash and a marker of its own, for up to nine."""
    dashes, markers = ("-", "--", ":"), "oDs^vP*X<"
    return {
        "color": NEUTRAL[number % len(NEUTRAL)],
        "linestyle": dashes[number // len(NEUTRAL) % len(dashes)],
        "marker": markers[number % len(markers)],
        "markersize": 4,
    }


def empty_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """Give an empty plot of this size in inches, drawn without a screen."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _finish(
    axes: Axes, rows: pl.DataFrame, metric: str, slice_name: str, *, reverse: bool = False, below: bool = False
) -> None:
    """Name the axes; the legend stands on the right, or below, where a narrow screen leaves the lines their width."""
    axes.set_ylabel(f"{METRIC_TITLES.get(metric, metric)} (%)")
    assert isinstance(axes.figure, Figure), "a plot has one panel"
    title = textwrap.fill(_title(rows, slice_name), int(LETTERS_AN_INCH * axes.figure.get_figwidth()))
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    legend: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "fontsize": 9}
    if below:
        legend = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15), "fontsize": 8, "ncols": 2}
    axes.legend(frameon=False, reverse=reverse, **legend)


def _title(rows: pl.DataFrame, slice_name: str) -> str:
    datasets, protocols = rows["dataset"].unique().sort(), rows["protocol"].unique().sort()
    which = SLICE_TITLES.get(slice_name, f"{slice_name} links only")
    num_seeds, num_pairs = rows["seed"].n_unique(), rows["num_pairs"].max()
    per_step = " a step at most" if rows["step"].dtype == pl.Int64 else ""
    pairs = "" if num_pairs is None else f"{num_pairs:,} pairs{per_step}, "
    where = f"{', '.join(datasets)}, {', '.join(protocols)} protocol, {which}"
    return f"{where}, {pairs}{num_seeds} seed{'s' * (num_seeds > 1)}"


def ledger_curve(rows: pl.DataFrame) -> Figure:
    """Draw, by forecast step, the fraction of the published pairs that came with its interval, and their probability.

    `rows` has step, valid_from (the axis has dates where no one is null), precision_at_10 with _low and _high, and
    probability (the mean of the same pairs).
    """
    figure, axes = empty_axes(8.5, 3.6)
    is_dated = rows["valid_from"].null_count() == 0
    time_T = rows["valid_from" if is_dated else "step"].to_list()
    low_T, high_T = (rows[f"precision_at_10_{end}"].cast(pl.Float64).to_numpy() for end in ("low", "high"))
    axes.plot(time_T, rows["precision_at_10"], label="pairs that came", **neutral_style(0))
    axes.fill_between(time_T, low_T, high_T, color=NEUTRAL[0], alpha=0.15, linewidth=0)
    axes.plot(time_T, rows["probability"], label="mean probability", **neutral_style(1))
    _name_times(axes, "forecast step", time_T if is_dated else None)
    axes.set_ylabel("fraction of the published pairs")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure


def drift_curve(rows: pl.DataFrame, starts: Starts | None = None) -> Figure:
    """Draw, by step, the robust standard deviations of each drift metric from the earlier steps.

    `rows` has step, metric and deviation. Distances beyond 12 are drawn at 12. With `starts` the axis has dates.
    """
    figure, axes = empty_axes(8.5, 3.6)
    for number, metric in enumerate(rows["metric"].unique(maintain_order=True)):
        line = rows.filter(metric=metric).drop_nulls("deviation").sort("step")
        time_T = _times(line["step"], starts)
        axes.plot(time_T, line["deviation"].clip(-FAR, FAR), label=metric, **neutral_style(number))
    measured = rows.drop_nulls("deviation")["step"]
    _name_times(axes, "step", None if starts is None else _times(measured, starts))
    axes.set_ylabel("standard deviations from earlier steps")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return figure


def _times(step_T: pl.Series, starts: Starts | None) -> list[Any]:
    return step_T.to_list() if starts is None else [starts[step] for step in step_T]


def _name_times(axes: Axes, step: str, times: Iterable[datetime] | None) -> None:
    """Name the horizontal axis, and set its ticks to steps, or to the dates of some of the times, with the newest."""
    if times is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlabel(step)
        return
    newest_first = sorted(set(times), reverse=True)
    named, room = newest_first[:1], (newest_first[0] - newest_first[-1]) / MAX_DATES
    for time in newest_first[1:]:
        if named[-1] - time >= room:
            named.append(time)
    has_clock = len({time.date() for time in named}) < len(named)
    texts = [f"{time.date()}\n{time:%H:%M}" if has_clock else f"{time.date()}" for time in named]
    axes.set_xticks(named, texts)  # pyright: ignore[reportArgumentType]
    axes.tick_params(axis="x", labelsize=9)
    axes.set_xlabel(f"start of the {step}")
