"""Everything stored -> the damaged parts, each with what can be done, and the parts made again that can be."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl
from filelock import Timeout

from storage import files
from storage.artifacts import artifact
from storage.artifacts.checkpoints import FILE_NAME, CheckpointDamaged, from_bytes
from storage.champions import MISSING, champion_problems, repair_champion
from storage.checksums import Damaged, link_in
from storage.drop import DatasetInUse
from storage.events import delta, rows
from storage.events.declarations import declaration
from storage.events.delta_log import LOG, TableDamaged, actions_in
from storage.events.table import sources_of, table_of
from storage.layout import CHECKPOINTS, Layout
from storage.locks import in_use
from storage.tracking import spool

SPOOL = "spool"
MOST_FILES = 5  # that a message names
MOVE_BACK = "move the folder back into the store, or remove the link"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A damaged part of the store; `repair` is None for one that only a user can bring back."""

    address: str
    problem: str
    remedy: str
    repair: Callable[[], object] | None = None


def faults(layout: Layout, dataset: str | None = None) -> Iterator[Fault]:
    """Verify the stored bytes of one dataset, or of all, and the records that wait for MLflow."""
    names = layout.dataset_names(files.children(layout.datasets))
    for name in names if dataset is None else [dataset]:
        yield from _of_events(layout, name)
        yield from _of_declaration(layout, name)
        yield from _of_champion(layout, name)
    for folder in layout.artifact_folders:
        if (problem := link_in(folder)) is not None:
            yield Fault(address=folder, problem=problem, remedy=MOVE_BACK)
            continue
        for kind in files.children(folder):
            below = f"{folder}/{kind}"
            if (problem := link_in(below)) is not None:
                yield Fault(address=below, problem=problem, remedy=MOVE_BACK)
                continue
            yield from _of_artifacts(below if dataset is None else layout.of_dataset(below, dataset))
    if dataset is not None:
        return
    for folder, problem in spool.faults_of_spool(Path(layout.spool)):
        remedy = "the run's results are in the store, but MLflow will not get them"
        yield Fault(address=str(folder), problem=problem, remedy=remedy, repair=partial(spool.set_aside, folder))


def repaired(layout: Layout, dataset: str, fault: Fault) -> bool:
    """Make a damaged part again, or remove it so that the next command makes it; False for one that has no repair.

    Raises DatasetInUse if a process of this machine ingests or trains on the dataset.
    """
    if fault.repair is None:
        return False
    try:
        with in_use(layout, dataset).write_lock(blocking=False):
            if _is_still_there(layout, fault):  # another process may have made it again
                fault.repair()
    except Timeout as error:
        raise DatasetInUse(
            f"dataset {dataset!r} is being ingested or trained on: repair it after that process has ended"
        ) from error
    return True


def _is_still_there(layout: Layout, fault: Fault) -> bool:
    dataset = dataset_of(fault)
    return any(each.address == fault.address for each in faults(layout, None if dataset == SPOOL else dataset))


def dataset_of(fault: Fault) -> str:
    """Name of the dataset in a fault's address; records that wait for MLflow belong to none."""
    return fault.address.rpartition("dataset=")[2].partition("/")[0] if "dataset=" in fault.address else SPOOL


def _of_events(layout: Layout, dataset: str) -> Iterator[Fault]:
    events, nodes = layout.interactions(dataset), layout.nodes(dataset)
    found = delta.faults(events)
    in_nodes = delta.faults(nodes)
    if not found and not in_nodes:
        try:
            table = table_of(layout, dataset)
            in_nodes = [(nodes, "differs from the events")] if table and not _is_dictionary(nodes, table) else []
        except TableDamaged as error:  # the newest commit is missing, which only the dictionary shows
            found = [delta.parts_of(str(error))]
        except pl.exceptions.PolarsError as error:  # a file of an earlier version, which has no checksum
            found = [(events, f"has a data file that cannot be decoded ({str(error).strip().splitlines()[0]})")]
    lost_commits = any(address.endswith(".json") for address, _ in found)
    for address, problem in found:
        remedy = _events_remedy(layout, dataset, lost_commits=lost_commits)
        yield Fault(address=address, problem=problem, remedy=remedy)
    again = None if found else partial(_make_dictionary, layout, dataset)
    for address, problem in in_nodes:
        remedy = (
            "made again from the events by `--repair`" if again else "made again from the events, once they are sound"
        )
        yield Fault(address=address, problem=problem, remedy=remedy, repair=again)


