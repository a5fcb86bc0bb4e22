"""Plots hold every method, in order; missing metrics are refused by name."""

import io

import polars as pl
import pytest
from matplotlib.figure import Figure

from dyformer.experiments.plots import comparison_chart, loss_curve, step_curve

AUC = {"EdgeBank": (0.70, 0.72), "DyFormer": (0.88, 0.90), "L3": (0.80, 0.95)}


def metric_rows(num_seeds: int = 2) -> pl.DataFrame:
    rows = [
        {
            "dataset": "uci",
            "protocol": "paper",
            "method": method,
            "seed": seed,
            "step": step,
            "value": value + seed / 50,
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
    return pl.DataFrame(rows).with_columns(metric=pl.lit("auc"), family=pl.lit("random"), slice=pl.lit("all"))


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
    assert labels(figure) == ["L3", "DyFormer", "EdgeBank"]  # sorted, best first
    line = figure.axes[0].get_lines()[0]
    assert list(line.get_xdata()) == [3, 4, 10]  # pyright: ignore[reportArgumentType]
    assert list(line.get_ydata()) == pytest.approx([86, 96, 86])  # pyright: ignore[reportArgumentType]
    assert "2 seeds" in figure.axes[0].get_title(loc="left")


def test_comparison_has_two_bars_a_method_sorted_by_macro() -> None:
    figure = comparison_chart(metric_rows())
    assert_draws(figure)
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == ["EdgeBank", "DyFormer", "L3"]  # bars are listed from the bottom, so the best is last
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["63.0", "81.0", "86.0", "71.0", "89.0", "81.0"]  # macro, then micro
    assert labels(figure) == ["macro", "micro"]


def test_method_without_a_macro_still_has_its_bar() -> None:
    rows = metric_rows().filter((pl.col("method") != "L3") | (pl.col("step") != "macro"))
    figure = comparison_chart(rows)
    assert_draws(figure)
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["L3", "EdgeBank", "DyFormer"]


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
