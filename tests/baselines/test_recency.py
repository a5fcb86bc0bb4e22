import math
from dataclasses import replace

import numpy as np
import pytest
from ranked_logs import growing_log
from toy_graphs import toy_graph

from dyformer.baselines.recency import ActiveAdamicAdar, ContactRecency, LatestContact, decayed_contacts
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, interactions_of
from dyformer.sampling.pairs import LinkExamples
from dyformer.scoring.interfaces import LabelledStep, Scorer

GRAPH = growing_log()
NODES = np.arange(25)
SOURCE_P, TARGET_P = (end_P.ravel() for end_P in np.meshgrid(NODES, NODES))


def prepared(graph: DynamicGraph = GRAPH, until: int = 4) -> PreparedGraph:
    return prepare_graph(graph, until=until, config=GraphConfig())


def scores_of(method: Scorer, graph: PreparedGraph) -> np.ndarray:
    return method.fit_pairs(graph, ())(SOURCE_P, TARGET_P)


def contacts_of(graph: DynamicGraph, until: int) -> dict[tuple[int, int], float]:
    """The decayed contacts of ordered pairs, from the rows; one row of these logs lies at the start of its window."""
    rows, found = interactions_of(graph), {}
    for source, target, time in zip(rows.source_R.tolist(), rows.target_R.tolist(), rows.time_R.tolist(), strict=True):
        if source != target and time < until:
            found[source, target] = found.get((source, target), 0.0) + 0.5 ** (until - time)
    return found


@pytest.mark.parametrize(("directed", "of_pairs"), [(True, True), (True, False), (False, False)])
def test_contact_recency_is_its_formula(directed: bool, of_pairs: bool):
    contact, until = contacts_of(GRAPH, 4), 4
    assert sum(value > 0.5 for value in contact.values()) > 5
    activity = {node: sum(value for pair, value in contact.items() if node in pair) for node in NODES.tolist()}
    received, of_source = (0.7, 0) if of_pairs else (1.0, 1)
    expected = [
        contact.get((s, t), 0) + received * contact.get((t, s), 0) + 1e-5 * (activity[t] + of_source * activity[s])
        for s, t in zip(SOURCE_P.tolist(), TARGET_P.tolist(), strict=True)
    ]
    graph = prepared(replace(GRAPH, directed=directed), until)
    nothing = np.zeros(0, dtype=np.int64)
    examples = LinkExamples(source_P=nothing, target_P=nothing, positive_P=nothing > 0, new_P=nothing > 0)
    labelled = [LabelledStep(before=graph, examples=examples, weight=1.0, directed=of_pairs)]
    found = ContactRecency().fit_pairs(graph, labelled)(SOURCE_P, TARGET_P)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    if directed == of_pairs:
        np.testing.assert_array_equal(scores_of(ContactRecency(), graph), found)


def test_a_contact_halves_in_one_window_and_within_it():
    graph = toy_graph([(0, 1), (1, 2), (2, 3), (3, 4)], [(4, 0)])
    score = ContactRecency(activity_weight=0.0).fit_pairs(prepared(graph, 2), ())
    first, second, third, fourth, newest = score(np.array([0, 1, 2, 3, 4]), np.array([1, 2, 3, 4, 0]))
    assert newest / first == pytest.approx(2)
    for earlier, later in ((first, second), (second, third), (third, fourth)):
        assert later / earlier == pytest.approx(2**0.25)
    assert first == pytest.approx(0.25)


def test_reversed_contacts_count_less_and_strangers_by_activity():
    score = ContactRecency().fit_pairs(prepared(toy_graph([(0, 1), (2, 3), (2, 4), (2, 5), (0, 3)]), 1), ())
    sent, received, busy, quiet = score(np.array([0, 1, 1, 1]), np.array([1, 0, 2, 4]))
    assert sent > received > busy > quiet > 0


