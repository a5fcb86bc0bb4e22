"""Claims about received events: on the disk before they are acknowledged, whole, and in one raw file each."""

import json
import os
from pathlib import Path

import polars as pl
import pytest
from filelock import FileLock

from storage.bytes import files
from storage.bytes.files import WriteFailed
from storage.layout import Layout
from storage.raw.received import ReceivedEvents, WaitingEvents, close_received, received_files

NAME = "edits"
EVENTS = [
    {"source": "ann", "target": 'a "lamp"\n', "time": number, "moment": number, "weight": 1.5} for number in range(3)
]


@pytest.fixture
def layout(tmp_path):
    return Layout(str(tmp_path / "store"))


def rows_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def open_file(layout):
    [path] = Path(layout.received(NAME)).glob(".open-*")
    return path


def test_events_wait_in_a_hidden_file_until_an_ingest_names_it(layout):
    received = ReceivedEvents(layout=layout, dataset=NAME)
    received.append(EVENTS[:2])
    received.append(EVENTS[2:])
    assert received_files(layout, NAME) == []
    close_received(layout, NAME)
    [path] = received_files(layout, NAME)
    assert [{name: row[name] for name in EVENTS[0]} for row in rows_of(path)] == EVENTS
    received.append(EVENTS[:1])
    close_received(layout, NAME)
    assert len(received_files(layout, NAME)) == 2
    assert len(rows_of(path)) == 3, "nobody appends to a file that has a name"


def test_events_of_servers_that_followed_one_another_are_in_the_order_in_which_they_came(layout):
    """Of files that killed servers have left, the order of equal times was one of random names."""
    servers = [ReceivedEvents(layout=layout, dataset=NAME) for _ in range(6)]
    for number, received in enumerate(servers):
        received.append([{**EVENTS[0], "target": str(number)}])
    waiting = WaitingEvents(layout=layout, dataset=NAME, committed=frozenset())
    assert waiting.read()["target"].to_list() == list("012345")
    close_received(layout, NAME)
    named = [row["target"] for path in received_files(layout, NAME) for row in rows_of(path)]
    assert named == list("012345")
    assert waiting.read().is_empty()


def test_equal_events_of_two_files_differ_in_their_bytes(layout):
    received = ReceivedEvents(layout=layout, dataset=NAME)
    for _ in range(2):
        received.append(EVENTS)
        close_received(layout, NAME)
    ReceivedEvents(layout=layout, dataset=NAME).append(EVENTS)
    close_received(layout, NAME)
    contents = [Path(path).read_bytes() for path in received_files(layout, NAME)]
    assert len(contents) == len(set(contents)) == 3


def test_events_are_synced_before_the_call_returns(layout, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size) or fsync(descriptor)
    )
    received = ReceivedEvents(layout=layout, dataset=NAME)
    received.append(EVENTS)
    assert open_file(layout).stat().st_size in synced


def test_a_line_that_a_killed_server_has_not_finished_is_cut_off(layout):
    ReceivedEvents(layout=layout, dataset=NAME).append(EVENTS)
    with open_file(layout).open("ab") as stream:
        stream.write(b'{"source": "ann", "tar')
    assert len(WaitingEvents(layout=layout, dataset=NAME, committed=frozenset()).read()) == 3
    close_received(layout, NAME)
    [path] = received_files(layout, NAME)
    assert len(rows_of(path)) == 3


def test_a_file_with_nothing_but_an_unfinished_line_goes(layout):
    ReceivedEvents(layout=layout, dataset=NAME).append(EVENTS)
    open_file(layout).write_bytes(b'{"source"')
    close_received(layout, NAME)
    assert received_files(layout, NAME) == []
    assert not list(Path(layout.received(NAME)).iterdir())


def test_a_write_that_fails_leaves_nothing(layout, monkeypatch):
    received = ReceivedEvents(layout=layout, dataset=NAME)
    received.append(EVENTS[:1])
    fsync = os.fsync

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteFailed, match="No space left on device"):
        received.append(EVENTS[1:])
    monkeypatch.setattr(os, "fsync", fsync)
    assert len(rows_of(open_file(layout))) == 1


def test_files_that_are_committed_do_not_wait(layout):
    received = ReceivedEvents(layout=layout, dataset=NAME)
    for event in EVENTS:
        received.append([event])
        close_received(layout, NAME)
    received.append(EVENTS)
    paths = received_files(layout, NAME)
    committed = frozenset(Path(path).name for path in paths[:2])
    waiting = WaitingEvents(layout=layout, dataset=NAME, committed=committed)
    assert waiting.read()["time"].to_list() == [2, 0, 1, 2]
    received.append(EVENTS[1:2])
    close_received(layout, NAME)
    received.append(EVENTS[2:])
    assert waiting.read()["time"].to_list() == [1, 2], "each event once, also where its file gets a name"
    assert waiting.read().is_empty()


