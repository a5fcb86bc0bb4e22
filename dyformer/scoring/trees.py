"""The text of a LightGBM model -> its trees as arrays, and their outputs for pairs, bit by bit those of LightGBM.

P pairs    F inputs    T trees    S splits of a tree    L leaves of a tree
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dyformer import DyformerError, InvalidInput

MAX_LEAVES = 32  # bits of the numbers in which the leaves that a pair may reach are marked
ZERO = 1e-35  # LightGBM takes inputs up to it, as a 32-bit number, for 0
CATEGORICAL, DEFAULT_LEFT = 1, 2  # bits of a split's `decision_type`
MISSING_SHIFT, MISSING_NONE, MISSING_NAN = 2, 0, 2  # how it treats missing inputs, in the bits above these
ALL_LEAVES = 0xFFFFFFFF


class MissingLibrary(DyformerError, ImportError):
    """A library of the system that a package needs."""


def need_openmp() -> None:
    """Raise MissingLibrary unless LightGBM can be loaded, whose wheels lack the library of OpenMP."""
    try:
        import lightgbm  # noqa: F401
    except OSError as error:
        raise MissingLibrary(
            f"LightGBM cannot be loaded ({error}): install the system's library of OpenMP, as by `apt-get install"
            " libgomp1` on Debian"
        ) from error


@dataclass(frozen=True, kw_only=True)
class Trees:
    """Splits and leaves of boosted trees; a tree with fewer splits than another has some more that exclude nothing."""

    is_zero_if_missing_F: NDArray[np.bool_]  # inputs of which none was missing in the fit
    feature_TS: NDArray[np.int64]
    gain_TS: NDArray[np.float64]
    threshold_TS: NDArray[np.float64]
    missing_left_TS: NDArray[np.bool_]
    right_TS: NDArray[np.uint32]  # marks of the leaves that stay possible to the right of a split
    value_TL: NDArray[np.float64]  # of the leaves, from left to right

    @property
    def gain_F(self) -> NDArray[np.float64]:
        """The gain of all splits by each input [F]."""
        gain_F = np.zeros(len(self.is_zero_if_missing_F))
        np.add.at(gain_F, self.feature_TS, self.gain_TS)
        return gain_F

    @cached_property
    def _rounded(self) -> dict[np.dtype, NDArray[np.floating]]:
        """The thresholds [T, S] by the type of the inputs, rounded once, because a single query is short."""
        return {}

    def logits(self, inputs_PF: NDArray[np.floating]) -> NDArray[np.float64]:
        """Give the sum [P] of the trees' outputs. Raises ValueError for another number of inputs."""
        from dyformer.scoring.kernels.trees import tree_sums  # late, as numba is slow to import

        inputs_PF = np.ascontiguousarray(inputs_PF)
        if inputs_PF.ndim != 2 or inputs_PF.shape[1] != len(self.is_zero_if_missing_F):
            expected = len(self.is_zero_if_missing_F)
            raise InvalidInput(f"found inputs of shape {inputs_PF.shape}: expected {expected} inputs for each pair")
        if inputs_PF.dtype not in self._rounded:
            self._rounded[inputs_PF.dtype] = _rounded_down(self.threshold_TS, inputs_PF.dtype)
        splits_TS = self.feature_TS, self._rounded[inputs_PF.dtype], self.missing_left_TS, self.right_TS
        nothing = inputs_PF.dtype.type(np.float32(ZERO))
        return tree_sums(inputs_PF, self.is_zero_if_missing_F, nothing, splits_TS, self.value_TL)


def trees_of(text: str) -> Trees:
    """Read the trees of a LightGBM model.

    Raises ValueError for trees of more than MAX_LEAVES leaves, and for splits by categories or with zeros as missing.
    """
    head, *texts = text.partition("end of trees")[0].split("\nTree=")
    trees = [dict(line.split("=", 1) for line in tree_text.splitlines() if "=" in line) for tree_text in texts]
    num_inputs = int(head.partition("max_feature_idx=")[2].split()[0]) + 1
    num_leaves = max((int(tree["num_leaves"]) for tree in trees), default=1)
    if num_leaves > MAX_LEAVES:
        raise InvalidInput(f"found a tree of {num_leaves} leaves: expected at most {MAX_LEAVES}")
    shape_TS = len(trees), num_leaves - 1
    trees_read = Trees(
        is_zero_if_missing_F=np.full(num_inputs, fill_value=True),
        feature_TS=np.zeros(shape_TS, dtype=np.int64),
        gain_TS=np.zeros(shape_TS),
        threshold_TS=np.full(shape_TS, np.inf),
        missing_left_TS=np.zeros(shape_TS, dtype=np.bool_),
        right_TS=np.full(shape_TS, ALL_LEAVES, dtype=np.uint32),
        value_TL=np.zeros((len(trees), num_leaves)),
    )
    for number, tree in enumerate(trees):
        _read_tree(trees_read, number, tree)
    return trees_read


def _read_tree(trees: Trees, number: int, tree: Mapping[str, str]) -> None:
    """Fill in one tree."""
    value_L, num_splits = np.array(tree["leaf_value"].split(), dtype=np.float64), int(tree["num_leaves"]) - 1
    if not num_splits:
        trees.value_TL[number, 0] = value_L[0]
        return
    decision_S = np.array(tree["decision_type"].split(), dtype=np.int64)
    missing_S = decision_S >> MISSING_SHIFT
    if (decision_S & CATEGORICAL).any() or not np.isin(missing_S, (MISSING_NONE, MISSING_NAN)).all():
        raise InvalidInput("found a split by categories, or one that takes zeros for missing: expected numbers alone")
    feature_S = np.array(tree["split_feature"].split(), dtype=np.int64)
    trees.is_zero_if_missing_F[feature_S[missing_S == MISSING_NAN]] = False
    trees.feature_TS[number, :num_splits] = feature_S
    trees.gain_TS[number, :num_splits] = np.array(tree["split_gain"].split(), dtype=np.float32)  # as LightGBM
    trees.threshold_TS[number, :num_splits] = np.array(tree["threshold"].split(), dtype=np.float64)
    trees.missing_left_TS[number, :num_splits] = (missing_S == MISSING_NAN) & (decision_S & DEFAULT_LEFT > 0)
    left_S, right_S = (np.array(tree[side].split(), dtype=np.int64) for side in ("left_child", "right_child"))
    trees.right_TS[number, :num_splits], leaf_L = _marks(left_S.tolist(), right_S.tolist())
    trees.value_TL[number, : num_splits + 1] = value_L[leaf_L]


def _marks(left_S: list[int], right_S: list[int]) -> tuple[list[int], list[int]]:
    """Give for each split the leaves that are left of it or below it to the right, and the leaves from left to right.

    Leaves are negative children: ~l is leaf l.
    """
    leaves: list[int] = []
    mark_S = [ALL_LEAVES] * len(left_S)

    def marked(child: int) -> int:
        if child < 0:
            leaves.append(~child)
            return 1 << (len(leaves) - 1)
        below_left = marked(left_S[child])
        mark_S[child] = ALL_LEAVES & ~below_left
        return below_left | marked(right_S[child])

    marked(0)
    return mark_S, leaves


def _rounded_down(threshold_TS: NDArray[np.float64], dtype: np.dtype) -> NDArray[np.floating]:
    """Give the largest thresholds of a type that are no larger, so that a comparison in it has the same outcome."""
    near_TS = threshold_TS.astype(dtype)
    return np.where(near_TS > threshold_TS, np.nextafter(near_TS, dtype.type(-np.inf)), near_TS)
