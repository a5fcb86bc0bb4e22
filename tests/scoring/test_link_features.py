"""Features of links against a slow version that loops over the rows of the log and multiplies dense matrices."""

import itertools
import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_graphs import Edges, toy_graph

from dyformer.graphs.kernels.paths import _read_by
from dyformer.graphs.snapshots import DynamicGraph, build_snapshots, from_tables, interactions_of, prefix, to_tables
from dyformer.logs.time_windows import Window
from dyformer.scoring import link_features
from dyformer.scoring.contact_features import SIDES
from dyformer.scoring.link_features import SMOOTH, SYMMETRIC, WITH_DIRECTION, groups, names, prepare_link_features
from dyformer.scoring.pair_features import prepare_pair_features
from dyformer.streams.factorisation import DENSE_NODES

Row = tuple[int, int, int, float]  # source, target, time, weight
LENGTH = 5  # moments of a window


def graph_of(rows: list[Row]) -> DynamicGraph:
    schema = {"source": pl.Int64, "target": pl.Int64, "time": pl.Int64, "weight": pl.Float64}
    return build_snapshots(pl.DataFrame(rows, schema=schema, orient="row"), Window.parse(str(LENGTH)), "step")


def ordered_pairs(num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    source_P, target_P = np.nonzero(~np.eye(num_nodes, dtype=bool))
    return source_P, target_P


class Plain:
    """The formulas, computed from the rows with dictionaries, sets and dense matrices."""

    def __init__(self, rows: list[Row], history: DynamicGraph) -> None:
        number = {node: index for index, node in enumerate(history.node_N.tolist())}
        self.nodes = range(len(number))
        first = min(time for *_, time, _ in rows)
        end = history.num_steps * LENGTH + first
        self.rows = [(number[a], number[b], (end - t) / LENGTH, w) for a, b, t, w in rows if t < end]
        self.never = history.num_steps + 1
        self.decayed = {h: defaultdict(float) for h in (0.25, 1, 4)}
        for (a, b, age, weight), h in itertools.product(self.rows, self.decayed):
            self.decayed[h][a, b] += math.log1p(weight) / math.log(2) * 0.5 ** (age / h)
        self.links = [
            {frozenset((a, b)) for a, b, age, _ in self.rows if math.ceil(age) == history.num_steps - step and a != b}
            for step in range(history.num_steps)
        ]
        contacts = np.array([[self.decayed[4][a, b] if a != b else 0 for b in self.nodes] for a in self.nodes])
        self.both = contacts + contacts.T
        root = np.sqrt(np.where(self.both.sum(0) > 0, self.both.sum(0), 1))
        step = self.both / root[:, None] / root
        self.walks = step @ step, step @ step @ step
        self.joined = self.sides()
        self.smooth = [column for rank in (16, 32) for column in self.smoothed(rank)]
        left, value, right = np.linalg.svd(np.log1p(contacts))
        self.left, self.right = (side[:, :32] * np.sqrt(value[:32]) for side in (left, right.T))
        self.ends = [self.end(node) for node in self.nodes]
        self.newest = [
            {other: min(self.age({i}, {other}), self.age({other}, {i})) for other in self.nodes if other != i}
            for i in self.nodes
        ]

    def sides(self) -> np.ndarray:
        """1 where walks of odd length alone join two nodes, -1 where walks of even length alone do, else 0."""
        linked = np.zeros((len(self.nodes), len(self.nodes)), dtype=int)
        for a, b in (link for step in self.links for link in step):
            linked[a, b] = linked[b, a] = 1
        reached, found = np.eye(len(linked), dtype=int), [np.zeros_like(linked), np.zeros_like(linked)]
        for length in range(2 * len(linked)):
            found[length % 2] |= reached
            reached = (reached @ linked > 0).astype(int)
        return found[1] - found[0]

    def smoothed(self, rank: int) -> list[np.ndarray]:
        lasting = np.zeros((len(self.nodes), len(self.nodes)))
        for a, b, age, weight in self.rows:
            if a != b:
                lasting[a, b] += math.log1p(weight) / math.log(2) * 0.5 ** (age / 16)
        lasting = np.log1p(lasting + lasting.T)
        total = lasting.sum(0)
        root = np.sqrt(total + 0.3 * (total[total > 0].mean() if total.any() else 1))
        value, vector = np.linalg.eigh(lasting / root / root[:, None])
        chosen = np.argsort(-abs(value), kind="stable")[:rank]
        once, cubed, size = (
            (vector[:, chosen] * power[chosen]) @ vector[:, chosen].T for power in (value, value**3, abs(value))
        )
        length = np.sqrt(size.diagonal())
        length[length <= 1e-6 * length.max()] = np.inf
        return [once, cubed, once / length / length[:, None]]

    def age(self, source: set[int], target: set[int], choose=min) -> float:
        return choose((age for a, b, age, _ in self.rows if a in source and b in target), default=self.never)

    def newer_partners(self, i: int, j: int) -> int:
        """Count the partners of i with a newer contact than j; of a node with itself as if it were none."""
        return sum(age < self.newest[i].get(j, self.never) for age in self.newest[i].values())

    def end(self, node: int) -> list[float]:
        mine, all_nodes = {node}, set(self.nodes)
        sent = [sum(self.decayed[h][node, other] for other in self.nodes) for h in self.decayed]
        received = [sum(self.decayed[h][other, node] for other in self.nodes) for h in self.decayed]
        first = max((age for a, b, age, _ in self.rows if node in (a, b)), default=self.never)
        ages = [self.age(mine, all_nodes), self.age(all_nodes, mine), first]
        near = {other for step in self.links for link in step if node in link for other in link - mine}
        recent = range(max(len(self.links) - 4, 0), len(self.links))
        links = [(step, link) for step in recent for link in self.links[step] if node in link]
        new = [link for step, link in links if not any(link in earlier for earlier in self.links[:step])]
        total = self.both[node].sum()
        return [
            *map(math.log1p, [*sent, *received, *ages, len(near)]),
            len(new) / len(links) if links else 0,
            sum((self.both[node] / total) ** 2) if total else 0,
        ]

    def one_way(self, i: int, j: int) -> list[float]:
        sent = sum(self.decayed[4][i, other] for other in self.nodes)
        product = self.left[i] @ self.right[j]
        lengths = np.linalg.norm(self.left[i]) * np.linalg.norm(self.right[j])
        return [
            *(math.log1p(self.decayed[h][i, j]) for h in self.decayed),
            math.log1p(self.age({i}, {j})),
            math.log1p(self.newer_partners(i, j)),
            self.decayed[4][i, j] / sent if sent else 0,
            product,
            product / lengths if lengths > 1e-9 else 0,
            *self.ends[i],
        ]

    def directed(self, i: int, j: int) -> list[float]:
        walks = [math.log1p(1e4 * walk[i, j]) for walk in self.walks]
        smooth = [column[i, j] for column in self.smooth]
        return [*walks, self.joined[i, j], *smooth, *self.one_way(i, j), *self.one_way(j, i)]


def assert_equal_to_plain(rows: list[Row], history: DynamicGraph) -> None:
    plain, features = Plain(rows, history), prepare_link_features(history)
    source_P, target_P = ordered_pairs(len(history.node_N))
    expected = np.array([plain.directed(i, j) for i, j in zip(source_P.tolist(), target_P.tolist(), strict=True)])
    expected = expected.reshape(len(source_P), len(SYMMETRIC) - 14 + 2 * len(WITH_DIRECTION))
    found = features.directed(source_P, target_P)
    assert found.shape == (len(source_P), len(names(directed=True)))
    assert np.isfinite(found).all()
    for column, name in enumerate(names(directed=True)[14:]):
        np.testing.assert_allclose(found[:, 14 + column], expected[:, column], rtol=2e-5, atol=2e-5, err_msg=name)
    if history.num_steps and len(source_P):
        np.testing.assert_allclose(found[:, :14], prepare_pair_features(history).table(source_P, target_P), rtol=1e-5)
    num_symmetric = len(SYMMETRIC) - 14
    there, back = np.split(expected[:, num_symmetric:], 2, axis=1)
    undirected = np.hstack([expected[:, :num_symmetric], (there + back) / 2, np.abs(there - back)])
    np.testing.assert_allclose(features.undirected(source_P, target_P)[:, 14:], undirected, rtol=2e-5, atol=2e-5)


rows_of_logs = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 40), st.sampled_from([0.0, 1.0, 1.0, 2.5])),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(rows_of_logs, st.data())
def test_features_equal_their_formulas(rows: list[Row], data):
    graph = graph_of(rows)
    history = prefix(graph, data.draw(st.integers(1, graph.num_steps)))
    assert_equal_to_plain(rows, history)


