from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
from ranked_logs import growing_log

from dyformer.evaluation.bootstrap import interval, node_resamples
from dyformer.evaluation.forecasts import best_partners as module
from dyformer.evaluation.forecasts.best_partners import (
    BUSIEST,
    PARTNERS_SCHEMA,
    PUBLISHED,
    best_partners,
    evaluated_nodes,
    partner_metrics,
    retrieved_links,
    retrieved_of,
    retrieved_table,
)
from dyformer.evaluation.protocols.prequential import PROTOCOL
from dyformer.evaluation.protocols.protocol import Result
from dyformer.evaluation.query_slices import KNOWN
from dyformer.evaluation.rows import pair_weights
from dyformer.evaluation.scored_queries import RankingTrial, scored_queries, to_table
from dyformer.experiments.methods import METHODS
from dyformer.graphs.snapshots import DynamicGraph, prefix
from dyformer.sampling.ranking_queries import FAMILIES, queries_to_tables, ranking_queries, step_pairs

GRAPH, STEP = growing_log(num_steps=7), 6
CONTACT = METHODS["Contact recency"]


def trial_of(graph: DynamicGraph = GRAPH) -> RankingTrial:
    queries = ranking_queries(graph, STEP, seed=0, num_per_family=4)
    return RankingTrial(graph=prefix(graph, STEP - 1), queries=queries, seed=0)


def partners_of(trial: RankingTrial) -> pl.DataFrame:
    score = CONTACT.fit_pairs(trial.past, trial.labelled)  # pyright: ignore[reportAttributeAccessIssue]
    return best_partners("Contact recency", trial, retrieved_of(trial), score)


def measured(graph: DynamicGraph, partners: pl.DataFrame):
    ends = [partners[end].to_numpy() for end in ("node", "partner")]
    everyone = np.arange(graph.snapshots[STEP - 1].num_nodes)
    resamples = node_resamples([*ends, everyone], num_resamples=50, generator=np.random.default_rng(0))
    return partner_metrics(partners, prefix(graph, STEP), resamples)["Contact recency", 0]


@pytest.mark.parametrize("kind", ["directed", "undirected", "two sides"])
def test_precision_and_recall_are_counted_from_the_links_of_the_step(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "NUM_BUSIEST", 5)
    monkeypatch.setattr(module, "NUM_DRAWN", 20)
    graph = replace(GRAPH, directed=kind == "directed")
    if kind == "two sides":
        graph = growing_log(num_steps=7, bipartite=True)
    partners = partners_of(trial_of(graph))
    assert partners.schema == PARTNERS_SCHEMA
    nodes = evaluated_nodes(prefix(graph, STEP - 1), seed=0)
    num_known = graph.snapshots[STEP - 2].num_nodes
    links = {
        pair
        for pair in zip(*(end_R.tolist() for end_R in step_pairs(graph, STEP)), strict=True)
        if max(pair) < num_known
    }
    both_ways = links | {pair[::-1] for pair in links}
    cells = measured(graph, partners)
    for part, node_A in ((KNOWN, nodes.known_A), (BUSIEST, nodes.busiest_A)):
        own = {row for row in partners.select("node", "partner").rows() if row[0] in node_A}
        true = {pair for pair in (links if kind == "directed" else both_ways) if pair[0] in node_A}
        precision, recall = (cells[name, PUBLISHED, part] for name in ("precision_at_10", "recall_at_10"))
        assert precision.value == pytest.approx(len(own & true) / len(own))
        assert precision.num == len(own)
        for k in (1, 2, 5):
            first = {row[:2] for row in partners.select("node", "partner", "rank").rows() if row[2] <= k} & own
            at_k = cells[f"precision_at_{k}", PUBLISHED, part]
            assert (at_k.value, at_k.num) == (pytest.approx(len(first & true) / len(first)), len(first))
        assert recall.value == pytest.approx(len(own & true) / len(true))
        assert recall.num == len(true)
    assert 0 < cells["precision_at_10", PUBLISHED, KNOWN].value < 1


