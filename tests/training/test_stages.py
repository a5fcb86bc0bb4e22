"""The stages of training are repeatable and resumable, and use no later step.

N nodes    D width
"""

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional
from toy_graphs import random_graph, toy_graph

from dyformer.graphs.prepared_graph import GraphConfig, PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.model.config import ModelConfig, ModelSizes
from dyformer.model.losses import ranking_loss, view_loss
from dyformer.model.transformer import DyFormer
from dyformer.sampling.link_batches import forecast_tasks, labelled, reconstruction_tasks
from dyformer.sampling.pairs import node_batches
from dyformer.sampling.subgraphs import as_of_graph, make_batch
from dyformer.training.checkpoint import Checkpoint, Progress, Weights, WeightsDoNotFit
from dyformer.training.config import FinetuneConfig, PretrainConfig
from dyformer.training.loop import TrainingDiverged
from dyformer.training.ranks import Rank
from dyformer.training.stages import (
    DyFormerEmbedder,
    embed,
    finetune,
    forecast_loss,
    id_loss,
    last_weights,
    pair_source,
    pretrain,
    pretraining_loss,
    reconstruction_loss,
    started_model,
    two_view_loss,
)

MODEL = ModelConfig(width=8, num_layers=2, num_heads=2, feed_forward_width=8, num_targets=6, num_context=8)
PRETRAIN = PretrainConfig(epochs=4, batches_per_epoch=3, validation_batches=2, num_positives=8, num_targets=12)
FINETUNE = FinetuneConfig(epochs=4, batches_per_epoch=3, validation_batches=2, num_positives=8, num_targets=12)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def example_graph() -> DynamicGraph:
    return random_graph(np.random.default_rng(3), num_nodes=40, num_steps=6, num_edges=60)


def prepared(graph: DynamicGraph, until: int = 4) -> PreparedGraph:
    return prepare_graph(graph, until=until, config=GraphConfig(history_window=3))


def stage(
    name: str, graph: PreparedGraph, *, seed: int = 0, resume: Checkpoint | None = None, device: str = "cpu", **changes
):
    rank = Rank(device=device)
    if name == "pretrain":
        return pretrain(graph, MODEL, replace(PRETRAIN, **changes), seed=seed, resume=resume, rank=rank)
    return finetune(graph, None, MODEL, replace(FINETUNE, **changes), seed=seed, resume=resume, rank=rank)


def same_tensors(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def with_future(graph: DynamicGraph, change: str, until: int) -> DynamicGraph:
    """The same graph up to `until`, and other edges after it."""
    past = graph.snapshots[:until]
    if change == "nothing":
        num_nodes = past[-1].num_nodes
        return DynamicGraph(snapshots=past, node_N=graph.node_N[:num_nodes], side_N=graph.side_N[:num_nodes])
    generator = np.random.default_rng(9)
    future = random_graph(generator, num_nodes=90, num_steps=3, num_edges=500).snapshots
    moved = tuple(replace(snapshot, step=until + index) for index, snapshot in enumerate(future, start=1))
    return DynamicGraph(snapshots=past + moved, node_N=np.arange(90), side_N=np.zeros(90, dtype=np.int8))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["pretrain", "finetune"])
