"""The planted rule: probabilities counted by hand, and a history of another log is refused."""

import numpy as np
import polars as pl
import pytest

from dyformer.experiments import planted_rule
from dyformer.experiments.planted_rule import PlantedRule
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.snapshots import build_snapshots
from dyformer.logs.planted import PLANTED, WEEK, PlantedLog, planted_groups, planted_rows
from dyformer.logs.time_windows import Window
from dyformer.sampling.ranking_queries import FAMILIES, ranking_queries
from dyformer.scoring.metrics import mean_ranks

SMALL = PlantedLog(
    num_nodes=12, num_groups=3, num_weeks=3, num_interactions=40, repeating=0.4, following=0.5, step=1, moving=0.5
)


def past_of(rows, until, num_interactions=SMALL.num_interactions):
    """Give the history of rows (week, source, target) with permanent numbers by first appearance, and the ids."""
    number = {}
    ends = [[number.setdefault(node, len(number)) for node in row[1:]] for row in rows]
    microseconds = [1_000_000 * (at * WEEK // num_interactions) for at in range(len(rows))]
    events = pl.DataFrame({"source": [a for a, _ in ends], "target": [b for _, b in ends], "time": microseconds})
    graph = build_snapshots(events, Window(rule="equal_time", length="7d"), "us")
    return prepare_graph(graph, until=until, config=GraphConfig()), number


def test_scores_are_the_probabilities_of_the_rule_by_those_of_a_candidate(monkeypatch):
    monkeypatch.setattr(planted_rule, "PLANTED", {"small": SMALL})
    monkeypatch.setattr(planted_rule, "NUM_PER_FAMILY", 3)
    rows = list(planted_rows(SMALL))
    past, number = past_of(rows, until=2)
    score = PlantedRule().fit_pairs(past, [])
    before, group = planted_groups(SMALL)[1:].tolist()
    assert group != before
    past_rows = rows[: 2 * SMALL.num_interactions]
    partners = {node: [(b if a == node else a) for _, a, b in past_rows if node in (a, b)] for node in range(12)}

    def probability(source, target):
        near = [node for node in range(12) if group[node] == (group[source] + 1) % 3]
        repeating = 0.4 * partners[source][-4:].count(target) / len(partners[source][-4:])
        return repeating + (0.5 / len(near) if target in near else 0) + 0.1 / 12

    for source in number:
        distinct = set(partners[source])
        for target in number:
            by_target = sum(probability(other, target) for other in range(12)) / 12
            candidates = 3 * (2 / 12 + by_target) + (min(1, 3 / len(distinct)) if target in distinct else 0)
            pair = (np.array([number[node]]) for node in (source, target))
            assert score(*pair) == pytest.approx(probability(source, target) / candidates, rel=2e-6)


def test_only_the_sources_of_the_season_decide_how_often_a_node_is_a_target(monkeypatch):
    log = PlantedLog(num_nodes=12, num_groups=2, num_weeks=4, num_interactions=40, following=0.9, num_seasons=2)
    monkeypatch.setattr(planted_rule, "PLANTED", {"small": log})
    past, number = past_of(list(planted_rows(log)), until=2)
    group = planted_groups(log)[2].tolist()
    probability_NN, source_S = planted_rule._probabilities(past, log, np.array(list(number)))
    ids = list(number)
    assert sorted(ids[node] for node in source_S) == [node for node in sorted(ids) if group[node] == 0]
    np.testing.assert_allclose(probability_NN[:, [ids.index(node) for node in range(12)]].sum(axis=1), 1)


def test_the_ratio_ranks_better_than_the_probability_alone_and_than_other_groups(monkeypatch):
    log = PLANTED["generated-communities"]
    graph, _ = past_of(list(planted_rows(log)), 10, log.num_interactions)
    queries = ranking_queries(graph.history, 9, seed=0)
    among_QC = (queries.family_QC >= 0) & (queries.family_QC != FAMILIES.index("inductive"))
    past = prepare_graph(graph.history, until=8, config=GraphConfig())

    def mrr():
        score = PlantedRule().fit_pairs(past, [])
        of_candidates_QC = score(queries.source_Q[:, None], np.maximum(queries.candidate_QC, 0))
        return np.mean(1 / mean_ranks(score(queries.source_Q, queries.target_Q), of_candidates_QC, among_QC))

    ratio = mrr()
    monkeypatch.setattr(planted_rule, "NUM_PER_FAMILY", 1e9)  # all candidates alike, so that p alone decides
    assert ratio > mrr() + 0.01
    monkeypatch.undo()
    monkeypatch.setattr(planted_rule, "planted_groups", lambda planted: planted_groups(planted, seed=1))
    assert ratio > 2 * mrr()


def test_a_history_of_another_log_is_refused():
    past, _ = past_of([(0, 1, 2)] * 80 + [(0, 1, 3)] * 40, until=2)
    with pytest.raises(ValueError, match="expected one of generated-communities, generated-roles"):
        PlantedRule().fit_pairs(past, [])
