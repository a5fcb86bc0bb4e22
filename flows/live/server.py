"""A live ranking -> a server of HTTP: events in, rankings and scores out, its health, its metrics and its pages."""

import math
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Annotated, Any, ClassVar

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, model_validator
from pydantic_core import to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import dyformer
from dyformer import InvalidInput
from dyformer.logs.moments import UnreadableMoment, read_moment, written_moment
from dyformer.scoring.event_horizon import FittedHorizon
from dyformer.scoring.sent_events import BadEvent, SentEvent, check_id, checked_event
from flows.live.page import node_page, openapi_page
from flows.live.service import LiveService
from flows.tasks.live import no_past_note, ranking_record, written_id
from storage.bytes.files import WriteFailed

MOST_EVENTS = 10_000  # of a request
MOST_PAIRS = 10_000
MOST_TARGETS = 1_000
MOST_FAULTS = 20  # that are named
MOST_NAMED = 40  # letters of an unknown name
MOST_BYTES = 32_000_000  # of a body
SURROGATE = re.compile("[\ud800-\udfff]")
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

PATHS = ("/", "/docs", "/events", "/health", "/metrics", "/openapi.json", "/rank", "/score")


def _writable(value: str | int) -> str | int:
    """Refuse half of a surrogate pair, which JSON can name and no response can repeat."""
    if isinstance(value, str) and SURROGATE.search(value):
        raise InvalidInput("expected an id of whole characters")
    return value


Id = Annotated[StrictInt | StrictStr, AfterValidator(_writable)]


class Body(BaseModel):
    """What a request sends; an unknown field is refused, because what it holds would not count without a word."""

    model_config = ConfigDict(extra="forbid")
    kind: ClassVar[str] = "field"

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, sent: Any) -> Any:
        """Name an unknown field as an escaped text, which a response can repeat, and the fields there are."""
        for name in sent if isinstance(sent, dict) else ():
            if name not in cls.model_fields:
                expected = ", ".join(cls.model_fields)
                raise InvalidInput(f"unknown {cls.kind} {name[:MOST_NAMED]!a}: expected {expected}")
        return sent


class Event(Body):
    """An event that happened: ids as in the log; a time as a date of ISO 8601, or as a number in the log's unit."""

    source: Id
    target: Id
    time: StrictInt | StrictFloat | StrictStr
    weight: StrictFloat = 1.0


class Events(Body):
    """Events that happened; all of them are accepted, or none."""

    events: Annotated[list[Event], Field(min_length=1, max_length=MOST_EVENTS)]


class AcceptedEvents(BaseModel):
    """Events that are on the disk; late ones, older than another event, count within a minute."""

    accepted: int
    late: int


class RankedTarget(BaseModel):
    """A target and its probability to be the source's next one, or with a horizon that the pair occurs within it."""

    rank: int
    target: Id
    probability: float
    linked_before: bool
    reasons: list[str]


class RankingOf(BaseModel):
    """The best next targets of a source as of a time, from every event before it."""

    dataset: str
    source: Id
    at: Id
    num_events: int
    known: bool
    note: str | None
    horizon: str | None
    ranking: list[RankedTarget]


class RankParameters(Body):
    """What the address of a ranking may have after its `?`."""

    kind: ClassVar[str] = "parameter"
    k: Annotated[int, Field(ge=1, le=MOST_TARGETS)] = 10
    at: str | None = None
    reasons: bool = True
    horizon: str | None = None


class Pair(Body):
    """A source and a target."""

    source: Id
    target: Id


class Pairs(Body):
    """Pairs to score as of a time, by default as of now."""

    pairs: Annotated[list[Pair], Field(min_length=1, max_length=MOST_PAIRS)]
    at: StrictInt | StrictFloat | StrictStr | None = None


class ScoredPair(BaseModel):
    """The score ranks the targets of one source; the probability is null where the target is no candidate.

    The note says that the log has no event of the source, and is null for all others.
    """

    source: Id
    target: Id
    at: Id
    score: float
    probability: float | None
    linked_before: bool
    note: str | None


class ScoredPairs(BaseModel):
    """Scores in the order of the pairs, and the latest time as of which one was made."""

    at: Id
    scores: list[ScoredPair]


