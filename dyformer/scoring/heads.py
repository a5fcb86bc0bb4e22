"""Inputs and labels of pairs -> heads, which give the log-odds that a pair is positive.

P pairs    F inputs, NaN where one is missing    G groups: the pairs of one source in one step
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cache, cached_property
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dyformer.scoring.decoder import fit_decoder, row_products, slopes
from dyformer.scoring.labelled_tables import LabelledTable
from dyformer.scoring.trees import Trees, need_openmp, trees_of

if TYPE_CHECKING:
    import lightgbm
    from _typeshed import DataclassInstance

HeadKind = Literal["linear", "trees", "ranking"]

KINDS: tuple[HeadKind, ...] = ("linear", "trees", "ranking")
"""The heads of a forecaster; the last one only where labelled pairs come as a source with its candidates."""

NUM_ROUNDS = 300
# Every input by itself and as a full column: the same trees as of LightGBM's bundles and sparse columns, earlier.
COLUMNS = {"force_col_wise": True, "enable_bundle": False, "is_enable_sparse": False}
ONE_THREAD = {"num_threads": 1, "deterministic": True, "verbosity": -1, **COLUMNS}
TREES = {
    "learning_rate": 0.03,
    "num_leaves": 16,
    "feature_fraction": 0.3,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    **ONE_THREAD,
}
"""Settings of LightGBM: few inputs a tree and small steps, because many inputs are alike and the pairs are few."""

BINARY = {"objective": "binary"}
TRUNCATION = 20  # two pairs of a group count for LambdaRank where one of them is among so many first ones


@dataclass(frozen=True, kw_only=True)
class LinearHead:
    """A logistic regression; a missing input counts as the mean of the fitted pairs."""

    mean_F: NDArray[np.float64]
    slope_F: NDArray[np.float64]
    offset: float

    def logits(self, inputs_PF: NDArray[np.floating]) -> NDArray[np.float64]:
        """Give the log-odds [P]."""
        return row_products(np.where(np.isnan(inputs_PF), self.mean_F, inputs_PF), self.slope_F) + self.offset


@dataclass(frozen=True, kw_only=True)
class TreesHead:
    """Boosted trees, as the text of a LightGBM model (Ke et al., 2017)."""

    text: str

    @cached_property
    def trees(self) -> Trees:
        """The trees, read from the text once."""
        return trees_of(self.text)

    def logits(self, inputs_PF: NDArray[np.floating]) -> NDArray[np.float64]:
        """Give the log-odds [P], or for LambdaRank a number without scale that ranks the pairs of one source."""
        return self.trees.logits(inputs_PF)


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


def fit_heads(kinds: Sequence[HeadKind], table: LabelledTable, *, seed: int) -> tuple[Head, ...]:
    """Fit a head of each kind on the pairs of a table.

    "linear": a logistic regression on standardised inputs. "trees": boosted trees with the logistic loss. "ranking":
    boosted trees with LambdaRank (Burges, 2010) on the groups of the table.
    They are fitted at the same time, each on one thread. Where one fails, or Ctrl-C comes, the others soon end, too.
    Raises ValueError unless there are pairs of both kinds.
    """
    # Both kinds of trees read the same bins, into which LightGBM puts the inputs here and not in one of the threads.
    rows, stopped = _rows(table, seed).construct(), Event()

    def fitted(kind: HeadKind) -> Head:
        try:
            return _linear(table) if kind == "linear" else _trees(kind, table, rows, seed, NUM_ROUNDS, stopped)
        except BaseException as error:
            stopped.set()
            error.add_note(f"The head {kind!r} was being fitted.")
            raise

    with ThreadPoolExecutor(len(kinds)) as pool:
        try:
            return tuple(pool.map(fitted, kinds))  # raises the error of the head that failed, if one of them did
        finally:
            stopped.set()


def fit_scaled_heads(table: LabelledTable, *, seed: int, ranked: bool) -> tuple[tuple[Head, ...], tuple[float, ...]]:
    """Fit the heads of KINDS, and give the factor of each, which brings its output to the spread of log-odds."""
    heads = fit_heads(KINDS if ranked else KINDS[:-1], table, seed=seed)
    scales = [1.0] * len(heads)
    if ranked:  # the output of LambdaRank has no scale of its own
        trees_P, ranking_P = (head.logits(table.inputs_PF) for head in heads[1:])
        scales[-1] = float(trees_P.std() / max(ranking_P.std(), 1e-12))
    return heads, tuple(scales)


def mean_logits(heads: Sequence[Head], scales: Sequence[float], inputs_PF: NDArray[np.floating]) -> NDArray[np.float64]:
    """Give the mean of the heads' outputs [P], each times its factor."""
    return np.mean([scale * head.logits(inputs_PF) for head, scale in zip(heads, scales, strict=True)], axis=0)


