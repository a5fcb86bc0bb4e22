"""The outcome of a run, as plain values -> the verdict in plain words, which stands before every table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from dyformer.evaluation.config import METRIC_TITLES
from dyformer.evaluation.promotion import MIN_QUERIES, TOO_FEW_QUERIES, has_vectors
from dyformer.evaluation.query_slices import KNOWN
from dyformer.evaluation.scored_queries import MIXED
from dyformer.experiments.printed import TOO_FEW

NOT_KNOWN = "not known"
# Up to which error, and up to which ratio of what was expected and what came, whichever is larger.
TRUSTED, TRUSTED_RATIO = 0.02, 1.25
ROUGH, ROUGH_RATIO = 0.05, 2.0
ALIKE = 0.01  # a tie of few links may be of a larger difference, which is named as such
NUM_WINDOWS, LEAST_UNEVEN = 20, 0.1  # newest windows that are compared, and from which fraction of them on they differ

COME_AGAIN = 0.4
"""The fraction of repeats from which on a log's pairs come again: of nine logs four have .47 to .98, five 0 to .3."""

EXPECTED = {
    True: (
        "its pairs come again. On four such logs the vectors of DyFormer added nothing clear to the MRR, and at most"
        " .018 to an AUC"
    ),
    False: (
        "most of its pairs are new. On five such logs the vectors of DyFormer added nothing clear to the MRR, and on"
        " two of them .02 to .03 to an AUC"
    ),
}
"""What was measured on logs whose pairs come again, and on those whose pairs do not (docs/when_to_train.md)."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Sentences, the most important first, four numbers as texts by their names, and the method that publishes."""

    sentences: tuple[str, ...]
    numbers: Mapping[str, str]
    published: str | None = None


def verdict(promotion: Mapping[str, Any], metrics: pl.DataFrame, forecast: Mapping[str, Any] | None = None) -> Verdict:
    """Say who publishes and why, how good that is, how far it can be trusted, and for which dates it holds.

    Args:
        promotion: the outcome of a promotion: champion and previous (title, models), promoted, reason, compared,
            difference, metric, num_queries, tied, gain, vectors, and a note on what is published beside its forecasts.
        metrics: rows of METRICS_SCHEMA; those of the protocol `forecasts` are of the published method on the newest
            step, which its forecast had not read.
        forecast: of what is published: step, valid_from, valid_to (None where there is no such time), repeats (the
            fraction of the forecasts that repeat an earlier link), calibration_step, period (after how many steps the
            log's counts recur, 1 if they do not), uneven (as `uneven_windows` gives it); None where nothing is.
    """
    measured = {row["metric"]: row for row in metrics.filter(protocol="forecasts", slice="all").to_dicts()}
    gain = _as_in_table(promotion, metrics)
    promotion = {**promotion, "gain": gain}
    sentences = [
        _publisher(promotion),
        _gain(promotion),
        _vectors(promotion),
        _note(promotion),
        _hits(measured),
        _trust(measured, forecast),
        *([] if forecast is None else [say(forecast) for say in (_season, _calibration, _dates, _repeats)]),
    ]
    numbers = {
        f"{_side(gain)} than the best simple method{_doubt(gain)}": _gained(gain),
        "of ten forecasts come": _number(measured, "precision_at_10", "{:.1f}", 10),
        "mean error of the probabilities": _number(measured, "calibration_error", "{:.1f} points", 100),
        f"added by the vectors{_doubt(promotion['vectors'])}": _relative(promotion["vectors"]),
    }
    published = None if promotion["champion"] is None else promotion["champion"]["title"]
    return Verdict(sentences=tuple(filter(None, sentences)), numbers=numbers, published=published)


def _as_in_table(promotion: Mapping[str, Any], metrics: pl.DataFrame) -> Mapping[str, Any] | None:
    """Give the gain with the interval of the printed table, where this compares the same scores of the same methods.

    The interval of a promotion has other resamples and Student's t, so that at the edge one may hold 0 and one not.
    """
    gain = promotion["gain"]
    if gain is None:
        return None
    compared = {"method": gain["method"], "best_baseline": gain["other"], "metric": promotion["metric"]}
    printed = metrics.filter(protocol="prequential", slice=KNOWN, family=MIXED, step="macro", **compared)
    names = ("difference_low", "difference", "difference_high")
    for row in printed.drop_nulls(names).to_dicts():
        if math.isclose(row["value"], gain["value"], abs_tol=1e-9):  # not that of a champion with older weights
            return {**gain, "difference": [row[name] for name in names]}
    return gain


