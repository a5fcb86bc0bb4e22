"""What is not needed of a store -> removed: a dataset, its old versions, and the files of killed writers and drops."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from dyformer import InvalidInput
from storage.artifacts.artifact import MANIFEST, manifest, read_table
from storage.bytes import files
from storage.bytes.files import TEMPORARY
from storage.champions import OUTCOMES, PUBLICATIONS, PUBLISHED_KINDS, read_champion
from storage.events.table import check_dataset, taken_back
from storage.layout import PART, Layout
from storage.locks import DatasetInUse, not_in_use

DROPPED = re.compile(r"\.+dataset=(.+?)(?:\.[0-9a-f]{32})+")  # renamed once, or again by a removal that was killed too
PERMANENT = ("champion", PUBLICATIONS, OUTCOMES)  # kinds: the champions and the ledger, which are small
REMOVED = {"report": 0, "snapshots": 2}  # first what names others, last that by which a repeated removal finds them
FEWEST = 2
READ_STEPS = 5  # steps before the newest ones whose models and evaluations a run reads
YOUNG_SECONDS = 86_400.0  # a version that was written to since is left, because a run may still read it


def drop_dataset(layout: Layout, dataset: str, before: Callable[[], None] = lambda: None) -> None:
    """Remove the events, artifacts, checkpoints and champion record of a dataset; its files in `1_raw` stay.

    This user's copies of its rows go, too; another one removes those that no process has used for a month. The
    events are removed last, so that a killed drop can be repeated. `before` is called while no process uses the
    dataset, before anything is removed.

    Raises:
        DatasetNotIngested: no such dataset.
        DatasetInUse: a process of this machine ingests it or trains on it.
    """
    check_dataset(layout, dataset)
    with not_in_use(layout, dataset, "drop"):
        before()
        with suppress(PermissionError):  # another user's, in a state folder that several share
            files.remove_folder(layout.copies(dataset))
        for folder in layout.artifact_folders:
            for kind in files.children(folder):
                files.remove_folder(layout.of_dataset(f"{folder}/{kind}", dataset))
        files.remove_folder(layout.of_dataset(layout.datasets, dataset))


def remove_raw(layout: Layout, dataset: str) -> bool:
    """Remove the fetched files of a dataset and the events that a server received; return whether there was any."""
    folders = [layout.received(dataset), layout.raw(dataset)]
    were_there = any(files.find(folder, hidden=True) for folder in folders)
    for folder in folders:
        files.remove_folder(folder)
    return were_there


def remove_leftovers(layout: Layout, dataset: str) -> None:
    """Remove the hidden files and folders of a dataset that nothing was written to for a day.

    Parts of artifacts go too, if none was made for a day. The event table has leftovers of its own, which its
    next commit removes. An object store has no hidden files.
    """
    _remove_old_parts(layout, dataset)
    if not layout.is_local:
        return
    folders = [layout.of_dataset(layout.datasets, dataset)]
    folders += [
        layout.of_dataset(f"{folder}/{kind}", dataset)
        for folder in layout.artifact_folders
        for kind in files.children(folder)
    ]
    for folder in folders:
        for left in [path for path in Path(folder).rglob(".*") if TEMPORARY.fullmatch(path.name)]:
            files.remove_old(str(left))


def _remove_old_parts(layout: Layout, dataset: str) -> None:
    manifests = files.find(layout.artifacts(PART, dataset), MANIFEST)
    with suppress(FileNotFoundError):  # another process has just removed one, so it is at work
        if manifests and time.time() - max(map(files.modified, manifests)) > files.LEFTOVER_SECONDS:
            for manifest in manifests:
                files.remove_folder(manifest.rpartition("/")[0])


def dropped_rests(layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield each folder that a killed drop has renamed and not removed, with its dataset.

    An object store has none, because objects are removed one by one under their own names.
    """
    if not layout.is_local:
        return
    kinds = [f"{folder}/{kind}" for folder in layout.artifact_folders for kind in files.children(folder)]
    for folder in (layout.datasets, *kinds):
        for name in files.children(folder):
            if (match := DROPPED.fullmatch(name)) is not None:
                yield f"{folder}/{name}", match[1]


def remove_dropped(layout: Layout) -> None:
    """Remove what killed drops have left; the rest of a dataset that another process is just dropping stays."""
    for address, dataset in dropped_rests(layout):
        with suppress(DatasetInUse), not_in_use(layout, dataset, "drop"):
            files.remove_folder(address)


