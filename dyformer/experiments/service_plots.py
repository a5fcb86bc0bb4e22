"""What a service records from step to step -> plots: outcomes of published forecasts, drift of the log."""

import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dyformer.experiments.plots import COLOURS, GREY, empty_axes

FAR = 12.0  # standard deviations at which the drift plot ends


def ledger_curve(rows: pl.DataFrame) -> Figure:
    """Draw, by forecast step, the fraction of the published pairs that came with its interval, and their probability.

    `rows` has step, precision_at_10 with _low and _high, and probability (the mean of the same pairs).
    """
    figure, axes = empty_axes(8.5, 3.6)
    step_T = rows["step"].to_list()
    low_T, high_T = (rows[f"precision_at_10_{end}"].cast(pl.Float64).to_list() for end in ("low", "high"))
    axes.plot(step_T, rows["precision_at_10"], marker="o", markersize=4, label="pairs that came")
    axes.fill_between(step_T, low_T, high_T, alpha=0.15, linewidth=0)
    axes.plot(step_T, rows["probability"], marker="D", markersize=4, color=GREY, label="mean probability")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("forecast step")
    axes.set_ylabel("fraction of the published pairs")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure


def drift_curve(rows: pl.DataFrame) -> Figure:
    """Draw, by step, the robust standard deviations of each drift metric from the earlier steps.

    `rows` has step, metric and deviation. Distances beyond 12 are drawn at 12.
    """
    figure, axes = empty_axes(8.5, 3.6)
    for colour, (metric,) in zip(COLOURS, rows.select("metric").unique(maintain_order=True).iter_rows(), strict=False):
        line = rows.filter(metric=metric).drop_nulls("deviation").sort("step")
        axes.plot(line["step"], line["deviation"].clip(-FAR, FAR), marker="o", markersize=3, color=colour, label=metric)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.set_ylabel("standard deviations from earlier steps")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return figure
