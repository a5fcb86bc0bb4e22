"""Results that MLflow refused -> when each is sent again, in a file of this machine, so that no look repeats them all.

A result that is refused once is refused again until a person has changed something.
"""

import json
import os
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from storage.disk import make_folder
from storage.layout import Layout

LONGEST_PAUSE = timedelta(days=1)
FILE = "refused.json"


def pause_after(num_tries: int) -> timedelta:
    """Return how long nothing is tried after failures: 0, 5, 20, 80, ... minutes, and at most a day."""
    return min(timedelta(minutes=5 * 4 ** min(num_tries - 1, 8)), LONGEST_PAUSE) if num_tries else timedelta()


class Refusals:
    """For each result that was refused: how often, when last, and why. A file that cannot be read has none."""

    def __init__(self, layout: Layout) -> None:
        self._file, self._records = Path(layout.service) / FILE, dict[str, dict[str, Any]]()
        with suppress(OSError, ValueError):
            self._records = dict(json.loads(self._file.read_text(encoding="utf-8")))

    def waits(self, name: str) -> str | None:
        """Say why a result is not tried now; None if it may be."""
        if (record := self._records.get(name)) is None:
            return None
        due = datetime.fromisoformat(record["since"]) + pause_after(record["num_tries"])
        return (
            f"{name}: {record['reason']}; it is sent again after {due:%H:%M} UTC" if datetime.now(UTC) < due else None
        )

    def note(self, name: str, reason: str) -> bool:
        """Record that a result was refused; returns whether it was not before, or for another reason."""
        before = self._records.get(name, {"num_tries": 0, "reason": None})
        since = datetime.now(UTC).isoformat()
        self._records[name] = {"num_tries": before["num_tries"] + 1, "since": since, "reason": reason}
        return before["reason"] != reason

    def keep(self, due: Collection[str]) -> None:
        """Write the records of those that are due still; without any there is no file."""
        records = {name: record for name, record in self._records.items() if name in due}
        if not records:
            self._file.unlink(missing_ok=True)
            return
        make_folder(self._file.parent)
        part = self._file.with_name(f".{FILE}-{os.getpid()}")
        part.write_text(json.dumps(records), encoding="utf-8")
        part.replace(self._file)
