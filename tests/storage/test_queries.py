from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from test_events_table import append

from dyformer.logs.events import ReadResult
from storage.artifacts.artifact import Lineage, write_artifact
from storage.bytes import files
from storage.bytes.checksums import Damaged, write_record
from storage.events.rows import EVENT_COLUMNS, QUARANTINE_COLUMNS
from storage.layout import Layout
from storage.queries import QueryFailed, open_views, query, view_names

EVENTS = pl.DataFrame(
    {
        "source": ["a", "b", "a"],
        "target": ["b", "c", "b"],
        "time": [1, 2, 3],
        "weight": [1.0, 1.0, 1.0],
        "label": [None, 1, None],
        "file": ["f"] * 3,
        "line": [1, 2, 3],
    },
    schema=EVENT_COLUMNS,
)
BAD = pl.DataFrame({"file": ["f"], "line": [4], "reason": ["time"], "raw": ["a,b,never"]}, schema=QUARANTINE_COLUMNS)
READ = ReadResult(
    events=EVENTS, quarantine=BAD, num_read=4, num_accepted=3, num_quarantined=1, num_dropped=0, num_duplicates=0
)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(str(tmp_path / "seed=trap"))
    for dataset in ("chat", "2024"):
        write_record(layout.declaration(dataset), {"dataset": dataset, "time_unit": "s"})
        append(layout, dataset, READ, f"sha-{dataset}")
    for until in (3, 4):
        address = layout.artifact("pagerank", "chat", version=1, until=until, settings="123456789012")
        table = pl.DataFrame({"node": [0], "neighbor": [until], "score": [0.5]})
        write_artifact(address, {"pagerank": table}, lineage("pagerank", until=until))
    address = layout.artifact("snapshots", "2024", version=1, settings="abc")
    tables = {name: pl.DataFrame({"step": [1, 2]}) for name in ("edges", "steps")}
    write_artifact(address, tables, lineage("snapshots", dataset="2024"))
    return layout


def lineage(kind: str, until: int | None = None, dataset: str = "chat") -> Lineage:
    return Lineage(kind=kind, dataset=dataset, table_version=1, until=until)


def test_every_artifact_is_a_view_with_its_keys(layout: Layout):
    with open_views(layout) as connection:
        assert view_names(connection) == [
            "events", "nodes", "pagerank", "quarantine", "snapshots_edges", "snapshots_steps",
        ]  # fmt: skip
    found = query(layout, "select neighbor, dataset, version, until, settings from pagerank order by until")
    assert found.rows() == [(3, "chat", 1, 3, "123456789012"), (4, "chat", 1, 4, "123456789012")]
    assert query(layout, "select dataset, count(*) from snapshots_edges group by 1").rows() == [("2024", 2)]


def test_events_nodes_and_quarantine_are_views_of_all_logs(layout: Layout):
    found = query(layout, "select dataset, count(*), max(time) from events group by 1 order by 1")
    newest = datetime.fromisoformat("1970-01-01T00:00:00.000003")
    assert found.rows() == [("2024", 3, newest), ("chat", 3, newest)]
    assert query(layout, "select reason, raw from quarantine where dataset = 'chat'").rows() == [("time", "a,b,never")]
    joined = query(
        layout,
        "select n.id, count(*) from events e join nodes n on n.node = e.source_node and n.dataset = e.dataset "
        "where e.dataset = 'chat' group by 1 order by 1",
    )
    assert joined.rows() == [("a", 2), ("b", 1)]


def test_times_are_timestamps_and_integer_steps_have_columns_of_their_own(layout: Layout):
    write_record(layout.declaration("2024"), {"dataset": "2024", "time_unit": "step"})
    address = layout.artifact("snapshots", "chat", version=1, settings="abc")
    steps = pl.DataFrame({"step": [1], "start_time": [86_400_000_000], "end_time": [2 * 86_400_000_000]})
    write_artifact(address, {"steps": steps}, lineage("snapshots"))
    where = "where time > timestamp '1970-01-01' and source = 'b'"
    assert query(layout, f"select typeof(time), time, time_step from events {where}").rows() == [
        ("TIMESTAMP", datetime.fromisoformat("1970-01-01T00:00:00.000002"), None)
    ]
    found = query(
        layout, "select distinct time, time_step, typeof(arrival) from events where dataset = '2024' order by 2"
    )
    assert found.rows() == [(None, 1, "TIMESTAMP"), (None, 2, "TIMESTAMP"), (None, 3, "TIMESTAMP")]
    assert query(layout, "select start_time, end_time from snapshots_steps where dataset = 'chat'").rows() == [
        (datetime.fromisoformat("1970-01-02"), datetime.fromisoformat("1970-01-03"))
    ]
    assert query(layout, "select typeof(arrival) from quarantine limit 1").rows() == [("TIMESTAMP",)]


