from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from ranked_logs import growing_log
from scipy.stats import chisquare
from toy_graphs import toy_graph

from dyformer.graphs.snapshots import DynamicGraph, prefix
from dyformer.sampling.ranking_queries import (
    FAMILIES,
    RankingQueries,
    queries_from_tables,
    queries_to_tables,
    ranking_queries,
)

NUM_STEPS, STEP = 5, 3
DRAWN_BEFORE = {
    "historical": (),
    "active": ("historical",),
    "typed": ("historical", "active"),
    "random": ("historical", "active", "typed"),
    "inductive": (),
}


def rows_of(graph: DynamicGraph, first: int, last: int) -> list[tuple[int, int]]:
    """The ordered pairs of the interactions of some steps, read plainly from the time of each."""
    rows = graph.interactions
    assert rows is not None
    inside = (rows.time_R >= first - 1) & (rows.time_R < last)
    pairs = zip(rows.source_R[inside].tolist(), rows.target_R[inside].tolist(), strict=True)
    return [(source, target) for source, target in pairs if source != target]


def both_ways(pairs: list[tuple[int, int]]) -> set[tuple[int, int]]:
    return set(pairs) | {(target, source) for source, target in pairs}


def allowed(graph: DynamicGraph, family: str, source: int) -> set[int]:
    """The nodes that a family may draw for a source, from the definition."""
    num_known = graph.snapshots[STEP - 2].num_nodes
    rows, ways = rows_of(graph, STEP, STEP), (lambda pairs: set(pairs)) if graph.directed else both_ways
    past, later = rows_of(graph, 1, STEP - 1), rows_of(graph, STEP + 1, NUM_STEPS)
    links = {pair for pair in ways(rows) if max(pair) < num_known}
    bipartite = bool(graph.side_N.any())
    other_side = {node for node in range(num_known) if graph.side_N[node] != graph.side_N[source]}
    possible = other_side if bipartite else {target for _, target in ways(past + rows)}
    nodes = {
        "random": set(range(num_known)),
        "typed": possible,
        "active": {target for _, target in links} & (other_side if bipartite else set(range(num_known))),
        "historical": {target for one, target in both_ways(past) - both_ways(rows) if one == source},
        "inductive": {target for one, target in ways(later) - both_ways(past + rows) if one == source},
    }[family]
    return {node for node in nodes if node < num_known and node != source and (source, node) not in links}


def candidates(queries: RankingQueries, query: int, family: str) -> list[int]:
    chosen = queries.family_QC[query] == FAMILIES.index(family)
    return queries.candidate_QC[query][chosen].tolist()


LOGS = {
    "one side": growing_log(),
    "two sides": growing_log(bipartite=True),
    "undirected": growing_log(directed=False),
    "undirected, two sides": growing_log(bipartite=True, directed=False),
}


@pytest.mark.parametrize("name", LOGS)
def test_queries_are_the_distinct_links_between_known_nodes(name: str):
    graph = LOGS[name]
    queries = ranking_queries(graph, STEP, seed=0)
    found = list(zip(queries.source_Q.tolist(), queries.target_Q.tolist(), strict=True))
    num_known = graph.snapshots[STEP - 2].num_nodes
    rows, past = rows_of(graph, STEP, STEP), both_ways(rows_of(graph, 1, STEP - 1))
    if graph.directed:
        links = set(rows)
        assert found == sorted(pair for pair in links if max(pair) < num_known)
    else:
        links = {(min(pair), max(pair)) for pair in rows}
        assert found == sorted(found)
        assert sorted(tuple(sorted(pair)) for pair in found) == sorted(p for p in links if max(p) < num_known)
    num_unknown = Counter(sum(end >= num_known for end in pair) for pair in links)
    assert queries.num_links_3 == (num_unknown[0], num_unknown[1], num_unknown[2])
    assert queries.coverage == len(found) / len(links)
    assert 0 < queries.coverage < 1
    assert queries.new_Q.tolist() == [pair not in past for pair in found]
    assert queries.new_Q.any()
    assert not queries.new_Q.all()