def test_resumed_run_is_the_uninterrupted_run_bit_for_bit(name, device):
    graph = prepared(example_graph())
    checkpoints = [progress.checkpoint() for progress in stage(name, graph, device=device)]
    resumed = [progress.checkpoint() for progress in stage(name, graph, resume=checkpoints[1], device=device)]
    assert [checkpoint.record["epoch"] for checkpoint in resumed] == [3, 4]
    for checkpoint, expected in zip(resumed, checkpoints[2:], strict=True):
        assert checkpoint.record == expected.record
        assert same_tensors(checkpoint.tensors, expected.tensors)
        assert same_tensors(checkpoint.weights(), expected.weights())


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_gives_the_same_vectors_each_time_and_a_gpu_those_of_the_cpu(device):
    graph, model = prepared(example_graph()), replace(MODEL, gpu_precision="float32")
    weights = last_weights(stage("pretrain", graph))
    once, again = (embed(graph, weights, model, device=device) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    np.testing.assert_allclose(once, embed(graph, weights, model), atol=1e-5)


def test_resuming_a_finished_stage_does_nothing():
    graph = prepared(example_graph())
    last = [progress.checkpoint() for progress in stage("finetune", graph)][-1]
    assert list(stage("finetune", graph, resume=last)) == []
    with pytest.raises(ValueError, match="no epoch left"):
        last_weights(stage("finetune", graph, resume=last))


@pytest.mark.parametrize("name", ["pretrain", "finetune"])
def test_seed_decides_the_weights_and_leaves_global_random_numbers_alone(name):
    graph = prepared(example_graph())
    torch.manual_seed(11)
    first = last_weights(stage(name, graph))
    drawn = torch.rand(3)
    torch.manual_seed(11)
    assert torch.equal(torch.rand(3), drawn)
    assert same_tensors(first, last_weights(stage(name, graph)))
    assert not same_tensors(first, last_weights(stage(name, graph, seed=1)))


def test_checkpoint_of_another_run_is_refused():
    graph = prepared(example_graph())
    checkpoint = next(stage("pretrain", graph)).checkpoint()
    for resumed in (
        stage("finetune", graph, resume=checkpoint),
        stage("pretrain", graph, seed=1, resume=checkpoint),
        stage("pretrain", prepared(example_graph(), until=3), resume=checkpoint),
        stage("pretrain", graph, resume=checkpoint, learning_rate=0.5),
    ):
        with pytest.raises(ValueError, match="the checkpoint belongs to"):
            next(resumed)


@pytest.mark.parametrize("change", ["nothing", "ten times as much"])
def test_no_later_step_reaches_weights_or_vectors(change):
    graphs = [prepared(example_graph()), prepared(with_future(example_graph(), change, until=4))]
    found = []
    for graph in graphs:
        pretrained = last_weights(stage("pretrain", graph))
        weights = last_weights(finetune(graph, pretrained, MODEL, FINETUNE, seed=0))
        found.append((weights, embed(graph, weights, MODEL)))
    assert same_tensors(found[0][0], found[1][0])
    assert found[0][1].tobytes() == found[1][1].tobytes()


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_every_earlier_step_reaches_weights_and_vectors(step):
    graph = example_graph()
    changed = random_graph(np.random.default_rng(5), num_nodes=40, num_steps=1, num_edges=60).snapshots[0]
    snapshots = tuple(replace(changed, step=step) if old.step == step else old for old in graph.snapshots)
    other = replace(graph, snapshots=snapshots)
    weights, other_weights = (last_weights(stage("finetune", prepared(one))) for one in (graph, other))
    assert not same_tensors(weights, other_weights)
    # Step 1 is older than the window of three steps: it reaches a vector through the weights and the nodes' ages.
    vectors = [embed(prepared(one), weights, MODEL) for one in (graph, other)]
    assert not np.array_equal(vectors[0], vectors[1])


def test_vector_does_not_depend_on_the_nodes_requested_with_it():
    graph = prepared(example_graph())
    method = DyFormerEmbedder(model=MODEL, pretrain=None, finetune=replace(FINETUNE, epochs=1))
    vectors_of = method.fit(graph, seed=0)
    all_ND = vectors_of(np.arange(40))
    shuffled = np.random.default_rng(1).permutation(40)
    assert np.array_equal(vectors_of(shuffled), all_ND[shuffled])
    assert np.array_equal(vectors_of(np.array([17])), all_ND[[17]])
    assert np.array_equal(vectors_of(np.array([17, 3])), all_ND[[17, 3]])
    assert all_ND.shape == (40, 8)
    assert all_ND.dtype == np.float32
    assert np.isfinite(all_ND).all()


def embed_bytes(num_nodes: int) -> int:
    """Measure the most bytes of arrays that `embed` holds at once beside the vectors."""
    graph = random_graph(np.random.default_rng(0), num_nodes=num_nodes, num_steps=3, num_edges=2 * num_nodes)
    prepared_graph = prepared(graph, until=3)
    weights = started_model(prepared_graph, MODEL, None, seed=0).state_dict()
    node_B = np.arange(60)
    embed(prepared_graph, weights, MODEL, node_B=node_B)
    tracemalloc.start()
    vector_ND = embed(prepared_graph, weights, MODEL, node_B=node_B)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most - vector_ND.nbytes


def test_memory_of_embedding_beside_the_vectors_is_a_few_numbers_for_each_node():
    few, many = embed_bytes(500), embed_bytes(2_000)
    assert (many - few) / 1_500 < 300  # bytes for each node more; a table of pairs has at least as many as nodes


def test_each_vector_stands_in_its_nodes_row():
    graph = prepared(example_graph())
    weights = last_weights(stage("finetune", graph, epochs=1))
    vector_ND = embed(graph, weights, MODEL)
    model = started_model(graph, MODEL, weights, seed=0).eval()
    for target_G in node_batches(40, MODEL.num_targets):
        batch = make_batch(as_of_graph(graph, until=4), target_G, num_context=MODEL.num_context)
        for node, row_D in zip(batch.target_G.tolist(), model(batch).detach().numpy(), strict=True):
            assert np.array_equal(vector_ND[node], row_D)


def test_every_epoch_draws_its_own_batches():
    epochs = run("finetune", learning_rate=0.0)
    assert len({progress.losses["link"] for progress in epochs}) == 4


def test_embedder_is_its_stages():
    graph = prepared(example_graph())
    method = DyFormerEmbedder(model=MODEL, pretrain=PRETRAIN, finetune=FINETUNE)
    pretrained = last_weights(stage("pretrain", graph))
    weights = last_weights(finetune(graph, pretrained, MODEL, FINETUNE, seed=0))
    assert np.array_equal(method.fit(graph, seed=0)(np.arange(40)), embed(graph, weights, MODEL))
    plain = replace(method, pretrain=None).fit(graph, seed=0)(np.arange(40))
    assert np.array_equal(plain, embed(graph, last_weights(stage("finetune", graph)), MODEL))


def test_nodes_keep_their_rows_by_their_permanent_numbers():
    graph = prepared(example_graph())
    weights = last_weights(stage("pretrain", graph))
    swapped = graph.history.node_N.copy()
    swapped[[2, 5]] = swapped[[5, 2]]
    other = replace(graph, history=replace(graph.history, node_N=swapped))
    started = next(finetune(other, weights, MODEL, replace(FINETUNE, id_learning_rate=0.0), seed=0)).checkpoint()
    rows, moved = weights["inputs.id_NO"], started.tensors["model/inputs.id_NO"]
    assert torch.equal(moved[[2, 5]], rows[[5, 2]])
    assert torch.equal(moved[6:], rows[6:])
    assert started.tensors["model/node_N"].tolist() == swapped.tolist()


def test_new_node_starts_untrained_and_gets_a_vector():
    graph = example_graph()
    new = replace(graph.snapshots[5], source_E=np.array([0, 3]), target_E=np.array([40, 41]), num_nodes=43)
    longer = DynamicGraph(
        snapshots=(*graph.snapshots[:5], replace(new, weight_E=np.ones(2))),
        node_N=np.arange(43) + 100,
        side_N=np.zeros(43, dtype=np.int8),
    )
    early, late = prepared(longer, until=4), prepared(longer, until=6)
    weights = last_weights(stage("finetune", early))
    vector_ND = embed(late, weights, MODEL)
    assert vector_ND.shape == (43, 8)
    assert np.isfinite(vector_ND).all()
    assert vector_ND[:40, -2:].any()
    assert not vector_ND[40:, -2:].any()
    without = {**weights, "inputs.id_NO": torch.zeros_like(weights["inputs.id_NO"])}
    assert not np.array_equal(embed(late, without, MODEL)[:40], vector_ND[:40])
    continued = next(pretrain(late, MODEL, PRETRAIN, seed=0, weights=weights)).checkpoint()
    assert continued.tensors["model/inputs.id_NO"].shape == (43, 2)


def test_weights_of_another_shape_are_refused():
    graph = prepared(example_graph())
    weights = last_weights(stage("finetune", graph))
    with pytest.raises(ValueError, match="do not fit the model"):
        embed(graph, weights, replace(MODEL, width=16))
    wider = prepare_graph(example_graph(), until=4, config=GraphConfig(history_window=4))
    with pytest.raises(ValueError, match=r"bias\.temporal"):
        embed(wider, weights, MODEL)


def test_weights_of_another_version_are_refused():
    graph = prepared(example_graph())
    checkpoint = next(stage("finetune", graph)).checkpoint()
    renamed = {name.replace("id_NO", "own_NO"): tensor for name, tensor in checkpoint.weights().items()}
    extra = {**checkpoint.weights(), "inputs.scale": torch.ones(1)}
    wide = {**checkpoint.weights(), "inputs.id_NO": torch.ones(40, 3)}
    double = {**checkpoint.weights(), "inputs.id_NO": checkpoint.weights()["inputs.id_NO"].double()}
    for weights, wrong in (
        (renamed, r"inputs\.id_NO: .*; inputs\.own_NO: "),
        (extra, r"inputs\.scale: expected None"),
        (double, r"inputs\.id_NO: .* found .*'torch.float64'"),
        (wide, r"inputs\.id_NO: expected \(\(2,\), 'torch.float32'\), found \(\(3,\), 'torch.float32'\)"),
    ):
        with pytest.raises(WeightsDoNotFit, match=rf"{wrong}.*: train again"):
            embed(graph, weights, MODEL)
    tensors = {name.replace("id_NO", "own_NO"): tensor for name, tensor in checkpoint.tensors.items()}
    with pytest.raises(WeightsDoNotFit, match=r"inputs\.own_NO: .*: train again"):
        next(stage("finetune", graph, resume=replace(checkpoint, tensors=tensors)))
    record = {**checkpoint.record, "settings": {**checkpoint.record["settings"], "num_linked": 20}}
    with pytest.raises(ValueError, match=r"the checkpoint belongs to .*num_linked.*: train again"):
        next(stage("finetune", graph, resume=replace(checkpoint, record=record)))


def test_history_of_one_step_is_refused():
    for name in ("pretrain", "finetune"):
        with pytest.raises(ValueError, match="a history of 1 step cannot be learnt from"):
            next(stage(name, prepared(example_graph(), until=1)))


def run(name: str, **changes) -> list[Progress]:
    return list(stage(name, prepared(example_graph()), **changes))


def test_progress_reports_every_epoch():
    epochs = run("pretrain")
    assert [progress.epoch for progress in epochs] == [1, 2, 3, 4]
    assert [progress.is_last for progress in epochs] == [False, False, False, True]
    assert set(epochs[0].losses) == {"loss", "link", "view", "id", "validation"}
    assert all(np.isfinite(list(progress.losses.values())).all() for progress in epochs)
    assert set(run("finetune")[0].losses) == {"loss", "link", "ranking", "validation"}


def test_weights_of_a_stage_are_those_of_the_epoch_with_the_least_held_out_loss():
    graph, changes = prepared(example_graph()), {"epochs": 9, "learning_rate": 0.01}
    losses = [progress.losses["validation"] for progress in stage("finetune", graph, **changes)]
    best = int(np.argmin(losses))
    assert 0 < best < 8
    states = [progress.checkpoint() for progress in stage("finetune", graph, **changes)]
    expected = {name[6:]: value for name, value in states[best].tensors.items() if name.startswith("model/")}
    assert same_tensors(states[-1].weights(), expected)


def test_patience_ends_a_stage_after_so_many_epochs_in_a_row_that_are_not_better():
    graph, changes = prepared(example_graph()), {"epochs": 30, "learning_rate": 0.05}
    losses = [progress.losses["validation"] for progress in stage("finetune", graph, **changes)]
    best_N = np.minimum.accumulate(losses)
    expected = next(n for n in range(4, 30) if best_N[n - 1] == best_N[n - 4])
    assert expected < 30
    epochs = list(stage("finetune", graph, **changes, patience=3))
    assert [progress.is_last for progress in epochs] == [False] * (expected - 1) + [True]
    assert [progress.losses["validation"] for progress in epochs] == losses[:expected]
    middle = next(stage("finetune", graph, **changes, patience=3)).checkpoint()
    resumed = [progress.checkpoint() for progress in stage("finetune", graph, **changes, patience=3, resume=middle)]
    assert resumed[-1].record == epochs[-1].checkpoint().record
    assert len(resumed) == expected - 1
    assert list(stage("finetune", graph, **changes, patience=3, resume=resumed[-1])) == []


def test_forecast_loss_is_the_weighted_mean_of_the_link_loss_and_the_ranking_loss():
    graph, task = prepared(example_graph()), forecast_tasks(4)[-1]
    model = started_model(graph, MODEL, None, 0).eval()
    losses = {}
    for weight in (0.0, 0.25, 1.0):
        config = replace(FINETUNE, ranking_weight=weight)
        source = pair_source(graph, MODEL, config, 0)
        batch = source.batch(task, np.random.default_rng(0), held_out=False, two_views=False)
        losses[weight] = {name: float(value.detach()) for name, value in forecast_loss(model, batch, config).items()}
        assert losses[weight]["link"] == losses[0.0]["link"]
    vector_GD, pairs = model(batch.subgraph), batch.pairs
    score_GG = torch.stack(
        [
            model.link(vector_GD, torch.full((len(vector_GD),), i), torch.arange(len(vector_GD)))
            for i in range(len(vector_GD))
        ]
    )
    assert batch.negative_GG is not None
    ranking = ranking_loss(score_GG, pairs.positive_first_P, pairs.positive_second_P, batch.negative_GG)
    assert losses[1.0]["loss"] == pytest.approx(float(ranking.detach()), rel=1e-5)
    assert losses[0.0]["loss"] == losses[0.0]["link"] != losses[1.0]["loss"]
    assert losses[0.25]["loss"] == pytest.approx(0.75 * losses[0.0]["loss"] + 0.25 * losses[1.0]["loss"], rel=1e-5)
    assert "ranking" not in losses[0.0]


@pytest.mark.parametrize("seed", range(2))
def test_training_learns_a_planted_rule(seed: int):
    """Two groups that never meet: pairs within a group rank first, after pre-training as after fine-tuning alone."""
    generator = np.random.default_rng(0)
    steps = []
    for _ in range(5):
        pairs = generator.integers(15, size=(60, 2)) + 15 * generator.integers(2, size=(60, 1))
        steps.append([(int(a), int(b)) for a, b in pairs if a != b])
    steps[0] += [(node, (node + 1) % 15) for node in range(15)] + [
        (15 + node, 15 + (node + 1) % 15) for node in range(15)
    ]
    graph = prepared(toy_graph(*steps), until=5)
    model = replace(MODEL, width=16, residual_dropout=0.0, attention_dropout=0.0)
    long = replace(FINETUNE, epochs=30, batches_per_epoch=5, learning_rate=0.01, id_learning_rate=0.02)
    pretrained = last_weights(pretrain(graph, model, replace(PRETRAIN, epochs=20, batches_per_epoch=5), seed=seed))
    group_N = np.arange(30) // 15
    within = (group_N[:, None] == group_N) & ~np.eye(30, dtype=bool)
    across = group_N[:, None] != group_N

    def ranked_first(weights: Weights) -> float:
        vector_ND = embed(graph, weights, model)
        score_NN = (vector_ND * weights["link.weight_D"].numpy()) @ vector_ND.T
        return (score_NN[within][:, None] > score_NN[across]).mean()

    assert ranked_first(last_weights(finetune(graph, pretrained, model, FINETUNE, seed=seed))) > 0.98
    assert ranked_first(last_weights(finetune(graph, None, model, long, seed=seed))) > 0.9


def test_loss_of_id_embeddings_is_that_of_their_inner_products_and_their_length():
    model = DyFormer(replace(MODEL, width=16), ModelSizes(num_nodes=6, num_features=1, num_lags=1, max_distance=2))
    row_NO = model.inputs.id_NO.detach()
    row_NO.copy_(torch.arange(24.0).reshape(6, 4) / 10)
    positives, negatives = [(0, 1), (2, 3)], [(1, 4), (0, 5), (2, 4)]
    pairs = labelled(*np.array(positives).T, *np.array(negatives).T)
    found = id_loss(model, pairs, model.inputs.ids(torch.arange(6)), replace(PRETRAIN, id_penalty=0.3))

    def score(first: int, second: int) -> float:
        product = (row_NO[first] * row_NO[second]).tolist()
        return 5 * (product[0] + product[1] + product[2] - product[3]) - 2.5

    def mean_length(nodes: list[int]) -> float:
        return sum(float(row_NO[node].square().sum()) for node in nodes) / len(nodes)

    expected = sum(math.log1p(math.exp(-score(*pair))) for pair in positives) / 2
    expected += sum(math.log1p(math.exp(score(*pair))) for pair in negatives) / 3
    expected += 0.3 * sum(mean_length(nodes) for nodes in ([0, 2], [1, 3], [1, 0, 2], [4, 5, 4]))
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)
    found.backward()
    assert model.inputs.trained_N.all()


