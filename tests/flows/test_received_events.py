"""Claims about ingests of received events: each exactly once, with the ids and times that were sent."""

from datetime import UTC, datetime

import pytest
from live_logs import NAME, ingest, rows_of, stored_state, write_rows

from dyformer.logs.contract import ForeignLog
from flows.tasks.event_state import read_state
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots, open_snapshots
from storage.events.table import node_dictionary, scan_events
from storage.layout import Layout
from storage.raw.received import ReceivedEvents, received_files
from storage.removal import drop_dataset

ROWS = rows_of(200)
LAST = ROWS[-1][2]


@pytest.fixture
def store(tmp_path):
    layout = Layout(str(tmp_path / "store"))
    ingest(layout, tmp_path, ROWS, 0)
    return layout


def received(number, **changes):
    return {
        "source": f"u{number}",
        "target": "page, new",
        "time": "2023-12-01T10:00:00.000001Z",
        "weight": 2.5,
    } | changes


def sent(rows):
    """Give rows of a file as a server receives them."""
    times = (f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}" for _, _, time in rows)
    return [
        received(0, source=user, target=page, time=time, weight=1.0)
        for (user, page, _), time in zip(rows, times, strict=True)
    ]


def rows(layout, version=None):
    events = scan_events(layout, NAME, version).sort("ingest", "row")
    return events.select("source", "target", "time", "weight").collect().rows()


def silent(text):
    """Show nothing."""


def test_received_events_are_committed_exactly_once_whatever_is_ingested(store, tmp_path):
    server = ReceivedEvents(layout=store, dataset=NAME)
    server.append([received(1), received(2, source='"quoted" \u00e4, b', weight=1.0)])
    counts = ingest_log(NAME, {}, silent, layout=store)
    assert (counts["changed"], counts["version"]) == (True, 2)
    assert rows(store)[len(ROWS) :] == [
        ("u1", "page, new", 1_701_424_800_000_001, 2.5),
        ('"quoted" \u00e4, b', "page, new", 1_701_424_800_000_001, 1.0),
    ]
    assert not ingest_log(NAME, {}, silent, layout=store)["changed"]
    server.append([received(1)])  # an equal event that came again is another event
    more = write_rows(tmp_path / "more.csv", [("u1", "p1", LAST + 5)])
    assert ingest_log(NAME, {"log": str(more)}, silent, layout=store)["version"] == 3
    assert len(rows(store)) == len(ROWS) + 4
    assert rows(store)[-2:] == [
        ("u1", "p1", (LAST + 5) * 1_000_000, 1.0),
        ("u1", "page, new", 1_701_424_800_000_001, 2.5),
    ]


def test_a_received_event_far_after_all_others_is_named_and_no_file_is_refused_for_it(store, tmp_path):
    printed, more = [], write_rows(tmp_path / "more.csv", [("u1", "p1", LAST + 5)])
    ReceivedEvents(layout=store, dataset=NAME).append([received(1, time="2027-01-01T00:00:00Z")])
    assert ingest_log(NAME, {"log": str(more)}, printed.append, layout=store)["changed"]
    assert len(rows(store)) == len(ROWS) + 2
    assert any("1 row lies far after all others, from 2027-01-01" in text for text in printed)


