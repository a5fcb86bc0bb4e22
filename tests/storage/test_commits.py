"""The files of commits: durable, checked, readable elsewhere; damaged ones are named, as wrong declarations are."""

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from power_cut import Disk
from test_events_table import FIRST, SECOND, append, batch, ids, quarantine, result

from storage.artifacts import artifact
from storage.artifacts.artifact import MANIFEST, lineage_of, open_artifact
from storage.artifacts.artifact import digest as digest_of
from storage.bytes import files
from storage.bytes.checksums import RecordDamaged, sha256, write_record
from storage.events import commits, versions
from storage.events.commits import append_all
from storage.events.declarations import declaration, declare
from storage.events.table import (
    DatasetNotIngested,
    history,
    ingested_datasets,
    newest_version,
    node_dictionary,
    read_events,
    scan_events,
    scan_quarantine,
)
from storage.events.versions import INTERACTIONS, NODES, PARTS, QUARANTINE, SOURCES, TableDamaged
from storage.layout import Layout

RECORD = {"separator": "\t", "columns": {"source": 0, "target": "item"}, "bipartite": True, "window": "7d"}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(str(tmp_path / "store"))


@pytest.fixture
def stored(layout: Layout) -> Layout:
    append(layout, "chat", FIRST, "sha-1")
    append(layout, "chat", SECOND, "sha-2")
    return layout


def commit_file(layout: Layout, version: int) -> Path:
    return Path(layout.commit("chat", version), MANIFEST)


def data_paths(layout: Layout) -> list[Path]:
    return sorted(Path(layout.commits("chat")).glob("commit=*/interactions.parquet"))


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


def test_other_programs_read_the_tables_by_a_glob(stored: Layout):
    for name, scan in ((INTERACTIONS, scan_events), (QUARANTINE, scan_quarantine)):
        files_of_all = f"{stored.datasets}/*/commit=*/{name}*.parquet"
        ours = scan(stored, "chat").sort("ingest", "row").collect()
        with duckdb.connect() as connection:
            found = connection.sql(f"from read_parquet('{files_of_all}', hive_partitioning = true)").pl()
        assert set(found["dataset"]) == {"chat"}
        assert found["commit"].to_list() == found["ingest"].to_list()
        assert found.sort("ingest", "row").select(ours.columns).equals(ours)
        theirs = pl.scan_parquet(files_of_all, hive_partitioning=True).sort("ingest", "row").collect()
        assert theirs.select(ours.columns).equals(ours)
        assert theirs.height == (5 if name == INTERACTIONS else 1)
    with duckdb.connect() as connection:
        nodes = connection.sql(f"from read_parquet('{stored.datasets}/*/commit=*/{NODES}.parquet') order by node").pl()
    assert nodes.select("node", "side", "id").equals(node_dictionary(stored, "chat"))


def test_a_commit_is_an_artifact_that_follows_the_one_before(stored: Layout):
    first, second = stored.commit("chat", 1), stored.commit("chat", 2)
    tables = (INTERACTIONS, NODES, PARTS, QUARANTINE, SOURCES)
    assert sorted(open_artifact(second).entries) == [f"{name}.parquet" for name in tables]
    lineage = lineage_of(second)
    assert (lineage.kind, lineage.dataset, lineage.table_version) == ("events", "chat", 2)
    assert lineage.max_event_time == 30
    assert lineage.inputs == {stored.relative(first): digest_of(first)}
    assert lineage_of(first).inputs == {}


@pytest.mark.parametrize("num_commits", [3, 30])
def test_a_version_is_opened_by_one_manifest(layout: Layout, monkeypatch: pytest.MonkeyPatch, num_commits: int):
    for number in range(num_commits):
        append(layout, "chat", result([("ann", "bob", number)]), f"sha-{number}")
    versions._checked_list.cache_clear()
    read: list[str] = []
    real = files.read_bytes
    monkeypatch.setattr(files, "read_bytes", lambda address: read.append(Path(address).name) or real(address))
    assert newest_version(layout, "chat") == num_commits
    assert sorted(read) == ["manifest.json", "parts.parquet", "sources.parquet"]
    assert history(layout, "chat").height == num_commits


def test_a_table_of_an_earlier_version_is_refused_by_name(layout: Layout):
    files.write_bytes(f"{layout.commits('chat')}/interactions/_delta_log/{0:020}.json", b"{}")
    command = r"make it anew with `dyformer drop chat --yes && dyformer ingest chat --log FILES`"
    for use in (read_events, lambda layout, name: append(layout, name, FIRST, "sha-1")):
        with pytest.raises(
            TableDamaged, match=rf"dataset=chat/interactions is an event table of an earlier.*{command}"
        ):
            use(layout, "chat")
    assert ingested_datasets(layout) == ["chat"]


