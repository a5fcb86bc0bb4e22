"""Tables of a study: means and deviations by hand, and the paper's values from the row beside."""

import csv
import io

import numpy as np
import polars as pl
import pytest

from dyformer.evaluation.rows import METRICS_SCHEMA
from dyformer.experiments.settings import Experiment
from dyformer.experiments.studies.studies import STUDIES, Study
from dyformer.experiments.studies.study_tables import Setup, StudyTable, study_tables

STUDY = Study(
    sentence="",
    rows={"L3": None, "DyFormer": "DyFormer"},
    datasets=("uci",),
    paper={"all": {"uci": {"DyFormer": (87.91, 88.49)}}},
)
ABOUT = {"dataset": "uci", "protocol": "paper", "slice": "all", "metric": "auc", "family": "random"}
VALUES = {("L3", 0): 0.70, ("L3", 1): 0.74, ("DyFormer", 0): 0.90, ("DyFormer", 1): 0.88}


def metrics(values: dict[tuple[str, int], float]) -> pl.DataFrame:
    """Give the same value for two steps, micro and macro, so that only the mean over seeds is left to compute."""
    rows = [
        {**ABOUT, "method": method, "seed": seed, "step": step, "value": own}
        for (method, seed), value in values.items()
        for step, own in (("3", 0.1), ("7", 0.2), ("micro", value - 0.01), ("macro", value))
    ]
    other = {**rows[-1], "metric": "average_precision", "value": 0.0}
    log = {**rows[-1], "seed": None, "method": "-"}
    return framed([*rows, other, {**rows[-1], "dataset": "yelp", "value": 0.0}, log])


def framed(rows: list[dict]) -> pl.DataFrame:
    """Give rows all columns of metrics, null where they have none."""
    return pl.DataFrame([dict.fromkeys(METRICS_SCHEMA) | row for row in rows], METRICS_SCHEMA)


@pytest.fixture
def table() -> StudyTable:
    (made,) = study_tables("links", STUDY, metrics(VALUES), "uci", Setup(changes="finetune.epochs=3"))
    return made


def test_mean_deviation_and_difference_are_those_by_hand(table: StudyTable):
    assert table.name == "links-uci-all"
    first, second = table.frame.to_dicts()
    assert first["Macro AUC"] == pytest.approx(72)
    assert first["Macro AUC_std"] == pytest.approx(2 * 2**0.5)  # sqrt(((70 - 72)^2 + (74 - 72)^2) / 1)
    assert first["Macro AUC_paper"] is first["Macro AUC_minus_paper"] is None
    assert second["Micro AUC"] == pytest.approx(88)
    assert second["Micro AUC_paper"] == 87.91
    assert second["Macro AUC_paper"] == 88.49
    assert second["Macro AUC_minus_paper"] == pytest.approx(89 - 88.49)
    assert [row["num_seeds"] for row in (first, second)] == [2, 2]


def test_the_title_has_steps_seeds_and_the_cap_on_epochs(table: StudyTable):
    for part in ("uci", "2 steps from 3 to 7", "2 seeds", "finetune.epochs=3"):
        assert part in table.title
    assert "no cap on epochs; " in table.title
    (capped,) = study_tables("links", STUDY, metrics(VALUES), "uci", Setup(experiment=Experiment(max_epochs=5)))
    assert "cap on epochs of every trained method: 5" in capped.title
    assert "none" in capped.title.rpartition(":")[2]


def test_one_seed_has_no_deviation_and_a_missing_method_no_value():
    (made,) = study_tables("links", STUDY, metrics({("L3", 0): 0.7}), "uci", Setup())
    first, second = made.frame.to_dicts()
    assert first["Macro AUC_std"] is None
    assert second["Macro AUC"] is None
    assert second["num_seeds"] == 0
    cells = made.text().to_dicts()
    assert cells[0]["Macro AUC"] == "70.00"
    assert cells[1]["Macro AUC"] == ""
    assert cells[1]["Macro AUC, paper"] == "88.49"


