import itertools
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dyformer.logs.events import ReadResult
from dyformer.logs.ids import ID
from storage.artifacts.artifact import Draft
from storage.bytes import files
from storage.events import commits, rows
from storage.events import rows as rows_module
from storage.events.commits import Ingest, append_all
from storage.events.rows import EVENT_COLUMNS, QUARANTINE_COLUMNS, numbered
from storage.events.table import (
    DatasetNotIngested,
    first_arrival,
    history,
    ingested_datasets,
    newest_version,
    node_dictionary,
    read_events,
    scan_events,
    scan_quarantine,
)
from storage.events.versions import TableDamaged
from storage.layout import Layout

Row = tuple[str, str, int]
TYPES = {
    "texts": pl.String,
    "each text once": ID,
    "small integers": pl.UInt32,
    "integers": pl.Int64,
    "integers below zero": pl.Int64,
}
SCALE = {"integers": 2**40, "integers below zero": -3}


def result(rows: list[Row], bad: list[str] | None = None, file: str = "log.csv", num_dropped: int = 0) -> ReadResult:
    bad = bad or []
    columns = {name: [row[position] for row in rows] for position, name in enumerate(("source", "target", "time"))}
    events = pl.DataFrame(columns).with_columns(
        weight=pl.lit(1.0),
        label=pl.lit(None, pl.Int8),
        file=pl.lit(file),
        line=pl.int_range(1, pl.len() + 1),
    )
    rejected = {
        "file": [file] * len(bad),
        "line": list(range(100, 100 + len(bad))),
        "reason": ["time"] * len(bad),
        "raw": bad,
    }
    return ReadResult(
        events=events.cast(pl.Schema(EVENT_COLUMNS)),
        quarantine=pl.DataFrame(rejected, schema=QUARANTINE_COLUMNS),
        num_read=len(rows) + len(bad) + num_dropped,
        num_accepted=len(rows),
        num_quarantined=len(bad),
        num_dropped=num_dropped,
        num_duplicates=0,
    )


FIRST = result([("ann", "bob", 20), ("cy", "ann", 10), ("bob", "bob", 20)], bad=["x,y,never"], num_dropped=2)
SECOND = result([("dan", "ann", 5), ("ann", "bob", 30)], file="more.csv")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(str(tmp_path / "data with space"))


def append(layout: Layout, dataset: str, result: ReadResult, source_sha256: str, **options: Any) -> Ingest:
    """Commit the rows of one source."""
    [ingest] = append_all(layout, dataset, {source_sha256: result}, **options)
    return ingest


def quarantine(layout: Layout, version: int | None = None) -> pl.DataFrame:
    rejected = scan_quarantine(layout, "chat", version).sort("ingest", "row")
    return rejected.select(QUARANTINE_COLUMNS.keys()).collect()


def ids(layout: Layout, dataset: str = "chat", version: int | None = None) -> list[str]:
    return node_dictionary(layout, dataset, version)["id"].to_list()


def test_rows_are_counted_and_none_is_lost(layout: Layout):
    ingest = append(layout, "chat", FIRST, "sha-1")
    assert (ingest.version, ingest.changed) == (1, True)
    counts = (ingest.num_accepted, ingest.num_quarantined, ingest.num_dropped, ingest.num_read)
    assert counts == (3, 1, 2, 6)
    assert read_events(layout, "chat").height == 3
    assert quarantine(layout).rows() == [("log.csv", 100, "time", "x,y,never")]
    (row,) = history(layout, "chat").to_dicts()
    assert (row["version"], row["batch"], row["num_read"], row["first_time"], row["last_time"]) == (
        1,
        "sha-1",
        6,
        10,
        20,
    )
    assert history(layout, "chat")["last_time"].max() == 20


def test_events_come_back_in_the_order_of_the_log(layout: Layout):
    append(layout, "chat", FIRST, "sha-1")
    append(layout, "chat", SECOND, "sha-2")
    events = read_events(layout, "chat")
    assert events.schema == {
        "source": pl.Int64,
        "target": pl.Int64,
        "source_side": pl.Int8,
        "target_side": pl.Int8,
        "time": pl.Int64,
        "weight": pl.Float64,
        "label": pl.Int8,
    }
    names = ids(layout)
    read = [(names[row["source"]], names[row["target"]], row["time"]) for row in events.to_dicts()]
    assert read == [("ann", "bob", 20), ("cy", "ann", 10), ("bob", "bob", 20), ("dan", "ann", 5), ("ann", "bob", 30)]


