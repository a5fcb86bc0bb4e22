"""A server at a socket of the process that starts it: no other program can have its port, also while it is away."""

import asyncio
import errno
import os
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from flows.service.listening import listening, port_of
from flows.service.processes import MARK, Service, marked

HOST = "127.0.0.1"
SERVER = """
import argparse, os

from flows.service.listening import add_address, serve


def application():
    async def respond(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(os.getpid()).encode()})

    return respond


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_address(parser)
    serve("mine:application", parser.parse_args(), log_level="warning", lifespan="off")
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listening(HOST, 0) as listener:
        yield listener


@pytest.fixture
def server(tmp_path: Path, listener: socket.socket) -> Iterator[Service]:
    (tmp_path / "mine.py").write_text(SERVER)
    mark = uuid.uuid4().hex
    yield Service(
        name="mine",
        arguments=["mine", f"--port={port_of(listener)}"],
        environment={MARK: mark, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        folder=tmp_path,
        is_ready=lambda: True,
        listener=listener,
    )
    for left in marked(mark):
        os.kill(left, signal.SIGKILL)


def process_that_responds(listener: socket.socket) -> int:
    with urlopen(f"http://{HOST}:{port_of(listener)}", timeout=60) as response:
        return int(response.read())


def refused(port: int) -> bool:
    """Whether another program cannot listen at a port, as one of another user would try it."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind((HOST, port))
            other.listen()
        except OSError as error:
            return error.errno == errno.EADDRINUSE
        return False


def test_a_response_in_two_parts_waits_for_no_acknowledgment(listener: socket.socket) -> None:
    async def accepted() -> int:
        is_nodelay = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            own = writer.get_extra_info("socket")
            is_nodelay.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(connected, sock=listener):
            _, writer = await asyncio.open_connection(HOST, port_of(listener))
            writer.close()
            return await is_nodelay

    assert asyncio.run(accepted())


def test_a_server_that_is_started_again_has_the_port_all_the_time(server: Service, listener: socket.socket) -> None:
    port = port_of(listener)
    assert refused(port)
    server.start()
    assert server.process is not None
    first = server.process
    assert process_that_responds(listener) == first.pid
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, -signal.SIGTERM)):
        server.process.send_signal(number)
        assert server.process.wait(30) == code
        assert refused(port)
        server.start()  # a request of the moment between waits for it
        assert process_that_responds(listener) == server.process.pid != first.pid
    server.terminate()
    server.process.wait(30)
    listener.close()
    assert not refused(port)


def test_a_server_that_does_not_start_ends_with_a_code(server: Service, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        SERVER.replace('lifespan="off"', 'lifespan="on"').replace("await send", "raise ValueError", 1)
    )
    server.start()
    assert server.process is not None
    until = time.monotonic() + 60
    while server.process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    assert server.process.returncode not in (None, 0)
