"""The paper's values as data, against the source of the paper."""

import os
import re
from pathlib import Path

import pytest
from benchmark_modules import benchmark_module
from PIL import Image

from dyformer.experiments.studies.studies import (
    COSTS,
    ENCODINGS,
    HOPS,
    LABELS_PUBLISHED,
    LAYERS,
    LINKS,
    NEW_LINKS,
    NOISE,
    STUDIES,
    TOWERS,
)

DOCS = Path(__file__).resolve().parents[3] / "docs"
results_plots = benchmark_module("results_plots")

NUMBER = re.compile(r"(\d+\.\d+)\s*\\pm")


@pytest.fixture(scope="module")
def paper() -> str:
    data = Path(os.environ.get("DYFORMER_SHARED_DATA", Path(__file__).resolve().parents[3].parent / "shared" / "data"))
    source = data.parent / "paper" / "dyformer.tex"
    if not source.exists():
        reason = f"the source of the paper is not at {source}; set DYFORMER_SHARED_DATA to the folder beside it"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return source.read_text()


def table(paper: str, label: str) -> list[str]:
    """Give the lines of a table that are no comments."""
    start = paper.index(f"\\label{{{label}}}")
    lines = paper[start : paper.index("\\end{table}", start)].splitlines()
    return [line for line in lines if not line.lstrip().startswith("%")]


def pairs_of_rows(paper: str, label: str) -> dict[str, list[tuple[float, float]]]:
    """Read Micro and Macro of each column, by the title of two rows."""
    found: dict[str, list[tuple[float, float]]] = {}
    joined = re.sub(r"(\\multirow[^&\n]*)\n", r"\1", "\n".join(table(paper, label)))
    rows = [line for line in joined.splitlines() if NUMBER.search(line)]
    for micro, macro in zip(rows[::2], rows[1::2], strict=True):
        title = micro.partition("&")[0] if "multirow" in micro.partition("&")[0] else ""
        name = re.sub(r"\\multirow\{\d\}\{\*\}|\\textsc|\\textbf|[{}$]", "", title).strip()
        name = re.sub(r"\\oure?", "DyFormer", name)
        values = [[float(value) for value in NUMBER.findall(line)] for line in (micro, macro)]
        found[name.replace("Node2Vec", "node2vec")] = list(zip(*values, strict=True))
    return found


@pytest.mark.parametrize(
    ("label", "ours", "datasets"),
    [
        ("table:single_step_link_prediction", LINKS, ("rds", "uci", "yelp", "ml-10m")),
        ("table:single_step_link_prediction_new_edge", NEW_LINKS, ("rds", "uci", "yelp", "ml-10m")),
        ("table:compare_positional_encoding", ENCODINGS, ("uci", "yelp", "ml-10m")),
        ("table:single_two_tower", TOWERS, ("uci", "yelp", "ml-10m")),
        ("table:compare_k_hop_vs_full_attention", HOPS, ("uci", "yelp", "ml-10m")),
        ("table:number_of_layers", LAYERS, ("uci", "yelp", "ml-10m")),
    ],
)
def test_a_table_of_auc_is_that_of_the_paper(paper: str, label: str, ours, datasets: tuple[str, ...]):
    theirs = pairs_of_rows(paper, label)
    assert set(theirs) == {row for rows in ours.values() for row in rows}
    for number, dataset in enumerate(datasets):
        assert ours[dataset] == {row: values[number] for row, values in theirs.items()}


def test_the_table_of_noise_is_that_of_the_paper(paper: str):
    numbers = [
        [float(value) for value in NUMBER.findall(line)] for line in table(paper, "eq:noisy_input") if "pm" in line
    ]
    rows = [numbers[number : number + 2] for number in range(0, len(numbers), 2)]
    for dataset, (one_hop, full) in zip(("uci", "yelp"), (rows[:2], rows[2:]), strict=True):
        for title, (micro, macro) in (("1-hop attention", one_hop), ("Full attention", full)):
            for noise, *values in zip(("10%", "20%", "50%"), micro, macro, strict=True):
                assert NOISE[dataset][f"{title}, {noise}"] == tuple(values)