def test_lines_out_of_order_are_put_in_order(layout: Layout):
    mixed = result([("b", "c", 1), ("a", "b", 1)])
    shuffled = ReadResult(**{**vars(mixed), "events": mixed.events.reverse()})
    append(layout, "chat", shuffled, "sha")
    assert ids(layout) == ["b", "c", "a"]
    assert read_events(layout, "chat").select("source", "target").rows() == [(0, 1), (2, 0)]


def test_the_same_bytes_again_change_nothing(layout: Layout):
    append(layout, "chat", FIRST, "sha-1")
    append(layout, "chat", SECOND, "sha-2")
    before = {path: path.read_bytes() for path in Path(layout.root).rglob("*") if path.is_file()}
    again = append(layout, "chat", FIRST, "sha-1")
    assert (again.version, again.changed, again.num_read) == (1, False, 6)
    assert {path: path.read_bytes() for path in Path(layout.root).rglob("*") if path.is_file()} == before
    assert newest_version(layout, "chat") == 2


def test_a_dropped_log_that_is_ingested_again_is_another_one(layout: Layout):
    append(layout, "chat", FIRST, "sha-1")
    before = first_arrival(layout, "chat")
    append(layout, "chat", SECOND, "sha-2")
    assert first_arrival(layout, "chat") == before
    shutil.rmtree(layout.root)
    append(layout, "chat", FIRST, "sha-1")
    assert first_arrival(layout, "chat") > before


def test_nodes_are_numbered_by_first_appearance_in_time(layout: Layout):
    append(layout, "chat", FIRST, "sha-1")
    # cy's event is first in time, but on the second line; its target is ann
    assert node_dictionary(layout, "chat").rows() == [(0, 0, "cy"), (1, 0, "ann"), (2, 0, "bob")]


def test_a_number_never_changes(layout: Layout):
    append(layout, "chat", FIRST, "sha-1")
    first = node_dictionary(layout, "chat")
    append(layout, "chat", SECOND, "sha-2")  # dan at time 5, before everything in the first source
    assert ids(layout) == ["cy", "ann", "bob", "dan"]
    assert node_dictionary(layout, "chat", version=1).equals(first)


POISON = [
    [],
    [("zed", "yan", 21), ("cy", "zed", 22)],
    [("bob", "cy", 21)] * 50,
    [(f"new-{i}", f"new-{i + 1}", 1000 + i) for i in range(30)],
    [("aaa", "ann", 2**62)],
]


@pytest.mark.parametrize("poison", POISON, ids=["nothing", "new-nodes", "volume", "many-new", "far-future"])
@pytest.mark.parametrize("first", [False, True], ids=["poison-last", "poison-first"])
def test_later_events_change_no_earlier_number(tmp_path: Path, poison: list[Row], first: bool):
    known = [("ann", "bob", 20), ("cy", "ann", 10), ("bob", "dan", 15)]
    rows = [*poison, *known] if first else [*known, *poison]
    layout = Layout(str(tmp_path))
    append(layout, "chat", result(rows), "sha")
    assert ids(layout)[:4] == ["cy", "ann", "bob", "dan"]
    events = read_events(layout, "chat").filter(pl.col("time") <= 20)
    assert events.select("source", "target", "time").rows() == [(1, 2, 20), (0, 1, 10), (2, 3, 15)]


def test_an_earlier_event_does_change_the_numbers(layout: Layout):
    append(layout, "chat", result([("ann", "bob", 20), ("eve", "ann", 5)]), "sha")
    assert ids(layout) == ["eve", "ann", "bob"]


