import hashlib
import json
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from published_logs import published_events

from dyformer.datasets import DATASETS, Window
from dyformer.snapshots import DynamicGraph, Snapshot, build_snapshots, summary

WINDOWS = {name: DATASETS[name].window for name in ("uci", "yelp", "ml-10m", "snap-wikipedia")}
WINDOWS["rds"] = Window(rule="equal_time", count=100)


def edges_sha256(snapshot: Snapshot, name_N: list[int]) -> str:
    ends = [
        *zip(snapshot.source_E, snapshot.target_E, strict=True),
        *((node, node) for node in snapshot.self_loop_node_L),
    ]
    pairs = sorted(tuple(sorted((name_N[a], name_N[b]))) for a, b in ends)
    return hashlib.sha256("".join(f"{a} {b}\n" for a, b in pairs).encode()).hexdigest()


def reference_names(name: str, events: pl.DataFrame, ids: list[str], graph: DynamicGraph) -> list[int]:
    """What the reference calls each node of the graph (its `node_ids`)."""
    if name == "uci":
        return list(range(len(graph.node_N)))
    if name != "ml-10m":
        return [int(ids[node].split()[-1]) for node in graph.node_N]
    chicago = ZoneInfo("America/Chicago")
    wall = [datetime.fromtimestamp(t / 1e6, UTC).astimezone(chicago).replace(tzinfo=None) for t in events["time"]]
    order = sorted(range(len(wall)), key=wall.__getitem__)
    ends = [end for row in order for end in (events["source"][row], events["target"][row])]
    number = {node: index for index, node in enumerate(dict.fromkeys(ends))}
    return [number[node] for node in graph.node_N.tolist()]


@pytest.mark.parametrize("name", WINDOWS)
def test_published_counts_and_edges_are_met_exactly(name, shared_log):
    events, ids = published_events(name, shared_log(name))
    graph = build_snapshots(events, WINDOWS[name], DATASETS[name].time_unit)
    reference = json.loads(shared_log("reference").read_text())[name]["snapshots"]
    found = summary(graph).to_dicts()
    names = reference_names(name, events, ids, graph)
    assert [
        (
            row["step"] - 1,
            row["interactions"],
            row["edges"],
            row["self_loops"],
            row["active_nodes"],
            row["nodes_seen"],
            row["new_edges"],
            edges_sha256(snapshot, names),
        )
        for row, snapshot in zip(found, graph.snapshots, strict=True)
    ] == [
        (
            row["t"],
            row["interactions"],
            row["unique_undirected_edges"],
            row["self_loops"],
            row["active_nodes"],
            row["nodes_seen_so_far"],
            row["edges_never_seen_before"],
            row["edges_sha256"],
        )
        for row in reference
    ]
