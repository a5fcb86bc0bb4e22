"""Claims about the server: the batch's numbers, events that count at once, named refusals, and nothing lost."""

import gc
import re
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
import uvicorn
from live_logs import NAME, START, ingest, rows_of
from served import served
from waiting import wait_for

from dyformer.scoring import event_horizon, heads
from dyformer.scoring.event_forecaster import TooFewPastEvents
from dyformer.scoring.sent_events import SentEvent, checked_event
from dyformer.streams.event_log import EventQueries
from flows.live import page, running, server
from flows.live import service as live
from flows.live.running import serve_dataset
from flows.live.server import application
from flows.live.service import LiveService
from flows.service.guard import Guard
from flows.service.listening import listening, port_of
from flows.tasks.event_state import events_before, make_model, read_model
from flows.tasks.ingest import ingest_log
from flows.tasks.live import open_horizon, open_ranking
from storage.bytes.checksums import Damaged
from storage.bytes.files import WriteFailed
from storage.bytes.objects import StoreUnreachable
from storage.events.commits import take_back
from storage.events.table import newest_version, scan_events
from storage.layout import Layout

ROWS = rows_of()
NEXT = ROWS[-1][2] + 10
HOUR = 3_600_000_000


def silent(text):
    """Show nothing."""


@pytest.fixture
def service(store):
    return LiveService(layout=store, dataset=NAME, show=silent)


@pytest.fixture
def client(service):
    with served(application(service)) as client:
        yield client


def event(source="u3", target="p5", at=NEXT, **changes):
    return {"source": source, "target": target, "time": at, **changes}


def post(client, *events, status=200):
    response = client.post("/events", json={"events": list(events)})
    assert response.status_code == status, response.text
    return response.json()


def check_that_a_served_ranking_is_that_of_the_batch(client, service, store):
    """Compare probabilities and scores of the server with those of the newest commit, which has the same events."""
    numbered, fitted = events_before(store, NAME, newest_version(store, NAME)), read_model(service.opened.model)
    ids = open_ranking(NAME, layout=store).ranking.ids
    for source in ("u1", "u3", "u13"):
        answer = client.get(f"/rank/{source}", params={"k": 20}).json()
        at = int(np.datetime64(answer["at"].removesuffix("Z"), "us").astype(int))
        query = EventQueries(
            source_Q=np.array([ids.source_numbers[source]]),
            time_Q=np.array([at]),
            num_visible_Q=np.array([len(numbered.log)]),
        )
        [score_D] = np.concatenate(list(fitted(numbered.log, query)))
        expected = [score_D[ids.target_numbers[row["target"]]] for row in answer["ranking"]]
        assert np.abs(np.array([row["probability"] for row in answer["ranking"]]) - expected).max() < 1e-9
        pairs = [{"source": source, "target": name} for name in ids.targets]
        scores = client.post("/score", json={"pairs": pairs}).json()["scores"]
        assert np.abs(np.array([row["score"] for row in scores]) - score_D).max() < 1e-9


