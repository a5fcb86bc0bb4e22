"""The graph engine against slow exact definitions, on random graphs with every special case.

N nodes    T lags    G targets    C context nodes    H heads    D width    R rows of the log    A rows with a shape
W weights of a model
"""

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import hypothesis.strategies as st
import networkx as nx
import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, event, given, note, settings
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse.csgraph import shortest_path
from torch.func import functional_call

from dyformer.graphs import distances, hub_first_graph
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.distances import distance_block
from dyformer.graphs.pagerank import joint_context
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, build_snapshots
from dyformer.logs.time_windows import Window
from dyformer.model.config import ModelConfig, ModelSizes
from dyformer.model.encodings import AttentionBias
from dyformer.model.transformer import DyFormer
from dyformer.sampling.pairs import node_batches
from dyformer.sampling.subgraphs import AsOfGraph, SubgraphBatch, as_of_graph, make_batch
from dyformer.training.stages import embed, started_model

MOST_NODES = 60
WIDTH, HEADS = 4, 2
LOGS = 4  # of one shape and size for each case of hypothesis, which takes longer to draw a case than to check a log
SHAPES = ("empty", "isolated", "duplicates", "disconnected", "star", "path", "bipartite", "sparse", "dense")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A generated log and the settings to check it with."""

    events: pl.DataFrame
    config: GraphConfig
    hides_step: bool
    few_hubs: bool
    generator: np.random.Generator


def drawn(test, num_graphs: int):
    """Draw cases: a shape, sizes and a seed, because hypothesis draws long lists of edges slowly."""
    parts = {
        "shape": st.sampled_from(SHAPES),
        "num_nodes": st.integers(1, MOST_NODES),
        "num_steps": st.integers(1, 6),
        "window": st.none() | st.integers(1, 6),
        "max_distance": st.integers(1, 7),
        "hides_step": st.booleans(),
        "few_hubs": st.booleans(),
        "seed": st.integers(0, 2**32 - 1),
    }
    set_up = settings(
        max_examples=num_graphs // LOGS,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )

    def case_of(shape, num_nodes, num_steps, window, max_distance, generator, **choices) -> Case:
        return Case(
            events=log(shape, num_nodes, num_steps, generator),
            config=GraphConfig(history_window=window, max_distance=max_distance, teleport=generator.uniform(0.15, 0.5)),
            generator=generator,
            **choices,
        )

    def on_case(parts: dict[str, Any]) -> None:
        event(parts["shape"])
        seed = parts.pop("seed")
        with pytest.MonkeyPatch.context() as patch:
            if parts["few_hubs"]:
                search_as_on_a_large_graph(patch)
            for number in range(LOGS):
                test(case_of(**parts, generator=np.random.default_rng([seed, number + 1])))

    on_case.__name__ = test.__name__
    return set_up(given(st.fixed_dictionaries(parts))(on_case))  # one argument: hypothesis spends time on each


def search_as_on_a_large_graph(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hub_first_graph, "SMALL_GRAPH", 0)
    patch.setattr(hub_first_graph, "NUM_HUBS", 3)
    patch.setattr(distances, "MIN_BLOCK", 2)


def on_graphs(num_graphs: int):
    return partial(drawn, num_graphs=num_graphs)


def log(shape: str, num_nodes: int, num_steps: int, generator: np.random.Generator) -> pl.DataFrame:
    """Rows of a shape, with repeats in both directions and self-loops, under scattered permanent numbers."""
    source_A, target_A = pairs(shape, num_nodes, generator)
    again_A = generator.integers(len(source_A), size=len(source_A) // 2) if len(source_A) else np.arange(0)
    loop_A = generator.integers(num_nodes, size=max(1, num_nodes // 4))
    source_R = np.concatenate([source_A, target_A[again_A], loop_A])
    target_R = np.concatenate([target_A, source_A[again_A], loop_A])
    time_R = np.sort(generator.integers(1, num_steps + 1, size=len(source_R)))
    order_R = generator.permutation(len(source_R))
    permanent_N = generator.permutation(3 * MOST_NODES)
    return pl.DataFrame(
        {"source": permanent_N[source_R[order_R]], "target": permanent_N[target_R[order_R]], "time": time_R}
    )


def pairs(shape: str, num_nodes: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    everyone = np.arange(num_nodes)
    half = num_nodes // 2
    if shape == "empty":
        return everyone[:0], everyone[:0]
    if shape == "star":
        return np.zeros_like(everyone[1:]), everyone[1:]
    if shape == "path":
        return everyone[:-1], everyone[1:]
    if shape == "duplicates":
        one = generator.integers(num_nodes, size=(2, 3))
        return np.tile(one[0], 10), np.tile(one[1], 10)
    num = {"isolated": half // 2, "dense": num_nodes * num_nodes // 3}.get(shape, num_nodes + half)
    source_A, target_A = generator.integers(max(1, half if shape == "isolated" else num_nodes), size=(2, num))
    if shape == "bipartite":
        return source_A // 2, half + target_A // 2
    if shape == "disconnected":  # an edge stays within its third of the nodes
        return source_A, source_A // 20 * 20 + target_A % 20 if num_nodes >= 20 else source_A
    return source_A, target_A


def prepared(case: Case) -> PreparedGraph:
    graph = build_snapshots(case.events, Window.parse("1"), "step")
    note(f"events: {case.events.rows()}")
    return prepare_graph(graph, until=graph.num_steps, config=case.config)


def seen(case: Case, graph: PreparedGraph) -> tuple[AsOfGraph, np.ndarray]:
    """A graph as of its last step, with or without a hidden step, and its edges by lag `[T, N, N]` from the log."""
    until, num_lags = graph.until, case.config.history_window or graph.until
    hidden = int(case.generator.integers(1, until + 1)) if case.hides_step and min(until, num_lags) > 1 else None
    present_TNN = np.zeros((num_lags, len(graph.history.node_N), len(graph.history.node_N)), dtype=bool)
    local = {permanent: node for node, permanent in enumerate(graph.history.node_N.tolist())}
    columns = (case.events[name].to_list() for name in ("source", "target", "time"))
    first_time = case.events["time"][0]
    for source, target, time in zip(*columns, strict=True):
        step = time - first_time + 1
        if source != target and step != hidden and until - step < num_lags:
            present_TNN[until - step, local[source], local[target]] = True
            present_TNN[until - step, local[target], local[source]] = True
    return as_of_graph(graph, until=until, hidden_step=hidden), present_TNN


def draw_targets(case: Case, num_nodes: int) -> np.ndarray:
    return case.generator.permutation(num_nodes)[: case.generator.integers(1, num_nodes + 1)]


@on_graphs(10_000)
def test_distances_context_and_bias_equal_their_definitions(case: Case) -> None:
    view, present_TNN = seen(case, prepared(case))
    linked_NN = present_TNN.max(axis=0)
    distance_NN = shortest_path(linked_NN, unweighted=True)
    exact_NN = np.minimum(distance_NN, case.config.max_distance)
    target_G = draw_targets(case, len(linked_NN))
    check_distances(case, view, exact_NN)
    check_context(case, view, linked_NN, np.isfinite(distance_NN), target_G)
    check_bias(case, view, exact_NN, present_TNN, target_G)


def check_distances(case: Case, view: AsOfGraph, exact_NN: np.ndarray) -> None:
    rows, columns = (case.generator.integers(len(exact_NN), size=case.generator.integers(0, 70)) for _ in range(2))
    found = distance_block(view.union, rows, columns, max_distance=view.max_distance)
    assert_array_equal(found, exact_NN[np.ix_(rows, columns)])


def check_context(
    case: Case, view: AsOfGraph, linked_NN: np.ndarray, connected_NN: np.ndarray, target_G: np.ndarray
) -> None:
    """The context holds the best of a dense solve, best first, except where rounding may swap neighbours."""
    walk_NN = linked_NN / np.maximum(linked_NN.sum(axis=0), 1)
    seed_N = np.bincount(target_G, minlength=len(linked_NN)) / len(target_G)
    system_NN = np.eye(len(linked_NN)) - (1 - view.teleport) * walk_NN
    score_N = np.linalg.solve(system_NN, view.teleport * seed_N)
    reached_N = np.array(connected_NN[target_G].any(axis=0))
    reached_N[target_G] = False
    num_context = int(case.generator.integers(0, len(linked_NN) + 3))
    found = joint_context(view.union, target_G, num_context=num_context, teleport=view.teleport)
    note(f"targets {target_G.tolist()}, {num_context} wanted, found {found.tolist()}")
    slack = 1e-10 * score_N.max()
    clear = int((reached_N & (score_N > slack)).sum())
    assert min(num_context, clear) <= len(found) <= min(num_context, int(reached_N.sum()))
    assert len(set(found.tolist())) == len(found)
    assert reached_N[found].all()
    assert (np.diff(score_N[found]) <= slack).all()
    left_out_N = reached_N.copy()
    left_out_N[found] = False
    worst = score_N[found].min(initial=np.inf) if len(found) == num_context else 0
    assert score_N[left_out_N].max(initial=0) <= worst + slack


def check_bias(
    case: Case, view: AsOfGraph, exact_NN: np.ndarray, present_TNN: np.ndarray, target_G: np.ndarray
) -> None:
    batch = make_batch(view, target_G, num_context=int(case.generator.integers(0, 12)))
    bias = random_bias(case, len(present_TNN))
    with torch.no_grad():
        found_HGC = bias(batch).numpy()
    assert found_HGC.dtype == np.float64
    block = np.ix_(target_G, batch.context_C.numpy())
    present_TGC = np.stack([present_NN[block] for present_NN in present_TNN])
    expected_HGC = literal_bias(bias, present_TGC, exact_NN[block], view.visible_T)
    assert_allclose(found_HGC, expected_HGC, rtol=0, atol=1e-10)


def random_bias(case: Case, num_lags: int) -> AttentionBias:
    bias = empty_bias(num_lags, case.config.max_distance)
    with torch.no_grad():
        for weight in bias.parameters():
            weight.copy_(torch.from_numpy(case.generator.normal(size=tuple(weight.shape))))
    return bias


@cache
def empty_bias(num_lags: int, max_distance: int) -> AttentionBias:
    """Make each shape once, because every case overwrites all weights."""
    sizes = ModelSizes(num_nodes=1, num_features=1, num_lags=num_lags, max_distance=max_distance)
    return AttentionBias(ModelConfig(width=WIDTH, num_heads=HEADS), sizes).double()


def literal_bias(
    bias: AttentionBias, present_TGC: np.ndarray, distance_GC: np.ndarray, visible_T: np.ndarray
) -> np.ndarray:
    """A^TC + A^SD of the paper: every pair's embeddings are looked up at every lag, averaged, and projected."""
    parameter = {name: value.detach().numpy() for name, value in bias.named_parameters()}
    table_T2D = parameter["temporal.table"].reshape(-1, 2, WIDTH)
    weight_T = np.where(visible_T, np.exp(parameter["temporal.aggregation_T"]), 0)
    weight_T = weight_T / weight_T.sum()
    looked_up_TGCD = np.where(present_TGC[..., None], table_T2D[:, 1, None, None], table_T2D[:, 0, None, None])
    average_GCD = sum(weight * looked_up_GCD for weight, looked_up_GCD in zip(weight_T, looked_up_TGCD, strict=True))
    temporal_GCH = average_GCD @ parameter["temporal.project.weight"].T + parameter["temporal.project.bias"]
    row_GCD = parameter["spatial.table"][distance_GC.astype(int)]
    spatial_GCH = row_GCD @ parameter["spatial.project.weight"].T + parameter["spatial.project.bias"]
    return np.moveaxis(temporal_GCH + spatial_GCH, -1, 0)


