"""An ASGI application -> a client of it at a port of this machine, served by a thread of the test."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from flows.service.listening import listening, port_of

SECONDS = 20.0


@contextmanager
def served(application: Any, *, lifespan: str = "off") -> Iterator[httpx.Client]:
    """Serve an application until the end of the block; with `lifespan="on"` it starts what it runs beside requests."""
    listener = listening("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application, lifespan=lifespan, log_level="warning"))  # pyright: ignore[reportArgumentType]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until = time.monotonic() + SECONDS
    while not server.started:
        assert time.monotonic() < until
        time.sleep(0.01)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port_of(listener)}", timeout=SECONDS) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