def test_a_served_ranking_is_that_of_the_batch_evaluation_also_after_events_that_came(client, service, store):
    came = [event(f"u{number % 14}", f"p{number % 18}", NEXT + number // 3) for number in range(60)]
    for part in (came[:7], came[7:30], came[30:40]):
        post(client, *part)
        client.get("/rank/u1")
    ingest_log(NAME, {}, silent, layout=store)
    check_that_a_served_ranking_is_that_of_the_batch(client, service, store)
    post(client, *came[40:])  # vectors are made of 1,243 events: the server has them with the next commit
    ingest_log(NAME, {}, silent, layout=store)
    service._refresh()
    check_that_a_served_ranking_is_that_of_the_batch(client, service, store)


def test_a_source_that_differs_in_capitals_only_stays_unknown_and_the_note_names_the_other(client):
    answer = client.get("/rank/U1").json()
    assert (answer["source"], answer["known"]) == ("U1", False)
    assert answer["note"].endswith("new sources choose. The log has u1, which differs in capitals only")
    assert answer["ranking"] == client.get("/rank/someone").json()["ranking"]
    assert client.get("/rank/Someone").json()["note"].endswith("new sources choose")
    assert client.get("/rank/u1").json()["note"] is None
    pairs = [{"source": source, "target": "p1"} for source in ("U1", "someone", "u1")]
    scores = client.post("/score", json={"pairs": pairs}).json()["scores"]
    assert [row["note"] for row in scores] == [answer["note"], client.get("/rank/someone").json()["note"], None]


def test_an_event_counts_in_the_next_request(client):
    before = client.get("/rank/someone").json()
    assert (before["known"], before["num_events"]) == (False, 0)
    assert "no event before this time" in before["note"]
    assert post(client, event("someone", "a/b?c"), event("someone", "p2", NEXT + 1)) == {"accepted": 2, "late": 0}
    after = client.get("/rank/someone").json()
    assert (after["known"], after["num_events"], after["note"]) == (True, 2, None)
    linked = {row["target"] for row in after["ranking"] if row["linked_before"]}
    assert linked == {"a/b?c", "p2"}
    post(client, event("a/b c", "p1", NEXT + 2))
    assert client.get("/rank/a%2Fb%20c").json()["num_events"] == 1
    assert all(row["reasons"] == [] for row in client.get("/rank/u3?reasons=false").json()["ranking"])


@pytest.fixture
def few_rounds_of_horizons(monkeypatch):
    few = replace(event_horizon.EVENTS, gate_rounds=8, past_rounds=8, new_rounds=8)
    monkeypatch.setattr(event_horizon, "EVENTS", few)
    monkeypatch.setattr(heads, "NUM_ROUNDS", 8)


@pytest.fixture
def with_horizons(store, few_rounds_of_horizons):
    return LiveService(layout=store, dataset=NAME, show=silent, lengths=("6h", "12h"))


def test_a_served_ranking_within_a_horizon_is_that_of_the_stored_forecaster_by_pair(with_horizons, store):
    opened = open_ranking(NAME, layout=store)
    with served(application(with_horizons)) as client:
        next_one = client.get("/rank/u1").json()
        for name, hours in (("6h", 6), ("12h", 12)):
            of_pairs = open_horizon(opened, hours * HOUR, layout=store)
            expected = opened.ranking.rank("u1", k=10, horizon=of_pairs)
            answer = client.get("/rank/u1", params={"horizon": name}).json()
            assert answer["horizon"] == name
            assert [row["target"] for row in answer["ranking"]] == expected.targets
            assert [row["probability"] for row in answer["ranking"]] == expected.probability_K.tolist()
            assert answer["ranking"] != next_one["ranking"]
            assert f"Partners of u1 within {name}" in client.get("/?source=u1").text
        assert next_one["horizon"] is None
        refused = client.get("/rank/u1", params={"horizon": "3d"})
    assert refused.status_code == 422
    assert "expected one that is served (6h, 12h)" in refused.json()["detail"]
    assert "--horizon 3d" in refused.json()["detail"]


@contextmanager
def following(service, monkeypatch):
    """Let a service look at the store many times a second."""
    monkeypatch.setattr(live, "SECONDS_BETWEEN_LOOKS", 0.05)
    is_stopping = threading.Event()
    thread = threading.Thread(target=service.follow, args=(is_stopping,))
    thread.start()
    yield
    is_stopping.set()
    thread.join()


def wait_until(is_so):
    until = time.monotonic() + 60
    while not is_so() and time.monotonic() < until:
        time.sleep(0.05)


def commit_later(store, folder):
    later = [(f"u{number % 12}", f"p{number % 16}", NEXT + 600 * number) for number in range(300)]
    assert ingest(store, folder, later, 1) == 2


def test_horizons_are_fitted_again_on_a_new_commit_and_on_no_event_that_was_only_received(
    with_horizons, store, tmp_path, monkeypatch
):
    before, looks = with_horizons.horizons, []
    is_behind = with_horizons._is_behind
    monkeypatch.setattr(with_horizons, "_is_behind", lambda: looks.append(1) or is_behind())
    with following(with_horizons, monkeypatch):
        with_horizons.accept([SentEvent(source="u1", target="p9", time=NEXT * 1_000_000, weight=1.0)])
        wait_until(lambda: len(looks) > 3)
        assert with_horizons.horizons is before
        commit_later(store, tmp_path)
        wait_until(lambda: with_horizons.horizons is not before)
    committed = events_before(store, NAME, 2, None).log
    settings = with_horizons.ranking.fitted.settings
    expected = event_horizon.fit_horizon(committed, settings, length=6 * HOUR, seed=0)
    assert with_horizons.horizons["6h"].record() == expected.record()
    assert with_horizons.horizons["6h"].record() != before["6h"].record()


def test_a_fit_of_horizons_that_fails_is_tried_again_and_not_at_once(with_horizons, store, tmp_path, monkeypatch):
    fit, before, tries, failures = live.open_horizon, with_horizons.horizons, [], []

    def failing(*given, **options):
        tries.append(time.monotonic())
        if len(tries) == 1:
            time.sleep(1.5)  # longer than the pause, as a fit may take
            failures.append(time.monotonic())
            raise OSError("the store is away")
        return fit(*given, **options)

    monkeypatch.setattr(live, "open_horizon", failing)
    monkeypatch.setattr(live, "SECONDS_BETWEEN_FITS", 1.0)
    with following(with_horizons, monkeypatch):
        commit_later(store, tmp_path)
        wait_until(lambda: with_horizons.horizons is not before)
    assert with_horizons.horizons is not before
    assert tries[1] - failures[0] >= 1.0


def test_horizons_that_may_have_read_what_was_taken_back_are_served_no_more(
    store, tmp_path, monkeypatch, few_rounds_of_horizons
):
    commit_later(store, tmp_path)
    lines = []
    service = LiveService(layout=store, dataset=NAME, show=lines.append, lengths=("6h",))
    take_back(store, NAME)

    def away(*given, **options):
        raise OSError("the store is away")

    monkeypatch.setattr(live, "open_horizon", away)
    failed = "the horizons could not be fitted: the store is away"
    with following(service, monkeypatch):
        wait_until(lambda: failed in lines)
    assert failed in lines
    assert service.horizons == {}
    with served(application(service)) as client:
        answer = client.get("/rank/u1", params={"horizon": service.lengths[0]})
        assert answer.status_code == 503
        assert answer.json()["detail"] == (
            f"horizon={service.lengths[0]}: rows that it was fitted on were taken back; it is served again once it is"
            " fitted on others"
        )
        assert client.get("/rank/u1", params={"horizon": "3d"}).status_code == 422


def test_late_events_and_commits_wait_for_no_fit_of_horizons(with_horizons, store, tmp_path, monkeypatch):
    fit, may_fit, fitting = live.open_horizon, threading.Event(), threading.Event()

    def slow(*given, **options):
        fitting.set()
        assert may_fit.wait(60)
        return fit(*given, **options)

    monkeypatch.setattr(live, "open_horizon", slow)
    monkeypatch.setattr(live, "SECONDS_BETWEEN_LATE", 0.0)
    before = with_horizons.horizons
    with following(with_horizons, monkeypatch):
        commit_later(store, tmp_path)
        assert fitting.wait(60)
        late = SentEvent(source="late one", target="p1", time=ROWS[500][2] * 1_000_000, weight=1.0)
        assert with_horizons.accept([late]).num_late == 1
        ingest(store, tmp_path, [("u6", "from a file", NEXT + 200_000)], 2)
        wait_until(lambda: with_horizons.opened.version == 3 and not with_horizons.num_late)
        assert with_horizons.ranking.past("late one", 1)[0].target == "p1"
        assert with_horizons.ranking.past("u6", 1)[0].target == "from a file"
        assert with_horizons.horizons is before
        may_fit.set()
        wait_until(lambda: with_horizons._horizons_of == 3)
    assert with_horizons._horizons_of == 3


@pytest.mark.parametrize("is_late", [False, True])  # a commit of old rows leaves the time of the newest row as it is
def test_a_fit_that_read_what_was_taken_back_meanwhile_is_not_served(
    with_horizons, store, tmp_path, monkeypatch, is_late
):
    fit, may_fit, fitting, versions = live.open_horizon, threading.Event(), threading.Event(), []

    def slow(opened, *given, **options):
        versions.append(opened.version)
        fitting.set()
        assert may_fit.wait(60)
        if opened.version == 3:
            raise OSError("the store is away")
        return fit(opened, *given, **options)

    monkeypatch.setattr(live, "open_horizon", slow)
    with following(with_horizons, monkeypatch):
        ingest(store, tmp_path, [("u1", "p1", ROWS[500][2] if is_late else NEXT)], 1)
        assert fitting.wait(60)
        take_back(store, NAME)
        wait_until(lambda: with_horizons.opened.version == 3)
        assert with_horizons.horizons == {}
        may_fit.set()
        wait_until(lambda: 3 in versions)
    assert with_horizons.horizons == {}


def test_a_horizon_without_a_pair_is_named_among_several(store, monkeypatch):
    def failing(opened, length, **options):
        if length == 12 * HOUR:
            raise TooFewPastEvents("no candidate occurs in it")
        return SimpleNamespace(probability=lambda state, number, target_R, at: (np.zeros(len(target_R)),) * 2)

    monkeypatch.setattr(live, "open_horizon", failing)
    with pytest.raises(TooFewPastEvents, match=r"^horizon '12h': no candidate occurs in it$"):
        LiveService(layout=store, dataset=NAME, show=silent, lengths=("6h", "12h"))


def test_a_horizon_that_is_too_long_is_refused_before_anything_is_fitted(store, monkeypatch):
    monkeypatch.setattr(live, "open_ranking", lambda *_given, **_options: pytest.fail("a ranking is opened"))
    with pytest.raises(TooFewPastEvents, match=r"horizon '30d': .* choose a shorter horizon"):
        LiveService(layout=store, dataset=NAME, show=silent, lengths=("30d",))


def test_a_ranking_waits_for_no_thread_of_longer_requests(client, service, monkeypatch):
    rank, names = service.ranking.rank, []

    def noting(*given, **options):
        names.append(threading.current_thread().name)
        return rank(*given, **options)

    monkeypatch.setattr(service.ranking, "rank", noting)
    assert client.get("/rank/u0").status_code == 200
    [name] = names
    assert not name.startswith("AnyIO worker thread")


def test_scores_are_in_the_order_of_the_pairs(client):
    pairs = [{"source": "u1", "target": "p3"}, {"source": "u2", "target": "never"}, {"source": "u1", "target": "p4"}]
    rows = client.post("/score", json={"pairs": pairs}).json()["scores"]
    assert [(row["source"], row["target"]) for row in rows] == [tuple(pair.values()) for pair in pairs]
    assert (rows[1]["score"], rows[1]["probability"], rows[1]["linked_before"]) == (0, None, False)
    by_rank = {row["target"]: row for row in client.get("/rank/u1?k=100").json()["ranking"]}
    assert abs(by_rank["p3"]["probability"] - rows[0]["probability"]) < 1e-12
    assert by_rank["p3"]["linked_before"] == rows[0]["linked_before"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"time": "yesterday"}, "expected a date such as"),
        ({"time": NEXT * 1_000}, "expected one of the years 1 to 9999, and numbers in the unit 's' of the log"),
        ({"time": 5}, "continue the log, as dates such as 2024-03-01T10:00:00Z, or as numbers in its unit 's'; none"),
        ({"time": NEXT / 1_000}, "continue the log, as dates such as 2024-03-01T10:00:00Z, or as numbers in its unit"),
        ({"time": "2200-01-01"}, "expected"),
        ({"time": "1e999999999"}, "expected a finite number"),
        ({"time": "9" * 5_000}, "expected a finite number"),
        ({"time": "sNaN"}, "expected a finite number"),
        ({"weight": -1.0}, "expected a finite number from 0 on"),
        ({"source": ""}, "the source ''"),
        ({"source": " ann"}, "spaces at its ends"),
        ({"target": "two\nlines"}, "without control characters"),
        ({"target": "7.0"}, "the form of a number like 7.0"),
        ({"target": "x" * 1_001}, "1 to 1,000 letters"),
        ({"source": None}, "valid"),
        ({"source": True}, "valid"),
        ({"time": True}, "valid"),
        ({"weight": True}, "a valid number"),
        ({"weight": "2"}, "a valid number"),
        ({"amount": 500.0}, "unknown field 'amount': expected source, target, time, weight"),
    ],
)
def test_a_wrong_event_is_named_and_none_is_accepted(client, service, store, changes, words):
    before = service.ranking.num_events
    answer = client.post("/events", json={"events": [event(), event() | changes]})
    assert answer.status_code == 422
    assert words in answer.text
    assert service.ranking.num_events == before
    assert not ingest_log(NAME, {}, silent, layout=store)["changed"]


