"""Metrics of a benchmark -> the table that is printed, with the published metrics below ours."""

import polars as pl

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

TABLE_SCHEMA = pl.Schema(
    {
        "method": pl.String(),
        "micro": pl.Float64(),
        "macro": pl.Float64(),
        "new_micro": pl.Float64(),
        "new_macro": pl.Float64(),
        "num_seeds": pl.Int64(),
    }
)


def score_table(metrics: pl.DataFrame, dataset: str) -> pl.DataFrame:
    """Give one row per method with its AUC in percent, two decimals, averaged over seeds.

    Columns as in TABLE_SCHEMA. Our methods come first, the best macro on top, then the published ones as
    "DyFormer (paper)" and so on, without a number of seeds. A metric without a value is null.
    """
    wanted = pl.col("step").is_in(["micro", "macro"]) & (pl.col("metric") == "auc") & (pl.col("dataset") == dataset)
    column = pl.when(pl.col("slice") == "new").then("new_" + pl.col("step")).otherwise(pl.col("step"))
    evaluated = metrics.filter(wanted & (pl.col("protocol") == "paper")).with_columns(column=column)
    names = [name for name in TABLE_SCHEMA.names() if name not in ("method", "num_seeds")]
    table = evaluated.group_by("method").agg(
        *((100 * pl.col("value").filter(pl.col("column") == name).mean()).round(2).alias(name) for name in names),
        num_seeds=pl.col("seed").n_unique().cast(pl.Int64),
    )
    order = {"by": ["macro", "method"], "descending": [True, False], "nulls_last": True}
    return pl.concat([table.cast(TABLE_SCHEMA).sort(**order), _published(dataset).sort(**order)])


def _published(dataset: str) -> pl.DataFrame:
    rows = [(f"{method} (paper)", *values, None) for method, values in PAPER_METRICS.get(dataset, {}).items()]
    return pl.DataFrame(rows, schema=TABLE_SCHEMA, orient="row")