class Metrics:
    """What Prometheus reads."""

    def __init__(self, service: LiveService) -> None:
        """Read the gauges from a service whenever they are collected."""
        self.registry = CollectorRegistry()
        self.requests = Counter("dyformer_requests", "requests", ["path", "status"], registry=self.registry)
        self.seconds = Histogram(
            "dyformer_request_seconds", "seconds of a request", ["path"], buckets=BUCKETS, registry=self.registry
        )
        self.accepted = Counter("dyformer_events_accepted", "events on the disk", registry=self.registry)
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "dyformer_events": ("events that count", lambda: service.ranking.num_events),
            "dyformer_events_late": ("events that do not count yet", lambda: service.num_late),
            "dyformer_commit": ("newest commit that is read", lambda: service.opened.version),
            "dyformer_store_readable": ("1 if the newest look at the store succeeded", lambda: not service.problem),
        }
        for name, (text, value) in gauges.items():
            Gauge(name, text, registry=self.registry).set_function(value)


class Measured:
    """An application whose requests are counted and timed, and whose bodies are bounded."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Wrap an application."""
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, num_bytes = time.perf_counter(), 500, 0

        async def bounded() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > MOST_BYTES:
                raise HTTPException(413, f"a body of more than {MOST_BYTES:,} bytes: send fewer at a time")
            return message

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, bounded, noting)
        finally:
            path = "/rank" if scope["path"].startswith("/rank/") else scope["path"]
            path = path if path in PATHS else "other"
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - started)


def application(service: LiveService) -> FastAPI:
    """Make the application, which follows the store while it runs."""
    metrics, is_stopping = Metrics(service), threading.Event()

    @asynccontextmanager
    async def following(_: FastAPI) -> AsyncIterator[None]:
        threading.Thread(target=service.follow, args=(is_stopping,), daemon=True).start()
        yield
        is_stopping.set()

    app = FastAPI(
        title=f"dyformer serve {service.dataset}",
        version=dyformer.__version__,
        lifespan=following,
        docs_url=None,  # whose page loads scripts from another server
        redoc_url=None,
    )

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        # Without the input, which may be a whole body, and may be a value that JSON does not have.
        faults = [{name: fault[name] for name in ("type", "loc", "msg")} for fault in error.errors()]
        return JSONResponse({"detail": faults[:MOST_FAULTS]}, 422)

    app.add_middleware(Measured, metrics=metrics)
    _add_programs(app, service, metrics)
    _add_pages(app, service)
    return app


