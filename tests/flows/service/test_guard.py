"""The guard passes on what clients and pages of the server send; foreign names, pages and logins are refused."""

import asyncio
import base64
import os
import sys
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message
from starlette.websockets import WebSocket

from flows.service import mlflow_server, prefect_server
from flows.service.guard import Guard

HOSTS = ("127.0.0.1:4200", "prefect.example", "local:*", "Desk.example:4200")
PAGE = "http://localhost:4200"
PASSWORD = "p\u00e4ss"
LOGIN = f"dyformer:{PASSWORD}"
arrived: list[str] = []


def page(request: Request) -> PlainTextResponse:
    arrived.append(request.url.path)
    return PlainTextResponse("a page")


async def socket(websocket: WebSocket) -> None:
    arrived.append("socket")
    await websocket.accept()
    await websocket.close()


def guard(login: str | None = None) -> Guard:
    routes = [Route(path, page, methods=["GET", "POST", "OPTIONS"]) for path in ("/", "/health")]
    application = Starlette(routes=[*routes, WebSocketRoute("/socket", socket)])
    arrived.clear()
    return Guard(application=application, hosts=HOSTS, origins=(PAGE,), login=login)


def response(headers: Any, *, method: str = "POST", path: str = "/", login: str | None = None) -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app=guard(login))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:4200") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(call())


def status(headers: Any, **options: Any) -> int:
    found = response(headers, **options).status_code
    assert (found == 200) == bool(arrived), "a request that is refused does not arrive"
    return found


def messages_of_socket(headers: dict[str, str]) -> list[str]:
    """Open a socket; give the kinds of the messages that the server sends."""
    sent: list[str] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message["type"])

    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "websocket", "path": "/socket", "headers": lines, "subprotocols": []}
    asyncio.run(guard()(scope, receive, send))
    return sent


@pytest.mark.parametrize("host", ["127.0.0.1:4200", "prefect.example", "local:1", "local:65535"])
def test_a_request_under_a_name_of_the_server_arrives(host: str) -> None:
    assert status({"host": host}) == 200


@pytest.mark.parametrize("host", ["Desk.example:4200", "desk.example:4200", "DESK.EXAMPLE:4200"])
def test_a_name_is_the_same_in_capitals_as_browsers_write_it_without(host: str) -> None:
    assert status({"host": host}) == 200
    for own in (host, "desk.example:4200"):
        assert status({"host": host, "origin": f"http://{own}"}) == 200
    assert status({"host": host, "origin": "http://evil.example"}) == 403


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1", "127.0.0.1:4201", "127.0.0.1:42000", "a.prefect.example", "local"]
)
def test_a_request_under_another_name_is_refused(host: str) -> None:
    assert status({"host": host}) == 403


def test_a_request_under_two_names_is_refused() -> None:
    assert status([("host", "127.0.0.1:4200"), ("host", "evil.example")]) == 403


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://127.0.0.1:4200", 200),
        ("https://127.0.0.1:4200", 200),  # a proxy in front of the server speaks HTTPS
        (PAGE, 200),
        ("http://127.0.0.1:8000", 403),
        ("http://prefect.example", 403),  # a name of the server, but not the one that was called
        ("http://localhost:42000", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_a_page_of_the_server_may_call_it_and_no_other(method: str, origin: str, expected: int) -> None:
    assert status({"host": "127.0.0.1:4200", "origin": origin}, method=method) == expected


@pytest.mark.parametrize(
    ("site", "mode", "expected"),
    [
        ("cross-site", "no-cors", 403),
        ("same-site", "no-cors", 403),
        ("same-origin", "no-cors", 200),
        ("none", "navigate", 200),
        ("cross-site", "navigate", 200),  # a link to a page
    ],
)
def test_another_page_loads_no_part_of_the_server(site: str, mode: str, expected: int) -> None:
    headers = {"host": HOSTS[0], "sec-fetch-site": site, "sec-fetch-mode": mode}
    assert status(headers, method="GET") == expected


def authorization(login: str, scheme: str = "Basic") -> str:
    return f"{scheme} {base64.b64encode(login.encode()).decode()}"


def test_a_login_is_needed_but_for_health() -> None:
    host = {"host": HOSTS[0]}
    assert status(host, login=LOGIN) == 401
    wrong = [LOGIN[:-1], f"{LOGIN}s", "dyformer:", LOGIN.removeprefix("dyformer")]
    assert [status({**host, "authorization": authorization(each)}, login=LOGIN) for each in wrong] == [401] * 4
    assert status({**host, "authorization": authorization(LOGIN, "Bearer")}, login=LOGIN) == 401
    tokens = [f"Bearer {each}".encode("latin-1") for each in ("", LOGIN, PASSWORD[:-1], f"{PASSWORD}s")]
    assert [status({**host, "authorization": each}, login=LOGIN) for each in tokens] == [401] * 4
    assert status({**host, "authorization": f"Bearer {PASSWORD}".encode("latin-1")}, login=LOGIN) == 200
    assert status({**host, "authorization": "\u00e4".encode()}, login=LOGIN) == 401
    assert status({**host, "authorization": authorization(LOGIN)}, login=LOGIN) == 200
    assert status(host, path="/health", login=LOGIN) == 200
    assert status({"host": "evil.example"}, path="/health", login=LOGIN) == 403
    assert response(host, login=LOGIN).headers["www-authenticate"].startswith("Basic")


def test_no_other_page_shows_a_response_in_a_frame() -> None:
    assert response({"host": HOSTS[0]}).headers["x-frame-options"] == "SAMEORIGIN"


@pytest.mark.parametrize("headers", [{"origin": "http://127.0.0.1:8000"}, {"host": "evil.example"}])
def test_a_socket_of_another_page_is_refused(headers: dict[str, str]) -> None:
    assert messages_of_socket({"host": HOSTS[0], **headers}) == ["websocket.close"]
    assert arrived == []


def test_a_socket_of_the_own_page_is_opened() -> None:
    assert messages_of_socket({"host": HOSTS[0], "origin": f"http://{HOSTS[0]}"})[0] == "websocket.accept"


@pytest.mark.parametrize("module", [prefect_server, mlflow_server])
@pytest.mark.parametrize(
    ("port", "hosts"),
    [("4200", "127.0.0.1:4200,localhost:4200"), ("80", "127.0.0.1:80,localhost:80,127.0.0.1,localhost")],
)
def test_clients_of_port_80_leave_it_out_of_the_name(
    module: ModuleType, port: str, hosts: str, monkeypatch: pytest.MonkeyPatch
):
    options = ["--artifacts-destination", "files"] if module is mlflow_server else []
    monkeypatch.setattr(sys, "argv", ["server", "--port", port, *options])
    monkeypatch.setattr(os, "environ", {**os.environ, mlflow_server.DATABASE: "sqlite://"})
    for name in ("serve", "settle_server", "collect_seldom", "end_with_code"):
        monkeypatch.setattr(module, name, Mock(), raising=False)
    module.main()
    assert os.environ[module.NAMES] == hosts
    assert module.serve.called
