"""PreparedGraph -> trained weights -> vectors: the stages of DyFormer (paper, section 4).

N nodes    D width    B requested nodes    G targets of a batch
P, M positive and negative pairs    A ends of all pairs    U distinct nodes among these    O width of an id embedding
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dyformer import InvalidInput
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.model.config import ModelConfig, ModelSizes
from dyformer.model.losses import link_loss, normalised_view_loss, ranking_loss, view_loss
from dyformer.model.transformer import DyFormer, IdRows
from dyformer.sampling.link_batches import (
    LabelledPairs,
    PairBatch,
    PairSizes,
    PairSource,
    forecast_tasks,
    reconstruction_tasks,
)
from dyformer.sampling.pairs import node_batches
from dyformer.sampling.prefetch import NUM_THREADS, loaded
from dyformer.sampling.seeded import seeded
from dyformer.sampling.subgraphs import (
    AsOfGraph,
    SubgraphBatch,
    as_of_graph,
    make_batch,
    num_features,
    num_lags,
    padded,
    with_each_tensor,
)
from dyformer.scoring.interfaces import Embed
from dyformer.training.checkpoint import Checkpoint, Progress, Weights, check_fit
from dyformer.training.config import FinetuneConfig, PretrainConfig, StageConfig
from dyformer.training.loop import Stage, TrainingDiverged, run_epochs
from dyformer.training.ranks import Rank, fixed_order, one_thread

ALONE = Rank()  # no other process trains the model


def pretrain(
    graph: PreparedGraph,
    model_config: ModelConfig,
    config: PretrainConfig,
    *,
    seed: int,
    rank: Rank = ALONE,
    resume: Checkpoint | None = None,
    weights: Weights | None = None,
) -> Iterator[Progress]:
    """Learn to reconstruct steps of the history, from scratch or from the weights of an earlier step.

    Raises ValueError for a history of one step, a checkpoint of another run, or weights that do not fit,
    NothingToLearn for a history without links, TooManyRanks for more processes than batches of an optimizer step,
    TrainingDiverged for a loss that is not finite.
    """
    _check_history(graph)
    stage = Stage(
        name="pretrain",
        number=1,
        tasks=reconstruction_tasks(graph.until, num_lags(graph), hidden=config.mask_lag),
        source=pair_source(graph, model_config, config, seed),
        two_views=config.view_weight > 0,
        loss=partial(pretraining_loss, config=config),
        config=config,
        seed=seed,
        rank=rank,
    )
    yield from run_epochs(stage, started_model(graph, model_config, weights, seed), resume)


def finetune(
    graph: PreparedGraph,
    weights: Weights | None,
    model_config: ModelConfig,
    config: FinetuneConfig,
    *,
    seed: int,
    rank: Rank = ALONE,
    resume: Checkpoint | None = None,
) -> Iterator[Progress]:
    """Learn to forecast each step of the history from the steps before it, from pre-trained weights or from scratch.

    Raises ValueError for a history of one step, a checkpoint of another run, or weights that do not fit,
    NothingToLearn for a history without links, TooManyRanks for more processes than batches of an optimizer step,
    TrainingDiverged for a loss that is not finite.
    """
    _check_history(graph)
    stage = Stage(
        name="finetune",
        number=2,
        tasks=forecast_tasks(graph.until),
        source=pair_source(graph, model_config, config, seed),
        two_views=False,
        loss=partial(forecast_loss, config=config),
        config=config,
        seed=seed,
        rank=rank,
    )
    yield from run_epochs(stage, started_model(graph, model_config, weights, seed), resume)


def _check_history(graph: PreparedGraph) -> None:
    if graph.until < 2:
        raise InvalidInput(
            f"a history of {graph.until} step cannot be learnt from, because each step is predicted from others; "
            f"train until step 2 at least"
        )


def pair_source(graph: PreparedGraph, model_config: ModelConfig, config: StageConfig, seed: int) -> PairSource:
    """Give the source of a stage's batches; both stages hold out the same edges."""
    num_history_links = 0
    if isinstance(config, PretrainConfig) and config.id_weight > 0 and model_config.id_width > 0:
        num_history_links = config.num_history_links
    sizes = PairSizes(
        num_positives=config.num_positives,
        num_negatives=config.num_negatives,
        num_targets=config.num_targets,
        num_context=model_config.num_context,
        all_pairs=model_config.towers == "one",
        num_history_links=num_history_links,
        half_life=config.step_half_life or math.inf,
        hard_negatives=config.hard_negatives,
        ranked=isinstance(config, FinetuneConfig) and config.ranking_weight > 0,
    )
    return PairSource(graph, sizes, validation_fraction=config.validation_fraction, seed=seed)