@pytest.mark.parametrize("newest_only", [True, False])
@pytest.mark.parametrize(("directed", "of_pairs"), [(True, True), (True, False), (False, False)])
def test_latest_contact_is_its_rule(directed: bool, of_pairs: bool, newest_only: bool):
    until, contact = 4, contacts_of(GRAPH, 4)
    activity = {node: sum(value for pair, value in contact.items() if node in pair) for node in NODES.tolist()}
    rows = interactions_of(GRAPH)
    latest = {}  # of pairs in both orders, since the rows are in order of time
    for source, target, time in zip(rows.source_R.tolist(), rows.target_R.tolist(), rows.time_R.tolist(), strict=True):
        if source != target and time < until:
            latest[source, target] = latest[target, source] = time
    newest = {node: max((time for pair, time in latest.items() if node in pair), default=-1) for node in NODES.tolist()}
    expected = []
    for source, target in zip(SOURCE_P.tolist(), TARGET_P.tolist(), strict=True):
        time = latest.get((source, target), -1)
        first = newest[source] if of_pairs else min(newest[source], newest[target])
        busy = activity[target] if of_pairs else activity[target] + activity[source]
        is_partner = time >= first if newest_only and time >= 0 else time >= 0
        expected.append(1 + time / until if is_partner else busy / (1 + busy))
    assert 20 < sum(score >= 1 for score in expected) < len(expected) / 2
    nothing = np.zeros(0, dtype=np.int64)
    graph = prepared(replace(GRAPH, directed=directed), until)
    examples = LinkExamples(source_P=nothing, target_P=nothing, positive_P=nothing > 0, new_P=nothing > 0)
    labelled = [LabelledStep(before=graph, examples=examples, weight=1.0, directed=of_pairs)]
    found = LatestContact(newest_only=newest_only).fit_pairs(graph, labelled)(SOURCE_P, TARGET_P)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("directed", [True, False])
def test_where_a_pair_has_no_direction_the_newest_contact_is_that_of_either_end(directed: bool):
    graph = replace(toy_graph([(0, 1), (0, 2)]), directed=directed)
    first, back, newest = LatestContact(newest_only=True).fit_pairs(prepared(graph, 1), ())(
        np.array([0, 1, 0]), np.array([1, 0, 2])
    )
    assert (first >= 1) == (not directed)
    assert back >= 1
    assert newest > back


def test_of_a_log_of_self_loops_all_targets_have_one_score():
    found = LatestContact().fit_pairs(prepared(toy_graph([(0, 0), (1, 1)]), 1), ())(np.array([0]), np.array([1]))
    assert found.tolist() == [0]


def test_adamic_adar_is_multiplied_by_the_activity_of_both_ends():
    until, contact = 3, contacts_of(GRAPH, 3)
    graph = prepared(until=until)
    neighbours = {node: {a + b - node for a, b in contact if node in (a, b)} for node in range(40)}
    activity = {node: sum(value for pair, value in contact.items() if node in pair) for node in range(40)}
    num_nodes = len(graph.history.node_N)
    known = (num_nodes > SOURCE_P) & (num_nodes > TARGET_P) & (SOURCE_P != TARGET_P)
    pairs = list(zip(SOURCE_P[known].tolist(), TARGET_P[known].tolist(), strict=True))
    expected = [
        activity[s] * activity[t] * sum(1 / math.log(len(neighbours[k])) for k in neighbours[s] & neighbours[t])
        for s, t in pairs
    ]
    found = ActiveAdamicAdar().fit_pairs(graph, ())(*np.array(pairs).T)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert (found > 0).any()
    assert (found == 0).any()


def test_self_loops_and_later_rows_are_no_contacts():
    contacts = decayed_contacts(prepared(until=2))
    assert not contacts.sent(NODES[:5], NODES[:5]).any()
    rows = interactions_of(GRAPH)
    assert ((rows.source_R == rows.target_R) & (rows.time_R < 2)).any()
    assert contacts.contact_K.sum() == pytest.approx(sum(contacts_of(GRAPH, 2).values()))


def test_a_graph_without_interactions_is_refused():
    with pytest.raises(ValueError, match="interactions"):
        ContactRecency().fit_pairs(prepared(replace(GRAPH, interactions=None)), ())