def test_a_resample_counts_each_pair_as_often_as_both_of_its_ends():
    partners = partners_of(trial_of())
    resamples = node_resamples([np.arange(len(GRAPH.side_N))], num_resamples=6, generator=np.random.default_rng(0))
    cells = partner_metrics(partners, prefix(GRAPH, STEP), resamples)["Contact recency", 0]
    num_known = GRAPH.snapshots[STEP - 2].num_nodes
    source_R, target_R = step_pairs(GRAPH, STEP)
    links = {p for p in zip(source_R.tolist(), target_R.tolist(), strict=True) if max(p) < num_known}
    busiest = set(evaluated_nodes(prefix(GRAPH, STEP - 1), seed=0).busiest_A.tolist())
    listed = {(node, partner): rank for node, rank, partner in partners.select("node", "rank", "partner").rows()}
    for resample, weight_S in enumerate(resamples.weight_BS):
        times = dict(zip(resamples.node_S.tolist(), weight_S.tolist(), strict=True))
        for name, pairs, counted in (
            ("precision_at_2", [pair for pair, rank in listed.items() if rank <= 2], links),
            ("precision_at_10", list(listed), links),
            ("recall_at_10", list(links), set(listed)),
        ):
            weights = {pair: times[pair[0]] * times[pair[1]] for pair in pairs if pair[0] in busiest}
            came = sum(weight for pair, weight in weights.items() if pair in counted)
            assert cells[name, PUBLISHED, BUSIEST].value_B[resample] == came / sum(weights.values())


def test_each_node_has_its_ten_best_retrieved_partners():
    trial = trial_of()
    partners, retrieved = partners_of(trial), retrieved_of(trial)
    score = CONTACT.fit_pairs(trial.past, trial.labelled)  # pyright: ignore[reportAttributeAccessIssue]
    for node in np.unique(retrieved.node_R)[:6]:
        own = retrieved.partner_R[retrieved.node_R == node]
        values = score(np.full(len(own), node), own)
        best = [partner for _, partner in sorted(zip(-values, own.tolist(), strict=True))[:10]]
        assert partners.filter(node=node)["partner"].to_list() == best


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_partners_are_not_ranked_by_scores_that_are_not_finite(value: float):
    trial = trial_of()
    with pytest.raises(ValueError, match=r"own: (\d+) of \1 scores of step 6 are not finite"):
        best_partners("own", trial, retrieved_of(trial), lambda source_R, target_R: np.full(len(source_R), value))
    with pytest.raises(ValueError, match=r"own: found scores of shape \(1,\): expected \d+ scores of step 6"):
        best_partners("own", trial, retrieved_of(trial), lambda source_R, target_R: np.zeros(1))


def test_the_busiest_nodes_have_the_most_past_partners(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "NUM_BUSIEST", 4)
    history = prefix(GRAPH, STEP - 1)
    partners: dict[int, set[int]] = {}
    for snapshot in history.snapshots:
        for one, other in zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True):
            partners.setdefault(one, set()).add(other)
            partners.setdefault(other, set()).add(one)
    ranked = sorted(partners, key=lambda node: (-len(partners[node]), node))[:4]
    assert evaluated_nodes(history, seed=0).busiest_A.tolist() == sorted(ranked)


def test_drawn_nodes_have_a_link_and_follow_the_seed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "NUM_DRAWN", 6)
    history = prefix(GRAPH, STEP - 1)
    first, again, other = (evaluated_nodes(history, seed=seed).known_A.tolist() for seed in (0, 0, 1))
    assert first == again != other
    assert len(set(first)) == 6


def test_the_recall_of_the_first_stage_counts_links_between_known_nodes():
    trial = trial_of()
    table, graph = retrieved_table(retrieved_of(trial)), prefix(GRAPH, STEP)
    found, every = retrieved_links(table, graph, seed=0)
    assert retrieved_links(table.clear(), graph, seed=0) == (0, every)
    assert 0 < found <= every
    source_R, target_R = step_pairs(graph, STEP)
    num_known = graph.snapshots[STEP - 2].num_nodes
    assert every == len({p for p in zip(source_R.tolist(), target_R.tolist(), strict=True) if max(p) < num_known})


