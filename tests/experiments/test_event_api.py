"""Claims about the model of events in Python: every observed event counts, ids and times are the user's own."""

import pickle
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
import polars as pl
import pytest
from live_logs import rows_of

import dyformer
from dyformer.experiments import event_api
from dyformer.scoring import event_horizon
from dyformer.scoring.event_forecaster import EventForecaster

ROWS = rows_of(600)
NEXT = ROWS[-1][2] + 60


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    few = partial(EventForecaster, gate_rounds=8, past_rounds=8, new_rounds=8)
    monkeypatch.setattr(event_api, "EventForecaster", few)


def frame(rows):
    return pl.DataFrame(rows, schema=("user", "page", "time"), orient="row")


def model(rows=ROWS):
    return dyformer.fit_events(dyformer.read_log(frame(rows), time_unit="s", bipartite=True))


def observed_by(grown, events):
    """Give what a model observes of events."""
    named = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grown._ranking, "observe", named.append)
        grown.observe(events)
    return named


def test_observed_events_count_as_if_the_log_had_them():
    more = [("u3", "p-new", NEXT), ("someone", "p2", NEXT + 1)]
    grown = model()
    grown.observe(frame(more[:1]))
    grown.observe([more[1]])
    assert repr(grown) == f"EventModel of {len(ROWS) + 2} events"
    ranked = grown.rank("u3", k=5)
    assert ranked.columns == ["rank", "target", "probability", "linked_before", "reasons"]
    assert ranked["rank"].to_list() == [1, 2, 3, 4, 5]
    every = grown.rank("u3", k=100)
    assert every.filter(target="p-new")["linked_before"].to_list() == [True]
    assert grown.rank("someone", k=100).filter("linked_before")["target"].to_list() == ["p2"]
    newest = datetime.fromtimestamp(more[1][2], UTC)
    with pytest.raises(
        ValueError, match=re.escape(f"expected events from {newest} on, the time of the newest so far; got")
    ):
        grown.observe([("u3", "p1", ROWS[0][2])])


def test_no_event_changes_nothing_and_an_empty_ranking_has_the_columns_of_others():
    grown = model()
    before = grown.rank("u3")
    for nothing in ([], frame(ROWS).clear()):
        grown.observe(nothing)
    for none in (None, 5):
        with pytest.raises(ValueError, match=f"expected .* found {type(none).__name__}"):
            grown.observe(none)  # pyright: ignore[reportArgumentType]
    grown.observe(frame(ROWS).clear().lazy())  # pyright: ignore[reportArgumentType]
    assert grown.rank("u3").equals(before)
    with pytest.MonkeyPatch.context() as patch:
        none = replace(
            grown._ranking.rank("u3", k=1), targets=[], probability_K=np.zeros(0), is_new_K=np.zeros(0, bool)
        )
        patch.setattr(grown._ranking, "rank", lambda *given, **options: replace(none, reasons=[]))
        assert grown.rank("u3").schema == before.schema


def test_an_observed_id_of_another_type_than_those_of_the_log_is_refused():
    model = dyformer.fit_events(dyformer.read_log([(row % 7, row % 5, row) for row in range(300)], bipartite=True))
    later = [(2, 3, 300), (2, "page", 301)]
    with pytest.raises(ValueError, match="expected integer ids, as the log has; got 'page'"):
        model.observe(later)
    model.observe(later[:1])
    assert model.rank(2, k=20)["target"].dtype.is_integer()


def test_unusable_rows_are_observed_none_and_named_with_what_an_observer_can_do():
    grown, later = model(), [("u1", "p1", NEXT), (None, "p1", NEXT)]
    before = grown.rank("u1")
    with pytest.raises(ValueError, match=r"1 of 2 rows .* row 2\)\. Repair these rows, or leave them out$"):
        grown.observe(later)
    assert grown.rank("u1").equals(before)


def test_a_log_of_counts_observes_dates_as_the_same_moments():
    grown = model()
    dates = [datetime.fromtimestamp(NEXT, UTC), datetime.fromtimestamp(NEXT, UTC).isoformat()]
    for date in dates:
        for events in ([("u1", "p1", date)], frame([("u1", "p1", date)])):
            [named] = observed_by(grown, events)
            assert named.times.tolist() == [NEXT * 1_000_000]


