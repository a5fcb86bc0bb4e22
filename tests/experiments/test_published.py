"""The paper's own model, end to end, against its equations written plainly with loops in double precision.

G targets    C context    D width    N nodes    P pairs
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from toy_graphs import random_graph

from dyformer.evaluation.protocols.paper import Trial, evaluate_method
from dyformer.experiments.methods import METHODS, PUBLISHED, Variation
from dyformer.experiments.settings import Experiment, settings_table
from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.model.transformer import DyFormer
from dyformer.sampling.link_batches import LinkTask, PairBatch
from dyformer.sampling.subgraphs import SubgraphBatch
from dyformer.scoring.decoder import STRENGTHS, fit_decoder, hadamard, score
from dyformer.scoring.metrics import auc
from dyformer.training.stages import forecast_loss, pair_source, pretraining_loss, started_model

TINY = {"model.width": 4, "model.num_heads": 2, "model.feed_forward_width": 3} | {
    f"{stage}.{name}": value
    for stage in ("pretrain", "finetune")
    for name, value in (("num_positives", 6), ("num_negatives", 2), ("num_targets", 8), ("negative_weight", 0.4))
}
SETTINGS = Experiment().changed({**PUBLISHED, **TINY})
GRAPH = prepare_graph(
    random_graph(np.random.default_rng(3), num_nodes=24, num_steps=5, num_edges=16),
    until=4,
    config=GraphConfig(history_window=3, max_distance=3),
)
LENGTH = ("epochs", "patience", "batches_per_epoch", "validation_batches")
NUM_HEADS, HEAD_WIDTH, NUM_LAGS, MAX_DISTANCE = 2, 2, 3, 3

Rows = dict[int, np.ndarray]
"""Node -> its row `[D]`."""

Weights = Mapping[str, np.ndarray]
Biases = dict[tuple[int, int], np.ndarray]
"""Target and context node -> their bias for each head."""


def linear(weights: Weights, name: str, row: np.ndarray) -> np.ndarray:
    return weights[f"{name}.weight"] @ row + weights[f"{name}.bias"]


def layer_norm(weights: Weights, name: str, row: np.ndarray) -> np.ndarray:
    centred = row - row.mean()
    return centred / math.sqrt((centred**2).mean() + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def edges_at(step: int) -> set[frozenset[int]]:
    snapshot = GRAPH.history.snapshots[step - 1]
    return {frozenset(pair) for pair in zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True)}


def visible_steps(task: LinkTask) -> list[int]:
    window = range(max(1, task.until - NUM_LAGS + 1), task.until + 1)
    return [step for step in window if not (task.hidden and step == task.step)]


def distances_from(node: int, union: set[frozenset[int]]) -> dict[int, int]:
    """Breadth-first search on the temporal-union graph."""
    found, border = {node: 0}, [node]
    while border:
        near = [other for pair in union for end in border if end in pair for other in pair - {end}]
        border = [other for other in dict.fromkeys(near) if other not in found]
        found |= dict.fromkeys(border, max(found.values()) + 1)
    return found


def biases(weights: Weights, task: LinkTask, targets: list[int], contexts: list[int]) -> Biases:
    """A^TC + A^SD of each pair (section 3.3), for each head."""
    steps = visible_steps(task)
    union = set().union(*map(edges_at, steps))
    exponentials = {step: math.exp(weights["bias.temporal.aggregation_T"][task.until - step]) for step in steps}
    found = {}
    for i in targets:
        distance_from_i = distances_from(i, union)
        for j in contexts:
            average = np.zeros(4)
            for step in steps:
                psi = 2 * (task.until - step) + (frozenset((i, j)) in edges_at(step))
                average += exponentials[step] / sum(exponentials.values()) * weights["bias.temporal.table"][psi]
            phi = min(distance_from_i.get(j, MAX_DISTANCE), MAX_DISTANCE)
            found[i, j] = linear(weights, "bias.temporal.project", average)
            found[i, j] = found[i, j] + linear(weights, "bias.spatial.project", weights["bias.spatial.table"][phi])
    return found


def tower(weights: Weights, layer: str, queries: Rows, keys: Rows, bias: Callable[[int, int], np.ndarray]) -> Rows:
    """One tower of one layer (section 3.4): attention with biases, a residual, and the feed-forward network."""
    found = {}
    for i, row in queries.items():
        query = linear(weights, f"{layer}.query", layer_norm(weights, f"{layer}.attention_norm", row))
        message = np.zeros(4)
        for head in range(NUM_HEADS):
            of_head = slice(head * HEAD_WIDTH, (head + 1) * HEAD_WIDTH)
            exponentials, values = [], []
            for j, other in keys.items():
                normed = layer_norm(weights, f"{layer}.attention_norm", other)
                key = linear(weights, f"{layer}.key", normed)
                product = float(query[of_head] @ key[of_head]) / math.sqrt(HEAD_WIDTH)
                exponentials.append(math.exp(product + bias(i, j)[head]))
                values.append(linear(weights, f"{layer}.value", normed)[of_head])
            for exponential, value in zip(exponentials, values, strict=True):
                message[of_head] += exponential / sum(exponentials) * value
        z = linear(weights, f"{layer}.out", message) + row
        hidden = linear(weights, f"{layer}.feed_forward.0", layer_norm(weights, f"{layer}.feed_forward_norm", z))
        gelu = np.array([x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in hidden])
        found[i] = linear(weights, f"{layer}.feed_forward.2", gelu) + z
    return found


def vectors(weights: Weights, task: LinkTask, subgraph: SubgraphBatch) -> list[np.ndarray]:
    """H_tgt of the last layer, from the rows of the one-hot vectors' linear map."""
    targets: Rows = {node: weights["inputs.id_NO"][node] for node in subgraph.target_G.tolist()}
    contexts: Rows = {node: weights["inputs.id_NO"][node] for node in subgraph.context_C.tolist()}
    of_pair = biases(weights, task, list(targets), list(contexts))
    for layer in ("layers.0", "layers.1"):
        targets, contexts = (
            tower(weights, layer, targets, contexts, lambda i, j: of_pair[i, j]),
            tower(weights, layer, contexts, targets, lambda j, i: of_pair[i, j]),
        )
    return list(targets.values())