def test_a_node_without_a_link_is_not_drawn():
    history = prefix(GRAPH, STEP - 1)
    newest = history.snapshots[-1]
    with_lonely = replace(newest, num_nodes=newest.num_nodes + 1)
    lonely = replace(history, snapshots=(*history.snapshots[:-1], with_lonely))
    assert newest.num_nodes not in evaluated_nodes(lonely, seed=0).known_A


def counted_links(graph: DynamicGraph) -> set[tuple[int, int]]:
    num_known = graph.snapshots[STEP - 2].num_nodes
    source_R, target_R = step_pairs(graph, STEP)
    links = {p for p in zip(source_R.tolist(), target_R.tolist(), strict=True) if max(p) < num_known}
    return links if graph.directed else links | {pair[::-1] for pair in links}


@pytest.mark.parametrize("kind", ["directed", "undirected"])
def test_ends_of_links_that_are_no_queries_are_resampled_by_their_own_weights(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "NUM_BUSIEST", 10)
    monkeypatch.setattr(module, "NUM_DRAWN", 30)
    graph = replace(growing_log(num_nodes=200, num_steps=7, num_rows=900), directed=kind == "directed")
    queries = ranking_queries(graph, STEP, seed=0, num_per_family=1, max_queries=5)
    trial = RankingTrial(graph=prefix(graph, STEP - 1), queries=queries, seed=0)
    partners = partners_of(trial)
    tables = {
        "partners": partners,
        "rankings": to_table([scored_queries("Contact recency", trial, lambda source_S, target_S: target_S / 7)]),
        "retrieved": retrieved_table(retrieved_of(trial)),
    }
    drawn = queries_to_tables(queries)
    result = Result((STEP,), 0, tables.__getitem__, {**tables, **drawn}.__getitem__)
    log = Mock(dataset="mine", graph=lambda until, *, interactions: prefix(graph, until))
    rows = PROTOCOL.rows([result], log, ())["metrics"]

    links = counted_links(graph)
    nodes = evaluated_nodes(prefix(graph, STEP - 1), seed=0)
    of_drawn, of_busiest = (
        sorted(pair for pair in links if pair[0] in node_A.tolist()) for node_A in (nodes.known_A, nodes.busiest_A)
    )
    is_later_QC = queries.family_QC == FAMILIES.index("inductive")
    candidate_X = queries.candidate_QC[(queries.candidate_QC >= 0) & ~is_later_QC]
    others = {*queries.source_Q.tolist(), *queries.target_Q.tolist(), *candidate_X.tolist()}
    others |= {*partners["node"].to_list(), *partners["partner"].to_list()}
    linked = {node for pair in of_drawn + of_busiest for node in pair}
    assert linked - others  # without them, their weights would be those of other nodes
    resamples = node_resamples(
        [np.array(sorted(others | linked))],
        num_resamples=1000,
        generator=np.random.default_rng(0),
        later=[queries.candidate_QC[is_later_QC]],
    )
    times = dict(zip(resamples.node_S.tolist(), resamples.weight_BS.T.astype(np.int64), strict=True))
    listed = set(partners.select("node", "partner").rows())
    for part, own in ((KNOWN, of_drawn), (BUSIEST, of_busiest)):
        weight_LB = np.array([times[node] * times[partner] for node, partner in own])
        came_LB = weight_LB[[pair in listed for pair in own]]
        with np.errstate(invalid="ignore"):
            value_B = came_LB.sum(axis=0) / weight_LB.sum(axis=0)
        [row] = rows.filter(metric="recall_at_10", family=PUBLISHED, slice=part, step=str(STEP)).to_dicts()
        assert 0 < row["value"] < 1
        assert (row["low"], row["high"]) == pytest.approx(interval(value_B))


def test_a_node_that_was_not_resampled_has_no_weight():
    resamples = node_resamples([np.array([2, 5, 9])], num_resamples=4, generator=np.random.default_rng(0))
    assert pair_weights(resamples, np.array([9, 2]), np.array([5, 2])).shape == (4, 2)
    for node in (1, 3, 10):
        with pytest.raises(AssertionError, match="a node was not resampled"):
            pair_weights(resamples, np.array([2]), np.array([node]))
