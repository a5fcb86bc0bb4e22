"""A log in the store -> its server in this process, until a signal stops it: its port, its login, its lock."""

import errno
import gc
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from dyformer import InvalidInput
from flows.console import ongoing
from flows.ending import ended_by_itself
from flows.live.server import application
from flows.live.service import LiveService
from flows.service.guard import LOCAL, Guard, hosts_of
from flows.service.listening import listening, port_of
from flows.service.running import USER, close_folder, write_variables
from storage.bytes.files import make_folder
from storage.layout import Layout

USUAL_PORT = 8100
OF_PORT = (errno.EADDRINUSE, errno.EACCES)
ADDRESS, LOGIN = "DYFORMER_SERVE_URL", "DYFORMER_SERVE_LOGIN"
SECONDS_OF_A_THREAD = 0.0005  # that it computes while a ranking waits; by default Python takes ten times as long


def login_file(layout: Layout, dataset: str) -> Path:
    """File with the address and the login of a running server, which only its user can read."""
    return Path(layout.service) / f"serve-{dataset}.env"


def serve_dataset(
    layout: Layout,
    dataset: str,
    host: str,
    port: int | None,
    names: tuple[str, ...],
    horizons: tuple[str, ...],
    show: Callable[[str], None],
) -> None:
    """Serve a dataset until a signal comes.

    Raises:
        DatasetNotIngested: the store lacks the dataset.
        WindowError: a horizon does not fit the log.
        TooFewPastEvents: the log is too short for a horizon.
        ValueError: another server of it runs in this store.
        ValueError: another program listens at the given port, or the host is none of this machine.
    """
    import uvicorn

    make_folder(Path(layout.service))
    close_folder(Path(layout.service))
    with _alone(layout, dataset):
        _listener(host, port).close()  # before minutes of fitting; no request waits at a server that is not ready
        with _not_ready(dataset, "looking at the store"):
            phase = partial(_not_ready, dataset)
            service = LiveService(layout=layout, dataset=dataset, show=show, lengths=horizons, phase=phase)
        sys.setswitchinterval(SECONDS_OF_A_THREAD)
        gc.collect()
        gc.freeze()  # what is loaded stays: a collection that goes through it holds all requests for 60 ms and more
        listener = _listener(host, port)
        port = port_of(listener)
        login = f"{USER}:{secrets.token_urlsafe(32)}"
        hosts = (*hosts_of((*LOCAL, host, *names), port), *names)  # a proxy has a port of its own, often a usual one
        guarded = Guard(application=application(service), hosts=hosts, login=login)
        file = login_file(layout, dataset)
        write_variables(file, {ADDRESS: f"http://{host}:{port}", LOGIN: login})
        show(f"serving {dataset} at http://{host}:{port}; the login is in {file}")
        config = uvicorn.Config(guarded, log_level="warning", access_log=False, proxy_headers=False)
        try:
            with suppress(KeyboardInterrupt), ended_by_itself():  # as uvicorn's own command
                uvicorn.Server(config).run(sockets=[listener])
        finally:
            file.unlink(missing_ok=True)


def check_not_served(layout: Layout, dataset: str) -> None:
    """Raise InvalidInput while a server of the dataset runs in this store, which would go on to take its events."""
    if Path(layout.service).is_dir():
        with _alone(layout, dataset):
            pass


def _not_ready(dataset: str, text: str) -> AbstractContextManager[object]:
    """Print that the server is not ready, and what it does meanwhile."""
    return ongoing(f"serve {dataset}: not ready ({text})", to_errors=True)


@contextmanager
def _alone(layout: Layout, dataset: str) -> Iterator[None]:
    file = login_file(layout, dataset)
    try:
        lock = FileLock(file.with_suffix(".lock")).acquire(timeout=1)
    except Timeout as error:
        raise InvalidInput(
            f"`dyformer serve {dataset}` runs already for {layout.root}: its login is in {file}"
        ) from error
    with lock:
        yield


def _listener(host: str, port: int | None) -> socket.socket:
    problem = OSError("an empty text stands for all addresses")
    for chosen in ((port,) if port is not None else (USUAL_PORT, 0)) if host else ():
        try:
            return listening(host, chosen)
        except OSError as error:
            problem = error
    if problem.errno in OF_PORT:
        raise InvalidInput(
            f"port {port} at {host} cannot be listened at ({problem.strerror}): give a free one with --port"
        ) from problem
    raise InvalidInput(
        f"host {host!r}: expected an IPv4 address or a name of this machine, such as 127.0.0.1, or 0.0.0.0 for all of"
        f" its addresses ({problem.strerror or problem})"
    ) from problem
