"""Plots hold every method, in order; missing metrics are refused by name."""

import io
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.cbook import is_math_text
from matplotlib.dates import num2date
from matplotlib.figure import Figure
from matplotlib.text import Text

from dyformer.experiments.methods import METHODS
from dyformer.experiments.plots import (
    BASELINE_COLOURS,
    COLOURS,
    GREY,
    NEUTRAL,
    NUM_NAMED,
    colour_of,
    comparison_chart,
    drift_curve,
    family_heat_map,
    ledger_curve,
    loss_curve,
    neutral_style,
    precision_curve,
    reliability_diagram,
    step_curve,
)

AUC = {"EdgeBank": (0.70, 0.72), "DyFormer": (0.88, 0.90), "L3": (0.80, 0.95), "Popularity": (0.60, 0.65)}


def metric_rows(num_seeds: int = 2) -> pl.DataFrame:
    rows = [
        {
            "dataset": "uci",
            "protocol": "paper",
            "method": method,
            "seed": seed,
            "step": step,
            "value": value + seed / 50,
            "low": value + seed / 50 - 0.02,
            "high": value + seed / 50 + 0.01,
            "is_baseline": method != "DyFormer",
        }
        for method, (micro, macro) in AUC.items()
        for seed in range(num_seeds)
        for step, value in {
            "3": macro - 0.1,
            "10": macro - 0.1,
            "4": macro,
            "micro": micro,
            "macro": macro - 0.1,
        }.items()
    ]
    return pl.DataFrame(rows).with_columns(
        metric=pl.lit("auc"),
        family=pl.lit("random"),
        slice=pl.lit("all"),
        best_baseline=pl.lit("L3"),
        num_pairs=pl.when(pl.col("step").is_in(["micro", "macro"])).then(1200).otherwise(400),
    )


def drawn_colour(figure: Figure, name: str) -> str:
    handles, names = figure.axes[0].get_legend_handles_labels()
    return str(dict(zip(names, handles, strict=True))[name].get_color())  # pyright: ignore[reportAttributeAccessIssue]


def labels(figure: Figure) -> list[str]:
    legend = figure.axes[0].get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def assert_draws(figure: Figure) -> None:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    assert file.getvalue().startswith(b"\x89PNG")


def test_step_curve_has_a_line_a_method_over_steps_in_order() -> None:
    figure = step_curve(metric_rows())
    assert_draws(figure)
    lines = {str(line.get_label()): line for line in figure.axes[0].get_lines()}
    assert list(lines["L3"].get_xdata()) == [3, 4, 10]  # pyright: ignore[reportArgumentType]
    assert list(lines["L3"].get_ydata()) == pytest.approx([86, 96, 86])  # pyright: ignore[reportArgumentType]
    title = figure.axes[0].get_title(loc="left")
    assert "2 seeds" in title
    assert "400 pairs a step at most" in title


def test_ours_are_in_front_and_baselines_behind_the_best_ones_have_one_grey_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dyformer.experiments.plots.NUM_NAMED", 2)
    figure = step_curve(metric_rows())
    assert labels(figure) == ["L3", "DyFormer", "EdgeBank", "1 other baseline"]  # the best first
    assert len(figure.axes[0].get_lines()) == 4
    drawn = {name: drawn_colour(figure, name) for name in labels(figure)}
    assert drawn == {**{name: colour_of(name) for name in ("L3", "DyFormer", "EdgeBank")}, "1 other baseline": GREY}
    layers = {str(line.get_label()): line.get_zorder() for line in figure.axes[0].get_lines()}
    assert layers["DyFormer"] > layers["L3"] > layers["EdgeBank"] > layers["1 other baseline"]
    assert len(figure.axes[0].collections) == 2  # bands of ours and of the best baseline alone
    low_high = figure.axes[0].collections[0].get_datalim(figure.axes[0].transData)
    assert (low_high.y0, low_high.y1) == pytest.approx((79, 92))  # DyFormer's interval, averaged over two seeds


def test_a_published_baseline_has_a_name_wherever_it_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dyformer.experiments.plots.NUM_NAMED", 1)
    figure = step_curve(metric_rows(), published="Popularity")
    assert labels(figure) == ["L3", "DyFormer", "1 other baseline", "Popularity"]
    assert drawn_colour(figure, "Popularity") == colour_of("Popularity") != GREY


