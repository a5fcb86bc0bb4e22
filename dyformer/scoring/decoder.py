"""Vectors and pair features -> the probability that a pair is positive (paper, section 5.1).

N nodes    D width of a vector    P pairs    F inputs of the decoder
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.special import logit as logit_of

from dyformer import InvalidInput
from dyformer.scoring.metrics import auc
from dyformer.streams.blas import one_blas_thread

Examples = tuple[NDArray[np.floating], NDArray[np.bool_]]
"""Decoder inputs [P, F] and labels [P], true for a positive pair."""

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Inverse regularisation strengths C to choose from, the strongest regularisation first."""

TOLERANCE = 1e-6
"""Limit on the mean loss's gradient: probabilities are then within 1e-5 of the optimum, also for correlated inputs."""


@dataclass(frozen=True, kw_only=True)
class LinkDecoder:
    """A logistic regression on standardised inputs, as plain arrays."""

    mean_F: NDArray[np.float64]
    scale_F: NDArray[np.float64]
    coefficient_F: NDArray[np.float64]
    intercept: float


def hadamard(
    vectors_ND: NDArray[np.floating], source_P: NDArray[np.int64], target_P: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Multiply the vectors of a pair's two ends value by value, [P, D]."""
    return vectors_ND[source_P].astype(np.float64) * vectors_ND[target_P]


# OpenBLAS's threads spin while they wait: beside another process, two threads took 15 times as long as one.
@one_blas_thread
def fit_decoder(
    inputs_PF: NDArray[np.floating],
    positive_P: NDArray[np.bool_],
    validation: Examples | None = None,
    *,
    weight_P: NDArray[np.float64] | None = None,
    strength: float = 1.0,
) -> LinkDecoder:
    """Fit a logistic regression on inputs standardised with their own mean and deviation; `strength` is C.

    With `validation`, C is the value of STRENGTHS with the best AUC there, and the decoder is fitted again on both,
    validation pairs having the weight 1; ties go to the strongest regularisation. Raises ValueError unless there are
    pairs of both kinds, and for inputs that are not finite.
    """
    if validation is not None:
        values = strength_scores(inputs_PF, positive_P, validation, weight_P=weight_P)
        strength = max(values, key=lambda strength: values[strength])
        weight_P = np.ones(len(positive_P)) if weight_P is None else weight_P
        weight_P = np.concatenate([weight_P, np.ones(len(validation[1]))])
        inputs_PF = np.concatenate([inputs_PF, validation[0]])
        positive_P = np.concatenate([positive_P, validation[1]])
    return next(_fits((inputs_PF, positive_P), weight_P, (strength,)))


@one_blas_thread
def strength_scores(
    inputs_PF: NDArray[np.floating],
    positive_P: NDArray[np.bool_],
    validation: Examples,
    *,
    weight_P: NDArray[np.float64] | None = None,
) -> dict[float, float]:
    """Give the AUC on validation pairs of a fit with each of STRENGTHS. Raises ValueError like fit_decoder."""
    decoders = _fits((inputs_PF, positive_P), weight_P, STRENGTHS)
    values = [auc(validation[1], logit(decoder, validation[0])) for decoder in decoders]
    return dict(zip(STRENGTHS, values, strict=True))


def slopes(decoder: LinkDecoder) -> tuple[NDArray[np.float64], float]:
    """Give the slopes of the log-odds in the unstandardised inputs [F], and the log-odds where all inputs are zero."""
    slope_F = decoder.coefficient_F / decoder.scale_F
    return slope_F, decoder.intercept - float(decoder.mean_F @ slope_F)


def row_products(inputs_PF: NDArray[np.floating], slope_F: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply a matrix by a vector, [P]; a row has the same bytes alone as beside others, unlike with BLAS."""
    # Rows that lie together and are no longer converted: in chunks of the conversion sums would end where chunks do.
    return np.einsum("pf,f->p", np.ascontiguousarray(inputs_PF, dtype=np.float64), slope_F)


def logit(decoder: LinkDecoder, inputs_PF: NDArray[np.floating]) -> NDArray[np.float64]:
    """Give the log-odds [P] that each pair is positive."""
    if inputs_PF.shape[1] != len(decoder.mean_F):
        raise InvalidInput(f"the decoder reads {len(decoder.mean_F)} inputs of a pair, found {inputs_PF.shape[1]}")
    slope_F, offset = slopes(decoder)
    return row_products(inputs_PF, slope_F) + offset


def score(decoder: LinkDecoder, inputs_PF: NDArray[np.floating]) -> NDArray[np.float64]:
    """Give the probability [P] that each pair is positive, at the ratio of positives in the fitted pairs."""
    return expit(logit(decoder, inputs_PF))


def _fits(
    examples: Examples,
    weight_P: NDArray[np.float64] | None,
    strengths: Sequence[float],
) -> Iterator[LinkDecoder]:
    """Fit with each strength in turn, from the previous solution on."""
    from sklearn.linear_model import LogisticRegression

    inputs_PF, positive_P = np.asarray(examples[0], dtype=np.float64), examples[1]
    _check(inputs_PF, positive_P)
    mean_F = np.average(inputs_PF, axis=0, weights=weight_P)
    deviation_F = np.sqrt(np.average((inputs_PF - mean_F) ** 2, axis=0, weights=weight_P))
    # A constant input gets no weight, because rounding may leave it a tiny deviation to divide by.
    constant_F = deviation_F <= 1e-9 * np.abs(mean_F)
    scale_F = np.where(constant_F, 1.0, deviation_F)
    standard_PF = (inputs_PF - mean_F) / scale_F
    regression = LogisticRegression(solver="newton-cholesky", tol=TOLERANCE, max_iter=200, warm_start=True)
    coefficient_F, intercept = np.zeros(len(mean_F)), logit_of(np.average(positive_P, weights=weight_P))
    for strength in strengths:
        if not constant_F.all():  # the solver fails on constant inputs, where it would start at the optimum
            regression.set_params(C=strength).fit(standard_PF, positive_P, sample_weight=weight_P)
            coefficient_F, intercept = regression.coef_[0], np.ravel(regression.intercept_)[0]
        yield LinkDecoder(
            mean_F=mean_F,
            scale_F=scale_F,
            coefficient_F=np.where(constant_F, 0.0, coefficient_F),
            intercept=float(intercept),
        )


def _check(inputs_PF: NDArray[np.floating], positive_P: NDArray[np.bool_]) -> None:
    if positive_P.all() or not positive_P.any():
        raise InvalidInput(f"expected positive and negative pairs to fit on: all {len(positive_P)} are of one kind")
    if not np.isfinite(inputs_PF).all():
        raise InvalidInput("expected finite decoder inputs: some vector or pair feature is NaN or infinite")
