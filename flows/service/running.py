"""The stack that `dyformer up` started -> its addresses and login, for every other command of the same store."""

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from dyformer import InvalidInput
from flows.service.login import MLFLOW, PREFECT, read_variables
from storage.layout import Layout

ADDRESSES = {"prefect": "PREFECT_API_URL", "mlflow": "MLFLOW_TRACKING_URI"}
LOGINS = {"prefect": (PREFECT,), "mlflow": MLFLOW}
LOCK, RECORD, LOGIN = "up.lock", "up.json", "up.env"
LOCK_OF_PAGES, LOGIN_OF_PAGES = "ui.lock", "ui.env"


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
            os.environ.update(
                {
                    name_of_variable: login[name_of_variable]
                    for name_of_variable in LOGINS[name]
                    if name_of_variable in login
                }
            )