def test_comparison_has_two_points_a_method_sorted_by_macro() -> None:
    figure = comparison_chart(metric_rows())
    assert_draws(figure)
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == ["Popularity", "EdgeBank", "DyFormer", "L3"]  # from below, so the best is last
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["56.0", "63.0", "81.0", "86.0", "61.0", "71.0", "89.0", "81.0"]  # macro, then micro
    assert labels(figure) == ["macro", "micro"]
    assert "1,200 pairs" in figure.axes[0].get_title(loc="left")
    whisker = figure.axes[0].containers[2].lines[2][0].get_segments()[0]  # pyright: ignore[reportAttributeAccessIssue]
    assert whisker[:, 0].tolist() == pytest.approx([79, 82])  # DyFormer's macro value is 81


@pytest.mark.parametrize("title", ["_Mine", "__", "a $\\foo$ b", "$x$", "costs 5$ or 6$", r"a \$ b $ c"])
def test_titles_of_own_methods_are_drawn_as_they_are(title: str) -> None:
    """Matplotlib leaves out labels with `_` first, and reads a formula between two `$`."""
    rows = metric_rows().with_columns(pl.col("method").replace("EdgeBank", title))
    ranked = rows.filter(step="macro").with_columns(protocol=pl.lit("prequential"), slice=pl.lit("known"))
    at_k = ranked.with_columns(metric=pl.lit("precision_at_10"), family=pl.lit("published"))
    bins = {"num_pairs": [10, 10], "probability": [0.1, 0.2], "fraction": [0.1, 0.3], "low": [0.0, 0.2]}
    reliable = pl.DataFrame({"method": [title, "DyFormer"], "is_baseline": [True, False], "high": [0.2, 0.4], **bins})
    legends = [step_curve(rows), precision_curve(at_k), reliability_diagram(reliable)]
    own = [reliability_diagram(reliable.with_columns(is_baseline=pl.lit(value=False)))]
    for figure in [*legends, *own]:
        assert title in texts_of(figure.axes[0].get_legend().get_texts())  # pyright: ignore[reportOptionalMemberAccess]
    for figure in [comparison_chart(rows, paper={title: (80.0, 85.0)}), family_heat_map(ranked)]:
        assert title in texts_of(figure.axes[0].get_yticklabels())
        assert_draws(figure)
    weights = {text.get_fontweight() for text in figure.axes[0].get_yticklabels() if title in texts_of([text])}
    assert weights == {"normal"}  # of a baseline


@pytest.mark.parametrize("length", [41, 42, 43, 60, 200])
def test_a_long_title_leaves_the_plot_its_room(length: int) -> None:
    """Class names of users may be long, and "Forecaster with" stands before some: a line of 60 letters left no room."""
    title = ("TemporalGraphAttentionNetworkWithEdgeFeatures" * 5)[:length]
    rows = metric_rows().with_columns(pl.col("method").replace("EdgeBank", title))
    ranked = rows.filter(step="macro").with_columns(protocol=pl.lit("prequential"), slice=pl.lit("known"))
    for figure in (step_curve(rows), comparison_chart(rows), family_heat_map(ranked)):
        assert_draws(figure)
        axes, legend = figure.axes[0], figure.axes[0].get_legend()
        assert axes.get_window_extent().width > 0.2 * figure.bbox.width
        texts = [*texts_of(axes.get_yticklabels()), *(texts_of(legend.get_texts()) if legend else [])]
        [drawn] = [text for text in texts if text.startswith("Temporal")]
        assert drawn.replace("\n", "") == title
        assert ("\n" in drawn) == (length > 42)


def texts_of(drawn: Iterable[Text]) -> list[str]:
    """Give the texts as matplotlib draws them."""
    texts = [text.get_text() for text in drawn]
    return ["a formula" if is_math_text(text) else text.replace(r"\$", "$").strip() for text in texts]


def test_numbers_of_a_comparison_lie_inside_its_frame() -> None:
    figure = comparison_chart(metric_rows())
    figure.canvas.draw()
    axes = figure.axes[0]
    assert axes.texts
    for text in axes.texts:
        assert text.get_window_extent().x1 < axes.get_window_extent().x1, text.get_text()


def test_one_step_has_one_point_a_method() -> None:
    rows = metric_rows(num_seeds=1).filter(pl.col("step").is_in(["4", "micro", "macro"]))
    figure = comparison_chart(rows)
    assert_draws(figure)
    assert len(figure.axes[0].texts) == 4
    assert labels(figure) == ["AUC"]


