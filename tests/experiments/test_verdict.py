"""The verdict of planted outcomes: who publishes and why, in words without hashes and levels of tests."""

import re
from datetime import datetime
from typing import Any

import polars as pl
import pytest

from dyformer.evaluation.rows import METRICS_SCHEMA
from dyformer.experiments.verdict import NOT_KNOWN, in_words, uneven_windows, verdict

WITH = {"title": "Forecaster with DyFormer", "models": ["a"]}
OLDER = {**WITH, "models": ["b"]}
WITHOUT = {"title": "Forecaster without vectors", "models": []}
GAIN = {
    "method": WITH["title"],
    "value": 0.3,
    "other": "Contact recency",
    "other_value": 0.25,
    "difference": [0.02, 0.05, 0.08],
    "num_queries": 1076,
}
VECTORS = {**GAIN, "other": WITHOUT["title"], "other_value": 0.299, "difference": [-0.01, 0.001, 0.012]}
OUTCOME: dict[str, Any] = {
    "promoted": True,
    "champion": WITH,
    "previous": None,
    "difference": [-0.0199, 0.0, 0.0199],
    "compared": [WITH["title"], WITHOUT["title"]],
    "metric": "mrr",
    "num_queries": 1076,
    "level": 0.998438,
    "reason": "the 99.8438 % interval of the difference in MRR does not lie above 0",
    "tied": None,
    "gain": GAIN,
    "vectors": VECTORS,
}
STAYS: dict[str, Any] = {"champion": OLDER, "previous": OLDER, "promoted": False}
START, END = datetime.fromisoformat("2024-03-25"), datetime.fromisoformat("2024-04-01")
FORECAST = {
    "step": 13,
    "valid_from": START,
    "valid_to": END,
    "repeats": 0.54,
    "calibration_step": 12,
    "period": 1,
    "uneven": (0, 11),
}
NO_ROWS = pl.DataFrame(schema=METRICS_SCHEMA)


def measured(**values: float) -> pl.DataFrame:
    about = {"protocol": "forecasts", "slice": "all", "step": "12", "method": WITH["title"], "num_pairs": 2970}
    rows = [{**about, "metric": name, "value": value, "low": 0.1, "high": 0.2} for name, value in values.items()]
    return pl.DataFrame(rows, schema=METRICS_SCHEMA)


MEASURED = measured(precision_at_10=0.139, calibration_error=0.0101, probability_sum=0.97)


def text_of(changes: dict[str, Any], metrics: pl.DataFrame = MEASURED, forecast: dict | None = FORECAST) -> str:
    return "\n".join(verdict({**OUTCOME, **changes}, metrics, forecast).sentences)