def test_nothing_is_received_where_no_server_was(layout):
    close_received(layout, NAME)
    assert received_files(layout, NAME) == []
    assert WaitingEvents(layout=layout, dataset=NAME, committed=frozenset()).read().is_empty()
    assert not Path(layout.received(NAME)).exists()


def test_waiting_events_have_the_ids_times_and_weights_that_were_written(layout):
    ids = ["ann", 'a "lamp"\n', "7", "-12", "007", "é 日本 😀", "a\\tb\u2028", "null", "2024-01-01"]
    moments = [0, -5, 1, (1 << 53) + 1, -(1 << 53) - 3, (1 << 62) - 1, 12, 3, 3]
    weights = [1, 0, 0.1, 1e300, 2.5, 5e-324, 3, 4, 0.0]
    events = [
        {"source": name, "target": other, "time": "a date", "moment": moment, "weight": weight}
        for name, other, moment, weight in zip(ids, reversed(ids), moments, weights, strict=True)
    ]
    ReceivedEvents(layout=layout, dataset=NAME).append(events)
    read = WaitingEvents(layout=layout, dataset=NAME, committed=frozenset()).read()
    expected = [
        {**{name: row[name] for name in ("source", "target", "weight")}, "time": row["moment"]} for row in events
    ]
    assert read.to_dicts() == [{name: row[name] for name in read.columns} for row in expected]
    assert dict(read.schema) == {"source": pl.String, "target": pl.String, "time": pl.Int64, "weight": pl.Float64}


@pytest.mark.parametrize("name", ["source", "target", "moment", "weight"])
@pytest.mark.parametrize("value", [None, [], {}, "missing", "wrong"])
def test_a_line_with_a_value_of_another_kind_is_named(layout, name, value):
    wrong = {"source": 7, "target": 7, "moment": 1.5, "weight": "1.5"}[name] if value == "wrong" else value
    ReceivedEvents(layout=layout, dataset=NAME).append(EVENTS)
    line = {**EVENTS[0], name: wrong}
    if value == "missing":
        del line[name]
    path = open_file(layout)
    path.write_bytes(path.read_bytes() + json.dumps(line).encode() + b"\n")
    with pytest.raises(ValueError, match="which no server has written: remove it") as caught:
        WaitingEvents(layout=layout, dataset=NAME, committed=frozenset()).read()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("num_objects", [0, 2])
def test_a_line_without_an_object_or_with_two_is_named(layout, num_objects):
    ReceivedEvents(layout=layout, dataset=NAME).append(EVENTS)
    path = open_file(layout)
    path.write_bytes(path.read_bytes() + num_objects * json.dumps(EVENTS[0]).encode() + b"\n")
    with pytest.raises(ValueError, match="which no server has written: remove it"):
        WaitingEvents(layout=layout, dataset=NAME, committed=frozenset()).read()


@pytest.mark.parametrize("broken", ["make_folder", "lock"])
def test_a_folder_that_cannot_be_made_and_a_lock_that_cannot_be_had_are_named(layout, monkeypatch, broken):
    def full(*_):
        raise OSError(28, "No space left on device")

    if broken == "make_folder":
        monkeypatch.setattr(files, "make_folder", full)
    else:
        monkeypatch.setattr(FileLock, "_acquire", full)
    with pytest.raises(WriteFailed, match=r"No space left on device.*free space on the disk"):
        ReceivedEvents(layout=layout, dataset=NAME).append(EVENTS)
    monkeypatch.undo()
    assert WaitingEvents(layout=layout, dataset=NAME, committed=frozenset()).read().is_empty()


def test_where_the_name_of_a_new_file_is_not_on_the_disk_no_event_is_in_it(layout, monkeypatch):
    files.make_folder(Path(layout.received(NAME)))
    sync_folder, synced = files.sync_folder, []

    def failing_once(folder):
        synced.append(folder)
        if len(synced) == 1:
            raise OSError(5, "Input/output error")
        sync_folder(folder)

    monkeypatch.setattr(files, "sync_folder", failing_once)
    received = ReceivedEvents(layout=layout, dataset=NAME)
    with pytest.raises(WriteFailed, match="Input/output error"):
        received.append(EVENTS[:1])
    received.append(EVENTS[1:])
    assert WaitingEvents(layout=layout, dataset=NAME, committed=frozenset()).read()["time"].to_list() == [1, 2]
    assert len(synced) == 2, "the next write waits for the name, too"
    close_received(layout, NAME)
    [path] = received_files(layout, NAME)
    assert len(rows_of(path)) == 2
