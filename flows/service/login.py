"""A start of servers -> the login that their clients need, handed on by a file that only its owner can read.

A command line is seen by every user of a machine, and so is a file for the moment before its mode is changed; the
environment of a process and a file that is created for its owner are not.
"""

import os
import secrets
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

USER = "dyformer"
OWNER_ONLY, OWNER_ONLY_FOLDER = 0o600, 0o700
SERVER_LOGIN = "PREFECT_SERVER_API_AUTH_STRING"  # by which Prefect's server finds it
PREFECT = "PREFECT_API_AUTH_STRING"
MLFLOW = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")


def new_logins() -> dict[str, dict[str, str]]:
    """Make a password, and give the variables with it that the clients of each server read."""
    password = secrets.token_urlsafe(32)
    return {
        "prefect": {PREFECT: f"{USER}:{password}"},
        "mlflow": dict(zip(MLFLOW, (USER, password), strict=True)),
    }


def close_folder(folder: Path) -> None:
    """Keep other users out of a folder, if it is this user's."""
    if folder.stat().st_uid == os.geteuid():
        folder.chmod(OWNER_ONLY_FOLDER)


def write_variables(file: Path, variables: Mapping[str, str]) -> None:
    """Write variables as a shell reads them (`. FILE`), so that nobody else can read them at any moment."""
    part = file.with_name(f".{file.name}")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, OWNER_ONLY)
    with os.fdopen(descriptor, "w", encoding="utf-8") as output:
        output.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    part.replace(file)


def read_variables(file: Path) -> dict[str, str]:
    """Read what `write_variables` wrote; nothing where there is no such file, or none that this user can read."""
    login = {}
    with suppress(OSError, ValueError):
        for line in file.read_text(encoding="utf-8").splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            login[name] = "".join(shlex.split(value))
    return login
