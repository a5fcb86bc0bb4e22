import polars as pl

from dyformer.evaluation.protocols import protocol_of
from dyformer.evaluation.rows import METRICS_SCHEMA
from dyformer.experiments.printed import PrintedTable
from dyformer.experiments.tables import cells, printed_tables


def row(method: str, metric: str, family: str, step: str, value: float, **more: object) -> dict:
    about = {"dataset": "uci", "protocol": "prequential", "method": method, "seed": 0, "step": step, "metric": metric}
    numbers = {"value": value, "low": value - 0.1, "high": value + 0.1, "num_pairs": 1234}
    return {**about, "family": family, "slice": "known", **numbers, **more}


def printed_table(protocol: str, rows: pl.DataFrame) -> PrintedTable:
    """Give the only table of a protocol."""
    (printed,) = printed_tables(protocol_of(protocol), rows, "uci").values()
    return printed


def metrics() -> pl.DataFrame:
    rows = []
    for method, value, is_baseline in (("Ours", 0.3, False), ("L3", 0.25, True), ("Recency", 0.2, True)):
        beside = {"is_baseline": is_baseline, "best_baseline": "L3"}
        if method != "L3":
            difference = value - 0.25
            ends = {"difference_low": difference - 0.01, "difference_high": difference + 0.01}
            beside |= {"difference": difference, **ends}
        for step in ("4", "5", "macro"):
            rows.append(row(method, "mrr", "mixed", step, value, **beside))
            rows += [row(method, "auc", family, step, value + 0.5) for family in ("random", "active", "typed")]
            rows.append(row(method, "precision_at_10", "published", step, value + 0.2))
            rows.append(row(method, "mrr", "mixed", step, 0.9, slice="repeat"))  # another slice is not in the table
    log = {"seed": None, "low": None, "high": None, "slice": "all"}
    rows += [row("-", name, "-", "micro", value, **log) for name, value in (("coverage", 0.7), ("repeat_rate", 0.4))]
    return pl.DataFrame(rows, schema=METRICS_SCHEMA)


def test_table_has_the_mean_over_steps_of_the_known_queries():
    rows = metrics().filter(pl.col("seed").is_not_null(), slice="known")
    table = cells(protocol_of("prequential").tables[0], rows).sort("MRR", descending=True)
    assert table["method"].to_list() == ["Ours", "L3", "Recency"]
    assert table["MRR"].to_list() == [0.3, 0.25, 0.2]
    assert table["AUC active"].to_list() == [0.8, 0.75, 0.7]
    assert table["precision@10"].to_list() == [0.5, 0.45, 0.4]
    assert table["MRR_num"].unique().to_list() == [1234]


def test_printed_table_states_intervals_the_best_baseline_and_the_difference_to_it():
    printed = printed_table("prequential", metrics())
    assert printed.title == ("uci, prequential protocol: mean over 2 steps [95 % interval]; 1,234 queries, 1 seed")
    assert printed.frame["MRR"].to_list()[0] == "0.300 [0.200, 0.400]"
    assert printed.frame["MRR difference"].to_list() == ["+0.050 [+0.040, +0.060]", "", "-0.050 [-0.060, -0.040]"]
    best = "The best baseline in MRR is L3 (0.250); Ours is 0.050 (20 %) above it"
    interval = "95 % interval of the difference +0.040 to +0.060"
    covered = (
        "70 % of the links can be ranked, because both ends are known before; 40 % of these repeat an earlier link."
    )
    assert printed.sentences == [f"{best}, {interval}.", covered]


def test_a_family_of_negatives_that_a_small_log_has_no_pair_of_has_no_column():
    printed = printed_table("prequential", metrics().filter(pl.col("family") != "random"))
    assert printed.frame.columns == ["method", "MRR", "precision@10", "AUC active", "MRR difference"]


def test_baselines_alone_have_no_difference_to_state():
    printed = printed_table("prequential", metrics().filter(pl.col("method") != "Ours"))
    assert printed.sentences[0] == "The best baseline in MRR is L3 (0.250)."


def test_live_update_table_has_the_published_value():
    rows = [row("Recency", "mrr", "random", step, 0.36, protocol="live-update", slice="all") for step in ("3", "macro")]
    printed = printed_table("live-update", pl.DataFrame(rows, schema=METRICS_SCHEMA))
    assert dict(printed.frame.iter_rows()) == {"Recency": "0.360 [0.260, 0.460]", "ROLAND-GRU (paper)": "0.112"}
    assert printed.title.endswith("mean over 1 step, 1,234 ranked sources")


def test_table_of_forecasts_has_calibration_beside_precision():
    about = {"protocol": "forecasts", "slice": "all", "num_pairs": 20, "best_baseline": "L3"}
    more = {"difference": 0.05, "difference_low": 0.01, "difference_high": 0.09}
    rows = []
    for step in ("3", "4", "micro", "macro"):
        pooled = 0.25 if step == "micro" else 0.0  # other values of the pairs of all steps together
        rows += [
            row("L3", "precision_at_10", "published", step, 0.2, **about),
            row("Ours", "precision_at_10", "published", step, 0.25, **about, **more),
            row("Ours", "calibration_error", "published", step, 0.015, **{**about, "low": None, "high": None}),
            row("Ours", "probability_sum", "published", step, 1.25 + pooled, **about),
            row("Ours", "confident", "published", step, 0.5 + pooled, **{**about, "num_pairs": 8}),
            row("Ours", "precision_at_10", "published", step, 0.9, **{**about, "slice": "new"}),
        ]
    printed = printed_table("forecasts", pl.DataFrame(rows, schema=METRICS_SCHEMA))
    assert "mean over 2 steps" in printed.title
    assert printed.title.endswith("20 pairs, 1 seed; difference to the best baseline, L3")
    ours, l3 = printed.frame.iter_rows(named=True)
    assert ours == {
        "method": "Ours",
        "precision@10": "0.2500 [0.1500, 0.3500]",
        "difference": "+0.0500 [+0.0100, +0.0900]",
        "calibration error": "0.0150",
        "sum of probabilities / links": "1.50 [1.40, 1.60]",
        "Brier": "",
        "came of 0.8 and more": "0.75 of 8",
    }
    assert (l3["method"], l3["difference"], l3["came of 0.8 and more"]) == ("L3", "", "-")
