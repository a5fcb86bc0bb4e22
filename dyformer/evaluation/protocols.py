"""A method and a step to forecast -> scored pairs, in the paper's protocol (section 5.1).

N nodes known one step before    D width of a vector    P pairs
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes

from dyformer.embedder import Embed, Embedder, LabelledStep, NoVectors, Scorer
from dyformer.evaluation.scored_pairs import ScoredPairs
from dyformer.graphs.prepared_graph import GraphConfig, PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.pairs import (
    LinkSplit,
    evaluated_steps,
    joined,
    paper_examples,
)
from dyformer.scoring.decoder import fit_decoder, hadamard, score
from dyformer.scoring.forecaster import Forecaster

PROTOCOL = "paper"
NUM_FITTED = 2  # steps of which FittedOnce keeps vectors
NUM_OLDER_VECTORS = 1  # older labelled steps with vectors, from which the forecaster learns to read them
MIN_TRAINED_STEPS = 2  # training needs so many steps
NUM_OLDER_STEPS = 4  # steps before the forecast one whose pairs a method may be fitted on
OLDER_STEP_WEIGHT = 0.5  # a step's pairs weigh this much of those of the next step
FORECASTER_WITH = "Forecaster with "  # before the name of the method whose vectors the forecaster reads


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One step to forecast, with the split of one seed: all methods are evaluated on the same pairs.

    A method gets `past`, which holds no later step, and the labelled pairs in `labelled`.
    """

    graph: DynamicGraph
    step: int
    seed: int
    config: GraphConfig = field(default_factory=GraphConfig)

    @cached_property
    def split(self) -> LinkSplit:
        """The pairs of the step. Raises TooFewLinks for a step without enough of them."""
        return paper_examples(self.graph, self.step, seed=self.seed)

    @cached_property
    def past(self) -> PreparedGraph:
        """The steps before the forecast one."""
        return prepare_graph(self.graph, until=self.step - 1, config=self.config)

    @cached_property
    def labelled(self) -> tuple[LabelledStep, ...]:
        """The labelled pairs that every method may be fitted on, the forecast step's first.

        Of the forecast step the 40 % in `split.train` and `split.validation`, with weight 1; of up to four older
        steps all pairs, with weights 0.5, 0.25, and so on. An older step without enough pairs is left out.
        """
        history = self.past.history
        older = [step for step in evaluated_steps(history, first_step=2) if step >= self.step - NUM_OLDER_STEPS]
        return (
            LabelledStep(before=self.past, examples=joined(self.split.train, self.split.validation), weight=1.0),
            *(
                LabelledStep(
                    before=prepare_graph(history, until=step - 1, config=self.config),
                    examples=joined(*vars(paper_examples(history, step, seed=self.seed)).values()),
                    weight=OLDER_STEP_WEIGHT ** (self.step - step),
                )
                for step in reversed(older)
            ),
        )


def model_steps(until: int) -> list[int]:
    """List the steps until which models are trained for a forecast: `until`, and the step before where it can be.

    From the vectors of the older model before known links, the forecaster learns how to read those of the newer one.
    """
    return [step for step in (until - 1, until) if step == until or step >= MIN_TRAINED_STEPS]


def evaluate_method(name: str, method: Embedder | Scorer, trial: Trial) -> list[ScoredPairs]:
    """Fit a method on the past and score the 60 % of the step's pairs that are left for the test.

    A Scorer gets the labelled pairs and gives one row. Vectors give two rows: one with the paper's decoder, and one,
    named with FORECASTER_WITH, of the forecaster that reads them. The paper's decoder is fitted on 20 % of the pairs,
    another 20 % chooses its regularisation, and it is fitted again on both: the labels that a Scorer gets of this step.
    With noise there is no row of the forecaster, because it reads interactions, which a noisy history does not have.
    Raises TooFewLinks for a step without enough pairs, and ValueError for vectors of another shape or that are not
    finite.
    """
    split = trial.split  # first, because a step with too few pairs needs no training
    if isinstance(method, Scorer):
        score_pairs = method.fit_pairs(trial.past, trial.labelled)
        return [_scored(name, trial, score_pairs(split.test.source_P, split.test.target_P))]
    vectors_ND = fitted_vectors(name, method, trial.past, trial.seed)
    decoded = _scored(name, trial, decoded_scores(vectors_ND, trial))
    if trial.config.noise > 0:
        return [decoded]
    vectors_of = {trial.past: vectors_ND, **older_vectors(name, method, trial.labelled[1:], trial.seed)}
    score_pairs = Forecaster(vectors_of=vectors_of.get, seed=trial.seed).fit_pairs(trial.past, trial.labelled)
    return [
        decoded,
        _scored(FORECASTER_WITH + name, trial, score_pairs(split.test.source_P, split.test.target_P)),
    ]


@dataclass(frozen=True, kw_only=True)
class FittedOnce:
    """A method for graphs of one log, fitted once as of a step, although several parts of a run read its vectors.

    The vectors of the two steps used last stay in memory: a run reads those of one step again before the next but one.
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
        raise ValueError(f"{name}: fit must return a function from nodes to vectors; found {type(embed).__name__}")
    vectors_ND = embed(np.arange(len(graph.history.node_N)))
    _check_vectors(name, vectors_ND, len(graph.history.node_N), graph.until + 1)
    return vectors_ND


def rotated(newer_ND: NDArray[np.floating], older_ND: NDArray[np.floating]) -> NDArray[np.floating]:
    """Rotate the vectors of a newer training onto those of an older one, which has its own axes.

    Nodes that the older one lacks come last. The rotation is that of orthogonal Procrustes (Schoenemann, 1966).
    """
    return newer_ND @ orthogonal_procrustes(newer_ND[: len(older_ND)], older_ND)[0]


def decoded_scores(vectors_ND: NDArray[np.floating], trial: Trial) -> NDArray[np.float64]:
    """Fit the paper's decoder on the labelled pairs and score the test pairs [P]."""
    train, validation, test = (
        hadamard(vectors_ND, part.source_P, part.target_P)
        for part in (trial.split.train, trial.split.validation, trial.split.test)
    )
    labels = trial.split.train.positive_P, trial.split.validation.positive_P
    return score(fit_decoder(train, labels[0], (validation, labels[1])), test)


def _check_vectors(name: str, vectors_ND: NDArray[np.floating], num_nodes: int, step: int) -> None:
    if np.ndim(vectors_ND) != 2 or len(vectors_ND) != num_nodes:
        raise ValueError(
            f"{name}: found vectors of shape {np.shape(vectors_ND)}: expected one row for each of the {num_nodes} "
            f"nodes known before step {step}"
        )
    if not np.isfinite(vectors_ND).all():
        num_broken = int((~np.isfinite(vectors_ND).all(axis=1)).sum())
        raise ValueError(
            f"{name}: {num_broken} of {num_nodes} vectors for step {step} are not finite: expected finite numbers"
        )


def _scored(name: str, trial: Trial, score_P: NDArray[np.float64]) -> ScoredPairs:
    test = trial.split.test
    if np.shape(score_P) != np.shape(test.source_P):
        raise ValueError(f"{name}: found scores of shape {np.shape(score_P)}: expected {len(test.source_P)} scores")
    return ScoredPairs(method=name, seed=trial.seed, step=trial.step, family="random", **vars(test), score_P=score_P)