@pytest.mark.parametrize("num_per_family", [2, 6, 50])
@pytest.mark.parametrize("name", LOGS)
def test_candidates_are_those_of_the_definition(name: str, num_per_family: int):
    graph = LOGS[name]
    queries = ranking_queries(graph, STEP, seed=1, num_per_family=num_per_family)
    assert queries.candidate_QC.shape == (len(queries.source_Q), 5 * num_per_family)
    assert ((queries.candidate_QC == -1) == (queries.family_QC == -1)).all()
    used = set()
    for query, source in enumerate(queries.source_Q.tolist()):
        for family in FAMILIES:
            found = candidates(queries, query, family)
            before = {node for other in DRAWN_BEFORE[family] for node in candidates(queries, query, other)}
            possible = allowed(graph, family, source) - before
            assert len(found) == len(set(found)) == min(num_per_family, len(possible)), (family, source)
            assert set(found) <= possible, (family, source)
            used |= {family} if found else set()
    assert used == set(FAMILIES) or num_per_family == 50  # the last families find no node left


def test_families_are_columns_in_their_order_and_padding_comes_last():
    queries = ranking_queries(LOGS["one side"], STEP, seed=0, num_per_family=8)
    for index, family_Q8 in enumerate(np.split(queries.family_QC, 5, axis=1)):
        assert set(np.unique(family_Q8)) <= {-1, index}
        assert (np.diff((family_Q8 < 0).astype(int), axis=1) >= 0).all()


def hub_graph() -> DynamicGraph:
    """At step 2, node 0 links to node 1; nodes 2 .. 7 link once, twice, ... to one of the nodes 8 .. 11."""
    step = [(0, 1), *[(2, 8), (3, 9), (4, 9), (5, 10), (6, 10), (7, 10), (2, 11), (3, 11), (4, 11), (5, 11)]]
    return toy_graph([(node, node + 1) for node in range(11)], step)


@pytest.mark.parametrize("num", [1, 2])
def test_active_candidates_are_drawn_as_often_as_they_receive_links(num: int):
    graph, drawn, expected = hub_graph(), Counter(), Counter()
    generator = np.random.default_rng(0)
    for seed in range(800):
        queries = ranking_queries(graph, 2, seed=seed, num_per_family=num, families=("active",))
        drawn.update(candidates(queries, 0, "active"))  # node 0 comes first; its own target, 1, is left out
        expected.update(generator.choice([8, 9, 10, 11], size=num, replace=False, p=[0.1, 0.2, 0.3, 0.4]).tolist())
    assert set(drawn) == {8, 9, 10, 11}
    fractions = [drawn[node] / 800 for node in (8, 9, 10, 11)]
    np.testing.assert_allclose(fractions, [expected[node] / 800 for node in (8, 9, 10, 11)], atol=0.08)


def test_exact_draws_have_the_distribution_of_the_rejected_ones(monkeypatch: pytest.MonkeyPatch):
    from dyformer.sampling import ranking_queries as module

    graph, drawn = hub_graph(), Counter()
    monkeypatch.setattr(module, "_first_of_row", lambda node_QX: np.zeros(node_QX.shape, dtype=np.bool_))
    for seed in range(800):
        drawn.update(
            candidates(ranking_queries(graph, 2, seed=seed, num_per_family=1, families=("active",)), 0, "active")
        )
    assert chisquare([drawn[node] for node in (8, 9, 10, 11)], [80, 160, 240, 320]).pvalue > 1e-3


@pytest.mark.parametrize("directed", [True, False])
def test_typed_candidates_of_a_log_with_one_side_were_a_target(directed: bool):
    """Nodes 0 and 5 .. 8 only send, and node 4 receives its first link in the step itself."""
    log = toy_graph([(0, 1), (0, 2), (0, 3), *[(node, 1) for node in range(4, 9)]], [(0, 1), (5, 4)])
    drawn = {}
    for family in ("random", "typed"):
        queries = ranking_queries(replace(log, directed=directed), 2, seed=0, families=(family,))
        drawn[family] = [set(candidates(queries, query, family)) for query in range(2)]
    assert drawn["random"][0] == {2, 3, 4, 5, 6, 7, 8}
    if directed:
        assert drawn["typed"] == [{2, 3, 4}, {1, 2, 3}]  # of the queries (0, 1) and (5, 4)
    else:
        assert drawn["typed"] == drawn["random"]


@pytest.mark.parametrize("family", ["random", "typed", "historical"])
def test_other_families_are_uniform(family: str):
    graph, drawn = LOGS["one side"], Counter()
    source = int(ranking_queries(graph, STEP, seed=0).source_Q[0])
    for seed in range(600):
        queries = ranking_queries(graph, STEP, seed=seed, num_per_family=1, families=(family,))
        drawn.update(candidates(queries, 0, family))
    nodes = allowed(graph, family, source)
    assert set(drawn) == nodes
    assert len(nodes) > 2
    assert chisquare([drawn[node] for node in nodes]).pvalue > 1e-3