def _add_programs(app: FastAPI, service: LiveService, metrics: Metrics) -> None:
    @app.post("/events", response_model=AcceptedEvents)
    def events(body: Events) -> JSONResponse:
        """Let events count from now on; when they are acknowledged, the disk has them, and the next ingest too."""
        checked = _checked(service, body.events)
        try:
            accepted = service.accept(checked)
        except WriteFailed as error:
            raise HTTPException(503, f"no event was accepted: {error}") from error
        metrics.accepted.inc(accepted.num_events)
        return JSONResponse({"accepted": accepted.num_events, "late": accepted.num_late})

    @app.get("/rank/{source:path}", response_model=RankingOf)
    async def rank(source: str, given: Annotated[RankParameters, Query()]) -> Response:
        """Rank the next targets of a source; one without a past is ranked as a new source, which a note says."""
        # In the loop: handing such short work to another thread, and its wait for it, takes longer.
        _check_ids(source=source)
        moment, opened = _moment(service, given.at), service.opened
        of_pairs = _of_pairs(service, given.horizon)  # after `opened`: after an undo, none of before it remains
        rank = partial(opened.ranking.rank, source, at=moment, k=given.k, with_reasons=given.reasons, horizon=of_pairs)
        with _in_time():
            ranking = rank() if of_pairs is None else await run_in_threadpool(rank)  # a horizon's heads take longer
        record = {**ranking_record(opened, ranking), "horizon": given.horizon}
        return Response(to_json(record), media_type="application/json")  # faster than by `json`

    @app.post("/score", response_model=ScoredPairs)
    def score(body: Pairs) -> JSONResponse:
        """Score pairs as of a time after the newest event.

        Without `at`, those of each source are scored as of its own now, because events may come meanwhile.
        """
        return JSONResponse(_scored(service, body))

    @app.get("/health")
    def health() -> JSONResponse:
        """Give 200 while looks at the store succeed, else 503; needs no login."""
        is_well = service.problem is None
        return JSONResponse(
            {"status": "ok" if is_well else "the newest look at the store failed"}, 200 if is_well else 503
        )

    @app.get("/metrics")
    def prometheus() -> PlainTextResponse:
        """Give counters, latencies and the size of the state in Prometheus' text format."""
        return PlainTextResponse(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _add_pages(app: FastAPI, service: LiveService) -> None:
    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page(source: str = "", k: Annotated[int, Query(ge=1, le=100)] = 10) -> HTMLResponse:
        return HTMLResponse(node_page(service, source.strip(), k))

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(openapi_page(app.openapi()))


def _checked(service: LiveService, events: list[Event]) -> list[SentEvent]:
    """Check all events of a request; raises HTTPException with the position of the first wrong one."""
    unit, checked = service.opened.time_unit, []
    for position, event in enumerate(events):
        try:
            checked.append(checked_event(event.source, event.target, event.time, event.weight, unit))
        except BadEvent as error:
            raise HTTPException(422, f"event {position}: {error}; none was accepted") from error
    try:
        service.check_era([event.time for event in checked])
    except BadEvent as error:
        raise HTTPException(422, f"{error}; none was accepted") from error
    return checked


def _check_ids(**ids: str) -> None:
    """Raise HTTPException for a text that no ingest reads as an id."""
    try:
        for end, text in ids.items():
            check_id(end, text)
    except BadEvent as error:
        raise HTTPException(422, str(error)) from error


def _moment(service: LiveService, at: str | float | None) -> int | None:
    """Read the time of a request; raises HTTPException for one at or before the newest event."""
    if at is None:
        return None
    unit = service.opened.time_unit
    try:
        moment = read_moment(at, unit)
    except UnreadableMoment as error:
        raise HTTPException(422, str(error)) from error
    if moment < service.ranking.now:
        raise HTTPException(
            422,
            f"as of {written_moment(moment, unit)}: expected a time after the newest event, from"
            f" {written_moment(service.ranking.now, unit)} on; `dyformer rank {service.dataset} SOURCE --at TIME` ranks"
            " as of earlier ones",
        )
    return moment


@contextmanager
def _in_time() -> Iterator[None]:
    """Raise HTTPException where an event has overtaken a time between its check and its use."""
    try:
        yield
    except ValueError as error:
        raise HTTPException(409, f"{error}; try again with a later time as `at`") from error


def _of_pairs(service: LiveService, horizon: str | None) -> FittedHorizon | None:
    """Give the forecaster by pair of a horizon; raises HTTPException for one that is not served."""
    if horizon is None:
        return None
    horizons = service.horizons
    if horizon in horizons:
        return horizons[horizon]
    if horizon not in service.lengths:
        raise HTTPException(
            422,
            f"horizon={horizon}: expected one that is served ({', '.join(horizons) or 'none is'}); start the server by"
            f" `dyformer serve {service.dataset} --horizon {horizon}`",
        )
    raise HTTPException(
        503,
        f"horizon={horizon}: rows that it was fitted on were taken back; it is served again once it is fitted on"
        " others",
    )


def _scored(service: LiveService, body: Pairs) -> dict[str, Any]:
    opened, moment = service.opened, _moment(service, body.at)
    positions: dict[str, list[int]] = {}
    for position, pair in enumerate(body.pairs):
        _check_ids(source=str(pair.source), target=str(pair.target))
        positions.setdefault(str(pair.source), []).append(position)
    rows: dict[int, dict[str, Any]] = {}
    times: list[int] = []
    for source, own in positions.items():
        targets = [str(body.pairs[position].target) for position in own]
        with _in_time():
            scores = opened.ranking.scores(source, targets, at=moment)
        times.append(scores.at)
        note = None if source in opened.ranking.ids.source_numbers else no_past_note(opened, source)
        for index, position in enumerate(own):
            probability = float(scores.probability_P[index])
            rows[position] = {
                "source": written_id(opened, source),
                "target": written_id(opened, targets[index]),
                "at": written_moment(scores.at, opened.time_unit),
                "score": float(scores.score_P[index]),
                "probability": None if math.isnan(probability) else probability,
                "linked_before": bool(scores.num_contacts_P[index]),
                "note": note,
            }
    return {
        "at": written_moment(max(times), opened.time_unit),
        "scores": [rows[position] for position in range(len(body.pairs))],
    }
