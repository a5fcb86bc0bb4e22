"""EvolveGCN: snapshots -> vectors of a graph convolution with weights that a GRU evolves (Pareja et al., 2020).

N nodes known at a step    I inputs    O outputs of a layer    T steps of the window    P positive, M negative pairs
"""

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dyformer import InvalidInput
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.sampling.adjacency import adjacency, gcn_matrix, window_snapshots
from dyformer.sampling.losses import inner_products, negative_sampling_loss
from dyformer.sampling.negative_sampling import uniform_negatives
from dyformer.sampling.pairs import Pairs, known_edges, pair_keys
from dyformer.sampling.seeded import seeded

if TYPE_CHECKING:
    from dyformer.baselines.evolvegcn.method import Evolution, EvolveGCN

SLOPE = (1 / 8 + 1 / 3) / 2  # mean slope of the randomised leaky ReLU that the authors' code uses


def node_vectors(settings: "EvolveGCN", graph: PreparedGraph, *, seed: int) -> NDArray[np.float32]:
    """Train, and give the vectors as of `graph.until`. Raises ValueError for a history of one step."""
    if graph.until < 2:
        raise InvalidInput("EvolveGCN forecasts steps of the history from earlier ones: expected 2 steps, found 1")
    matrices = {snapshot.step: gcn_matrix(adjacency(snapshot)) for snapshot in graph.history.snapshots}
    tasks = forecast_tasks(graph, matrices, settings.validation_fraction, np.random.default_rng([seed, 0]))
    with seeded(seed):
        model = EvolvingNetwork(len(graph.history.node_N), settings.width, settings.num_layers, settings.evolution)
    _train(settings, model, tasks, np.random.default_rng([seed, 1]))
    window = [matrices[snapshot.step] for snapshot in window_snapshots(graph)]
    with torch.no_grad():
        return model(window).numpy()