def test_an_event_before_the_first_step_is_refused_because_an_ingest_would_be(tmp_path):
    layout = Layout(str(tmp_path / "steps"))
    ingest(
        layout,
        tmp_path,
        [(user, page, (at - START) // 600) for user, page, at in ROWS],
        0,
        time_unit="step",
        window="100",
    )
    service = LiveService(layout=layout, dataset=NAME, show=silent)
    with served(application(service)) as client:
        last = (ROWS[-1][2] - START) // 600
        assert post(client, event(at=last + 1), event(at=0))["late"] == 1
        for at in (-1, 2**61, "1e999999"):
            assert "event 1" in post(client, event(at=last + 1), event() | {"time": at}, status=422)["detail"]
    assert ingest_log(NAME, {}, silent, layout=layout)["num_accepted"] == len(ROWS) + 2


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (f"/rank/u3?at={START}", "expected a time after the newest event"),
        ("/rank/u3?at=never", "expected a date such as"),
        ("/rank/u3?at=1e999999999", "expected a finite number"),
        ("/rank/", "the source '': expected an id as the log has it"),
        ("/rank/7.0", "the source '7.0': expected an id as the log has it"),
        ("/rank/%20u3", "the source ' u3': expected an id as the log has it"),
        ("/rank/u3?k=0", "greater than or equal to 1"),
        ("/rank/u3?horizn=6h&k=5", "unknown parameter 'horizn': expected k, at, reasons, horizon"),
    ],
)
def test_a_wrong_request_is_named(client, path, words):
    answer = client.get(path)
    assert answer.status_code == 422
    assert words in answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/events", '{"events": NaN}'),
        ("/events", '{"events": "\\ud800"}'),
        ("/events", '{"events": [{"source": "\\ud800", "target": "p1", "time": 1}]}'),
        ("/score", '{"pairs": [{"source": "\\ud800", "target": "p1"}]}'),
        ("/score", '{"pairs": [{"source": "u1", "target": "\\udfff"}]}'),
        ("/score", '{"pairs": [{"source": "u1"}], "at": Infinity}'),
        ("/score", '{"pairs": [{"source": "u1", "target": "p1"}], "at": NaN}'),
        ("/events", '{"events": [{"source": "u1", "target": "p1", "time": 1, "\\ud800": 1}]}'),
    ],
)
def test_a_value_that_no_response_can_repeat_is_refused(client, path, body):
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/events", {"events": [event()], "dataset": NAME}, "unknown field 'dataset': expected events"),
        ("/score", {"pairs": [{"source": "u1", "target": "p1"}], "horizon": "6h"}, "'horizon': expected pairs, at"),
        (
            "/score",
            {"pairs": [{"source": "u1", "target": "p1", "at": 1}]},
            "unknown field 'at': expected source, target",
        ),
        ("/events", {"events": [event()], "x" * 1_000: 1}, f"unknown field '{'x' * 40}': expected"),
    ],
)
def test_a_field_that_would_not_count_is_refused(client, path, body, words):
    answer = client.post(path, json=body)
    assert answer.status_code == 422
    assert words in answer.json()["detail"][0]["msg"]
    assert len(answer.content) < 300


