"""A temporary Prefect server for one run: Ctrl-C does not reach it, and it ends with its run, however that ends.

Only this process and its children can use it: they have its address and the login in their environment. Prefect would
start one itself, and for that import all of its server here, which takes three seconds.
"""

import atexit
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from flows.console import ongoing
from flows.service.listening import listening, port_of
from flows.service.running import PREFECT, SERVER_LOGIN, new_logins
from flows.service.server import ServerUnreachable

SECONDS_TO_END = 5.0
PAUSE = 0.1  # seconds between two looks at a server that starts
ADDRESS = "PREFECT_API_URL"
STARTED: "dict[str, subprocess.Popen[Any]]" = {}  # servers of this process that serve, by their address


def is_temporary() -> bool:
    """Whether a server that this process has started runs its flows; one that has ended is forgotten."""
    from prefect.settings import PREFECT_API_URL

    address = PREFECT_API_URL.value()
    if address not in STARTED:
        return False
    if STARTED[address].poll() is None:
        return True
    del STARTED[address]
    _configure(None)
    return False


def use_temporary_server() -> None:
    """Start a server for the flows of this process, and wait until it serves, unless one is configured.

    A later call uses the same one. Raises ServerUnreachable if it does not start.
    """
    from prefect.context import refresh_global_settings_context
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

    if PREFECT_API_URL.value():
        return
    if not PREFECT_API_AUTH_STRING.value():
        os.environ.update(new_logins()["prefect"])
        refresh_global_settings_context()  # because Prefect may have read the environment before
    with listening("127.0.0.1", 0) as listener:
        address = f"http://127.0.0.1:{port_of(listener)}/api"
        server = _started(listener)
    atexit.register(_stop, server)
    _configure(address)
    try:
        with ongoing("start the temporary Prefect server", to_errors=True):
            import flows.stages  # noqa: F401, while the server starts, because every flow needs it

            _wait(server, address)
    except ServerUnreachable:
        _configure(None)  # so that another try starts another server
        _stop(server)
        raise
    STARTED[address] = server


def _configure(address: str | None) -> None:
    """Set the address that this process and its children use, or unset it."""
    from prefect.context import refresh_global_settings_context

    os.environ.pop(ADDRESS, None)
    if address is not None:
        os.environ[ADDRESS] = address
    refresh_global_settings_context()


def _started(listener: socket.socket) -> "subprocess.Popen[Any]":
    """Start the server in a session of its own, because a terminal sends Ctrl-C to all processes of one."""
    from prefect.settings import get_current_settings

    settings = get_current_settings().to_environment_variables(exclude_unset=True)
    variables = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", SERVER_LOGIN: settings[PREFECT]}
    address = ["--port", str(port_of(listener)), "--socket", str(listener.fileno())]
    module = ["flows.service.prefect_server", *address, "--parent", str(os.getpid())]
    command = [sys.executable, "-P", "-m", *module]
    # Without the streams of the run, so that whoever reads them sees their end when the run ends.
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    environment = {**os.environ, **settings, **variables}
    return subprocess.Popen(  # noqa: S603, made here
        command, env=environment, start_new_session=True, pass_fds=[listener.fileno()], **streams
    )


def _wait(server: "subprocess.Popen[Any]", address: str) -> None:
    from prefect.settings import PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS

    ending = time.monotonic() + PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value()
    while (left := ending - time.monotonic()) > 0 and server.poll() is None:
        try:
            urlopen(f"{address}/health", timeout=left).close()  # noqa: S310, made here
        except HTTPError as error:
            error.close()
        except OSError:
            pass
        else:
            return
        time.sleep(PAUSE)
    state = "takes too long to start" if server.poll() is None else f"ended with code {server.returncode}"
    raise ServerUnreachable(
        f"the temporary Prefect server {state}: run `prefect server start` to see why, or set PREFECT_API_URL to a"
        " server that runs"
    )


def _stop(server: "subprocess.Popen[Any]") -> None:
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(SECONDS_TO_END)
    server.kill()
    server.wait()