def pretraining_loss(model: DyFormer, batch: PairBatch, config: PretrainConfig) -> dict[str, Tensor]:
    """L_recon + gamma x L_view (paper, section 4.1), and the loss of the id embeddings, if it has a weight.

    L_recon is the mean over both views by default; without a second view it is that of the first.
    """
    losses: dict[str, Tensor] = {}
    ids = model.inputs.ids(batch.node_U)
    if batch.second_view is None:
        link = loss = reconstruction_loss(model, batch, model(batch.subgraph, ids), config)
    else:
        first_GD, second_GD = model.views([batch.subgraph, batch.second_view], ids)
        reconstructed = (first_GD,) if config.reconstructed_views == "first" else (first_GD, second_GD)
        links = [reconstruction_loss(model, batch, vector_GD, config) for vector_GD in reconstructed]
        link = torch.stack(links).mean()
        losses["view"] = two_view_loss(model, first_GD, second_GD, config)
        loss = link + config.view_weight * losses["view"]
    if batch.history is not None:
        losses["id"] = id_loss(model, batch.history, ids, config)
        loss = loss + config.id_weight * losses["id"]
    return {"loss": loss, "link": link, **losses}


def reconstruction_loss(model: DyFormer, batch: PairBatch, vector_GD: Tensor, config: PretrainConfig) -> Tensor:
    """Give the link loss of one lag. Newer steps are drawn more often (`step_half_life`); the paper averages lags."""
    pairs = batch.pairs
    first_P = torch.cat([pairs.positive_first_P, pairs.negative_first_M])
    second_P = torch.cat([pairs.positive_second_P, pairs.negative_second_M])
    # One call for all pairs, because decoding takes most of the time.
    score_P = model.temporal(vector_GD, first_P, second_P, batch.task.lag)
    num_positives = len(pairs.positive_first_P)
    return link_loss(score_P[:num_positives], score_P[num_positives:], negative_weight=config.negative_weight)


def id_loss(model: DyFormer, pairs: LabelledPairs, ids: IdRows, config: PretrainConfig) -> Tensor:
    """Give the link loss of the nodes' id embeddings alone, with a penalty on their squared length (not in the paper).

    It is a logistic matrix factorisation of the history (Johnson 2014). Without it id embeddings learn little: a node
    is in few batches, and its id embedding is only a part of its vector.
    """
    node_lists = [pairs.positive_first_P, pairs.positive_second_P, pairs.negative_first_M, pairs.negative_second_M]
    node_A = torch.cat(node_lists)
    model.inputs.mark_trained(node_A, torch.ones_like(node_A, dtype=torch.bool))
    indices = ids.index(node_A).split([len(nodes) for nodes in node_lists])
    link = link_loss(
        model.id_link(ids.row_UO, indices[0], indices[1]),
        model.id_link(ids.row_UO, indices[2], indices[3]),
        negative_weight=config.negative_weight,
    )
    square_U = ids.row_UO.square().sum(dim=1)
    lengths = [square_U.index_select(0, index_P).sum() / max(len(index_P), 1) for index_P in indices]
    return link + config.id_penalty * torch.stack(lengths).sum()


def two_view_loss(model: DyFormer, first_GD: Tensor, second_GD: Tensor, config: PretrainConfig) -> Tensor:
    """Give the loss L_view of two views: as in the paper, or with all vectors scaled to length 1."""
    if config.view == "plain":
        return view_loss(first_GD, second_GD)
    return normalised_view_loss(first_GD, second_GD, model.view(second_GD), model.view(first_GD))