def test_an_id_that_no_ingest_reads_is_refused_in_pairs(client):
    for end in ("source", "target"):
        pair = {"source": "u1", "target": "p1"} | {end: "7.0"}
        answer = client.post("/score", json={"pairs": [{"source": "u1", "target": "p1"}, pair]})
        assert answer.status_code == 422
        assert f"the {end} '7.0': expected an id as the log has it" in answer.json()["detail"]


def test_a_refusal_does_not_repeat_the_body(client):
    answer = client.post("/events", json={"events": [event()] * 10_001})
    assert answer.status_code == 422
    assert "at most 10000 items" in answer.text
    assert len(client.post("/events", json={"events": [{}] * 10_000}).content) < 10_000
    assert len(answer.content) < 1_000


def test_a_body_that_is_too_large_is_refused(client, monkeypatch):
    monkeypatch.setattr(server, "MOST_BYTES", 1_000)
    post(client, event())
    answer = client.post("/events", json={"events": [event(source="x" * 1_000)]})
    assert answer.status_code == 413
    assert "more than 1,000 bytes: send fewer" in answer.json()["detail"]


@pytest.mark.parametrize("source", ["--5", "-", "1" * 5_000, "007", "\N{ARABIC-INDIC DIGIT ONE}"])
def test_a_text_that_is_no_integer_stays_one_in_a_log_of_integers(client, service, source):
    service.opened = replace(service.opened, has_integer_ids=True)
    answer = client.get(f"/rank/{source}")
    assert (answer.status_code, answer.json()["source"]) == (200, source)
    assert client.get("/rank/-12").json()["source"] == -12
    assert client.get("/", params={"source": source}).status_code == 200