def test_the_verdict_says_all_that_a_reader_looks_for():
    assert verdict(OUTCOME, MEASURED, FORECAST).sentences == (
        "Forecaster with DyFormer publishes: this log had no champion, and no method is clearly better.",
        (
            "It ranks the links of the newest window 20 % better than the best simple method, Contact recency: MRR"
            " 0.300 to 0.250, clearly better, over 1,076 links."
        ),
        "The vectors add nothing clear: MRR 0.300 with them, 0.299 without.",
        (
            "Of ten forecasts 1.4 come (95 % interval 1.0 to 2.0): so many of each node's ten best partners came in the"
            " newest window, which these forecasts had not read."
        ),
        (
            "Its probabilities can be trusted: they are off by 1.0 points on average, and they add up to 97 % of the"
            " links that came."
        ),
        "The forecasts hold from 2024-03-25 00:00 to 2024-04-01 00:00 UTC.",
        "54 % of them repeat an earlier link; `latest_forecasts_new` has the new links alone.",
    )
    assert dict(verdict(OUTCOME, MEASURED, FORECAST).numbers) == {
        "better than the best simple method": "+20 %",
        "of ten forecasts come": "1.4",
        "mean error of the probabilities": "1.0 points",
        "added by the vectors (not clearly)": "+0 %",
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "not clearly different"),
        ({"value": 0.31}, "clearly better"),  # newly trained weights, and those of the champion are others
        ({"best_baseline": "L3"}, "clearly better"),
        ({"metric": "hits_at_10"}, "clearly better"),
        ({"family": "random"}, "clearly better"),
        ({"slice": "repeat"}, "clearly better"),
        ({"step": "12"}, "clearly better"),
        ({"difference_low": None}, "clearly better"),
        ({"difference_low": 0.001}, "clearly better"),
    ],
)
def test_the_gain_has_the_interval_of_the_table_below_it(changes: dict[str, Any], words: str):
    """At the edge another interval of the same difference may hold 0 or not."""
    row = {"protocol": "prequential", "method": WITH["title"], "step": "macro", "metric": "mrr", "slice": "known"}
    row |= {"family": "mixed", "value": 0.3, "best_baseline": "Contact recency"}
    row |= {"difference": 0.05, "difference_low": -0.001, "difference_high": 0.1, **changes}
    outcome = verdict(OUTCOME, pl.concat([MEASURED, pl.DataFrame([row], schema=METRICS_SCHEMA)]))
    assert f", {words}, over 1,076 links" in outcome.sentences[1]
    assert ("better than the best simple method" in outcome.numbers) == (words == "clearly better")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"champion": WITHOUT, "promoted": False, "tied": WITH["title"]},
            "as good as Forecaster with DyFormer and costs",
        ),
        (
            {"previous": OLDER, "difference": [0.01, 0.02, 0.03]},
            "publishes, instead of Forecaster with DyFormer with older weights: it is clearly better than",
        ),
        (
            {**STAYS, "difference": [-0.02, -0.01, 0.01]},
            "as before: the newly trained Forecaster with DyFormer is worse than the champion, but not clearly.",
        ),
        (
            {**STAYS, "difference": [-0.01, 0.01, 0.02]},
            "as before: the newly trained Forecaster with DyFormer is better than the champion, but not clearly.",
        ),
        ({**STAYS, "difference": [-0.01, 0.0, 0.01]}, "the newly trained Forecaster with DyFormer is no better."),
        (
            {**STAYS, "difference": [-0.03, -0.02, -0.01]},
            "the newly trained Forecaster with DyFormer is clearly worse than the champion.",
        ),
        (
            {**STAYS, "difference": [0.01, 0.02, 0.03]},
            "is clearly better than the champion over all links, but clearly worse for some kinds of links.",
        ),
        (
            {**STAYS, "difference": [-0.1, -0.05, 0.01], "compared": [WITHOUT["title"], "champion"]},
            "as before: Forecaster without vectors is worse than the champion, but not clearly.",
        ),
        (
            {"champion": WITHOUT, "previous": WITHOUT, "promoted": False, "compared": [WITHOUT["title"], WITH["title"]]}
            | {"tied": WITH["title"]},
            "as before: it is as good as Forecaster with DyFormer and costs less.",
        ),
        (
            {"difference": [-0.03, -0.02, -0.01], "compared": [WITH["title"], "L3"]},
            "this log had no champion, and L3 is clearly better over all links, but clearly worse for some kinds of",
        ),
        ({"difference": None, "compared": None, "reason": "few queries"}, "publishes: few queries."),
        (
            {"previous": OLDER, "compared": [WITH["title"], "L3"], "reason": "the champion's weights are missing"},
            "instead of Forecaster with DyFormer with older weights: the champion's weights are missing.",
        ),
        (
            {**STAYS, "difference": None, "reason": "no weights"},
            "as before: no weights",
        ),
        (
            {"champion": WITHOUT, "previous": WITH, "promoted": False, "difference": [0.1, 0.2, 0.3]}
            | {"compared": [WITHOUT["title"], WITH["title"]]},
            "publishes, instead of Forecaster with DyFormer: it is clearly better than Forecaster with DyFormer",
        ),
        ({"champion": None, "difference": None, "reason": "step 5 cannot be ranked"}, "yet: step 5 cannot be ranked."),
    ],
)
def test_who_publishes_and_why(changes: dict[str, Any], words: str):
    assert words in text_of(changes).splitlines()[0]


BEST = GAIN["other"]
AGAINST_BEST = {"compared": [WITH["title"], BEST]}
WON = {**AGAINST_BEST, "previous": {"title": BEST, "models": []}, "difference": [0.01, 0.05, 0.09]}
LOST = {**AGAINST_BEST, "difference": [-0.09, -0.05, -0.01]}
OPEN = {**AGAINST_BEST, "difference": [-0.09, -0.05, 0.01]}
TIED = {"champion": WITHOUT, "tied": BEST, "compared": [WITHOUT["title"], BEST]}


