"""A temporary Prefect server for one run: Ctrl-C does not reach it, and it ends with its run, however that ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

APPLICATION = "prefect.server.api.server:create_app"
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_END = 3.0


def guard_temporary_server() -> None:
    """Let Prefect start its temporary server by this module."""
    from prefect.server.api.server import SubprocessASGIServer

    # because Prefect has no setting for it
    setattr(SubprocessASGIServer, "_run_uvicorn_command", _started)  # noqa: B010, a type checker refuses the assignment


def _started(server: Any) -> "subprocess.Popen[Any]":
    """Start the server in a session of its own, because a terminal sends Ctrl-C to all processes of one."""
    from prefect.settings import get_current_settings

    settings = get_current_settings().to_environment_variables(exclude_unset=True)
    own = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    command = [sys.executable, "-P", "-m", "flows.temporary_server", str(server.port), str(os.getpid())]
    # Without the streams of the run, so that whoever reads them sees their end when the run ends.
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    environment = {**os.environ, **own, **settings}
    return subprocess.Popen(command, env=environment, start_new_session=True, **streams)  # noqa: S603, made here


def _serve(port: int, parent: int) -> None:
    import uvicorn

    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    uvicorn.run(APPLICATION, factory=True, host="127.0.0.1", port=port, log_level="error", lifespan="on")


def _end_with(parent: int) -> None:
    """End this process soon after its parent; another process adopts the children of one that ended."""
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_END)
    os._exit(1)


if __name__ == "__main__":
    _serve(*map(int, sys.argv[1:3]))
