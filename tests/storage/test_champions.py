"""The record of a champion: one writer at a time replaces it, also from several machines, and a copy restores it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from test_commits import DAMAGE, flipped

from storage import champions
from storage.artifacts.artifact import ArtifactDamaged, Lineage, write_artifact
from storage.bytes import checksums, files
from storage.bytes.checksums import RecordDamaged
from storage.champions import (
    PUBLICATION_SCHEMA,
    PUBLICATIONS,
    champion_problems,
    publications,
    read_champion,
    repair_champion,
    replace_champion,
    update_copy,
)
from storage.layout import Layout

RECORD = {"title": "L3", "models": [], "identity": "L3", "num_tests": 0, "tests": {}, "number": 1, "earlier": []}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(str(tmp_path))


@pytest.fixture
def remote(s3_bucket: str, tmp_path: Path) -> Layout:
    return Layout(f"{s3_bucket}/{tmp_path.name}", state=str(tmp_path / "here"))


def test_a_record_comes_back_and_is_replaced(layout: Layout):
    assert read_champion(layout, "chat") == (None, None)
    assert replace_champion(layout, "chat", RECORD, None)
    record, stamp = read_champion(layout, "chat")
    assert record == RECORD
    assert replace_champion(layout, "chat", {**RECORD, "title": "Other"}, stamp)
    assert read_champion(layout, "chat")[0] == {**RECORD, "title": "Other"}
    assert champion_problems(layout, "chat") == (None, None)


def assert_one_of_two_writers_wins(layout: Layout) -> None:
    assert replace_champion(layout, "chat", RECORD, None)
    assert not replace_champion(layout, "chat", {**RECORD, "title": "late"}, None)
    record, stamp = read_champion(layout, "chat")
    assert replace_champion(layout, "chat", {**RECORD, "title": "first"}, stamp)
    before = files.read_bytes(layout.champion_copy("chat"))
    assert not replace_champion(layout, "chat", {**RECORD, "title": "late"}, stamp)
    assert read_champion(layout, "chat")[0] == {**RECORD, "title": "first"}
    assert files.read_bytes(layout.champion_copy("chat")) == before
    assert record == RECORD


def test_one_of_two_writers_that_read_the_same_record_wins(layout: Layout):
    assert_one_of_two_writers_wins(layout)


def test_one_of_two_machines_that_read_the_same_record_wins(remote: Layout):
    assert_one_of_two_writers_wins(remote)
    for address in (remote.champion("chat"), remote.champion_copy("chat")):
        files.remove(address)
    assert not replace_champion(remote, "chat", RECORD, (1, '"of an object that is gone"'))


# A machine that adds its tests to the record, and repeats an addition that another machine overtook. Nobody replaces
# the record before both machines have read it, so at least one addition is overtaken on any schedule of the processes.
MACHINE = """
import sys, time
from pathlib import Path
from storage.champions import champion_lock, read_champion, replace_champion
from storage.layout import Layout

layout, lost = Layout(sys.argv[1], state=sys.argv[2]), 0
for number in range(12):
    added = False
    while not added:
        with champion_lock(layout, "chat"):
            record, stamp = read_champion(layout, "chat")
            Path(layout.state, "read").touch()
            while not all(Path(state, "read").exists() for state in sys.argv[2:]):
                time.sleep(0.01)
            time.sleep(0.02)  # in which others read it
            tests = {**record["tests"], f"{sys.argv[2]} {number}": {"number": number}}
            added = replace_champion(layout, "chat", {**record, "tests": tests}, stamp)
            lost += not added
