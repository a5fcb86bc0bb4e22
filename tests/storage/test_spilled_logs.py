"""A log larger than memory is processed on disk, with the same results as in memory."""

import gzip
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from dyformer.logs.raw_file import EmptyLog, NoUsableRows, TooManyBadRows
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots
from storage.artifacts.artifact import read_table
from storage.events import scratch_database
from storage.events.table import history, node_dictionary, scan_events, scan_quarantine
from storage.layout import Layout

BAD = ["7,8,never", "7,8,-3", ",8,1600000000", "7,8"]


def write_log(path: Path, *, seed: int, num_rows: int = 4000, bad: list[str] = BAD) -> str:
    """Lines not sorted by time, with text and integer ids, self-loops, equal times and repeated rows."""
    generator = np.random.default_rng(seed)
    ends = generator.integers(0, 60, (num_rows, 2)) ** 2
    times = 1_600_000_000 + generator.integers(0, 40 * 86_400, num_rows) // 3600 * 3600
    rows = [f"{a},{'x' if b % 7 == 0 else ''}{b},{t}" for (a, b), t in zip(ends, times, strict=True)]
    rows[100:100] = bad + rows[:50]
    with gzip.open(path, "wt") as stream:
        stream.write("\n".join(["source,target,time", *rows]) + "\n")
    return str(path)


