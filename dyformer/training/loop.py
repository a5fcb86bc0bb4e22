"""A model and its batches -> epochs, with a state from which training resumes.

K tasks
"""

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dyformer import InvalidInput
from dyformer.model.transformer import DyFormer
from dyformer.sampling.link_batches import LinkTask, PairBatch, PairSource
from dyformer.sampling.prefetch import NUM_AHEAD, NUM_THREADS, loaded
from dyformer.sampling.seeded import seeded
from dyformer.scoring.interfaces import NotFinite
from dyformer.training.checkpoint import Checkpoint, Progress, Weights, check_fit, named
from dyformer.training.config import StageConfig
from dyformer.training.optimizer import Optimizer
from dyformer.training.ranks import Gradients, Rank, fixed_order, mean_gradients, one_thread

VALIDATION_EPOCH = 0  # epochs of training count from 1
TASKS, DROPOUT, FIRST_BATCH = range(3)  # streams of random numbers of an epoch; every batch has its own stream
BATCHES_PER_GRAPH = 5  # batches in a row from one AsOfGraph, where not all graphs fit the cache

Job = Callable[[], PairBatch]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of training: its batches, its loss and its settings."""

    name: str
    number: int  # separates the random numbers of the stages
    tasks: Sequence[LinkTask]
    source: PairSource
    two_views: bool
    loss: Callable[[DyFormer, PairBatch], dict[str, Tensor]]  # "loss" is minimised, "link" chooses the best epoch
    config: StageConfig
    seed: int
    rank: Rank = field(default_factory=Rank)
    num_threads: int = NUM_THREADS  # threads that make batches; the result does not depend on their number

    @property
    def device(self) -> torch.device:
        """Device of this process."""
        return torch.device(self.rank.device)

    def generator(self, epoch: int, stream: int) -> np.random.Generator:
        """Give one stream of random numbers of an epoch; no stream depends on another."""
        return np.random.default_rng([self.seed, self.number, epoch, stream])


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The batches that choose the best epoch."""

    num: int  # of all processes
    own: list[PairBatch]


class TooManyRanks(InvalidInput):
    """More processes than batches of an optimizer step, so that some would have nothing to do."""


class NothingToLearn(InvalidInput):
    """A history without links to train on."""


class TrainingDiverged(NotFinite):
    """A training with a loss or with weights that are NaN or infinite."""