def test_the_version_of_a_step_stands_beside_that_of_its_snapshots(layout: Layout):
    address = layout.artifact("snapshots", "chat", version=3, settings="abc")
    steps = pl.DataFrame({"step": [1, 2, 3], "version": [1, 1, 3]})
    write_artifact(address, {"steps": steps}, lineage("snapshots"))
    found = query(layout, "select step, row_version, version from snapshots_steps where dataset = 'chat' order by 1")
    assert found.rows() == [(1, 1, 3), (2, 1, 3), (3, 3, 3)]


def test_a_part_of_an_artifact_is_in_no_view_and_is_named(layout: Layout):
    address = Path(layout.artifact("distances", "chat", version=1, until=3, settings="abc"))
    address.mkdir(parents=True)
    (address / "distances.parquet").write_bytes(b"half")
    done = layout.artifact("pagerank", "chat", version=1, until=3, settings="123456789012")
    (Path(done) / "pagerank.parquet").unlink()
    damage: list[Damaged] = []
    assert query(layout, "select until from pagerank", damage.append).rows() == [(4,)]
    assert [f"{done}/pagerank.parquet is missing" in str(each) for each in damage] == [True]
    with pytest.raises(QueryFailed, match="distances"):
        query(layout, "select * from distances", damage.append)
    assert f"{address} has files but no manifest.json" in str(damage[1])
    for view, problem in (("distances", "no manifest"), ("pagerank", r"pagerank\.parquet is missing")):
        with pytest.raises(Damaged, match=problem):
            query(layout, f"select until from {view}")


def test_tables_with_and_without_a_newer_column_are_one_view(layout: Layout):
    address = layout.artifact("pagerank", "chat", version=1, until=5, settings="abc")
    newer = pl.DataFrame({"node": [0], "neighbor": [5], "score": [0.5], "rank": [1]})
    write_artifact(address, {"pagerank": newer}, lineage("pagerank", until=5))
    assert query(layout, "select until, rank from pagerank order by 1").rows() == [(3, None), (4, None), (5, 1)]


def test_a_column_of_a_type_that_polars_lacks_is_text_and_the_others_stay(layout: Layout):
    statement = """select timestamp '2024-05-22 21:40:00' - timestamp '2023-11-14' as "order", count(*) as "order",
        [interval 3 day] as list, union_value(num := 2) as one, '101'::bit as "a ""bit" from events"""
    rows = query(layout, statement)
    assert rows.columns == ["order", "order_1", "list", "one", 'a "bit']
    count = query(layout, "select count(*) from events").item()
    assert rows.rows() == [("190 days 21:40:00", count, "[3 days]", "2", "101")]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("time '24:00'", "24:00:00"),
        ("time '23:59:59.5'", "23:59:59.5"),
        ("'24:00:00+02'::timetz", "24:00:00+02"),
        ("'24:00'::time_ns", "24:00:00"),
        ("'infinity'::timestamp_ns", "infinity"),
        ("'-infinity'::timestamp_s", "-infinity"),
        ("timestamp_s '2024-05-22 21:40:00'", "2024-05-22 21:40:00"),
        ("[time '24:00']", "['24:00:00']"),
        ("{'of': time '24:00'}", "{'of': '24:00:00'}"),
        ("timestamptz '2024-05-22 21:40:00+00'", datetime(2024, 5, 22, 21, 40, tzinfo=UTC)),
    ],
)
def test_a_time_that_polars_reads_as_missing_or_as_another_is_text(layout: Layout, value: str, expected: object):
    assert query(layout, f"select {value} as one").item() == expected


@pytest.mark.parametrize(
    "statement", ["selec 1", "select * from nowhere", "select nothing from events", "", "-- only a comment"]
)
def test_the_error_for_a_wrong_statement_lists_the_views(layout: Layout, statement: str):
    with pytest.raises(QueryFailed, match="views: events, nodes, pagerank"):
        query(layout, statement)


@pytest.mark.parametrize(
    "statement",
    [
        "copy (select 1) to '{folder}/out.csv'",
        "select * from read_text('/etc/hostname')",
        "set enable_external_access = true",
        "attach '{folder}/other.db'",
        "install httpfs",
        "call enable_logging(level='debug', storage='file', storage_path='{folder}/log')",
        "CALL Enable_Logging(storage='file', storage_path='{folder}/log')",
        "select * from \"enable_logging\"(storage='file', storage_path='{folder}/log')",
    ],
)
def test_a_statement_reaches_nothing_beside_the_views(layout: Layout, tmp_path: Path, statement: str):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(QueryFailed):
        query(layout, statement.format(folder=tmp_path))
    assert sorted(tmp_path.iterdir()) == before