def test_loss_of_two_views_is_their_mean_plus_their_distance_and_the_loss_of_id_embeddings():
    graph, config = prepared(example_graph()), replace(PRETRAIN, view_weight=0.7, id_weight=0.3)
    tasks = reconstruction_tasks(4, 3, hidden=True)[-1:]
    source = pair_source(graph, MODEL, config, seed=0)
    batch = next(source.batches(tasks, np.random.default_rng(0), held_out=False, two_views=True))
    assert batch.second_view is not None
    assert batch.history is not None
    model = started_model(graph, MODEL, None, seed=0).eval()
    views = model(batch.subgraph), model(batch.second_view)
    assert not torch.allclose(*views)
    links = [reconstruction_loss(model, batch, vector_GD, config) for vector_GD in views]
    alone = pretraining_loss(model, replace(batch, second_view=None, history=None), config)
    assert float(alone["loss"].detach()) == pytest.approx(float(links[0].detach()), rel=1e-5)
    found = {name: float(value.detach()) for name, value in pretraining_loss(model, batch, config).items()}
    view, of_ids = view_loss(*views), id_loss(model, batch.history, model.inputs.ids(batch.node_U), config)
    link = (links[0] + links[1]) / 2
    expected = {"loss": link + 0.7 * view + 0.3 * of_ids, "link": link, "view": view, "id": of_ids}
    assert found == pytest.approx({name: float(value.detach()) for name, value in expected.items()}, rel=1e-5)