def test_method_without_a_macro_still_has_its_bar() -> None:
    rows = metric_rows().filter((pl.col("method") != "L3") | (pl.col("step") != "macro"))
    figure = comparison_chart(rows)
    assert_draws(figure)
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [
        "L3",
        "Popularity",
        "EdgeBank",
        "DyFormer",
    ]


def test_one_seed_and_one_step_are_enough() -> None:
    rows = metric_rows(num_seeds=1).filter(pl.col("step").is_in(["3", "micro", "macro"]))
    assert_draws(step_curve(rows))
    assert_draws(comparison_chart(rows))
    assert "1 seed" in step_curve(rows).axes[0].get_title(loc="left")


def test_missing_metrics_are_named() -> None:
    with pytest.raises(ValueError, match=r"no value of mrr, slice all; there are metrics \['auc'\]"):
        step_curve(metric_rows(), metric="mrr")
    with pytest.raises(ValueError, match="no value of auc, slice new"):
        comparison_chart(metric_rows(), slice_name="new")


def test_losses_have_a_panel_a_stage_and_a_line_a_loss() -> None:
    rows = [("pretrain", 1, "train", 1.0), ("pretrain", 2, "train", 0.5), ("finetune", 1, "train", 0.3)]
    losses = pl.DataFrame(
        [*rows, ("finetune", 1, "validation", 0.4)], schema=["stage", "epoch", "loss", "value"], orient="row"
    )
    figure = loss_curve(losses)
    assert_draws(figure)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["pretrain", "finetune"]
    assert [len(axes.get_lines()) for axes in figure.axes] == [1, 2]
    with pytest.raises(ValueError, match="no loss to draw"):
        loss_curve(losses.clear())


def test_heat_map_has_a_row_a_method_and_a_column_a_family() -> None:
    rows = metric_rows().filter(step="macro").with_columns(protocol=pl.lit("prequential"), slice=pl.lit("known"))
    historical = rows.filter(pl.col("method") != "L3").with_columns(
        family=pl.lit("historical"), value=0.95 - pl.col("value")
    )
    figure = family_heat_map(pl.concat([historical, rows]))
    assert_draws(figure)
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["random", "historical"]  # the others have no value
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["L3", "DyFormer", "EdgeBank", "Popularity"]  # by the mean of the families
    cells = {(names[int(text.get_position()[1])], int(text.get_position()[0])): text for text in axes.texts}
    assert {key: text.get_text() for key, text in cells.items()} == {
        ("L3", 0): "86.0",
        ("DyFormer", 0): "81.0",
        ("EdgeBank", 0): "63.0",
        ("Popularity", 0): "56.0",
        ("DyFormer", 1): "14.0",
        ("EdgeBank", 1): "32.0",
        ("Popularity", 1): "39.0",
    }
    bold = {key for key, text in cells.items() if text.get_fontweight() == "bold"}
    assert bold == {("L3", 0), ("Popularity", 1)}
    weights = {text.get_text(): text.get_fontweight() for text in axes.get_yticklabels()}
    assert weights == {name: "bold" if name == "DyFormer" else "normal" for name in names}
    with pytest.raises(ValueError, match="no value of auc, slice known"):
        family_heat_map(metric_rows())


def test_charts_and_curves_of_other_families_and_slices() -> None:
    rows = metric_rows(num_seeds=1).with_columns(
        metric=pl.lit("precision_at_10"), family=pl.lit("published"), slice=pl.lit("busiest")
    )
    one = rows.filter(pl.col("step").is_in(["4", "macro"]))  # one step, without a micro value
    chart = comparison_chart(one, metric="precision_at_10", slice_name="busiest", family="published")
    assert labels(chart) == ["precision@10"]
    assert "the busiest nodes" in chart.axes[0].get_title(loc="left")
    curve = step_curve(rows, metric="precision_at_10", slice_name="busiest", family="published")
    assert curve.axes[0].get_ylabel() == "precision@10 (%)"
    with pytest.raises(ValueError, match="no value of precision_at_10"):
        comparison_chart(one, metric="precision_at_10", slice_name="busiest")