@on_graphs(60)
def test_gradients_equal_finite_differences(case: Case) -> None:
    view, present_TNN = seen(case, prepared(case))
    target_G = draw_targets(case, len(present_TNN[0]))[:3]
    batch = doubled(make_batch(view, target_G, num_context=4))
    model = small_model(case, view, len(present_TNN))
    weights = {
        name: weight.detach()
        for name, weight in model.named_parameters()
        if name.startswith(("bias.", "layers.", "norm."))
    }
    sizes = [weight.numel() for weight in weights.values()]

    def vectors(all_W: torch.Tensor) -> torch.Tensor:
        parts = zip(weights.items(), all_W.split(sizes), strict=True)
        return functional_call(model, {name: part.view_as(weight) for (name, weight), part in parts}, (batch,))

    # All weights are one input, because fast mode evaluates the model twice for each input.
    all_W = torch.cat([weight.flatten() for weight in weights.values()]).requires_grad_()
    torch.autograd.gradcheck(vectors, (all_W,), atol=1e-8, rtol=1e-6, fast_mode=True)


def small_model(case: Case, view: AsOfGraph, num_lags: int) -> DyFormer:
    sizes = ModelSizes(
        num_nodes=len(view.known_N),
        num_features=num_lags + 5,
        num_lags=num_lags,
        max_distance=view.max_distance,
    )
    config = ModelConfig(width=WIDTH, num_heads=HEADS, feed_forward_width=3)
    with torch.random.fork_rng():
        torch.manual_seed(int(case.generator.integers(2**31)))
        model = DyFormer(config, sizes).double().eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.3 * torch.randn_like(weight))
    return model


