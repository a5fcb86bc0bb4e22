from pathlib import Path

import polars as pl
import pytest

from dyformer.graphs.snapshots import build_snapshots, to_tables
from dyformer.logs.datasets import Window
from dyformer.logs.events import ReadResult
from storage.artifacts.artifact import Lineage, write_artifact
from storage.checksums import Damaged
from storage.events.commits import append
from storage.events.rows import EVENT_COLUMNS, QUARANTINE_COLUMNS
from storage.layout import Layout
from storage.queries import QueryFailed, candidates, open_views, query, snapshot_faults, view_names

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
        append(layout, dataset, READ, f"sha-{dataset}")
    for until in (3, 4):
        address = layout.graph("pagerank", "chat", version=1, until=until, settings="123456789012")
        table = pl.DataFrame({"node": [0], "neighbor": [until], "score": [0.5]})
        write_artifact(address, {"pagerank": table}, lineage("pagerank", until=until))
    address = layout.snapshots("2024", version=1, settings="abc")
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
    assert found.rows() == [("2024", 3, 3), ("chat", 3, 3)]
    assert query(layout, "select reason, raw from quarantine where dataset = 'chat'").rows() == [("time", "a,b,never")]
    joined = query(
        layout,
        "select n.id, count(*) from events e join nodes n on n.node = e.source_node and n.dataset = e.dataset "
        "where e.dataset = 'chat' group by 1 order by 1",
    )
    assert joined.rows() == [("a", 2), ("b", 1)]


def test_a_part_of_an_artifact_is_in_no_view_and_is_named(layout: Layout):
    address = Path(layout.graph("distances", "chat", version=1, until=3, settings="abc"))
    address.mkdir(parents=True)
    (address / "distances.parquet").write_bytes(b"half")
    done = layout.graph("pagerank", "chat", version=1, until=3, settings="123456789012")
    (Path(done) / "pagerank.parquet").unlink()
    damage: list[Damaged] = []
    assert query(layout, "select until from pagerank", damage.append).rows() == [(4,)]
    assert f"{address} has files but no manifest.json" in str(damage[0])
    assert f"{done}/pagerank.parquet is missing" in str(damage[1])
    with pytest.raises(QueryFailed, match="distances"):
        query(layout, "select * from distances", damage.append)
    with pytest.raises(Damaged, match="no manifest"):
        query(layout, "select until from pagerank")


def test_tables_with_and_without_a_newer_column_are_one_view(layout: Layout):
    address = layout.graph("pagerank", "chat", version=1, until=5, settings="abc")
    newer = pl.DataFrame({"node": [0], "neighbor": [5], "score": [0.5], "rank": [1]})
    write_artifact(address, {"pagerank": newer}, lineage("pagerank", until=5))
    assert query(layout, "select until, rank from pagerank order by 1").rows() == [(3, None), (4, None), (5, 1)]


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


def graph_tables() -> dict[str, pl.DataFrame]:
    return {
        "edges": pl.DataFrame({"step": [1, 1, 3], "source": [0, 1, 0], "target": [1, 2, 3], "weight": [2.0, 1.0, 1.0]}),
        "steps": pl.DataFrame(
            {
                "step": [1, 2, 3],
                "start_time": [0, 10, 20],
                "end_time": [10, 20, 30],
                "num_interactions": [4, 0, 1],
                "num_self_loops": [1, 0, 0],
                "num_nodes": [3, 3, 4],
            }
        ),
        "nodes": pl.DataFrame({"node": [0, 1, 2, 3]}),
    }


def changed(name: str, row: int, **values: float) -> dict[str, pl.DataFrame]:
    tables = graph_tables()
    at = pl.int_range(pl.len()) == row
    tables[name] = tables[name].with_columns(
        pl.when(at).then(pl.lit(value)).otherwise(pl.col(column)).alias(column) for column, value in values.items()
    )
    return tables


def test_a_sound_snapshot_has_no_faults():
    assert snapshot_faults(graph_tables()) == []


FAULTS = [
    (changed("edges", 1, source=2, target=1), "source < target"),
    (changed("edges", 1, source=2), "source < target"),
    (changed("edges", 1, source=0, target=1), "listed once"),
    (changed("edges", 1, weight=0.5), "at least 1"),
    (changed("edges", 1, weight=float("nan")), "at least 1"),
    (changed("edges", 1, weight=float("inf")), "at least 1"),
    (changed("edges", 1, target=3), "known at its step"),
    (changed("edges", 0, source=-1), "known at its step"),
    (changed("edges", 2, step=4), "known at its step"),
    (changed("steps", 1, step=4), "without a gap"),
    (changed("steps", 0, step=0), "without a gap"),
    (changed("steps", 2, start_time=9), "follow each other"),
    (changed("steps", 1, end_time=31), "follow each other"),
    (changed("steps", 2, start_time=31), "follow each other"),
    (changed("steps", 1, num_nodes=2), "never become fewer"),
    (changed("steps", 1, num_interactions=1), "self-loops"),
    (changed("steps", 0, num_self_loops=0), "self-loops"),
    (changed("steps", 2, num_nodes=5), "known at the last step"),
]


