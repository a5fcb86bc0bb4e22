"""PreparedGraph -> trained weights -> vectors: the stages of DyFormer (paper, section 4).

N nodes    D width    B nodes wanted    G targets of a batch
P, M pairs    A all of their ends    U different nodes among these    O width of a node's id embedding
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dyformer.embedder import Embed
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.model.config import ModelConfig
from dyformer.model.losses import link_loss, normalised_view_loss, view_loss
from dyformer.model.transformer import DyFormer, ModelSizes
from dyformer.sampling.link_batches import (
    LabelledPairs,
    PairBatch,
    PairSizes,
    PairSource,
    forecast_tasks,
    reconstruction_tasks,
)
from dyformer.sampling.pairs import node_batches
from dyformer.sampling.prefetch import NUM_AHEAD, NUM_THREADS, loaded
from dyformer.sampling.subgraphs import as_of_graph, make_batch, num_features, num_lags
from dyformer.training.checkpoint import Checkpoint, Progress, Weights
from dyformer.training.config import FinetuneConfig, PretrainConfig
from dyformer.training.loop import Stage, run_epochs


class WeightsDoNotFit(ValueError):
    """Weights of another shape than the model that is to carry them."""


def pretrain(
    graph: PreparedGraph,
    model_config: ModelConfig,
    config: PretrainConfig,
    *,
    seed: int,
    device: str | torch.device = "cpu",
    resume: Checkpoint | None = None,
    weights: Weights | None = None,
) -> Iterator[Progress]:
    """Learn to reconstruct steps of the history, from scratch or from the weights of an earlier cut.

    Raises ValueError for a history of one step, or a checkpoint of another run.
    """
    _check_history(graph)

    def loss(model: DyFormer, batch: PairBatch) -> dict[str, Tensor]:
        return pretraining_loss(model, batch, config)

    stage = Stage(
        name="pretrain",
        number=1,
        tasks=reconstruction_tasks(graph.until, num_lags(graph), hidden=config.mask_lag),
        source=pair_source(graph, model_config, config, seed),
        two_views=config.view_weight > 0,
        loss=loss,
        config=config,
        seed=seed,
        device=torch.device(device),
    )
    yield from run_epochs(stage, started_model(graph, model_config, weights, seed), resume)


def finetune(
    graph: PreparedGraph,
    weights: Weights | None,
    model_config: ModelConfig,
    config: FinetuneConfig,
    *,
    seed: int,
    device: str | torch.device = "cpu",
    resume: Checkpoint | None = None,
) -> Iterator[Progress]:
    """Learn to forecast each step of the history from the steps before it, from pre-trained weights or from scratch.

    Raises ValueError for a history of one step, or a checkpoint of another run.
    """
    _check_history(graph)

    def loss(model: DyFormer, batch: PairBatch) -> dict[str, Tensor]:
        return forecast_loss(model, batch, config)

    stage = Stage(
        name="finetune",
        number=2,
        tasks=forecast_tasks(graph.until),
        source=pair_source(graph, model_config, config, seed),
        two_views=False,
        loss=loss,
        config=config,
        seed=seed,
        device=torch.device(device),
    )
    yield from run_epochs(stage, started_model(graph, model_config, weights, seed), resume)


def _check_history(graph: PreparedGraph) -> None:
    if graph.until < 2:
        raise ValueError(
            f"a history of {graph.until} step cannot be learnt from: each step is told from others; "
            f"train until step 2 at least"
        )


def pair_source(
    graph: PreparedGraph, model_config: ModelConfig, config: PretrainConfig | FinetuneConfig, seed: int
) -> PairSource:
    """Give the batches of a stage; both stages hold the same edges out."""
    num_history_links = config.num_history_links if isinstance(config, PretrainConfig) and model_config.id_width else 0
    sizes = PairSizes(
        num_positives=config.num_positives,
        num_negatives=config.num_negatives,
        num_targets=config.num_targets,
        num_context=model_config.num_context,
        num_history_links=num_history_links,
        half_life=config.step_half_life,
    )
    return PairSource(graph, sizes, validation_fraction=config.validation_fraction, seed=seed)


def pretraining_loss(model: DyFormer, batch: PairBatch, config: PretrainConfig) -> dict[str, Tensor]:
    """L_recon + gamma x L_view (paper, section 4.1); without a second view, L_recon of the first."""
    losses: dict[str, Tensor] = {}
    if batch.second_view is None:
        link = loss = reconstruction_loss(model, batch, model(batch.subgraph), config)
    else:
        first_GD, second_GD = model.views([batch.subgraph, batch.second_view])
        links = [reconstruction_loss(model, batch, vector_GD, config) for vector_GD in (first_GD, second_GD)]
        link = (links[0] + links[1]) / 2
        losses["view"] = two_view_loss(model, first_GD, second_GD, config)
        loss = link + config.view_weight * losses["view"]
    if batch.history is not None:
        losses["id"] = id_loss(model, batch.history, config)
        loss = loss + config.id_weight * losses["id"]
    return {"loss": loss, "link": link, **losses}


def reconstruction_loss(model: DyFormer, batch: PairBatch, vector_GD: Tensor, config: PretrainConfig) -> Tensor:
    """Link loss of one lag. Newer steps are drawn more often (`step_half_life`); the paper averages all lags alike."""
    pairs = batch.pairs
    first_P = torch.cat([pairs.positive_first_P, pairs.negative_first_M])
    second_P = torch.cat([pairs.positive_second_P, pairs.negative_second_M])
    score_P = model.temporal(vector_GD, first_P, second_P, batch.task.lag)  # of all: decoding is most of the work
    num_positives = len(pairs.positive_first_P)
    return link_loss(score_P[:num_positives], score_P[num_positives:], negative_weight=config.negative_weight)


def id_loss(model: DyFormer, pairs: LabelledPairs, config: PretrainConfig) -> Tensor:
    """Link loss of the nodes' id embeddings alone, with a penalty on their squared length (ours, not the paper's).

    A node is in few batches, and there its id embedding is one of many reasons for a score. Asked alone, about links of
    all steps, id embeddings come to say who is linked with whom: a logistic matrix factorisation of the history
    (Johnson 2014).
    """
    node_lists = [pairs.positive_first_P, pairs.positive_second_P, pairs.negative_first_M, pairs.negative_second_M]
    node_U, place_A = torch.cat(node_lists).unique(return_inverse=True)  # to add up gradients of rows costs more later
    row_UO = model.inputs.rows(node_U)
    places = place_A.split([len(nodes) for nodes in node_lists])
    link = link_loss(
        model.id_link(row_UO, places[0], places[1]),
        model.id_link(row_UO, places[2], places[3]),
        negative_weight=config.negative_weight,
    )
    square_U = row_UO.square().sum(dim=1)
    square = torch.stack([square_U.index_select(0, place_P).sum() / max(len(place_P), 1) for place_P in places]).sum()
    return link + config.id_penalty * square


def two_view_loss(model: DyFormer, first_GD: Tensor, second_GD: Tensor, config: PretrainConfig) -> Tensor:
    """L_view, plain as in the paper or of normalised vectors."""
    if config.view == "plain":
        return view_loss(first_GD, second_GD)
    return normalised_view_loss(first_GD, second_GD, model.view(second_GD), model.view(first_GD))


def forecast_loss(model: DyFormer, batch: PairBatch, config: FinetuneConfig) -> dict[str, Tensor]:
    """Link loss of the next step."""
    vector_GD, pairs = model(batch.subgraph), batch.pairs
    link = link_loss(
        model.link(vector_GD, pairs.positive_first_P, pairs.positive_second_P),
        model.link(vector_GD, pairs.negative_first_M, pairs.negative_second_M),
        negative_weight=config.negative_weight,
    )
    return {"loss": link, "link": link}


def started_model(graph: PreparedGraph, config: ModelConfig, weights: Weights | None, seed: int) -> DyFormer:
    """Build the model of a graph, with fresh weights or with those of an earlier cut where they fit."""
    sizes = ModelSizes(
        num_nodes=len(graph.history.node_N),
        num_features=num_features(graph),
        num_lags=num_lags(graph),
        max_distance=graph.config.max_distance,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DyFormer(config, sizes)
    model.node_N.copy_(torch.tensor(graph.history.node_N))
    if weights is not None:
        model.load_state_dict(moved_weights(weights, model.state_dict()))
    return model


def moved_weights(weights: Weights, fresh: Weights) -> Weights:
    """Fit weights to the nodes of another graph: a node keeps its row by its permanent number, a new one is untrained.

    Raises WeightsDoNotFit where anything but the number of nodes differs.
    """
    row_N = [name for name in fresh if name.endswith(("_N", "_NO"))]
    wrong = [
        f"{name}: expected {tuple(tensor.shape)}, found {tuple(weights[name].shape) if name in weights else None}"
        for name, tensor in fresh.items()
        if name not in weights or (name not in row_N and weights[name].shape != tensor.shape)
    ]
    if wrong:
        raise WeightsDoNotFit(f"the weights do not fit the model ({'; '.join(wrong)}): train from scratch")
    old, new = weights["node_N"].cpu().numpy(), fresh["node_N"].cpu().numpy()
    _, old_row, new_row = np.intersect1d(old, new, assume_unique=True, return_indices=True)
    moved = dict(weights)
    for name in row_N:
        moved[name] = fresh[name].clone()
        moved[name][torch.from_numpy(new_row)] = weights[name].cpu()[torch.from_numpy(old_row)]
    return moved


def embed(
    graph: PreparedGraph,
    weights: Weights,
    model_config: ModelConfig,
    *,
    device: str | torch.device = "cpu",
    node_B: NDArray[np.int64] | None = None,
) -> NDArray[np.float32]:
    """Give the vectors `[N, D]` of all nodes known at `graph.until`, or of those wanted and zeros for most others.

    Nodes are asked in fixed batches in the order of their numbers, so that a vector does not depend on who is wanted.
    Batches are made in background threads, and beside the vectors no more than a few of them are held at once.
    """
    model = started_model(graph, model_config, weights, seed=0).to(torch.device(device)).eval()
    view = as_of_graph(graph, until=graph.until)
    num_nodes = len(graph.history.node_N)
    is_wanted_N = np.full(num_nodes, node_B is None)
    if node_B is not None:
        is_wanted_N[node_B] = True
    batches = [nodes_G for nodes_G in node_batches(num_nodes, model_config.num_targets) if is_wanted_N[nodes_G].any()]
    works = [partial(make_batch, view, target_G, num_context=model_config.num_context) for target_G in batches]
    vector_ND = np.zeros((num_nodes, model_config.width), dtype=np.float32)
    with torch.no_grad(), closing(loaded(works, num_threads=NUM_THREADS, num_ahead=NUM_AHEAD)) as made:
        for target_G, batch in zip(batches, made, strict=True):
            vector_ND[target_G] = model(batch.to(torch.device(device))).cpu().numpy()
    return vector_ND


@dataclass(frozen=True, kw_only=True)
class DyFormerEmbedder:
    """DyFormer as a method among others."""

    model: ModelConfig
    pretrain: PretrainConfig | None
    finetune: FinetuneConfig
    device: str = "cpu"

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Pre-train, fine-tune and embed all nodes known at `graph.until`."""
        vector_ND = embed(graph, self.train(graph, seed=seed), self.model, device=self.device)

        def look_up(node_N: NDArray[np.int64]) -> NDArray[np.float32]:
            return vector_ND[node_N]

        return look_up

    def train(self, graph: PreparedGraph, *, seed: int) -> Weights:
        """Pre-train and fine-tune."""
        weights = None
        if self.pretrain is not None:
            weights = last_weights(pretrain(graph, self.model, self.pretrain, seed=seed, device=self.device))
        return last_weights(finetune(graph, weights, self.model, self.finetune, seed=seed, device=self.device))


def last_weights(stage: Iterator[Progress]) -> Weights:
    """Run a stage to its end and give its best weights. Raises ValueError for a stage that was already over."""
    for progress in stage:
        if progress.is_last:
            return progress.checkpoint().weights()
    raise ValueError("the stage has no epoch left to run: read the weights of its checkpoint, or ask for more epochs")