def expected_in_words(repeats: float) -> str:
    """Say which case a log is, by the fraction of its newest links that are repeats, and what vectors added on such."""
    known = f"{100 * repeats:.0f} % of the newest step's links repeat an earlier one"
    return f"{known}: {EXPECTED[repeats >= COME_AGAIN]}. This run compares them"


def uneven_windows(rows_T: Sequence[int], period: int = 1) -> tuple[int, int]:
    """Count the newest windows with more than twice, or less than half, the rows of one a period before; and all.

    A forecast is calibrated a period before, so that the sum of its probabilities is as far off as its window differs.
    """
    newest_T = rows_T[-NUM_WINDOWS - period :]
    pairs = [sorted(pair) for pair in zip(newest_T, newest_T[period:], strict=False)]
    return sum(most > ROUGH_RATIO * least for least, most in pairs), len(pairs)


def in_words(difference: list[float] | None) -> str:
    """Write the sign of an interval (low, mean, high): "clearly better", "clearly worse" or "not clearly different"."""
    if difference is None:
        return TOO_FEW
    low, _, high = difference
    return "clearly better" if low > 0 else "clearly worse" if high < 0 else "not clearly different"


def horizon_in_words(forecast: Mapping[str, Any]) -> str:
    """Write when forecasts hold, from their step, valid_from and valid_to: dates, or the step of a log without any."""
    start, end = forecast["valid_from"], forecast["valid_to"]
    if start is None:
        return f"step {forecast['step']}"
    if end is None:
        return f"the window from {start:%Y-%m-%d %H:%M} UTC"
    return f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"


def whose_forecasts(rows: pl.DataFrame) -> str:
    """Write by which method forecasts are and when they hold, from the rows of their table; "" of an empty one."""
    first = rows.select("method", "step", "valid_from", "valid_to").head(1).to_dicts()
    return " ".join(f"by {row['method']} for {horizon_in_words(row)}" for row in first)


def _publisher(promotion: Mapping[str, Any]) -> str:
    champion, previous = promotion["champion"], promotion["previous"]
    if champion is None:
        return f"Nobody is champion yet: {promotion['reason']}."
    title = champion["title"]
    if champion == previous:
        return f"{title} publishes, as before: {_why_it_stays(promotion)}."
    older = " with older weights" if previous is not None and previous["title"] == title else ""
    before = "" if previous is None else f", instead of {previous['title']}{older}"
    return f"{title} publishes{before}: {_why_it_came(promotion)}."


def _why_it_stays(promotion: Mapping[str, Any]) -> str:
    compared, difference, champion = promotion["compared"], promotion["difference"], promotion["champion"]
    if promotion["tied"] is not None:
        return _tie(promotion)
    if difference is None or compared is None:
        return promotion["reason"]
    if compared[0] == champion["title"] and not champion["models"]:
        return f"no model was trained, and {_no_better(promotion, 'simple method')}"
    challenger = f"the newly trained {compared[0]}" if has_vectors(compared[0]) else compared[0]
    return f"{challenger} is {_than_the_champion(difference)}{_simple_ones(promotion)}"


def _simple_ones(promotion: Mapping[str, Any]) -> str:
    """Say why a champion stays that the next sentence calls clearly worse than another method than the challenger."""
    gain = promotion["gain"]
    if gain is None or gain["other"] in promotion["compared"] or in_words(gain["difference"]) != "clearly worse":
        return ""
    return ", and no simple method won the test of the promotion, which is stricter at each retraining"


def _why_it_came(promotion: Mapping[str, Any]) -> str:
    compared, difference = promotion["compared"], promotion["difference"]
    if promotion["tied"] is not None:
        return _tie(promotion)
    if difference is None or compared is None:
        return promotion["reason"]
    if promotion["previous"] is None and promotion["promoted"]:
        return f"this log had no champion, and {_no_better(promotion, 'method')}"
    if not difference[0] > 0:  # there was no test against a champion, whose weights are missing or do not fit
        return promotion["reason"]
    if _gain_in_words(promotion, compared[1]) in (None, "clearly better"):
        return f"it is clearly better than {compared[1]} on the newest window"
    return f"it won the test of the promotion against {compared[1]} on the newest window"