@pytest.mark.parametrize(("tables", "claim"), FAULTS, ids=[f"{i}-{claim}" for i, (_, claim) in enumerate(FAULTS)])
def test_each_violated_check_is_named(tables: dict[str, pl.DataFrame], claim: str):
    assert any(claim in fault for fault in snapshot_faults(tables))


@pytest.mark.parametrize("window", ["3 equal", "6 equal", "4 equal time", "2s"])
def test_snapshots_of_a_log_have_no_faults(window: str):
    events = pl.DataFrame(
        {
            "source": [0, 1, 2, 0, 3, 4],
            "target": [1, 0, 2, 3, 1, 0],
            "time": [1, 2, 3, 3, 3, 9],
            "weight": [1.0, 2.5, 1.0, 1.0, 0.1, 1.0],
        }
    )
    graph = build_snapshots(events.with_columns(pl.col("time") * 1_000_000), Window.parse(window), "us")
    assert graph.num_steps > 1
    assert snapshot_faults(to_tables(graph)) == []


def frame(*pairs: tuple[int, int]) -> pl.DataFrame:
    return pl.DataFrame(pairs, schema={"source": pl.Int64, "target": pl.Int64}, orient="row")


NO_SCORES = pl.DataFrame(schema={"node": pl.Int64, "neighbor": pl.Int64, "score": pl.Float64})
PATH = frame((0, 1), (2, 1), (2, 3), (3, 4))


def by_node(pairs: pl.DataFrame) -> dict[int, list[int]]:
    return {node: sorted(group["partner"]) for (node,), group in pairs.group_by("node", maintain_order=True)}


def test_candidates_are_two_steps_away_and_never_linked():
    assert by_node(candidates(PATH, NO_SCORES)) == {0: [2], 1: [3], 2: [0, 4], 3: [1], 4: [2]}


def test_candidates_of_the_pagerank_table_come_first():
    scores = pl.DataFrame({"node": [0, 0, 0, 0], "neighbor": [4, 1, 0, 3], "score": [0.2, 0.9, 0.9, 0.1]})
    assert by_node(candidates(PATH, scores))[0] == [2, 3, 4]
    assert by_node(candidates(PATH, scores, num_candidates=2))[0] == [3, 4]
    assert by_node(candidates(PATH, scores, num_candidates=1))[0] == [4]


def test_the_more_popular_partner_comes_first():
    star = frame((0, 1), (1, 2), (1, 3), (3, 4), (3, 5))
    assert by_node(candidates(star, NO_SCORES, num_candidates=1))[0] == [3]
    assert by_node(candidates(star, NO_SCORES, num_popular=1)).get(0) == [3]


def test_candidates_come_through_the_least_popular_bridge():
    edges = frame((0, 1), (0, 2), (1, 3), (2, 4), (2, 5))
    assert by_node(candidates(edges, NO_SCORES, num_bridges=1))[0] == [3]


def test_on_a_bipartite_log_candidates_are_on_the_other_side():
    shop = frame((0, 10), (1, 10), (1, 11), (2, 11))
    assert by_node(candidates(shop, NO_SCORES, bipartite=True)) == {0: [11], 2: [10], 10: [2], 11: [0]}


def test_repeated_and_reversed_edges_change_no_candidate():
    again = pl.concat([PATH, PATH.select(source="target", target="source"), PATH])
    assert candidates(again, NO_SCORES).equals(candidates(PATH, NO_SCORES))


def test_blocks_of_nodes_change_no_candidate(monkeypatch: pytest.MonkeyPatch):
    whole = candidates(PATH, NO_SCORES)
    monkeypatch.setattr("storage.queries.BLOCK_NODES", 2)
    assert candidates(PATH, NO_SCORES).equals(whole)


def test_candidates_of_chosen_nodes_are_the_same_as_among_all():
    nodes = pl.Series("node", [4, 0, 77])
    whole = by_node(candidates(PATH, NO_SCORES))
    assert by_node(candidates(PATH, NO_SCORES, nodes=nodes)) == {node: whole[node] for node in (0, 4)}
    shop = frame((0, 10), (1, 10), (1, 11), (2, 11))
    assert by_node(candidates(shop, NO_SCORES, bipartite=True, nodes=pl.Series([2]))) == {2: [10]}


def test_no_edge_gives_no_candidate():
    assert candidates(frame(), NO_SCORES).is_empty()