@pytest.mark.parametrize(
    ("changes", "interval", "words"),
    [
        (WON, [0.02, 0.05, 0.08], f"instead of {BEST}: it is clearly better than {BEST} on the newest window."),
        (WON, [-0.01, 0.05, 0.1], f"instead of {BEST}: it won the test of the promotion against {BEST} on the newest"),
        (WON, None, f"it won the test of the promotion against {BEST} on the newest window."),
        (
            {**WON, "compared": [WITH["title"], WITHOUT["title"]]},
            [-0.01, 0.05, 0.1],
            f"it is clearly better than {WITHOUT['title']} on the newest window.",
        ),
        (LOST, [-0.1, -0.05, -0.01], f"{BEST} is clearly better over all links, but clearly worse for some kinds of"),
        (
            LOST,
            [-0.1, -0.05, 0.01],
            f"{BEST} won the test of the promotion over all links, but is clearly worse for some kinds of links.",
        ),
        (OPEN, [-0.1, -0.05, 0.01], "this log had no champion, and no method is clearly better."),
        (OPEN, [-0.1, -0.05, -0.01], "this log had no champion, and no method won the test of the promotion."),
        (
            {**OPEN, "compared": [WITH["title"], WITHOUT["title"]]},
            [-0.1, -0.05, -0.01],
            "and no method won the test of the promotion.",
        ),
        (TIED, [-0.1, -0.05, 0.01], f"it is as good as {BEST} and costs less."),
        ({**TIED, "difference": [-0.33, -0.055, 0.22]}, None, f"it is not clearly worse than {BEST} and costs less."),
        ({**TIED, "difference": None}, None, f"it is as good as {BEST} and costs less."),
        (TIED, [-0.1, -0.05, -0.01], f"in the test of the promotion it is as good as {BEST}, and it costs less."),
    ],
)
def test_who_publishes_is_no_contradiction_of_how_good_it_is(
    changes: dict[str, Any], interval: list[float] | None, words: str
):
    """Both sentences compare the same two methods, with two intervals."""
    first, second = text_of({**changes, "gain": {**GAIN, "difference": interval}}).splitlines()[:2]
    assert words in first
    assert in_words(interval) in second


def test_a_champion_that_stays_though_a_simple_method_is_clearly_better_is_explained():
    worse = {**GAIN, "value": 0.2, "difference": [-0.09, -0.05, -0.01]}
    stays = {**STAYS, "compared": [WITH["title"], WITHOUT["title"]], "difference": [-0.01, 0.06, 0.13]}
    won = ", and no simple method won the test of the promotion, which is stricter at each retraining."
    first, second = text_of({**stays, "gain": worse}).splitlines()[:2]
    assert f"is better than the champion, but not clearly{won}" in first
    assert "clearly worse" in second
    assert won not in text_of(stays)
    assert won not in text_of({**stays, "gain": {**worse, "difference": [-0.09, -0.05, 0.01]}})


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        ([0.01, 0.02, 0.03], "clearly better"),
        ([-0.03, -0.02, -0.01], "clearly worse"),
        ([-0.01, 0.02, 0.05], "not clearly different"),
        ([-0.05, -0.02, 0.01], "not clearly different"),
        ([0.0, 0.02, 0.04], "not clearly different"),
        (None, "too few to say"),
    ],
)
def test_an_interval_is_written_by_its_sign(difference: list[float] | None, words: str):
    assert in_words(difference) == words


def test_the_method_that_publishes_is_that_of_the_champion():
    assert verdict(OUTCOME, MEASURED, FORECAST).published == WITH["title"]
    assert verdict({**OUTCOME, "champion": None}, MEASURED).published is None


def test_vectors_that_add_or_harm_are_said_to():
    assert "The vectors add 20 %, clearly" in text_of({"vectors": GAIN})
    assert "The vectors harm, clearly" in text_of({"vectors": {**VECTORS, "difference": [-0.3, -0.2, -0.1]}})
    assert "vectors" not in text_of({"vectors": None, "champion": {"title": "L3", "models": []}})


