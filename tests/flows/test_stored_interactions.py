"""The interactions that are read from the event table are those that `build_snapshots` makes of the same log."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dyformer.graphs.snapshots import build_snapshots, interactions_of, prefix
from dyformer.logs.time_windows import Window
from flows.tasks import snapshots as tasks
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots, open_snapshots
from storage.artifacts.artifact import write_artifact
from storage.bytes import files
from storage.events import scratch_database
from storage.events.table import read_events
from storage.layout import Layout


def write_log(path: Path, *, seed: int, num_rows: int = 400) -> str:
    """Rows in no order of time, many of one moment, with weights and self-loops."""
    generator = np.random.default_rng(seed)
    ends = generator.integers(0, 30, (num_rows, 2))
    times = 1_600_000_000 + generator.integers(0, 20, num_rows) * 43_200
    weights = generator.integers(0, 5, num_rows) / 4
    rows = [f"{a},{b},{t},{w}" for (a, b), t, w in zip(ends.tolist(), times, weights, strict=True)]
    path.write_text("\n".join(["source,target,time,weight", *rows]) + "\n")
    return str(path)


@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])
@pytest.mark.parametrize("window", ["36h", "calendar 1w", "2d trim 3d 2d", "7 equal", "5 equal trim 2d 3d"])
def test_stored_interactions_equal_those_of_the_log(
    window: str, on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setattr(scratch_database, "is_large", lambda *_: on_disk)
    for seed in (1, 2):
        log = write_log(tmp_path / f"{seed}.csv", seed=seed)
        ingest_log("mine", {"log": [log], "time_unit": "s", "window": window}, show=lambda text: None)
    opened = open_snapshots(make_snapshots("mine"))
    ingest_log("mine", {"log": [write_log(tmp_path / "3.csv", seed=3)]}, show=lambda text: None)  # not of this version
    events = read_events(Layout.from_environment(), "mine", opened.version)
    graph = build_snapshots(events, Window.parse(window), "s")
    assert len(set(interactions_of(graph).weight_R.tolist())) == 5
    for until in range(1, graph.num_steps + 1):
        found, expected = opened.graph(until, interactions=True), prefix(graph, until)
        for name, value_R in vars(interactions_of(expected)).items():
            assert_array_equal(vars(interactions_of(found))[name], value_R, err_msg=name)
    assert opened.graph(1).interactions is None


@pytest.mark.parametrize(
    ("declared", "directed"), [({}, True), ({"directed": True}, True), ({"directed": False}, False)]
)
def test_graphs_are_directed_unless_declared_otherwise(
    declared: dict, directed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    log = write_log(tmp_path / "log.csv", seed=1)
    ingest_log("mine", {"log": [log], "time_unit": "s", "window": "5 equal", **declared}, show=lambda text: None)
    graph = open_snapshots(make_snapshots("mine")).graph(3)
    assert graph.directed is directed
    assert prefix(graph, 2).directed is directed


@pytest.mark.parametrize("kinds", [("sym", ""), ("", "sym"), ("asym", "sym")])
def test_the_konect_header_of_the_first_file_says_whether_a_log_is_directed(
    kinds: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    for number, kind in enumerate(kinds):
        log = tmp_path / f"{number}.txt"
        rows = [f"{row % 7} {row % 5 + 1} 1 {10**9 + 100 * number + row}" for row in range(60)]
        log.write_text("\n".join([*([f"% {kind} unweighted"] if kind else []), *rows, ""]))
        ingest_log("mine", {"log": [str(log)], "time_unit": "s", "window": "20s"}, show=lambda text: None)
        assert open_snapshots(make_snapshots("mine")).directed is (kinds[0] != "sym")


def test_a_process_reads_snapshots_and_their_rows_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    log = write_log(tmp_path / "log.csv", seed=1)
    ingest_log("mine", {"log": [log], "time_unit": "s", "window": "5 equal"}, show=lambda text: None)
    address, reads = make_snapshots("mine"), []
    for name in ("from_tables", "interactions_behind"):
        function = getattr(tasks, name)
        monkeypatch.setattr(tasks, name, lambda *given, f=function, n=name: (reads.append(n), f(*given))[1])
    for until in (5, 3, 4, 3):
        assert open_snapshots(address).graph(until).num_steps == until
        assert interactions_of(open_snapshots(address).graph(until, interactions=True)).position_R.max() < until
    assert reads == ["from_tables", "interactions_behind"]
    ingest_log("mine", {"log": [write_log(tmp_path / "2.csv", seed=2)]}, show=lambda text: None)
    assert open_snapshots(make_snapshots("mine")).graph(5).snapshots[0].num_interactions == 160
    assert reads == ["from_tables", "interactions_behind", "from_tables"]


def test_a_task_opens_the_manifest_of_its_snapshots_once_and_reads_what_replaces_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    log = write_log(tmp_path / "log.csv", seed=1)
    ingest_log("mine", {"log": [log], "time_unit": "s", "window": "5 equal"}, show=lambda text: None)
    address, reads, read = make_snapshots("mine"), [], files.read_bytes
    monkeypatch.setattr(files, "read_bytes", lambda location: (reads.append(location), read(location))[1])
    snapshots = open_snapshots(address)
    assert snapshots.graph(5).num_steps == 5
    assert snapshots.directed
    snapshots.lineage("drift", until=5, settings={})
    read_names = [location.rpartition("/")[2] for location in reads if location.startswith(address)]
    assert read_names == ["manifest.json", "steps.parquet", "edges.parquet", "steps.parquet", "nodes.parquet"]
    artifact = snapshots.artifact
    few = {name: table.head(3) if name == "steps" else table for name, table in artifact.tables().items()}
    write_artifact(address, few, replace(artifact.lineage, code_version="another"))
    assert open_snapshots(address).num_steps == 3
    assert (snapshots.num_steps, snapshots.graph(5).num_steps) == (5, 5)


def test_a_store_beside_that_of_the_environment_is_read_and_written_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "own"))
    other = Layout(str(tmp_path / "3_snapshots" / "other"))
    log = write_log(tmp_path / "log.csv", seed=1)
    reading = {"log": [log], "time_unit": "s", "window": "5 equal"}
    ingest_log("mine", reading, show=lambda text: None, layout=other)
    opened = open_snapshots(make_snapshots("mine", layout=other))
    assert opened.layout == other
    assert len(interactions_of(opened.graph(2, interactions=True)).time_R) == 160
    assert not (tmp_path / "own").exists()
    ingest_log("mine", reading, show=lambda text: None)
    assert open_snapshots(make_snapshots("mine")).layout == Layout(str(tmp_path / "own"))
