"""The queries of benchmarks/event_vectors.py beside plain loops, and what later rows may change of them: nothing."""

import numpy as np
import polars as pl
import pytest
from benchmark_modules import benchmark_module

import dyformer
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.logs.planted import PlantedLog, planted_groups
from dyformer.scoring.vector_scores import OWN, prepare_vectors
from dyformer.streams.event_state import FEATURES

event_vectors, vector_uses = benchmark_module("event_vectors"), benchmark_module("vector_uses")

STEPS, ROWS = 9, 60  # of which steps 4 to 6 are fitted on, 7 is chosen on, 8 and 9 are measured on
NUM_NODES = 25
PLAIN_PRODUCT = len(FEATURES) + OWN.index("plain_product")


def graph_of(seed: int = 0, *, changed_from: int = STEPS + 1) -> DynamicGraph:
    """A log in which some rows share a moment; from one step on its rows are others."""
    draw, other = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    rows = []
    for step in range(STEPS):
        own = draw.integers(NUM_NODES, size=(ROWS, 2))
        if step + 1 >= changed_from:
            own = other.integers(NUM_NODES, size=(ROWS, 2))
        moment = 86_400 * step + 1_000 * (np.arange(ROWS) // 2) + 1
        rows += [(f"n{a}", f"n{b}", int(t)) for (a, b), t in zip(own.tolist(), moment, strict=True)]
    frame = pl.DataFrame(rows, schema=["source", "target", "time"], orient="row")
    return dyformer.read_log(frame, time_unit="s").snapshots("1d").dynamic


def scores_of(graph: DynamicGraph, until: int | None = None):
    """Vectors that hold the number of the last step that they may read."""

    def of(step: int):
        past = event_vectors.prefix(graph, step - 1)
        return prepare_vectors(np.full((len(past.node_N), 8), float(step - 1), dtype=np.float32), past)

    return of


def test_new_partners_are_first_links_of_nodes_that_are_known_from_an_earlier_moment():
    log = event_vectors.events_of(graph_of())
    rows = list(zip(log.source_E.tolist(), log.target_E.tolist(), log.time_E.tolist(), strict=True))
    expected = []
    for number, (source, target, time) in enumerate(rows):
        before = {node for a, b, t in rows if t < time for node in (a, b)}
        is_linked = any({a, b} == {source, target} for a, b, _ in rows[:number])
        expected.append(source != target and {source, target} <= before and not is_linked)
    assert 20 < sum(expected) < len(expected)
    np.testing.assert_array_equal(event_vectors.new_partners(log), expected)


def test_each_query_has_its_target_and_the_known_nodes_that_are_no_partners():
    graph = graph_of()
    log = event_vectors.events_of(graph)
    parts = event_vectors.queries_of(graph, scores_of(graph), 0)
    is_new_E = event_vectors.new_partners(log)
    for part, steps in zip(parts, ((4, 5, 6), (7,), (8, 9)), strict=True):
        event_G = [event for event in np.flatnonzero(is_new_E) if 1 + event // ROWS in steps]
        assert part.source_G.tolist() == log.source_E[event_G].tolist()
        assert part.target_G.tolist() == log.target_E[event_G].tolist()
        for index, event in enumerate(event_G):
            past = log.time_E < log.time_E[event]
            ends = np.concatenate([log.source_E[past], log.target_E[past]])
            others = np.concatenate([log.target_E[past], log.source_E[past]])
            source = log.source_E[event]
            left = set(ends.tolist()) - set(others[ends == source].tolist()) - {int(source)}
            assert part.groups.size_G[index] == len(left)
        step_R = np.sqrt(part.groups.row_RF[:, PLAIN_PRODUCT] / 8)  # the step up to which the vectors read
        is_known_R = np.isfinite(step_R)
        assert is_known_R.any()
        query_R = np.repeat(event_G, part.groups.size_G)
        np.testing.assert_array_equal(step_R[is_known_R].round(3), query_R[is_known_R] // ROWS)


@pytest.mark.parametrize("changed_from", [7, 8, 9])
def test_no_query_reads_a_later_step(changed_from: int):
    before, after = graph_of(), graph_of(changed_from=changed_from)
    parts = [event_vectors.queries_of(graph, scores_of(graph), 0) for graph in (before, after)]
    whole = {7: 1, 8: 2, 9: 2}[changed_from]  # parts that end before the change
    for own, other in zip(parts[0][:whole], parts[1][:whole], strict=True):
        np.testing.assert_array_equal(own.groups.row_RF, other.groups.row_RF)
    if changed_from == 9:
        is_new_E = event_vectors.new_partners(event_vectors.events_of(before))
        num_before = int(is_new_E[7 * ROWS : 8 * ROWS].sum())
        num_rows = int(parts[0][2].groups.size_G[:num_before].sum())
        assert num_rows
        np.testing.assert_array_equal(*(own[2].groups.row_RF[:num_rows] for own in parts))


def test_vectors_of_the_groups_raise_new_partners_and_those_of_chance_do_not():
    planted = PlantedLog(num_nodes=240, num_groups=4, num_weeks=7, num_interactions=140, following=0.95)
    graph, log_node_N = vector_uses.graph_of(planted)
    group_N = planted_groups(planted)[0][log_node_N]

    def values_of(vector_ND: np.ndarray) -> dict[str, float]:
        def scores(step: int):
            past = event_vectors.prefix(graph, step - 1)
            return prepare_vectors(vector_ND[: len(past.node_N)].astype(np.float32), past)

        return {name: value for name, value, *_ in event_vectors.measured(graph, scores, 0)}

    by_groups = values_of(np.eye(4)[group_N])
    by_chance = values_of(np.random.default_rng(0).normal(size=(len(group_N), 8)))
    assert by_groups["AUC, gain"] > 0.1
    assert by_groups["MRR, gain"] > 0.01
    assert by_groups["AUC, vectors"] > 0.8
    assert abs(by_chance["AUC, gain"]) < 0.05
