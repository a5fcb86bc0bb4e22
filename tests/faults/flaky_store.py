"""A proxy in front of an S3 server, in a process of its own: from a numbered request on, it fails in a chosen way.

`Proxy` starts the process and sets the fault; the process is this module, run with the server's port.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CONTROL = "/-/fault"  # no bucket has this name
HANG_SECONDS = 60.0  # longer than any client of the sweep waits
HTML = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Sign in to this network</body></html>"
OF_STATUS = {500: "InternalError", 503: "SlowDown"}
KINDS = ("500", "503", "HTML", "dated HTML", "nothing", "cut")
OF_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """How requests fail, from the request of a number (from 1) on, for some requests or for some seconds.

    Kinds: a status of the server, an HTML page with status 200 (as a network that wants a login sends; `dated` with
    the time of a last change, without which no object is complete), no response, a connection that ends in the middle.
    """

    kind: str = ""
    number: int = 0  # 0: no fault
    num_requests: int = 1
    seconds: float = 0.0  # 0: as many requests as `num_requests`
    is_after: bool = False  # the server has done what was requested before its response is lost


class Proxy:
    """A running proxy."""

    def __init__(self, port: int, process: subprocess.Popen[str]):
        self.address, self._port, self._process = f"http://127.0.0.1:{port}", port, process

    def set(self, fault: Fault) -> None:
        """Set the fault, and count the requests from 1."""
        self._control("PUT", json.dumps(asdict(fault)))

    def requests(self) -> list[str]:
        """Method and path of the requests since the last `set`."""
        return self._control("GET", None)

    def _control(self, method: str, body: str | None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection.request(method, CONTROL, body=body)
        value = json.loads(connection.getresponse().read())
        connection.close()
        return value


@contextmanager
def proxy(server_port: int) -> Iterator[Proxy]:
    """Start a proxy in front of a server of this machine."""
    command = [sys.executable, str(Path(__file__)), str(server_port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Proxy(int(process.stdout.readline()), process)
        finally:
            process.kill()


class _State:
    """The fault that is set, and the requests since then."""

    def __init__(self) -> None:
        self.lock, self.fault, self.names, self.since = threading.Lock(), Fault(), [], 0.0

    def set(self, fault: Fault) -> None:
        with self.lock:
            self.fault, self.names, self.since = fault, [], 0.0

    def failing(self, name: str) -> Fault | None:
        """Count a request; give the fault with which it fails."""
        with self.lock:
            self.names.append(name)
            number, fault = len(self.names), self.fault
            if not fault.number or number < fault.number:
                return None
            if fault.seconds:
                self.since = self.since or time.monotonic()
                return fault if time.monotonic() - self.since < fault.seconds else None
            return fault if number < fault.number + fault.num_requests else None


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client, and one to the server."""

    server: "_Server"  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    upstream: http.client.HTTPConnection | None = None

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(6, 1, 1)  # TCP_NODELAY

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def respond(self) -> None:
        body = self._body()
        if self.path == CONTROL:
            self._control(body)
        elif (fault := self.server.state.failing(f"{self.command} {self.path}")) is None:
            self._send(*self._forwarded(body))
        else:
            is_cut = fault.kind == "cut" and self.command in ("GET", "HEAD")  # in the middle of a response
            self._fail(fault.kind, self._forwarded(body) if fault.is_after or is_cut else None)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = respond

    def _fail(self, kind: str, found: tuple[int, list[tuple[str, str]], bytes] | None) -> None:
        if kind in ("500", "503"):
            status = int(kind)
            content = f"<?xml version='1.0'?><Error><Code>{OF_STATUS[status]}</Code><Message>no</Message></Error>"
            self._send(status, [("Content-Type", "application/xml")], content.encode())
        elif kind in ("HTML", "dated HTML"):
            headers = [("Content-Type", "text/html")]
            if kind == "dated HTML":
                headers.append(("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT"))
            self._send(200, headers, HTML)
        elif kind == "nothing":
            self.connection.settimeout(HANG_SECONDS)
            with suppress(OSError):
                self.connection.recv(1)  # until the client has gone
            self.close_connection = True
        else:
            self.close_connection = True
            if found is not None:
                self._send(*found, fraction=0.5)
        self.wfile.flush()

    def _control(self, body: bytes) -> None:
        if self.command == "PUT":
            self.server.state.set(Fault(**json.loads(body)))
        self._send(200, [], json.dumps(self.server.state.names if self.command == "GET" else None).encode())

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _forwarded(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        for _ in range(2):  # the server may have closed an idle connection
            self.upstream = self.upstream or http.client.HTTPConnection("127.0.0.1", self.server.upstream_port)
            try:
                self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in OF_CONNECTION:
                        self.upstream.putheader(name, value)
                if body or self.command in ("PUT", "POST"):
                    self.upstream.putheader("Content-Length", str(len(body)))
                self.upstream.endheaders(body or None)
                response = self.upstream.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException):
                self.upstream = None
                continue
            return response.status, response.getheaders(), content
        return 502, [], b""

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes, fraction: float = 1.0) -> None:
        length = str(len(body))
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in OF_CONNECTION:
                self.send_header(name, value)
        if status != http.client.NO_CONTENT:
            self.send_header("Content-Length", length)
        self.end_headers() if fraction == 1.0 or body else None
        if self.command != "HEAD":
            self.wfile.write(body[: int(len(body) * fraction)])


class _Server(ThreadingHTTPServer):
    """The proxy, in front of a port of this machine."""

    daemon_threads = True

    def __init__(self, upstream_port: int):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.state, self.upstream_port = _State(), upstream_port

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing, because clients end connections when they wait no longer."""


def main() -> None:
    """Serve until the process that started this one ends."""
    server = _Server(int(sys.argv[1]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
