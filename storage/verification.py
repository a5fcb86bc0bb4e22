"""Everything stored -> the damaged parts, each with what can be done, and the parts made again that can be."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from storage.artifacts import artifact
from storage.artifacts.artifact import without_manifest
from storage.artifacts.checkpoints import FILE_NAME, CheckpointDamaged, from_bytes
from storage.bytes import files
from storage.bytes.checksums import Damaged, link_in, no_folder_at
from storage.bytes.files import ReadFailed
from storage.champions import MISSING, PUBLICATIONS, champion_problems, repair_champion
from storage.events import versions
from storage.events.declarations import declaration
from storage.events.versions import TableDamaged, Version
from storage.layout import CHECKPOINTS, Layout
from storage.locks import DatasetInUse, not_in_use
from storage.removal import DROPPED, dropped_rests
from storage.tracking.marks import MARK, mark_problem, unmark

MOST_FILES = 5  # that a message names
MOVE = "move it elsewhere, and a linked folder back into the store"


@dataclass(frozen=True, kw_only=True)
class Repair:
    """What `--repair` does with a damaged part: the sentence before, the one after, and the action.

    The action looks at the part again, because another process or the repair of another fault may have repaired it.
    """

    before: str
    after: str
    action: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A damaged part of the store; `repair` is None for one that only a user can bring back."""

    address: str
    problem: str
    remedy: str
    repair: Repair | None = None


def faults(layout: Layout, dataset: str | None = None) -> Iterator[Fault]:
    """Verify the stored bytes of one dataset, or of all."""
    yield from _misplaced(layout.datasets)
    names = layout.dataset_names(files.children(layout.datasets))
    for name in names if dataset is None else [dataset]:
        yield from _of_events(layout, name)
        yield from _of_declaration(layout, name)
        yield from _of_champion(layout, name)
    for folder in layout.artifact_folders:
        wrong = list(_misplaced(folder))
        yield from wrong
        for below in [f"{folder}/{kind}" for kind in files.children(folder)] if not wrong else []:
            wrong = [fault for fault in _misplaced(below) if link_in(below)]  # a file there is the user's
            yield from wrong or _of_artifacts(below if dataset is None else layout.of_dataset(below, dataset))
    yield from _of_dropped(layout, dataset)


def repaired(layout: Layout, dataset: str, fault: Fault) -> str | None:
    """Make a damaged part again, or remove it so that the next command makes it; returns what was done.

    None for a fault that has no repair. Raises DatasetInUse if a process of this machine ingests or trains on the
    dataset.
    """
    if fault.repair is None:
        return None
    with not_in_use(layout, dataset, "repair"):
        fault.repair.action()
    return fault.repair.after


def dataset_of(fault: Fault) -> str:
    """Name of the dataset in a fault's address."""
    rest = DROPPED.fullmatch(fault.address.rpartition("/")[2])
    return fault.address.rpartition("dataset=")[2].partition("/")[0] if rest is None else rest[1]


def _misplaced(folder: str) -> Iterator[Fault]:
    if (problem := no_folder_at(folder)) is not None:
        yield Fault(address=folder, problem=problem, remedy=MOVE)


def _removing(then: str, action: Callable[[], object]) -> Repair:
    """Give the repair that removes a part, and what follows from that."""
    return Repair(before=f"`--repair` removes it, and {then}", after=f"removed; {then}", action=action)


def _repairable(address: str, problem: str, repair: Repair) -> Fault:
    return Fault(address=address, problem=problem, remedy=repair.before, repair=repair)


def _of_events(layout: Layout, dataset: str) -> Iterator[Fault]:
    event_faults = list(_event_faults(layout, dataset))
    remedy = _events_remedy(layout, dataset) if event_faults else ""
    for address, problem in event_faults:
        yield Fault(address=address, problem=problem, remedy=remedy)


def _event_faults(layout: Layout, dataset: str) -> Iterator[tuple[str, str]]:
    """Give the damaged files of all commits, and what is wrong with each."""
    try:
        addresses = [layout.commit(dataset, number) for number in versions.commit_numbers(layout, dataset)]
    except TableDamaged as error:
        yield error.address, error.problem
        return
    commit_faults = [fault for address in addresses for fault in _commit_faults(address)]
    if not commit_faults:
        try:
            commit_faults = _chain_faults(layout, versions.newest(layout, dataset), dataset)
        except TableDamaged as error:  # one is missing, or is that of another number
            commit_faults = [(error.address, error.problem)]
    yield from commit_faults


def _commit_faults(address: str) -> list[tuple[str, str]]:
    if (problem := no_folder_at(address)) is not None:
        return [(address, problem)]
    try:
        return artifact.faults(address)
    except artifact.ArtifactMissing:
        # Where an object store has files alone, their writer is at work or was killed, for an hour at least.
        is_lost = not files.is_remote(address) or address in without_manifest(files.find(address))
        return [(f"{address}/{artifact.MANIFEST}", "is missing")] if is_lost else []