def link_prediction_loss(rows: list[np.ndarray], batch: PairBatch) -> float:
    """LinkPredLoss (section 4.1): a mean over positive pairs, and over negative pairs times their weight."""
    pairs = batch.pairs
    positives = zip(pairs.positive_first_P.tolist(), pairs.positive_second_P.tolist(), strict=True)
    negatives = zip(pairs.negative_first_M.tolist(), pairs.negative_second_M.tolist(), strict=True)
    of_positives = [math.log1p(math.exp(-float(rows[i] @ rows[j]))) for i, j in positives]  # -log(sigmoid(s))
    of_negatives = [math.log1p(math.exp(float(rows[i] @ rows[j]))) for i, j in negatives]  # -log(1 - sigmoid(s))
    return sum(of_positives) / len(of_positives) + 0.4 * sum(of_negatives) / len(of_negatives)


def plain_pretraining_loss(weights: Weights, stopped: Weights, batch: PairBatch) -> float:
    """L_recon + 1 x L_view, where `stopped` are the weights behind the stop-gradient."""
    assert batch.second_view is not None
    first, second = (vectors(weights, batch.task, view) for view in (batch.subgraph, batch.second_view))
    first_stopped, second_stopped = (vectors(stopped, batch.task, view) for view in (batch.subgraph, batch.second_view))
    decoded = [linear(weights, f"temporal.lags.{batch.task.lag}", row) for row in first]
    distances = [((one - other) ** 2).sum() for one, other in zip(first, second_stopped, strict=True)]
    distances += [((one - other) ** 2).sum() for one, other in zip(first_stopped, second, strict=True)]
    return link_prediction_loss(decoded, batch) + sum(distances) / len(first)


def plain_forecast_loss(weights: Weights, stopped: Weights, batch: PairBatch) -> float:
    """L_LinkPred: inner products of the vectors predict the next step (section 4.2)."""
    return link_prediction_loss(vectors(weights, batch.task, batch.subgraph), batch)


def example_model() -> DyFormer:
    """Weights with noise, because ones and zeros would hide a mistake; without dropout, all nodes trained."""
    generator = torch.Generator().manual_seed(0)
    model = started_model(GRAPH, SETTINGS.model, None, seed=0).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    model.inputs.trained_N.fill_(True)
    return model


