"""A log of 10M rows, text in no order of time -> numbered events in time order, against duckdb and pandas.

Every side reads the same file, drops all but the first of exact duplicates, and orders the rows by time and then by
line. It numbers the nodes 0, 1, ... by first appearance, source before target.
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

import measure
import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.graphs.windows import time_order
from dyformer.logs.events import read_events
from dyformer.logs.plan import Declared
from dyformer.logs.raw_file import RawFile
from dyformer.logs.sniffing import sniff_plan
from storage.events.rows import NODE_COLUMNS, numbered

NUM_ROWS = 10_000_000
NUM_NODES = 1_000_000
DUPLICATES = 0.02
START, SECONDS = 1_600_000_000, 2 * 365 * 86_400
Output = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[str]]
"""Source, target and time in microseconds of each event; id of each node."""


def write_log(path: Path, *, num_rows: int = NUM_ROWS, seed: int = 0) -> None:
    """Write a log with power-law ends, times drawn evenly over two years, and copies of a few of its rows."""
    generator = np.random.default_rng(seed)
    cumulative_N = np.cumsum(np.arange(1, NUM_NODES + 1) ** (-2 / 3))
    id_N = generator.permutation(NUM_NODES)
    end_2R = id_N[np.searchsorted(cumulative_N / cumulative_N[-1], generator.random((2, num_rows)))]
    time_R = generator.integers(START, START + SECONDS, num_rows)
    row_R = np.arange(num_rows)
    again_R = generator.random(num_rows) < DUPLICATES
    row_R[again_R] = generator.integers(0, num_rows, int(again_R.sum()))
    columns = {"source": end_2R[0][row_R], "target": end_2R[1][row_R], "time": time_R[row_R]}
    pl.DataFrame(columns).write_csv(path)


def ours(path: Path) -> Output:
    """Read, number and order the log by the functions that `dyformer ingest` calls."""
    files = [RawFile(name=path.name, open=partial(path.open, "rb"))]
    plan = sniff_plan(files, Declared(time_unit="s"))
    result = read_events(files, plan, drop_duplicates=True)
    rows, nodes = numbered(result.events, pl.DataFrame(schema=NODE_COLUMNS), 0)
    del result
    rows = rows.select("source_node", "target_node", "time")
    rows = rows[time_order(rows["time"].to_numpy())]
    return *(column.to_numpy() for column in rows), nodes["id"].to_list()


def with_duckdb(path: Path) -> Output:
    """Do the same in SQL: one sort, one grouping, two joins."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        connection.execute(
            f"""
            CREATE TABLE log AS SELECT row_number() OVER () AS line, * FROM read_csv('{path}', header = true,
                columns = {{'source': 'BIGINT', 'target': 'BIGINT', 'time': 'BIGINT'}});
            CREATE TABLE events AS
                SELECT source, target, time, row_number() OVER (ORDER BY time, line) AS place
                FROM (SELECT source, target, time, min(line) AS line FROM log GROUP BY ALL);
            CREATE TABLE nodes AS
                SELECT id, row_number() OVER (ORDER BY min(place)) - 1 AS node
                FROM (SELECT source AS id, 2 * place AS place FROM events
                      UNION ALL SELECT target, 2 * place + 1 FROM events)
                GROUP BY id;
            """
        )
        rows = connection.execute(
            """
            SELECT s.node AS source, t.node AS target, time * 1_000_000 AS time
            FROM events JOIN nodes s ON s.id = events.source JOIN nodes t ON t.id = events.target ORDER BY place
            """
        ).fetchnumpy()
        ids = connection.execute("SELECT id::VARCHAR AS id FROM nodes ORDER BY node").fetchnumpy()["id"].tolist()
    return rows["source"], rows["target"], rows["time"], ids


def with_pandas(path: Path) -> Output:
    """Do the same with pandas: factorize numbers the ids by first appearance."""
    import pandas as pd

    log = pd.read_csv(path, dtype="int64").drop_duplicates().sort_values("time", kind="stable")
    number_S, id_N = pd.factorize(log[["source", "target"]].to_numpy().ravel())
    return number_S[0::2], number_S[1::2], log["time"].to_numpy() * 1_000_000, id_N.astype(str).tolist()


def check_equal(outputs: dict[str, Output]) -> None:
    """Raise where a side differs from the first one."""
    (first, expected), *others = outputs.items()
    for name, output in others:
        for one, other in zip(expected[:3], output[:3], strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"{first} and {name} differ")
        assert expected[3] == output[3], f"the ids of {first} and {name} differ"


def main() -> None:
    """Check, time and evaluate all sides on one log."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        write_log(path)
        outputs = {"dyformer": ours(path), "duckdb": with_duckdb(path), "pandas": with_pandas(path)}
        check_equal(outputs)
        print(f"identical output: {len(outputs['dyformer'][0]):,} events, {len(outputs['dyformer'][3]):,} nodes")
        outputs.clear()
        jobs = {
            "dyformer": partial(ours, path),
            "duckdb": partial(with_duckdb, path),
            "pandas": partial(with_pandas, path),
        }
        seconds = measure.cpu_seconds(jobs)
        for name, value in measure.medians(seconds).items():
            print(f"{name}: {value:.2f} s, {NUM_ROWS / value / 1e6:.2f} M rows/s")
        peak = measure.peak_mib(__file__, str(path))
    measure.verdict("ingest-10m-vs-duckdb", measure.ratios(seconds["duckdb"], seconds["dyformer"]), 1.7)
    measure.verdict("ingest-10m-vs-pandas", measure.ratios(seconds["pandas"], seconds["dyformer"]), 3.5)
    measure.verdict("ingest-10m-peak", peak, 1024, at_most=True, unit="MiB")


if __name__ == "__main__":
    if len(sys.argv) > 1:  # in a process of its own, whose peak memory is measured
        ours(Path(sys.argv[1]))
    else:
        main()