print(lost)
"""


def test_machines_at_once_lose_no_test_of_each_other(remote: Layout, tmp_path: Path):
    assert replace_champion(remote, "chat", RECORD, None)
    states = [str(tmp_path / name) for name in ("one", "two", "two")]  # one machine with two processes
    machines = [
        subprocess.Popen(
            [sys.executable, "-c", MACHINE, remote.root, state, *states],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        for state in states
    ]
    lost = [int(machine.communicate(timeout=120)[0]) for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0, 0]
    record = read_champion(remote, "chat")[0]
    assert record is not None
    assert record["tests"] == {f"{state} {number}": {"number": number} for state in set(states) for number in range(12)}
    assert sum(lost) > 0
    assert files.read_bytes(remote.champion_copy("chat")) == files.read_bytes(remote.champion("chat"))


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_named_and_restored_from_its_copy(layout: Layout, damage: Callable[[Path], None]):
    replace_champion(layout, "chat", RECORD, None)
    damage(Path(layout.champion("chat")))
    for read in (read_champion, update_copy):
        repair = r"champion.json .*: `dyformer verify chat --repair` restores it, or removes"
        with pytest.raises(RecordDamaged, match=repair):
            read(layout, "chat") if Path(layout.champion("chat")).exists() else read_champion(layout, "chat")
    assert champion_problems(layout, "chat")[1] is None  # a damaged record is never copied
    repair_champion(layout, "chat")
    assert read_champion(layout, "chat")[0] == RECORD


def test_a_copy_that_a_killed_writer_left_behind_is_brought_up_to_date(layout: Layout):
    replace_champion(layout, "chat", RECORD, None)
    old = files.read_bytes(layout.champion_copy("chat"))
    replace_champion(layout, "chat", {**RECORD, "title": "new"}, read_champion(layout, "chat")[1])
    files.write_bytes(layout.champion_copy("chat"), old)
    update_copy(layout, "chat")
    flipped(Path(layout.champion("chat")))
    repair_champion(layout, "chat")
    record = read_champion(layout, "chat")[0]
    assert record is not None
    assert record["title"] == "new"


def test_a_record_and_a_copy_that_are_both_damaged_are_removed(layout: Layout):
    replace_champion(layout, "chat", RECORD, None)
    for address in (layout.champion("chat"), layout.champion_copy("chat")):
        flipped(Path(address))
    assert None not in champion_problems(layout, "chat")
    repair_champion(layout, "chat")
    assert read_champion(layout, "chat") == (None, None)


def published(layout: Layout, number: int, method: str = "DyFormer") -> str:
    """Write one publication; another one of the same number replaces it."""
    keys = {"version": 1, "until": number, "settings": "0" * 12}
    lineage = Lineage(kind=PUBLICATIONS, dataset="chat", table_version=1, until=number, settings={"method": method})
    row = {**dict.fromkeys(PUBLICATION_SCHEMA), "number": number, "method": method}
    table = pl.DataFrame([row], schema=PUBLICATION_SCHEMA)
    return write_artifact(layout.artifact(PUBLICATIONS, "chat", **keys), {PUBLICATIONS: table}, lineage)


@pytest.mark.parametrize("store", ["layout", "remote"])
def test_publications_are_read_once_in_a_process(
    store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    layout, read = request.getfixturevalue(store), []

    def reading(address: str, name: str) -> pl.DataFrame:
        read.append(address)
        return read_table(address, name)

    read_table = champions.read_table
    monkeypatch.setattr(champions, "read_table", reading)
    first = [published(layout, number) for number in range(3)]
    assert publications(layout, "chat")["number"].to_list() == [0, 1, 2]
    assert sorted(read) == first
    later = published(layout, 3)
    replaced = published(layout, 1, "L3")
    assert publications(layout, "chat")["method"].to_list() == ["DyFormer", "L3", "DyFormer", "DyFormer"]
    assert sorted(read) == sorted([*first, later, replaced])
    (table,) = files.find(first[2], "*.parquet")
    files.write_bytes(table, files.read_bytes(table)[::-1])
    checksums._object.cache_clear()  # as in a process that has not read the objects of these checksums
    with pytest.raises(ArtifactDamaged, match="was changed"):
        publications(layout, "chat")
