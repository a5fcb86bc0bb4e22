"""The stack that `dyformer up` started -> its addresses, for every other command of the same store."""

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from storage.layout import Layout

ADDRESSES = {"prefect": "PREFECT_API_URL", "mlflow": "MLFLOW_TRACKING_URI"}
LOCK, RECORD = "up.lock", "up.json"


def running_stack(layout: Layout) -> dict[str, Any] | None:
    """Return the record of the store's running stack: mark, process, addresses; None if it does not run."""
    folder = Path(layout.service)
    try:
        with (folder / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # succeeds only if no stack holds it
    except BlockingIOError:
        record = last_stack(layout)
        return record if record is not None and ADDRESSES.keys() <= record.keys() else None
    except OSError:
        pass
    return None


def last_stack(layout: Layout) -> dict[str, Any] | None:
    """Return the record of the store's last stack, running or not; None if there is none that can be read."""
    try:
        record = json.loads((Path(layout.service) / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def use_running_stack() -> None:
    """Point Prefect and MLflow to the store's running stack, unless the user has set another address.

    A command that wrote to the database of MLflow itself would not see that a server writes there, too.
    """
    record = None
    with suppress(ValueError):  # of a wrong address of the store, which only some commands need
        record = running_stack(Layout.from_environment())
    if record is not None:
        for name, variable in ADDRESSES.items():
            os.environ.setdefault(variable, record[name])