def test_a_champion_that_is_a_simple_method_is_compared_with_none():
    simple = {"gain": None, "champion": {"title": "Contact recency", "models": []}}
    assert "It is the best of the simple methods itself." in text_of(simple)
    assert "5 % worse than" in text_of({"gain": {**GAIN, "value": 0.2375, "difference": [-0.1, -0.0125, 0.1]}})


def test_whose_weights_the_number_is_of_is_said_where_the_tables_have_others():
    note = "with the champion's own weights; the tables have the newly trained ones."
    assert note in text_of({"previous": WITH})
    assert note not in text_of({})
    assert note not in text_of({"previous": WITH, "compared": ["Forecaster with DySAT", WITH["title"]]})
    assert note not in text_of({"champion": WITHOUT, "previous": WITHOUT, "compared": [WITHOUT["title"], "L3"]})


def test_with_few_links_nothing_is_said_of_how_good_it_is():
    none = {"gain": None, "vectors": None, "num_queries": None, "difference": None, "compared": None}
    few = text_of({**none, "reason": "the champion stays; fewer than 20 queries are no test"})
    assert "cannot be said: fewer than 20 links" in few
    trained = "the champion was trained on step 9, so it cannot be compared there"
    for champion in (WITH, {"title": "L3", "models": []}):
        text = text_of({**none, "reason": trained, "champion": champion, "previous": champion})
        assert f"publishes, as before: {trained}." in text
        assert "cannot be said" not in text
        assert "simple method" not in text


WEEK = [110, 100, 100, 105, 140, 160, 35]  # rows of the days: Sundays have few


def test_probabilities_of_daily_windows_do_not_follow_the_rhythm_of_a_week():
    uneven = uneven_windows(WEEK * 4)
    assert uneven == (5, 20)  # three Sundays, and the Mondays after two of them
    text = text_of({}, forecast={**FORECAST, "uneven": uneven})
    assert (
        "Its probabilities can be trusted in a window as busy as the newest one: they are off by 1.0 points on average,"
        " and they add up to 97 % of the links that came. But 5 of the 20 newest windows had more than twice, or less"
        " than half, the rows of the one before, and no probability follows that.\n" in text
    )
    rough = text_of({}, measured(calibration_error=0.04), {**FORECAST, "uneven": uneven})
    assert "Its probabilities are rough: they are off by 4.0 points on average. But 5 of the 20" in rough


@pytest.mark.parametrize("rows", [[], [7], [100, 199, 399, 200, 100], [100] * 9 + [20] + [21] * 20, [0, 0, 0, 1]])
def test_a_steady_log_a_growing_one_and_a_single_change_are_not_named(rows: list[int]):
    assert "no probability follows" not in text_of({}, forecast={**FORECAST, "uneven": uneven_windows(rows)})


@pytest.mark.parametrize(
    ("error", "words"), [(0.02, "can be trusted"), (0.05, "are rough"), (0.051, "cannot be trusted")]
)
def test_calibration_is_in_words(error: float, words: str):
    metrics = measured(calibration_error=error)
    assert f"Its probabilities {words}: they are off by {100 * error:.1f} points on average." in text_of({}, metrics)


@pytest.mark.parametrize(
    ("total", "words"),
    [
        (1.0, "can be trusted"),
        (1.25, "can be trusted"),
        (0.8, "can be trusted"),
        (1.26, "are rough"),
        (0.79, "are rough"),
        (2.0, "are rough"),
        (0.5, "are rough"),
        (2.01, "cannot be trusted"),
        (0.49, "cannot be trusted"),
        (0.0, "cannot be trusted"),
    ],
)
def test_probabilities_whose_sum_is_far_from_what_came_are_not_trusted_however_small_each_error(
    total: float, words: str
):
    metrics = measured(calibration_error=0.001, probability_sum=total)
    expected = (
        f"Its probabilities {words}: they are off by 0.1 points on average, and they add up to {100 * total:.0f} %"
    )
    assert expected in text_of({}, metrics)


@pytest.mark.parametrize(
    ("difference", "doubt"),
    [
        ([0.01, 0.05, 0.1], ""),
        ([-0.1, -0.05, -0.01], ""),
        ([-0.01, 0.05, 0.1], " (not clearly)"),
        (None, " (not clearly)"),
    ],
)
def test_a_number_that_is_not_clear_has_its_doubt_beside_it(difference: list[float] | None, doubt: str):
    numbers = verdict({**OUTCOME, "gain": {**GAIN, "difference": difference}}, MEASURED).numbers
    assert numbers[f"better than the best simple method{doubt}"] == "+20 %"


