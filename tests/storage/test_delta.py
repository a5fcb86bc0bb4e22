"""The event table's files: durable, checked, readable by other programs, and damaged ones are named."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from deltalake.schema import PrimitiveType
from power_cut import Disk
from test_events_table import FIRST, SECOND, batch, ids, quarantine, result

from storage import disk, files
from storage.events import data_files, delta
from storage.events.commits import append, append_all
from storage.events.delta_log import LOG, TableDamaged, commit_name
from storage.events.rows import NODE_COLUMNS, STORED_COLUMNS
from storage.events.table import (
    DatasetNotIngested,
    history,
    ingested_datasets,
    newest_version,
    node_dictionary,
    read_events,
    scan_events,
)
from storage.layout import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(str(tmp_path / "store"))


@pytest.fixture
def stored(layout: Layout) -> Layout:
    append(layout, "chat", FIRST, "sha-1")
    append(layout, "chat", SECOND, "sha-2")
    return layout


def commit_file(layout: Layout, version: int) -> Path:
    return Path(layout.interactions("chat"), LOG, commit_name(version))


def data_paths(layout: Layout) -> list[Path]:
    return sorted(Path(layout.interactions("chat")).glob("accepted=true/*.parquet"))


def test_a_power_cut_at_any_moment_loses_no_commit_that_counted(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disk = Disk(monkeypatch, tmp_path)
    counted = [0]
    for source, name in ((FIRST, "sha-1"), (SECOND, "sha-2")):
        append(layout, "chat", source, name)
        counted += [len(disk.states)]
    monkeypatch.undo()
    assert len(disk.states) > 20
    for state in range(len(disk.states)):
        left = Layout(str(disk.after_power_cut(tmp_path / f"cut-{state}", state) / "store"))
        try:
            num_rows = read_events(left, "chat").height
        except DatasetNotIngested:
            num_rows = 0
        least = (0, 3, 5)[sum(state >= moment - 1 for moment in counted[1:])]
        assert num_rows in {0, 3, 5}
        assert num_rows >= least, f"after {state} of {len(disk.states)} syncs"
        shutil.rmtree(tmp_path / f"cut-{state}")


def test_other_programs_read_the_table(stored: Layout):
    table = DeltaTable(stored.interactions("chat"))
    assert (table.version(), table.transaction_version("ingest:chat:sha-2")) == (2, 2)
    assert [commit["operation"] for commit in table.history()] == ["WRITE", "WRITE", "CREATE TABLE"]
    found = pl.from_arrow(table.to_pyarrow_table())
    assert isinstance(found, pl.DataFrame)
    ours = scan_events(stored, "chat").sort("ingest", "row").collect()
    assert found.filter("accepted").sort("ingest", "row").select(ours.columns).equals(ours)
    assert found.filter(~pl.col("accepted")).height == quarantine(stored).height == 1
    assert found.columns == [*STORED_COLUMNS] or set(found.columns) == set(STORED_COLUMNS)


def written_by_the_library(layout: Layout) -> None:
    """Copy a table as an earlier version stored it: by the Delta library, without checksums."""
    events, nodes = scan_events(layout, "chat").collect(), node_dictionary(layout, "chat")
    stored = delta.opened(layout.interactions("chat"))
    assert stored is not None
    rejected = data_files.scan(stored, "accepted=false").collect()
    rows = pl.concat([events.with_columns(accepted=True), rejected.with_columns(accepted=False)], how="diagonal")
    address = layout.interactions("old")
    fields = [Field(name, PrimitiveType(delta.DELTA_TYPES[dtype])) for name, dtype in STORED_COLUMNS.items()]
    table = DeltaTable.create(address, Schema(fields), partition_by=["accepted"])
    for commit in history(layout, "chat").to_dicts():
        values = {key: str(value) for key, value in commit.items()} | {"changed": "True"}
        properties = CommitProperties(
            custom_metadata=values, app_transactions=[Transaction(f"ingest:old:{commit['batch']}", commit["version"])]
        )
        part = rows.filter(ingest=commit["version"]).select(STORED_COLUMNS.keys()).to_arrow()
        write_deltalake(table, part, mode="append", commit_properties=properties)
    fields = [Field(name, PrimitiveType(delta.DELTA_TYPES[dtype])) for name, dtype in NODE_COLUMNS.items()]
    dictionary = DeltaTable.create(layout.nodes("old"), Schema(fields))
    properties = CommitProperties(app_transactions=[Transaction("nodes", 2)])
    numbered = nodes.with_columns(ingest=pl.Series([1, 1, 1, 2])).to_arrow()
    write_deltalake(dictionary, numbered, mode="append", commit_properties=properties)


def test_a_table_without_checksums_is_read_and_continued(stored: Layout):
    written_by_the_library(stored)
    assert read_events(stored, "old").equals(read_events(stored, "chat"))
    assert node_dictionary(stored, "old").equals(node_dictionary(stored, "chat"))
    assert history(stored, "old").drop("arrival").equals(history(stored, "chat").drop("arrival"))
    assert not append(stored, "old", FIRST, "sha-1").changed
    third = result([("eve", "ann", 40)])
    assert append(stored, "old", third, "sha-3").version == append(stored, "chat", third, "sha-3").version == 3
    assert read_events(stored, "old").equals(read_events(stored, "chat"))
    assert ids(stored, "old") == ids(stored)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGE = (flipped, emptied, truncated, zeroed, Path.unlink)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_damaged_commit_is_named_and_never_fewer_events(stored: Layout, damage: Callable[[Path], None], version: int):
    damage(commit_file(stored, version))
    for read in (read_events, newest_version, node_dictionary):
        with pytest.raises(TableDamaged, match=rf"interactions/_delta_log/{commit_name(version)} .*dyformer verify"):
            read(stored, "chat")
    with pytest.raises(TableDamaged):
        append(stored, "chat", result([("eve", "ann", 40)]), "sha-3")
    assert ingested_datasets(stored) == ["chat"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_data_file_is_named(stored: Layout, damage: Callable[[Path], None]):
    damaged = data_paths(stored)[0]
    damage(damaged)
    with pytest.raises(TableDamaged, match=rf"{damaged} .*: `dyformer verify"):
        read_events(stored, "chat")
    assert newest_version(stored, "chat") == 2


def test_a_data_file_is_read_for_its_checksum_once(stored: Layout, monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []
    real = files.open_stream
    monkeypatch.setattr(files, "open_stream", lambda address: opened.append(address) or real(address))
    for _ in range(3):
        read_events(stored, "chat")
    assert sorted(opened) == [str(path) for path in data_paths(stored)]
    damaged = data_paths(stored)[0]
    content, status = damaged.read_bytes(), damaged.stat()
    flipped(damaged)
    with pytest.raises(TableDamaged):
        read_events(stored, "chat")
    damaged.write_bytes(content)
    os.utime(damaged, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert read_events(stored, "chat").height == 5


def test_paths_that_lead_out_of_the_store_are_not_followed(stored: Layout, tmp_path: Path):
    outside = tmp_path / "outside.parquet"
    shutil.copy(data_paths(stored)[0], outside)
    for path in (f"../../../../{outside.name}", str(outside), f"file://{outside}", "accepted=true/%2e%2e/../x"):
        forged = delta.Table(
            address=stored.interactions("chat"),
            commits=(({"add": {"path": path, "size": outside.stat().st_size, "tags": None}},),),
        )
        for partition in ("", "accepted=true"):  # its rows would be missing in the partition without a word
            with pytest.raises(TableDamaged, match=r"leads out of the table's folder"):
                data_files.scan(forged, partition)


def test_links_are_not_followed(stored: Layout, tmp_path: Path):
    path = data_paths(stored)[0]
    shutil.move(path, tmp_path / "elsewhere.parquet")
    path.symlink_to(tmp_path / "elsewhere.parquet")
    with pytest.raises(TableDamaged, match=r"symbolic link to .*elsewhere"):
        read_events(stored, "chat")
    log = commit_file(stored, 0).parent
    shutil.move(log, tmp_path / "log")
    log.symlink_to(tmp_path / "log")
    with pytest.raises(TableDamaged, match=r"symbolic link to .*/log"):
        newest_version(stored, "chat")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("function", ["fsync", "link"])
def test_a_full_or_broken_disk_is_one_named_error_and_no_commit(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, error: int, function: str
):
    append(layout, "chat", FIRST, "sha-1")
    real, failures = getattr(os, function), 0
    while True:
        left = iter(range(failures))

        def failing(*arguments: object, left: object = left, **options: object) -> object:
            if next(left, None) is None:  # pyright: ignore[reportCallIssue, reportArgumentType]
                raise OSError(error, os.strerror(error))
            return real(*arguments, **options)

        monkeypatch.setattr(os, function, failing)
        try:
            ingest = append(layout, "chat", SECOND, "sha-2")
        except disk.WriteFailed as failed:
            message = str(failed)
            assert layout.root in message
            assert os.strerror(error) in message
            assert ("free space" if error == errno.ENOSPC else "check the disk") in message
            assert "\x1b" not in message
            failures += 1
        else:
            break
        finally:
            monkeypatch.undo()
        assert read_events(layout, "chat").height in {3, 5}
    assert failures >= (5 if function == "fsync" else 2)
    assert ingest.version == 2
    assert read_events(layout, "chat").height == 5
    assert ids(layout) == ["cy", "ann", "bob", "dan"]


def test_the_files_of_killed_writers_are_removed_by_the_next_commit(stored: Layout):
    folder = Path(stored.interactions("chat"))
    names = ("part-0.parquet", disk.temporary_name("part-1.parquet"), "part-2.parquet#1")
    left = [folder / "accepted=true" / name for name in names]
    left += [folder / LOG / disk.temporary_name(commit_name(3))]
    of_others = [folder / LOG / name for name in (f"{2:020}.checkpoint.parquet", f".{commit_name(2)}.crc")]
    for path in left + of_others:
        path.write_bytes(b"half")
    assert read_events(stored, "chat").height == 5
    append(stored, "chat", result([("eve", "ann", 40)]), "sha-3")
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in of_others)
    assert read_events(stored, "chat").height == 6


def test_many_sources_are_one_commit_like_one_after_the_other(layout: Layout):
    sources = {f"w-{number}": batch("w", number) for number in range(5)}
    made = append_all(layout, "at-once", sources)
    for name, source in sources.items():
        append(layout, "in-turn", source, name)
    assert [(ingest.version, ingest.changed, ingest.batch) for ingest in made] == [(1, True, name) for name in sources]
    same = ["batch", "num_read", "num_accepted", "num_quarantined", "num_dropped", "first_time", "last_time"]
    assert history(layout, "at-once").select(same).equals(history(layout, "in-turn").select(same))
    assert read_events(layout, "at-once").equals(read_events(layout, "in-turn"))
    assert ids(layout, "at-once") == ids(layout, "in-turn")
    again = append_all(layout, "at-once", {**sources, "w-9": batch("w", 9)})
    assert [(ingest.version, ingest.changed) for ingest in again] == [(1, False)] * 5 + [(2, True)]


def test_events_that_an_earlier_source_of_the_commit_has_are_left_out_on_request(layout: Layout):
    sources = {"one": FIRST, "two": FIRST, "three": SECOND}
    made = append_all(layout, "chat", sources, drop_known=True)
    assert [(ingest.num_accepted, ingest.num_dropped, ingest.changed) for ingest in made] == [
        (3, 2, True),
        (0, 5, False),
        (2, 0, True),
    ]
    assert read_events(layout, "chat")["time"].to_list() == [20, 10, 20, 5, 30]
    assert history(layout, "chat")["batch"].to_list() == ["one", "three"]


def test_a_commit_of_many_rows_has_several_files(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data_files, "GROUP_ROWS", 50)
    monkeypatch.setattr(data_files, "FILE_BYTES", 2_000)
    many = result([(f"n{row % 97}", f"m{row % 89}", row) for row in range(1000)], bad=["x"] * 3)
    monkeypatch.setattr("storage.events.rows.BLOCK_ROWS", 20)
    append(layout, "chat", many, "sha")
    assert len(data_paths(layout)) > 3
    assert read_events(layout, "chat").height == 1000
    assert quarantine(layout).height == 3
