"""Name of a dataset -> the record of its champion and a copy of it, which one writer at a time replaces.

The writers of one machine take a lock. Of the writers of several machines that share an object store, one replaces a
record that all have read, because the store compares the record with the one that was read.
"""

from typing import Any

from filelock import FileLock

from storage import files, kinds
from storage.checksums import (
    Damaged,
    RecordDamaged,
    read_record,
    read_stamped_record,
    replace_record,
    write_record,
)
from storage.files import Stamp
from storage.kinds import wrong_kind
from storage.layout import Layout
from storage.locks import alone

MISSING = "is missing"


def champion_lock(layout: Layout, dataset: str) -> FileLock:
    """Lock the record of a dataset's champion against the other processes of this machine."""
    return alone(layout, f"champion-{dataset}")


def read_champion(layout: Layout, dataset: str) -> tuple[dict[str, Any], Stamp] | tuple[None, None]:
    """Record of the champion and the stamp that `replace_champion` expects; (None, None) where there is none.

    Raises:
        RecordDamaged: the record was changed, or is missing beside its copy.
    """
    address, remedy = layout.champion(dataset), _remedy(dataset)
    record, stamp = read_stamped_record(address, remedy, _wrong)
    if record is not None and stamp is not None:
        return record, stamp
    if files.size(layout.champion_copy(dataset)) is not None:
        raise RecordDamaged(address, MISSING, remedy)
    return None, None


def replace_champion(layout: Layout, dataset: str, record: dict[str, Any], expected: Stamp | None) -> bool:
    """Replace the record and its copy; False, without effect, if another machine has replaced it since it was read."""
    if not replace_record(layout.champion(dataset), record, expected):
        return False
    update_copy(layout, dataset)
    return True


def update_copy(layout: Layout, dataset: str) -> None:
    """Make the copy equal to the record, which must be sound; a writer that was killed may have left an older one."""
    address, copy = layout.champion(dataset), layout.champion_copy(dataset)
    record = read_record(address, _remedy(dataset), _wrong)
    while record is not None and _sound(copy) != record:
        write_record(copy, record)
        record = read_record(address, _remedy(dataset), _wrong)  # another machine may have replaced it meanwhile


def tenure(record: dict[str, Any]) -> dict[str, Any]:
    """Give the record of one champion alone, with its number: without the champions before it."""
    return {"number": 1, **{name: value for name, value in record.items() if name != "earlier"}}


def succession(before: dict[str, Any] | None) -> dict[str, Any]:
    """Give the number of the champion that follows, and the records of those before it."""
    if before is None:
        return {"number": 1, "earlier": []}
    own = tenure(before)
    return {"number": own["number"] + 1, "earlier": [*before.get("earlier", []), own]}


def next_publication(record: dict[str, Any]) -> int:
    """Give the number of the forecasts that are published next, by whichever champion."""
    published = [each["published"]["number"] for each in (*record.get("earlier", []), record) if each.get("published")]
    return max(published, default=0) + 1


def champion_problems(layout: Layout, dataset: str) -> tuple[str | None, str | None]:
    """Say what is wrong with the record and with its copy; None for a sound one, and twice None without a champion."""
    record, copy = (_problem(address) for address in (layout.champion(dataset), layout.champion_copy(dataset)))
    if record in (None, MISSING) and copy == MISSING:  # an earlier version made no copy
        return None, None
    return record, copy


def repair_champion(layout: Layout, dataset: str) -> None:
    """Restore the record from its copy, or the copy from the record; remove both if both are damaged."""
    address, copy = layout.champion(dataset), layout.champion_copy(dataset)
    with champion_lock(layout, dataset):
        expected = None if files.size(address) is None else files.stamp(address)
        record_problem, copy_problem = champion_problems(layout, dataset)
        if record_problem is None:
            update_copy(layout, dataset)
        elif copy_problem is None:
            files.replace_bytes(address, files.read_bytes(copy), expected)
        else:
            files.remove(copy)
            files.remove(address)


def _problem(address: str) -> str | None:
    try:
        return None if read_record(address, "", _wrong) is not None else MISSING
    except Damaged as error:
        return error.problem


def _sound(address: str) -> dict[str, Any] | None:
    return read_record(address, "") if _problem(address) is None else None


def _wrong(record: dict[str, Any]) -> str | None:
    return wrong_kind(kinds.Champion if "title" in record else kinds.EarlierChampion, record)


def _remedy(dataset: str) -> str:
    return f"`dyformer verify {dataset} --repair` restores it"
