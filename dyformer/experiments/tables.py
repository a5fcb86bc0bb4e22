"""Metrics and the columns of a protocol -> the tables and sentences that are printed, with published values."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from dyformer.evaluation.promotion import MIN_QUERIES
from dyformer.evaluation.protocols import PROTOCOLS, protocol_of
from dyformer.evaluation.protocols.paper import PROTOCOL as PAPER
from dyformer.evaluation.protocols.paper import TESTS_SCHEMA, wilcoxon_tests
from dyformer.evaluation.protocols.protocol import Column, Protocol, TableOf
from dyformer.evaluation.scored_pairs import SLICES
from dyformer.experiments.printed import TOO_FEW, PrintedTable

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


OF_A_SEED = pl.col("seed").is_not_null()
OF_A_UNIT = ~pl.col("step").is_in(["micro", "macro"])  # not of the mean over steps or other units


def cells(table: TableOf, rows: pl.DataFrame) -> pl.DataFrame:
    """Give one row per method with the values of a table's columns, averaged over seeds.

    Columns: method; num_seeds; for each of `table.columns` its title, and the same with _low, _high, _std, which is the
    standard deviation over seeds, and _num, the largest number of pairs. Ends of intervals are averaged over seeds too,
    which makes the interval of a mean rather too wide than too narrow; a row of all seeds together stands for all of
    them. A column that one evaluated unit leaves out is null there. `rows` are of one protocol, slice and dataset.
    """
    is_single = len(units_of(rows)) == 1
    frame = rows.group_by("method").agg(num_seeds=pl.col("seed").drop_nulls().n_unique().cast(pl.Int64))
    for column in table.columns:
        ends = ("low", "high") if column.value == "value" else ("difference_low", "difference_high")
        numbers = [
            (column.scale * pl.col(name).mean()).alias(column.title + end)
            for name, end in zip((column.value, *ends), ("", "_low", "_high"), strict=True)
        ]
        if column.digits is not None:
            numbers = [number.round(column.digits) for number in numbers]
        column_rows = rows.filter(metric=column.metric, family=column.family, step=column.over)
        column_rows = column_rows.clear() if is_single and column.single is None else column_rows
        by_seed, together = (column_rows.filter(condition) for condition in (OF_A_SEED, ~OF_A_SEED))
        num = pl.col("num_pairs").max().alias(f"{column.title}_num")
        deviation = (column.scale * pl.col(column.value).std()).alias(f"{column.title}_std")
        means = (by_seed if together.is_empty() else together).group_by("method").agg(*numbers, num)
        deviations = by_seed.group_by("method").agg(deviation)
        frame = frame.join(means, on="method", how="left").join(deviations, on="method", how="left")
    return frame


def units_of(rows: pl.DataFrame) -> list[str]:
    """Give the steps or other units that rows of METRICS_SCHEMA have a value of."""
    return rows.filter(OF_A_UNIT)["step"].unique(maintain_order=True).to_list()


def printed_tables(protocol: Protocol, metrics: pl.DataFrame, dataset: str) -> dict[str, PrintedTable]:
    """Give the tables of a protocol that have rows, as text for a terminal of 120 columns, by their keys.

    A cell is "value [low, high]". The methods stand in order of the table's main column, the best on top, with the
    published values among or below them.
    """
    rows = metrics.filter(pl.col("method") != "-", protocol=protocol.name, dataset=dataset)
    columns = {
        table.key: _printed(protocol, table, rows.filter(slice=table.slice), metrics.filter(dataset=dataset))
        for table in protocol.tables
    }
    return {key: table for key, table in columns.items() if table is not None}


def run_tables(metrics: pl.DataFrame, dataset: str) -> list[PrintedTable]:
    """Give the tables of a run: those of each protocol that has rows, the ranking of the next links first."""
    protocols = [protocol_of(name) for name in sorted(metrics["protocol"].unique(), key=order_in_report)]
    return [table for protocol in protocols for table in printed_tables(protocol, metrics, dataset).values()]


def order_in_report(name: str) -> int:
    """Give the place of a protocol in a report: the order of PROTOCOLS, but for the prequential one, which is first."""
    return -1 if name == "prequential" else list(PROTOCOLS).index(name)


def score_table(metrics: pl.DataFrame, dataset: str) -> pl.DataFrame:
    """Give one row per method with its AUC in percent, two decimals, averaged over seeds as in `cells`.

    Columns as in TABLE_SCHEMA: `new_...` for the pairs that no earlier step linked. Our methods come first, the best
    macro on top, then the published ones as "DyFormer (paper)" and so on, without a number of seeds. A metric without a
    value is null, as is micro where only one step was evaluated, because it is the same as macro there.
    """
    rows = metrics.filter(pl.col("seed").is_not_null(), metric="auc", dataset=dataset, protocol="paper")
    table = rows.group_by("method").agg(num_seeds=pl.col("seed").n_unique().cast(pl.Int64))
    published: dict[str, dict[str, Any]] = {}
    for part, prefix in zip(PAPER.tables, ("", "new_"), strict=True):
        names = {"Micro AUC": "micro", "Macro AUC": "macro", "Macro AUC_num": "num_pairs", "difference": "difference"}
        names |= {f"Macro AUC_{end}": end for end in ("low", "high")}
        names |= {f"difference_{end}": f"difference_{end}" for end in ("low", "high")}
        part_cells = cells(part, rows.filter(slice=part.slice))
        part_cells = part_cells.select("method", *(pl.col(title).alias(prefix + name) for title, name in names.items()))
        table = table.join(part_cells, on="method", how="left")
        for method, values in part.published.get(dataset, {}).items():
            published.setdefault(method, {"method": method}).update(
                {prefix + names[title]: value for title, value in values.items()}
            )
    order: dict[str, Any] = {"by": ["macro", "method"], "descending": [True, False], "nulls_last": True}
    parts = (table.select(TABLE_SCHEMA.names()).cast(TABLE_SCHEMA), pl.DataFrame([*published.values()], TABLE_SCHEMA))
    return pl.concat([part.sort(**order) for part in parts])


def column_table(protocol: Protocol, metrics: pl.DataFrame) -> pl.DataFrame:
    """Give one row per method with the columns of a protocol's first table as numbers, the best of its main one first.

    Columns: method; num_seeds; of each column the value, `_low` and `_high`, and of one that is no difference `_num`.
    The titles are written as names: "precision@10" is precision_at_10.
    """
    table = protocol.tables[0]
    frame = cells(table, metrics.filter(pl.col("method") != "-", slice=table.slice))
    chosen = [pl.col("method", "num_seeds")]
    for column in table.columns:
        name = "_".join(re.findall("[a-z0-9]+", column.title.lower().replace("@", " at ")))
        ends = ("", "_low", "_high", "_num") if column.value == "value" else ("", "_low", "_high")
        chosen += [pl.col(column.title + end).alias(name + end) for end in ends]
    ordered = frame.sort(table.main.title, "method", descending=[True, False], nulls_last=True)
    return ordered.select(chosen)


def significance_table(metrics: pl.DataFrame) -> pl.DataFrame:
    """Give the signed-rank tests of both slices: slice, and the columns of TESTS_SCHEMA."""
    tests = [
        wilcoxon_tests(metrics, slice_name=part).select(pl.lit(part).alias("slice"), *TESTS_SCHEMA) for part in SLICES
    ]
    return pl.concat(tests)


def _printed(protocol: Protocol, table: TableOf, rows: pl.DataFrame, metrics: pl.DataFrame) -> PrintedTable | None:
    """Give one table as text; None without a row of its main metric."""
    main = rows.filter(metric=table.main.metric, family=table.main.family)
    if main.is_empty():
        return None
    dataset = main["dataset"][0]
    units, main_rows = units_of(main), cells(table, rows).filter(pl.col(table.main.title).is_not_null()).to_dicts()
    if not main_rows:  # rows of single steps alone, beside which no mean over steps stands
        return None
    published = [{"method": method, **values} for method, values in table.published.get(dataset, {}).items()]

    def order(row: dict[str, Any]) -> tuple[float, str]:
        return -row[table.main.title], row["method"]

    ordered = [*sorted(main_rows, key=order), *sorted(published, key=order)]
    ordered = ordered if table.published_below else sorted(ordered, key=order)
    columns: dict[str, list[str | None]] = {"method": [row["method"] for row in ordered]}
    for column in table.columns:
        texts = [cell_text(row, column) for row in ordered]
        if len(units) == 1 and column.single is None:
            continue
        if column.missing is not None or any(text is not None for text in texts):
            columns[column.title_of(is_single=len(units) == 1)] = texts
    together = main.filter(~OF_A_SEED)
    compared = (main if together.is_empty() else together)["best_baseline"].drop_nulls().unique()
    num_seeds = main["seed"].drop_nulls().n_unique()
    title = table.title.format(
        dataset=dataset,
        num=f"{max(row[f'{table.main.title}_num'] or 0 for row in main_rows):,}",
        number=len(units),
        where=_where(units),
        steps=f"{len(units)} step{'s' * (len(units) > 1)}",
        seeds=f"{num_seeds} seed{'s' * (num_seeds > 1)}",
        best=_compared_with(compared.to_list()),
        **table.words(protocol.chosen, metrics),
    )
    frame = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))
    name = f"{protocol.name}-{dataset}-{table.name}"
    return PrintedTable(title, frame, table.sentences(main, metrics), name)


def _compared_with(titles: Sequence[str]) -> str:
    if len(titles) > 1:
        return "; difference to the row that the experiment compares each with"
    return f"; difference to the best baseline, {titles[0]}" if titles else ""


def cell_text(row: Mapping[str, Any], column: Column) -> str | None:
    """Write one cell of `cells`: "value [low, high]"; an interval of fewer than MIN_QUERIES units says nothing."""
    value, num = row.get(column.title), row.get(f"{column.title}_num")
    if value is None:
        return column.missing
    low, high = (row.get(f"{column.title}_{end}") for end in ("low", "high"))
    between = "" if low is None or not column.interval else f" [{column.form.format(low)}, {column.form.format(high)}]"
    if between and num is not None and num < MIN_QUERIES:
        between = f" [{TOO_FEW}]"
    deviation = row.get(f"{column.title}_std")
    spread = "" if deviation is None or column.deviation is None else column.deviation.format(deviation)
    return column.form.format(value, num=num) + spread + between


def _where(units: Sequence[str]) -> str:
    if len(units) > 1:
        return f"{len(units)} steps"
    return f"step {units[0]}" if units[0].isdecimal() else units[0]