@pytest.mark.parametrize(
    "line", [b"garbage", b"5", b'{"source": 1}', b'{"source": "a", "target": "b", "time": 1, "weight": 1.0}', b"\xff"]
)
def test_a_line_that_no_server_has_written_is_named_with_its_file(client, store, line):
    post(client, event())
    [path] = Path(store.received(NAME)).glob(".open-*")
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(ValueError, match="which no server has written: remove it") as caught:
        LiveService(layout=store, dataset=NAME, show=silent)
    assert str(path) in str(caught.value)


def test_as_of_a_later_time(client):
    later = client.get(f"/rank/u3?at={NEXT + 1_000}").json()
    assert later["at"].endswith("Z")
    assert later["ranking"][0]["probability"] != client.get("/rank/u3").json()["ranking"][0]["probability"]


def test_late_events_count_once_the_state_is_made_anew(client, service, monkeypatch):
    assert post(client, event(at=NEXT), event(at=ROWS[500][2], source="late one"))["late"] == 1
    assert client.get("/rank/late one").json()["num_events"] == 0
    assert service.ranking.num_events == len(ROWS) + 1
    monkeypatch.setattr(live, "SECONDS_BETWEEN_LATE", 0.0)
    assert service._is_behind()
    service._refresh()
    assert client.get("/rank/late one").json()["num_events"] == 1
    assert (service.num_late, service.ranking.num_events) == (0, len(ROWS) + 2)
    assert not service._is_behind()