def _chain_faults(layout: Layout, newest: Version, dataset: str) -> list[tuple[str, str]]:
    """Find commits that do not follow the one before, because one of the two was replaced."""
    problems, before = [], ""
    for number in range(1, newest.number + 1):
        address = layout.commit(dataset, number)
        commit = artifact.open_artifact(address)  # its files were verified
        if before and before not in commit.lineage.inputs.values():
            problems.append((f"{address}/{artifact.MANIFEST}", f"does not follow commit {number - 1} as it is now"))
        before = commit.digest
    return problems


def _events_remedy(layout: Layout, dataset: str) -> str:
    """Name the raw files of which the events were made, by the newest commit that can be read."""
    names, lost_commits = [], False
    try:
        for number in reversed(versions.commit_numbers(layout, dataset)):
            with suppress(Damaged):
                sources = versions.opened(layout, dataset, number).sources
                names = list(dict.fromkeys(name for source in sources for name in source["files"]))
                break
            lost_commits = True
    except TableDamaged as error:
        return error.remedy
    more = f" and {len(names) - MOST_FILES} more" if len(names) > MOST_FILES else ""
    listed = ", ".join(names[:MOST_FILES]) + more if names else "their names are lost"
    if names and lost_commits:
        listed += ", and those of the damaged commits, whose names are lost"
    return f"cannot be made again here: `dyformer drop {dataset}`, then ingest its raw files again: {listed}"


def _of_declaration(layout: Layout, dataset: str) -> Iterator[Fault]:
    try:
        declaration(layout, dataset)
    except Damaged as error:
        yield Fault(address=error.address, problem=error.problem, remedy=f"cannot be made again here: {error.remedy}")


def _of_champion(layout: Layout, dataset: str) -> Iterator[Fault]:
    addresses = (layout.champion(dataset), layout.champion_copy(dataset))
    problems = champion_problems(layout, dataset)
    action = partial(repair_champion, layout, dataset)
    repair = Repair(before="`--repair` restores it", after="restored", action=action)
    if None not in problems:
        repair = _removing(f"the next `dyformer run {dataset}` chooses a champion again", action)
    for address, problem in zip(addresses, problems, strict=True):
        if problem is not None and (address, problem) != (addresses[1], MISSING):  # its writer was killed
            yield _repairable(address, problem, repair)


def _of_artifacts(folder: str) -> Iterator[Fault]:
    locations, links = files.find(folder), files.links(folder)
    for link in links:
        yield Fault(address=link, problem=str(link_in(link)), remedy="remove the link, and the next run makes it again")
    for location in (address for address in locations if address not in links):
        address, _, name = location.rpartition("/")
        if name == artifact.MANIFEST:
            with suppress(artifact.ArtifactMissing):  # it was replaced meanwhile
                yield from [_repairable(*fault, _removal(address)) for fault in artifact.faults(address)]
        elif name == FILE_NAME:
            yield from _of_checkpoint(location)
        elif name == MARK:
            yield from _of_mark(location)
    for address in without_manifest(locations):
        yield _repairable(address, f"has files but no {artifact.MANIFEST}", _removal(address))


def _of_mark(location: str) -> Iterator[Fault]:
    if (problem := mark_problem(location)) is not None:
        action = partial(_remove_mark, location)
        repair = _removing("the next run sends the result to MLflow again", action)
        yield _repairable(location, problem, repair)


def _remove_mark(location: str) -> None:
    if mark_problem(location) is not None:
        unmark(location.rpartition("/")[0])


def _removal(address: str) -> Repair:
    if f"/{PUBLICATIONS}/" in address:
        then = "the ledger lacks this publication, which nothing makes again once another one followed"
    else:
        verb = "trains" if f"/{CHECKPOINTS}/" in address else "makes"
        then = f"the next run that needs it {verb} it again from the events"
    return _removing(then, partial(_remove_artifact, address))


def _remove_artifact(address: str) -> None:
    try:
        is_sound = not artifact.faults(address)
    except artifact.ArtifactMissing:
        is_sound = not without_manifest(files.find(address))
    if not is_sound:
        files.remove_folder(address)


def _of_checkpoint(location: str) -> Iterator[Fault]:
    if (problem := _checkpoint_problem(location)) is not None:
        repair = _removing("the training starts at its beginning", partial(_remove_checkpoint, location))
        yield _repairable(location, problem, repair)


def _checkpoint_problem(location: str) -> str | None:
    try:
        from_bytes(files.read_bytes(location), name=location)
    except FileNotFoundError:  # its training has ended meanwhile
        return None
    except (CheckpointDamaged, ReadFailed) as error:
        return error.problem
    return None


def _remove_checkpoint(location: str) -> None:
    if _checkpoint_problem(location) is not None:
        files.remove(location)


def _of_dropped(layout: Layout, dataset: str | None) -> Iterator[Fault]:
    for address, name in dropped_rests(layout):
        if dataset in (None, name) and not _is_in_use(layout, name):  # another process may be dropping it just now
            repair = Repair(
                before="`--repair` removes it, and so does the next `dyformer ingest`",
                after="removed",
                action=partial(files.remove_folder, address),
            )
            yield _repairable(address, f"is what a killed `dyformer drop {name}` has left", repair)


def _is_in_use(layout: Layout, dataset: str) -> bool:
    try:
        with not_in_use(layout, dataset, "verify"):
            return False
    except DatasetInUse:
        return True
