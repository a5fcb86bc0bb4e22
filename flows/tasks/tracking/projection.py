"""The store -> MLflow, brought up to date: each finished result without a mark becomes a run, and gets its mark.

When a result that MLflow refused is sent again stands in a file of this machine, so that no look repeats them all: what
is refused once is refused again until a person has changed something.
"""

import json
import os
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from filelock import Timeout

from dyformer.experiments.extras import is_installed, missing
from storage.artifacts.artifact import ArtifactMissing, digest
from storage.bytes.files import make_folder
from storage.bytes.objects import StoreUnreachable
from storage.champions import OUTCOMES
from storage.layout import Layout
from storage.locks import MOST_SECONDS, LeaseBusy, in_use
from storage.tracking.marks import due, has_mark, is_removed, noted
from storage.tracking.marks import mark as write_mark
from storage.tracking.mlflow_client import failures, is_of_one_run, reason
from storage.tracking.runs import Tracker, open_tracker

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


class Projected(NamedTuple):
    """Which results were sent, by their addresses below the root, and why others were not."""

    sent: list[str]
    problems: list[str]


def project(layout: Layout, *, again: bool = False, whole: bool = False, patient: bool = False) -> Projected:
    """Send each result of the store that has no mark to MLflow, and mark it; with `again` also those with a mark.

    It looks at the notes of unfinished and unsent results, and with `whole` at all results, of which notes may be lost.
    It raises nothing because of MLflow, and a fault of one result keeps no other one. What was not sent is due at the
    next call, and a run that was sent in part is completed, because it is found by its key. With `patient` a result
    that MLflow refuses is tried after longer and longer pauses, and named at its first refusal and by a `whole` look.
    """
    addresses = due(layout, again=again) if again or whole else noted(layout)
    done = Projected([], [])
    if not addresses:
        return done
    if not is_installed("mlflow"):
        return Projected([], [str(missing("mlflow"))])
    refusals = Refusals(layout, counts=patient)
    names = {layout.relative(address): address for address in addresses}
    waiting = {name: why for name in names if patient and (why := refusals.waits(name)) is not None}
    done.problems.extend(waiting.values() if whole else [])
    ready = {name: address for name, address in names.items() if name not in waiting}
    if ready:
        _send(open_tracker(layout), ready, done, refusals, again=again, repeats=whole or not patient)
    refusals.drop(done.sent)
    if again or whole:  # which look at all results, so that others are not due any more
        refusals.drop(refusals.names - names.keys())
    with suppress(OSError):  # such as of a full disk: then these are tried at the next look
        refusals.write()
    return done


def _send(
    tracker: Tracker, addresses: dict[str, str], done: Projected, refusals: Refusals, *, again: bool, repeats: bool
) -> None:
    """Send results, by their names; `repeats` names a refusal that was named before, too."""
    tracker.resume()
    ledgers: dict[str, dict[str, Any]] = {}
    for name, address in addresses.items():
        try:
            done.sent.extend([name] if _is_sent(tracker, address, ledgers, again=again) else [])
        except (Timeout, LeaseBusy):
            done.problems.append(
                f"{name}: other processes work on its dataset or its runs: it is sent at the next look"
            )
        except StoreUnreachable as error:
            done.problems.append(f"{name}: {error}")
        except ArtifactMissing as error:
            done.problems.extend(_given_up(tracker.layout, address, error))
        except Exception as error:  # noqa: BLE001, because no fault of one result may keep the others
            if isinstance(error, failures()) and not is_of_one_run(error):
                done.problems.append(tracker.failed(error))
                break
            is_new = refusals.note(name, reason(error))
            done.problems.extend([f"{name}: {reason(error)}"] if is_new or repeats else [])


def _given_up(layout: Layout, address: str, error: ArtifactMissing) -> list[str]:
    """Mark an old result whose parts were removed before MLflow was back; nothing if it was removed itself."""
    if is_removed(address):
        return []
    if not has_mark(address):
        write_mark(layout, address, {"problem": f"it cannot be sent any more: {error}"})
    return [f"{layout.relative(address)}: {error}"]


def _is_sent(tracker: Tracker, address: str, ledgers: dict[str, dict[str, Any]], *, again: bool) -> bool:
    """Send a result and mark it; False if another process has done so meanwhile, or removed it.

    The ledger of a dataset is sent as a whole with the first of its outcomes, and the others only get their mark.
    """
    from flows.tasks.tracking.results import SEND

    layout, (kind, keys) = tracker.layout, tracker.layout.describe(address)
    with ExitStack() as alone:
        # It is not dropped meanwhile.
        alone.enter_context(in_use(layout, keys["dataset"]).read_lock(timeout=MOST_SECONDS))
        alone.enter_context(tracker.turn(keys["dataset"]))
        if is_removed(address) or (has_mark(address) and not again):  # by another process, meanwhile
            return False
        sent = digest(address)
        where_it_is = ledgers.get(keys["dataset"]) if kind == OUTCOMES else None
        where_it_is = where_it_is or SEND[kind](tracker, address)
        if kind == OUTCOMES:
            ledgers[keys["dataset"]] = where_it_is
        if digest(address) != sent:  # made anew meanwhile: it is due again
            return False
        write_mark(layout, address, where_it_is)
    return True