def test_files_have_the_same_cells_and_the_csv_the_numbers(table: StudyTable):
    files = table.files()
    assert set(files) == {f"links-uci-all.{ending}" for ending in ("md", "csv", "tex")}
    assert "| DyFormer | 2 | 88.00 ± 1.41 | 87.91 | +0.09 | 89.00 ± 1.41 | 88.49 | +0.51 |" in files["links-uci-all.md"]
    assert r"DyFormer & 2 & 88.00 $\pm$ 1.41 & 87.91 & +0.09 &" in files["links-uci-all.tex"]
    assert files["links-uci-all.tex"].count(r"\\") == 3
    assert r"\label{tab:links-uci-all}" in files["links-uci-all.tex"]
    (caption,) = [line for line in files["links-uci-all.tex"].splitlines() if line.startswith(r"\caption")]
    assert "finetune.epochs" not in caption  # which stands in the note below the table
    rows = list(csv.DictReader(io.StringIO(files["links-uci-all.csv"])))
    assert float(rows[1]["Macro AUC"]) == pytest.approx(89)
    assert [(row["dataset"], row["part"], row["steps"], row["max_epochs"]) for row in rows] == 2 * [
        ("uci", "all", "3-7", "")
    ]


def test_values_have_their_intervals_and_the_caption_the_number_of_pairs():
    rows = metrics(VALUES).with_columns(
        low=pl.col("value") - 0.02, high=pl.col("value") + 0.03, num_pairs=pl.lit(1234, pl.Int64)
    )
    (made,) = study_tables("links", STUDY, rows, "uci", Setup())
    assert made.text().to_dicts()[1]["Macro AUC"] == "89.00 ± 1.41 [87.00, 92.00]"
    assert "; 1,234 test pairs; " in made.title
    assert made.frame["num_pairs"].to_list() == [1234, 1234]


def test_one_step_has_one_value_and_one_seed_no_deviation():
    rows = metrics({("L3", 0): 0.7}).filter(pl.col("step") != "3")
    (made,) = study_tables("links", STUDY, rows, "uci", Setup())
    assert "Micro AUC" not in made.text().columns
    assert made.text()["Macro AUC"].to_list() == ["70.00", ""]
    assert "1 seed, step 7; " in made.title
    assert "deviation" not in made.title


def test_every_row_of_the_paper_that_a_study_names_exists():
    for study in STUDIES.values():
        for rows in (rows for part, rows in study.paper.items() if part != "cost"):  # of which the paper has four
            for dataset, values in rows.items():
                if dataset in study.datasets:
                    assert {row for row in study.rows.values() if row is not None} <= set(values)


def test_tables_of_labels_have_intervals_the_number_of_positive_users_and_the_gain_over_the_best_count():
    study = Study(
        sentence="",
        rows={"Count": None, "DySAT": "DySAT"},
        datasets=("uci",),
        protocols=("labels", "labels-published"),
        paper={"published": {"uci": {"DySAT": (94.69, 94.74)}}},
    )
    gain = {"difference": -0.02, "difference_low": -0.05, "difference_high": 0.01, "best_baseline": "Count"}
    rows = [
        {
            **ABOUT,
            "protocol": protocol,
            "family": protocol,
            "metric": metric,
            "method": method,
            "seed": 0,
            "step": step,
            "value": value,
        }
        | {"low": value - 0.1, "high": value + 0.1}
        | (gain if method == "DySAT" else {"best_baseline": "Count"})
        for protocol in ("labels", "labels-published")
        for metric in ("auc", "average_precision")
        for method, value in (("Count", 0.72), ("DySAT", 0.70))
        for step in ("4", "5", "micro", "macro")
    ]
    log = {**ABOUT, "protocol": "labels", "method": "-", "step": "micro", "metric": "positives"}
    log |= {"value": 7.0, "num_pairs": 1234}
    made = {table.name: table for table in study_tables("labels", study, framed([*rows, log]), "uci", Setup())}
    assert list(made) == ["labels-uci-auc", "labels-uci-precision", "labels-uci-published"]
    auc = made["labels-uci-auc"]
    assert "7 of 1,234 scored users are positive; best count: Count" in auc.title
    assert auc.text().rows() == [
        ("Count", "1", "72.00 [62.00, 82.00]", "72.00 [62.00, 82.00]", ""),
        ("DySAT", "1", "70.00 [60.00, 80.00]", "70.00 [60.00, 80.00]", "-2.00 [-5.00, +1.00]"),
    ]
    assert made["labels-uci-precision"].values == ("Micro AP", "Macro AP")
    published = made["labels-uci-published"].text().to_dicts()[1]
    assert published["Macro AUC, paper"] == "94.74"
    assert published["Macro AUC, difference"] == "-24.74"
    assert "no forecast" in made["labels-uci-published"].title


