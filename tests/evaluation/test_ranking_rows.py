from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from ranked_logs import growing_log
from scipy.stats import rankdata
from sklearn.metrics import average_precision_score, roc_auc_score
from toy_graphs import toy_graph

from dyformer.evaluation.bootstrap import NodeResamples
from dyformer.evaluation.query_slices import query_slices
from dyformer.evaluation.rows import METRICS_SCHEMA, metric_rows
from dyformer.evaluation.scored_queries import ScoredQueries, query_log_rows, query_resamples, ranks_of, step_metrics
from dyformer.graphs.snapshots import interactions_of, prefix
from dyformer.sampling.ranking_queries import FAMILIES, RankingQueries, ranking_queries

GRAPH = growing_log(num_steps=6, num_rows=90)
QUERIES = {step: ranking_queries(GRAPH, step, seed=0, num_per_family=8) for step in (4, 5)}


def scored(queries: RankingQueries, method: str, kind: str = "random", seed: int = 0) -> ScoredQueries:
    pairs = queries.pairs
    score_S = np.random.default_rng([len(method), queries.step]).integers(12, size=len(pairs.source_S)) / 2
    if kind != "random":
        score_S[:] = 0
        score_S[pairs.position_Q] = {"constant": 0, "oracle": 1, "reversed": -1}[kind]
    return ScoredQueries(method=method, seed=seed, queries=queries, score_S=score_S)


def rows_of(*methods: tuple[str, str], baselines: tuple[str, ...] = ()) -> pl.DataFrame:
    resamples = query_resamples(list(QUERIES.values()), seed=0)
    steps = {
        step: step_metrics([scored(queries, *method) for method in methods], GRAPH, resamples)
        for step, queries in QUERIES.items()
    }
    return metric_rows(steps, "mine", protocol="prequential", baselines=baselines)


def value(rows: pl.DataFrame, **where: object) -> float:
    return rows.filter(**{"slice": "known", **where})["value"].item()


def plain_rank(each: ScoredQueries, query: int, families: tuple[str, ...]) -> float:
    """The mean rank of the true target among the candidates of some families, from the definition."""
    queries = each.queries
    score = dict(zip(zip(queries.pairs.source_S, queries.pairs.target_S, strict=True), each.score_S, strict=True))
    source = queries.source_Q[query]
    wanted = [FAMILIES.index(family) for family in families]
    others = [c for c, f in zip(queries.candidate_QC[query], queries.family_QC[query], strict=True) if f in wanted]
    return rankdata([-score[source, queries.target_Q[query]], *(-score[source, other] for other in others)])[0]


def test_metrics_are_those_of_a_slow_reference():
    rows = rows_of(("a", "random"))
    for step, queries in QUERIES.items():
        each, about = scored(queries, "a"), {"step": str(step), "method": "a"}
        ranks = np.array([plain_rank(each, query, FAMILIES[:4]) for query in range(len(queries.source_Q))])
        np.testing.assert_allclose(ranks_of(each, "mixed"), ranks)
        assert value(rows, metric="mrr", family="mixed", **about) == pytest.approx(np.mean(1 / ranks))
        assert value(rows, metric="hits_at_10", family="mixed", **about) == pytest.approx(np.mean(ranks <= 10))
        gains = np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0)
        assert value(rows, metric="ndcg_at_10", family="mixed", **about) == pytest.approx(np.mean(gains))
        for index, family in enumerate(FAMILIES):
            has = (queries.family_QC == index).any(axis=1)
            own = [1 / plain_rank(each, query, (family,)) for query in np.flatnonzero(has).tolist()]
            assert value(rows, metric="mrr", family=family, **about) == pytest.approx(np.mean(own))
            row_P, column_P = np.nonzero(queries.family_QC == index)
            score_P = np.concatenate([each.score_Q[has], each.score_QC[row_P, column_P]])
            label_P = np.arange(len(score_P)) < has.sum()
            assert value(rows, metric="auc", family=family, **about) == pytest.approx(roc_auc_score(label_P, score_P))
            precision = average_precision_score(label_P, score_P)
            assert value(rows, metric="average_precision", family=family, **about) == pytest.approx(precision)


def test_a_constant_scorer_has_the_analytic_rank_an_oracle_1_and_its_reverse_the_minimum():
    rows = rows_of(("same", "constant"), ("best", "oracle"), ("worst", "reversed"))
    for step, queries in QUERIES.items():
        num_Q = ((queries.family_QC >= 0) & (queries.family_QC != FAMILIES.index("inductive"))).sum(axis=1)
        expected = {"same": np.mean(2 / (num_Q + 2)), "best": 1.0, "worst": np.mean(1 / (num_Q + 1))}
        for method, mrr in expected.items():
            where = {"step": str(step), "method": method}
            assert value(rows, metric="mrr", family="mixed", **where) == pytest.approx(mrr)
            auc = {"same": 0.5, "best": 1.0, "worst": 0.0}[method]
            assert value(rows, metric="auc", family="active", **where) == auc


