"""A method and a history -> its vectors of all nodes known at a step, fitted once; vectors and scores are checked.

N nodes known one step before    D width of a vector    P pairs, or nodes with labels
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes

from dyformer import InvalidInput
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.interfaces import Embed, Embedder, LabelledStep, NotFinite, NoVectors

NUM_FITTED = 2  # steps of which FittedOnce keeps vectors
NUM_OLDER_VECTORS = 1  # older labelled steps with vectors, from which the forecaster learns to read them
MIN_TRAINED_STEPS = 2  # training needs so many steps
NUM_OLDER_STEPS = 4  # steps before the forecast one whose pairs a method may be fitted on
NUM_LABELLED_STEPS = 3  # of them, where methods rank: a fourth added nothing clear (docs/experiments/ranking.md)
OLDER_STEP_WEIGHT = 0.5  # a step's pairs weigh this much of those of the next step
FORECASTER_WITH = "Forecaster with "  # before the name of the method whose vectors the forecaster reads


def model_steps(until: int, period: int = 1) -> list[int]:
    """List the steps until which models are trained for a forecast: `until`, and earlier ones where it can be.

    From the vectors of an older model before known links, the forecaster learns how to read those of the newer one. The
    links lie a `period` before the forecast step, and those from which the calibration learns two periods; with a
    period of 1 the model of the step before serves both.
    """
    older = (until - 1,) if period == 1 else (until - 2 * period, until - period)
    return [*(step for step in older if step >= MIN_TRAINED_STEPS), until]


@dataclass(frozen=True, kw_only=True)
class FittedOnce:
    """A method for graphs of one log, fitted once as of a step, although several parts of a run read its vectors.

    The vectors of the two steps used last stay in memory: a run reads those of one step again before the next but one,
    unless it learns from steps a week before.
    """

    method: Embedder
    known: dict[tuple[int, int], Embed] = field(default_factory=dict)

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Fit as of `graph.until`, or return the function of an earlier call; raises as the method does."""
        key = graph.until, seed
        embed = self.known.pop(key) if key in self.known else self.method.fit(graph, seed=seed)
        self.known[key] = embed
        for oldest in list(self.known)[:-NUM_FITTED]:
            del self.known[oldest]
        return embed


def older_vectors(
    name: str, method: Embedder, labelled: Sequence[LabelledStep], seed: int
) -> dict[PreparedGraph, NDArray[np.floating]]:
    """Give the vectors before the newest of these labelled steps; none where the method has no weights for them."""
    older = [step.before for step in labelled if step.before.until >= MIN_TRAINED_STEPS]
    try:
        return {graph: fitted_vectors(name, method, graph, seed) for graph in older[:NUM_OLDER_VECTORS]}
    except NoVectors:
        return {}


def fitted_vectors(name: str, method: Embedder, graph: PreparedGraph, seed: int) -> NDArray[np.floating]:
    """Fit a method and return the vectors [N, D] of all nodes known at `graph.until`. Raises ValueError."""
    embed = method.fit(graph, seed=seed)
    if not callable(embed):
        raise InvalidInput(f"{name}: fit must return a function from nodes to vectors; found {type(embed).__name__}")
    vectors_ND = embed(np.arange(len(graph.history.node_N)))
    _check_vectors(name, vectors_ND, len(graph.history.node_N), graph.until + 1)
    return vectors_ND


def rotated(newer_ND: NDArray[np.floating], older_ND: NDArray[np.floating]) -> NDArray[np.floating]:
    """Rotate the vectors of a newer training onto those of an older one, which has its own axes.

    Nodes that the older one lacks come last. The rotation is that of orthogonal Procrustes (Schoenemann, 1966).
    """
    return newer_ND @ orthogonal_procrustes(newer_ND[: len(older_ND)], older_ND)[0]


def checked_scores(name: str, score_P: Any, num_pairs: int, step: int) -> NDArray[np.float64]:
    """Give what a method returned for pairs of a step as scores [P]. Raises ValueError, named by the method.

    One finite score is expected for each pair: NaN would rank first, and an infinite one has no level in a calibration.
    """
    score_P = np.asarray(score_P, dtype=np.float64)
    if score_P.shape != (num_pairs,):
        raise InvalidInput(f"{name}: found scores of shape {score_P.shape}: expected {num_pairs} scores of step {step}")
    if num_broken := int((~np.isfinite(score_P)).sum()):
        raise NotFinite(
            f"{name}: {num_broken} of {num_pairs} scores of step {step} are not finite: expected finite numbers"
        )
    return score_P


def _check_vectors(name: str, vectors_ND: NDArray[np.floating], num_nodes: int, step: int) -> None:
    if np.ndim(vectors_ND) != 2 or len(vectors_ND) != num_nodes:
        raise InvalidInput(
            f"{name}: found vectors of shape {np.shape(vectors_ND)}: expected one row for each of the {num_nodes} "
            f"nodes known before step {step}"
        )
    if not np.isfinite(vectors_ND).all():
        num_broken = int((~np.isfinite(vectors_ND).all(axis=1)).sum())
        raise NotFinite(
            f"{name}: {num_broken} of {num_nodes} vectors for step {step} are not finite: expected finite numbers"
        )
