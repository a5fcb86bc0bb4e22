import polars as pl
import pytest

from dyformer.evaluation.scored_pairs import METRICS_SCHEMA
from dyformer.experiments.tables import PAPER_METRICS, TABLE_SCHEMA, score_table


def metrics(*rows: tuple[str, int, str, str, float], dataset: str = "uci") -> pl.DataFrame:
    full = [
        (dataset, "paper", method, seed, step, "auc", "random", part, value) for method, seed, step, part, value in rows
    ]
    return pl.DataFrame(full, schema=METRICS_SCHEMA, orient="row")


def test_table_averages_seeds_in_percent_and_puts_the_best_first():
    table = score_table(
        metrics(
            ("L3", 0, "micro", "all", 0.9031),
            ("L3", 0, "macro", "all", 0.9192),
            ("DyFormer", 0, "micro", "all", 0.90),
            ("DyFormer", 1, "micro", "all", 0.91),
            ("DyFormer", 0, "macro", "all", 0.93),
            ("DyFormer", 1, "macro", "all", 0.94),
            ("DyFormer", 0, "macro", "new", 0.87654),
            ("DyFormer", 1, "macro", "new", 0.87654),
            ("DyFormer", 0, "7", "all", 0.2),
            dataset="mine",
        ),
        "mine",
    )
    assert table.schema == TABLE_SCHEMA
    assert table.rows() == [("DyFormer", 90.5, 93.5, None, 87.65, 2), ("L3", 90.31, 91.92, None, None, 1)]


def test_the_table_holds_only_the_auc_of_the_paper_protocol_and_of_the_dataset():
    row = metrics(("L3", 0, "macro", "all", 0.9))
    others = [
        row.with_columns(metric=pl.lit("average_precision"), value=pl.lit(0.1)),
        row.with_columns(protocol=pl.lit("prequential"), value=pl.lit(0.1)),
        row.with_columns(dataset=pl.lit("other"), value=pl.lit(0.1)),
    ]
    table = score_table(pl.concat([row, *others]), "uci")
    assert table["macro"][0] == 90.0
    assert table["method"].str.ends_with("(paper)").sum() == len(table) - 1


def test_published_metrics_follow_ours_best_first_and_are_marked():
    table = score_table(metrics(("L3", 0, "macro", "all", 0.1)), "uci")
    assert table["method"].to_list()[:3] == ["L3", "DyFormer (paper)", "DySAT (paper)"]
    assert table.row(1) == ("DyFormer (paper)", 87.91, 88.49, 85.78, 86.21, None)
    assert len(table) == 1 + len(PAPER_METRICS["uci"])


def test_an_unknown_dataset_and_no_metrics_give_a_table():
    assert score_table(metrics(("L3", 0, "macro", "all", 0.1), dataset="mine"), "mine")["method"].to_list() == ["L3"]
    assert score_table(pl.DataFrame(schema=METRICS_SCHEMA), "mine").schema == TABLE_SCHEMA


@pytest.mark.parametrize("dataset", ["rds", "uci", "yelp", "ml-10m"])
def test_the_paper_compares_seven_methods_and_its_own_is_best(dataset: str):
    published = PAPER_METRICS[dataset]
    assert len(published) == 7
    assert all(published["DyFormer"][column] == max(row[column] for row in published.values()) for column in range(4))