def test_links_with_an_unknown_end_are_misses_in_the_slice_of_all():
    rows = rows_of(("best", "oracle"))
    for step, queries in QUERIES.items():
        where = {"step": str(step), "method": "best", "family": "mixed", "slice": "all"}
        assert 0 < queries.coverage < 1
        assert value(rows, metric="mrr", **where) == pytest.approx(queries.coverage)
        assert rows.filter(metric="mrr", **where)["num_pairs"].item() == sum(queries.num_links_3)
    total = sum(sum(queries.num_links_3) for queries in QUERIES.values())
    known = sum(len(queries.source_Q) for queries in QUERIES.values())
    where = {"method": "best", "family": "mixed", "slice": "all", "step": "micro"}
    assert value(rows, metric="hits_at_1", **where) == pytest.approx(known / total)


def test_the_interval_with_misses_is_that_of_the_known_queries_times_the_coverage():
    """In a resample, too, a step has its known queries / coverage links, of which those with an unknown end miss."""
    resamples = query_resamples(list(QUERIES.values()), seed=0)
    weight = dict(zip(resamples.node_S.tolist(), resamples.weight_BS.T.astype(float), strict=True))
    total_B, count_B = np.zeros(1000), np.zeros(1000)
    for queries in QUERIES.values():
        ends = zip(queries.source_Q.tolist(), queries.target_Q.tolist(), strict=True)
        weight_BQ = np.array([weight[source] * weight[target] for source, target in ends]).T
        total_B += weight_BQ @ (1 / ranks_of(scored(queries, "a"), "mixed"))
        count_B += weight_BQ.sum(axis=1) * sum(queries.num_links_3) / len(queries.source_Q)
    where = {"metric": "mrr", "family": "mixed", "slice": "all", "step": "micro"}
    [row] = rows_of(("a", "random")).filter(**where).to_dicts()
    assert (row["low"], row["high"]) == pytest.approx(tuple(np.quantile(total_B / count_B, [0.025, 0.975])), rel=1e-5)
    assert row["low"] < row["value"] < row["high"]


def test_micro_pools_the_queries_and_macro_averages_the_steps():
    rows = rows_of(("a", "random"))
    ranks = [ranks_of(scored(queries, "a"), "mixed") for queries in QUERIES.values()]
    where = {"method": "a", "metric": "mrr", "family": "mixed"}
    assert value(rows, step="micro", **where) == pytest.approx(np.mean(1 / np.concatenate(ranks)))
    assert value(rows, step="macro", **where) == pytest.approx(np.mean([np.mean(1 / rank) for rank in ranks]))


def test_intervals_are_those_of_weighted_queries():
    resamples = query_resamples(list(QUERIES.values()), seed=0)
    few = NodeResamples(node_S=resamples.node_S, weight_BS=resamples.weight_BS[:40])
    queries = QUERIES[5]
    each = scored(queries, "a")
    cells = step_metrics([each], GRAPH, few)["a", 0]
    weight = dict(zip(few.node_S.tolist(), few.weight_BS.T.astype(float), strict=True))
    reciprocal, new = 1 / ranks_of(each, "mixed"), queries.new_Q
    w_BQ = np.array([weight[s] * weight[t] for s, t in zip(queries.source_Q, queries.target_Q, strict=True)]).T
    np.testing.assert_allclose(
        cells["mrr", "mixed", "known"].value_B, np.average(np.tile(reciprocal, (40, 1)), axis=1, weights=w_BQ)
    )
    expected = (w_BQ[:, new] * reciprocal[new]).sum(axis=1) / w_BQ[:, new].sum(axis=1)
    np.testing.assert_allclose(cells["mrr", "mixed", "new"].value_B, expected, rtol=1e-5)


def test_the_difference_is_to_the_best_baseline_and_paired():
    rows = rows_of(("same", "constant"), ("worst", "reversed"), ("best", "oracle"), baselines=("same", "worst"))
    assert rows.columns == METRICS_SCHEMA.names()
    own = rows.filter(metric="mrr", family="mixed", slice="known", step="macro")
    assert own["best_baseline"].unique().to_list() == ["same"]
    by_method = {row["method"]: row for row in own.to_dicts()}
    assert by_method["best"]["difference"] == pytest.approx(1 - by_method["same"]["value"])
    assert [by_method["best"][end] for end in ("low", "high")] == pytest.approx([1, 1])
    assert by_method["best"]["difference_low"] > 0.9
    assert by_method["worst"]["difference_high"] < 0
    assert by_method["same"]["difference"] is None
    assert [by_method[name]["is_baseline"] for name in ("same", "best")] == [True, False]


def test_links_of_later_steps_change_no_interval_but_those_of_the_candidates_that_they_give():
    graph = growing_log(num_nodes=400, num_steps=6, num_rows=40, seed=1)
    measured, nodes = [], []
    for until in (4, 6):
        queries = ranking_queries(prefix(graph, until), 4, seed=0, num_per_family=2)
        score_S = (queries.pairs.source_S * 7 + queries.pairs.target_S * 13) % 11 / 11
        each = ScoredQueries(method="a", seed=0, queries=queries, score_S=score_S)
        resamples = query_resamples([queries], seed=0)
        nodes.append(set(resamples.node_S.tolist()))
        measured.append(step_metrics([each], prefix(graph, 3), resamples)["a", 0])
    assert nodes[0] < nodes[1], "the later links should bring nodes that no other candidate is"
    earlier, later = ({cell: value for cell, value in cells.items() if "inductive" not in cell} for cells in measured)
    assert earlier.keys() == later.keys()
    for cell, value in earlier.items():
        np.testing.assert_array_equal(value.value_B, later[cell].value_B, err_msg=str(cell))


