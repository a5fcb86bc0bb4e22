"""Each fault of the tables of snapshots is found and named."""

import polars as pl
import pytest

from dyformer.graphs.disk_snapshots import snapshot_faults
from dyformer.graphs.snapshots import build_snapshots, to_tables
from dyformer.logs.time_windows import Window


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
