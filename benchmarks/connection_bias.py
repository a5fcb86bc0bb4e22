"""The temporal-connection bias of 512 x 512 pairs, forward and backward, against a dense product with 0/1 connections.

P pairs    T lags    H heads    S distance codes    A connections: pairs with an edge, once for each lag with it
"""

import measure  # isort: skip

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from graphs import power_law_graph
from torch import Tensor

from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.model.encodings import add_connections, distance_bias
from dyformer.sampling.subgraphs import SubgraphBatch, as_of_graph, make_batch

NUM_NODES, NUM_HEADS, MAX_DISTANCE = 512, 8, 5
TARGETS = {16: 20, 100: 70}  # lags, and how many times faster than the dense product
ROUNDS = 11


@dataclass(frozen=True, kw_only=True)
class Case:
    """The input of both sides: the weights, the pairs, and the gradient from attention."""

    absent_H: Tensor
    delta_TH: Tensor
    code_SH: Tensor
    distance_P: Tensor
    pair_A: Tensor
    lag_A: Tensor
    connected_PT: Tensor
    grad_HP: Tensor


def batch_of(num_steps: int) -> SubgraphBatch:
    """Draw a batch whose targets are ends of links of the newest step of s1m, as in training."""
    graph = prepare_graph(
        power_law_graph("s1m", num_steps=num_steps), until=num_steps, config=GraphConfig(history_window=None)
    )
    newest = graph.history.snapshots[-1]
    generator = np.random.default_rng(0)
    ends = generator.permutation(np.unique(np.concatenate([newest.source_E, newest.target_E])))
    target_G = np.sort(ends[:NUM_NODES]).astype(np.int64)
    return make_batch(as_of_graph(graph, until=num_steps), target_G, num_context=NUM_NODES)


def case_of(num_steps: int) -> Case:
    """Draw random weights and gradients for the pairs of a real batch."""
    batch = batch_of(num_steps)
    num_pairs = batch.distance_GC.numel()
    pair_A = batch.edge_target_A * batch.distance_GC.shape[1] + batch.edge_context_A
    connected_PT = torch.zeros(num_pairs, num_steps)
    connected_PT[pair_A, batch.edge_lag_A] = 1
    fraction = len(pair_A.unique()) / num_pairs
    shape = tuple(batch.distance_GC.shape)
    print(f"T = {num_steps}: {shape} pairs, {fraction:.2%} connected, {len(pair_A)} connections")
    return Case(
        absent_H=torch.randn(NUM_HEADS, requires_grad=True),
        delta_TH=torch.randn(num_steps, NUM_HEADS, requires_grad=True),
        code_SH=torch.randn(MAX_DISTANCE + 1, NUM_HEADS, requires_grad=True),
        distance_P=batch.distance_GC.flatten(),
        pair_A=pair_A,
        lag_A=batch.edge_lag_A,
        connected_PT=connected_PT,
        grad_HP=torch.randn(NUM_HEADS, num_pairs),
    )


def sparse(case: Case) -> Tensor:
    """Give our bias, as the model adds it: a constant, plus a difference for each connection."""
    constant_HP = case.absent_H[:, None].expand_as(case.grad_HP).contiguous()
    return add_connections(constant_HP, case.delta_TH, case.pair_A, case.lag_A)


def dense_rows(case: Case) -> Tensor:
    """Give the dense product that the target compares with, a row for each pair: [P, T] @ [T, H] + [H]."""
    return torch.addmm(case.absent_H, case.connected_PT, case.delta_TH).T


def dense_columns(case: Case) -> Tensor:
    """Give the same product in its fastest layout."""
    return torch.addmm(case.absent_H[:, None], case.delta_TH.T.contiguous(), case.connected_PT.T)


def sparse_whole(case: Case) -> Tensor:
    """Give our whole bias, with the distances' part."""
    bias_HP = distance_bias(case.code_SH + case.absent_H, case.distance_P)
    return add_connections(bias_HP, case.delta_TH, case.pair_A, case.lag_A)


def dense_whole(case: Case) -> Tensor:
    """Give the dense product plus our distances' part."""
    return distance_bias(case.code_SH, case.distance_P) + dense_columns(case)


def with_gradients(form: Callable[[Case], Tensor], case: Case) -> list[Tensor]:
    """Run a form forward and backward: the bias, and the gradients of all weights that it reads."""
    weights = [case.absent_H, case.delta_TH, case.code_SH]
    bias_HP = form(case)
    grads = torch.autograd.grad(bias_HP, weights, case.grad_HP, allow_unused=True)
    return [bias_HP.detach(), *(grad for grad in grads if grad is not None)]


def check(case: Case, ours: Callable[[Case], Tensor], peer: Callable[[Case], Tensor]) -> None:
    """Raise where the two forms differ."""
    for found, expected in zip(with_gradients(ours, case), with_gradients(peer, case), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)  # sums of 262,144 numbers of single precision


def ratios(num_steps: int) -> list[float]:
    """Time the dense product against ours; the peer's better layout is printed without a verdict."""
    case = case_of(num_steps)
    for ours, peer in ((sparse, dense_rows), (sparse, dense_columns), (sparse_whole, dense_whole)):
        check(case, ours, peer)
    forms = (sparse, dense_rows, dense_columns, sparse_whole, dense_whole)
    jobs = {form.__name__: lambda form=form: with_gradients(form, case) for form in forms}
    samples = measure.cpu_seconds(jobs, rounds=ROUNDS)
    seconds = measure.medians(samples)
    for name, value in seconds.items():
        print(f"  {name:14s} {value * 1e3:8.2f} ms")
    print(f"  against the product in its best layout: ratio {seconds['dense_columns'] / seconds['sparse']:.1f}")
    print(f"  the same, with the distances on both sides: ratio {seconds['dense_whole'] / seconds['sparse_whole']:.1f}")
    return measure.ratios(samples["dense_rows"], samples["sparse"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    values = {num_steps: ratios(num_steps) for num_steps in TARGETS}
    for num_steps, target in TARGETS.items():
        measure.verdict(f"connection_bias_T{num_steps}", values[num_steps], target)