def doubled(batch: SubgraphBatch) -> SubgraphBatch:
    return replace(
        batch,
        target_feature_GF=batch.target_feature_GF.double(),
        context_feature_CF=batch.context_feature_CF.double(),
    )


@on_graphs(100)
def test_vectors_of_all_nodes_are_those_of_their_batches(case: Case) -> None:
    graph = prepared(case)
    config = ModelConfig(
        width=WIDTH,
        num_heads=HEADS,
        num_targets=int(case.generator.integers(1, 9)),
        num_context=int(case.generator.integers(1, 9)),
    )
    weights = started_model(graph, config, None, seed=1).state_dict()
    weights["inputs.trained_N"].fill_(True)
    found_ND = embed(graph, weights, config)
    view = as_of_graph(graph, until=graph.until)
    model = started_model(graph, config, weights, seed=0).eval()
    batches = node_batches(len(found_ND), config.num_targets)
    assert_array_equal(np.concatenate(batches), np.arange(len(graph.history.node_N)))
    with torch.no_grad():
        for index in case.generator.permutation(len(batches)):
            target_G = batches[index]
            whole_GD = model(make_batch(view, target_G, num_context=config.num_context)).numpy()
            assert_allclose(found_ND[target_G], whole_GD, rtol=0, atol=1e-5)
    node_B = draw_targets(case, len(found_ND))[:3]
    assert_allclose(embed(graph, weights, config, node_B=node_B)[node_B], found_ND[node_B], rtol=0, atol=1e-5)