def random_rows(num_nodes: int, num_rows: int, *, seed: int) -> list[Row]:
    generator = np.random.default_rng(seed)
    ends = (generator.random((num_rows, 2)) ** 2 * num_nodes).astype(int).tolist()
    times = generator.integers(0, 8 * LENGTH, num_rows).tolist()
    return [(a, b, t, w) for (a, b), t, w in zip(ends, times, generator.integers(1, 4, num_rows) / 2, strict=True)]


def set_hubs(monkeypatch: pytest.MonkeyPatch, num_hubs: int) -> None:
    monkeypatch.setattr(link_features, "LARGE_NODES", 0)
    monkeypatch.setattr(link_features, "NUM_HUBS", num_hubs)


@pytest.mark.parametrize("num_hubs", [0, 1, 20, 200])
def test_features_of_a_larger_graph_equal_their_formulas(num_hubs: int, monkeypatch: pytest.MonkeyPatch):
    set_hubs(monkeypatch, num_hubs)
    rows = random_rows(100, 500, seed=0)
    history = graph_of(rows)
    assert len(history.node_N) > DENSE_NODES
    assert_equal_to_plain(rows, history)


def test_smooth_cosines_of_nodes_outside_the_largest_eigenvectors_are_zero():
    rows = [(2 * pair, 2 * pair + 1, 0, 1.0) for pair in range(40) for _ in range(pair + 1)]
    history = graph_of(rows)
    assert len(history.node_N) > DENSE_NODES
    table = prepare_link_features(history).directed(np.arange(0, 80, 2), np.arange(1, 80, 2))
    cosine_16, cosine_32 = (table[:, names(directed=True).index(f"smooth_cosine_{rank}")] for rank in (16, 32))
    assert cosine_16[:32].tolist() == [0] * 32
    assert cosine_32[:24].tolist() == [0] * 24
    assert np.isfinite(table).all()