def test_user_7_and_item_7_differ_on_a_bipartite_log(layout: Layout):
    append(layout, "shop", result([("7", "7", 1), ("8", "7", 2)]), "sha", bipartite=True)
    assert node_dictionary(layout, "shop").rows() == [(0, 0, "7"), (1, 1, "7"), (2, 0, "8")]
    assert read_events(layout, "shop").select("source", "target", "source_side", "target_side").rows() == [
        (0, 1, 0, 1),
        (2, 1, 0, 1),
    ]


def test_an_id_known_on_one_side_is_new_on_the_other(layout: Layout):
    append(layout, "shop", result([("7", "item", 1)]), "sha-1", bipartite=True)
    append(layout, "shop", result([("item", "7", 2)]), "sha-2", bipartite=True)
    assert node_dictionary(layout, "shop").rows() == [(0, 0, "7"), (1, 1, "item"), (2, 0, "item"), (3, 1, "7")]
    assert read_events(layout, "shop").select("source", "target").rows() == [(0, 1), (2, 3)]


def test_one_log_cannot_have_one_id_space_and_two(layout: Layout):
    append(layout, "shop", result([("7", "7", 1)]), "sha-1", bipartite=True)
    with pytest.raises(ValueError, match=r"ingested with two id spaces .* has one id space"):
        append(layout, "shop", result([("7", "7", 2)]), "sha-2")
    assert newest_version(layout, "shop") == 1


def test_known_events_are_left_out_on_request(layout: Layout):
    append(layout, "chat", FIRST, "sha-1")
    overlapping = result([("ann", "bob", 20), ("ann", "bob", 21)], file="later.csv")
    ingest = append(layout, "chat", overlapping, "sha-2", drop_known=True)
    assert (ingest.num_accepted, ingest.num_dropped, ingest.num_read) == (1, 1, 2)
    nothing_new = append(layout, "chat", overlapping, "sha-3", drop_known=True)
    assert (nothing_new.changed, nothing_new.version, nothing_new.num_dropped) == (False, 2, 2)
    assert read_events(layout, "chat")["time"].to_list() == [20, 10, 20, 21]


def test_repeated_rows_are_interactions(layout: Layout):
    append(layout, "chat", result([("a", "b", 1)] * 3), "sha")
    assert read_events(layout, "chat").height == 3


def test_equal_events_of_two_sources_are_interactions_unless_they_are_to_be_dropped(layout: Layout):
    for sha in ("sha-1", "sha-2"):
        append_all(layout, "chat", {sha: FIRST})
    assert read_events(layout, "chat").height == 2 * FIRST.events.height
    (ingest,) = append_all(layout, "chat", {"sha-3": FIRST}, drop_known=True)
    assert (ingest.changed, ingest.num_accepted) == (False, 0)