def test_a_method_has_its_colour_whoever_is_best_and_whoever_else_is_drawn() -> None:
    rows = metric_rows().with_columns(is_baseline=pl.lit(value=False))
    names = {"DyFormer": "DyFormer", "EdgeBank": "Forecaster without vectors"}
    colours = []
    for factor in (1.0, 0.1):  # DyFormer first, DyFormer last
        changed = rows.with_columns(
            pl.col("method").replace(names), pl.when(method="DyFormer").then(factor).otherwise(0.5) * pl.col("value")
        )
        colours.append(drawn_colour(step_curve(changed), "DyFormer"))
    alone = drawn_colour(step_curve(rows.filter(method="DyFormer")), "DyFormer")
    assert [*colours, alone] == [COLOURS[0]] * 3


def test_each_method_has_one_colour_and_what_is_no_method_has_none_of_them() -> None:
    titles = [*METHODS, "a method of a user's own", "another one"]
    colours = [colour_of(title).upper() for title in titles]
    assert len(set(colours)) == len(titles)
    assert set(BASELINE_COLOURS) <= set(METHODS)
    comparison = comparison_chart(metric_rows()).axes[0]
    ranked = [text.get_text() for text in comparison.get_yticklabels()]
    points = [container.lines[0].get_color() for container in comparison.containers]  # pyright: ignore[reportAttributeAccessIssue]
    assert points == [colour_of(method) for method in [*ranked, *ranked]]  # macro, then micro
    lines = [neutral_style(number) for number in range(9)]
    assert len({(style["color"], style["linestyle"], style["marker"]) for style in lines}) == len(lines)
    assert not {style["color"] for style in lines} & set(colours)


def test_reliability_has_our_methods_in_colour_and_leaves_out_bins_where_nothing_came() -> None:
    rows = pl.DataFrame(
        {
            "method": ["Ours", "Ours", "Ours", "L3"],
            "is_baseline": [False, False, False, True],
            "num_pairs": [500, 100, 10, 10],
            "probability": [0.0005, 0.01, 0.5, 0.1],
            "fraction": [0.0, 0.02, 0.4, 0.3],
            "low": [0.0, 0.01, 0.3, 0.2],
            "high": [0.0, 0.03, 0.5, 0.4],
        }
    )
    figure = reliability_diagram(rows)
    assert_draws(figure)
    axes = figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    lines = {tuple(np.asarray(line.get_xdata()).tolist()): line.get_color() for line in axes.lines}
    assert lines[0.01, 0.5] == colour_of("Ours")
    assert lines[0.1,] == colour_of("L3")
    assert axes.get_legend_handles_labels()[1] == ["exact", "L3", "Ours"]
    with pytest.raises(ValueError, match="no pair of any bin came"):
        reliability_diagram(rows.filter(pl.col("fraction") == 0))


@pytest.mark.parametrize(("number", "entries"), [(5, []), (6, ["1 other baseline"]), (8, ["3 other baselines"])])
def test_reliability_names_the_baselines_nearest_to_the_diagonal(number: int, entries: list[str]) -> None:
    """The last ones of the rows are nearest, because most of their pairs are in a bin that is."""
    titles = [f"B{k}" for k in range(number)]
    bins = [(title, 0.01, 0.01 + 0.02 * (number - k), 1000) for k, title in enumerate(titles)]
    bins += [(title, 0.3, 0.3 + 0.05 * k, 10) for k, title in enumerate(titles)]
    rows = pl.DataFrame(bins, schema=["method", "probability", "fraction", "num_pairs"], orient="row")
    rows = rows.with_columns(is_baseline=pl.lit(True), low=pl.col("fraction"), high=pl.col("fraction"))
    axes = reliability_diagram(rows).axes[0]
    assert axes.get_legend_handles_labels()[1] == ["exact", *titles[: -NUM_NAMED - 1 : -1], *entries]
    colours = [line.get_color() for line in axes.lines[1:]]
    assert colours == [*map(colour_of, titles[: -NUM_NAMED - 1 : -1]), *[GREY] * (number - NUM_NAMED)]


def test_reliability_has_whiskers_from_the_low_to_the_high_end() -> None:
    rows = pl.DataFrame(
        {
            "method": ["Ours", "Ours"],
            "is_baseline": [False, False],
            "num_pairs": [100, 10],
            "probability": [0.01, 0.5],
            "fraction": [0.02, 0.4],
            "low": [0.015, 0.1],
            "high": [0.05, 0.45],
        }
    )
    [container] = reliability_diagram(rows).axes[0].containers
    whiskers = container.lines[2][0].get_segments()  # pyright: ignore[reportAttributeAccessIssue]
    np.testing.assert_allclose(whiskers, [[[0.01, 0.015], [0.01, 0.05]], [[0.5, 0.1], [0.5, 0.45]]])


