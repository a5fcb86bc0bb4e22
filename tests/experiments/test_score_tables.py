import json
import re
from html import escape

import polars as pl
import pytest
from markdown_it import MarkdownIt

from dyformer.evaluation.protocols.paper import PAPER_METRICS, PROTOCOL, significance
from dyformer.evaluation.protocols.protocol import Column
from dyformer.evaluation.rows import METRICS_SCHEMA
from dyformer.experiments.printed import PrintedTable, from_record, markdown_rows
from dyformer.experiments.tables import (
    TABLE_SCHEMA,
    cell_text,
    printed_tables,
    score_table,
    significance_table,
)


def metrics(*rows: tuple[str, int, str, str, float], dataset: str = "uci", **others) -> pl.DataFrame:
    full = [
        (dataset, "paper", method, seed, step, "auc", "random", part, value) for method, seed, step, part, value in rows
    ]
    names = METRICS_SCHEMA.names()[:9]
    frame = pl.DataFrame(full, schema=pl.Schema({name: METRICS_SCHEMA[name] for name in names}), orient="row")
    frame = frame.with_columns(num_pairs=100, low=pl.col("value") - 0.02, high=pl.col("value") + 0.01)
    frame = frame.with_columns(**others).with_columns(is_baseline=pl.col("method") == "L3")
    return pl.concat([pl.DataFrame(schema=METRICS_SCHEMA), frame], how="diagonal_relaxed")


TWO_STEPS = [("DyFormer", 0, step, "all", 0.2) for step in ("7", "8")]


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
            *TWO_STEPS,
            dataset="mine",
        ),
        "mine",
    )
    assert table.schema == TABLE_SCHEMA
    names = ["method", "micro", "macro", "new_micro", "new_macro", "num_seeds"]
    assert table.select(names).rows() == [
        ("DyFormer", 90.5, 93.5, None, 87.65, 2),
        ("L3", 90.31, 91.92, None, None, 1),
    ]
    assert table.select("low", "high", "num_pairs", "new_low").rows() == [
        (91.5, 94.5, 100, 85.65),
        (89.92, 92.92, 100, None),
    ]


def test_a_printed_table_is_markdown_and_latex_also_after_it_was_stored():
    rows = [("A_B & C", 0, step, "all", 0.9) for step in ("7", "8", "micro", "macro")]
    [table] = printed_tables(PROTOCOL, metrics(*rows, dataset="mine"), "mine").values()
    table = table._replace(sentences=["first & last.", "5 % more"])
    assert from_record(json.loads(json.dumps(table.record()))).files() == table.files()
    markdown, latex = (table.files()[f"paper-mine-all.{ending}"] for ending in ("md", "tex"))
    assert markdown.startswith(f"{table.title}.\n\n| method | ")
    assert markdown.endswith("\n\nfirst & last.\n\n5 % more.\n")
    assert r"A\_B \& C & 90.00" in latex
    assert r"\par\footnotesize first \& last; 5 \% more." in latex
    assert latex.count("{table}") == 2


def test_marks_in_names_are_escaped_in_markdown_and_latex():
    names = ["a|b", "a\\|b", "two\nlines", r"\x{y}", "a~b^2", "1 ± 2 $", "p < 0.05 > q"]
    table = PrintedTable("A|B", pl.DataFrame({"method|": names, "AUC": ["1"] * 7}), [])
    markdown, latex = table.files().values()
    lines = markdown.splitlines()[2:]
    assert lines[:2] == [r"| method\| | AUC |", "| --- | --- |"]
    cells = [r"a\|b", r"a\\\|b", "two lines", r"\\x{y}", r"a\~b^2", "1 ± 2 $", r"p \< 0.05 > q"]
    assert lines[2:] == [f"| {cell} | 1 |" for cell in cells]
    expected = [
        r"a\textbar{}b",
        r"a\textbackslash{}\textbar{}b",
        "two\nlines",
        r"\textbackslash{}x\{y\}",
        r"a\textasciitilde{}b\textasciicircum{}2",
        r"1 $\pm$ 2 \$",
        r"p \textless{} 0.05 \textgreater{} q",
    ]
    assert all(rf"{cell} & 1 \\" in latex for cell in expected)


def test_a_reader_of_a_markdown_table_has_the_names_as_they_are():
    """Ids come from logs: `<alice>` would be taken for HTML, and the marks of `__init__` would be left out."""
    names = ["<alice>", "Bob <bob@x.org>", "__init__", "_a", "*a*", "`a`", "[a](b)", "![a](b)", "&lt;", "a & b"]
    names += ["~~a~~", "a_b_c", "[0.5, 0.9]", "<!-- a -->", r"\*", "$a$", "a\\", "#a", "- a", "1. a", "> a", "---"]
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    page = reader.render("\n".join(markdown_rows(pl.DataFrame({"name": names}))))
    assert re.findall("<td>(.*)</td>", page) == [escape(name) for name in names]


def test_a_plain_name_is_in_markdown_as_it_is():
    names = ["precision_at_10", "num_pairs", "0.9 [0.8, 1.0]", "a-b (c)", "R&D", "a > b", "+0.5"]
    assert [row[2:-2] for row in markdown_rows(pl.DataFrame({"name": names}))[2:]] == names


def test_on_one_step_there_is_no_micro_beside_macro():
    rows = [("L3", 0, step, "all", 0.9) for step in ("7", "micro", "macro")]
    assert score_table(metrics(*rows, dataset="mine"), "mine").select("micro", "macro").rows() == [(None, 90.0)]
    (printed,) = printed_tables(PROTOCOL, metrics(*rows, dataset="mine"), "mine").values()
    assert printed.frame.columns == ["method", "AUC"]
    assert "100 test pairs, step 7, 1 seed" in printed.title


