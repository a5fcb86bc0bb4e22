"""Honest methods pass every check; each planted leak fails a named one."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from ranked_logs import growing_log, weekly_log

from dyformer.baselines.classifiers import LogisticRegression
from dyformer.baselines.heuristics import EdgeBank, NeighbourPaths, PreferentialAttachment
from dyformer.baselines.proximity import PersonalizedPageRank
from dyformer.baselines.recency import ContactRecency, decayed_contacts
from dyformer.evaluation import labelled_steps, scored_queries
from dyformer.evaluation.audit import case as audit_case
from dyformer.evaluation.audit import checks, labels
from dyformer.evaluation.audit.case import AuditCase, Check
from dyformer.evaluation.audit.poisons import POISONS, graph_of, poisoned, rows_of
from dyformer.evaluation.protocols import paper
from dyformer.evaluation.protocols.paper import Trial
from dyformer.evaluation.scored_queries import RankingTrial
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, prefix
from dyformer.graphs.union_graph import build_union_graph
from dyformer.sampling import ranking_queries as ranking_queries_module
from dyformer.sampling import subgraphs
from dyformer.sampling.pairs import LinkSplit
from dyformer.scoring import heads
from dyformer.scoring.decoder import fit_decoder, score
from dyformer.scoring.interfaces import LabelledStep, Scorer
from dyformer.scoring.labelled_tables import pair_features
from dyformer.scoring.pair_features import edge_degree, prepare_pair_features, union_edges
from dyformer.streams.factorisation import factorise

UNTIL = 5
HONEST = {
    "EdgeBank": EdgeBank(memory="last"),
    "Popularity": PreferentialAttachment(memory="decayed"),
    "Recency": ContactRecency(),
    "Regression": LogisticRegression(),
}
REMEMBERING: dict[str, Scorer] = {"last links": EdgeBank(memory="last")}
LOG = growing_log(num_nodes=60, num_steps=7, num_rows=150)


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heads, "NUM_ROUNDS", 5)


def case_of(methods: Mapping[str, Any], graph: DynamicGraph = LOG) -> AuditCase:
    return AuditCase(graph=graph, until=UNTIL, methods=methods, remembering=REMEMBERING)


def outcome(name: str, methods: Mapping[str, Any]) -> Check:
    """Run the checks up to one of them."""
    return next(check for check in checks.audit(case_of(methods)) if check.name == name)


@pytest.mark.parametrize("kind", [{}, {"directed": False}, {"bipartite": True}], ids=str)
def test_honest_methods_pass_every_check(kind: dict):
    paths = {"L3": NeighbourPaths(kind="l3"), "PageRank": PersonalizedPageRank(), "Spectrum": Spectrum()}
    log = growing_log(num_nodes=60, num_steps=7, num_rows=150, **kind)
    found = {check.name: check for check in checks.audit(case_of({**HONEST, **paths}, log))}
    assert len(found) == checks.NUM_CHECKS
    assert {name: check.detail for name, check in found.items() if not check.passed} == {}
    assert set(HONEST) < set(found["truncation"].methods)


def test_methods_that_learn_from_days_a_week_before_pass_every_check():
    case = replace(case_of(HONEST, weekly_log(num_weeks=5)), until=33)
    found = {check.name: check for check in checks.audit(case)}
    assert "pairs of steps 27, 20, 13, each before step 34" in found["labelled steps"].detail
    assert {name: check.detail for name, check in found.items() if not check.passed} == {}


@dataclass(frozen=True)
class Spectrum:
    """Vectors: the factors of the contacts."""

    def fit(self, graph: PreparedGraph, *, seed: int):
        factors = factorise(graph.union.adjacency)
        return lambda node_N: factors.left_NK[node_N]


def test_a_graph_is_made_of_its_own_rows_again():
    assert audit_case.differing(contents(graph_of(rows_of(LOG), LOG)), contents(LOG)) == {}


@pytest.mark.parametrize("name", POISONS)
def test_a_poison_changes_the_log_after_the_step_and_nothing_before(name: str):
    found = contents(poisoned(LOG, UNTIL, name, seed=0))
    changed = set(audit_case.differing(found, contents(LOG)))
    assert changed
    assert not changed & {f"step {step}" for step in range(1, UNTIL + 1)}


def contents(graph: DynamicGraph) -> dict[str, list[np.ndarray]]:
    assert graph.interactions is not None
    steps = {f"step {s.step}": [np.asarray(value) for value in vars(s).values()] for s in graph.snapshots}
    return {**steps, "interactions": list(vars(graph.interactions).values()), "nodes": [graph.node_N, graph.side_N]}


def with_past(patch: pytest.MonkeyPatch, change: Callable[[PreparedGraph, DynamicGraph], PreparedGraph]):
    """Let a trial change its graph of the past, given the graph of the whole log."""

    def prepare(graph: DynamicGraph, *, until: int, config: GraphConfig) -> PreparedGraph:
        return change(prepare_graph(graph, until=until, config=config), graph)

    for module in (labelled_steps, scored_queries):
        patch.setattr(module, "prepare_graph", prepare)


def with_labelled(patch: pytest.MonkeyPatch, change: Callable[[LabelledStep, PreparedGraph], LabelledStep]):
    """Let a trial change each of its labelled steps, given the graph of the past."""
    honest = labelled_steps.with_retrieved

    def labelled(past: PreparedGraph, sampled: Sequence[LabelledStep], *, seed: int):
        return tuple(change(step, past) for step in honest(past, sampled, seed=seed))

    for module in (labelled_steps, scored_queries):
        patch.setattr(module, "with_retrieved", labelled)


def one_step_more(patch: pytest.MonkeyPatch):
    """`<=` for `<`: the past holds the forecast step."""

    def later(past: PreparedGraph, graph: DynamicGraph) -> PreparedGraph:
        return replace(past, history=prefix(graph, min(past.until + 1, graph.num_steps)))

    with_past(patch, later)


def ages_from_the_end_of_the_log(patch: pytest.MonkeyPatch):
    """Interactions are dated by their distance from the newest row of the log."""

    def dated(past: PreparedGraph, graph: DynamicGraph) -> PreparedGraph:
        rows = past.history.interactions
        assert rows is not None
        rows = replace(rows, position_R=rows.position_R - (graph.num_steps - past.until))
        return replace(past, history=replace(past.history, interactions=rows))

    with_past(patch, dated)


def union_of_the_next_step(patch: pytest.MonkeyPatch):
    def with_next(past: PreparedGraph, graph: DynamicGraph) -> PreparedGraph:
        known = past.history.snapshots[-1].num_nodes
        later = graph.snapshots[min(past.until, graph.num_steps - 1)]
        inside_E = np.maximum(later.source_E, later.target_E) < known
        ends = {name: getattr(later, name)[inside_E] for name in ("source_E", "target_E", "weight_E")}
        newest = replace(past.history.snapshots[-1], **ends)
        history = replace(past.history, snapshots=(*past.history.snapshots[:-1], newest))
        vars(past)["union"] = build_union_graph(history, until=past.until)  # not what the first use would build
        return past

    with_past(patch, with_next)


def nodes_of_the_whole_log(patch: pytest.MonkeyPatch):
    """The vocabulary holds nodes that come later."""

    def with_nodes(past: PreparedGraph, graph: DynamicGraph) -> PreparedGraph:
        return replace(past, history=replace(past.history, node_N=graph.node_N, side_N=graph.side_N))

    with_past(patch, with_nodes)


def labels_of_the_forecast_step(patch: pytest.MonkeyPatch):
    honest = labelled_steps.labelled_steps

    def labelled(self: RankingTrial):
        past = prepare_graph(self.graph, until=min(self.queries.step, self.graph.num_steps), config=self.config)
        return honest(past, seed=self.seed)

    patch.setattr(RankingTrial, "labelled", named_property(labelled, "labelled"))


def weights_in_the_wrong_order(patch: pytest.MonkeyPatch):
    honest = labelled_steps.with_retrieved

    def labelled(past: PreparedGraph, sampled: Sequence[LabelledStep], *, seed: int):
        steps = honest(past, sampled, seed=seed)
        return tuple(replace(step, weight=other.weight) for step, other in zip(steps, reversed(steps), strict=True))

    for module in (labelled_steps, scored_queries):
        patch.setattr(module, "with_retrieved", labelled)


def new_partners_that_did_not_come(patch: pytest.MonkeyPatch):
    def turned(step: LabelledStep, past: PreparedGraph) -> LabelledStep:
        pairs = step.new_partners
        return replace(step, new_partners=replace(pairs, positive_P=~pairs.positive_P))

    with_labelled(patch, turned)


def features_of_the_labelled_step(patch: pytest.MonkeyPatch):
    """Labelled pairs are described by the graph that holds their links, not by the one before."""
    with_labelled(patch, lambda step, past: replace(step, before=past))


def validation_for_the_test(patch: pytest.MonkeyPatch):
    honest = paper.paper_examples

    def examples(graph: DynamicGraph, step: int, *, seed: int) -> LinkSplit:
        split = honest(graph, step, seed=seed)
        return replace(split, test=split.validation)

    patch.setattr(paper, "paper_examples", examples)


def labels_of_the_test_pairs(patch: pytest.MonkeyPatch):
    honest = Trial.labelled.func  # pyright: ignore[reportAttributeAccessIssue]

    def labelled(self: Trial):
        newest, *older = honest(self)
        return (replace(newest, examples=self.split.test), *older)

    patch.setattr(Trial, "labelled", named_property(labelled, "labelled"))


def negatives_that_are_inactive(patch: pytest.MonkeyPatch):
    """Candidates are drawn by knowing the true target: only nodes that are in the log for a shorter time."""
    honest = ranking_queries_module.choose_of_pool

    def choose(source_Q, pool_R, *others):
        drawn_QC = honest(source_Q, pool_R, *others)
        newer = np.unique(pool_R)[len(np.unique(pool_R)) // 2 :]
        return np.where(drawn_QC >= 0, newer[drawn_QC % len(newer)], -1)

    patch.setattr(ranking_queries_module, "choose_of_pool", choose)


def candidates_that_are_links(patch: pytest.MonkeyPatch):
    honest = ranking_queries_module._read_step

    def read(*arguments):
        state = honest(*arguments)
        return replace(state, positives=replace(state.positives, key_K=state.positives.key_K[:0]))

    patch.setattr(ranking_queries_module, "_read_step", read)


def historical_candidates_of_all_nodes(patch: pytest.MonkeyPatch):
    def nodes(state):
        num = state.num_nodes
        return ranking_queries_module.lists_of(np.arange(num * num), num)

    patch.setattr(ranking_queries_module, "_past_partners", nodes)


def interactions_of_the_labelled_step(patch: pytest.MonkeyPatch):
    """Labelled pairs are described by earlier snapshots, and by the rows of their own step."""

    def with_rows(step: LabelledStep, past: PreparedGraph) -> LabelledStep:
        history = replace(step.before.history, interactions=past.history.interactions)
        return replace(step, before=replace(step.before, history=history))

    with_labelled(patch, with_rows)


def snapshots_that_keep_the_first_rows(patch: pytest.MonkeyPatch):
    from dyformer.evaluation.audit import checks

    honest = checks.graph_of
    patch.setattr(checks, "graph_of", lambda rows, graph: honest(rows[: len(rows) // 2], graph))


def a_memory_that_forgets(patch: pytest.MonkeyPatch):
    patch.setitem(REMEMBERING, "last links", PreferentialAttachment(memory="last"))


def popularity_of_later_steps(patch: pytest.MonkeyPatch):
    """`active` candidates are drawn from all later links, not from those of the step."""
    honest = ranking_queries_module._read_step

    def read(graph: DynamicGraph, step: int, links, chosen_Q):
        state = honest(graph, step, links, chosen_Q)
        target_R = graph.interactions.target_R  # pyright: ignore[reportOptionalMemberAccess]
        return replace(state, end_R=target_R[target_R < state.num_nodes])

    patch.setattr(ranking_queries_module, "_read_step", read)


def links_to_reconstruct_visible(patch: pytest.MonkeyPatch):
    honest = subgraphs._visible_union
    patch.setattr(subgraphs, "_visible_union", lambda graph, until, hidden: honest(graph, until, None))


def degrees_of_the_hidden_step(patch: pytest.MonkeyPatch):
    honest = subgraphs._visible_lags
    patch.setattr(subgraphs, "_visible_lags", lambda num_lags, until, hidden: honest(num_lags, until, None))


def ties_in_favour_of_the_true_pair(patch: pytest.MonkeyPatch):
    """The true pair comes first among its candidates, and equal scores stay in this order."""

    def ranks(score_Q, score_QC, valid_QC):
        return 1.0 + ((score_QC > score_Q[:, None]) & valid_QC).sum(axis=1)

    patch.setattr(scored_queries, "mean_ranks", ranks)


def rows_numbered_by_their_order(patch: pytest.MonkeyPatch):
    """Nodes are numbered by how often they are in the whole log."""
    from dyformer.graphs import snapshots

    honest = snapshots._numbered

    def numbered(permanent_S):
        end_S, node_N, first_N = honest(permanent_S)
        order_N = np.argsort(-np.bincount(end_S), kind="stable")
        number_N = np.argsort(order_N)
        return number_N[end_S], node_N[order_N], first_N[order_N]

    patch.setattr(snapshots, "_numbered", numbered)


def named_property(function: Callable, name: str) -> cached_property:
    prop = cached_property(function)
    prop.__set_name__(RankingTrial, name)
    return prop


LEAKS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    one_step_more: "future poison: random edges",
    ages_from_the_end_of_the_log: "truncation",
    union_of_the_next_step: "future poison: shuffled",
    nodes_of_the_whole_log: "future poison: new nodes",
    labels_of_the_forecast_step: "label memory",
    weights_in_the_wrong_order: "labelled steps",
    new_partners_that_did_not_come: "labelled steps",
    features_of_the_labelled_step: "own links",
    validation_for_the_test: "label memory",
    labels_of_the_test_pairs: "label permutation",
    negatives_that_are_inactive: "chance",
    candidates_that_are_links: "candidates",
    historical_candidates_of_all_nodes: "candidates",
    interactions_of_the_labelled_step: "labelled steps",
    snapshots_that_keep_the_first_rows: "order of rows",
    a_memory_that_forgets: "planted rule",
    popularity_of_later_steps: "future poison: ten times the volume",
    links_to_reconstruct_visible: "hidden step",
    degrees_of_the_hidden_step: "hidden step",
    ties_in_favour_of_the_true_pair: "evaluator",
    rows_numbered_by_their_order: "future poison: nothing",
}


DETAILS = {
    new_partners_that_did_not_come: "labels differ from the log's",
    candidates_that_are_links: "a candidate is a link",
    historical_candidates_of_all_nodes: "a historical candidate is no past partner",
    interactions_of_the_labelled_step: "features with the labelled step",
    snapshots_that_keep_the_first_rows: "other snapshots: [",
    a_memory_that_forgets: "expected 0.95 and more",
}


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_a_leak_in_the_pipeline_is_found(leak: Callable, monkeypatch: pytest.MonkeyPatch):
    methods = {name: HONEST[name] for name in ("EdgeBank", "Regression")} | {"Memory": labels.LabelMemory()}
    leak(monkeypatch)
    check = outcome(LEAKS[leak], methods)
    assert check.passed is False
    assert DETAILS.get(leak, "") in check.detail


LOG_OF: dict[PreparedGraph, DynamicGraph] = {}
"""The log of which a trial was made, for a dishonest method."""


@pytest.fixture
def open_log(monkeypatch: pytest.MonkeyPatch):
    """Let methods find the whole log of their trial."""

    def noted(past: PreparedGraph, graph: DynamicGraph) -> PreparedGraph:
        LOG_OF[past] = graph
        return past

    with_past(monkeypatch, noted)
    yield
    LOG_OF.clear()


def log_of(graph: PreparedGraph) -> DynamicGraph:
    return LOG_OF.get(graph, graph.history)


def ahead(graph: PreparedGraph) -> PreparedGraph:
    """The graph one step later, with the nodes that are known."""
    log = log_of(graph)
    return prepare_graph(log, until=min(graph.until + 1, log.num_steps), config=graph.config)


@dataclass(frozen=True)
class PopularityAhead:
    def fit_pairs(self, graph, labelled):
        edges = union_edges(ahead(graph).history)
        degree_N = edge_degree(edges, edges.decayed_E)
        return lambda source_P, target_P: degree_N[source_P] * degree_N[target_P]


@dataclass(frozen=True)
class VectorsAhead:
    """Weights that were trained one step too far."""

    def fit(self, graph, *, seed):
        factors = factorise(ahead(graph).union.adjacency)
        return lambda node_N: factors.left_NK[node_N]


@dataclass(frozen=True)
class FactorsAhead:
    def fit_pairs(self, graph, labelled):
        factors = factorise(ahead(graph).union.adjacency)
        return lambda source_P, target_P: np.einsum(
            "pk,pk->p", factors.left_NK[source_P], factors.right_NK[target_P]
        ).astype(float)


@dataclass(frozen=True)
class AgeFromTheEnd:
    """Contacts decay from the end of the log, not from the step."""

    def fit_pairs(self, graph, labelled):
        contacts = decayed_contacts(graph)
        factor = 0.5 ** (log_of(graph).num_steps - graph.until)
        return lambda source_P, target_P: factor * contacts.sent(source_P, target_P)


@dataclass(frozen=True)
class ScaledByTestPairs:
    """The inputs of a regression are standardised on the pairs that are scored."""

    def fit_pairs(self, graph, labelled):
        examples = labelled[0].examples
        inputs_PF = pair_features(labelled[0].before).table(examples.source_P, examples.target_P)
        decoder = fit_decoder(inputs_PF, examples.positive_P, strength=1.0)

        def score_pairs(source_P, target_P):
            table_PF = pair_features(graph).table(source_P, target_P)
            return score(decoder, (table_PF - table_PF.mean(axis=0)) / (table_PF.std(axis=0) + 1e-9))

        return score_pairs


@dataclass(frozen=True)
class NormalisedVectors:
    """Vectors are divided by the longest one of those requested together."""

    def fit(self, graph, *, seed):
        left_NK = factorise(graph.union.adjacency).left_NK
        return lambda node_N: left_NK[node_N] / np.linalg.norm(left_NK[node_N], axis=1).max(initial=1e-9)


@dataclass(frozen=True)
class FeaturesOfTheGraph:
    """A regression that describes its labelled pairs by the graph of the forecast, which holds their links."""

    def fit_pairs(self, graph, labelled):
        examples, features = labelled[0].examples, pair_features(graph)
        decoder = fit_decoder(features.table(examples.source_P, examples.target_P), examples.positive_P, strength=1.0)
        return lambda source_P, target_P: score(decoder, features.table(source_P, target_P))


@dataclass(frozen=True)
class CacheWithoutStep:
    """Features are stored under the number of columns, which says nothing about the step."""

    stored: dict = dataclasses.field(default_factory=dict)

    def fit_pairs(self, graph, labelled):
        features = self.stored.setdefault("features", prepare_pair_features(graph.history))
        return lambda source_P, target_P: features.table(source_P, target_P).sum(axis=1)


@dataclass(frozen=True)
class PermanentNumbers:
    """Newer rows of the node dictionary have larger numbers."""

    def fit_pairs(self, graph, labelled):
        node_N = graph.history.node_N
        return lambda source_P, target_P: -np.abs(node_N[source_P] - node_N[target_P]).astype(float)


@dataclass(frozen=True)
class NodeNumbers:
    def fit_pairs(self, graph, labelled):
        degree_N = edge_degree(union_edges(graph.history), union_edges(graph.history).decayed_E)
        return lambda source_P, target_P: degree_N[source_P] + (7919 * target_P % 101).astype(float)


METHODS_WITH_LEAKS = {
    PopularityAhead: "future poison: random edges",
    VectorsAhead: "future poison: new nodes",
    FactorsAhead: "future poison: random edges",
    AgeFromTheEnd: "truncation",
    ScaledByTestPairs: "query independence",
    NormalisedVectors: "query independence",
    FeaturesOfTheGraph: "own links",
    CacheWithoutStep: "past matters",
    PermanentNumbers: "relabelling",
    NodeNumbers: "relabelling",
}


@pytest.mark.usefixtures("open_log")
@pytest.mark.parametrize("leak", METHODS_WITH_LEAKS, ids=lambda leak: leak.__name__)
def test_a_leak_in_a_method_is_found(leak: type):
    assert outcome(METHODS_WITH_LEAKS[leak], {"leak": leak()}).passed is False