class TrainingState:
    """All state that an epoch changes."""

    def __init__(self, model: DyFormer, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.epoch, self.best_epoch, self.best_loss = 0, 0, float("inf")
        self.best: Weights = copied(model.state_dict())

    def end_epoch(self, loss: float) -> None:
        """End an epoch; copy its weights if its loss is the best so far."""
        self.epoch += 1
        if loss < self.best_loss:
            self.best_loss, self.best_epoch = loss, self.epoch
            self.best = copied(self.model.state_dict())

    def is_over(self, config: StageConfig) -> bool:
        """Check whether all epochs are done, or `patience` epochs in a row were not better."""
        is_stalled = config.patience is not None and self.epoch - self.best_epoch >= config.patience
        return self.epoch >= config.epochs or is_stalled

    def checkpoint(self, stage: Stage) -> Checkpoint:
        """Copy the state."""
        return Checkpoint(
            tensors={
                **{f"model/{name}": on_cpu(tensor) for name, tensor in self.model.state_dict().items()},
                **{f"best/{name}": on_cpu(tensor) for name, tensor in self.best.items()},
                **{f"optimizer/{name}": tensor for name, tensor in self.optimizer.state().items()},
            },
            record={
                **identity(stage),
                "epoch": self.epoch,
                "best_epoch": self.best_epoch,
                "best_loss": self.best_loss if self.epoch else None,
            },
        )

    def restore(self, checkpoint: Checkpoint, stage: Stage) -> None:
        """Resume from a checkpoint. Raises ValueError for one of another stage, seed, step or settings."""
        expected = identity(stage)
        stored = {name: checkpoint.record.get(name) for name in expected}
        if stored != expected:
            raise InvalidInput(f"the checkpoint belongs to {stored}, but {expected} is to be resumed: train again")
        tensors, record = checkpoint.tensors, checkpoint.record
        check_fit(named(tensors, "model/"), self.model.state_dict())
        self.model.load_state_dict(named(tensors, "model/"))
        self.optimizer.restore(named(tensors, "optimizer/"))
        weights = self.model.state_dict()
        self.best = {name: tensor.to(weights[name].device, copy=True) for name, tensor in checkpoint.weights().items()}
        self.epoch, self.best_epoch = record["epoch"], record["best_epoch"]
        self.best_loss = float("inf") if record["best_loss"] is None else record["best_loss"]


def identity(stage: Stage) -> dict[str, Any]:
    """Give the record of the run that a checkpoint belongs to; a resumed run may have more epochs."""
    settings = {name: value for name, value in asdict(stage.config).items() if name != "epochs"}
    return {"stage": stage.name, "seed": stage.seed, "until": stage.source.graph.until, "settings": settings}


def copied(weights: Weights) -> Weights:
    """Copy on the device, where a better epoch need not wait for the CPU."""
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def on_cpu(tensor: Tensor) -> Tensor:
    """Copy to the CPU, without another copy on the device."""
    return tensor.detach().to("cpu", copy=True)


def run_epochs(stage: Stage, model: DyFormer, resume: Checkpoint | None) -> Generator[Progress, None, None]:
    """Train until `epochs` epochs are done or the patience is, and yield the report of each."""
    check_ranks(stage.name, stage.config, stage.rank.num_ranks)
    state = TrainingState(model.to(stage.device), Optimizer(model, stage.config))
    if resume is not None:
        state.restore(resume, stage)
    stage.rank.check_equal([*model.state_dict().values(), torch.tensor(state.epoch, device=stage.device)])
    if state.is_over(stage.config):
        return
    epochs = range(state.epoch + 1, stage.config.epochs + 1)
    held_out = held_out_jobs(stage)
    rank_jobs = [job for index, job in enumerate(held_out) if stage.rank.has(index)]
    jobs = chain(rank_jobs, *(epoch_jobs(stage, epoch) for epoch in epochs))
    with closing(loaded(jobs, num_threads=stage.num_threads, num_ahead=NUM_AHEAD)) as batches:
        validation = Validation(num=len(held_out), own=[next(batches).to(stage.device) for _ in rank_jobs])
        while not state.is_over(stage.config):
            # A process with other threads than the next one would add other sums.
            with fixed_order(stage.device), nullcontext() if stage.config.batches_per_step == 1 else one_thread():
                progress = one_epoch(stage, state, batches, validation)
            yield progress


def check_ranks(stage: str, config: StageConfig, num_ranks: int) -> None:
    """Raise TooManyRanks where some processes would never have a batch of a stage."""
    most, setting = config.batches_per_step, f"{stage}.batches_per_step"
    if num_ranks > most:
        raise TooManyRanks(
            f"{num_ranks} processes cannot share a training of {most} "
            f"{'batch' if most == 1 else 'batches'} a step: set {setting} to {num_ranks} or more (fewer and larger "
            f"steps: other weights), or train with fewer (DYFORMER_RANKS)"
        )


def check_loss(stage: Stage, state: TrainingState, name: str, loss: float) -> None:
    """Raise TrainingDiverged for a NaN or infinite loss, which no process of several has alone.

    NaN is below no other loss, so that the weights of an earlier epoch would be taken, or those before the first.
    """
    if math.isfinite(loss):
        return
    rates = " or ".join(
        f"{stage.name}.{rate} (here {getattr(stage.config, rate):g})" for rate in ("learning_rate", "id_learning_rate")
    )
    is_rounded = stage.device.type == "cuda" and state.model.gpu_precision != "float32"
    raise TrainingDiverged(
        f"{stage.name}: the {name} loss of epoch {state.epoch + 1} is {loss}: expected a finite number; train with a"
        f" smaller {rates}{', or with model.gpu_precision=float32' if is_rounded else ''}"
    )


def one_epoch(stage: Stage, state: TrainingState, batches: Iterator[PairBatch], validation: Validation) -> Progress:
    """Train, validate and report. Raises TrainingDiverged."""
    started = time.perf_counter()
    losses, seconds_waiting = train_epoch(stage, state, batches)
    if validation.num:
        losses["validation"] = held_out_loss(stage, state.model, validation)
    deciding = "validation" if validation.num else "link"
    check_loss(stage, state, deciding, losses[deciding])
    state.end_epoch(losses[deciding])
    return Progress(
        stage=stage.name,
        epoch=state.epoch,
        losses=losses,
        seconds=time.perf_counter() - started,
        seconds_waiting=seconds_waiting,
        is_last=state.is_over(stage.config),
        checkpoint=lambda: state.checkpoint(stage),
    )


def draw_tasks(stage: Stage, epoch: int, num: int, *, held_out: bool) -> list[LinkTask]:
    """Draw tasks that have links; a step is half as likely as a step newer by `step_half_life`, if there is one.

    Where not all AsOfGraphs fit the cache, several batches in a row are drawn from each.
    """
    tasks = [task for task in stage.tasks if stage.source.has_links(task, held_out)]
    if not tasks:
        return []
    in_a_row = 1 if stage.source.graphs_fit_cache(tasks) else BATCHES_PER_GRAPH
    age_K = np.array([stage.source.graph.until - task.step for task in tasks])
    weight_K = 0.5 ** (age_K / (stage.config.step_half_life or math.inf))
    indices = stage.generator(epoch, TASKS).choice(len(tasks), size=-(-num // in_a_row), p=weight_K / weight_K.sum())
    return [tasks[index] for index in np.repeat(indices, in_a_row)[:num]]


def held_out_jobs(stage: Stage) -> list[Job]:
    """Make the batches that choose the best epoch, the same after every epoch."""
    tasks = draw_tasks(stage, VALIDATION_EPOCH, stage.config.validation_batches, held_out=True)
    return jobs(stage, tasks, VALIDATION_EPOCH, held_out=True, two_views=False)


def epoch_jobs(stage: Stage, epoch: int) -> Iterator[Job]:
    """Make this process's batches of an epoch, independent of every other epoch.

    Raises NothingToLearn without any link.
    """
    tasks = draw_tasks(stage, epoch, stage.config.batches_per_epoch, held_out=False)
    if not tasks:
        raise NothingToLearn(
            f"{stage.name}: steps 1 to {stage.source.graph.until} hold no link between nodes of other steps; "
            f"train until a later step, or choose longer windows"
        )
    whole = jobs(stage, tasks, epoch, held_out=False, two_views=stage.two_views)
    yield from (job for index, job in enumerate(whole) if stage.rank.has(index))


def jobs(stage: Stage, tasks: Sequence[LinkTask], epoch: int, *, held_out: bool, two_views: bool) -> list[Job]:
    """Give one job for each task: a function that makes the batch, in any thread."""

    def job(task: LinkTask, stream: int) -> PairBatch:
        generator = stage.generator(epoch, stream)
        batch = stage.source.batch(task, generator, held_out=held_out, two_views=two_views)
        return batch.padded(stage.source.sizes).pinned() if stage.device.type == "cuda" else batch

    return [partial(job, task, stream) for stream, task in enumerate(tasks, start=FIRST_BATCH)]


def train_epoch(stage: Stage, state: TrainingState, batches: Iterator[PairBatch]) -> tuple[dict[str, float], float]:
    """Take the optimizer steps of an epoch; give the mean losses, and the seconds in which no batch was ready.

    A step follows the mean gradient of `batches_per_step` batches. Each batch has its own random numbers for dropout.
    """
    state.model.train()
    rank, per_step, num_batches = stage.rank, stage.config.batches_per_step, stage.config.batches_per_epoch
    batch_losses: list[dict[str, Tensor]] = []
    seconds_waiting = 0.0
    seeds = stage.generator(state.epoch + 1, DROPOUT).integers(2**62, size=num_batches).tolist()
    for first in range(0, num_batches, per_step):
        indices = range(first, first + per_step)
        gradients_of: dict[int, Gradients] = {}
        for index in filter(rank.has, indices):
            started = time.perf_counter()
            batch = next(batches)
            seconds_waiting += time.perf_counter() - started
            with seeded(seeds[index], [stage.device] if stage.device.type == "cuda" else []):
                losses = stage.loss(state.model, batch.to(stage.device))
            gradients_of[index] = state.optimizer.gradients(losses["loss"])
            if per_step > 1 and stage.device.type == "cuda":  # the next batch's are written to the same memory
                gradients_of[index] = [
                    None if gradient is None else gradient.clone() for gradient in gradients_of[index]
                ]
            # Now, because a GPU can record the kernels of batches of another size only while no earlier graph lives.
            losses = {name: value.detach() for name, value in losses.items()}
            batch_losses.append(losses)
        of_step = [rank.gradients(gradients_of.get(index), state.optimizer.weights, index) for index in indices]
        state.optimizer.step(mean_gradients(of_step))
    for flags in state.model.buffers():
        if flags.dtype == torch.bool:  # the nodes whose id embeddings have been trained
            rank.marked_by_any(flags)
    columns = {name: torch.stack([losses[name] for losses in batch_losses]) for name in batch_losses[0]}
    return {name: float(rank.gathered(own_K, num_batches).mean()) for name, own_K in columns.items()}, seconds_waiting


def held_out_loss(stage: Stage, model: DyFormer, validation: Validation) -> float:
    """Give the mean link loss over pairs that are never trained on."""
    model.eval()
    with torch.inference_mode():
        losses = [stage.loss(model, batch)["link"] for batch in validation.own]
        own_K = torch.stack(losses) if losses else torch.empty(0, device=stage.device)
        return float(stage.rank.gathered(own_K, validation.num).mean())
