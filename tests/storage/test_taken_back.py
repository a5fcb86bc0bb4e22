"""A commit that is taken back: the rows before it, the versions that were, and the numbers of nodes."""

from contextlib import nullcontext
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from test_events_table import FIRST, SECOND, append, result

from storage.events import commits, versions
from storage.events.commits import take_back
from storage.events.declarations import declare
from storage.events.table import history, newest_version, node_dictionary, read_events, scan_quarantine, taken_back
from storage.layout import Layout
from storage.verification import faults

WRONG = result([("x", "y", 5), ("a", "x", 6)], bad=["?,?"], file="wrong.csv")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(str(tmp_path / "store"))
    declare(layout, "chat", {"window": "1d"})
    append(layout, "chat", FIRST, "sha-1")
    append(layout, "chat", SECOND, "sha-2")
    return layout


def tables(layout: Layout, version: int | None = None) -> list[pl.DataFrame]:
    quarantine = scan_quarantine(layout, "chat", version).sort("ingest", "row").collect()
    return [read_events(layout, "chat", version), quarantine, history(layout, "chat", version)]


def test_the_rows_of_before_are_there_again_and_every_version_stays(layout: Layout) -> None:
    before = tables(layout)
    append(layout, "chat", WRONG, "sha-3")
    with_wrong = tables(layout)
    assert with_wrong[0].height == before[0].height + 2

    taken = take_back(layout, "chat")

    assert (taken.version, taken.commit, taken.files) == (4, 3, ("wrong.csv",))
    assert (taken.batches, taken.num_accepted, taken.num_quarantined) == (("sha-3",), 2, 1)
    assert newest_version(layout, "chat") == 4
    for version, expected in [(None, before), (4, before), (3, with_wrong), (2, before)]:
        for table, other in zip(tables(layout, version), expected, strict=True):
            assert_frame_equal(table, other)
    assert not list(faults(layout, "chat"))


def test_a_node_keeps_its_number(layout: Layout) -> None:
    append(layout, "chat", WRONG, "sha-3")
    numbers = dict(node_dictionary(layout, "chat").select("id", "node").iter_rows())
    take_back(layout, "chat")
    append(layout, "chat", result([("z", "x", 7)]), "sha-4")
    later = dict(node_dictionary(layout, "chat").select("id", "node").iter_rows())
    assert later == {**numbers, "z": len(numbers)}
    assert read_events(layout, "chat").tail(1)["target"].to_list() == [numbers["x"]]


def test_a_file_that_was_taken_back_may_come_again(layout: Layout) -> None:
    append(layout, "chat", WRONG, "sha-3")
    events = read_events(layout, "chat")
    take_back(layout, "chat")
    again = append(layout, "chat", WRONG, "sha-3")
    assert again.changed
    assert again.version == 5
    assert_frame_equal(read_events(layout, "chat"), events)


def test_commits_are_taken_back_one_after_the_other_but_for_the_last(layout: Layout) -> None:
    append(layout, "chat", WRONG, "sha-3")
    assert [take_back(layout, "chat").commit for _ in range(2)] == [3, 2]
    assert history(layout, "chat")["batch"].to_list() == ["sha-1"]
    with pytest.raises(ValueError, match="dyformer drop chat"):
        take_back(layout, "chat")
    assert newest_version(layout, "chat") == 5


def test_another_machine_that_commits_first_wins(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    other = commits._written

    def written_beside(*arguments: object) -> object:
        monkeypatch.setattr(commits, "_written", other)
        monkeypatch.setattr(commits, "alone", lambda *names: nullcontext())  # the lock of the other machine
        monkeypatch.setattr(commits, "_remove_leftovers", lambda *names: None)
        append(layout, "chat", WRONG, "sha-3")
        return other(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(commits, "_written", written_beside)
    with pytest.raises(ValueError, match="another writer"):
        take_back(layout, "chat")
    assert history(layout, "chat")["batch"].to_list() == ["sha-1", "sha-2", "sha-3"]
    assert versions.newest(layout, "chat").number == 3


def test_versions_with_rows_that_are_gone_are_listed_and_no_other_version_is_opened(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, open_version = [], versions.opened
    monkeypatch.setattr(versions, "opened", lambda *given: opened.append(given[2]) or open_version(*given))
    append(layout, "chat", WRONG, "sha-3")
    assert taken_back(layout, "chat", [1, 2, 3]) == []
    assert opened == []
    take_back(layout, "chat")
    assert taken_back(layout, "chat", [1, 2, 3, 4]) == [3]
    take_back(layout, "chat")  # now the version without the third commit has rows that are gone, too
    append(layout, "chat", result([("z", "x", 7)]), "sha-4")
    opened.clear()
    assert taken_back(layout, "chat", [1, 2, 3, 4, 5, 6]) == [2, 3, 4]
    assert not {1, 6} & set(opened)
