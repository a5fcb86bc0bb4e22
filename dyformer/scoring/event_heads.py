"""Groups of candidates and the chosen one of each -> heads that give each candidate's probability within its group.

R rows    F features    G groups: the candidates of one query    H heads
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from dyformer.scoring.heads import TreesHead

MIN_GROUPS = 50
"""With fewer groups no trees are fitted, because they would know the groups by heart."""

Done = Callable[[], None]
"""Called after each round of trees, so that the caller knows how far a fit is."""

CHECKPOINTS = 4  # numbers of rounds among which validation chooses

TREES = {
    "learning_rate": 0.05,
    "feature_fraction": 0.5,
    "lambda_l2": 1.0,
    "num_threads": 1,
    "deterministic": True,
    "force_col_wise": True,  # the same trees in 0.7 of the time, because a tree reads half of the features
    "verbosity": -1,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """Rows of consecutive groups; `chosen_G` is the position of the chosen row in its group."""

    row_RF: NDArray[np.float32]
    size_G: NDArray[np.int64]
    chosen_G: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.size_G)

    @property
    def start_G1(self) -> NDArray[np.int64]:
        """The first row of each group, and the number of rows."""
        return np.concatenate([[0], np.cumsum(self.size_G)])


@njit(nogil=True, cache=True)
def softmax(logit_R, start_G1):
    """Give the softmax [R] of each group's logits."""
    probability_R = np.empty(len(logit_R))
    for group in range(len(start_G1) - 1):
        first, end = start_G1[group], start_G1[group + 1]
        if first == end:
            continue
        greatest = logit_R[first]
        for row in range(first, end):
            greatest = max(greatest, logit_R[row])
        total = 0.0
        for row in range(first, end):  # numba compiles numpy's functions of arrays for seconds longer than these loops
            probability_R[row] = math.exp(logit_R[row] - greatest)
            total += probability_R[row]
        for row in range(first, end):
            probability_R[row] /= total
    return probability_R


def log_loss(logit_R: NDArray[np.floating], groups: Groups) -> float:
    """Give the mean of -log(probability of the chosen row) over the groups."""
    chosen_G = softmax(np.asarray(logit_R, dtype=np.float64), groups.start_G1)[groups.start_G1[:-1] + groups.chosen_G]
    return float(-np.log(np.maximum(chosen_G, np.finfo(np.float64).tiny)).mean())


def ranks(logit_R: NDArray[np.floating], groups: Groups) -> NDArray[np.float64]:
    """Give the rank [G] of the chosen row in each group, from 1; ties share the mean of their ranks."""
    group_R = np.repeat(np.arange(len(groups)), groups.size_G)
    chosen_R = logit_R[groups.start_G1[:-1] + groups.chosen_G][group_R]
    above_G = np.bincount(group_R, logit_R > chosen_R, len(groups))
    equal_G = np.bincount(group_R, logit_R == chosen_R, len(groups)) - 1
    return 1 + above_G + equal_G / 2


@dataclass(frozen=True, kw_only=True)
class GroupHead:
    """Trees whose outputs, each times its factor, add up to the logits of a softmax within a group."""

    trees: tuple[TreesHead, ...]
    factors: tuple[float, ...]

    def logits(self, row_RF: NDArray[np.float32]) -> NDArray[np.float64]:
        """Give the logits [R]."""
        total_R = np.zeros(len(row_RF))
        if len(row_RF):
            for head, factor in zip(self.trees, self.factors, strict=True):
                total_R += factor * head.logits(row_RF)
        return total_R

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "GroupHead":
        """Read the values of a dictionary of the fields."""
        trees = tuple(TreesHead(**head) for head in record["trees"])
        return cls(trees=trees, factors=tuple(record["factors"]))


@dataclass(frozen=True, kw_only=True)
class GateHead:
    """Trees whose log-odds are brought to the scale of probabilities by a factor and an offset (Platt, 1999)."""

    trees: TreesHead | None  # None: the offset alone
    factor: float
    offset: float

    def probability(self, row_RF: NDArray[np.float32]) -> NDArray[np.float64]:
        """Give the probability [R]."""
        logit_R = np.zeros(len(row_RF))
        if self.trees is not None and len(row_RF):
            logit_R = self.trees.logits(row_RF)
        return expit(self.factor * logit_R + self.offset)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "GateHead":
        """Read the values of a dictionary of the fields."""
        trees = None if record["trees"] is None else TreesHead(**record["trees"])
        return cls(trees=trees, factor=record["factor"], offset=record["offset"])


def unreported() -> None:
    """Do nothing after a round."""