def test_a_commit_of_another_number_or_log_is_named(stored: Layout):
    shutil.copytree(stored.commit("chat", 2), stored.commit("chat", 3))
    with pytest.raises(TableDamaged, match=r"commit=3/manifest.json is that of commit 2"):
        read_events(stored, "chat")
    shutil.copytree(stored.commits("chat"), stored.commits("other"))
    with pytest.raises(TableDamaged, match=r"is of the dataset 'chat', and was copied here"):
        read_events(stored, "other")


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def flipped_lineage(path: Path) -> None:
    """Change a manifest where its digest shows it; the size of a file, say, is compared with the file."""
    content = path.read_bytes()
    changed = content.replace(b'"table_version": ', b'"table_version": 1', 1)
    assert changed != content
    path.write_bytes(changed)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGE = (flipped, emptied, truncated, zeroed, Path.unlink)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", [MANIFEST, f"{SOURCES}.parquet", f"{PARTS}.parquet"])
def test_a_damaged_record_of_a_commit_is_named_and_never_fewer_events(
    stored: Layout, damage: Callable[[Path], None], name: str
):
    damaged = Path(stored.commit("chat", 2), name)
    (flipped_lineage if damage is flipped and name == MANIFEST else damage)(damaged)
    for read in (read_events, newest_version, node_dictionary):
        with pytest.raises(TableDamaged, match=rf"{damaged} .*dyformer verify"):
            read(stored, "chat")
    with pytest.raises(TableDamaged):
        append(stored, "chat", result([("eve", "ann", 40)]), "sha-3")
    assert ingested_datasets(stored) == ["chat"]
    assert not Path(stored.commit("chat", 3)).exists()


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", [MANIFEST, f"{SOURCES}.parquet", f"{PARTS}.parquet"])
def test_damage_of_an_earlier_record_costs_its_own_version_alone(
    stored: Layout, damage: Callable[[Path], None], name: str
):
    before = read_events(stored, "chat")
    damaged = Path(stored.commit("chat", 1), name)
    (flipped_lineage if damage is flipped and name == MANIFEST else damage)(damaged)
    assert read_events(stored, "chat").equals(before)
    with pytest.raises(TableDamaged, match=rf"{damaged} .*dyformer verify"):
        read_events(stored, "chat", 1)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", [INTERACTIONS, QUARANTINE, NODES])
def test_a_damaged_data_file_is_named(stored: Layout, damage: Callable[[Path], None], name: str):
    damaged = Path(stored.commit("chat", 1), f"{name}.parquet")
    damage(damaged)
    readers = {
        INTERACTIONS: lambda: read_events(stored, "chat"),
        QUARANTINE: lambda: quarantine(stored),
        NODES: lambda: node_dictionary(stored, "chat"),
    }
    for own, read in readers.items():
        if own == name:
            with pytest.raises(TableDamaged, match=rf"{damaged} .*: `dyformer verify"):
                read()
        else:
            read()
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


@pytest.mark.parametrize("change", ["path", "bytes", "version", "num_rows", "none", "text", "column"])
def test_a_list_of_wrong_values_is_refused(stored: Layout, tmp_path: Path, change: str):
    outside = tmp_path / "outside.parquet"
    shutil.copy(data_paths(stored)[0], outside)
    wrong: dict[str, list[Any]] = {
        "path": [f"../../../../{outside.name}", str(outside), f"file://{outside}", "sub/x", "..", "a\\b"],
        "bytes": [-1],
        "version": [-1],
        "num_rows": [-1],
    }
    path = Path(stored.commit("chat", 2), f"{PARTS}.parquet")
    table = pl.read_parquet(path)
    tables = [table.with_columns(pl.lit(value, table.schema[change]).alias(change)) for value in wrong.get(change, [])]
    tables += [table.with_columns(sha256=pl.lit(None, pl.String))] if change == "none" else []
    tables += [table.with_columns(pl.col("bytes").cast(pl.String))] if change == "text" else []
    tables += [table.drop("num_rows")] if change == "column" else []
    for forged in tables:
        forged.write_parquet(path)
        manifest = commit_file(stored, 2)
        record = json.loads(manifest.read_text())
        record["files"][path.name]["sha256"] = sha256(path.read_bytes())
        manifest.write_text(json.dumps({**record, "digest": artifact._digest(record)}))
        with pytest.raises(TableDamaged, match=rf"{path} is wrong in kind"):
            read_events(stored, "chat")


def test_links_are_not_followed(stored: Layout, tmp_path: Path):
    path = data_paths(stored)[0]
    shutil.move(path, tmp_path / "elsewhere.parquet")
    path.symlink_to(tmp_path / "elsewhere.parquet")
    with pytest.raises(TableDamaged, match=r"symbolic link to .*elsewhere"):
        read_events(stored, "chat")
    for name in (MANIFEST, f"{SOURCES}.parquet"):
        record = Path(stored.commit("chat", 2), name)
        shutil.move(record, tmp_path / name)
        record.symlink_to(tmp_path / name)
        with pytest.raises(TableDamaged, match=rf"symbolic link to .*/{name}"):
            newest_version(stored, "chat")
        record.unlink()
        shutil.move(tmp_path / name, record)
    commit = Path(stored.commit("chat", 2))
    shutil.move(commit, tmp_path / "commit")
    commit.symlink_to(tmp_path / "commit")
    with pytest.raises(TableDamaged, match=r"symbolic link to .*/commit"):
        newest_version(stored, "chat")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("function", ["fsync", "rename"])
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
        except files.WriteFailed as failed:
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
    assert failures >= (5 if function == "fsync" else 1)
    assert ingest.version == 2
    assert read_events(layout, "chat").height == 5
    assert ids(layout) == ["cy", "ann", "bob", "dan"]