def example_batch(task: LinkTask, *, two_views: bool) -> PairBatch:
    config = SETTINGS.pretrain if two_views else SETTINGS.finetune
    assert config is not None
    source = pair_source(GRAPH, SETTINGS.model, config, seed=0)
    return source.batch(task, np.random.default_rng(2), held_out=False, two_views=two_views)


def arrays(model: DyFormer) -> dict[str, np.ndarray]:
    return {name: weight.detach().numpy().copy() for name, weight in model.named_parameters()}


STAGES = {
    "pretrain": (pretraining_loss, plain_pretraining_loss, LinkTask(until=4, step=3, hidden=True)),
    "finetune": (forecast_loss, plain_forecast_loss, LinkTask(until=3, step=4, hidden=False)),
}


@pytest.mark.parametrize("stage", STAGES)
def test_vectors_loss_and_gradient_follow_the_equations(stage: str):
    of_batch, plain, task = STAGES[stage]
    batch, model = example_batch(task, two_views=stage == "pretrain"), example_model()
    assert batch.history is None
    assert len(batch.subgraph.context_C) == len(batch.subgraph.target_G) > 5
    weights = arrays(model)
    found_GD = model(batch.subgraph).detach().numpy()
    np.testing.assert_allclose(found_GD, vectors(weights, task, batch.subgraph), rtol=0, atol=1e-11)
    losses: dict[str, Any] = of_batch(model, batch, getattr(SETTINGS, stage))
    assert set(losses) == ({"loss", "link", "view"} if stage == "pretrain" else {"loss", "link"})
    assert float(losses["loss"].detach()) == pytest.approx(plain(weights, weights, batch), abs=1e-11)
    losses["loss"].backward()
    direction = {name: np.random.default_rng(7).normal(size=weight.shape) for name, weight in weights.items()}
    slope = sum(
        float((weight.grad.numpy() * direction[name]).sum())
        for name, weight in model.named_parameters()
        if weight.grad is not None
    )
    ahead, behind = ({n: weight + size * direction[n] for n, weight in weights.items()} for size in (1e-5, -1e-5))
    expected = (plain(ahead, weights, batch) - plain(behind, weights, batch)) / 2e-5
    assert slope == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_context_is_the_top_of_the_exact_joint_pagerank(stage: str):
    """As many nodes as targets, none of them a target, by the sum of pi(i) = alpha (I - (1 - alpha) P^T)^-1 e_i."""
    task = STAGES[stage][2]
    batch = example_batch(task, two_views=stage == "pretrain")
    union_NN = np.zeros((24, 24))
    for pair in set().union(*map(edges_at, visible_steps(task))):
        i, j = pair
        union_NN[i, j] = union_NN[j, i] = 1
    step_NN = union_NN / np.maximum(union_NN.sum(axis=1, keepdims=True), 1)
    targets = batch.subgraph.target_G.tolist()
    score_N = np.linalg.solve(np.eye(24) - 0.85 * step_NN.T, 0.15 * np.isin(np.arange(24), targets))
    score_N[targets] = -1
    order = np.argsort(-score_N)
    num = len(targets)
    assert score_N[order[num - 1]] - score_N[order[num]] > 1e-4
    assert set(batch.subgraph.context_C.tolist()) == set(order[:num].tolist())


def test_negatives_are_pairs_of_targets_without_an_edge_at_the_predicted_step():
    for stage, (_, _, task) in STAGES.items():
        batch = example_batch(task, two_views=stage == "pretrain")
        target_G, pairs = batch.subgraph.target_G, batch.pairs
        negatives, positives = (
            {frozenset(pair) for pair in zip(target_G[first].tolist(), target_G[second].tolist(), strict=True)}
            for first, second in (
                (pairs.negative_first_M, pairs.negative_second_M),
                (pairs.positive_first_P, pairs.positive_second_P),
            )
        )
        assert all(len(pair) == 2 for pair in negatives)
        assert not negatives & edges_at(task.step)
        assert positives <= edges_at(task.step)
        assert len(pairs.negative_first_M) == 2 * len(pairs.positive_first_P)