def test_the_drawn_logs_hold_every_awkward_case() -> None:
    kinds: set[str] = set()

    @on_graphs(300)
    def look(case: Case) -> None:
        graph = build_snapshots(case.events, Window.parse("1"), "step")
        kinds.update(name for name, there in kinds_of(graph).items() if there)
        assert sum(snapshot.num_interactions for snapshot in graph.snapshots) == case.events.height

    look()
    assert kinds == {"empty", "isolated", "self-loop", "duplicate", "disconnected", "star", "bipartite", "one node"}


def kinds_of(graph: DynamicGraph) -> dict[str, bool]:
    union = nx.empty_graph(len(graph.node_N))
    for snapshot in graph.snapshots:
        union.add_edges_from(zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True))
    num_nodes, num_edges = union.number_of_nodes(), union.number_of_edges()
    most = max(degree for _, degree in union.degree)
    return {
        "empty": num_edges == 0,
        "isolated": num_edges > 0 and min(degree for _, degree in union.degree) == 0,
        "self-loop": any(snapshot.num_self_loops for snapshot in graph.snapshots),
        "duplicate": any((snapshot.weight_E > 1).any() for snapshot in graph.snapshots),
        "disconnected": sum(len(part) > 1 for part in nx.connected_components(union)) > 1,
        "star": num_nodes > 3 and most == num_edges == num_nodes - 1,
        "bipartite": nx.is_bipartite(union) and num_edges > num_nodes,
        "one node": num_nodes == 1,
    }