def test_the_table_of_costs_is_that_of_the_paper(paper: str):
    cells = r"(\d+\.?\d*)\$GB\s*& *\$(\d+\.\d+)\$s/\$(\d+\.\d+)\$s *\(\$(\d+)\$ epochs\)"
    rows = [found.groups() for line in table(paper, "table:memory_time") if (found := re.search(cells, line))]
    ours = [tuple(cost) for dataset in ("ml-10m", "yelp") for cost in COSTS[dataset].values()]
    assert [tuple(map(float, row)) for row in rows] == ours


def test_the_table_of_labels_is_that_of_the_paper(paper: str):
    numbers = [[float(value) for value in NUMBER.findall(line)] for line in table(paper, "table:node_cls")]
    rows = [values for values in numbers if values]
    for number, dataset in enumerate(("snap-wikipedia", "snap-reddit")):
        theirs = [(micro[number], macro[number]) for micro, macro in zip(rows[::2], rows[1::2], strict=True)]
        assert list(LABELS_PUBLISHED[dataset].values()) == theirs


def test_the_page_of_results_has_the_values_of_the_paper_and_the_differences_to_them():
    tables = list(results_plots.results_tables(results_plots.pages()))
    num_cells = 0
    for experiment, dataset, part, _, rows in tables:
        theirs = STUDIES[experiment].paper_values(part, dataset)
        for row in rows:
            if row["method"].endswith(", 2 layers"):  # the whole model, by its title of then
                continue
            for name, value in zip(("Micro AUC", "Macro AUC"), theirs.get(row["method"], ("", "")), strict=True):
                assert row[f"{name}, paper"] == (value and f"{value:.2f}"), (experiment, dataset, part, row["method"])
                num_cells += value != ""
                if value:
                    title = next(title for title in row if title.startswith(name))
                    difference = float(row[title].split()[0]) - value
                    assert abs(difference - float(row[f"{name}, difference"])) < 0.011, (dataset, part, row["method"])
    assert len(tables) > 12
    assert num_cells > 180


def test_the_plots_of_the_page_of_results_show_its_tables():
    page = results_plots.pages()
    tables = results_plots.drawn_tables(page)
    assert set(tables) == {path.name for path in (DOCS / "plots").iterdir()}
    assert set(tables) == set(re.findall(r"!\[[^\]]+\]\(\.\./plots/([^)]+)\)", page))
    for name, table in tables.items():
        with Image.open(DOCS / "plots" / name) as picture:
            assert picture.info["Description"] == results_plots.description(table)
        if table.experiment == results_plots.BY_STEP:
            values = results_plots.as_step_metrics(table)["value"]
            assert len(values) == 11 * len(table.rows)
            assert values.is_between(0.6, 1).all()
            continue
        metrics = results_plots.as_metrics(table)
        assert (metrics["low"] < metrics["value"]).all()
        assert (metrics["value"] < metrics["high"]).all()
        assert metrics["value"].is_between(0.8, 1).all()


def test_what_agrees_with_the_paper_has_the_numbers_of_the_page_that_it_names():
    section = (DOCS / "results.md").read_text().split("## What agrees with the paper\n")[1].split("\n## ")[0]
    rows = [row.strip("|").split("|") for row in section.splitlines() if row.startswith("| ")][1:]
    assert len(rows) > 15
    for table, _, ours, theirs, verdict in rows:
        page = re.search(r"\((results/[^#]+\.md)#", verdict)
        assert page is not None, table
        here, there = (set(re.findall(r"\d+\.\d+", text)) for text in (ours + theirs, (DOCS / page[1]).read_text()))
        assert here <= there, table
