"""The tables of snapshots -> what is wrong with them, by SQL that shares nothing with the code that makes them."""

from collections.abc import Mapping

import duckdb
import polars as pl

SNAPSHOT_CHECKS = {
    "an edge has source < target": "select count(*) from edges where source >= target",
    "an edge is listed once in a step": (
        "select count(*) from (select 1 from edges group by step, source, target having count(*) > 1)"
    ),
    "a weight is at least 1 and finite": "select count(*) from edges where not (weight >= 1 and isfinite(weight))",
    "an edge's nodes are known at its step": (
        "select count(*) from edges left join steps using (step) "
        "where steps.step is null or source < 0 or target >= num_nodes"
    ),
    "steps count from 1 without a gap": (
        "select count(*) from (select step, row_number() over (order by step) as n from steps) where step <> n"
    ),
    # Neighbouring windows of equal count may share a time, so only their order is checked.
    "windows follow each other": (
        "select count(*) from steps a left join steps b on b.step = a.step + 1 "
        "where b.start_time < a.start_time or b.end_time < a.end_time or a.start_time > a.end_time"
    ),
    "nodes never become fewer": (
        "select count(*) from steps a join steps b on b.step = a.step + 1 where b.num_nodes < a.num_nodes"
    ),
    "interactions are the edges' weights and the self-loops": (
        "select count(*) from steps "
        "left join (select step, sum(weight) as weight from edges group by step) using (step) "
        "where num_interactions <> coalesce(weight, 0) + num_self_loops"
    ),
    "the nodes are those known at the last step": (
        "select abs(count(*) - (select max(num_nodes) from steps)) from nodes"
    ),
}


def snapshot_faults(snapshot_tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """Violated checks of the tables `edges`, `steps` and `nodes`, with the number of rows; empty for sound tables."""
    with duckdb.connect() as connection:
        for name in ("edges", "steps", "nodes"):
            connection.register(name, snapshot_tables[name])
        return faults_in(connection)


def faults_in(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Check the tables of a connection as `snapshot_faults` does."""
    found = {claim: _number(connection, query) for claim, query in SNAPSHOT_CHECKS.items()}
    return [f"violated: {claim} ({num_rows} rows)" for claim, num_rows in found.items() if num_rows]


def _number(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    (row,) = connection.execute(query).fetchall()
    return int(row[0] or 0)
