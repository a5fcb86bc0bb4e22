"""A model and its batches -> epochs, with early stopping and a state that can be taken up again."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dyformer.model import DyFormer
from dyformer.pair_batches import LinkTask, PairBatch, PairSource
from dyformer.progress import Checkpoint, Progress, Weights
from dyformer.stage_config import StageConfig

VALIDATION_EPOCH = 0  # epochs of training count from 1


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What is trained on what."""

    name: str
    number: int  # keeps the stages' random numbers apart
    tasks: Sequence[LinkTask]
    source: PairSource
    two_views: bool
    loss: Callable[[DyFormer, PairBatch], dict[str, Tensor]]  # "loss" is minimised, "link" decides when to stop
    config: StageConfig
    seed: int
    device: torch.device

    def generator(self, epoch: int) -> np.random.Generator:
        """Random numbers of one epoch, whatever came before it."""
        return np.random.default_rng([self.seed, self.number, epoch])


class NothingToLearn(ValueError):
    """A history without a single link to train on."""


class TrainingState:
    """Everything that an epoch changes."""

    def __init__(self, model: DyFormer, optimizer: torch.optim.Adam) -> None:
        self.model, self.optimizer = model, optimizer
        self.epoch, self.stale_epochs, self.best_loss = 0, 0, float("inf")
        self.best: Weights = copied(model.state_dict())

    def note(self, loss: float) -> None:
        """End an epoch: keep its weights if they are the best so far."""
        self.epoch += 1
        self.stale_epochs += 1
        if loss < self.best_loss:
            self.best_loss, self.stale_epochs = loss, 0
            self.best = copied(self.model.state_dict())

    def is_done(self, config: StageConfig) -> bool:
        """Say whether the stage has ended."""
        return self.epoch >= config.epochs or self.stale_epochs >= config.patience

    def checkpoint(self, stage: Stage) -> Checkpoint:
        """Copy the state."""
        adam = self.optimizer.state_dict()["state"]
        return Checkpoint(
            tensors={
                **{f"model/{name}": tensor for name, tensor in copied(self.model.state_dict()).items()},
                **{f"best/{name}": tensor for name, tensor in copied(self.best).items()},
                **{
                    f"adam/{row}/{name}": value.cpu().clone()
                    for row, kept in adam.items()
                    for name, value in kept.items()
                },
            },
            record={
                **identity(stage),
                "epoch": self.epoch,
                "stale_epochs": self.stale_epochs,
                "best_loss": self.best_loss if self.epoch else None,
            },
        )

    def restore(self, checkpoint: Checkpoint, stage: Stage) -> None:
        """Take up a checkpoint of the same stage; ValueError for one of another stage, seed, cut or settings."""
        expected = identity(stage)
        found = {name: checkpoint.record.get(name) for name in expected}
        if found != expected:
            raise ValueError(f"the checkpoint belongs to {found}, but {expected} is to be resumed: start afresh")
        tensors, record = checkpoint.tensors, checkpoint.record
        self.model.load_state_dict({name[6:]: value for name, value in tensors.items() if name.startswith("model/")})
        self.best = copied(checkpoint.weights())
        self.epoch, self.stale_epochs = record["epoch"], record["stale_epochs"]
        self.best_loss = float("inf") if record["best_loss"] is None else record["best_loss"]
        adam: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("adam/"):
                _, row, part = name.split("/")
                adam.setdefault(int(row), {})[part] = value.clone()
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": adam})


def identity(stage: Stage) -> dict[str, Any]:
    """Name the run that a checkpoint belongs to; the number of epochs may grow between two parts of one run."""
    settings = {name: value for name, value in asdict(stage.config).items() if name != "epochs"}
    return {"stage": stage.name, "seed": stage.seed, "until": stage.source.graph.until, "settings": settings}


def copied(weights: Weights) -> Weights:
    """Copy to the processor's memory."""
    return {name: tensor.detach().cpu().clone() for name, tensor in weights.items()}