def test_late_events_alone_let_no_stored_state_be_read(client, service, monkeypatch):
    post(client, event(at=NEXT), event(at=ROWS[500][2], source="late one"))
    monkeypatch.setattr(live, "open_ranking", None)
    fitted, before = service.ranking.fitted, service.ranking
    service._refresh(service.opened)
    assert service.ranking is not before
    assert service.ranking.fitted is fitted
    assert (service.num_late, service.ranking.num_events) == (0, len(ROWS) + 2)
    assert client.get("/rank/late one").json()["num_events"] == 1


def test_a_thread_rests_for_a_multiple_of_what_it_computed_and_looks_meanwhile(monkeypatch):
    computed, clock, slept, looks = [0.0], [0.0], [], []
    now = {"thread_time": lambda: computed[0], "monotonic": lambda: clock[0], "sleep": slept.append}
    monkeypatch.setattr(live, "time", SimpleNamespace(**now))
    rests = live.Rests(lambda: looks.append(clock[0]))
    for computed[0], clock[0] in ((0.5, 1.0), (0.75, 1.1), (0.75, 2.0), (1.0, 2.2)):
        rests()
    assert slept == [1.5, 0.75, 0.0, 0.75]
    assert looks == [1.1, 2.2]


def test_a_new_commit_and_a_new_model_are_followed_and_no_event_counts_twice(client, service, store, tmp_path):
    post(client, event("u3", "came"), event("u4", "came"))
    ingest_log(NAME, {}, silent, layout=store)
    post(client, event("u5", "came", NEXT + 1))
    ingest(store, tmp_path, [("u6", "from a file", NEXT + 2)], 1)
    post(client, event("u7", "came", NEXT + 3))
    assert service._is_behind()
    fitted = service.ranking.fitted
    service._refresh(service.opened)
    assert not service._is_behind()
    assert service.ranking.fitted is fitted
    assert service.ranking.num_events == len(ROWS) + 5
    for source, partner in (("u3", "came"), ("u5", "came"), ("u6", "from a file"), ("u7", "came")):
        assert service.ranking.past(source, 1)[0].target == partner
    model = make_model(NAME, layout=store)
    assert service._is_behind()
    service._refresh(service.opened)
    assert service.opened.model == model
    assert service.ranking.fitted is not fitted


def test_a_server_that_starts_again_has_what_was_acknowledged(client, store):
    post(client, event("u3", "came"))
    again = LiveService(layout=store, dataset=NAME, show=silent)
    assert again.ranking.past("u3", 1)[0].target == "came"
    assert again.ranking.num_events == len(ROWS) + 1


def test_events_of_several_threads_are_written_together_and_once(service, store):
    def send(number):
        moment = checked_event(f"u{number}", "p1", NEXT + number, 1.0, "s")
        for _ in range(5):
            service.accept([moment])

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ingest_log(NAME, {}, silent, layout=store)
    rows = scan_events(store, NAME, 2).filter(ingest=2).collect()
    assert sorted(rows["source"].to_list()) == sorted(f"u{number}" for number in range(8) for _ in range(5))
    service._refresh()
    assert service.ranking.num_events == len(ROWS) + 40


def test_a_full_disk_is_named_and_nothing_counts(client, service, monkeypatch):
    def full(events):
        raise WriteFailed("the disk is full")

    monkeypatch.setattr(service._received, "append", full)
    assert "no event was accepted: the disk is full" in post(client, event(), status=503)["detail"]
    assert service.ranking.num_events == len(ROWS)