def test_links_of_the_first_view_alone_are_reconstructed_as_in_the_paper():
    graph, config = prepared(example_graph()), replace(PRETRAIN, reconstructed_views="first", id_weight=0.0)
    source = pair_source(graph, MODEL, config, seed=0)
    task = reconstruction_tasks(4, 3, hidden=True)[-1]
    batch = source.batch(task, np.random.default_rng(0), held_out=False, two_views=True)
    assert batch.history is None
    model = started_model(graph, MODEL, None, seed=0).eval()
    first = reconstruction_loss(model, batch, model(batch.subgraph), config)
    found = pretraining_loss(model, batch, config)["link"]
    assert float(found.detach()) == pytest.approx(float(first.detach()), rel=1e-5)


def test_normalised_loss_of_two_views_predicts_each_from_the_other():
    model = DyFormer(MODEL, ModelSizes(num_nodes=6, num_features=1, num_lags=1, max_distance=2))
    first_GD, second_GD = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    found = two_view_loss(model, first_GD, second_GD, replace(PRETRAIN, view="normalised"))
    alike = functional.cosine_similarity(model.view(second_GD), first_GD, dim=-1)
    alike = alike + functional.cosine_similarity(model.view(first_GD), second_GD, dim=-1)
    assert float(found.detach()) == pytest.approx(float((4 - 2 * alike).mean().detach()), rel=1e-5)