def test_the_files_of_killed_writers_are_removed_by_the_next_commit(stored: Layout):
    left = Path(stored.commits("chat"), files.temporary_name("commit=3"))
    left.mkdir()
    (left / "interactions.parquet").write_bytes(b"half")
    declaration = Path(stored.commits("chat"), files.temporary_name("declaration.json"))
    declaration.write_bytes(b"half")
    assert read_events(stored, "chat").height == 5
    append(stored, "chat", result([("eve", "ann", 40)]), "sha-3")
    assert not left.exists()
    assert declaration.exists()  # its writer has another lock, and may be at work
    assert read_events(stored, "chat").height == 6


def test_a_writer_of_another_machine_is_left_alone(stored: Layout, tmp_path: Path):
    elsewhere = Layout(stored.root, str(tmp_path / "state of another machine"))
    unfinished = Path(stored.commits("chat"), files.temporary_name("commit=3"))
    unfinished.mkdir()
    append(elsewhere, "chat", result([("eve", "ann", 40)]), "sha-3")
    assert unfinished.exists()
    os.utime(unfinished, (0, 0))
    append(elsewhere, "chat", result([("eve", "ann", 50)]), "sha-4")
    assert not unfinished.exists()


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


def test_a_commit_of_many_rows_is_encoded_in_groups(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commits, "GROUP_ROWS", 50)
    monkeypatch.setattr("storage.events.rows.BLOCK_ROWS", 20)
    many = result([(f"n{row % 97}", f"m{row % 89}", row) for row in range(1000)], bad=["x"] * 3)
    append(layout, "chat", many, "sha")
    (path,) = data_paths(layout)
    assert pq.ParquetFile(path).num_row_groups > 10
    assert read_events(layout, "chat").height == 1000
    assert quarantine(layout).height == 3


def test_a_log_is_known_by_its_name_later(tmp_path: Path):
    layout = Layout(str(tmp_path))
    assert declaration(layout, "mylog") is None
    declare(layout, "mylog", RECORD)
    assert declaration(Layout(str(tmp_path)), "mylog") == RECORD
    assert declaration(layout, "other") is None


def test_of_declarations_at_once_none_is_lost(tmp_path: Path):
    layout, together = Layout(str(tmp_path)), threading.Barrier(4)

    def add(number: int) -> None:
        together.wait(timeout=30)
        for name in (f"{number} {time}" for time in range(5)):
            declare(layout, "mylog", lambda record, name=name: RECORD | {"names": [*record.get("names", []), name]})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    names = (declaration(layout, "mylog") or {})["names"]
    assert sorted(names) == [f"{number} {time}" for number in range(4) for time in range(5)]


def test_options_without_effect_on_stored_rows_may_change(tmp_path: Path):
    layout = Layout(str(tmp_path))
    declare(layout, "mylog", RECORD)
    declare(layout, "mylog", RECORD | {"window": "1mo"})
    found = declaration(layout, "mylog")
    assert found == RECORD | {"window": "1mo"}


def test_options_that_stored_rows_depend_on_may_not_change(tmp_path: Path):
    layout = Layout(str(tmp_path))
    declare(layout, "mylog", RECORD)
    with pytest.raises(ValueError, match=r"with bipartite = True, but now .*with `bipartite=False`"):
        declare(layout, "mylog", RECORD | {"bipartite": False})
    assert declaration(layout, "mylog") == RECORD


def test_the_declaration_of_another_dataset_is_named(tmp_path: Path):
    layout = Layout(str(tmp_path))
    declare(layout, "mylog", RECORD)
    declare(layout, "other", RECORD | {"window": "1d"})
    files.write_bytes(layout.declaration("mylog"), files.read_bytes(layout.declaration("other")))
    with pytest.raises(RecordDamaged, match=r"is the record of dataset 'other'.*dyformer drop mylog"):
        declaration(layout, "mylog")
    assert (declaration(layout, "other") or {})["window"] == "1d"


def test_a_sound_record_of_another_kind_is_named(tmp_path: Path):
    layout = Layout(str(tmp_path))
    write_record(layout.declaration("mylog"), {"number": 1, "method": "L3"})
    with pytest.raises(RecordDamaged, match=r"is a record of another kind \(method, number\)"):
        declaration(layout, "mylog")


def test_a_declaration_without_the_name_of_its_dataset_is_named(tmp_path: Path):
    layout = Layout(str(tmp_path))
    write_record(layout.declaration("mylog"), RECORD)
    with pytest.raises(RecordDamaged, match=r"is a record of another kind \(bipartite, columns, separator\)"):
        declaration(layout, "mylog")