def fit_ranking(table: LabelledTable, *, seed: int, num_rounds: int) -> TreesHead:
    """Fit the head "ranking" alone, with so many trees."""
    return _trees("ranking", table, _rows(table, seed), seed, num_rounds, Event())


def _linear(table: LabelledTable) -> LinearHead:
    is_known_PF = ~np.isnan(table.inputs_PF)
    weight_PF = is_known_PF * table.weight_P[:, None]
    sum_F = (weight_PF * np.where(is_known_PF, table.inputs_PF, 0)).sum(axis=0)
    mean_F = sum_F / np.maximum(weight_PF.sum(axis=0), np.finfo(np.float64).tiny)
    inputs_PF = np.where(is_known_PF, table.inputs_PF, mean_F).astype(np.float64)
    decoder = fit_decoder(inputs_PF, table.positive_P, weight_P=table.weight_P)
    slope_F, offset = slopes(decoder)
    return LinearHead(mean_F=mean_F, slope_F=slope_F, offset=offset)


def _rows(table: LabelledTable, seed: int) -> "lightgbm.Dataset":
    need_openmp()
    import lightgbm

    order_P = np.argsort(table.group_P, kind="stable")
    return lightgbm.Dataset(
        table.inputs_PF[order_P],
        label=table.positive_P[order_P],
        weight=table.weight_P[order_P],
        group=np.unique(table.group_P, return_counts=True)[1],  # the logistic loss does not read it
        params={**TREES, **_leaf(table, seed)},
    )


def _trees(
    kind: HeadKind, table: LabelledTable, rows: "lightgbm.Dataset", seed: int, num_rounds: int, stopped: Event
) -> TreesHead:
    """Boost trees, so many or until `stopped`, after which nobody reads them."""
    import lightgbm

    def stop(state: "lightgbm.callback.CallbackEnv") -> None:
        if stopped.is_set():
            raise lightgbm.EarlyStopException(state.iteration, [])

    settings = {**TREES, **_leaf(table, seed)}
    if kind == "ranking":
        return TreesHead(text=_ranking_booster(rows, settings, num_rounds, stopped).model_to_string())
    booster = lightgbm.train({**settings, **BINARY}, rows, num_rounds, callbacks=[stop])
    return TreesHead(text=booster.model_to_string())


def _ranking_booster(
    rows: "lightgbm.Dataset", settings: Mapping[str, Any], num_rounds: int, stopped: Event
) -> "lightgbm.Booster":
    """Boost trees by LambdaRank: those of LightGBM's own objective, whose gradients take two thirds of its time."""
    import lightgbm

    from dyformer.scoring.kernels.lambdas import lambdas  # late, as numba is slow to import

    booster = lightgbm.Booster({**settings, "objective": "none"}, rows)
    # Otherwise the first update sets this objective again, by which the first tree would draw other inputs.
    setattr(booster, "_Booster__set_objective_to_none", True)  # noqa: B010, a type checker refuses the assignment
    size_G = np.asarray(rows.get_group())
    start_G1, order_P = np.append(0, np.cumsum(size_G)), np.concatenate(list(map(np.arange, size_G)))
    positive_P, weight_P = np.asarray(rows.get_label()) > 0, rows.get_weight()
    if weight_P is None:  # LightGBM keeps no weights that are all 1
        weight_P = np.ones(len(positive_P), dtype=np.float32)

    def gradients(
        score_P: NDArray[np.float64], _: "lightgbm.Dataset"
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return lambdas(score_P, positive_P, weight_P, start_G1, order_P, _sigmoids(), TRUNCATION)

    for _ in range(num_rounds):
        if stopped.is_set():
            break
        booster.update(fobj=gradients)
    return booster


@cache
def _sigmoids() -> NDArray[np.float64]:
    from dyformer.scoring.kernels.lambdas import sigmoid_table

    return sigmoid_table()


def fit_trees(table: LabelledTable, settings: Mapping[str, Any], num_rounds: int) -> TreesHead:
    """Fit boosted trees with the logistic loss and the given settings of LightGBM; repeated, the bytes are the same."""
    need_openmp()
    import lightgbm

    options = {**BINARY, **ONE_THREAD, **settings}
    data = lightgbm.Dataset(table.inputs_PF, label=table.positive_P, weight=table.weight_P, params=options)
    return TreesHead(text=lightgbm.train(options, data, num_rounds).model_to_string())


def _leaf(table: LabelledTable, seed: int) -> dict[str, int]:
    return {"min_data_in_leaf": min(20, max(1, len(table.positive_P) // 50)), "seed": seed}
