from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import pytest
from numpy.typing import NDArray
from ranked_logs import growing_log
from toy_graphs import toy_graph

from dyformer.baselines.classifiers import BoostedTrees
from dyformer.evaluation import first_stage
from dyformer.evaluation import labelled_steps as module
from dyformer.evaluation.first_stage import fit_retrieval, linked_in, ordered, retrieved_pairs
from dyformer.evaluation.fitting import FORECASTER_WITH
from dyformer.evaluation.labelled_steps import (
    has_labelled_steps,
    labelled_steps,
    ranking_examples,
    sampled_steps,
    with_retrieved,
)
from dyformer.evaluation.scored_queries import RankingTrial, evaluate_queries, from_table, to_table
from dyformer.experiments.methods import METHODS
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, Snapshot, prefix
from dyformer.sampling.pairs import LinkExamples, NewPartners, TooFewLinks
from dyformer.sampling.ranking_queries import TRAINING_FAMILIES, ranking_queries
from dyformer.scoring.forecaster import Forecaster
from dyformer.scoring.interfaces import Embed, Embedder, LabelledStep, Score, Scorer

GRAPH, STEP = growing_log(num_steps=7), 6
SCORERS = {title: method for title, method in METHODS.items() if isinstance(method, Scorer)}
SCORERS["Boosted trees on pair features"] = BoostedTrees(num_rounds=20, max_leaves=(4,))
pytestmark = pytest.mark.usefixtures("few_trees")