def removable(layout: Layout, dataset: str, keep: int) -> list[str]:
    """Addresses of artifacts and checkpoints that neither the newest steps and snapshots nor a champion need.

    An artifact has the version of its newest step, so that one of an old version may belong to the newest snapshots:
    the versions of the last `keep` steps, and of a few before them, stay as those of the last `keep` snapshots do. A
    champion needs its weights and what it published last; so do the last `keep` champions before it, for a rollback.
    The newest event forecaster stays, because rankings as of now read it until another one is fitted. The events, the
    record of the champions, the ledger, and versions of which anything was written within a day, stay.

    Raises ValueError for fewer than 2 versions, because a run may read the one before its own.
    """
    if keep < FEWEST:
        raise InvalidInput(f"keep {keep} versions: expected at least {FEWEST}")
    check_dataset(layout, dataset)
    snapshots = {address: _version(layout, address) for address in _addresses(layout.artifacts("snapshots", dataset))}
    versions = sorted(set(snapshots.values()))
    if len(versions) <= keep:
        return []
    oldest = min([versions[-keep], *_versions_of_steps(layout, dataset, keep + READ_STEPS)])
    needed = {layout.absolute(address) for address in _needed(layout, dataset, keep)}
    needed |= _event_forecaster(layout, dataset)
    unneeded = []
    for folder in layout.artifact_folders:
        for kind in sorted(set(files.children(folder)) - set(PERMANENT)):
            addresses = _addresses(layout.of_dataset(f"{folder}/{kind}", dataset))
            unneeded += [
                address for address in addresses if address not in needed and _version(layout, address) < oldest
            ]
    young = {_version(layout, address) for address in unneeded if _is_young(address)}
    return [address for address in unneeded if _version(layout, address) not in young]


def _versions_of_steps(layout: Layout, dataset: str, num_steps: int) -> list[int]:
    """Give the versions of the newest steps of all finished snapshots of the newest version: each has its windows."""
    manifests = files.find(layout.artifacts("snapshots", dataset), MANIFEST)
    finished = [location.removesuffix(f"/{MANIFEST}") for location in manifests]
    version_of = {address: _version(layout, address) for address in finished}
    newest = [address for address in finished if version_of[address] == max(version_of.values())]
    steps = [read_table(address, "steps").sort("step")["version"].tail(num_steps) for address in newest]
    return [version for of_one in steps for version in of_one]


def prune(layout: Layout, dataset: str, keep: int) -> list[str]:
    """Remove what `removable` lists; return it. A killed removal can be repeated.

    Raises DatasetInUse if a process of this machine ingests the dataset or trains on it.
    """
    with not_in_use(layout, dataset, "prune"):
        addresses = removable(layout, dataset, keep)
        for address in sorted(addresses, key=lambda each: REMOVED.get(layout.kind_of(each), 1)):
            files.remove_folder(address)
    return addresses


def _is_young(address: str) -> bool:
    newest = max((files.modified(location) for location in files.find(address)), default=0.0)
    return time.time() - newest < YOUNG_SECONDS


def _needed(layout: Layout, dataset: str, keep: int) -> list[str]:
    """Addresses below the root that the records of the champion and of those before it name, and their inputs.

    The vectors beside the forecasts of a baseline are those of a model that its record does not name.
    """
    record, _ = read_champion(layout, dataset)
    records = [] if record is None else [*record["earlier"][-keep:], record]
    models = [model for champion in records for model in champion.get("models", [])]
    published = [champion["published"] for champion in records if champion.get("published")]
    addresses = [publication[kind] for publication in published for kind in PUBLISHED_KINDS if publication[kind]]
    lineages = [manifest(layout.absolute(address)) for address in addresses]
    return [*models, *addresses, *(name for lineage in lineages if lineage is not None for name in lineage.inputs)]


def _event_forecaster(layout: Layout, dataset: str) -> set[str]:
    """Address of the newest forecaster for rankings as of now whose events were not taken back; none without one."""
    models = {address: manifest(address) for address in _addresses(layout.artifacts("event_model", dataset))}
    version_of = {
        address: lineage.table_version
        for address, lineage in models.items()
        if lineage is not None and lineage.settings.get("before") is None
    }
    lost = taken_back(layout, dataset, sorted(set(version_of.values())))
    sound = sorted((version, address) for address, version in version_of.items() if version not in lost)
    return {address for _, address in sound[-1:]}


def _addresses(folder: str) -> list[str]:
    """Addresses of all artifacts and checkpoints below the folder of a dataset, also of unfinished ones.

    What has no version in its address is none of them.
    """
    below = [location.removeprefix(f"{folder}/").split("/") for location in files.find(folder)]
    keys = ["/".join(part for part in parts[:-1] if "=" in part) for parts in below]
    return sorted({f"{folder}/{key}" for key in keys if "version=" in key})


def _version(layout: Layout, address: str) -> int:
    return int(layout.describe(address)[1]["version"])