def _gain_in_words(promotion: Mapping[str, Any], other: str) -> str | None:
    """Write the sign of the interval that the next sentence has, if this compares the champion with the same method.

    A promotion has another interval, and at the edge one may hold 0 and one not: two sentences must not contradict each
    other.
    """
    gain = promotion["gain"]
    return in_words(gain["difference"]) if gain is not None and gain["other"] == other else None


def _tie(promotion: Mapping[str, Any]) -> str:
    if _gain_in_words(promotion, promotion["tied"]) == "clearly worse":
        return f"in the test of the promotion it is as good as {promotion['tied']}, and it costs less"
    if (difference := promotion["difference"]) is not None and difference[1] < -ALIKE:
        return f"it is not clearly worse than {promotion['tied']} and costs less"
    return f"it is as good as {promotion['tied']} and costs less"


def _no_better(promotion: Mapping[str, Any], kind: str) -> str:
    """Say why the best of the others is no champion: the promotion compared the champion with this one."""
    best, gain = promotion["compared"][1], promotion["gain"]
    if promotion["difference"][2] < 0:
        is_clear = _gain_in_words(promotion, best) in (None, "clearly worse")
        won = f"{best} {'is clearly better' if is_clear else 'won the test of the promotion'} over all links"
        return f"{won}, but {'' if is_clear else 'is '}clearly worse for some kinds of links"
    if gain is not None and in_words(gain["difference"]) == "clearly worse":
        return f"no {kind} won the test of the promotion"
    return f"no {kind} is clearly better"


def _than_the_champion(difference: Sequence[float]) -> str:
    """Compare the challenger, which did not win, with the champion that stays."""
    low, mean, high = difference
    if low > 0:
        return "clearly better than the champion over all links, but clearly worse for some kinds of links"
    if high < 0:
        return "clearly worse than the champion"
    return f"{'better' if mean > 0 else 'worse'} than the champion, but not clearly" if mean else "no better"


def _gain(promotion: Mapping[str, Any]) -> str:
    gain = promotion["gain"]
    if gain is None:
        if promotion["champion"] is None or TOO_FEW_QUERIES in promotion["reason"]:
            return f"How good it is cannot be said: fewer than {MIN_QUERIES} links of the newest window can be ranked."
        # Without queries there was no comparison, for the reason that the sentence before gives.
        return "" if promotion["num_queries"] is None else "It is the best of the simple methods itself."
    title = METRIC_TITLES[promotion["metric"]]
    percent = abs(_percent(gain))
    return (
        f"It ranks the links of the newest window {percent:.0f} % {_side(gain)} than the best simple method,"
        f" {gain['other']}: {title} {gain['value']:.3f} to {gain['other_value']:.3f}, {in_words(gain['difference'])},"
        f" over {gain['num_queries']:,} links.{_weights(promotion)}"
    )


def _side(gain: Mapping[str, Any] | None) -> str:
    return "worse" if gain is not None and gain["value"] < gain["other_value"] else "better"


def _weights(promotion: Mapping[str, Any]) -> str:
    """Say that the number of a champion which stays is of older weights than those of the tables, where it is so."""
    champion, compared = promotion["champion"], promotion["compared"] or ("",)
    if (
        champion is None
        or champion != promotion["previous"]
        or not champion["models"]
        or compared[0] != champion["title"]
    ):
        return ""
    return " That is with the champion's own weights; the tables have the newly trained ones."


def _vectors(promotion: Mapping[str, Any]) -> str:
    vectors = promotion["vectors"]
    if vectors is None:
        return ""
    words, title = in_words(vectors["difference"]), METRIC_TITLES[promotion["metric"]]
    numbers = f"{title} {vectors['value']:.3f} with them, {vectors['other_value']:.3f} without"
    if words == "clearly better":
        return f"The vectors add {_percent(vectors):.0f} %, clearly: {numbers}."
    if words == "clearly worse":
        return f"The vectors harm, clearly: {numbers}."
    return f"The vectors add nothing clear: {numbers}."


def _note(promotion: Mapping[str, Any]) -> str:
    note = promotion.get("note")
    return "" if note is None else f"Its forecasts are published; {note}."


def _hits(measured: Mapping[str, Mapping[str, Any]]) -> str:
    row = measured.get("precision_at_10")
    if row is None or row["value"] is None:
        return "How many forecasts come is not known: the newest window could not be forecast before it came."
    between = "" if row["low"] is None else f" (95 % interval {10 * row['low']:.1f} to {10 * row['high']:.1f})"
    return (
        f"Of ten forecasts {10 * row['value']:.1f} come{between}: so many of each node's ten best partners came in the"
        " newest window, which these forecasts had not read."
    )


