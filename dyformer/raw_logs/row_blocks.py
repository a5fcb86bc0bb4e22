"""Blocks of rows -> few large ones, or one frame with each column in one piece.

R rows of all blocks
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.raw_logs.log_ids import united

LARGE_BLOCK_ROWS = 1 << 20


def in_large_blocks(blocks: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Put small blocks of events together, so that what each of them took is soon free for the next."""
    waiting: list[pl.DataFrame] = []
    for block in blocks:
        waiting.append(block)
        if sum(each.height for each in waiting) >= LARGE_BLOCK_ROWS:
            yield in_one(waiting)
            waiting.clear()
    if waiting:
        yield in_one(waiting)


def in_one(blocks: Sequence[pl.DataFrame], is_kept_R: NDArray[np.bool_] | None = None) -> pl.DataFrame:
    """Put blocks of events together, or those of their rows that are kept; the ids get one type."""
    blocks = united(blocks)
    is_kept = None if is_kept_R is None else pl.Series(is_kept_R)
    return pl.DataFrame([_in_one([block[name] for block in blocks], is_kept) for name in blocks[0].columns])


def _in_one(parts: Sequence[pl.Series], is_kept: pl.Series | None) -> pl.Series:
    if not all(part.dtype.is_numeric() and not part.null_count() for part in parts):
        whole = pl.concat(parts, rechunk=False)
        return (whole if is_kept is None else whole.filter(is_kept)).rechunk()
    num_rows = sum(part.len() for part in parts) if is_kept is None else int(is_kept.sum())
    # Numpy asks for large pages: fetching memory in small ones would take longer than filling it.
    value_R = np.empty(num_rows, dtype=parts[0].to_numpy().dtype)
    first = row = 0
    for part in parts:
        kept = part if is_kept is None else part.filter(is_kept.slice(row, part.len()))
        value_R[first : first + kept.len()] = kept.to_numpy()
        row, first = row + part.len(), first + kept.len()
    return pl.from_numpy(value_R, schema=[parts[0].name]).to_series()
