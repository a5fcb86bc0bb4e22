"""One step of every weight, against the equations of Adam (Kingma and Ba 2015, algorithm 1)."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dyformer.training.config import PretrainConfig
from dyformer.training.optimizer import Optimizer
from dyformer.training.ranks import mean_gradients

CONFIG = PretrainConfig(learning_rate=0.01, id_learning_rate=0.1, weight_decay=0.1, clip_norm=1e9)


class Toy(nn.Module):
    """A weight of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.id_NO = nn.Parameter(torch.arange(12.0).reshape(6, 2))
        self.linear = nn.Linear(2, 2)
        self.offset = nn.Parameter(torch.tensor(1.0))

    def forward(self, node_B: Tensor) -> Tensor:
        id_BD = functional.embedding(node_B, self.id_NO, sparse=True)
        return (self.linear(id_BD) ** 2).sum() + self.offset**2


def toy() -> Toy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Toy()


def adam(gradients: list[np.ndarray], rate: float) -> np.ndarray:
    first, second, moved = 0.0, 0.0, np.zeros_like(gradients[0])
    for step, gradient in enumerate(gradients, start=1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        moved = moved - rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return moved


def test_every_kind_of_weight_steps_at_its_rate_and_only_matrices_decay():
    model = toy()
    before = {name: weight.detach().numpy().copy() for name, weight in model.named_parameters()}
    found: dict[str, list[np.ndarray]] = {name: [] for name in before}
    optimizer = Optimizer(model, CONFIG)
    everyone = torch.arange(6)
    for _ in range(3):
        for name, weight in model.named_parameters():
            (gradient,) = torch.autograd.grad(model(everyone), weight)
            decay = CONFIG.weight_decay * weight.detach() if name == "linear.weight" else 0.0
            found[name].append((gradient.to_dense() + decay).numpy().astype(np.float64))
        optimizer.step(optimizer.gradients(model(everyone)))
    rates = {"id_NO": 0.1, "linear.weight": 0.01, "linear.bias": 0.01, "offset": 0.1}
    for name, weight in model.named_parameters():
        np.testing.assert_allclose(weight.detach().numpy() - before[name], adam(found[name], rates[name]), rtol=1e-3)


@pytest.mark.parametrize("clip_norm", [0.5, 1e9])
def test_plain_optimizer_is_torch_s_adam_on_dense_gradients(clip_norm: float):
    config = replace(CONFIG, optimizer="plain", clip_norm=clip_norm)
    model, other = toy(), toy()
    optimizer = Optimizer(model, config)
    plain = torch.optim.Adam(other.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    for node_B in torch.tensor([[0, 1], [1, 1], [5, 2]]):
        optimizer.step(optimizer.gradients(model(node_B)))
        plain.zero_grad()
        ((other.linear(other.id_NO[node_B]) ** 2).sum() + other.offset**2).backward()
        nn.utils.clip_grad_norm_(other.parameters(), clip_norm)
        plain.step()
    for weight, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(weight, expected)


def test_a_node_that_is_not_in_the_batch_does_not_move():
    model = toy()
    optimizer = Optimizer(model, CONFIG)
    optimizer.step(optimizer.gradients(model(torch.tensor([0, 1, 2]))))
    before = model.id_NO.detach().clone()
    optimizer.step(optimizer.gradients(model(torch.tensor([2, 5]))))
    moved_N = (model.id_NO.detach() != before).any(dim=1)
    assert moved_N.tolist() == [False, False, True, False, False, True]


@pytest.mark.parametrize("clip_norm", [0.5, 1e9])  # a gradient within the norm is left as it is
def test_gradients_of_all_weights_and_both_views_have_one_norm(clip_norm: float):
    """A node in both views has one gradient, the sum: Adam's second moment after one step is its square."""
    model = toy()
    optimizer = Optimizer(model, PretrainConfig(learning_rate=0.01, weight_decay=0.0, clip_norm=clip_norm))
    node_B = torch.tensor([0, 3])
    gradients = torch.autograd.grad(2 * model(node_B), list(model.parameters()))
    dense = [gradient.to_dense() for gradient in gradients]
    norm = torch.stack([(gradient**2).sum() for gradient in dense]).sum().sqrt()
    assert norm > 0.5
    optimizer.step(optimizer.gradients(model(node_B) + model(node_B)))
    state = optimizer.state()
    second = {"id_NO": "rows/0", "linear.weight": "adam/0", "linear.bias": "adam/1", "offset": "adam/2"}
    for (name, _), gradient in zip(model.named_parameters(), dense, strict=True):
        expected = 0.001 * (gradient * min(1.0, clip_norm / float(norm))) ** 2
        torch.testing.assert_close(state[f"{second[name]}/exp_avg_sq"].reshape(expected.shape), expected)


@pytest.mark.parametrize("kind", ["by-kind", "plain"])
@pytest.mark.parametrize("num_before", [1, 7])
def test_restored_state_goes_on_bit_for_bit(num_before: int, kind: Literal["by-kind", "plain"]):
    config = replace(CONFIG, optimizer=kind)
    batches = torch.from_numpy(np.random.default_rng(0).integers(6, size=(12, 2)))
    model = toy()
    optimizer = Optimizer(model, config)
    for node_B in batches[:num_before]:
        optimizer.step(optimizer.gradients(model(node_B)))
    other = Toy()
    other.load_state_dict(model.state_dict())
    restored = Optimizer(other, config)
    restored.restore(optimizer.state())
    for node_B in batches[num_before:]:
        optimizer.step(optimizer.gradients(model(node_B)))
        restored.step(restored.gradients(other(node_B)))
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    found, expected = restored.state(), optimizer.state()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_state_is_a_copy():
    model = toy()
    optimizer = Optimizer(model, CONFIG)
    optimizer.step(optimizer.gradients(model(torch.tensor([0]))))
    state = optimizer.state()
    before = {name: value.clone() for name, value in state.items()}
    optimizer.step(optimizer.gradients(model(torch.tensor([0]))))
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_a_model_without_id_embeddings_has_no_rows():
    model = nn.Linear(2, 1)
    optimizer = Optimizer(model, CONFIG)
    optimizer.step(optimizer.gradients(model(torch.ones(1, 2)).sum()))
    assert {name.partition("/")[0] for name in optimizer.state()} == {"adam"}


@pytest.mark.parametrize("kind", ["by-kind", "plain"])
def test_a_step_of_several_batches_follows_the_gradient_of_their_mean_loss(kind: Literal["by-kind", "plain"]):
    config = replace(CONFIG, optimizer=kind)
    one, other = toy(), toy()
    together, apart = Optimizer(one, config), Optimizer(other, config)
    batches = torch.tensor([[0, 1, 1], [1, 2, 5], [4, 5, 0]])
    for _ in range(3):
        loss = torch.stack([one(node_B) for node_B in batches]).mean()
        together.step(together.gradients(loss))
        apart.step(mean_gradients([apart.gradients(other(node_B)) for node_B in batches]))
    for name, value in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value)


def test_a_batch_without_a_weight_counts_as_a_gradient_of_zero():
    gradient = torch.tensor([4.0, 2.0])
    used, unused = mean_gradients([[None, None], [gradient, None]])
    assert used is not None
    assert used.tolist() == [2.0, 1.0]
    assert unused is None
    assert gradient.tolist() == [4.0, 2.0]