def _is_dictionary(address: str, table: delta.Table) -> bool:
    """Whether the dictionary has the nodes that the events have."""
    known = rows.known_nodes(address, table, table.version)
    return known.equals(rows.nodes_of(table))


def _make_dictionary(layout: Layout, dataset: str) -> None:
    files.remove_folder(layout.nodes(dataset))
    table = table_of(layout, dataset)
    if table is not None and table.version:
        rows.extend_dictionary(layout.nodes(dataset), table)


def _events_remedy(layout: Layout, dataset: str, *, lost_commits: bool) -> str:
    """Name the raw files of which the events were made."""
    names: list[str] = []
    for name in files.stamps(f"{layout.interactions(dataset)}/{LOG}"):
        location = f"{layout.interactions(dataset)}/{LOG}/{name}"
        try:
            actions = actions_in(location, files.read_bytes(location))
        except (TableDamaged, OSError):
            continue
        sources = sources_of(delta.Table(address="", commits=(actions,)))
        names += [file for source in sources for file in source.get("files", [f"SHA-256 {source['batch'][:12]}..."])]
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - MOST_FILES} more" if len(names) > MOST_FILES else ""
    listed = ", ".join(names[:MOST_FILES]) + more if names else "their names are lost"
    if names and lost_commits:
        listed += ", and those of the damaged commits, whose names are lost"
    return f"cannot be made again here: `dyformer drop {dataset}`, then ingest its raw files again: {listed}"


def _of_declaration(layout: Layout, dataset: str) -> Iterator[Fault]:
    try:
        declaration(layout, dataset)
    except Damaged as error:
        address = layout.declaration(dataset)
        problem, _, remedy = str(error).removeprefix(f"{address} ").partition(": ")
        yield Fault(address=address, problem=problem, remedy=f"cannot be made again here: {remedy}")


def _of_champion(layout: Layout, dataset: str) -> Iterator[Fault]:
    addresses = (layout.champion(dataset), layout.champion_copy(dataset))
    problems = champion_problems(layout, dataset)
    remedy = "restored by `--repair`"
    if None not in problems:
        remedy = f"removed by `--repair`, and the next `dyformer run {dataset}` chooses a champion again"
    for address, problem in zip(addresses, problems, strict=True):
        if problem is not None and (address, problem) != (addresses[1], MISSING):  # an earlier version made no copy
            repair = partial(repair_champion, layout, dataset)
            yield Fault(address=address, problem=problem, remedy=remedy, repair=repair)


def _of_artifacts(folder: str) -> Iterator[Fault]:
    found, links = files.find(folder), files.links(folder)
    for link in links:
        yield Fault(address=link, problem=str(link_in(link)), remedy="remove the link, and the next run makes it again")
    for location in (each for each in found if each not in links):
        address, _, name = location.rpartition("/")
        if name == artifact.MANIFEST:
            with suppress(artifact.ArtifactMissing):  # it was replaced meanwhile
                yield from [_artifact_fault(*each, address) for each in artifact.faults(address)]
        elif name == FILE_NAME:
            yield from _of_checkpoint(location)
    for address in artifact.without_manifest(found):
        yield _artifact_fault(address, f"has files but no {artifact.MANIFEST}", address)


def _artifact_fault(location: str, problem: str, address: str) -> Fault:
    weights = f"/{CHECKPOINTS}/" in address
    remedy = f"removed by `--repair`, and the next run {'trains' if weights else 'makes'} it again from the events"
    return Fault(address=location, problem=problem, remedy=remedy, repair=partial(files.remove_folder, address))


def _of_checkpoint(location: str) -> Iterator[Fault]:
    try:
        from_bytes(files.read_bytes(location), name=location)
    except FileNotFoundError:  # its training has ended meanwhile
        return
    except CheckpointDamaged as error:
        problem = str(error).removeprefix(location).strip(" :").partition(": ")[0]
        remedy = "removed by `--repair`, and the training starts at its beginning"
        yield Fault(address=location, problem=problem, remedy=remedy, repair=partial(files.remove, location))