def test_one_method_has_the_same_metrics_alone_and_beside_others():
    alone, beside = rows_of(("a", "random")), rows_of(("bb", "random"), ("a", "random"))
    assert_frame_equal(alone, beside.filter(method="a"))


def test_slices_are_those_of_their_definition():
    queries = QUERIES[5]
    slices, rows = query_slices(GRAPH, queries), interactions_of(prefix(GRAPH, 4))
    newest = {
        end
        for source, target, time in zip(
            rows.source_R.tolist(), rows.target_R.tolist(), rows.time_R.tolist(), strict=True
        )
        if time == 3 and source != target
        for end in (source, target)
    }
    first = {}
    for source, target, time in zip(rows.source_R.tolist(), rows.target_R.tolist(), rows.time_R.tolist(), strict=True):
        first.setdefault(source, time + 1)
        first.setdefault(target, time + 1)
    pairs = list(zip(queries.source_Q.tolist(), queries.target_Q.tolist(), strict=True))
    for number in range(3):
        expected = [sum(end not in newest for end in pair) == number for pair in pairs]
        assert slices.get(f"inactive_ends={number}", np.zeros(len(pairs), bool)).tolist() == expected
    ages = [5 - max(first[end] for end in pair) for pair in pairs]
    assert slices["age=1"].tolist() == [age == 1 for age in ages]
    assert slices["age=2-4"].tolist() == [2 <= age <= 4 for age in ages]
    assert "age=5+" not in slices
    partners: dict[int, set[int]] = {}
    for source, target in zip(rows.source_R.tolist(), rows.target_R.tolist(), strict=True):
        if source != target:
            partners.setdefault(source, set()).add(target)
            partners.setdefault(target, set()).add(source)
    degree = [len(partners.get(source, ())) for source, _ in pairs]
    fewest = [min(len(partners.get(end, ())) for end in pair) for pair in pairs]
    for level, wanted in (("none", {0}), ("one", {1}), ("few", {2, 3, 4})):
        mask = slices.get(f"evidence={level}", np.zeros(len(pairs), bool))
        assert mask.tolist() == [number in wanted for number in fewest]
    assert sum(mask.sum() for name, mask in slices.items() if name.startswith("evidence=")) == len(pairs)
    decile_of = {name: mask for name, mask in slices.items() if name.startswith("degree_decile")}
    assert sum(mask.sum() for mask in decile_of.values()) == len(pairs)
    for lower, higher in zip(decile_of.values(), list(decile_of.values())[1:], strict=False):
        assert max(np.array(degree)[lower]) < min(np.array(degree)[higher])
    sides = query_slices(growing_log(bipartite=True), ranking_queries(growing_log(bipartite=True), 4, seed=0))
    assert sides["side=0"].all()
    assert "side=1" not in sides


def test_a_degree_at_the_bound_of_two_deciles_is_in_the_lower_one():
    """11 sources have 1 .. 11 past partners, so that the bounds are 2, 3, ..., 10."""
    past = [(source, 11 + target) for source in range(11) for target in range(source + 1)]
    log = toy_graph(past, [(source, 11) for source in range(11)])
    queries = ranking_queries(log, 2, seed=0)
    slices = query_slices(log, queries)
    sources = [queries.source_Q[slices[f"degree_decile={number}"]].tolist() for number in range(1, 11)]
    assert sources == [[0, 1], *([source] for source in range(2, 11))]


def test_slices_do_not_read_the_forecast_step():
    whole, past = (query_slices(graph, QUERIES[5]) for graph in (GRAPH, prefix(GRAPH, 4)))
    assert whole.keys() == past.keys()
    for name, mask_Q in whole.items():
        np.testing.assert_array_equal(mask_Q, past[name])


def test_coverage_and_repeat_rate_count_links():
    rows = query_log_rows(QUERIES.values(), "mine")
    queries = QUERIES[4]
    first = rows.filter(step="4")
    total = sum(queries.num_links_3)
    assert dict(first.select("metric", "value").iter_rows()) == {
        "coverage": queries.num_links_3[0] / total,
        "unseen_ends_1": queries.num_links_3[1] / total,
        "unseen_ends_2": queries.num_links_3[2] / total,
        "repeat_rate": (~queries.new_Q).mean(),
    }
    assert set(rows["step"]) == {"4", "5", "micro", "macro"}
    assert set(rows["method"]) == {"-"}


def test_other_queries_are_refused():
    one = scored(QUERIES[4], "a")
    other = scored(replace(QUERIES[4]), "b")
    with pytest.raises(ValueError, match="other queries"):
        step_metrics([one, other], GRAPH, query_resamples([QUERIES[4]], seed=0))
