"""A function and fixed ranges -> an artifact, whose parts this process or the workers of a Ray cluster make.

A part is an artifact of its own: it is there whole or not at all, and a crash leaves those that are finished.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import polars as pl

from dyformer.sampling.prefetch import NUM_THREADS, loaded
from flows.cluster import machine_facts
from flows.console import tracked
from storage.artifacts.artifact import ArtifactDamaged, ArtifactMissing, read_table
from storage.artifacts.made import Contents, Planned, planned
from storage.bytes import files
from storage.layout import PART, Layout

CLUSTER = "DYFORMER_RAY_ADDRESS"  # HOST:PORT of a cluster's head; unset: this process makes all parts
RANGE_NODES = 4_096  # of a part: some seconds of one thread, and tables of fewer nodes have no parts

MakeRange = Callable[[Mapping[str, Any], range, int], pl.DataFrame]
"""Values that all ranges share, a range, and the number of background threads -> the rows of the range.

It is a function of a module, which other machines import, and the values are addresses and settings. The rows depend on
nothing else: neither on the other ranges nor on the number of threads.
"""


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What the ranges of one artifact have in common."""

    layout: Layout
    whole: Planned  # the artifact, on whose lineage its parts depend
    values: dict[str, Any]
    at_once: int = 1  # ranges that threads of this process make at the same time

    def part(self, rows: range) -> Planned:
        """Plan the part of a range; it may exist."""
        own = self.whole.lineage
        settings = {"whole": own.kind, "settings": own.settings_hash, "first": rows.start, "end": rows.stop}
        settings["device"] = self.values.get("device", "cpu")  # a GPU rounds differently
        settings["machine"] = machine_facts()  # so that a killed run that goes on elsewhere mixes no parts
        lineage = replace(own, kind=PART, settings=settings, settings_hash="")
        return planned(self.layout, lineage)


def made_of_ranges(
    function: MakeRange, ranges: Sequence[range], shared: Shared, contents: Callable[[pl.DataFrame], Contents]
) -> str:
    """Return the address of an artifact; `contents` gives its tables from the rows of all ranges, unless it is current.

    Its manifest is written last, and its parts are removed after that. Raises the errors of `map_ranges`.
    """
    whole = shared.whole
    if whole.is_current:
        return whole.address
    try:
        whole.made(lambda: contents(pl.concat(map_ranges(function, ranges, shared))))
    except (ArtifactMissing, ArtifactDamaged, FileNotFoundError):
        if not whole.is_current:  # else another process has finished it, and removed the parts that this one read
            raise
    remove_parts(ranges, shared)
    return whole.address


def fixed_ranges(num_items: int, nodes_of_item: int = 1, *, times: int = 1) -> list[range]:
    """Split nodes, or batches of some nodes each, into ranges of about `times` RANGE_NODES nodes.

    Without nodes there is one empty range.
    """
    num_together = max(1, times * RANGE_NODES // nodes_of_item)
    starts = range(0, max(num_items, 1), num_together)
    return [range(start, min(start + num_together, num_items)) for start in starts]


def map_ranges(function: MakeRange, ranges: Sequence[range], shared: Shared) -> list[pl.DataFrame]:
    """Give the rows of each range, in the order of the ranges.

    Ranges follow from settings and sizes, never from the number of workers, so that every way to make them writes the
    same parts. Parts of an earlier try are read. A single range is made in this process and is no part. With
    DYFORMER_RAY_ADDRESS the workers of that cluster make the parts, and what hinders them is an error: this process
    never makes them instead. Raises the errors of `flows.cluster`.
    """
    if len(ranges) == 1:
        return [function(shared.values, ranges[0], NUM_THREADS)]
    missing = [rows for rows in ranges if not shared.part(rows).is_current]
    title = f"parts of {shared.whole.lineage.kind}"
    for _ in tracked(_made(function, missing, shared), title, len(missing)):
        pass
    return [read_table(shared.part(rows).address, PART) for rows in ranges]


def uses_cluster() -> bool:
    """Whether workers of a cluster make the parts, and run the trials of benchmarks; they compute on CPUs."""
    return bool(os.environ.get(CLUSTER))


def make_part(function: MakeRange, rows: range, shared: Shared, num_threads: int) -> None:
    """Write the part of a range, unless it is there."""
    shared.part(rows).made(lambda: {PART: function(shared.values, rows, num_threads)})


def remove_parts(ranges: Sequence[range], shared: Shared) -> None:
    """Remove the parts of an artifact that is written; those of a killed process go with the leftovers of a dataset."""
    for rows in ranges if len(ranges) > 1 else ():
        with suppress(FileNotFoundError):  # another process is just removing it
            files.remove_folder(shared.part(rows).address)


def done_by_workers(layout: Layout, jobs: Sequence[Callable[[], Any]]) -> Iterator[tuple[int, Any]]:
    """Do jobs on the cluster in use; yield the number and the result of each. Raises the errors of `flows.cluster`."""
    from flows.cluster import done_on

    return done_on(os.environ[CLUSTER], layout, jobs)


def _made(function: MakeRange, missing: Sequence[range], shared: Shared) -> Iterator[object]:
    """Make the missing parts; yield after each."""
    at_once = min(shared.at_once, len(missing))
    is_here = not uses_cluster() or not missing
    num_threads = NUM_THREADS if is_here and at_once < 2 else 0
    jobs = [partial(make_part, function, rows, shared, num_threads) for rows in missing]
    if not is_here:
        yield from done_by_workers(shared.layout, jobs)
    elif at_once < 2:
        yield from (job() for job in jobs)
    else:
        function(shared.values, missing[0][:1], 0)  # loads once what all ranges read, before several need it
        yield from loaded(jobs, num_threads=at_once, num_ahead=len(jobs))