def forecast_loss(model: DyFormer, batch: PairBatch, config: FinetuneConfig) -> dict[str, Tensor]:
    """Give the link loss of the next step, or its weighted mean with a loss that ranks all targets of the batch."""
    vector_GD, pairs = model(batch.subgraph, model.inputs.ids(batch.node_U)), batch.pairs
    link = link_loss(
        model.link(vector_GD, pairs.positive_first_P, pairs.positive_second_P),
        model.link(vector_GD, pairs.negative_first_M, pairs.negative_second_M),
        negative_weight=config.negative_weight,
    )
    if batch.negative_GG is None:
        return {"loss": link, "link": link}
    score_GG = model.link.all_pairs(vector_GD)
    ranking = ranking_loss(score_GG, pairs.positive_first_P, pairs.positive_second_P, batch.negative_GG)
    loss = (1 - config.ranking_weight) * link + config.ranking_weight * ranking
    return {"loss": loss, "link": link, "ranking": ranking}


def started_model(graph: PreparedGraph, config: ModelConfig, weights: Weights | None, seed: int) -> DyFormer:
    """Build the model of a graph, with fresh weights or with those of an earlier step. Raises WeightsDoNotFit."""
    sizes = ModelSizes(
        num_nodes=len(graph.history.node_N),
        num_features=num_features(graph),
        num_lags=num_lags(graph),
        max_distance=graph.config.max_distance,
    )
    with seeded(seed), one_thread():  # because orthogonal weights are those of a decomposition
        model = DyFormer(config, sizes)
    model.node_N.copy_(torch.tensor(graph.history.node_N))
    if weights is not None:
        model.load_state_dict(moved_weights(weights, model.state_dict()))
    return model


def id_bytes(num_nodes: int, config: ModelConfig) -> int:
    """Give the bytes of the id embeddings in training: float32, beside their best copy and two moments of Adam."""
    return 4 * 4 * num_nodes * config.id_width


def moved_weights(weights: Weights, fresh: Weights) -> Weights:
    """Move weights to the nodes of another graph: a node keeps its row by its permanent number, a new one is untrained.

    Raises WeightsDoNotFit where anything but the number of nodes differs.
    """
    row_N = [name for name in fresh if name.endswith(("_N", "_NO"))]
    check_fit(weights, fresh, of_any_length=row_N)
    old, new = weights["node_N"].cpu().numpy(), fresh["node_N"].cpu().numpy()
    _, old_row, new_row = np.intersect1d(old, new, assume_unique=True, return_indices=True)
    moved = dict(weights)
    for name in row_N:
        moved[name] = fresh[name].clone()
        moved[name][torch.from_numpy(new_row)] = weights[name].cpu()[torch.from_numpy(old_row)]
    return moved


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeVectors:
    """A model ready to embed the nodes of a graph, batch by batch.

    Batches are fixed, in the order of node numbers, so that a vector depends on no request.
    """

    model: DyFormer
    graph: AsOfGraph  # of its last step
    config: ModelConfig
    batches: list[NDArray[np.int64]]  # nodes of each
    device: torch.device

    def of(self, batches: Sequence[NDArray[np.int64]], num_threads: int) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors `[G, D]` of each of some batches, which background threads make, or with 0 this one."""
        is_gpu = self.device.type == "cuda"
        jobs = [partial(self._for_gpu if is_gpu else self._made, target_G) for target_G in batches]
        with closing(loaded(jobs, num_threads=num_threads, num_ahead=2 * num_threads)) as made:
            vectors = (self._embedded(batch) for batch in made)
            yield from read_behind(vectors) if is_gpu else (vector_GD.numpy() for vector_GD in vectors)

    def _made(self, target_G: NDArray[np.int64]) -> SubgraphBatch:
        all_pairs = self.config.towers == "one"
        return make_batch(self.graph, target_G, num_context=self.config.num_context, all_pairs=all_pairs)

    def _for_gpu(self, target_G: NDArray[np.int64]) -> SubgraphBatch:
        num_targets = len(self.batches[0])  # the others are no larger
        sizes = {"num_targets": num_targets, "num_context": self.config.num_context or num_targets}
        (batch,) = padded([self._made(target_G)], **sizes)
        return with_each_tensor(batch, Tensor.pin_memory)

    def _embedded(self, batch: SubgraphBatch) -> Tensor:
        with fixed_order(self.device), torch.no_grad():
            return self.model(batch.to(self.device))


def read_behind(vectors: Iterator[Tensor]) -> Iterator[NDArray[np.float32]]:
    """Read a GPU's results, each while the GPU computes the next one."""
    before: tuple[Tensor, torch.cuda.Event] | None = None
    for vector_GD in vectors:
        host_GD, copied = torch.empty(vector_GD.shape, pin_memory=True), torch.cuda.Event()
        host_GD.copy_(vector_GD, non_blocking=True)
        copied.record(torch.cuda.current_stream(vector_GD.device))
        if before is not None:
            before[1].synchronize()
            yield before[0].numpy()
        before = host_GD, copied
    if before is not None:
        before[1].synchronize()
        yield before[0].numpy()