def trial_of(graph: DynamicGraph = GRAPH, step: int = STEP, seed: int = 0) -> RankingTrial:
    queries = ranking_queries(graph, step, seed=seed, num_per_family=6)
    return RankingTrial(graph=graph, queries=queries, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A scorer that keeps what it is given."""

    given: list

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        self.given.append((graph, labelled))

        def score_pairs(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
            self.given.append((source_P, target_P))
            return (source_P * 1000 + target_P).astype(np.float64)

        return score_pairs


@dataclass(frozen=True, kw_only=True)
class Random:
    """Random vectors: of seeds for the graph before the forecast step, and for an older one."""

    seeds: tuple[int, int] = (1, 2)

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        own = self.seeds[graph.until == STEP - 1]
        vectors_ND = np.random.default_rng(own).normal(size=(len(graph.history.node_N), 4))
        return lambda node_N: vectors_ND[node_N]


def test_each_distinct_pair_is_scored_once_and_keeps_its_direction():
    given: list = []
    trial = trial_of()
    scored = evaluate_queries("recorded", Recorded(given=given), trial)[0]
    (graph, labelled), (source_P, target_P) = given
    assert graph is trial.past
    assert labelled is trial.labelled
    assert len(set(zip(source_P.tolist(), target_P.tolist(), strict=True))) == len(source_P)
    queries = trial.queries
    np.testing.assert_array_equal(scored.score_Q, queries.source_Q * 1000 + queries.target_Q)
    valid_QC = queries.candidate_QC >= 0
    expected_QC = queries.source_Q[:, None] * 1000 + queries.candidate_QC
    np.testing.assert_array_equal(scored.score_QC[valid_QC], expected_QC[valid_QC])


def test_labelled_steps_are_the_three_before_and_read_only_their_own_past():
    labelled = labelled_steps(trial_of().past, seed=0)
    assert [step.before.until + 1 for step in labelled] == [5, 4, 3]
    assert [step.weight for step in labelled] == [1, 0.5, 0.25]
    for step in labelled:
        number = step.before.until + 1
        num_known = GRAPH.snapshots[number - 2].num_nodes
        assert len(step.before.history.node_N) == num_known
        rows, first = GRAPH.interactions, number - 1
        assert rows is not None
        inside = (rows.time_R >= first) & (rows.time_R < first + 1) & (rows.source_R != rows.target_R)
        links = set(zip(rows.source_R[inside].tolist(), rows.target_R[inside].tolist(), strict=True))
        examples = step.examples
        pairs = list(zip(examples.source_P.tolist(), examples.target_P.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
        positive = {pair for pair, label in zip(pairs, examples.positive_P, strict=True) if label}
        assert positive == {pair for pair in links if max(pair) < num_known}
        assert not {pair for pair, label in zip(pairs, examples.positive_P, strict=True) if not label} & links
        assert pairs != sorted(pairs)


@pytest.mark.parametrize("num_nodes", [12, 1000])
@pytest.mark.parametrize("kind", [{}, {"directed": False}, {"bipartite": True}], ids=str)
def test_pairs_of_the_first_stage_are_added_with_their_labels(
    kind: dict, num_nodes: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "NUM_RETRIEVING", num_nodes)
    monkeypatch.setattr(module, "RETRIEVED_PER_NODE", 3)
    graph = growing_log(num_nodes=80, num_steps=7, num_rows=60, **kind)
    past = prepare_graph(graph, until=STEP - 1, config=GraphConfig())
    sampled = sampled_steps(past, seed=0)
    retrieval, labelled = fit_retrieval(sampled), with_retrieved(past, sampled, seed=0)
    assert [step.weight for step in labelled] == [step.weight for step in sampled]
    for step, plain in zip(labelled, sampled, strict=True):
        pairs, known = pair_set(step.examples), pair_set(plain.examples)
        assert len(pairs) == len(step.examples.source_P)
        assert known < pairs
        retrieved = retrieved_pairs(step.before, retrieval)
        source_R, target_R = ordered(step.before.history, retrieved)
        chosen_from = set(zip(source_R.tolist(), target_R.tolist(), strict=True))
        added = pairs - known
        assert added <= chosen_from
        if not graph.directed:  # both orders are one pair
            assert len({frozenset(pair) for pair in added}) == len(added)
            assert not {frozenset(pair) for pair in added} & {frozenset(pair) for pair in known}
        linked = linked_in(graph, step.before.until + 1, *(np.array(end) for end in zip(*pairs, strict=True)))
        label_of = dict(zip(zip_pairs(step.examples), step.examples.positive_P.tolist(), strict=True))
        assert [label_of[pair] for pair in pairs] == linked.tolist()
        new_of = dict(zip(zip_pairs(step.examples), step.examples.new_P.tolist(), strict=True))
        before = {frozenset(pair) for snapshot in step.before.history.snapshots for pair in edges_of(snapshot)}
        assert all(new_of[pair] == (frozenset(pair) not in before) for pair in pairs)
        assert 0 < sum(not label_of[pair] for pair in added) <= 3 * min(num_nodes, len(step.before.history.node_N))
        if num_nodes == 1000:  # all nodes: no retrieved link is left out
            linked_R = linked_in(graph, step.before.until + 1, source_R, target_R)
            linked = set(zip(source_R[linked_R].tolist(), target_R[linked_R].tolist(), strict=True))
            assert all(pair in pairs or (not graph.directed and pair[::-1] in pairs) for pair in linked)
        assert zip_pairs(step.examples)[: len(known)] != zip_pairs(plain.examples)  # in random order


def test_pairs_of_the_first_stage_are_drawn_by_the_seed_and_on_graphs_of_few_nodes(monkeypatch: pytest.MonkeyPatch):
    past = prepare_graph(growing_log(num_nodes=80, num_steps=7, num_rows=60), until=STEP - 1, config=GraphConfig())
    sampled = sampled_steps(past, seed=0)
    first, again, other = (
        [zip_pairs(step.examples) for step in with_retrieved(past, steps, seed=seed)]
        for steps, seed in ((sampled, 0), (sampled_steps(past, seed=0), 0), (sampled, 1))
    )
    assert again == first
    assert other != first
    first_new, again_new, other_new = (
        [zip_pairs(step.new_partners) for step in with_retrieved(past, sampled, seed=seed)] for seed in (0, 0, 1)
    )
    assert again_new == first_new != other_new
    num_nodes = len(past.history.side_N)
    monkeypatch.setattr(module, "MAX_NODES", num_nodes)
    assert [zip_pairs(step.examples) for step in with_retrieved(past, sampled, seed=0)] == first
    monkeypatch.setattr(module, "MAX_NODES", num_nodes - 1)
    assert with_retrieved(past, sampled, seed=0) == sampled


@pytest.mark.parametrize("num_finding", [3, 1000])
@pytest.mark.parametrize("kind", [{}, {"directed": False}, {"bipartite": True}], ids=str)
def test_nodes_that_got_a_new_partner_have_possible_ones_of_the_first_stage(
    kind: dict, num_finding: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "NUM_FINDING", num_finding)
    monkeypatch.setattr(module, "NEW_PER_NODE", 4)
    if num_finding == 1000:  # some new partners are not retrieved
        monkeypatch.setattr(first_stage, "NUM_RETRIEVED", (8, 8))
    graph = growing_log(num_nodes=80, num_steps=7, num_rows=60, **kind)
    past = prepare_graph(graph, until=STEP - 1, config=GraphConfig())
    sampled = sampled_steps(past, seed=0)
    retrieval, found = fit_retrieval(sampled), False
    for step in with_retrieved(past, sampled, seed=0):
        retrieved = retrieved_pairs(step.before, retrieval)
        new = retrieved.rows(~retrieved.linked_R)
        source_R, target_R = ordered(step.before.history, new)
        came_R = linked_in(graph, step.before.until + 1, source_R, target_R)
        came_of = {
            (node, *pair): bool(came)
            for node, *pair, came in zip(new.node_R.tolist(), source_R.tolist(), target_R.tolist(), came_R, strict=True)
        }
        pairs = step.new_partners
        rows = list(zip(pairs.node_P.tolist(), zip_pairs(pairs), pairs.positive_P.tolist(), strict=True))
        assert len({(node, pair) for node, pair, _ in rows}) == len(rows)
        assert all(came_of[node, *pair] == came for node, pair, came in rows)
        nodes = set(pairs.node_P.tolist())
        finding = set(new.node_R[came_R].tolist())
        assert nodes <= finding
        assert len(nodes) == min(num_finding, len(finding))
        for node in nodes:
            num_came, num_possible = (int(rows_R[new.node_R == node].sum()) for rows_R in (came_R, came_R | True))
            own = [came for of, _, came in rows if of == node]
            assert len(own) == min(4, num_possible)
            assert sum(own) == min(4, num_came)
        found = found or bool(nodes)
    assert found


def zip_pairs(examples: LinkExamples | NewPartners) -> list[tuple[int, int]]:
    return list(zip(examples.source_P.tolist(), examples.target_P.tolist(), strict=True))


def pair_set(examples: LinkExamples) -> set[tuple[int, int]]:
    return set(zip_pairs(examples))


def edges_of(snapshot: Snapshot) -> list[tuple[int, int]]:
    return list(zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True))


def test_training_pairs_are_drawn_with_other_seeds_than_those_of_evaluations():
    negatives = []
    for examples in (ranking_examples(GRAPH, 5, seed=0), ranking_examples(GRAPH, 5, seed=1)):
        kind = ~examples.positive_P
        negatives.append(set(zip(examples.source_P[kind].tolist(), examples.target_P[kind].tolist(), strict=True)))
    assert negatives[0] != negatives[1]
    queries = ranking_queries(GRAPH, 5, seed=0, num_per_family=5, families=TRAINING_FAMILIES)
    drawn = {
        (s, c) for s, row in zip(queries.source_Q.tolist(), queries.candidate_QC.tolist(), strict=True) for c in row
    }
    assert negatives[0] != {pair for pair in drawn if pair[1] >= 0}


def test_a_step_with_many_links_has_a_sample_of_them_as_labelled_ones(monkeypatch: pytest.MonkeyPatch):
    every = ranking_examples(GRAPH, 5, seed=0)
    monkeypatch.setattr(module, "TRAINING_QUERIES", 4)
    some = ranking_examples(GRAPH, 5, seed=0)
    positive, all_positive = (
        set(zip(own.source_P[own.positive_P].tolist(), own.target_P[own.positive_P].tolist(), strict=True))
        for own in (some, every)
    )
    assert len(positive) == 4
    assert positive < all_positive
    assert set(some.source_P.tolist()) == {source for source, _ in positive}


def test_training_pairs_include_uniform_ones():
    side_N = (np.arange(len(GRAPH.node_N)) % 2).astype(np.int8)
    examples = ranking_examples(replace(GRAPH, side_N=side_N), 5, seed=0)
    is_one_side_P = side_N[examples.source_P] == side_N[examples.target_P]
    # Past partners are not new, and the other families stay on the other side.
    assert (is_one_side_P & examples.new_P & ~examples.positive_P).any()


def test_no_scorer_reads_the_forecast_step_or_a_later_one():
    """The queries are kept, and everything from their step on is replaced by another log's rows."""
    trial = trial_of()
    other = growing_log(num_steps=7, seed=9, num_rows=140)
    past, rows = prefix(GRAPH, STEP - 1), other.interactions
    assert past.interactions is not None
    assert rows is not None
    late = rows.position_R >= STEP - 1
    poisoned = replace(
        GRAPH,
        snapshots=(*past.snapshots, *other.snapshots[STEP - 1 :]),
        interactions=replace(
            past.interactions,
            **{
                name: np.concatenate([value_R, vars(rows)[name][late]])
                for name, value_R in vars(past.interactions).items()
            },
        ),
    )
    for title, method in {**SCORERS, "random": Random()}.items():
        for clean, dirty in zip(
            evaluate_queries(title, method, trial),
            evaluate_queries(title, method, replace(trial, graph=poisoned)),
            strict=True,
        ):
            assert clean.score_S.tobytes() == dirty.score_S.tobytes(), title


def test_the_past_does_reach_every_scorer():
    trial = trial_of()
    changed = replace(trial, graph=replace(growing_log(num_steps=7, seed=5), node_N=GRAPH.node_N, side_N=GRAPH.side_N))
    for title, method in SCORERS.items():
        clean, other = (evaluate_queries(title, method, each)[0] for each in (trial, changed))
        assert clean.score_S.tobytes() != other.score_S.tobytes(), title


def test_vectors_give_a_row_of_the_decoder_and_one_of_the_forecaster():
    scored = evaluate_queries("random", Random(), trial_of())
    assert [each.method for each in scored] == ["random", FORECASTER_WITH + "random"]
    assert scored[0].score_S.tobytes() != scored[1].score_S.tobytes()


def test_both_rows_read_vectors_that_do_not_know_the_labelled_links():
    assert isinstance(Random(), Embedder)
    (fixed, of_fixed), (anew, of_anew) = (
        [each.score_S.tobytes() for each in evaluate_queries("x", Random(seeds=seeds), trial_of())]
        for seeds in ((5, 5), (4, 5))
    )
    assert fixed != anew
    assert of_fixed != of_anew


@dataclass(frozen=True, kw_only=True)
class Linked:
    """Vectors of links to the first nodes; before the forecast step they may have other axes."""

    axes_DD: NDArray[np.float64]

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        linked_NN = np.eye(len(graph.history.node_N))
        for snapshot in graph.history.snapshots:
            linked_NN[snapshot.source_E, snapshot.target_E] += 1
            linked_NN[snapshot.target_E, snapshot.source_E] += 1
        vectors_ND = (linked_NN @ linked_NN)[:, :4]
        return lambda node_N: (vectors_ND @ self.axes_DD if graph.until == STEP - 1 else vectors_ND)[node_N]


def test_the_decoder_does_not_depend_on_the_axes_of_the_newest_vectors():
    axes_DD = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    same, other = (evaluate_queries("x", Linked(axes_DD=each), trial_of())[0].score_S for each in (np.eye(4), axes_DD))
    assert np.ptp(same) > 0.1
    np.testing.assert_allclose(same, other, atol=1e-9)


@pytest.mark.parametrize("directed", [True, False])
def test_the_forecaster_ranks_candidates_on_logs_without_direction_too(directed: bool):
    labelled = RankingTrial(graph=replace(GRAPH, directed=directed), queries=trial_of().queries, seed=0).labelled
    assert {(step.ranked, step.directed) for step in labelled} == {(True, directed)}
    assert len(Forecaster().fitted(labelled).heads) == 3


def test_scores_of_another_shape_or_not_finite_are_refused():
    @dataclass(frozen=True)
    class Broken:
        value: float
        num: int

        def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
            return lambda source_P, target_P: np.full(len(source_P) - self.num, self.value)

    with pytest.raises(ValueError, match="broken: found scores of shape"):
        evaluate_queries("broken", Broken(0.0, 1), trial_of())
    with pytest.raises(ValueError, match=r"broken: .* scores of step 6 are not finite"):
        evaluate_queries("broken", Broken(np.nan, 0), trial_of())


def test_a_graph_without_labelled_steps_is_refused_by_name():
    lacks = "none of the newest 3 steps up to 1 has 2 links between .*, or choose longer windows"
    with pytest.raises(TooFewLinks, match=lacks):
        labelled_steps(trial_of(step=2).past, seed=0)


def test_a_graph_whose_known_nodes_are_all_linked_is_refused_for_want_of_pairs_without_a_link():
    graph = toy_graph(*[list(permutations(range(5), 2))] * 4)
    past = prepare_graph(graph, until=4, config=GraphConfig())
    lacks = "has links, and 2 pairs without a link, between nodes known before it.*, or choose shorter windows"
    with pytest.raises(TooFewLinks, match=lacks):
        labelled_steps(past, seed=0)


@pytest.mark.parametrize(("links", "expected"), [([(0, 1), (1, 2)], [3, 4, 5]), ([(0, 1)], [])])
def test_a_step_can_be_forecast_if_one_of_the_three_before_has_two_links(links: list, expected: list[int]):
    graph = toy_graph([(0, 1), (1, 2), (2, 3)], links, [], [], [], [], [])
    assert [step for step in range(2, 8) if has_labelled_steps(graph, step)] == expected


def test_scores_survive_their_table_and_those_of_other_queries_are_refused():
    trial = trial_of()
    scored = evaluate_queries("L3", SCORERS["L3"], trial)
    back = from_table(to_table(scored), trial.queries)
    assert [each.method for each in back] == ["L3"]
    assert back[0].score_S.tobytes() == scored[0].score_S.tobytes()
    with pytest.raises(ValueError, match="of other queries"):
        from_table(to_table(scored), trial_of(seed=1).queries)


@pytest.mark.parametrize("num_links", [0, 1, 2])
def test_a_newest_step_of_one_link_is_not_learnt_from_and_stops_no_method(num_links: int):
    rows = GRAPH.interactions
    assert rows is not None
    first = sum(each.num_interactions for each in GRAPH.snapshots[: STEP - 2])
    newest, until = GRAPH.snapshots[STEP - 2], GRAPH.snapshots[STEP - 3].num_nodes
    source_R, target_R = rows.source_R.copy(), rows.target_R.copy()
    step = slice(first, first + newest.num_interactions)
    target_R[step] = source_R[step] = 0
    source_R[first : first + num_links], target_R[first : first + num_links] = 1, np.arange(2, 2 + num_links)
    ends = np.ones(num_links, dtype=np.int64), np.arange(2, 2 + num_links)
    thin = replace(newest, source_E=ends[0], target_E=ends[1], weight_E=np.ones(num_links))
    snapshots = (*GRAPH.snapshots[: STEP - 2], thin, *GRAPH.snapshots[STEP - 1 :])
    assert until > 3
    graph = replace(GRAPH, snapshots=snapshots, interactions=replace(rows, source_R=source_R, target_R=target_R))
    trial = trial_of(graph)
    assert trial.labelled[0].before.until == (STEP - 2 if num_links == 2 else STEP - 3)
    for name, method in {**SCORERS, "Vectors": Random()}.items():
        assert evaluate_queries(name, method, trial)
