"""Claims about the live service: no event is acknowledged unwritten, one response has one time, names at port 80."""

import asyncio
import sys
import threading
from unittest.mock import Mock

import httpx
import pytest
import uvicorn
from live_logs import NAME, rows_of
from served import served
from waiting import wait_for

from dyformer.logs.moments import written_moment
from dyformer.scoring.event_forecaster import TooFewPastEvents
from flows.live import running, server
from flows.live import service as live
from flows.live.server import application
from flows.live.service import LiveService, SentEvent
from flows.service.login import read_variables
from storage.bytes import files
from storage.bytes.files import WriteFailed
from storage.raw.received import WaitingEvents

NEXT = rows_of()[-1][2] + 10


@pytest.fixture
def service(store):
    return LiveService(layout=store, dataset=NAME, show=lambda text: None)


def sent_together(service, count):
    """Send one event in each of some threads, which one of them writes for all; give what each got."""
    outcomes = []

    def send(number):
        try:
            event = SentEvent(source=f"sender {number}", target="p1", time=NEXT * 1_000_000, weight=1.0)
            outcomes.append(service.accept([event]))
        except Exception as error:  # noqa: BLE001, because the test compares what each got
            outcomes.append(error)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(count)]
    with service._changing:
        for thread in threads:
            thread.start()
        wait_for(lambda: len(service._queue) == count)
    for thread in threads:
        thread.join(timeout=20)
    return outcomes


def check_that_none_was_accepted(service, store, outcomes, expected):
    assert [type(outcome) for outcome in outcomes] == [expected] * 3
    assert service.ranking.num_events == len(rows_of())
    assert WaitingEvents(layout=store, dataset=NAME, committed=frozenset()).read().is_empty()


def failing_once(monkeypatch, owner, name, error):
    """Let the first call of a function fail, and no later one."""
    function, calls = getattr(owner, name), []

    def failing(*given, **options):
        calls.append(given)
        if len(calls) == 1:
            raise error
        return function(*given, **options)

    monkeypatch.setattr(owner, name, failing)


def test_where_the_folder_cannot_be_made_no_request_of_the_batch_is_acknowledged(service, store, monkeypatch):
    failing_once(monkeypatch, files, "make_folder", OSError(28, "No space left on device"))
    check_that_none_was_accepted(service, store, sent_together(service, 3), WriteFailed)


def test_an_error_of_any_kind_is_that_of_all_requests_of_the_batch(service, store, monkeypatch):
    failing_once(monkeypatch, service._received, "append", MemoryError())
    check_that_none_was_accepted(service, store, sent_together(service, 3), MemoryError)
    assert [outcome.num_events for outcome in sent_together(service, 3)] == [1] * 3
    assert service.ranking.num_events == len(rows_of()) + 3


PAIRS = [{"source": f"u{number}", "target": "p1"} for number in range(4)]


def coming_between(service, monkeypatch, num_times, most):
    """Let events of some later times come after the first source of each try to score several, for so many tries."""
    scores, tries = service.ranking.scores, []

    def observed(source, targets, *, at=None):
        found = scores(source, targets, at=at)
        if source == "u0" and len(tries) < most:
            tries.append(found.at)
            times = [found.at + 5_000_000 * number for number in range(num_times)]
            service.accept([SentEvent(source="u2", target="p1", time=time, weight=1.0) for time in times])
        return found

    monkeypatch.setattr(service.ranking, "scores", observed)
    return tries


@pytest.mark.parametrize("num_times", [1, 2])
def test_the_pairs_of_a_response_are_scored_as_of_one_time(service, monkeypatch, num_times):
    with served(application(service)) as client:
        before = client.post("/score", json={"pairs": PAIRS}).json()
        tries = coming_between(service, monkeypatch, num_times, 1)
        answer = client.post("/score", json={"pairs": PAIRS}).json()
        assert len(tries) == 1
        monkeypatch.undo()
        after = client.post("/score", json={"pairs": PAIRS}).json()
        assert after["scores"][2] != before["scores"][2]
        assert answer == (before if num_times == 1 else after), "a later event counts for all pairs or for none"


def test_events_that_come_all_the_time_are_named_and_hold_up_no_single_source(service, monkeypatch):
    with served(application(service)) as client:
        tries = coming_between(service, monkeypatch, 2, 1 + server.MOST_TRIES)
        assert client.post("/score", json={"pairs": PAIRS[:1]}).status_code == 200
        assert len(tries) == 1
        answer = client.post("/score", json={"pairs": PAIRS})
        assert (answer.status_code, len(tries)) == (409, 1 + server.MOST_TRIES)
        assert "try again with a later time as `at`" in answer.json()["detail"]
        later = written_moment(service.ranking.now + 60_000_000, "s")
        assert client.post("/score", json={"pairs": PAIRS, "at": later}).json()["at"] == later


@pytest.mark.parametrize(
    ("served_before", "sentence"),
    [
        ({"6h": Mock()}, f"the horizons stay those of an earlier version of {NAME}: too few"),
        ({}, f"no horizon of {NAME} is served until its next version: too few"),
    ],
)
def test_horizons_that_cannot_be_fitted_again_are_those_of_before_or_after_an_undo_none(
    service, monkeypatch, served_before, sentence
):
    lines = []
    service.show, service.lengths, service.horizons = lines.append, ("6h",), served_before
    monkeypatch.setattr(live, "open_horizon", Mock(side_effect=TooFewPastEvents("too few")))
    service._refit_horizons()
    assert lines == [sentence]
    assert service.horizons is served_before


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        (80, {"localhost": 200, "127.0.0.1": 200, "mine": 200, "localhost:80": 200, "mine:81": 403, "other": 403}),
        (8100, {"localhost": 403, "localhost:8100": 200, "mine:8100": 200, "localhost:80": 403}),
    ],
)
def test_clients_of_port_80_leave_it_out_of_the_name(store, monkeypatch, port, expected):
    found = {}

    def run(self, sockets):
        for listener in sockets:
            listener.close()

        async def call():
            user, _, password = read_variables(running.login_file(store, NAME))[running.LOGIN].partition(":")
            transport, address = httpx.ASGITransport(app=self.config.app), f"http://localhost:{port}"
            async with httpx.AsyncClient(transport=transport, auth=(user, password), base_url=address) as client:
                assert (await client.get("/metrics")).status_code == 200
                for host in expected:
                    found[host] = (await client.get("/metrics", headers={"host": host})).status_code

        asyncio.run(call())

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(running, "port_of", lambda listener: port)
    interval = sys.getswitchinterval()
    try:
        running.serve_dataset(store, NAME, "127.0.0.1", 0, ("mine",), (), lambda text: None)
    finally:
        sys.setswitchinterval(interval)
    assert found == expected
