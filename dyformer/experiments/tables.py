"""Metrics of a benchmark -> the tables and sentences that are printed, with the published metrics below ours."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import polars as pl

from dyformer.evaluation.metric_rows import SLICES
from dyformer.evaluation.significance import TESTS_SCHEMA, wilcoxon_tests

PAPER_METRICS: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "rds": {
        "node2vec": (81.10, 82.85, 75.62, 76.25),
        "GraphSAGE": (85.49, 86.64, 80.21, 79.99),
        "DynAERNN": (80.56, 80.16, 68.43, 68.18),
        "DynGEM": (79.29, 81.94, 72.43, 74.49),
        "DySAT": (83.89, 83.60, 76.28, 76.87),
        "EvolveGCN": (85.35, 86.53, 78.36, 79.18),
        "DyFormer": (88.77, 89.77, 82.78, 82.89),
    },
    "uci": {
        "node2vec": (81.41, 81.39, 75.31, 75.82),
        "GraphSAGE": (79.85, 78.45, 76.56, 75.94),
        "DynAERNN": (79.29, 83.81, 77.39, 81.82),
        "DynGEM": (76.36, 78.22, 74.72, 76.34),
        "DySAT": (83.10, 86.32, 81.18, 83.43),
        "EvolveGCN": (85.81, 84.18, 81.99, 82.18),
        "DyFormer": (87.91, 88.49, 85.78, 86.21),
    },
    "yelp": {
        "node2vec": (68.93, 67.38, 68.83, 68.00),
        "GraphSAGE": (62.36, 58.36, 61.97, 58.49),
        "DynAERNN": (71.54, 72.29, 70.82, 71.56),
        "DynGEM": (69.43, 69.93, 69.23, 70.67),
        "DySAT": (69.00, 69.42, 69.12, 69.20),
        "EvolveGCN": (68.99, 69.41, 68.73, 68.63),
        "DyFormer": (73.39, 74.31, 73.32, 73.88),
    },
    "ml-10m": {
        "node2vec": (90.50, 89.48, 88.92, 88.01),
        "GraphSAGE": (86.31, 90.23, 85.18, 89.31),
        "DynAERNN": (87.01, 89.04, 86.89, 89.45),
        "DynGEM": (79.80, 84.86, 77.18, 82.62),
        "DySAT": (88.91, 90.63, 88.21, 88.98),
        "EvolveGCN": (92.79, 93.45, 90.91, 91.45),
        "DyFormer": (95.30, 96.16, 93.01, 93.56),
    },
}
"""AUC in percent: micro, macro, and both over new edges only (paper, tables of section 5.2), per dataset and method."""

COLUMNS = ("micro", "macro", "num_pairs", "low", "high", "difference", "difference_low", "difference_high")
"""Columns of one slice; `low` and `high` belong to macro, the difference is in macro to the best baseline."""

TABLE_SCHEMA = pl.Schema(
    {
        "method": pl.String(),
        **{
            prefix + name: pl.Int64() if name == "num_pairs" else pl.Float64()
            for prefix in ("", "new_")
            for name in COLUMNS
        },
        "num_seeds": pl.Int64(),
    }
)

SIGNIFICANT = 0.05
IS_ABOVE = pl.col("num_above") > pl.col("num_below")
TESTS_TITLE = f"Signed-rank tests over steps and seeds, p < {SIGNIFICANT} after Holm's correction:"


class PrintedTable(NamedTuple):
    """A table of one slice, as text, with its title and the sentences below it."""

    title: str
    frame: pl.DataFrame
    sentences: list[str]


def markdown_rows(frame: pl.DataFrame) -> list[str]:
    """Give the lines of a table of texts in Markdown."""
    rows = ["| " + " | ".join(value or "" for value in row) + " |" for row in frame.rows()]
    return ["| " + " | ".join(frame.columns) + " |", "|" + " --- |" * frame.width, *rows]


def latex_table(frame: pl.DataFrame, *, caption: str, label: str, note: str) -> str:
    """Give a table of texts in LaTeX, with a note below it."""
    lines = [" & ".join(_escaped(value or "") for value in row) + r" \\" for row in [frame.columns, *frame.rows()]]
    columns = "l" + "r" * (frame.width - 1)
    body = [lines[0], r"\hline", *lines[1:]]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped(caption)}}}",
            rf"\label{{tab:{label}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            *body,
            r"\end{tabular}",
            rf"\par\footnotesize {_escaped(note)}.",
            r"\end{table}",
            "",
        ]
    )


def score_table(metrics: pl.DataFrame, dataset: str) -> pl.DataFrame:
    """Give one row per method with its AUC in percent, two decimals, averaged over seeds.

    Columns as in TABLE_SCHEMA: `new_...` for the pairs that no earlier step linked. Ends of intervals are averaged
    over seeds too, which makes the interval of a mean rather too wide than too narrow. Our methods come first, the
    best macro on top, then the published ones as "DyFormer (paper)" and so on, without a number of seeds. A metric
    without a value is null, as is micro where only one step was evaluated, because it is the same as macro there.
    """
    rows = _auc(metrics, dataset)
    parts = [_one_slice(rows.filter(slice=part), "" if part == "all" else "new_") for part in SLICES]
    seeds = rows.group_by("method").agg(num_seeds=pl.col("seed").n_unique().cast(pl.Int64))
    table = seeds.join(parts[0], on="method", how="left").join(parts[1], on="method", how="left")
    order = {"by": ["macro", "method"], "descending": [True, False], "nulls_last": True}
    published = _published(dataset).sort(**order)
    return pl.concat([table.select(TABLE_SCHEMA.names()).cast(TABLE_SCHEMA).sort(**order), published])


def printed_tables(metrics: pl.DataFrame, dataset: str) -> list[PrintedTable]:
    """Give a table of all test pairs and one of the new ones, as text for a terminal of 120 columns.

    A cell is "value [low, high]", in percent. Where one step was evaluated there is one column of AUC. The title has
    the number of pairs and the baseline of the differences; the sentences are those of `significance`.
    """
    table, rows = score_table(metrics, dataset), _auc(metrics, dataset)
    return [
        _printed(table, rows.filter(slice=part), dataset, "" if part == "all" else "new_")
        for part in SLICES
        if len(rows.filter(slice=part))
    ]


def significance(rows: pl.DataFrame, slice_name: str = "all") -> list[str]:
    """Give a sentence for each method, the best first, on its tests against the baselines; none for too few steps."""
    tests, best = wilcoxon_tests(rows, slice_name=slice_name), rows["best_baseline"].drop_nulls().first()
    values = dict(rows.filter(step="macro").group_by("method").agg(pl.col("value").mean()).iter_rows())
    sentences = []
    for method in sorted(tests["method"].unique(), key=lambda method: (-values.get(method, 0), method)):
        own = tests.filter(method=method)
        significant = own.filter(pl.col("p_holm") < SIGNIFICANT)
        num_above, num_below = (len(significant.filter(condition)) for condition in (IS_ABOVE, ~IS_ABOVE))
        sentence = f"{method}: above {num_above} of {len(own)} baselines, below {num_below}"
        sentences += [sentence + _against(test) for test in own.filter(baseline=best).to_dicts()] or [sentence]
    return [TESTS_TITLE, *sentences] if sentences else []


def significance_table(metrics: pl.DataFrame) -> pl.DataFrame:
    """Give the signed-rank tests of both slices: slice, and the columns of TESTS_SCHEMA."""
    tests = [
        wilcoxon_tests(metrics, slice_name=part).select(pl.lit(part).alias("slice"), *TESTS_SCHEMA) for part in SLICES
    ]
    return pl.concat(tests)


def _against(test: dict[str, Any]) -> str:
    p = f"{test['p_holm']:.2g}"
    return f"; above {test['baseline']} in {test['num_above']} of {test['num_differences']} (p = {p})"


def _auc(metrics: pl.DataFrame, dataset: str) -> pl.DataFrame:
    wanted = {"metric": "auc", "dataset": dataset, "protocol": "paper"}
    return metrics.filter(pl.col("seed").is_not_null(), **wanted)


def _one_slice(rows: pl.DataFrame, prefix: str) -> pl.DataFrame:
    """Give a row per method with the columns of one slice, averaged over seeds."""
    is_single = rows.filter(~pl.col("step").is_in(["micro", "macro"]))["step"].n_unique() == 1
    is_macro = pl.col("step") == "macro"

    def percent(name: str, where: pl.Expr) -> pl.Expr:
        return (100 * pl.col(name).filter(where).mean()).round(2)

    return rows.group_by("method").agg(
        percent("value", (pl.col("step") == "micro") & ~pl.lit(is_single)).alias(prefix + "micro"),
        percent("value", is_macro).alias(prefix + "macro"),
        pl.col("num_pairs").filter(is_macro).max().alias(prefix + "num_pairs"),
        *(percent(name, is_macro).alias(prefix + name) for name in COLUMNS[3:]),
    )


def _printed(table: pl.DataFrame, rows: pl.DataFrame, dataset: str, prefix: str) -> PrintedTable:
    own = table.filter(pl.col(prefix + "macro").is_not_null())
    own = own.sort(
        pl.col("num_seeds").is_null(), pl.col(prefix + "macro"), descending=[False, True], maintain_order=True
    )
    steps = rows.filter(~pl.col("step").is_in(["micro", "macro"]))["step"].unique().to_list()
    macro = "AUC" if len(steps) == 1 else "Macro AUC"
    columns = {
        "method": own["method"],
        **(
            {} if len(steps) == 1 else {"Micro AUC": own[prefix + "micro"].map_elements(_plain, return_dtype=pl.String)}
        ),
        macro: _with_interval(own, prefix, ("macro", "low", "high"), "{:.2f}"),
    }
    best = rows["best_baseline"].drop_nulls().first()
    if best is not None:
        columns["difference"] = _with_interval(own, prefix, COLUMNS[5:], "{:+.2f}")
    pairs, seeds = f"{own[prefix + 'num_pairs'].max():,}", rows["seed"].n_unique()
    which = f"{pairs} test pairs" if not prefix else f"{pairs} test pairs that no earlier step linked"
    where = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps"
    title = (
        f"{dataset}, paper protocol: AUC in percent [95 % interval]; {which}, {where}, {seeds} seed{'s' * (seeds > 1)}"
    )
    title += "" if best is None else f"; difference to the best baseline, {best}"
    return PrintedTable(title, pl.DataFrame(columns), significance(rows, rows["slice"][0]))


def _with_interval(table: pl.DataFrame, prefix: str, names: Sequence[str], form: str) -> pl.Series:
    texts = [
        None
        if value is None
        else form.format(value) + ("" if start is None else f" [{form.format(start)}, {form.format(end)}]")
        for value, start, end in table.select(prefix + name for name in names).iter_rows()
    ]
    return pl.Series(names[0], texts, dtype=pl.String)


def _plain(value: float) -> str:
    return f"{value:.2f}"


def _published(dataset: str) -> pl.DataFrame:
    names = ("micro", "macro", "new_micro", "new_macro")
    rows = [
        {"method": f"{method} (paper)", **dict(zip(names, values, strict=True))}
        for method, values in PAPER_METRICS.get(dataset, {}).items()
    ]
    return pl.DataFrame(rows, schema=TABLE_SCHEMA)


def _escaped(text: str) -> str:
    for mark in "&%#_$":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("±", r"$\pm$")
