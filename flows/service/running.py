"""The stack that `dyformer up` started -> its addresses and login, for every other command of the same store.

A login is handed on by a file that only its owner can read. A command line is seen by every user of a machine, and so
is a file for the moment before its mode is changed; the environment of a process and a file that is created for its
owner are not.
"""

import fcntl
import json
import os
import secrets
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dyformer import InvalidInput
from storage.layout import Layout

USER = "dyformer"
OWNER_ONLY, OWNER_ONLY_FOLDER = 0o600, 0o700
SERVER_LOGIN = "PREFECT_SERVER_API_AUTH_STRING"  # by which Prefect's server finds it
PREFECT = "PREFECT_API_AUTH_STRING"
MLFLOW = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
ADDRESSES = {"prefect": "PREFECT_API_URL", "mlflow": "MLFLOW_TRACKING_URI"}
LOGINS = {"prefect": (PREFECT,), "mlflow": MLFLOW}
LOCK, RECORD, LOGIN = "up.lock", "up.json", "up.env"
LOCK_OF_PAGES, LOGIN_OF_PAGES = "ui.lock", "ui.env"


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


def running_stack(layout: Layout) -> dict[str, Any] | None:
    """Return the record of the store's running stack: mark, process, addresses; None if it does not run."""
    if not is_held(Path(layout.service) / LOCK):
        return None
    record = last_stack(layout)
    return record if record is not None and all(isinstance(record.get(name), str) for name in ADDRESSES) else None


def is_held(lock: Path) -> bool:
    """Whether a process holds a lock."""
    with suppress(OSError):
        try:
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def running_login(layout: Layout) -> dict[str, str]:
    """Return the variables of the clients of `dyformer up`, or of `dyformer ui`, which runs for this store.

    Raises:
        ValueError: neither runs.
    """
    folder = Path(layout.service)
    for name in (LOGIN, LOGIN_OF_PAGES):
        variables = read_variables(folder / name) if is_held((folder / name).with_suffix(".lock")) else {}
        if variables:
            return variables
    raise InvalidInput(f"neither `dyformer up` nor `dyformer ui` runs for {layout.root}, or you may not read {folder}")


def last_stack(layout: Layout) -> dict[str, Any] | None:
    """Return the record of the store's last stack, running or not; None if there is none that can be read."""
    try:
        record = json.loads((Path(layout.service) / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def use_running_stack() -> None:
    """Point Prefect and MLflow to the store's running stack, unless the user has set another address.

    A command that wrote to the database of MLflow itself would not see that a server writes there, too. The login goes
    to the servers of the stack alone.
    """
    record, login = {}, {}
    with suppress(ValueError):  # of a wrong address of the store, which only some commands need
        layout = Layout.from_environment()
        record, login = running_stack(layout) or {}, read_variables(Path(layout.service) / LOGIN)
    for name, variable in ADDRESSES.items() if record else ():
        if os.environ.setdefault(variable, record[name]) == record[name]:
            os.environ.update({key: login[key] for key in LOGINS[name] if key in login})