def lines_of(figure: Figure) -> dict[str, list[tuple[float, float]]]:
    """The points of each line, by its label."""
    points = {str(line.get_label()): np.asarray(line.get_xydata()).tolist() for line in figure.axes[0].get_lines()}
    return {label: [(x, y) for x, y in own] for label, own in points.items()}


def outcomes() -> pl.DataFrame:
    """Give what came of the forecasts of three steps."""
    return pl.DataFrame(
        {
            "step": [4, 5, 7],
            "valid_from": [datetime.fromisoformat("2024-02-27"), datetime.fromisoformat("2024-03-05"), None],
            "num_pairs": [100, 200, 300],
            "num_came": [20, 60, 60],
            "precision_at_10": [0.2, 0.3, 0.25],
            "precision_at_10_low": [0.15, 0.1, 0.2],
            "precision_at_10_high": [0.4, 0.35, 0.5],
            "probability": [0.22, 0.28, 0.6],
            "calibration_error": [0.01, 0.02, 0.03],
            "brier": [0.04, 0.05, 0.06],
        }
    )


def test_values_without_an_interval_are_drawn_without_a_band() -> None:
    none = pl.lit(None, pl.Float64)
    figure = step_curve(metric_rows().with_columns(low=none, high=none))  # as the AUC by family of negatives
    assert_draws(figure)
    assert [band.get_paths() for band in figure.axes[0].collections] == [[], []]
    is_first = pl.col("step") == 4
    ends = ("precision_at_10_low", "precision_at_10_high")
    figure = ledger_curve(outcomes().with_columns(pl.when(~is_first).then(pl.col(end)).alias(end) for end in ends))
    assert_draws(figure)
    [path] = figure.axes[0].collections[0].get_paths()
    assert {x for x, _ in path.vertices.tolist()} == {5, 7}  # pyright: ignore[reportAttributeAccessIssue]


def test_outcomes_have_the_pairs_that_came_with_their_interval_and_the_mean_probability() -> None:
    figure = ledger_curve(outcomes())
    assert_draws(figure)
    assert lines_of(figure) == {
        "pairs that came": [(4, 0.2), (5, 0.3), (7, 0.25)],
        "mean probability": [(4, 0.22), (5, 0.28), (7, 0.6)],
    }
    assert labels(figure) == ["pairs that came", "mean probability"]
    [band] = figure.axes[0].collections
    corners = {(x, y) for x, y in band.get_paths()[0].vertices.tolist()}  # pyright: ignore[reportAttributeAccessIssue]
    assert corners == {(4, 0.15), (5, 0.1), (7, 0.2), (4, 0.4), (5, 0.35), (7, 0.5)}
    assert figure.axes[0].get_ylim()[0] == 0
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == (
        "forecast step",
        "fraction of the published pairs",
    )


def test_drift_has_a_line_a_metric_of_deviations_that_ends_at_12() -> None:
    columns = ["step", "metric", "value", "usual", "deviation"]
    values = [
        (6, "interactions", 3.0, 5.0, -30.0),
        (5, "interactions", 5.5, 5.0, 0.5),
        (4, "interactions", 5.0, None, None),
        (5, "repeats", 0.4, 0.3, 3.25),
        (6, "repeats", 0.9, 0.3, 12.5),
    ]
    figure = drift_curve(pl.DataFrame(values, columns, orient="row"))
    assert_draws(figure)
    assert lines_of(figure) == {"interactions": [(5, 0.5), (6, -12)], "repeats": [(5, 3.25), (6, 12)]}
    assert labels(figure) == ["interactions", "repeats"]
    assert [drawn_colour(figure, name) for name in ("interactions", "repeats")] == list(NEUTRAL[:2])
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == (
        "step",
        "standard deviations from earlier steps",
    )


def times_of(figure: Figure) -> list[Any]:
    """Give the times of the first line."""
    return np.asarray(figure.axes[0].lines[0].get_xdata()).tolist()


