"""A temporary Prefect server for one run: Ctrl-C does not reach it, and it ends with its run, however that ends.

Only this process and its children can use it: they have the login, in their environment.
"""

import os
import subprocess
import sys
from typing import Any

from flows.service.login import PREFECT, new_logins

SERVER_LOGIN = "PREFECT_SERVER_API_AUTH_STRING"


def guard_temporary_server() -> None:
    """Let Prefect start its temporary server by a module of ours, with a login that is made here."""
    from prefect.context import refresh_global_settings_context
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

    # because Prefect has no setting for it
    setattr(SubprocessASGIServer, "_run_uvicorn_command", _started)  # noqa: B010, a type checker refuses the assignment
    if not PREFECT_API_URL.value() and not PREFECT_API_AUTH_STRING.value():
        os.environ.update(new_logins()["prefect"])
        refresh_global_settings_context()  # because Prefect may have read the environment before


def _started(server: Any) -> "subprocess.Popen[Any]":
    """Start the server in a session of its own, because a terminal sends Ctrl-C to all processes of one."""
    from prefect.settings import get_current_settings

    settings = get_current_settings().to_environment_variables(exclude_unset=True)
    own = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", SERVER_LOGIN: settings[PREFECT]}
    module = ["flows.service.prefect_server", "--port", str(server.port), "--parent", str(os.getpid())]
    command = [sys.executable, "-P", "-m", *module]
    # Without the streams of the run, so that whoever reads them sees their end when the run ends.
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    environment = {**os.environ, **settings, **own}
    return subprocess.Popen(command, env=environment, start_new_session=True, **streams)  # noqa: S603, made here