@pytest.mark.parametrize(
    ("unit", "wrong", "expected"),
    [
        ("s", "yesterday", "as dates such as 2024-03-01T10:00:00Z, or as numbers in its unit 's'"),
        ("s", NEXT * 1_000, "as dates such as 2024-03-01T10:00:00Z, or as numbers in its unit 's'"),
        ("iso", NEXT, "as dates such as 2024-03-01T10:00:00Z$"),
        ("step", "2200-01-01T00:00:00Z", "which are integer steps"),
        ("step", datetime(2200, 1, 1, tzinfo=UTC), "which are integer steps"),
    ],
)
def test_observed_times_of_another_unit_are_refused_with_what_the_log_takes(unit, wrong, expected):
    times = [datetime.fromtimestamp(row[2], UTC).isoformat() if unit == "iso" else row[2] for row in ROWS]
    rows = [(user, page, time) for (user, page, _), time in zip(ROWS, times, strict=True)]
    grown = dyformer.fit_events(dyformer.read_log(frame(rows), time_unit=unit, bipartite=True))
    for events in ([("u1", "p1", wrong)], frame([("u1", "p1", wrong)])):
        with pytest.raises(ValueError, match=rf"^the time .*: expected times as the log has them, {expected}"):
            grown.observe(events)


def test_a_source_that_is_no_id_of_the_log_is_refused():
    numbers = [(int(user.removeprefix("u")), int(page.removeprefix("p")), time) for user, page, time in ROWS]
    grown = model(numbers)
    ranked = grown.rank(1, k=3)
    assert ranked.equals(grown.rank("1", k=3))
    assert model().rank(" u1 ", k=3).equals(model().rank("u1", k=3))  # and not as a new source
    assert ranked.equals(grown.rank(np.int64(1), k=3))
    for wrong in (1.0, True, None, [1]):
        with pytest.raises(ValueError, match=r"source = .*: expected an id, found "):
            grown.rank(wrong)
    for wrong in ("1.0", "one", "01", "+1"):
        with pytest.raises(ValueError, match="expected integer ids, as the log has; got"):
            grown.rank(wrong)
    with pytest.raises(ValueError, match=r"source = 1\.0: expected an id, found float"):
        model().rank(1.0)
    for wrong in ("", " ", "7.0"):  # which would be ranked as a new source
        with pytest.raises(ValueError, match=r"the source .*: expected an id as the log has it"):
            model().rank(wrong)


def test_observed_events_have_the_weights_of_the_column_that_the_log_has_them_in():
    rows = frame(ROWS).with_columns(amount=pl.int_range(pl.len()) % 7 * 10.0)
    grown = dyformer.fit_events(dyformer.read_log(rows, weight="amount", time_unit="s", bipartite=True))
    came = frame([("u3", "p1", NEXT)])
    grown.observe(came.with_columns(amount=pl.lit(500.0)))
    weights = [named.weights for named in observed_by(grown, came.with_columns(amount=pl.lit(70.0)))]
    assert weights == [[70.0]]
    with pytest.raises(ValueError, match="has no column 'amount'"):
        grown.observe(came)


def test_a_horizon_has_the_probability_of_each_pair_within_it():
    log = dyformer.read_log(frame(ROWS), time_unit="s", bipartite=True)
    fitted = dyformer.fit_events(log, horizons=["30m", "1h"])
    short, long = (fitted.rank("u3", horizon=horizon, k=100) for horizon in ("30m", "1h"))
    assert short.columns == fitted.rank("u3").columns
    assert set(short["target"]) == set(long["target"])
    assert 0 < short["probability"].sum() < long["probability"].sum()
    with pytest.raises(ValueError, match=r"expected one that was fitted \('30m', '1h'\)"):
        fitted.rank("u3", horizon="1d")
    with pytest.raises(ValueError, match="expected a length of time above 0"):
        dyformer.fit_events(log, horizons=["0h"])
    with pytest.raises(ValueError, match="expected a Log, as read_log gives; found Graph"):
        dyformer.fit_events(log.snapshots("1h"))  # pyright: ignore[reportArgumentType]
    for wrong in ([2], None, 5):
        with pytest.raises(ValueError, match=r"horizons = .*: expected texts such as"):
            dyformer.fit_events(log, horizons=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="'6x'"):  # one text is one horizon
        dyformer.fit_events(log, horizons="6x")