def test_a_version_that_the_log_has_is_read_without_a_look_at_another(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    append(layout, "chat", FIRST, "sha-1")
    append(layout, "chat", SECOND, "sha-2")
    newest = read_events(layout, "chat")
    with monkeypatch.context() as patched:
        patched.setattr(files, "children", lambda folder: pytest.fail(f"lists {folder}"))
        assert read_events(layout, "chat", 2).equals(newest)
    files.remove_folder(layout.commit("chat", 1))
    with pytest.raises(TableDamaged, match="commit=1"):
        read_events(layout, "chat", 2)


def test_an_older_version_is_read_as_it_was(layout: Layout):
    append(layout, "chat", FIRST, "sha-1")
    before = read_events(layout, "chat")
    append(layout, "chat", SECOND, "sha-2")
    assert read_events(layout, "chat", version=1).equals(before)
    assert history(layout, "chat", version=1)["last_time"].max() == 20
    assert quarantine(layout, version=1).height == 1


def test_a_lost_commit_is_named_by_what_was_made_of_it(layout: Layout):
    append(layout, "chat", FIRST, "sha-1")
    append(layout, "chat", SECOND, "sha-2")
    snapshots = Path(layout.artifact("snapshots", "chat", version=2, settings="ab"))
    snapshots.mkdir(parents=True)
    shutil.rmtree(layout.commit("chat", 2))
    assert newest_version(layout, "chat") == 1  # an empty folder was made of nothing
    (snapshots / "edges.parquet").touch()
    for version in (2, 1):
        shutil.rmtree(layout.commit("chat", version), ignore_errors=True)
        lost = rf"commit={version} is missing, though snapshots of version 2 exist"
        with pytest.raises(TableDamaged, match=lost):
            read_events(layout, "chat")


def test_a_lost_commit_before_others_is_named(layout: Layout):
    append(layout, "chat", FIRST, "sha-1")
    append(layout, "chat", SECOND, "sha-2")
    shutil.rmtree(layout.commit("chat", 1))
    for read in (read_events, newest_version, history):
        with pytest.raises(TableDamaged, match=r"commit=1 is missing, though later commits exist"):
            read(layout, "chat")


@pytest.mark.parametrize("version", [0, -1, 3])
def test_a_missing_version_is_refused(layout: Layout, version: int):
    append(layout, "chat", FIRST, "sha-1")
    with pytest.raises(DatasetNotIngested, match=f"versions 1 to 1, not {version}"):
        read_events(layout, "chat", version)


def test_the_error_for_a_missing_log_names_the_remedy(layout: Layout):
    with pytest.raises(DatasetNotIngested, match=r"no events of 'chat'.*dyformer ingest chat.*ingested: none"):
        read_events(layout, "chat")
    assert not Path(layout.root).exists()
    append(layout, "shop", FIRST, "sha")
    assert ingested_datasets(layout) == ["shop"]
    with pytest.raises(DatasetNotIngested, match="ingested: shop"):
        newest_version(layout, "chat")


WRONG: dict[str, Any] = {
    "a time in text": {"events": FIRST.events.with_columns(pl.col("time").cast(pl.String))},
    "a time in fractions": {"events": FIRST.events.with_columns(pl.col("time").cast(pl.Float64))},
    "no target": {"events": FIRST.events.drop("target")},
    "a missing id": {"events": FIRST.events.with_columns(source=pl.Series([None, "a", "b"]))},
    "weight is not finite": {"events": FIRST.events.with_columns(weight=pl.Series([1.0, float("nan"), 1.0]))},
    "no event": {"events": FIRST.events.clear(), "num_read": 3},
    "lost row": {"num_read": 7},
    "quarantine without reason": {"quarantine": FIRST.quarantine.drop("reason")},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_event_never_enters_the_table(layout: Layout, wrong: dict[str, Any]):
    with pytest.raises(ValueError, match="dataset 'chat'"):
        append(layout, "chat", ReadResult(**(vars(FIRST) | wrong)), "sha")
    assert not Path(layout.root).exists()


def test_the_nodes_of_a_commit_are_those_of_its_rows(layout: Layout):
    append(layout, "shop", FIRST, "sha-1", bipartite=True)
    append(layout, "shop", SECOND, "sha-2", bipartite=True)
    events = scan_events(layout, "shop")
    ends = pl.concat(
        [
            events.select(node="source_node", side=pl.lit(0, pl.Int8), id="source"),
            events.select(node="target_node", side="target_side", id="target"),
        ]
    )
    assert node_dictionary(layout, "shop").equals(ends.unique().sort("node").collect())


def test_rows_are_stored_alike_in_many_blocks(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    many = result([(f"n{row % 7}", f"n{row % 5}", 100 - row) for row in range(23)], bad=["x", "y", "z"])
    append(layout, "whole", many, "sha")
    monkeypatch.setattr(rows, "BLOCK_ROWS", 3)
    append(layout, "blocks", many, "sha")
    for scan in (scan_events, scan_quarantine):
        whole, blocks = (scan(layout, name).drop("arrival").sort("row").collect() for name in ("whole", "blocks"))
        assert whole.equals(blocks)
    assert ids(layout, "whole") == ids(layout, "blocks")


def test_integer_ids_differ_from_texts_that_look_alike():
    def integers(*texts: str) -> bool:
        return rows.ids_are_integers(pl.DataFrame({"id": texts}))

    assert integers("0", "7", "-12", str(2**63 - 1))
    for text in ("007", "+7", "1.0", "1e3", " 7", "-0", str(2**63), "x", ""):
        assert not integers("7", text), text


def test_a_writer_gives_up_when_others_always_commit_first(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Draft, "published", lambda *_: False)
    monkeypatch.setattr(commits, "MOST_RETRIES", 2)
    with pytest.raises(ValueError, match="committed first 3 times"):
        append(layout, "chat", FIRST, "sha-1")


def test_a_writer_waits_longer_before_each_new_try(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []
    monkeypatch.setattr(commits.time, "sleep", pauses.append)
    monkeypatch.setattr(commits, "_try_append", lambda *_: None)
    for write in (lambda: append(layout, "chat", FIRST, "sha-1"), lambda: append_all(layout, "chat", {"sha-1": FIRST})):
        pauses.clear()
        with pytest.raises(ValueError, match="committed first 101 times"):
            write()
        assert pauses == pytest.approx([min(0.01 * number, 0.5) for number in range(1, 102)])


def test_a_writer_that_was_second_numbers_its_nodes_again(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real, raced = Draft.published, iter([True])
    elsewhere = Layout(layout.root, str(tmp_path / "state of another machine"))

    def race(*arguments: Any, **options: Any) -> bool:
        if next(raced, False):
            append(elsewhere, "chat", FIRST, "sha-1")
        return real(*arguments, **options)

    monkeypatch.setattr(Draft, "published", race)
    ingest = append(layout, "chat", SECOND, "sha-2")
    assert ingest.version == 2
    assert ids(layout) == ["cy", "ann", "bob", "dan"]
    assert read_events(layout, "chat", version=2).tail(2).select("source", "target").rows() == [(3, 1), (1, 2)]


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_events_table import append, batch, Layout

layout, writer, num_batches = Layout(sys.argv[2]), sys.argv[3], int(sys.argv[4])
print("ready", flush=True)
for number in range(num_batches):
    append(layout, "chat", batch(writer, number), f"{writer}-{number}")
"""
BATCH_ROWS = 300


def batch(writer: str, number: int) -> ReadResult:
    """A source with nodes of its own, nodes common to all writers, and one bad row."""
    rows = [(f"{writer}-{number}-{row % 7}", f"shared-{(row * number) % 11}", row) for row in range(BATCH_ROWS)]
    return result(rows, bad=["broken"], file=f"{writer}.csv")


def start_writer(layout: Layout, writer: str, num_batches: int) -> subprocess.Popen:
    arguments = [str(Path(__file__).parent), layout.root, writer, str(num_batches)]
    return subprocess.Popen([sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE)


def assert_consistent(layout: Layout) -> set[str]:
    """Check the committed rows against their sources, and return the names of the committed sources."""
    committed = history(layout, "chat")
    names = node_dictionary(layout, "chat")
    assert names["node"].to_list() == list(range(names.height))
    assert names.select("side", "id").is_duplicated().sum() == 0
    for row in committed.to_dicts():
        writer, number = row["batch"].split("-")
        expected = batch(writer, int(number)).events
        stored = scan_events(layout, "chat").filter(pl.col("ingest") == row["version"]).sort("row").collect()
        assert stored.select(EVENT_COLUMNS.keys()).equals(expected)
        for end in ("source", "target"):
            assert names["id"].gather(stored[f"{end}_node"]).to_list() == expected[end].to_list()
    assert quarantine(layout).height == committed.height
    assert read_events(layout, "chat").height == BATCH_ROWS * committed.height
    return set(committed["batch"])


def test_writers_at_once_lose_nothing(layout: Layout):
    num_batches = 6
    writers = [start_writer(layout, name, num_batches) for name in ("a", "b", "c")]
    # The fourth writer has the same sources as the first; the later of the two finds them in the table.
    writers.append(start_writer(layout, "a", num_batches))
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0, 0]
    for writer in writers:
        writer.communicate()
    expected = {f"{name}-{number}" for name, number in itertools.product("abc", range(num_batches))}
    assert assert_consistent(layout) == expected
    assert history(layout, "chat").height == len(expected)


def test_a_writer_killed_in_the_middle_leaves_all_or_nothing(layout: Layout):
    append(layout, "chat", batch("z", 0), "z-0")
    done: set[str] = set()
    for kill in range(6):
        writer = start_writer(layout, "a", 1000)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.03 + 0.041 * kill)
        while kill == 5 and newest_version(layout, "chat") == 1:  # on a busy machine no writer has committed yet
            assert writer.poll() is None
            time.sleep(0.01)
        writer.kill()
        writer.communicate()
        done = assert_consistent(layout)
    again = append(layout, "chat", batch("a", 0), "a-0")
    assert not again.changed
    num_new = sum(append(layout, "chat", batch("a", n), f"a-{n}").changed for n in range(len(done) + 2))
    assert num_new >= 2
    assert_consistent(layout)


def test_an_ingest_loads_nothing_heavy():
    program = (
        "import sys, storage.events.table, storage.artifacts.artifact, storage.events.declarations; "
        "raise SystemExit(' '.join({'torch', 'mlflow', 'prefect', 'duckdb', 'sklearn'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.stderr.strip() == ""


def expected(rows, known, target_side):
    """Number the nodes one by one, in the order of their rows."""
    number = {(side, text): node for node, (side, text) in enumerate(known)}
    for source, target, _ in sorted(rows, key=lambda row: row[2]):
        for end in ((0, str(source)), (target_side, str(target))):
            number.setdefault(end, len(number))
    numbers = [(number[0, str(source)], number[target_side, str(target)]) for source, target, _ in rows]
    return numbers, [(node, *end) for end, node in number.items() if node >= len(known)]


@settings(deadline=None)
@given(
    ends=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=25),
    kind=st.sampled_from(list(TYPES)),
    known=st.sets(st.tuples(st.integers(0, 1), st.sampled_from(["1", "01", "x", "-6", str(2**40), "20", str(10**30)]))),
    target_side=st.integers(0, 1),
    table_size=st.sampled_from([1, 6, 1 << 24]),
)
def test_nodes_are_numbered_in_the_order_of_their_first_rows(ends, kind, known, target_side, table_size):
    scale = SCALE.get(kind, 1)
    rows = [(source * scale, target * scale, time) for source, target, time in ends]
    known = sorted((side * target_side, text) for side, text in known)
    known = list(dict.fromkeys(known))
    nodes = {"node": range(len(known)), "side": [side for side, _ in known], "id": [text for _, text in known]}
    schema = {"node": pl.Int64, "side": pl.Int8, "id": pl.String}
    events = pl.DataFrame(rows, schema=["source", "target", "time"], orient="row")
    if kind in ("texts", "each text once"):
        events = events.cast({"source": pl.String, "target": pl.String})
    events = events.cast({"source": TYPES[kind], "target": TYPES[kind]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "TABLE_SIZE", table_size)
        patch.setattr(rows_module, "BLOCK_ROWS", 4)
        result, new = numbered(events, pl.DataFrame(nodes, schema=schema), target_side)
    numbers, new_nodes = expected(rows, known, target_side)
    assert result.select("source_node", "target_node").rows() == numbers
    assert new.rows() == new_nodes
    assert result.drop("source_node", "target_node").equals(events)


@pytest.mark.parametrize(
    "targets", [pl.Series(["8", "x"]), pl.Series([8, 2**40]), pl.Series([8, 9], dtype=pl.UInt32), pl.Series([8, -1])]
)
def test_ends_may_have_different_types(targets):
    events = pl.DataFrame({"source": np.array([7, 8]), "target": targets, "time": [1, 2]})
    result, new = numbered(events, pl.DataFrame(schema=rows_module.NODE_COLUMNS), 0)
    assert result.select("source_node", "target_node").rows() == [(0, 1), (1, 2)]
    assert new["id"].to_list() == ["7", "8", str(targets[1])]


def test_a_known_text_that_is_no_usual_integer_is_another_node():
    known = pl.DataFrame({"node": [0, 1], "side": [0, 0], "id": ["07", "8"]}).cast({"side": pl.Int8})
    events = pl.DataFrame({"source": [7, 8], "target": [8, 7], "time": [1, 2]})
    result, new = numbered(events, known, 0)
    assert result.select("source_node", "target_node").rows() == [(2, 1), (1, 2)]
    assert new.rows() == [(2, 0, "7")]