def _parameters(num_rows: int, seed: int, **settings: Any) -> dict[str, Any]:
    return {**TREES, "min_data_in_leaf": min(40, max(1, num_rows // 50)), "seed": seed, **settings}


def _softmax_trees(groups: Groups, *, num_rounds: int, seed: int, done: Done, **settings: Any) -> Any:
    import lightgbm

    start_G1, chosen_R = groups.start_G1, groups.start_G1[:-1] + groups.chosen_G

    def objective(logit_R: NDArray[np.float64], _: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        probability_R = softmax(logit_R, start_G1)
        gradient_R = probability_R.copy()
        gradient_R[chosen_R] -= 1
        return gradient_R, np.maximum(probability_R * (1 - probability_R), 1e-6)

    parameters = _parameters(len(groups.row_RF), seed, **settings)
    data = lightgbm.Dataset(groups.row_RF, label=np.zeros(len(groups.row_RF)), params=parameters)
    return lightgbm.train({**parameters, "objective": objective}, data, num_rounds, callbacks=[lambda _: done()])


def _lambdarank_trees(groups: Groups, *, num_rounds: int, seed: int, done: Done, **settings: Any) -> Any:
    import lightgbm

    label_R = np.zeros(len(groups.row_RF))
    label_R[groups.start_G1[:-1] + groups.chosen_G] = 1
    lambdarank = {"objective": "lambdarank", "lambdarank_truncation_level": 20}
    parameters = _parameters(len(groups.row_RF), seed, **lambdarank, **settings)
    data = lightgbm.Dataset(groups.row_RF, label=label_R, group=groups.size_G, params=parameters)
    return lightgbm.train(parameters, data, num_rounds, callbacks=[lambda _: done()])


def _with_best_rounds(booster: Any, num_rounds: int, validation: Groups, *, by_rank: bool) -> TreesHead:
    # Outputs of rounds add up, so each part of them is computed once.
    if len(validation) < MIN_GROUPS:
        return TreesHead(text=booster.model_to_string())
    logit_R, losses = np.zeros(len(validation.row_RF)), {}
    step = max(1, num_rounds // CHECKPOINTS)
    for first in range(0, num_rounds, step):
        part = {"start_iteration": first, "num_iteration": step, "raw_score": True}
        logit_R = logit_R + booster.predict(validation.row_RF, **part)
        losses[first + step] = -(1 / ranks(logit_R, validation)).mean() if by_rank else log_loss(logit_R, validation)
    return TreesHead(text=booster.model_to_string(num_iteration=min(losses, key=lambda rounds: losses[rounds])))


def _factors(output_HR: NDArray[np.float64], validation: Groups) -> tuple[float, ...]:
    # The factors with the least log loss on validation make calibrated probabilities of the outputs.
    start_H = np.full(len(output_HR), 1 / len(output_HR))
    if len(validation) < MIN_GROUPS:
        return tuple(start_H.tolist())
    bounds = [(0.0, 10.0)] * len(output_HR)
    optimum = minimize(lambda factor_H: log_loss(factor_H @ output_HR, validation), start_H, bounds=bounds)
    return tuple(float(factor) for factor in optimum.x)


def fit_groups(
    training: Groups,
    validation: Groups,
    *,
    num_rounds: int,
    num_leaves: int,
    lambdarank: bool,
    seed: int,
    done: Done = unreported,
) -> GroupHead:
    """Fit trees with the softmax loss, and with LambdaRank (Burges, 2010) if `lambdarank`.

    Validation chooses the number of rounds of each and the factors; without enough of it all rounds stay. Without
    enough groups to fit there are no trees, and all candidates are equal.
    """
    if len(training) < MIN_GROUPS:
        return GroupHead(trees=(), factors=())
    settings: dict[str, Any] = {"num_rounds": num_rounds, "num_leaves": num_leaves, "seed": seed, "done": done}
    trees = [_with_best_rounds(_softmax_trees(training, **settings), num_rounds, validation, by_rank=False)]
    if lambdarank:
        booster = _lambdarank_trees(training, **settings)
        trees.append(_with_best_rounds(booster, num_rounds, validation, by_rank=True))
    output_HR = np.array([head.logits(validation.row_RF) for head in trees if len(validation)])
    factors = _factors(output_HR, validation) if len(validation) else (1 / len(trees),) * len(trees)
    return GroupHead(trees=tuple(trees), factors=factors)


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledRows:
    """Rows and whether each is positive."""

    row_RF: NDArray[np.float32]
    positive_R: NDArray[np.bool_]

    @property
    def has_both(self) -> bool:
        """Whether at least ten rows are positive and ten negative."""
        num_positive = int(self.positive_R.sum())
        return min(num_positive, len(self.positive_R) - num_positive) >= 10


def fit_gate(
    training: LabelledRows, validation: LabelledRows, *, num_rounds: int, seed: int, done: Done = unreported
) -> GateHead:
    """Fit trees with the logistic loss; validation gives the factor and the offset of the least log loss.

    Without rows of both kinds the probability is their smoothed fraction.
    """
    if not training.has_both:
        fraction = (training.positive_R.sum() + 0.5) / (len(training.positive_R) + 1)
        return GateHead(trees=None, factor=0.0, offset=float(np.log(fraction / (1 - fraction))))
    import lightgbm

    parameters = _parameters(len(training.row_RF), seed, objective="binary", num_leaves=31)
    data = lightgbm.Dataset(training.row_RF, label=training.positive_R.astype(np.float64), params=parameters)
    booster = lightgbm.train(parameters, data, num_rounds, callbacks=[lambda _: done()])
    head = TreesHead(text=booster.model_to_string())
    if not validation.has_both:
        return GateHead(trees=head, factor=1.0, offset=0.0)
    logit_R, sign_R = head.logits(validation.row_RF), np.where(validation.positive_R, 1.0, -1.0)
    loss = minimize(lambda line: np.logaddexp(0, -sign_R * (line[0] * logit_R + line[1])).mean(), np.array([1.0, 0.0]))
    return GateHead(trees=head, factor=float(loss.x[0]), offset=float(loss.x[1]))
