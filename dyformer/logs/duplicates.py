"""Rows -> which of them repeat an earlier one.

R rows    B rows of one block    S rows that have their hash in common with another one
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

BLOCK_ROWS = 1 << 17


def repeats(rows: pl.DataFrame) -> NDArray[np.bool_]:
    """Mark every row [R] that equals an earlier one. Equal hashes find the few rows worth comparing."""
    row_S = _suspects(_hashed(rows), np.uint64(rows.height.bit_length()))
    is_first_S = rows[row_S].select(pl.struct(pl.all()).is_first_distinct()).to_series().to_numpy()
    is_repeat_R = np.zeros(rows.height, dtype=np.bool_)
    is_repeat_R[row_S[~is_first_S]] = True
    return is_repeat_R


def _hashed(rows: pl.DataFrame) -> NDArray[np.uint64]:
    """Hash the rows; equal rows have equal hashes [R]."""
    columns = [pl.col(column).to_physical().hash(seed) for seed, column in enumerate(rows.columns, 1)]
    content = pl.reduce(lambda one, other: one ^ other, columns)
    hash_R = np.empty(rows.height, dtype=np.uint64)
    for index, block in enumerate(rows.iter_slices(BLOCK_ROWS)):
        hash_B = block.select(content).to_series().to_numpy()
        hash_R[index * BLOCK_ROWS : index * BLOCK_ROWS + len(hash_B)] = hash_B
    return hash_R


def _suspects(hash_R: NDArray[np.uint64], row_bits: np.uint64) -> NDArray[np.uint64]:
    """Find the rows [S] whose hashes start alike: those of one start side by side and in order."""
    # Hash and row in one key: keys are sorted several times faster than positions are.
    key_R = hash_R
    for first in range(0, len(key_R), BLOCK_ROWS):
        key_B = key_R[first : first + BLOCK_ROWS]
        key_B >>= row_bits
        key_B <<= row_bits
        key_B |= np.arange(first, first + len(key_B), dtype=np.uint64)
    key_R.sort()
    is_suspect_R = np.zeros(len(key_R), dtype=np.bool_)
    for first in range(0, len(key_R), BLOCK_ROWS):
        key_B = key_R[first : first + BLOCK_ROWS + 1]
        row_S = np.flatnonzero((key_B[1:] ^ key_B[:-1]) >> row_bits == 0)
        is_suspect_R[first + row_S] = is_suspect_R[first + row_S + 1] = True
    return key_R[is_suspect_R] & ((np.uint64(1) << row_bits) - np.uint64(1))