def _trust(measured: Mapping[str, Mapping[str, Any]], forecast: Mapping[str, Any] | None) -> str:
    row, total = measured.get("calibration_error"), measured.get("probability_sum", {}).get("value")
    if row is None:
        return ""
    error = row["value"]
    # Where few pairs come, each error is small, also that of probabilities which are twice too high.
    ratio = 1.0 if total is None else max(total, 1 / total) if total > 0 else math.inf
    is_close, is_rough = error <= TRUSTED and ratio <= TRUSTED_RATIO, error <= ROUGH and ratio <= ROUGH_RATIO
    words = "can be trusted" if is_close else "are rough" if is_rough else "cannot be trusted"
    reach = "" if total is None else f", and they add up to {100 * total:.0f} % of the links that came"
    num_uneven, num_windows = (0, 0) if forecast is None else forecast["uneven"]
    is_uneven = num_uneven > 1 and num_uneven >= LEAST_UNEVEN * num_windows
    period = 1 if forecast is None else forecast["period"]
    earlier, before = ("the newest one", "before") if period == 1 else ("that", _windows_before(period))
    when = f" in a window as busy as {earlier}{f' {before}' if period > 1 else ''}" if is_uneven and is_close else ""
    others = (
        f" But {num_uneven} of the {num_windows} newest windows had more than twice, or less than half, the rows of the"
        f" one {before}, and no probability follows that."
    )
    return (
        f"Its probabilities {words}{when}: they are off by {100 * error:.1f} points on average{reach}."
        f"{others if is_uneven else ''}"
    )


def _season(forecast: Mapping[str, Any]) -> str:
    period = forecast["period"]
    if period == 1:
        return ""
    return (
        f"The number of links recurs every {period} windows, so that the forecasts learn from the windows that lie"
        f" {period}, or a multiple of it, before."
    )


def _calibration(forecast: Mapping[str, Any]) -> str:
    """Name the step that calibrates the probabilities, unless it is the usual one: the newest, or a period before."""
    step, period = forecast["calibration_step"], forecast["period"]
    usual = forecast["step"] - period
    if step == usual:
        return ""
    which = "the newest one" if period == 1 else _windows_before(period)
    no_links = f"{'no later step has' if period == 1 else 'that one has no'} links of known nodes to calibrate on"
    because = no_links if period == 1 else f"{no_links}, or no weights are as old"
    return (
        f"Its probabilities are calibrated on the links of step {step} instead of step {usual}, {which}, because"
        f" {because}: they may be out of date."
    )


def _windows_before(period: int) -> str:
    return f"{period} windows before"


def _dates(forecast: Mapping[str, Any]) -> str:
    words = horizon_in_words(forecast)
    if forecast["valid_from"] is None:
        return f"The forecasts are for {words}: this log has integer steps, and no dates."
    if forecast["valid_to"] is None:
        return (
            f"The forecasts are for {words} on, and have no horizon in time, because the windows have equal counts of"
            " rows: they hold for the next window, however long it takes."
        )
    return f"The forecasts hold from {words}."


def _repeats(forecast: Mapping[str, Any]) -> str:
    if forecast["repeats"] is None:
        return ""
    fraction = f"{100 * forecast['repeats']:.0f} %"
    return f"{fraction} of them repeat an earlier link; `latest_forecasts_new` has the new links alone."


def _percent(gain: Mapping[str, Any]) -> float:
    other = gain["other_value"]
    return 100 * (gain["value"] - other) / other if other else 0.0


def _doubt(gain: Mapping[str, Any] | None) -> str:
    """Give what stands behind a difference that is not clear: its interval has 0, or there are too few links."""
    is_clear = gain is None or in_words(gain["difference"]).startswith("clearly")
    return "" if is_clear else " (not clearly)"


def _relative(gain: Mapping[str, Any] | None) -> str:
    return NOT_KNOWN if gain is None else f"{round(_percent(gain)):+d} %"


def _gained(gain: Mapping[str, Any] | None) -> str:
    return _relative(gain).lstrip("+-") if _side(gain) == "worse" else _relative(gain)


def _number(measured: Mapping[str, Mapping[str, Any]], metric: str, form: str, scale: float) -> str:
    value = measured.get(metric, {}).get("value")
    return NOT_KNOWN if value is None else form.format(scale * value)