def outcome(store: Path, logs: list[list[str]], reading: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """Ingest logs one after the other and cut them into snapshots; returns the counts and every table."""
    monkeypatch.setenv("DYFORMER_STORAGE", str(store))
    declared = {"time_unit": "s", "window": "3d", "max_bad": "5%", **reading}
    counts = [ingest_log("mine", {**declared, "log": log}, show=lambda text: None) for log in logs]
    layout, address = Layout.from_environment(), make_snapshots("mine")
    tables = {
        "events": scan_events(layout, "mine").drop("arrival").sort("ingest", "row").collect(),
        "quarantine": scan_quarantine(layout, "mine").drop("arrival").sort("ingest", "row").collect(),
        "nodes": node_dictionary(layout, "mine"),
        "history": history(layout, "mine").drop("arrival"),
        **{f"cut_{name}": read_table(address, name) for name in ("edges", "steps", "nodes")},
    }
    return counts, tables


def test_rows_of_another_time_are_quarantined_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bad = [*BAD, "1,2,32503680000", "3,4,100000000", "5,6,32503680000"]  # the years 3000 and 1973
    log = write_log(tmp_path / "1.csv.gz", seed=1, bad=bad)
    held_counts, held = outcome(tmp_path / "held", [[log]], {}, monkeypatch)
    monkeypatch.setattr(scratch_database, "is_large", lambda *_: True)
    spilled_counts, spilled = outcome(tmp_path / "spilled", [[log]], {}, monkeypatch)
    assert held_counts == spilled_counts
    assert held["quarantine"]["reason"].str.contains("more than 30 years from the others").sum() == 3
    for name, table in held.items():
        assert_frame_equal(table, spilled[name])


@pytest.mark.parametrize(
    "reading",
    [
        {},
        {"drop_duplicates": True},
        {"bipartite": True, "window": "calendar 1mo"},
        {"drop_duplicates": True, "bipartite": True, "window": "5 equal trim 2d 3d"},
    ],
    ids=["as it is", "duplicates dropped", "two id spaces", "equal count, ends trimmed"],
)
def test_a_log_on_disk_gives_the_same_results(reading: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one, two, three = (write_log(tmp_path / f"{seed}.csv.gz", seed=seed) for seed in (1, 2, 3))
    shared = write_log(tmp_path / "4.csv.gz", seed=3, num_rows=4100)
    logs = [[one, two], [three], [shared, one]]
    held_counts, held = outcome(tmp_path / "held", logs, reading, monkeypatch)
    monkeypatch.setattr(scratch_database, "is_large", lambda *_: True)
    spilled_counts, spilled = outcome(tmp_path / "spilled", logs, reading, monkeypatch)
    assert held_counts == spilled_counts
    assert held["quarantine"].height == 4 * len(BAD)
    assert held_counts[0]["num_duplicates"] >= 100
    for name, table in held.items():
        assert_frame_equal(table, spilled[name])
    assert not spills(Layout(str(tmp_path / "spilled")))


def test_stored_rows_are_dropped_on_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = ["source,target,time"] + [f"{row},{row + 1},{1_600_000_000 + 60 * row}" for row in range(300)]
    for name, rows in (("first.csv", lines[:201]), ("both.csv", [lines[0], *lines[101:]])):
        (tmp_path / name).write_text("\n".join(rows))
    logs = [[str(tmp_path / "first.csv")], [str(tmp_path / "both.csv")]]
    reading = {"drop_duplicates": True, "window": "1h"}
    held_counts, held = outcome(tmp_path / "held", logs, reading, monkeypatch)
    monkeypatch.setattr(scratch_database, "is_large", lambda *_: True)
    spilled_counts, spilled = outcome(tmp_path / "spilled", logs, reading, monkeypatch)
    assert spilled_counts == held_counts
    assert (held_counts[1]["num_accepted"], held_counts[1]["num_dropped"]) == (100, 100)
    for name, table in held.items():
        assert_frame_equal(table, spilled[name])


def test_a_sample_on_disk_has_rows_where_every_other_line_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = [f"{row % 7},{row % 5},{1_600_000_000 + 60 * row}" for row in range(800)]
    for name, part in (("first.csv", rows[:400]), ("second.csv", rows[400:])):
        (tmp_path / name).write_text("\n\n".join(["source,target,time", *part]))
    monkeypatch.setattr(scratch_database, "is_large", lambda *_: True)
    monkeypatch.setattr("flows.tasks.reading.SAMPLED_ROWS", 100)  # so that every fourth row is wanted
    logs = [[str(tmp_path / "first.csv")], [str(tmp_path / "second.csv")]]
    counts, _ = outcome(tmp_path / "store", logs, {"window": "1h"}, monkeypatch)
    assert counts[1]["num_accepted"] == 400


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a,b,1600000000\n" + "a,b,never\n" * 40 + "a,b,1600000000\n" * 20, TooManyBadRows),
        ("a,,1600000000\n" * 5, NoUsableRows),
        ("", EmptyLog),
    ],
)
def test_an_unusable_log_leaves_no_trace(
    text: str, error: type[ValueError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    (tmp_path / "log.csv").write_text("source,target,time\n" + text)
    messages = []
    for is_large in (False, True):
        monkeypatch.setattr(scratch_database, "is_large", lambda *_, is_large=is_large: is_large)
        with pytest.raises(error) as raised:
            ingest_log("mine", {"log": [str(tmp_path / "log.csv")], "time_unit": "s"}, show=lambda text: None)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert not list((tmp_path / "store").rglob("*.parquet"))


def test_a_log_is_large_when_it_takes_more_than_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(scratch_database.MEMORY_VARIABLE, "512")
    text, events = (512 << 20) // scratch_database.TEXT_TIMES, (512 << 20) // scratch_database.EVENT_BYTES
    assert not scratch_database.is_large(text, events)
    assert scratch_database.is_large(text + 1)
    assert scratch_database.is_large(0, events + 1)


def test_the_text_of_all_new_files_together_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    one, two = (write_log(tmp_path / f"{seed}.csv.gz", seed=seed) for seed in (1, 2))
    size = {path: len(gzip.decompress(Path(path).read_bytes())) for path in (one, two)}
    evaluated: list[int] = []
    monkeypatch.setattr(scratch_database, "is_large", lambda num_bytes, _: bool(evaluated.append(num_bytes)))
    copy = shutil.copy(one, tmp_path / "copy.csv.gz")
    for log in ([one], [one, two, copy], [two]):
        reading = {"log": [str(path) for path in log], "time_unit": "s", "window": "3d", "max_bad": "5%"}
        ingest_log("mine", reading, show=lambda text: None)
    assert evaluated == [size[one], size[two], 0]


@pytest.mark.parametrize("text", ["4 GB", "100", "-1"])
def test_a_memory_that_is_not_a_number_of_mebibytes_is_refused(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(scratch_database.MEMORY_VARIABLE, text)
    with pytest.raises(ValueError, match=r"DYFORMER_MEMORY=.*512 or more"):
        scratch_database.memory_bytes()


def test_the_database_is_bounded_and_removed_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(scratch_database.MEMORY_VARIABLE, "1024")
    layout = Layout(str(tmp_path / "store"))
    with scratch_database.open_spill(layout) as database:
        (limit,) = scratch_database.one_row(database, "SELECT current_setting('memory_limit')")
        assert limit == "128.0 MiB"
        scratch_database.create(database, "numbers", pl.DataFrame({"x": [3, 1, 2]}))
        assert scratch_database.sorted_times(database, "SELECT x FROM numbers").tolist() == [1, 2, 3]
        assert spills(layout)
    assert not spills(layout)


def spills(layout: Layout) -> set[Path]:
    return set(Path(layout.spills).iterdir())


KILLED = """
import sys, time
from storage.events import scratch_database
from storage.layout import Layout
with scratch_database.open_spill(Layout(sys.argv[1])) as database:
    database.execute("CREATE TABLE numbers AS SELECT range AS x FROM range(100000)")
    print("open", flush=True)
    time.sleep(60)
"""


def test_the_database_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(tmp_path: Path):
    layout = Layout(str(tmp_path / "store"))
    (Path(layout.spills) / "half-removed").mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", KILLED, layout.root], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        (other,) = spills(layout)
        with scratch_database.open_spill(layout) as database:
            assert len(spills(layout)) == 2
            process.kill()
            process.wait()
            (mine,) = spills(layout) - {other}
            with scratch_database.open_spill(layout):
                assert other not in spills(layout)
                assert mine in spills(layout)
            assert spills(layout) == {mine}
            scratch_database.create(database, "numbers", pl.DataFrame({"x": [1]}))
    assert not spills(layout)
