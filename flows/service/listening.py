"""A port -> a socket that listens at it, which a server takes over from the process that starts it.

The process that has the socket from the beginning, and while its server is started again, leaves no moment in which a
program of another user could listen there and be sent the login.
"""

import argparse
import socket
import sys
from contextlib import suppress
from typing import Any

BACKLOG = 2048  # connections that wait for the server, as in uvicorn


def listening(host: str, port: int) -> socket.socket:
    """Listen at a port, 0 for any free one; raises OSError where another program does."""
    # asyncio sends what is written at once, instead of after the 40 ms of a delayed acknowledgment, where it sees TCP.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after an end, connections wait for a while
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def port_of(listener: socket.socket) -> int:
    """Give the port at which a socket listens."""
    return listener.getsockname()[1]


def add_address(parser: argparse.ArgumentParser) -> None:
    """Add the options of a server's address."""
    parser.add_argument("--host", default="127.0.0.1", help="address of this machine at which it listens")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--socket", type=int, help="number of an inherited socket that listens there")


def serve(application: str, address: argparse.Namespace, **options: Any) -> None:
    """Serve what the function of this name, module:function, makes, until a signal comes.

    It is given by its name, so that it is imported late, and by each of several processes.
    """
    import uvicorn

    if address.socket is None:
        uvicorn.run(application, factory=True, host=address.host, port=address.port, **options)
        return
    server = uvicorn.Server(uvicorn.Config(application, factory=True, **options))
    with suppress(KeyboardInterrupt):  # as uvicorn's own command
        server.run(sockets=[socket.socket(fileno=address.socket)])
    if not server.started:
        sys.exit(1)