def test_an_unreadable_store_is_reported_and_the_old_ranking_stays(service, monkeypatch):
    def broken():
        raise OSError("the disk is gone")

    monkeypatch.setattr(service, "_is_behind", broken)
    monkeypatch.setattr(live, "SECONDS_BETWEEN_LOOKS", 0.01)
    with served(application(service), lifespan="on") as client:
        until = time.monotonic() + 10
        while client.get("/health").status_code == 200:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert client.get("/rank/u3").status_code == 200
        assert "dyformer_store_readable 0.0" in client.get("/metrics").text


def test_tables_grow_in_the_thread_that_follows_the_store(service, monkeypatch):
    growing, threads = service.ranking.grow_ahead, []
    monkeypatch.setattr(
        service.ranking, "grow_ahead", lambda rest: (threads.append(threading.current_thread()), growing(rest))
    )
    monkeypatch.setattr(live, "SECONDS_BETWEEN_LOOKS", 0.01)
    with served(application(service), lifespan="on") as client:
        wait_for(lambda: bool(threads))
        assert client.get("/rank/u3").status_code == 200
    assert threading.main_thread() not in threads
    assert service.problem is None


def test_a_collection_does_not_go_through_what_a_server_has_loaded(store, monkeypatch):
    loaded, searched = [], []

    def load(**given):
        loaded.append(LiveService(**given))
        return loaded[0]

    def run(self, sockets):
        searched.extend(each for each in gc.get_objects() if each is loaded[0] or each is loaded[0].ranking)
        for listener in sockets:
            listener.close()

    monkeypatch.setattr(running, "LiveService", load)
    monkeypatch.setattr(uvicorn.Server, "run", run)
    interval = sys.getswitchinterval()
    try:
        serve_dataset(store, NAME, "127.0.0.1", 0, (), (), silent)
    finally:
        sys.setswitchinterval(interval)
    assert loaded
    assert searched == []


def test_a_name_counts_with_the_port_of_a_proxy_too(store, monkeypatch):
    hosts: tuple[str, ...] = ()

    def run(self, sockets):
        nonlocal hosts
        hosts = self.config.app.hosts
        for listener in sockets:
            hosts = tuple(host.replace(str(port_of(listener)), "PORT") for host in hosts)
            listener.close()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(running, "LiveService", lambda **given: None)
    monkeypatch.setattr(running, "application", lambda service: None)
    interval = sys.getswitchinterval()
    try:
        serve_dataset(store, NAME, "127.0.0.1", 0, ("ml.example", "b.example:8443"), (), silent)
    finally:
        sys.setswitchinterval(interval)
    local = {"127.0.0.1:PORT", "localhost:PORT"}  # never without a port, under which a page of another server is called
    assert set(hosts) - {"b.example:8443:PORT"} == {*local, "ml.example:PORT", "ml.example", "b.example:8443"}


@pytest.mark.parametrize(
    ("slow_part", "doing"),
    [
        ("checked_horizons", "looking at the store"),
        ("open_ranking", "reading its forecaster and its events"),
        ("load_growth", "a first ranking, for which code is compiled once after an installation"),
        ("open_horizon", "fitting the horizon 6h, 1 of 2"),
    ],
)
def test_a_server_that_is_not_ready_prints_what_it_does(store, monkeypatch, capsys, slow_part, doing):
    def slow(*_, **__):
        time.sleep(0.3)
        raise ValueError("it took long")

    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.02)
    monkeypatch.setattr(live, slow_part, slow)
    with pytest.raises(ValueError, match="it took long"):
        serve_dataset(store, NAME, "127.0.0.1", 0, (), ("6h", "12h"), silent)
    assert f"serve {NAME}: not ready ({doing}): 0 s so far" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "is_taken", "says"),
    [
        ("192.0.2.1", False, "host '192.0.2.1': expected an IPv4 address or a name of this machine"),
        ("192.0.2.1", True, "host '192.0.2.1': expected"),
        ("::1", False, "host '::1': expected"),
        ("", False, "host '': expected"),
        ("127.0.0.1", True, "cannot be listened at (Address already in use): give a free one with --port"),
    ],
)
def test_an_address_that_cannot_be_listened_at_is_named_before_anything_is_fitted(
    store, monkeypatch, host, is_taken, says
):
    monkeypatch.setattr(running, "LiveService", None)
    with listening("127.0.0.1", 0) as taken, pytest.raises(ValueError, match=re.escape(says)):
        serve_dataset(store, NAME, host, port_of(taken) if is_taken else None, (), (), silent)