def test_values_of_other_windows_or_steps_do_not_stand_beside_the_papers():
    setup = Setup(window="2d", is_papers=False)
    (made,) = study_tables("links", STUDY, metrics(VALUES), "uci", setup)
    assert made.frame["Macro AUC_paper"].is_null().all()
    assert "Macro AUC, paper" not in made.text().columns
    assert "without the paper's values, which are of other windows, steps or settings" in made.title
    assert "windows: 2d; " in made.title
    (usual,) = study_tables("links", STUDY, metrics(VALUES), "uci", Setup())
    assert "without the paper's values" not in usual.title


def test_the_same_scores_give_the_same_bytes():
    values = {("DyFormer", seed): value for seed, value in enumerate(np.random.default_rng(0).random(9))}
    rows = metrics(values)
    files = {
        study_tables("links", STUDY, rows.sample(fraction=1.0, shuffle=True, seed=seed), "uci", Setup())[0].files()[
            "links-uci-all.csv"
        ]
        for seed in range(50)
    }
    assert len(files) == 1


def test_the_title_has_the_epochs_of_dyformer():
    experiment = Experiment().changed({"pretrain.epochs": 7, "finetune.epochs": 9, "max_epochs": 8})
    (made,) = study_tables("links", STUDY, metrics(VALUES), "uci", Setup(experiment=experiment))
    num = experiment.finetune.batches_per_epoch
    assert f"DyFormer: at most 7 x {num} batches of pre-training and 8 x {num} batches of fine-tuning" in made.title
    (none,) = study_tables("links", STUDY, metrics(VALUES), "uci", Setup(experiment=Experiment(pretrain=None)))
    assert "pre-training" not in none.title


def test_the_forecaster_has_its_gain_over_the_one_without_vectors():
    first, second = "Forecaster without vectors", "Forecaster with DyFormer"
    study = Study(
        sentence="",
        rows=dict.fromkeys([first, second]),
        datasets=(),
        protocols=("prequential",),
        paper={},
        compared={second: first},
    )
    about = {"dataset": "uci", "protocol": "prequential", "slice": "known", "metric": "mrr", "family": "mixed"}
    about |= {"seed": 0, "low": 0.3, "high": 0.5}
    rows = [
        {**about, "method": first, "step": "macro", "value": 0.4},
        {**about, "method": second, "step": "macro", "value": 0.45}
        | {"difference": 0.05, "difference_low": -0.01, "difference_high": 0.11},
        {**about, "method": first, "step": "5", "value": 0.4},
    ]
    (made,) = study_tables("forecaster", study, framed(rows), "uci", Setup())
    one, other = made.text().to_dicts()
    assert one["difference to Forecaster without vectors"] == ""
    assert other["difference to Forecaster without vectors"] == "+0.050 [-0.010, +0.110]"
    assert other["MRR"] == "0.450 [0.300, 0.500]"


def test_rows_that_are_compared_with_different_ones_name_them():
    compared = {"Whole": "Whole", "Part": "Whole", "Part, noise": "Part"}
    study = Study(sentence="", rows=dict.fromkeys([*compared, "Alone"]), datasets=(), paper={}, compared=compared)
    gain = {"difference": -0.02, "difference_low": -0.05, "difference_high": 0.01}
    about = {**ABOUT, "seed": 0, "step": "macro", "value": 0.9}
    rows = [{**about, "method": method} | (gain if "Part" in method else {}) for method in study.rows]
    (made,) = study_tables("parts", study, framed([*rows, {**rows[0], "step": "5"}]), "uci", Setup())
    cells = [(row["difference to a row"], row["that row"]) for row in made.text().to_dicts()]
    assert cells == [("", ""), ("-2.00 [-5.00, +1.00]", "Whole"), ("-2.00 [-5.00, +1.00]", "Part"), ("", "")]


def test_each_part_of_dyformer_is_compared_with_the_model_that_has_one_part_more():
    assert STUDIES["encodings"].compared["DyFormer, no encoding"] == "DyFormer"
    assert STUDIES["encodings"].compared["Published DyFormer, no encoding"] == "DyFormer (as published)"
    assert STUDIES["noise"].compared["DyFormer, 1 hop, 10 % noise"] == "DyFormer, 1 hop"
    assert STUDIES["noise"].compared["Published DyFormer, 1 hop"] == "Published DyFormer, one tower"
    for study in STUDIES.values():
        assert {*study.compared, *study.compared.values()} <= set(study.rows)