def test_later_steps_change_the_inductive_family_alone():
    graph = LOGS["one side"]
    whole, past = (ranking_queries(each, STEP, seed=3) for each in (graph, prefix(graph, STEP)))
    others_QC = whole.family_QC != FAMILIES.index("inductive")
    assert others_QC.any()
    np.testing.assert_array_equal(whole.candidate_QC[others_QC], past.candidate_QC[others_QC])
    np.testing.assert_array_equal(whole.target_Q, past.target_Q)
    assert (past.family_QC != FAMILIES.index("inductive")).all()
    assert (whole.family_QC == FAMILIES.index("inductive")).any()


def test_same_seed_gives_the_same_candidates_and_another_seed_others():
    first, again, other = (ranking_queries(LOGS["one side"], STEP, seed=seed).candidate_QC for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_a_large_step_has_a_sample_of_its_links_as_queries():
    graph = LOGS["one side"]
    whole = ranking_queries(graph, STEP, seed=0)
    few = ranking_queries(graph, STEP, seed=0, max_queries=9)
    pairs = list(zip(few.source_Q.tolist(), few.target_Q.tolist(), strict=True))
    assert len(pairs) == 9
    assert pairs == sorted(pairs)
    assert set(pairs) < set(zip(whole.source_Q.tolist(), whole.target_Q.tolist(), strict=True))
    assert few.num_links_3 == whole.num_links_3
    links = set(rows_of(graph, STEP, STEP))
    found = {(s, c) for s, row in zip(few.source_Q.tolist(), few.candidate_QC.tolist(), strict=True) for c in row}
    assert not found & links  # links that are no query are no negatives either
    other = ranking_queries(graph, STEP, seed=1, max_queries=9)
    assert few.source_Q.tolist() != other.source_Q.tolist()


def test_pairs_are_distinct_and_lead_back_to_queries_and_candidates():
    queries = ranking_queries(LOGS["two sides"], STEP, seed=0)
    pairs = queries.pairs
    found = list(zip(pairs.source_S.tolist(), pairs.target_S.tolist(), strict=True))
    assert found == sorted(set(found))
    np.testing.assert_array_equal(pairs.target_S[pairs.position_Q], queries.target_Q)
    np.testing.assert_array_equal(pairs.source_S[pairs.position_Q], queries.source_Q)
    valid_QC = queries.candidate_QC >= 0
    np.testing.assert_array_equal(pairs.target_S[pairs.position_QC][valid_QC], queries.candidate_QC[valid_QC])
    assert (pairs.source_S[pairs.position_QC] == queries.source_Q[:, None]).all()
    assert set(found) == {
        (source, target)
        for source, true, row in zip(queries.source_Q, queries.target_Q, queries.candidate_QC, strict=True)
        for target in [true, *row[row >= 0]]
    }


@pytest.mark.parametrize("step", [2, STEP])
def test_queries_survive_their_tables(step: int):
    queries = ranking_queries(LOGS["undirected"], step, seed=0)
    back = queries_from_tables(queries_to_tables(queries))
    for name, value in vars(queries).items():
        np.testing.assert_array_equal(vars(back)[name], value, err_msg=name)
    empty = queries_to_tables(ranking_queries(toy_graph([(0, 1), (1, 2)], []), 2, seed=0))
    assert len(queries_from_tables(empty).source_Q) == 0


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch):
    from dyformer.sampling import ranking_queries as module

    whole = ranking_queries(LOGS["one side"], STEP, seed=0, num_per_family=30)
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 50)
    np.testing.assert_array_equal(
        ranking_queries(LOGS["one side"], STEP, seed=0, num_per_family=30).candidate_QC, whole.candidate_QC
    )


def test_coin_decides_the_source_of_an_undirected_link():
    graph = LOGS["undirected, two sides"]
    sides = [graph.side_N[ranking_queries(graph, STEP, seed=seed).source_Q].mean() for seed in range(20)]
    assert 0.4 < np.mean(sides) < 0.6


def test_step_without_links_has_no_queries():
    queries = ranking_queries(toy_graph([(0, 1), (1, 2)], []), 2, seed=0)
    assert queries.candidate_QC.shape == (0, 100)
    assert np.isnan(queries.coverage)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"families": ("easy",)}, "families easy: expected some of random"),
        ({"families": ()}, "families none"),
        ({"num_per_family": 0}, "0 candidates of each family"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        ranking_queries(LOGS["one side"], STEP, seed=0, **arguments)


def test_graph_without_interactions_is_refused():
    with pytest.raises(ValueError, match="interactions"):
        ranking_queries(replace(LOGS["one side"], interactions=None), STEP, seed=0)
