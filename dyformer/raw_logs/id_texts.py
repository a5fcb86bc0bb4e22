"""Ids as a log writes them, texts or integers -> Categorical: every text is held once.

R rows    V values of integer ids    U distinct values of one block
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

ID = pl.Categorical(pl.Categories("ids", namespace="dyformer"))

TABLE_SIZE = 1 << 24
UNKNOWN, NEW = -1, -2


class IdTexts:
    """The texts of a log's integer ids: those below TABLE_SIZE are looked up, and written once."""

    def __init__(self):
        self._number_V: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._texts = pl.Series(dtype=ID)

    def of(self, ids: pl.Series) -> pl.Series:
        """Give the texts of one block's ids (String, or Int64 from 0)."""
        if ids.dtype == pl.String:
            return ids.cast(ID)
        value_R = ids.to_numpy()
        largest = int(value_R.max(initial=0))
        if largest >= TABLE_SIZE:
            value_U, number_R = np.unique(value_R, return_inverse=True)
            return _written(value_U).gather(number_R).alias(ids.name)
        if largest >= len(self._number_V):
            more = np.full((1 << largest.bit_length()) - len(self._number_V), UNKNOWN, dtype=np.int32)
            self._number_V = np.concatenate([self._number_V, more])
        number_R = self._number_V[value_R]
        is_new_R = number_R == UNKNOWN
        if is_new_R.any():
            self._add(value_R[is_new_R])
            number_R = self._number_V[value_R]
        return self._texts.gather(number_R.view(np.uint32)).alias(ids.name)

    def _add(self, value_R: NDArray[np.int64]) -> None:
        self._number_V[value_R] = NEW
        value_U = np.flatnonzero(self._number_V == NEW)
        self._number_V[value_U] = np.arange(len(self._texts), len(self._texts) + len(value_U), dtype=np.int32)
        self._texts = pl.concat([self._texts, _written(value_U)], rechunk=True)


def _written(value_U: NDArray[np.int64]) -> pl.Series:
    return pl.Series(value_U).cast(pl.String).cast(ID)
