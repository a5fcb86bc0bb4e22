"""A real Prefect server with its own database, as its own process group."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from filelock import FileLock
from free_ports import free_port


@contextmanager
def shared_server(home: Path) -> Iterator[str]:
    """Send this process's flows to the server of `home`; the first process starts it, and stops it after the last."""
    from prefect.logging.handlers import APILogHandler
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    home.mkdir(exist_ok=True)
    address = home / "address"
    with (home / "users.lock").open("w") as users, ExitStack() as stack:
        with FileLock(home / "start.lock"):
            fcntl.flock(users, fcntl.LOCK_SH)
            if not address.exists():
                address.write_text(stack.enter_context(prefect_server(home)))
                stack.callback(address.unlink)
                stack.callback(fcntl.flock, users, fcntl.LOCK_EX)  # waits for the other processes
        with temporary_settings({PREFECT_API_URL: address.read_text(), PREFECT_HOME: home}):
            yield address.read_text()
            APILogHandler().flush()  # or the process would try to deliver its last lines after the server's end


@contextmanager
def prefect_server(home: Path) -> Iterator[str]:
    """Start a server and return its address."""
    port = free_port()
    environment = {
        **os.environ,
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home}/prefect.db",
        "DO_NOT_TRACK": "1",
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    log = home / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            wait_for(f"http://127.0.0.1:{port}/api/health", process, log)
            yield environment["PREFECT_API_URL"]
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
        assert process.poll() is None, log.read_text()
        try:
            with urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except (URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError(f"no server after 120 s:\n{log.read_text()}")