@pytest.mark.parametrize(
    ("value", "other", "name", "number"),
    [(0.30, 0.25, "better", "+20 %"), (0.20, 0.25, "worse", "20 %"), (0.2499, 0.25, "worse", "0 %")],
)
def test_a_number_below_the_best_simple_method_is_not_called_better(value: float, other: float, name: str, number: str):
    gain = {**GAIN, "value": value, "other_value": other}
    numbers = verdict({**OUTCOME, "gain": gain, "vectors": gain}, MEASURED).numbers
    assert numbers[f"{name} than the best simple method"] == number
    assert not numbers["added by the vectors"].startswith("-0")


def test_whose_vectors_are_published_is_said_where_the_champion_has_none():
    note = "the vectors are the challenger's, because L3 has none"
    assert f"Its forecasts are published; {note}." in text_of({"champion": {"title": "L3", "models": []}, "note": note})
    assert "vectors are the challenger's" not in text_of({})


def test_a_retraining_without_a_training_says_so():
    changes = {"champion": WITHOUT, "previous": WITHOUT, "promoted": False, "compared": [WITHOUT["title"], "L3"]}
    first = text_of({**changes, "difference": [-0.1, 0.05, 0.2]}).splitlines()[0]
    assert first.endswith("publishes, as before: no model was trained, and no simple method is clearly better.")
    worse = text_of({**changes, "difference": [-0.3, -0.2, -0.1]}).splitlines()[0]
    assert "no model was trained, and L3 is clearly better over all links, but clearly worse for some" in worse


def test_what_is_not_known_is_said():
    unknown = verdict({**OUTCOME, "gain": None, "vectors": None, "num_queries": None}, NO_ROWS)
    assert set(unknown.numbers.values()) == {NOT_KNOWN}
    assert "How many forecasts come is not known" in unknown.sentences[1]
    assert len(unknown.sentences) == 2


def test_a_log_without_dates_or_horizon_has_a_line_that_says_so():
    assert "have no horizon in time, because the windows have equal counts" in text_of(
        {}, forecast={**FORECAST, "valid_to": None}
    )
    assert "for step 13: this log has integer steps" in text_of(
        {}, forecast={**FORECAST, "valid_from": None, "valid_to": None}
    )


def test_an_older_step_that_calibrates_the_probabilities_is_named() -> None:
    assert "are calibrated on" not in text_of({})
    older = text_of({}, forecast={**FORECAST, "calibration_step": 10})
    assert "calibrated on the links of step 10 instead of step 12, the newest one" in older


def test_the_period_of_a_log_is_named_and_a_window_that_is_not_one_before_calibrates_by_name():
    weekly = {**FORECAST, "step": 36, "period": 7, "calibration_step": 29}
    learns = (
        "The number of links recurs every 7 windows, so that the forecasts learn from the windows that lie 7, or a"
        " multiple of it, before.\n"
    )
    assert learns in text_of({}, forecast=weekly)
    assert "calibrated on" not in text_of({}, forecast=weekly)
    for step in (22, 35):
        other = f"the links of step {step} instead of step 29, 7 windows before, because that one has no links of known"
        assert other in text_of({}, forecast={**weekly, "calibration_step": step})
    assert learns not in text_of({})


def test_windows_are_compared_with_those_a_period_before():
    assert uneven_windows(WEEK * 4, 7) == (0, 20)
    assert uneven_windows([*WEEK * 3, *(rows // 3 for rows in WEEK)], 7) == (7, 20)
    assert uneven_windows(WEEK, 7) == (0, 0)
    text = text_of({}, forecast={**FORECAST, "period": 7, "calibration_step": 6, "uneven": (7, 20)})
    assert "can be trusted in a window as busy as that 7 windows before: they are off" in text
    assert "less than half, the rows of the one 7 windows before, and no probability follows that." in text


def test_no_number_of_a_test_and_no_hash_is_on_the_first_screen():
    """A level such as 99.8438 %, or a digest."""
    text = text_of({"previous": OLDER, "difference": [0.01, 0.02, 0.03]})
    assert not re.search(r"\d\.\d{3,} %|[0-9a-f]{12}", text)