def node_vectors(
    graph: PreparedGraph, weights: Weights, model_config: ModelConfig, *, device: str | torch.device = "cpu"
) -> NodeVectors:
    """Prepare weights to embed all nodes known at `graph.until`. Raises WeightsDoNotFit."""
    on_device = torch.device(device)
    return NodeVectors(
        model=started_model(graph, model_config, weights, seed=0).to(on_device).eval(),
        graph=as_of_graph(graph, until=graph.until),
        config=model_config,
        batches=node_batches(len(graph.history.node_N), model_config.num_targets),
        device=on_device,
    )


def embed(
    graph: PreparedGraph,
    weights: Weights,
    model_config: ModelConfig,
    *,
    device: str | torch.device = "cpu",
    node_B: NDArray[np.int64] | None = None,
) -> NDArray[np.float32]:
    """Give the vectors `[N, D]` of all nodes known at `graph.until`, or of requested ones and zeros for most others.

    Background threads make the batches, and beside the vectors memory holds a few batches at once. Raises
    WeightsDoNotFit.
    """
    vectors = node_vectors(graph, weights, model_config, device=device)
    num_nodes = len(graph.history.node_N)
    is_requested_N = np.full(num_nodes, node_B is None)
    if node_B is not None:
        is_requested_N[node_B] = True
    batches = [node_G for node_G in vectors.batches if is_requested_N[node_G].any()]
    vector_ND = np.zeros((num_nodes, model_config.width), dtype=np.float32)
    for target_G, vector_GD in zip(batches, vectors.of(batches, NUM_THREADS), strict=True):
        vector_ND[target_G] = vector_GD
    return vector_ND


@dataclass(frozen=True, kw_only=True)
class DyFormerEmbedder:
    """DyFormer as a method beside the baselines."""

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

    def train(self, graph: PreparedGraph, *, seed: int, report: Callable[[Progress], None] | None = None) -> Weights:
        """Pre-train and fine-tune; `report` is called after each epoch."""
        weights = None
        if self.pretrain is not None:
            first = pretrain(graph, self.model, self.pretrain, seed=seed, rank=Rank(device=self.device))
            weights = last_weights(first, report)
        second = finetune(graph, weights, self.model, self.finetune, seed=seed, rank=Rank(device=self.device))
        return last_weights(second, report)


def last_weights(stage: Iterator[Progress], report: Callable[[Progress], None] | None = None) -> Weights:
    """Run a stage to its end and give its best weights.

    Raises ValueError for a stage without an epoch left, and TrainingDiverged for a loss or weights that are not finite.
    """
    for progress in stage:
        if report is not None:
            report(progress)
        if progress.is_last:
            return _finite(progress.checkpoint().weights(), progress.stage)
    raise InvalidInput("the stage has no epoch left to run: read the weights of its checkpoint, or set more epochs")


def _finite(weights: Weights, stage: str) -> Weights:
    wrong = [name for name, tensor in weights.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if wrong:
        raise TrainingDiverged(
            f"{stage}: the weights of the best epoch have NaN or infinity in {', '.join(wrong)}: expected finite"
            f" numbers; train with a smaller {stage}.learning_rate or {stage}.id_learning_rate"
        )
    return weights