def test_id_weight_scales_the_loss_of_id_embeddings_alone():
    weights, without = (last_weights(stage("pretrain", prepared(example_graph()), id_weight=w)) for w in (1.0, 0.0))
    started = started_model(prepared(example_graph()), MODEL, None, seed=0).state_dict()
    assert torch.equal(without["id_link.weight_D"], started["id_link.weight_D"])
    assert "id" not in run("pretrain", epochs=1, id_weight=0.0)[0].losses
    assert not torch.equal(weights["id_link.weight_D"], started["id_link.weight_D"])


@pytest.mark.parametrize(
    "changes",
    [
        {"mask_lag": False},
        {"view_weight": 0.0},
        {"view": "normalised"},
        {"validation_fraction": 0.0},
        {"negative_weight": 0.1},
        {"reconstructed_views": "first"},
        {"step_half_life": None},
        {"optimizer": "plain"},
    ],
)
def test_pretraining_runs_with_each_option(changes):
    epochs = run("pretrain", epochs=1, **changes)
    assert np.isfinite(epochs[-1].losses["loss"])


@pytest.mark.parametrize("name", ["pretrain", "finetune"])
def test_a_history_without_links_to_learn_from_is_refused_by_name(name: str):
    graph = prepared(toy_graph([], [], [], []))
    with pytest.raises(ValueError, match=f"{name}: steps 1 to 4 hold no link"):
        next(iter(stage(name, graph)))


