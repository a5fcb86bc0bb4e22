"""The ranker of new partners: its inputs, its scale, and what it changes in the forecaster."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from toy_graphs import random_graph

from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.sampling.pairs import NewPartners, joined, paper_examples
from dyformer.scoring import forecaster
from dyformer.scoring.forecaster import FittedForecaster, Forecaster, ForecasterScore
from dyformer.scoring.interfaces import LabelledStep
from dyformer.scoring.labelled_tables import LabelledTable, new_partner_table
from dyformer.scoring.link_features import names, prepare_link_features
from dyformer.scoring.new_partners import FEWEST_GROUPS, fit_new_partners, recent_activity, with_products

GRAPH = random_graph(np.random.default_rng(0), num_nodes=40, num_steps=4, num_edges=120)
SOURCE_P, TARGET_P = np.array([0, 5, 7]), np.array([3, 2, 9])


@pytest.mark.parametrize("directed", [True, False])
def test_the_activity_is_that_of_the_target_or_of_both_ends(directed: bool):
    rows, newest = GRAPH.interactions, GRAPH.snapshots[-1]
    assert rows is not None
    partners = [set(), *(set() for _ in range(39))]
    for source, target in zip(newest.source_E.tolist(), newest.target_E.tolist(), strict=True):
        partners[source].add(target)
        partners[target].add(source)
    decayed_R = np.log2(1 + rows.weight_R) * 0.5 ** (GRAPH.num_steps - rows.position_R)
    amounts = [decayed_R[rows.source_R == node].sum() + decayed_R[rows.target_R == node].sum() for node in range(40)]
    logs = np.log1p(np.column_stack([[len(each) for each in partners], amounts]))
    found = recent_activity(prepare_link_features(GRAPH), SOURCE_P, TARGET_P, directed=directed)
    expected = logs[TARGET_P] + (0 if directed else logs[SOURCE_P])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("directed", [True, False])
def test_the_products_are_those_of_the_formulas(directed: bool):
    features = prepare_link_features(GRAPH)
    inputs = (features.directed if directed else features.undirected)(SOURCE_P, TARGET_P)
    recent = recent_activity(features, SOURCE_P, TARGET_P, directed=directed)
    by_name = dict(zip(names(directed), inputs.T.astype(np.float64), strict=True))
    expected = [*recent.T]
    for path in (by_name["adamic_adar"], np.exp(by_name["log_l3"]) - 1):
        expected += [path * np.sqrt(np.exp(log) - 1) for log in recent.T]
        expected += [path * log for log in recent.T]
    found = with_products(inputs, recent, directed=directed)
    assert found.dtype == inputs.dtype
    np.testing.assert_array_equal(found[:, : inputs.shape[1]], inputs)
    np.testing.assert_allclose(found[:, inputs.shape[1] :], np.column_stack(expected), rtol=1e-4)
    assert (found[:, inputs.shape[1] :] > 0).any(axis=0).all()


def labelled() -> list[LabelledStep]:
    """Among the new pairs of each node, those with the target that was most active come."""
    steps = []
    for step in (4, 3):
        before = prepare_graph(GRAPH, until=step - 1, config=GraphConfig())
        features = prepare_link_features(before.history)
        num_nodes = before.history.snapshots[-1].num_nodes
        node_P, partner_P = (each.ravel() for each in np.meshgrid(*[np.arange(num_nodes)] * 2, indexing="ij"))
        seen_P = features.directed(node_P, partner_P)[:, 0] > 0
        node_P, partner_P = (each[~seen_P & (node_P != partner_P)] for each in (node_P, partner_P))
        activity_P = recent_activity(features, node_P, partner_P, directed=True)[:, 1]
        steps.append(
            LabelledStep(
                before=before,
                examples=joined(*vars(paper_examples(GRAPH, step, seed=0)).values()),
                weight=0.5 ** (4 - step),
                directed=True,
                ranked=True,
                new_partners=NewPartners(
                    node_P=node_P, source_P=node_P, target_P=partner_P, positive_P=activity_P > np.median(activity_P)
                ),
            )
        )
    return steps


@pytest.fixture(scope="module")
def fitted() -> FittedForecaster:
    return Forecaster().fitted(labelled())


def pairs_of(graph, *, directed: bool = True):
    source_P, target_P = (each.ravel() for each in np.meshgrid(np.arange(40), np.arange(40), indexing="ij"))
    features = prepare_link_features(graph)
    inputs = (features.directed if directed else features.undirected)(source_P, target_P)
    return inputs, recent_activity(features, source_P, target_P, directed=directed)


def test_a_third_of_the_log_odds_of_new_pairs_alone_comes_from_the_ranker(fitted: FittedForecaster):
    inputs, recent = pairs_of(GRAPH)
    assert fitted.new_partners is not None
    heads, ranked = fitted.head_logits(inputs), fitted.new_partners.logits(inputs, recent)
    is_new = np.array([pair[0] == 0 for pair in inputs])
    assert 0 < is_new.sum() < len(is_new)
    np.testing.assert_allclose(fitted.logits(inputs, recent), np.where(is_new, (2 * heads + ranked) / 3, heads))


def test_a_ranker_keeps_the_weight_it_was_registered_with(fitted: FittedForecaster):
    inputs, recent = pairs_of(GRAPH)
    assert fitted.new_partners is not None
    record = fitted.record()
    np.testing.assert_array_equal(
        FittedForecaster.from_record(record).logits(inputs, recent), fitted.logits(inputs, recent)
    )
    other = record | {"new_partners": record["new_partners"] | {"weight": 0.25}}
    heads, ranked = fitted.head_logits(inputs), fitted.new_partners.logits(inputs, recent)
    expected = np.where(inputs[:, 0] == 0, 0.75 * heads + 0.25 * ranked, heads)
    np.testing.assert_allclose(FittedForecaster.from_record(other).logits(inputs, recent), expected)


def test_a_score_is_that_of_its_pair_alone_with_the_activity_of_its_target(fitted: FittedForecaster, monkeypatch):
    graph = prepare_graph(GRAPH, until=GRAPH.num_steps, config=GraphConfig())
    source_P, target_P = (each.ravel() for each in np.meshgrid(np.arange(40), np.arange(40), indexing="ij"))
    expected = expit(fitted.logits(*pairs_of(GRAPH)))
    score = ForecasterScore(forecaster=Forecaster(), fitted=fitted, graph=graph)
    monkeypatch.setattr(forecaster, "BLOCK_PAIRS", 7)
    np.testing.assert_array_equal(score(source_P, target_P), expected)


def test_activity_is_read_for_a_ranker_alone(fitted: FittedForecaster, monkeypatch):
    graph = prepare_graph(GRAPH, until=GRAPH.num_steps, config=GraphConfig())
    monkeypatch.setattr(forecaster, "recent_activity", None)
    without = replace(fitted, new_partners=None)
    ForecasterScore(forecaster=Forecaster(), fitted=without, graph=graph)(SOURCE_P, TARGET_P)


def new_table(num_groups: int) -> LabelledTable:
    """Of the five pairs of each group the last one is positive; an input of the formulas says which."""
    position_P = np.tile(np.arange(5), num_groups)
    inputs_PF = np.zeros((5 * num_groups, len(names(directed=True)) + 10))
    inputs_PF[:, 3] = position_P
    return LabelledTable(
        inputs_PF=inputs_PF,
        positive_P=position_P == 4,
        weight_P=np.ones(len(position_P)),
        group_P=np.repeat(np.arange(num_groups), 5),
    )


def test_few_groups_make_no_ranker():
    for num_groups in (FEWEST_GROUPS - 1, FEWEST_GROUPS):
        table = new_table(num_groups)
        ranker = fit_new_partners(table, np.arange(5.0 * num_groups), directed=True, seed=0)
        assert (ranker is None) == (num_groups < FEWEST_GROUPS)


def test_constant_inputs_make_no_ranker():
    table = new_table(2 * FEWEST_GROUPS)
    table.inputs_PF[:] = 0.1
    logit_P = np.arange(float(len(table.inputs_PF)))
    assert fit_new_partners(table, logit_P, directed=True, seed=0) is None


def test_the_ranker_finds_the_rule_of_new_partners(fitted: FittedForecaster):
    inputs, recent = pairs_of(GRAPH)
    assert fitted.new_partners is not None
    ranked, new = fitted.new_partners.logits(inputs, recent), inputs[:, 0] == 0
    assert np.corrcoef(ranked[new], recent[new, 1])[0, 1] > 0.8


def test_the_output_has_the_mean_and_the_spread_of_the_log_odds_of_its_pairs(fitted: FittedForecaster):
    found, heads = [], []
    assert fitted.new_partners is not None
    for step in labelled():
        pairs, features = step.new_partners, prepare_link_features(step.before.history)
        inputs = features.directed(pairs.source_P, pairs.target_P)
        recent = recent_activity(features, pairs.source_P, pairs.target_P, directed=True)
        found.append(fitted.new_partners.logits(inputs, recent))
        heads.append(fitted.head_logits(inputs))
    found_P, heads_P = np.concatenate(found), np.concatenate(heads)
    assert found_P.mean() == pytest.approx(heads_P.mean())
    assert found_P.std() == pytest.approx(heads_P.std())


def test_a_group_is_a_node_in_one_step():
    step = labelled()[0]
    few = {name: value_P[step.new_partners.node_P < 5] for name, value_P in vars(step.new_partners).items()}
    pairs = NewPartners(**{**few, "source_P": few["target_P"], "target_P": few["source_P"]})
    table = new_partner_table(replace(step, new_partners=pairs), np.zeros((len(pairs.node_P), 1)))
    assert len(np.unique(table.group_P)) == len(np.unique(pairs.node_P)) == 5
    assert set(table.group_P.tolist()).isdisjoint(new_partner_table(labelled()[1], np.zeros((0, 1))).group_P.tolist())
    assert (table.weight_P == step.weight).all()


@pytest.mark.parametrize("value", [True, False])
def test_pairs_of_one_kind_make_no_ranker(value: bool):
    steps = [
        replace(
            step, new_partners=replace(step.new_partners, positive_P=np.full_like(step.new_partners.positive_P, value))
        )
        for step in labelled()
    ]
    fitted = Forecaster().fitted(steps)
    assert fitted.new_partners is None
    inputs, recent = pairs_of(GRAPH)
    np.testing.assert_array_equal(fitted.logits(inputs, recent), fitted.head_logits(inputs))


def test_a_ranker_survives_its_record(fitted: FittedForecaster):
    import json

    record = json.loads(json.dumps(fitted.record()))
    inputs, recent = pairs_of(GRAPH)
    again = FittedForecaster.from_record(record)
    np.testing.assert_array_equal(again.logits(inputs, recent), fitted.logits(inputs, recent))
    assert again.new_partners == fitted.new_partners
