"""Inputs and labels of pairs -> heads, which give the log-odds that a pair is positive.

P pairs    F inputs, NaN where one is missing    G groups: the pairs of one source in one step
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dyformer.scoring.decoder import fit_decoder, slopes
from dyformer.scoring.labelled_tables import LabelledTable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from lightgbm import Booster

HeadKind = Literal["linear", "trees", "ranking"]

NUM_ROUNDS = 300
TREES = {
    "learning_rate": 0.03,
    "num_leaves": 16,
    "feature_fraction": 0.3,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}
"""Settings of LightGBM: few inputs a tree and small steps, because many inputs are alike and the pairs are few."""

OBJECTIVES = {
    "trees": {"objective": "binary"},
    "ranking": {"objective": "lambdarank", "lambdarank_truncation_level": 20},
}


@dataclass(frozen=True, kw_only=True)
class LinearHead:
    """A logistic regression; a missing input counts as the mean of the fitted pairs."""

    mean_F: NDArray[np.float64]
    slope_F: NDArray[np.float64]
    offset: float

    def logits(self, inputs_PF: NDArray[np.floating]) -> NDArray[np.float64]:
        """Give the log-odds [P]."""
        return np.where(np.isnan(inputs_PF), self.mean_F, inputs_PF) @ self.slope_F + self.offset


@dataclass(frozen=True, kw_only=True)
class TreesHead:
    """Boosted trees, as the text of a LightGBM model (Ke et al., 2017)."""

    text: str

    @cached_property
    def booster(self) -> "Booster":
        """The trees, read from the text once."""
        from lightgbm import Booster  # late, because it takes a third of a second to import

        return Booster(model_str=self.text)

    @property
    def gain_F(self) -> NDArray[np.float64]:
        """The gain of all splits by each input [F]."""
        return np.asarray(self.booster.feature_importance("gain"), dtype=np.float64)

    def logits(self, inputs_PF: NDArray[np.floating]) -> NDArray[np.float64]:
        """Give the log-odds [P], or for LambdaRank a number without scale that ranks the pairs of one source."""
        # A pair's output does not depend on the number of threads; training on few pairs is slower with several.
        return np.asarray(self.booster.predict(inputs_PF, raw_score=True), dtype=np.float64)


Head = LinearHead | TreesHead


def head_from_record(record: Mapping[str, Any]) -> Head:
    """Read the values of `plain_values` of a head."""
    return (TreesHead if "text" in record else LinearHead)(**with_arrays(record))


def plain_values(record: "DataclassInstance") -> dict[str, Any]:
    """Give a dataclass of numbers, texts and arrays as values for JSON."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def with_arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    """Read the values of `plain_values`: lists become arrays."""
    return {name: np.array(value) if isinstance(value, list) else value for name, value in values.items()}


def fit_head(kind: HeadKind, table: LabelledTable, *, seed: int, strength: float = 1.0) -> Head:
    """Fit one head on the pairs of a table.

    "linear": a logistic regression on standardised inputs, with C = `strength`. "trees": boosted trees with the
    logistic loss. "ranking": boosted trees with LambdaRank (Burges, 2010) on the groups of the table.
    Raises ValueError unless there are pairs of both kinds.
    """
    return _linear(table, strength) if kind == "linear" else _trees(kind, table, seed)


def _linear(table: LabelledTable, strength: float) -> LinearHead:
    is_known_PF = ~np.isnan(table.inputs_PF)
    weight_PF = is_known_PF * table.weight_P[:, None]
    sum_F = (weight_PF * np.where(is_known_PF, table.inputs_PF, 0)).sum(axis=0)
    mean_F = sum_F / np.maximum(weight_PF.sum(axis=0), np.finfo(np.float64).tiny)
    inputs_PF = np.where(is_known_PF, table.inputs_PF, mean_F).astype(np.float64)
    decoder = fit_decoder(inputs_PF, table.positive_P, weight_P=table.weight_P, strength=strength)
    slope_F, offset = slopes(decoder)
    return LinearHead(mean_F=mean_F, slope_F=slope_F, offset=offset)


def _trees(kind: HeadKind, table: LabelledTable, seed: int) -> TreesHead:
    import lightgbm

    order_P = np.argsort(table.group_P, kind="stable")
    data = lightgbm.Dataset(
        table.inputs_PF[order_P],
        label=table.positive_P[order_P],
        weight=table.weight_P[order_P],
        group=np.unique(table.group_P, return_counts=True)[1] if kind == "ranking" else None,
    )
    leaf = {"min_data_in_leaf": min(20, max(1, len(order_P) // 50)), "seed": seed}
    booster = lightgbm.train({**TREES, **OBJECTIVES[kind], **leaf}, data, NUM_ROUNDS)
    return TreesHead(text=booster.model_to_string())
