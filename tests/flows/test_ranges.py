"""What is made of ranges has the rows of what is made at once, and the parts of an earlier try are read."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from own_snapshots import own_snapshots

from dyformer.evaluation import first_stage
from dyformer.evaluation.promotion import FORECASTER_WITHOUT
from dyformer.experiments.settings import Experiment
from dyformer.sampling import limits
from flows import parallel
from flows.cluster import machine_facts
from flows.parallel import Shared, made_of_ranges, remove_parts
from flows.tasks import predict, prepare
from flows.tasks.models import Contender
from flows.tasks.prepare import prepare_tables
from flows.tasks.snapshots import open_snapshots
from storage.artifacts import artifact
from storage.artifacts.artifact import ArtifactDamaged, Lineage, read_table
from storage.artifacts.made import planned
from storage.bytes import checksums, files
from storage.layout import PART, Layout

UNTIL = 8


@pytest.fixture
def snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    return own_snapshots(tmp_path)


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_pagerank_table_of_ranges_is_that_of_all_nodes(snapshots: str, monkeypatch: pytest.MonkeyPatch, at_once: int):
    def table() -> str:
        return prepare_tables(snapshots, UNTIL, Experiment())["pagerank"]

    same_rows_and_resumed(monkeypatch, table, "pagerank", prepare, "pagerank_rows", at_once)


@pytest.mark.parametrize("compared", [50_000, 10], ids=["all pairs", "candidates"])
@pytest.mark.parametrize("method", ["L3", FORECASTER_WITHOUT])
@pytest.mark.parametrize("at_once", [1, 3])
def test_forecasts_of_ranges_are_those_of_all_nodes(
    snapshots: str, monkeypatch: pytest.MonkeyPatch, method: str, compared: int, at_once: int
):
    monkeypatch.setattr(first_stage, "MAX_NODES", compared)  # of a graph whose pairs are all compared

    def table() -> str:
        return predict.write_forecasts(snapshots, Contender(title=method), k=3)

    same_rows_and_resumed(monkeypatch, table, "forecasts", predict, "rank_range", at_once)


@pytest.mark.parametrize(
    ("gigabytes", "cpus", "at_once"), [(24, 2, 2), (24, 16, 2), (64, 16, 7), (4, 2, 0), (64, 1, 1)]
)
def test_ranges_are_ranked_at_the_same_time_in_half_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, gigabytes: int, cpus: int, at_once: int
):
    monkeypatch.setattr(limits, "usable_cpus", lambda: cpus)
    monkeypatch.setattr(limits, "usable_memory", lambda: gigabytes * 10**9)
    assert predict.ranked_at_once(262_144) == at_once


def test_forecasts_of_more_nodes_have_larger_ranges():
    sizes = [
        [len(rows) for rows in predict.forecast_ranges(number)]
        for number in (0, 40_000, 70_000, 100_000, 1_000_000, 10**7)
    ]
    assert sizes[:2] == [[0], [16_384] * 2 + [7_232]]
    assert [len(each) for each in sizes[2:5]] == [4, 4, 4]
    assert max(sizes[4]) < 2 * min(sizes[4])
    assert set(sizes[5][:-1]) == {262_144}  # their pairs take some 4 GB


def test_parts_of_a_gpu_are_never_taken_for_those_of_a_cpu(snapshots: str):
    opened = open_snapshots(snapshots)
    whole = planned(opened.layout, opened.lineage("vectors", until=UNTIL, settings={}))
    parts = {
        device: Shared(layout=opened.layout, whole=whole, values={"device": device}).part(range(4))
        for device in ("cpu", "cuda")
    }
    assert parts["cpu"].address != parts["cuda"].address


def test_parts_of_another_kind_of_machine_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shared = shared_in(tmp_path)
    addresses = {shared.part(range(4)).address}
    own = machine_facts()
    assert "lightgbm" in own
    for name in own:
        monkeypatch.setattr(parallel, "machine_facts", lambda name=name: {**own, name: "another"})
        addresses.add(shared.part(range(4)).address)
    assert len(addresses) == 1 + len(own)


@pytest.mark.parametrize(
    ("module", "name"),
    [(artifact, "open_artifact"), (checksums, "content_of"), (files, "read_bytes")],
    ids=["before the manifest is read", "before the table is found", "before the table is read"],
)
def test_parts_that_another_process_removes_once_it_has_made_the_whole_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
):
    shared, ranges = shared_in(tmp_path), [range(2), range(2, 4)]
    honest = getattr(module, name)

    def late(address: str, *values: object) -> object:
        if f"/{PART}/" in address and not address.endswith("manifest.json"):
            shared.whole.made(lambda: {"numbers": numbers({}, range(4), 0)})
            remove_parts(ranges, shared)
        return honest(address, *values)

    monkeypatch.setattr(module, name, late)
    made = made_of_ranges(numbers, ranges, shared, lambda rows: {"numbers": rows})
    assert read_table(made, "numbers")["number"].to_list() == [0, 1, 2, 3]


def test_a_part_that_is_damaged_while_there_is_no_whole_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shared, ranges = shared_in(tmp_path), [range(2), range(2, 4)]
    honest = checksums.content_of

    def without_table(location: str, *values: Any) -> tuple[bytes, str | None]:
        files.remove(location)
        return honest(location, *values)

    monkeypatch.setattr(checksums, "content_of", without_table)
    with pytest.raises(ArtifactDamaged, match="is missing"):
        made_of_ranges(numbers, ranges, shared, lambda rows: {"numbers": rows})


def shared_in(folder: Path) -> Shared:
    layout = Layout(str(folder / "store"))
    lineage = Lineage(kind="pagerank", dataset="mylog", table_version=1, until=1)
    return Shared(layout=layout, whole=planned(layout, lineage), values={})


def numbers(values: Mapping[str, Any], rows: range, num_threads: int) -> pl.DataFrame:
    return pl.DataFrame({"number": list(rows)})


def same_rows_and_resumed(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], str], name: str, module: object, function: str, at_once: int
) -> None:
    """Make an artifact at once, and in ranges with an error in the second one; then in ranges after that error."""
    monkeypatch.setattr(limits, "usable_cpus", lambda: at_once)
    whole = read_table(make(), name)
    files.remove_folder(make())
    monkeypatch.setattr(parallel, "RANGE_NODES", 4)
    honest, made, failed = getattr(module, function), [], []

    def failing(values: dict[str, object], rows: range, num_threads: int) -> object:
        made.append(rows.start)
        if rows.start and not failed:
            failed.append(rows.start)
            raise ZeroDivisionError
        return honest(values, rows, num_threads)

    monkeypatch.setattr(module, function, failing)
    with pytest.raises(ZeroDivisionError):
        make()
    parts = Layout.from_environment().artifacts(PART, "mylog")
    num_parts, num_made = len(files.find(parts, "manifest.json")), len(made)
    assert num_parts == 1 if at_once == 1 else num_parts >= 1
    assert read_table(make(), name).equals(whole)
    num_left = len(set(made)) - num_parts
    assert num_left > 0
    assert len(made) - num_made == num_left + (min(at_once, num_left) > 1)  # before threads there is a node alone
    assert not files.find(parts)
