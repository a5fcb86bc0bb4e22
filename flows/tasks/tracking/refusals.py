"""Results that MLflow refused -> when each is sent again, in a file of this machine, so that no look repeats them all.

A result that is refused once is refused again until a person has changed something.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from storage.files import make_folder
from storage.layout import Layout

LONGEST_PAUSE = timedelta(days=1)
FILE = "refused.json"


def pause_after(num_tries: int) -> timedelta:
    """Return how long nothing is tried after failures: 0, 5, 20, 80, ... minutes, and at most a day."""
    return min(timedelta(minutes=5 * 4 ** min(num_tries - 1, 8)), LONGEST_PAUSE) if num_tries else timedelta()


class Refusals:
    """For each result that was refused: how often, when last, and why. What cannot be read was not refused."""

    def __init__(self, layout: Layout, *, counts: bool = True) -> None:
        self._counts = counts  # whether a try makes the next pause longer: one of a command does not
        self._file, self._records = Path(layout.service) / FILE, dict[str, dict[str, Any]]()
        with suppress(OSError, ValueError):
            records = json.loads(self._file.read_text(encoding="utf-8"))
            pairs = records.items() if isinstance(records, dict) else ()
            self._records = {name: record for name, record in pairs if _is_record(record)}

    @property
    def names(self) -> set[str]:
        """The results that were refused."""
        return set(self._records)

    def waits(self, name: str) -> str | None:
        """Say why a result is not tried now; None if it may be."""
        if (record := self._records.get(name)) is None:
            return None
        since, now = datetime.fromisoformat(record["since"]), datetime.now(UTC)
        due = since + pause_after(record["num_tries"])
        # A time to come is that of a clock which was set back since.
        return f"{name}: {record['reason']}; it is sent again after {due:%H:%M} UTC" if since <= now < due else None

    def note(self, name: str, reason: str) -> bool:
        """Record that a result was refused; returns whether it was not before, or for another reason."""
        before = self._records.get(name, {"num_tries": 0, "reason": None})
        num_tries = max(1, before["num_tries"] + self._counts)
        self._records[name] = {"num_tries": num_tries, "since": datetime.now(UTC).isoformat(), "reason": reason}
        return before["reason"] != reason

    def drop(self, names: Iterable[str]) -> None:
        """Forget results that are not due any more."""
        for name in names:
            self._records.pop(name, None)

    def write(self) -> None:
        """Write the records; without any there is no file."""
        records = self._records
        if not records:
            self._file.unlink(missing_ok=True)
            return
        make_folder(self._file.parent)
        part = self._file.with_name(f".{FILE}-{os.getpid()}")
        part.write_text(json.dumps(records), encoding="utf-8")
        part.replace(self._file)


def _is_record(record: Any) -> bool:
    try:
        since, num_tries = datetime.fromisoformat(record["since"]), record["num_tries"]
        return since.tzinfo is not None and isinstance(num_tries, int) and isinstance(record["reason"], str)
    except (KeyError, TypeError, ValueError):
        return False