def ticks(figure: Figure) -> list[tuple[datetime, str]]:
    """Give the dates of the horizontal axis and how they are written."""
    axes = figure.axes[0]
    dates = [date.replace(tzinfo=None) for date in num2date(axes.get_xticks())]
    return list(zip(dates, [label.get_text() for label in axes.get_xticklabels()], strict=True))


def test_outcomes_with_dates_have_them_on_the_axis() -> None:
    texts = ["2024-03-19", "2024-03-05", "2024-02-27"]
    days = [datetime.fromisoformat(text) for text in texts]
    figure = ledger_curve(outcomes().with_columns(valid_from=pl.Series(days[::-1])))
    assert ticks(figure) == list(zip(days, texts, strict=True))
    assert figure.axes[0].get_xlabel() == "start of the forecast step"
    assert times_of(figure) == days[::-1]
    [alone] = ticks(ledger_curve(outcomes().head(1)))
    assert alone == (days[2], texts[2])


def test_dates_of_an_axis_leave_room_for_each_other() -> None:
    columns = ["step", "metric", "value", "usual", "deviation"]
    hours = [0, 1, 2, 40, 60, 61, 120]  # of which each has to be a sixth of all from the next one
    starts = {step: datetime.fromisoformat("0001-01-01") + timedelta(hours=hour) for step, hour in enumerate(hours)}
    rows = [(step, "repeats", 0.1, 0.1, None if step == 0 else 1.0) for step in starts]
    figure = drift_curve(pl.DataFrame(rows, columns, orient="row"), starts)
    named = [starts[step] for step in (6, 5, 3, 2)]
    assert ticks(figure) == [(time, f"{time.date()}") for time in named]
    assert figure.axes[0].get_xlabel() == "start of the step"
    figure = drift_curve(pl.DataFrame(rows[4:], columns, orient="row"), {**starts, 6: starts[5] + timedelta(hours=1)})
    assert [text for _, text in ticks(figure)] == ["0001-01-03\n14:00", "0001-01-03\n13:00", "0001-01-03\n12:00"]


def test_the_curve_over_steps_has_the_dates_of_its_steps() -> None:
    starts = {step: datetime.fromisoformat(f"2024-01-{step:02d}") for step in range(1, 20)}
    dated, numbered = step_curve(metric_rows(), starts=starts), step_curve(metric_rows())
    assert times_of(dated) == [starts[step] for step in times_of(numbered)]
    assert {time for time, _ in ticks(dated)} <= set(times_of(dated))
    assert dated.axes[0].get_xlabel() == "start of the predicted step"


def test_a_single_step_has_no_tick_beside_it() -> None:
    columns = ["step", "metric", "value", "usual", "deviation"]
    [axes] = drift_curve(pl.DataFrame([(5, "repeats", 0.4, 0.3, 3.25)], columns, orient="row")).axes
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [5]


def test_precision_against_k_has_a_line_for_each_method() -> None:
    rows = (
        metric_rows()
        .filter(step="macro")
        .drop("metric")
        .join(
            pl.DataFrame({"metric": [f"precision_at_{k}" for k in (1, 2, 10)], "part": [1.0, 0.5, 0.25]}), how="cross"
        )
    )
    rows = rows.with_columns(
        pl.col("value", "low", "high") * pl.col("part"), family=pl.lit("published"), slice=pl.lit("known")
    )
    figure = precision_curve(rows)
    assert_draws(figure)
    axes = figure.axes[0]
    line = next(line for line in axes.lines if line.get_color() == COLOURS[0])
    assert np.asarray(line.get_xdata()).tolist() == [1, 2, 10]
    mean = rows.filter(method="DyFormer").group_by("part").agg(pl.mean("value")).sort("part", descending=True)
    np.testing.assert_allclose(np.asarray(line.get_ydata(), dtype=float), 100 * mean["value"].to_numpy())
    assert len(axes.lines) == rows["method"].n_unique()
    with pytest.raises(ValueError, match="no value of precision_at_k, slice known"):
        precision_curve(metric_rows())


def test_the_papers_values_are_crosses_beside_the_methods_that_have_them() -> None:
    figure = comparison_chart(metric_rows(), paper={"DyFormer": (80.0, 85.0), "not drawn": (1.0, 2.0)})
    crosses = [np.asarray(line.get_xdata()) for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert sorted(float(at[0]) for at in crosses if len(at)) == [80.0, 85.0]
    assert "the paper's" in labels(figure)
    assert "the paper's" not in labels(comparison_chart(metric_rows()))