def test_printed_tables_have_intervals_pairs_and_the_difference_to_the_best_baseline():
    rows = metrics(
        *(
            (method, 0, step, part, 0.9)
            for method in ("L3", "DyFormer")
            for step in ("7", "8", "micro", "macro")
            for part in ("all", "new")
        ),
        dataset="mine",
        best_baseline=pl.lit("L3"),
        difference=pl.when(pl.col("method") == "DyFormer").then(0.0123),
        difference_low=pl.when(pl.col("method") == "DyFormer").then(-0.001),
        difference_high=pl.when(pl.col("method") == "DyFormer").then(0.02),
    )
    every, new = printed_tables(PROTOCOL, rows, "mine").values()
    assert every.frame.columns == ["method", "Micro AUC", "Macro AUC", "difference"]
    assert every.frame.rows() == [
        ("DyFormer", "90.00", "90.00 [88.00, 91.00]", "+1.23 [-0.10, +2.00]"),
        ("L3", "90.00", "90.00 [88.00, 91.00]", None),
    ]
    assert every.title.endswith("100 test pairs, 2 steps, 1 seed; difference to the best baseline, L3")
    assert "100 test pairs that no earlier step linked" in new.title
    assert every.sentences == new.sentences == []  # two steps are too few for a test
    several = rows.with_columns(
        best_baseline=pl.when(pl.col("method") == "L3").then(pl.lit("DyFormer")).otherwise(pl.lit("L3"))
    )
    titles = [printed.title for printed in printed_tables(PROTOCOL, several, "mine").values()]
    assert titles[0].endswith("1 seed; difference to the row that the experiment compares each with")
    assert "best baseline" not in "".join(titles)


def test_a_known_log_has_the_published_metrics_below_without_intervals():
    rows = metrics(*(("L3", 0, step, "all", 0.9) for step in ("7", "8", "micro", "macro")))
    (printed,) = printed_tables(PROTOCOL, rows, "uci").values()
    assert printed.frame.row(1) == ("DyFormer (paper)", "87.91", "88.49")
    assert printed.frame.row(0) == ("L3", "90.00", "90.00 [88.00, 91.00]")


def test_a_sentence_a_method_counts_the_baselines_that_it_is_significantly_above_and_names_the_best():
    steps = [str(step) for step in range(3, 14)]
    values = {"ours": 0.9, "L3": 0.8}
    rows = metrics(
        *(
            (method, 0, step, "all", value + int(step) / 1000 * value)
            for method, value in values.items()
            for step in steps
        ),
        best_baseline=pl.lit("L3"),
    )
    title, sentence = significance(rows)
    assert title == "Signed-rank tests over steps and seeds, p < 0.05 after Holm's correction:"
    assert sentence == "ours: above 1 of 1 baselines, below 0; above L3 in 11 of 11 (p = 0.00098)"
    tests = significance_table(rows)
    numbers = ["num_differences", "num_above", "num_below", "is_above", "p", "p_holm"]
    assert tests.columns == ["slice", "method", "baseline", *numbers]
    assert tests.select("slice", "method", "num_above").rows() == [("all", "ours", 11)]


@pytest.mark.parametrize(("sign", "above_below"), [(1, (1, 0)), (-1, (0, 1))])
def test_a_test_has_the_side_of_its_ranks_and_not_that_of_most_steps(sign: int, above_below: tuple[int, int]):
    """In fewer steps, but far above: the sentence had the other side."""
    differences = [0.1 + number / 1000 for number in range(14)] + [-number / 10_000 for number in range(1, 17)]
    rows = metrics(
        *(
            (method, 0, str(step), "all", 0.5 + sign * difference * (method == "ours"))
            for step, difference in enumerate(differences, start=3)
            for method in ("ours", "L3")
        ),
        best_baseline=pl.lit("L3"),
    )
    _, sentence = significance(rows)
    num_above = 14 if sign > 0 else 16
    expected = "ours: above {} of 1 baselines, below {}; above L3 in {} of 30 (p = 0.047)"
    assert sentence == expected.format(*above_below, num_above)


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
    names = ["method", "micro", "macro", "new_micro", "new_macro", "num_seeds", "low", "num_pairs"]
    assert table.select(names).row(1) == ("DyFormer (paper)", 87.91, 88.49, 85.78, 86.21, None, None, None)
    assert len(table) == 1 + len(PAPER_METRICS["uci"])


def test_an_unknown_dataset_and_no_metrics_give_a_table():
    assert score_table(metrics(("L3", 0, "macro", "all", 0.1), dataset="mine"), "mine")["method"].to_list() == ["L3"]
    assert score_table(pl.DataFrame(schema=METRICS_SCHEMA), "mine").schema == TABLE_SCHEMA


@pytest.mark.parametrize("dataset", ["rds", "uci", "yelp", "ml-10m"])
def test_the_paper_compares_seven_methods_and_its_own_is_best(dataset: str):
    published = PAPER_METRICS[dataset]
    assert len(published) == 7
    assert all(published["DyFormer"][column] == max(row[column] for row in published.values()) for column in range(4))


@pytest.mark.parametrize(
    ("num", "text"), [(2, "1.000 [too few to say]"), (19, "1.000 [too few to say]"), (20, "1.000 [0.900, 1.000]")]
)
def test_an_interval_of_few_queries_is_not_printed(num: int, text: str):
    row = {"MRR": 1.0, "MRR_num": num, "MRR_low": 0.9, "MRR_high": 1.0}
    assert cell_text(row, Column(title="MRR", metric="mrr", family="typed")) == text