def test_features_of_a_pair_by_hand():
    #  two windows; node 0 sends to 1 at ages 2, 1 and 0.2, 1 sends to 0 at 0.4, and 1 sends to 2 at 0.6
    rows = [(0, 1, 0, 1.0), (0, 1, 5, 1.0), (1, 2, 7, 3.0), (1, 0, 8, 1.0), (0, 1, 9, 1.0)]
    features = prepare_link_features(graph_of(rows))
    found = dict(zip(names(directed=True), features.directed(np.array([0]), np.array([1]))[0].tolist(), strict=True))
    sent, received = 0.5**0.5 + 0.5**0.25 + 0.5**0.05, 0.5**0.1
    expected = {
        "log_contacts_4": math.log1p(sent),
        "log_contacts_4_back": math.log1p(received),
        "log_contacts_1": math.log1p(0.25 + 0.5 + 0.5**0.2),
        "log_contacts_025": math.log1p(0.5**8 + 0.5**4 + 0.5**0.8),
        "log_since_contact": math.log1p(0.2),
        "log_since_contact_back": math.log1p(0.4),
        "log_newer_partners": 0,
        "log_newer_partners_back": 0,
        "fraction_of_source": 1,
        "fraction_of_source_back": received / (received + 2 * 0.5**0.15),  # a weight of 3 counts as 2 contacts
        "log_since_sent_back": math.log1p(0.4),
        "log_since_received_back": math.log1p(0.2),
        "log_since_first": math.log1p(2),
        "log_partners_back": math.log1p(2),
        "new_link_fraction": 0.5,  # 0-1 in both windows, new in the first
        "new_link_fraction_back": 2 / 3,
        "concentration": 1,
        "log_walks_2": 0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    never = dict(zip(names(directed=True), features.directed(np.array([2]), np.array([0]))[0].tolist(), strict=True))
    assert never["log_since_contact"] == never["log_since_sent"] == pytest.approx(math.log1p(3))
    assert never["log_contacts_4"] == never["fraction_of_source"] == 0
    assert never["log_newer_partners"] == pytest.approx(math.log1p(1))
    assert features.directed(np.array([1]), np.array([2]))[0, names(directed=True).index("log_newer_partners")] > 0


def test_sides_of_a_bipartite_log_are_known_without_links():
    graph = toy_graph([(0, 1)], [(2, 3)], [(4, 5), (1, 4)], sides=[0, 1, 0, 1, 0, 1])
    unnamed = toy_graph([(0, 1)], [(2, 3)], [(4, 5), (1, 4)])
    pairs = np.array([[0, 0, 0, 2, 5], [4, 5, 3, 4, 3]])
    column = names(directed=True).index("opposite_sides")
    assert prepare_link_features(graph).directed(*pairs)[:, column].tolist() == [-1, 1, 1, -1, -1]
    assert prepare_link_features(unnamed).directed(*pairs)[:, column].tolist() == [-1, 1, 0, 0, 0]
    assert prepare_link_features(prefix(unnamed, 2)).directed(*pairs[:, 2:3] // 3)[:, column].tolist() == [1]


def test_an_undirected_table_does_not_depend_on_the_order_of_the_ends():
    features = prepare_link_features(graph_of(random_rows(30, 200, seed=1)))
    source_P, target_P = ordered_pairs(30)
    there, back = features.undirected(source_P, target_P), features.undirected(target_P, source_P)
    np.testing.assert_array_equal(there, back)
    directed = features.directed(source_P, target_P)
    assert not np.array_equal(directed, features.directed(target_P, source_P))
    np.testing.assert_array_equal(directed[:, : len(SYMMETRIC)], there[:, : len(SYMMETRIC)])


def test_features_of_a_pair_do_not_depend_on_the_other_pairs(monkeypatch: pytest.MonkeyPatch):
    features = prepare_link_features(graph_of(random_rows(80, 300, seed=2)))
    source_P, target_P = ordered_pairs(len(features.ends_NF))
    together = features.directed(source_P, target_P)
    order_P = np.random.default_rng(0).permutation(len(source_P))
    np.testing.assert_array_equal(features.directed(source_P[order_P], target_P[order_P]), together[order_P])
    np.testing.assert_array_equal(features.directed(source_P[5:6], target_P[5:6]), together[5:6])
    monkeypatch.setattr(link_features, "BLOCK_PAIRS", 7)
    monkeypatch.setattr(link_features, "BLOCK_WALKS", 10)
    np.testing.assert_array_equal(features.directed(source_P[:99], target_P[:99]), together[:99])


@pytest.mark.parametrize("num_hubs", [0, 3])
def test_walks_that_are_read_at_few_nodes_are_those_of_all_nodes(num_hubs: int, monkeypatch: pytest.MonkeyPatch):
    set_hubs(monkeypatch, num_hubs)
    # 0 has 30 neighbours, of which each has 20 others: 660 walks of two steps. 632 hangs on 631, and 631 on 31.
    branches = [(1 + n, 31 + 20 * n + m) for n in range(30) for m in range(20)]
    ends = [[*((0, 1 + n) for n in range(30)), (31, 631), (1, 40)], branches, [(5, 631), (631, 632), (2, 9)]]
    features = prepare_link_features(toy_graph(*ends, sides=[0] * 633))
    slots, node_P = (features.pairs.union.indptr, features.pairs.union.indices), np.arange(1, 633)
    for second_P, num_read in ([631], 3), ([31, 631], 5), (node_P, -1):
        no_hub_N, is_read_N = np.full(633, -1, dtype=np.int32), np.zeros(633, dtype=np.bool_)
        found = _read_by(*slots, np.array(second_P), 660, no_hub_N, is_read_N, np.empty(633, dtype=np.int32))
        assert found == num_read  # -1: for many pairs all walks are made
        assert not is_read_N.any()
    together = features.walks(np.zeros_like(node_P), node_P)
    assert "_hub_walks" not in vars(features)
    twice = features.walks(np.zeros(2 * 632, dtype=np.int64), np.tile(node_P, 2))  # more pairs than nodes
    assert features._hub_walks.shape == (633, num_hubs, 2)
    np.testing.assert_array_equal(twice.sums_P5, np.tile(together.sums_P5, (2, 1)))
    alone = [features.walks(np.array([0]), np.array([node])) for node in node_P]
    np.testing.assert_array_equal(np.concatenate([walks.sums_P5 for walks in alone]), together.sums_P5)
    np.testing.assert_array_equal(np.concatenate([walks.edge_P for walks in alone]), together.edge_P)
    one_by_one = [features.pairs.table(np.array([0]), np.array([node])) for node in node_P]
    np.testing.assert_array_equal(np.concatenate(one_by_one), features.pairs.table(np.zeros_like(node_P), node_P))


def test_hubs_change_no_sum_but_by_single_precision(monkeypatch: pytest.MonkeyPatch):
    rows = random_rows(300, 4000, seed=4)
    source_P, target_P = ordered_pairs(300)
    found = {}
    for num_hubs in (0, 16):
        set_hubs(monkeypatch, num_hubs)
        features = prepare_link_features(graph_of(rows))
        found[num_hubs] = features.walks(source_P, target_P)
        hubs = features._hubs
        assert (hubs[0] >= 0).sum() == num_hubs
        assert features.pairs.degree_N[hubs[0] >= 0].sum() == np.sort(features.pairs.degree_N)[300 - num_hubs :].sum()
    np.testing.assert_array_equal(found[16].edge_P, found[0].edge_P)
    others = found[0].sums_P5[:, [0, 1, 3]].astype(np.float32)
    np.testing.assert_array_equal(found[16].sums_P5[:, [0, 1, 3]], others)
    np.testing.assert_allclose(found[16].sums_P5, found[0].sums_P5, rtol=1e-6)
    assert (found[16].sums_P5[:, 2] != found[0].sums_P5[:, 2]).any()


def test_relabelling_nodes_permutes_the_features_alone():
    generator = np.random.default_rng(3)
    steps: list[Edges] = []
    for _ in range(5):
        ends = generator.integers(90, size=(80, 2)).tolist()
        steps.append([(a, b) for a, b in ends if a != b])
    steps[0] += [(node, node + 1) for node in range(89)]
    name_N = generator.permutation(90)
    renamed = toy_graph(*([(int(name_N[a]), int(name_N[b])) for a, b in step] for step in steps), sides=[0] * 90)
    source_P, target_P = ordered_pairs(90)
    found = prepare_link_features(renamed).directed(name_N[source_P], name_N[target_P])
    expected = prepare_link_features(toy_graph(*steps)).directed(source_P, target_P)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(rows_of_logs, rows_of_logs, st.data())
def test_later_rows_change_no_byte_and_earlier_ones_do(rows: list[Row], future: list[Row], data):
    graph = graph_of(rows)
    until = data.draw(st.integers(1, graph.num_steps))
    end = graph.snapshots[until - 1].end_time
    past, rest = [row for row in rows if row[2] < end], [row for row in rows if row[2] >= end]
    poisoned = graph_of([*past, *((a + 3, b + 9, end + t, 50 * w) for a, b, t, w in future)])
    pairs = ordered_pairs(graph.snapshots[until - 1].num_nodes)
    expected = prepare_link_features(prefix(graph, until)).directed(*pairs)
    assert prepare_link_features(prefix(poisoned, until)).directed(*pairs).tobytes() == expected.tobytes()
    if len(expected):
        a, b, time, _ = past[-1]
        changed = prefix(graph_of([*past, (a, b, time, 1.0), *rest]), until)
        assert prepare_link_features(changed).directed(*pairs).tobytes() != expected.tobytes()


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 0, 0, 1.0), (1, 1, 3, 1.0)],
        [(0, 1, 0, 1.0), (2, 3, 30_000, 1.0)],
        [(0, 1, 0, 0.0), (1, 2, 30, 0.0)],
        [(0, 1, 3, 1.0)],
    ],
    ids=["self-loops alone", "contacts decayed to 0", "weights of 0", "one row"],
)
def test_histories_without_contacts_have_finite_features(rows: list[Row]):
    history = graph_of(rows)
    pairs = ordered_pairs(len(history.node_N))
    features = prepare_link_features(history)
    directed = features.directed(*pairs)
    assert np.isfinite(directed).all()
    assert np.isfinite(features.undirected(*pairs)).all()
    ages = [index for index, name in enumerate(names(directed=True)) if "since_" in name and "log" in name]
    assert directed[:, ages].max(initial=0) <= np.float32(math.log1p(history.num_steps + 1))
    none = np.empty(0, dtype=np.int64)
    assert features.directed(none, none).shape == (0, len(names(directed=True)))