def adam(model: nn.Module, config: StageConfig) -> torch.optim.Adam:
    """Adam with a rate for each kind of weight.

    Weight decay leaves alone what it would only shrink: biases, norms, tables, nodes' own vectors. These vectors are in
    few batches each, and the offsets of scores have far to go: both take longer steps.
    """
    groups: dict[str, list[nn.Parameter]] = {"decayed": [], "plain": [], "own": [], "offset": []}
    for name, weight in model.named_parameters():
        groups[_kind(name, weight)].append(weight)
    rate = config.learning_rate
    return torch.optim.Adam(
        [
            {"params": groups["decayed"], "weight_decay": config.weight_decay},
            {"params": groups["plain"]},
            {"params": groups["own"], "lr": 3 * rate},
            {"params": groups["offset"], "lr": 10 * rate},
        ],
        lr=rate,
    )


def _kind(name: str, weight: nn.Parameter) -> str:
    if name.endswith("id_ND"):
        return "own"
    if "offset" in name:
        return "offset"
    return "decayed" if weight.ndim == 2 and name.endswith(".weight") else "plain"


def run_epochs(stage: Stage, model: DyFormer, resume: Checkpoint | None) -> Iterator[Progress]:
    """Train until the held-out loss has not improved for `patience` epochs, or `epochs` are done."""
    state = TrainingState(model.to(stage.device), adam(model, stage.config))
    if resume is not None:
        state.restore(resume, stage)
    validation = held_out_batches(stage)
    while not state.is_done(stage.config):
        started = time.perf_counter()
        losses = train_epoch(stage, state)
        if validation:
            losses["validation"] = held_out_loss(stage, model, validation)
        state.note(losses["validation"] if validation else losses["link"])
        yield Progress(
            stage=stage.name,
            epoch=state.epoch,
            num_epochs=stage.config.epochs,
            losses=losses,
            seconds=time.perf_counter() - started,
            is_last=state.is_done(stage.config),
            checkpoint=lambda: state.checkpoint(stage),
        )


def draw_tasks(stage: Stage, num: int, generator: np.random.Generator, *, held_out: bool) -> list[LinkTask]:
    """Draw tasks that have links to tell; a step is half as likely as one that is `step_half_life` newer."""
    tasks = [task for task in stage.tasks if stage.source.has_links(task, held_out)]
    if not tasks:
        return []
    age_K = np.array([stage.source.graph.until - task.step for task in tasks])
    weight_K = 0.5 ** (age_K / stage.config.step_half_life)
    return [tasks[place] for place in generator.choice(len(tasks), size=num, p=weight_K / weight_K.sum())]


def held_out_batches(stage: Stage) -> list[PairBatch]:
    """Give the batches that decide when to stop, the same after every epoch."""
    generator = stage.generator(VALIDATION_EPOCH)
    tasks = draw_tasks(stage, stage.config.validation_batches, generator, held_out=True)
    return [batch.to(stage.device) for batch in stage.source.batches(tasks, generator, held_out=True, two_views=False)]


def train_epoch(stage: Stage, state: TrainingState) -> dict[str, float]:
    """Take one optimizer step for each batch and give the mean losses."""
    generator = stage.generator(state.epoch + 1)
    tasks = draw_tasks(stage, stage.config.batches_per_epoch, generator, held_out=False)
    if not tasks:
        raise NothingToLearn(
            f"{stage.name}: steps 1 to {stage.source.graph.until} hold no link between nodes that other steps know; "
            f"train until a later step, or choose longer windows"
        )
    state.model.train()
    found: list[dict[str, Tensor]] = []
    with torch.random.fork_rng(devices=[stage.device] if stage.device.type == "cuda" else []):
        torch.manual_seed(int(generator.integers(2**62)))
        for batch in stage.source.batches(tasks, generator, held_out=False, two_views=stage.two_views):
            losses = stage.loss(state.model, batch.to(stage.device))
            state.optimizer.zero_grad()
            losses["loss"].backward()
            nn.utils.clip_grad_norm_(state.model.parameters(), stage.config.clip_norm)
            state.optimizer.step()
            found.append({name: value.detach() for name, value in losses.items()})
    return {name: float(torch.stack([losses[name] for losses in found]).mean()) for name in found[0]}


def held_out_loss(stage: Stage, model: DyFormer, batches: Sequence[PairBatch]) -> float:
    """Mean link loss over pairs that are never trained on."""
    model.eval()
    with torch.no_grad():
        return float(torch.stack([stage.loss(model, batch)["link"] for batch in batches]).mean())