def _train(
    settings: "EvolveGCN",
    model: "EvolvingNetwork",
    tasks: Sequence["ForecastTask"],
    generator: np.random.Generator,
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    held_out = [task.negatives(settings.num_negatives * len(task.held_out[0]), generator) for task in tasks]
    best, best_loss, best_epoch = {}, math.inf, 0
    for epoch in range(settings.epochs):
        for index in generator.permutation(len(tasks)):
            task = tasks[index]
            negatives = task.negatives(settings.num_negatives * len(task.positives[0]), generator)
            optimizer.zero_grad()
            _loss(settings, model(task.window), task.positives, negatives).backward()
            optimizer.step()
        with torch.no_grad():
            losses = [
                float(_loss(settings, model(task.window), task.held_out, negatives))
                for task, negatives in zip(tasks, held_out, strict=True)
            ]
        if (loss := float(np.mean(losses))) <= best_loss:
            best, best_loss, best_epoch = copy.deepcopy(model.state_dict()), loss, epoch
        if epoch - best_epoch >= settings.patience:
            break
    model.load_state_dict(best)


def _loss(settings: "EvolveGCN", vector_NO: Tensor, positives: Pairs, negatives: Pairs) -> Tensor:
    scores = [inner_products(vector_NO, *pairs) for pairs in (positives, negatives)]
    return negative_sampling_loss(scores[0], scores[1], settings.negative_weight)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForecastTask:
    """Links of a step between nodes known before it, to forecast from the window before it."""

    window: Sequence[Tensor]  # normalised adjacency of each step, the newest last
    positives: Pairs
    held_out: Pairs

    def negatives(self, num: int, generator: np.random.Generator) -> Pairs:
        """Draw about `num` pairs of known nodes without a link in the step."""
        num_nodes = self.window[-1].shape[0]
        keys = [pair_keys(num_nodes, *pairs) for pairs in (self.positives, self.held_out)]
        return uniform_negatives(num_nodes, np.sort(np.concatenate(keys)), num, generator)


def forecast_tasks(
    graph: PreparedGraph, matrices: Mapping[int, Tensor], held_out: float, generator: np.random.Generator
) -> list[ForecastTask]:
    """Give the task of each step from 2 to `graph.until`, with a fraction of its links held out."""
    tasks = []
    for snapshot in graph.history.snapshots[1:]:
        before = window_snapshots(graph, until=snapshot.step - 1)
        source_P, target_P = known_edges(snapshot, before[-1].num_nodes)
        held_out_P = generator.random(len(source_P)) < held_out
        parts = [(source_P[part_P], target_P[part_P]) for part_P in (~held_out_P, held_out_P)]
        window = [matrices[snapshot.step] for snapshot in before]
        tasks.append(ForecastTask(window=window, positives=parts[0], held_out=parts[1]))
    return tasks


class EvolvingNetwork(nn.Module):
    """Layers of graph convolutions over id embeddings."""

    def __init__(self, num_nodes: int, width: int, num_layers: int, evolution: "Evolution") -> None:
        super().__init__()
        self.id_NI = nn.Parameter(torch.randn(num_nodes, width) / math.sqrt(width))
        self.layers = nn.ModuleList(EvolvingWeight(width, width, evolution) for _ in range(num_layers))
        self.evolution = evolution

    def forward(self, window: Sequence[Tensor]) -> Tensor:
        """Give the vectors [N, O] of the nodes known at the last step of a window of normalised adjacencies."""
        steps = range(len(window))
        # In "O" the vectors of older steps have no effect on the last ones.
        read = steps if self.evolution == "H" else steps[-1:]
        vectors = {step: self.id_NI[: window[step].shape[0]] for step in read}
        for layer in self.layers:
            weights = layer([vectors.get(step) for step in steps])
            vectors = {step: convolved(window[step], vectors[step], weights[step]) for step in read}
        return vectors[steps[-1]]


def convolved(matrix_NN: Tensor, input_NI: Tensor, weight_IO: Tensor) -> Tensor:
    """Give one graph convolution, sigma(A X W)."""
    return functional.leaky_relu(torch.sparse.mm(matrix_NN, input_NI @ weight_IO), SLOPE)


class EvolvingWeight(nn.Module):
    """The weights of one layer at each step."""

    def __init__(self, num_inputs: int, num_outputs: int, evolution: "Evolution") -> None:
        super().__init__()
        self.first_IO = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_inputs, num_outputs)))
        self.gru = MatrixGRU(num_inputs, num_outputs)
        bound = 1 / math.sqrt(num_inputs)
        scorer_I = nn.Parameter(torch.empty(num_inputs).uniform_(-bound, bound))
        self.scorer_I = scorer_I if evolution == "H" else None

    def forward(self, inputs: Sequence[Tensor | None]) -> list[Tensor]:
        """Give the weights [I, O] of each step from the layer's inputs [N, I] of the steps, which "O" does not read."""
        weight_IO, weights = self.first_IO, []
        for input_NI in inputs:
            read_IO = weight_IO
            if self.scorer_I is not None:
                assert input_NI is not None
                read_IO = summary(input_NI, self.scorer_I, weight_IO.shape[1])
            weight_IO = self.gru(read_IO, weight_IO)
            weights.append(weight_IO)
        return weights


def summary(input_NI: Tensor, scorer_I: Tensor, num_columns: int) -> Tensor:
    """Give the `num_columns` nodes with the best scores as columns [I, O], each times the tanh of its score.

    The score of x is x . p / |p| (section 3.4 of the article). Of fewer nodes the last one is repeated. Without
    nodes, as before the first event that a trim leaves, the columns are 0.
    """
    if not len(input_NI):
        return input_NI.new_zeros(len(scorer_I), num_columns)
    score_N = input_NI @ scorer_I / scorer_I.norm()
    best_O = score_N.topk(min(num_columns, len(score_N))).indices
    best_O = torch.cat([best_O, best_O[-1:].expand(num_columns - len(best_O))])
    return (input_NI[best_O] * score_N[best_O].tanh()[:, None]).T


class MatrixGRU(nn.Module):
    """One step of a GRU whose input and state are matrices [I, O]; its matrices act on columns."""

    def __init__(self, num_rows: int, num_columns: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(num_rows)
        self.input_3II, self.state_3II = (
            nn.Parameter(torch.empty(3, num_rows, num_rows).uniform_(-bound, bound)) for _ in range(2)
        )
        self.bias_3IO = nn.Parameter(torch.zeros(3, num_rows, num_columns))

    def forward(self, input_IO: Tensor, state_IO: Tensor) -> Tensor:
        """Give the next state."""
        update_IO, reset_IO = (
            torch.sigmoid(self.input_3II[gate] @ input_IO + self.state_3II[gate] @ state_IO + self.bias_3IO[gate])
            for gate in (0, 1)
        )
        candidate_IO = self.input_3II[2] @ input_IO + self.state_3II[2] @ (reset_IO * state_IO) + self.bias_3IO[2]
        return (1 - update_IO) * state_IO + update_IO * torch.tanh(candidate_IO)