def logistic_loss(slopes: np.ndarray, inputs_PF: np.ndarray, label_P: np.ndarray, strength: float) -> float:
    margin_P = label_P * (inputs_PF @ slopes[:-1] + slopes[-1])
    return strength * np.logaddexp(0, -margin_P).sum() + (slopes[:-1] ** 2).sum() / 2


def plain_decoder(inputs_PD: np.ndarray, positive_P: np.ndarray, fitted: slice, strength: float) -> np.ndarray:
    """Log-odds `[P]` of all pairs, standardised and fitted on some."""
    standard_PD = (inputs_PD - inputs_PD[fitted].mean(axis=0)) / inputs_PD[fitted].std(axis=0)
    given = (standard_PD[fitted], np.where(positive_P[fitted], 1.0, -1.0), strength)
    slopes = minimize(logistic_loss, np.zeros(standard_PD.shape[1] + 1), args=given, options={"gtol": 1e-9}).x
    return standard_PD @ slopes[:-1] + slopes[-1]


def test_decoder_is_a_logistic_regression_on_products_whose_strength_other_pairs_choose():
    """The chosen one is fitted again on both kinds of pairs, because every method has these labels."""
    generator = np.random.default_rng(1)
    vector_ND, end_2P = generator.normal(size=(40, 5)), generator.integers(40, size=(2, 150))
    product_PD = np.array([[vector_ND[i, d] * vector_ND[j, d] for d in range(5)] for i, j in end_2P.T])
    positive_P = product_PD[:, 0] + generator.normal(size=150) > 0
    train, validation, both, test = slice(0, 30), slice(30, 60), slice(0, 60), slice(60, 150)
    scores = [plain_decoder(product_PD, positive_P, train, strength)[validation] for strength in STRENGTHS]
    values = [auc(positive_P[validation], score_P) for score_P in scores]
    assert len(set(values)) > 1
    logit_P = plain_decoder(product_PD, positive_P, both, STRENGTHS[int(np.argmax(values))])
    found = hadamard(vector_ND, *end_2P)
    chosen_on = (found[validation], positive_P[validation])
    decoder = fit_decoder(found[train], positive_P[train], chosen_on)
    np.testing.assert_allclose(score(decoder, found[test]), 1 / (1 + np.exp(-logit_P[test])), atol=1e-4)


def test_every_setting_but_the_length_of_training_is_named():
    """Defaults and settings that are tuned for a dataset therefore do not reach the paper's model."""
    length = {f"{stage}.{name}" for stage in ("pretrain", "finetune") for name in LENGTH}
    of_model = [setting.name for setting in settings_table()]
    names = {name for name in of_model if not name.startswith(("graph.", "promotion.", "drift.", "retrain."))}
    assert set(PUBLISHED) == names - {"pretrain", "max_epochs"} - length


def test_page_lists_every_departure_from_the_default():
    page = (Path(__file__).parents[2] / "docs" / "published.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| (\S+) \| (\S+) \|", page, re.MULTILINE)
    texts = {name: str(value).lower() if value in (None, True) else str(value) for name, value in PUBLISHED.items()}
    defaults = {setting.name: setting.default for setting in settings_table()}
    assert set(rows) == {(n, defaults[n], text) for n, text in texts.items() if text != defaults[n]}
    assert len(rows) == len(set(rows))


def test_the_method_trains_and_gives_two_rows():
    graph = random_graph(np.random.default_rng(0), num_nodes=30, num_steps=4, num_edges=60)
    length = {f"{stage}.{name}": 1 for stage in ("pretrain", "finetune") for name in LENGTH}
    method = METHODS["DyFormer (as published)"]
    assert isinstance(method, Variation)
    method = replace(method, changes={**method.changes, **TINY, **length})
    rows = evaluate_method("mine", method, Trial(graph=graph, step=4, seed=0))
    assert [pairs.method for pairs in rows] == ["mine", "Forecaster with mine"]
    assert all(np.isfinite(pairs.score_P).all() and len(set(pairs.score_P.tolist())) > 5 for pairs in rows)


def test_changes_of_pretraining_bring_it_back():
    without = Experiment().changed({"pretrain": None})
    method = METHODS["DyFormer (as published)"]
    assert isinstance(method, Variation)
    assert method.changed(without) == method.changed(Experiment())
    assert Variation(changes={"model.width": 16}).changed(without).pretrain is None