@pytest.mark.parametrize("directed", [True, False])
def test_every_column_has_one_name_and_one_group(directed: bool):
    columns = names(directed)
    assert len(set(columns)) == len(columns) == 16 + 7 + 2 * (8 + len(SIDES))
    members = [index for group in groups(directed).values() for index in group]
    assert sorted(members) == list(range(len(columns)))
    assert [columns[index] for index in groups(directed)["factors"]][len(SMOOTH) :] == (
        ["factor_product", "factor_cosine", "factor_product_back", "factor_cosine_back"]
        if directed
        else ["mean_factor_product", "mean_factor_cosine", "difference_factor_product", "difference_factor_cosine"]
    )


def test_a_node_outside_the_history_is_refused():
    features = prepare_link_features(graph_of([(0, 1, 0, 1.0)]))
    with pytest.raises(ValueError, match="expected nodes of the history, 0 to 1"):
        features.directed(np.array([0]), np.array([2]))


def test_a_history_without_interactions_is_refused():
    history = from_tables(to_tables(graph_of([(0, 1, 0, 1.0)])))
    with pytest.raises(ValueError, match="interactions=True"):
        prepare_link_features(history)


def test_interactions_of_another_graph_are_our_error():
    one, other = graph_of([(0, 1, 0, 1.0), (2, 3, 0, 1.0)]), graph_of([(0, 1, 0, 1.0), (1, 2, 0, 1.0), (2, 3, 0, 1.0)])
    with pytest.raises(AssertionError, match="are those of its snapshots"):
        prepare_link_features(replace(one, interactions=interactions_of(other)))
