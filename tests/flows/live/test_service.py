"""Claims about the live service: no event is acknowledged unwritten, scores have their times, names at port 80."""

import threading

import pytest
from live_logs import NAME, ingest, rows_of
from served import served
from waiting import wait_for

from dyformer.logs.moments import written_moment
from dyformer.scoring.sent_events import SentEvent
from flows.live import service as live
from flows.live.server import application
from flows.live.service import LiveService
from flows.tasks.event_state import newest_model
from storage.bytes import files
from storage.bytes.files import WriteFailed
from storage.events.commits import take_back
from storage.layout import Layout
from storage.raw.received import WaitingEvents
from storage.removal import drop_dataset

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


def test_each_source_of_a_response_has_the_time_as_of_which_it_is_scored(service, monkeypatch):
    scores = service.ranking.scores

    def observed(source, targets, *, at=None):
        found = scores(source, targets, at=at)
        if source == "u0":  # events of later times come before the next source
            sent = (SentEvent(source="u2", target="p1", time=found.at + more, weight=1.0) for more in (0, 5_000_000))
            service.accept(list(sent))
        return found

    with served(application(service)) as client:
        before = client.post("/score", json={"pairs": PAIRS}).json()
        assert {row["at"] for row in before["scores"]} == {before["at"]}
        with monkeypatch.context() as patch:
            patch.setattr(service.ranking, "scores", observed)
            answer = client.post("/score", json={"pairs": PAIRS}).json()
        after = client.post("/score", json={"pairs": PAIRS}).json()
        assert answer["scores"] == [*before["scores"][:1], *after["scores"][1:]]
        assert answer["at"] == after["at"] > before["at"]
        assert after["scores"][2]["score"] != before["scores"][2]["score"]
        later = written_moment(service.ranking.now + 60_000_000, "s")
        found = client.post("/score", json={"pairs": PAIRS, "at": later}).json()
        assert {found["at"], *(row["at"] for row in found["scores"])} == {later}


@pytest.mark.parametrize("num_left", [700, 15])
def test_after_an_undo_its_rows_count_no_more_while_another_forecaster_is_fitted(tmp_path, monkeypatch, num_left):
    store, lines, num_fits, may_fit = Layout(str(tmp_path / "own")), list[str](), [], threading.Event()
    for number, rows in enumerate((rows_of()[:num_left], rows_of()[num_left:])):
        ingest(store, tmp_path, rows, number)
    service = LiveService(layout=store, dataset=NAME, show=lines.append)
    before, fit = service.opened.model, live.make_model

    def slow(*given, **options):
        num_fits.append(service.ranking.num_events)
        assert may_fit.wait(60)
        return fit(*given, **options)

    monkeypatch.setattr(live, "make_model", slow)
    take_back(store, NAME)
    service._refresh(service.opened)
    assert (service.ranking.num_events, service.opened.model) == (num_left, before)
    service._start_fit()
    wait_for(lambda: len(num_fits) == 1)
    assert num_fits == [num_left]
    may_fit.set()
    wait_for(lambda: service._horizons_of == 3)
    assert service._is_behind() == (num_left == 700)
    if num_left == 700:
        service._refresh(service.opened)
        assert service.opened.model == newest_model(store, NAME) != before
    else:
        assert "expected at least 20" in lines[-1]
    service._start_fit()
    assert len(num_fits) == 1


def test_a_log_that_was_dropped_and_ingested_again_is_followed_though_its_version_is_the_same(service, store, tmp_path):
    drop_dataset(store, NAME)
    ingest(store, tmp_path, rows_of()[:700], 0)
    assert service._is_behind()
    service._refresh(service.opened)
    assert (service.ranking.num_events, service._is_behind()) == (700, False)
    service._start_fit()
    wait_for(lambda: service._horizons_of == 1)
    assert newest_model(store, NAME) is not None


def test_events_that_come_while_a_ranking_is_made_count_before_requests_wait_for_the_last_ones(service, monkeypatch):
    inner, numbers = live._from_the_beginning, []
    late = SentEvent(source="late one", target="p1", time=rows_of()[5][2] * 1_000_000, weight=1.0)
    assert service.accept([late]).num_late == 1

    def slow(*given):
        ranking = inner(*given)
        for number in range(10):
            moment = NEXT * 1_000_000 + number
            service.accept([SentEvent(source="u1", target=f"p{each}", time=moment, weight=1.0) for each in range(50)])
        observe = ranking.observe

        def noting(events, *rest):
            numbers.append((len(events), service._changing.locked()))
            observe(events, *rest)

        monkeypatch.setattr(ranking, "observe", noting)
        service.accept([SentEvent(source="u2", target="p1", time=late.time + 1, weight=1.0)])
        return ranking

    monkeypatch.setattr(live, "_from_the_beginning", slow)
    service._refresh(service.opened)
    assert numbers == [(500, False), (0, False), (0, True)]
    assert service.num_late == 1
    assert service.ranking.num_events == len(rows_of()) + 501


def test_what_a_growth_calls_is_loaded_before_the_first_request(store, monkeypatch):
    loads = []
    monkeypatch.setattr(live, "load_growth", lambda: loads.append(1))
    LiveService(layout=store, dataset=NAME, show=lambda text: None)
    assert loads == [1]