@pytest.mark.parametrize("name", ["pretrain", "finetune"])
def test_a_training_that_diverges_is_named_and_gives_no_weights(name):
    graph, reports = prepared(example_graph()), []
    with pytest.raises(TrainingDiverged) as caught:
        last_weights(stage(name, graph, id_learning_rate=1e30), reports.append)
    assert reports == []
    assert f"{name}: the validation loss of epoch 1 is nan" in str(caught.value)
    assert f"{name}.learning_rate (here 0.001) or {name}.id_learning_rate (here 1e+30)" in str(caught.value)


def test_a_training_that_diverges_after_a_checkpoint_is_named_when_it_is_resumed_too():
    graph = prepared(example_graph())
    [first] = [progress.checkpoint() for progress in stage("pretrain", graph, epochs=1)]
    first = replace(first, record=first.record | {"settings": {**first.record["settings"], "id_learning_rate": 1e30}})
    with pytest.raises(TrainingDiverged, match="the validation loss of epoch 2 is nan"):
        last_weights(stage("pretrain", graph, resume=first, id_learning_rate=1e30))


def test_without_held_out_links_the_loss_of_training_is_that_which_must_be_finite():
    graph = prepared(example_graph())
    with pytest.raises(TrainingDiverged, match="pretrain: the link loss of epoch 1 is nan"):
        last_weights(stage("pretrain", graph, id_learning_rate=1e30, validation_fraction=0))


def test_a_last_step_that_diverges_gives_no_weights():
    graph, reports = prepared(example_graph()), []
    changes = {"epochs": 1, "batches_per_epoch": 1, "validation_fraction": 0, "id_learning_rate": 1e39}
    with pytest.raises(TrainingDiverged, match=r"pretrain: the weights .* NaN or infinity in inputs\.id_NO"):
        last_weights(stage("pretrain", graph, **changes), reports.append)
    assert math.isfinite(reports[0].losses["link"]), "its loss is that before the step"