def test_prometheus_reads_counters_and_latencies(client):
    post(client, event(), event())
    client.get("/rank/u3")
    text = client.get("/metrics").text
    assert "dyformer_events_accepted_total 2.0" in text
    assert f"dyformer_events {len(ROWS) + 2}.0" in text
    assert 'dyformer_requests_total{path="/rank",status="200"} 1.0' in text
    assert 'dyformer_request_seconds_bucket{le="1.0",path="/rank"} 1.0' in text


def test_a_foreign_name_and_a_missing_login_are_refused(service):
    application_, login = application(service), ("dyformer", "secret")
    with served(Guard(application=application_, hosts=("127.0.0.1:*",), login="dyformer:secret")) as client:
        assert client.get("/rank/u3").status_code == 401
        assert client.get("/health").status_code == 200
        assert client.get("/rank/u3", auth=login).status_code == 200
        assert client.get("/rank/u3", auth=login, headers={"host": "evil.example"}).status_code == 403
        assert client.get("/", headers={"origin": "http://evil.example"}, auth=login).status_code == 403


def test_the_page_escapes_ids_and_finds_parts_of_them(client):
    post(client, event("<script>alert(1)</script>", "<b>bold</b>"))
    page = client.get("/", params={"source": "<script>alert(1)</script>"}).text
    assert "<script>" not in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    found = client.get("/", params={"source": "script"}).text
    assert "Those that contain it" in found
    assert 'href="/?source=%3Cscript%3Ealert%281%29%3C%2Fscript%3E"' in found
    assert "http://" not in page
    assert "https://" not in page


def test_the_name_of_a_column_of_numbers_stands_above_them(client):
    page = client.get("/", params={"source": "u3"}).text
    of_cells = dict(re.findall(r'<td data-name="([^"]+)"( class=\w+)?>', page))
    of_names = {name: kind for kind, name in re.findall(r"<th( class=\w+)?>([^<]+)</th>", page)}
    assert of_names == of_cells
    assert of_names["events"] == " class=number"


@pytest.mark.parametrize(
    "error", [Damaged("7_forecasts/x", "was changed", "delete it"), StoreUnreachable("s3://bucket", "it is away")]
)
def test_the_page_of_a_node_is_there_without_forecasts_that_cannot_be_read(client, monkeypatch, error):
    monkeypatch.setattr(page, "publications", Mock(side_effect=error))
    answer = client.get("/?source=u3")
    assert answer.status_code == 200
    assert "Next partners of u3" in answer.text
    assert f"Earlier forecasts cannot be read: {error}" in answer.text


def test_the_page_of_a_source_has_no_forecast_of_the_target_with_the_same_id(client, service, monkeypatch):
    post(client, event("7", "p5"), event("u3", "7"))
    sides, ids, partners = [0, 0, 1, 1], ["7", "u3", "7", "p5"], ["p5", "p6", "u3", "u4"]
    forecasts = pl.DataFrame({"side": sides, "id": ids, "partner_id": partners, "rank": 1, "probability": 0.5})
    published = {"forecasts": "somewhere", "start_time": NEXT * 1_000_000, "method": "the forecaster"}
    monkeypatch.setattr(page, "publications", lambda *given: pl.DataFrame([published]))
    monkeypatch.setattr(page, "read_table", lambda *given: forecasts)

    def forecast_of(node):
        text = client.get("/", params={"source": node}).text.partition("Earlier forecasts")[2]
        return re.findall('data-name="(?:partner|came since)">([^<]*)<', text)

    assert forecast_of("7") == ["p5", "yes"]
    assert forecast_of("u3") == ["p6", "no"]
    assert "None of this node" in client.get("/", params={"source": "p5"}).text  # no source


def test_a_time_that_an_event_overtakes_is_refused(client, service, monkeypatch):
    monkeypatch.setattr(server, "_moment", lambda *given: service.ranking.now - 1)
    assert client.get("/rank/u3").status_code == 409
    answer = client.post("/score", json={"pairs": [{"source": "u3", "target": "p5"}]})
    assert answer.status_code == 409
    assert "try again with a later time" in answer.json()["detail"]


def test_the_page_for_programs_lists_every_request_and_loads_nothing(client):
    page = client.get("/docs").text
    for path in ("/events", "/rank/{source}", "/score", "/health", "/metrics"):
        assert path in page
    assert "linked_before" in page
    assert "http" not in page.replace("http-equiv", "")
    assert client.get("/openapi.json").json()["paths"].keys() >= {"/events", "/score"}
