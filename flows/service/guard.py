"""An ASGI application -> the same one, which refuses requests of foreign pages and under foreign names.

A browser calls any server of its machine for any page. It names the page in `Origin`, but not for all requests, and
in `Sec-Fetch-Site` the relation of the two. A page whose name its owner lets point to this machine (DNS rebinding) is
of the same origin, and known only by its `Host`.
"""

import base64
import fnmatch
import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEALTH = "/health"  # of MLflow, which serves it without a login
LOCAL = ("127.0.0.1", "localhost")  # names of this machine
HTTP_PORT = 80  # which clients leave out of `Host`
FOREIGN_SITES = ("cross-site", "same-site")  # the latter is another port of the same host
POLICY_VIOLATION = 1008


def hosts_of(names: Iterable[str], port: int) -> tuple[str, ...]:
    """Give the hosts by which a server at a port is called: name:port, and at port 80 the name alone, too."""
    named = tuple(dict.fromkeys(names))
    return (*(f"{name}:{port}" for name in named), *(named if port == HTTP_PORT else ()))


class Refusal(NamedTuple):
    """A response in place of the application's."""

    status: HTTPStatus
    reason: str


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Passes on what a client of this server sends, or a page of its own; everything else is refused."""

    application: ASGIApp
    hosts: tuple[str, ...]
    """Names and ports by which the server is called, as `hosts_of` gives them; `*` stands for any characters."""
    origins: tuple[str, ...] = ()
    """Pages that may call it, beside those of the name by which it is called."""
    login: str | None = None
    """The login, `user:password`, that each request must have, for an application that checks none itself.

    The password alone is a token, too.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):  # the start and the end of the server
            await self.application(scope, receive, send)
            return
        refusal = next(self._refusals(scope), None)
        if refusal is None:
            await self.application(scope, receive, _unframed(send))
        else:
            await _refuse(scope, send, refusal)

    def _refusals(self, scope: Scope) -> Iterator[Refusal]:
        """Yield each reason to refuse a request."""
        headers = Headers(scope=scope)
        names = [name.lower() for name in headers.getlist("host")]  # browsers write a name without capitals
        if len(names) != 1 or not any(fnmatch.fnmatchcase(names[0], host.lower()) for host in self.hosts):
            yield Refusal(HTTPStatus.FORBIDDEN, "this server is not called by this name")
        pages = headers.getlist("origin")
        if any(page not in self.origins and page.partition("://")[2].lower() not in names for page in pages):
            yield Refusal(HTTPStatus.FORBIDDEN, "another page may not call this server")
        is_link = headers.get("sec-fetch-mode") == "navigate"
        if not pages and headers.get("sec-fetch-site") in FOREIGN_SITES and not is_link:
            yield Refusal(HTTPStatus.FORBIDDEN, "another page may not load a part of this server")
        if self.login is not None and scope["path"] != HEALTH and not _has_login(headers, self.login):
            yield Refusal(HTTPStatus.UNAUTHORIZED, "a login is needed")


def _has_login(headers: Headers, login: str) -> bool:
    """Whether a request has the login, or its password alone as a token (RFC 6750)."""
    allowed = f"Basic {base64.b64encode(login.encode()).decode()}", f"Bearer {login.partition(':')[2]}"
    given = headers.get("authorization", "").encode()
    return any(hmac.compare_digest(given, each.encode()) for each in allowed)


def _unframed(send: Send) -> Send:
    """Let no other page show a response in a frame, where a user could be led to click on it."""

    async def send_unframed(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).setdefault("x-frame-options", "SAMEORIGIN")
        await send(message)

    return send_unframed


async def _refuse(scope: Scope, send: Send, refusal: Refusal) -> None:
    if scope["type"] == "websocket":  # closed before it was accepted, which is a response of status 403
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff")]
    if refusal.status == HTTPStatus.UNAUTHORIZED:  # then a browser opens its login window
        headers.append((b"www-authenticate", b'Basic realm="dyformer", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": int(refusal.status), "headers": headers})
    await send({"type": "http.response.body", "body": refusal.reason.encode()})