def test_the_error_for_an_empty_store_names_the_command_to_run(tmp_path: Path):
    with pytest.raises(QueryFailed, match="run `dyformer ingest`"):
        query(Layout(str(tmp_path)), "select * from events")


def test_a_statement_opens_only_what_it_names(layout: Layout, monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    real = files.read_bytes
    monkeypatch.setattr(files, "read_bytes", lambda address: read.append(layout.relative(address)) or real(address))
    assert query(layout, "select 1").item() == 1
    assert read == []
    assert query(layout, "select count(*) from pagerank").item() == 2
    assert {address.split("/")[1] for address in read} == {"pagerank"}
    read.clear()
    assert query(layout, "select count(*) from snapshots_edges").item() == 2
    assert {address.split("/")[1] for address in read} == {"snapshots"}


@pytest.mark.parametrize("lost", ["manifest.json", "sources.parquet", "interactions.parquet", "nodes.parquet"])
@pytest.mark.parametrize("view", ["events", "nodes"])
def test_a_statement_that_would_read_damage_ends_unless_it_is_to_be_skipped(layout: Layout, lost: str, view: str):
    for dataset in ("chat", "2024"):
        Path(layout.commit(dataset, 1), lost).unlink()
    statement = (
        f"select count(*), count(source_node) from {view}" if view == "events" else f"select count(id) from {view}"
    )
    is_read = lost[:5] in ("manif", "sourc") or (lost[:5] == "inter") == (view == "events")
    if is_read:
        with pytest.raises(Damaged, match=lost):
            query(layout, statement)
        found: list[Damaged] = []
        assert set(query(layout, statement, found.append).row(0)) == {0}
        assert query(layout, f"select * from {view}", [].append).columns[-1] == "dataset"
        assert {str(damage).partition("dataset=")[2].partition("/")[0] for damage in found} == {"chat", "2024"}
    else:
        assert query(layout, statement).row(0)[0] in (3, 6)
    assert query(layout, "select count(*) from pagerank").item() == 2


@pytest.mark.parametrize("lost", ["manifest.json", "pagerank.parquet"])
def test_a_view_without_a_sound_part_is_no_view_of_one_row(layout: Layout, lost: str):
    for path in Path(layout.root).glob(f"4_graphs/pagerank/**/{lost}"):
        path.unlink()
    with pytest.raises(Damaged, match=r"4_graphs/pagerank"):
        query(layout, "select count(*) from pagerank")
    with pytest.raises(QueryFailed, match=r"the view pagerank has no sound part|there is no view 'pagerank'"):
        query(layout, "select count(*) from pagerank", [].append)
    assert query(layout, "select count(*) from events").item() == 6


def test_a_view_that_is_not_named_is_never_a_row(layout: Layout):
    with pytest.raises(QueryFailed, match="write the name of the view pagerank"):
        query(layout, "select count(*) from query_table('page' || 'rank')")


def test_files_of_a_user_among_artifacts_are_no_views(layout: Layout):
    for name in ("6_vectors/my file.parquet", "4_graphs/pagerank/a-b.parquet", "4_graphs/x(y.parquet"):
        path = Path(layout.root, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
    assert query(layout, "select count(*) from pagerank").item() == 2


def test_times_of_a_log_whose_declaration_is_lost_are_not_guessed(layout: Layout):
    Path(layout.declaration("chat")).unlink()
    with pytest.raises(Damaged, match="declaration"):
        query(layout, "select max(time) from events")


@pytest.mark.parametrize(
    "value",
    [
        "'infinity'::timestamp",
        "'-infinity'::timestamptz",
        "'infinity'::date",
        "'-infinity'::date",
        "timestamp '10000-01-01'",
        "date '10000-01-01'",
        "timestamp '0001-01-01 00:00:00' - interval 1 second",
        "['infinity'::timestamp]",
        "{'of': [date 'infinity']}",
        "unnest([timestamp '2024-01-01', 'infinity'])",
    ],
)
def test_a_time_that_no_calendar_has_is_refused_by_its_column(layout: Layout, value: str):
    with pytest.raises(QueryFailed, match=r"the column late .* years 1 to 9999.*late::varchar"):
        query(layout, f"select 1 as one, {value} as late")


def test_times_of_the_first_and_the_last_year_are_rows(layout: Layout):
    statement = "select timestamp '0001-01-01' a, timestamp '9999-12-31 23:59:59.999999' b, date '9999-12-31' c, [null]"
    assert query(layout, statement).select("a", "b").row(0) == (datetime.min, datetime.max)  # noqa: DTZ901
