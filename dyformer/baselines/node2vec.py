"""node2vec: union graph of the window -> vectors by skip-gram over biased random walks (Grover and Leskovec, 2016).

N nodes    D width    S walks    L nodes of a walk    K entries of the noise table
"""

import math

import numpy as np
from numba import njit
from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from dyformer.graphs.config import STRICT
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.sampling.negative_sampling import noise
from dyformer.sampling.walks import random_walks
from dyformer.scoring.interfaces import Embed, rows_of

NOISE_ENTRIES = 1 << 20  # of a table from which a negative node is drawn in one step, as in word2vec
LAST_RATE = 1e-4  # fraction of the learning rate below which it does not decay


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Node2Vec:
    """Skip-gram with negative sampling over walks of the union graph, trained as word2vec is: pair by pair."""

    width: PositiveInt = 128
    num_walks: PositiveInt = 10  # from each node
    walk_length: PositiveInt = 80
    window: PositiveInt = 10  # each node's reach is drawn from 1 .. window, as in word2vec
    return_parameter: PositiveFloat = 1.0  # p
    in_out_parameter: PositiveFloat = 1.0  # q
    num_negatives: PositiveInt = 5
    learning_rate: PositiveFloat = 0.025
    epochs: PositiveInt = 1

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Walk and train; a node without an edge in the window gets the vector 0."""
        generator = np.random.default_rng(seed)
        num_nodes = len(graph.history.node_N)
        walk_SL = random_walks(
            graph.union.adjacency,
            generator,
            num_walks=self.num_walks,
            length=self.walk_length,
            return_parameter=self.return_parameter,
            in_out_parameter=self.in_out_parameter,
        )
        vector_ND = ((generator.random((num_nodes, self.width)) - 0.5) / self.width).astype(np.float32)
        vector_ND[graph.union.degree == 0] = 0
        context_ND = np.zeros_like(vector_ND)
        if len(walk_SL):
            entry_K = (np.arange(NOISE_ENTRIES) + 0.5) / NOISE_ENTRIES
            noise_K = np.searchsorted(noise(graph.union.degree), entry_K).astype(np.int32)
            for epoch in range(self.epochs):
                rates = [self.learning_rate * (1 - part / self.epochs) for part in (epoch, epoch + 1)]
                train_skip_gram(
                    generator.permutation(walk_SL),
                    vector_ND,
                    context_ND,
                    noise_K,
                    (self.window, self.num_negatives),
                    (rates[0], rates[1], self.learning_rate * LAST_RATE),
                    generator,
                )
        return rows_of(vector_ND)


@njit(nogil=True, cache=True)
def train_skip_gram(walk_SL, vector_ND, context_ND, noise_K, sizes, rates, generator):
    """Train on every pair of a node and one within its reach, in the order of the walks (Mikolov et al., 2013).

    `sizes` are the window and the number of negatives, `rates` the first, the last and the least learning rate. Each
    pair moves the node's vector, and the context vectors of the other node and of the negatives; both are changed.
    """
    window, num_negatives = sizes
    num_walks, length = walk_SL.shape
    change_D = np.empty(vector_ND.shape[1], dtype=np.float32)
    for row in range(num_walks):
        rate = np.float32(max(rates[0] + (rates[1] - rates[0]) * row / num_walks, rates[2]))
        for position in range(length):
            vector_D = vector_ND[walk_SL[row, position]]
            reach = 1 + int(generator.random() * window)
            for index in range(max(0, position - reach), min(length, position + reach + 1)):
                if index == position:
                    continue
                other = walk_SL[row, index]
                change_D[:] = 0
                _move(vector_D, context_ND[other], change_D, True, rate)
                for _ in range(num_negatives):
                    negative = noise_K[int(generator.random() * len(noise_K))]
                    if negative != other:
                        _move(vector_D, context_ND[negative], change_D, False, rate)
                vector_D += change_D


@njit(nogil=True, cache=True, fastmath=True)  # the sum may be in any order: the processor adds eight terms at a time
def _move(vector_D, context_D, change_D, is_positive, rate):
    """Move a context vector along the gradient of the logistic loss, and add the change of the node's vector."""
    product = np.float32(0)
    for d in range(len(vector_D)):
        product += vector_D[d] * context_D[d]
    step = rate * (np.float32(is_positive) - np.float32(1 / (1 + math.exp(-product))))
    for d in range(len(vector_D)):
        change_D[d] += step * context_D[d]
        context_D[d] += step * vector_D[d]
