"""The planted rule: probabilities counted by hand, and a history of another log is refused."""

import numpy as np
import polars as pl
import pytest

from dyformer.baselines import planted_rule
from dyformer.baselines.planted_rule import NotPlanted, PlantedRule
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.snapshots import build_snapshots
from dyformer.logs.planted import WEEK, PlantedLog, planted_groups, planted_rows
from dyformer.logs.time_windows import Window

SMALL = PlantedLog(
    num_nodes=12, num_groups=3, num_weeks=3, num_interactions=40, repeating=0.4, following=0.5, step=1, moving=0.5
)


def past_of(rows, until):
    """Give the history of rows (week, source, target) with permanent numbers by first appearance, and the ids."""
    number = {}
    ends = [[number.setdefault(node, len(number)) for node in row[1:]] for row in rows]
    microseconds = [1_000_000 * (at * WEEK // SMALL.num_interactions) for at in range(len(rows))]
    events = pl.DataFrame({"source": [a for a, _ in ends], "target": [b for _, b in ends], "time": microseconds})
    graph = build_snapshots(events, Window(rule="equal_time", length="7d"), "us")
    return prepare_graph(graph, until=until, config=GraphConfig()), number


def test_scores_are_the_probabilities_of_the_rule(monkeypatch):
    monkeypatch.setattr(planted_rule, "PLANTED", {"small": SMALL})
    rows = list(planted_rows(SMALL))
    past, number = past_of(rows, until=2)
    score = PlantedRule().fit_pairs(past, [])
    before, group = planted_groups(SMALL)[1:].tolist()
    assert group != before
    past_rows = rows[: 2 * SMALL.num_interactions]
    for source in number:
        partners = [(b if a == source else a) for _, a, b in past_rows if source in (a, b)][-4:]
        for target in number:
            near = [node for node in range(12) if group[node] == (group[source] + 1) % 3]
            expected = 0.4 * partners.count(target) / len(partners) + 0.1 / 12
            expected += 0.5 / len(near) if target in near else 0
            pair = (np.array([number[node]]) for node in (source, target))
            assert score(*pair) == pytest.approx(expected)


def test_a_history_of_another_log_is_refused():
    past, _ = past_of([(0, 1, 2)] * 80 + [(0, 1, 3)] * 40, until=2)
    with pytest.raises(NotPlanted, match="expected one of generated-communities, generated-roles"):
        PlantedRule().fit_pairs(past, [])