@pytest.mark.parametrize("num_newer", [99, 120])
def test_a_received_event_of_a_year_that_the_log_has_is_committed_though_the_others_are_of_another_one(
    tmp_path, num_newer
):
    layout, year = Layout(str(tmp_path / "store")), 31_556_952
    decades = [(f"u{number % 7}", f"p{number % 5}", year * 5 + number * year // 4) for number in range(190)]
    ingest(layout, tmp_path, decades, 0, window="5 equal")
    events = [received(1, time="2017-06-01T00:00:00Z") for _ in range(num_newer)]
    ReceivedEvents(layout=layout, dataset=NAME).append([*events, received(2, time="1977-06-01T00:00:00Z")])
    counts = ingest_log(NAME, {}, silent, layout=layout)
    assert (counts["num_accepted"], counts["num_quarantined"]) == (190 + num_newer + 1, 0)


def test_received_events_that_the_log_has_are_named_and_a_file_of_received_ones_is_refused(store, tmp_path):
    printed = []
    ReceivedEvents(layout=store, dataset=NAME).append(sent(ROWS[-30:]))
    assert ingest_log(NAME, {}, printed.append, layout=store)["changed"]
    assert len(rows(store)) == len(ROWS) + 30
    assert any(
        "distinct rows are in the log already, or in another new file, and count once" in text for text in printed
    )
    later = [(f"u{number}", "p1", LAST + number) for number in range(30)]
    ReceivedEvents(layout=store, dataset=NAME).append(sent(later))
    same = write_rows(tmp_path / "same.csv", later)
    with pytest.raises(ForeignLog, match=r"same\.csv: 30 of 30 distinct rows are in the log already, or in another"):
        ingest_log(NAME, {"log": str(same)}, silent, layout=store)
    assert ingest_log(NAME, {"log": str(same), "drop_duplicates": True}, silent, layout=store)["changed"]
    assert len(rows(store)) == len(ROWS) + 60


def test_received_events_that_were_left_out_as_repeats_do_not_come_again(store, tmp_path):
    later = [(f"u{number}", "p1", LAST + number) for number in range(30)]
    ReceivedEvents(layout=store, dataset=NAME).append(sent(later))
    same = write_rows(tmp_path / "same.csv", later)
    counts = ingest_log(NAME, {"log": str(same), "drop_duplicates": True}, silent, layout=store)
    assert (counts["num_accepted"], counts["num_dropped"]) == (30, 30)
    assert not ingest_log(NAME, {}, silent, layout=store)["changed"]
    assert len(rows(store)) == len(ROWS) + 30
    assert not received_files(store, NAME)  # a server that starts later does not count them either


def test_an_ingest_that_fails_loses_none(store, tmp_path):
    ReceivedEvents(layout=store, dataset=NAME).append([received(1)])
    broken = tmp_path / "broken.csv"
    broken.write_text("user,page,time\n" + "x\n" * 20)
    with pytest.raises(ValueError, match="does not split into three columns"):
        ingest_log(NAME, {"log": str(broken)}, silent, layout=store)
    assert len(rows(store)) == len(ROWS)
    ingest_log(NAME, {}, silent, layout=store)
    assert len(rows(store)) == len(ROWS) + 1


def test_received_events_that_are_older_make_the_state_anew(store):
    stored_state(store)
    ReceivedEvents(layout=store, dataset=NAME).append([received(1, time="2023-11-14T22:13:20Z")])
    ingest_log(NAME, {}, silent, layout=store)
    assert read_state(stored_state(store)).num_events == len(ROWS) + 1


def test_a_log_with_steps_receives_steps(tmp_path):
    layout = Layout(str(tmp_path / "steps"))
    steps = [(user, page, index // 3) for index, (user, page, _) in enumerate(ROWS)]
    ingest(layout, tmp_path, steps, 0, time_unit="step", window="10")
    ReceivedEvents(layout=layout, dataset=NAME).append([received(7, time=70)])
    ingest_log(NAME, {}, silent, layout=layout)
    assert rows(layout)[-1] == ("u7", "page, new", 70, 2.5)


def test_integers_stay_the_ids_that_they_are(tmp_path):
    layout = Layout(str(tmp_path / "numbers"))
    ingest(layout, tmp_path, [(user[1:], page[1:], time) for user, page, time in ROWS], 0)
    ReceivedEvents(layout=layout, dataset=NAME).append([received(7, source="7", target="99")])
    ingest_log(NAME, {}, silent, layout=layout)
    assert rows(layout)[-1][:2] == ("7", "99")
    ids = node_dictionary(layout, NAME)
    assert ids.filter(side=0, id="7").height == 1


def test_a_log_that_was_dropped_gets_its_received_events_again(store, tmp_path):
    ReceivedEvents(layout=store, dataset=NAME).append([received(1)])
    ingest_log(NAME, {}, silent, layout=store)
    drop_dataset(store, NAME)
    ingest(store, tmp_path, ROWS, 0)
    assert len(rows(store)) == len(ROWS) + 1


def test_snapshots_of_a_log_that_was_dropped_and_ingested_again_read_its_rows(store, tmp_path, monkeypatch):
    monkeypatch.setenv("DYFORMER_STORAGE", store.root)
    assert open_snapshots(make_snapshots(NAME)).events().height == len(ROWS)
    drop_dataset(store, NAME)
    ingest(store, tmp_path, ROWS[:150], 0)
    assert open_snapshots(make_snapshots(NAME)).events().height == 150