def test_a_horizon_without_enough_events_before_it_is_named_before_the_fit(monkeypatch):
    log, said = dyformer.read_log(frame(ROWS), time_unit="s", bipartite=True), []
    with pytest.raises(ValueError, match=r"^horizon '300d': past horizons with at least 20 events before them: 0; "):
        dyformer.fit_events(log, horizons=["30m", "300d"], progress=said.append)
    assert said == []
    monkeypatch.setattr(event_horizon, "_check_labels", lambda _: event_horizon.horizon_starts(np.arange(0), 1))
    with pytest.raises(ValueError, match=r"^horizon '30m': past horizons"):
        dyformer.fit_events(log, horizons=["30m"])


def test_times_are_dates_and_ids_keep_their_type():
    numbers = model([(int(user[1:]), int(page[1:]), time) for user, page, time in ROWS])
    at = datetime.fromtimestamp(NEXT + 1_000, UTC)
    dated, written = numbers.rank(3, at=at), numbers.rank("3", at=at.replace(tzinfo=None).isoformat())
    assert dated.equals(written)
    assert dated.schema["target"] == pl.Int64
    assert not dated.equals(numbers.rank(3))
    with pytest.raises(ValueError, match="expected a date such as"):
        numbers.rank(3, at="yesterday")
    newest = datetime.fromtimestamp(ROWS[-1][2], UTC)
    expected = f"expected a time after that of the newest event, {newest:%Y-%m-%dT%H:%M:%S}.000000Z"
    for early in ("2001-01-01", newest):
        with pytest.raises(ValueError, match=re.escape(expected)):
            numbers.rank(3, at=early)
    assert numbers.rank(3, at=newest + timedelta(microseconds=1)).equals(numbers.rank(3))


def test_a_fit_reports_its_parts_and_rounds_and_changes_nothing_by_it():
    log, said = dyformer.read_log(frame(ROWS), time_unit="s", bipartite=True), []
    fitted = dyformer.fit_events(log, horizons=["30m"], progress=said.append)
    assert fitted.rank("u3").equals(model().rank("u3"))
    assert said[0] == f"event forecaster: reading the features of {len(ROWS)} events"
    rounds = [text for text in said if text.endswith(" of 32 rounds")]
    assert rounds[0] == "event forecaster: 3 of 32 rounds"
    assert 8 <= len(rounds) <= 10
    assert said[-2:] == ["horizon 30m: fitting the forecaster by pair", f"counting all {len(ROWS)} events"]
    with pytest.raises(ValueError, match="progress = 'print': expected a function"):
        dyformer.fit_events(log, progress="print")  # pyright: ignore[reportArgumentType]


def saved_again(grown, folder):
    grown.save(folder)
    return dyformer.EventModel.load(folder)


@pytest.mark.parametrize("copied", [saved_again, lambda grown, _: pickle.loads(pickle.dumps(grown))])
@pytest.mark.parametrize("two_sides", [True, False])
def test_a_stored_model_has_all_events_and_observes_further_ones(copied, two_sides, tmp_path, monkeypatch):
    monkeypatch.setattr(event_horizon, "EVENTS", replace(event_horizon.EVENTS, gate_rounds=8, past_rounds=8))
    rows = ROWS if two_sides else [(source, f"u{target[1:]}", time) for source, target, time in ROWS]
    log = dyformer.read_log(frame(rows), time_unit="s", bipartite=two_sides)
    grown = dyformer.fit_events(log, horizons="6h")
    grown.observe([("u3", "u-new", NEXT), ("someone", "u2", NEXT + 1)])
    again = copied(grown, tmp_path / "model")
    for number in range(2):
        assert repr(again) == repr(grown) == f"EventModel of {len(ROWS) + 2 + number} events"
        for source, horizon in (("u3", None), ("u3", "6h"), ("someone", None), ("nobody", None)):
            assert again.rank(source, k=50, horizon=horizon).equals(grown.rank(source, k=50, horizon=horizon))
        for model in (grown, again):
            model.observe(frame([("someone", "u-last", NEXT + 2 + number)]))


def test_a_model_of_events_with_integer_ids_gives_them_back_after_it_was_stored(tmp_path):
    rows = [(int(source[1:]), 100 + int(target[1:]), time) for source, target, time in ROWS]
    grown = model(rows)
    again = saved_again(grown, tmp_path / "model")
    assert again.rank(3).equals(grown.rank(3))
    assert again.rank(3).schema["target"] == pl.Int64


def test_a_model_of_another_kind_is_refused_with_what_reads_it(tmp_path):
    model().save(tmp_path)
    with pytest.raises(ValueError, match=r"a model of events: read it by dyformer\.EventModel\.load"):
        dyformer.load(tmp_path)
    (tmp_path / "arrays.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="is not whole"):
        dyformer.EventModel.load(tmp_path)
