"""Blocks of rows, as they come -> few frames, each column in one piece."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np
import polars as pl

NUMBERS = {pl.UInt32: np.uint32, pl.Int64: np.int64, pl.Float64: np.float64}
"""Types of columns that miss no value in an event."""


def in_pieces(blocks: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Put every run of blocks of the same types together; what a block took is free for the next one."""
    for _, run in groupby(blocks, key=lambda block: block.schema):
        yield _in_one(run)


def _in_one(blocks: Iterable[pl.DataFrame]) -> pl.DataFrame:
    # A bytearray grows where it is, and so takes no more memory than what is in it.
    numbers, others, dtypes = defaultdict(bytearray), defaultdict(list), {}
    for block in blocks:
        dtypes = block.schema
        for column in block:
            if column.dtype in NUMBERS:
                assert not column.null_count()
                numbers[column.name] += column.to_numpy().data.cast("B")
            else:
                others[column.name].append(column)
    return pl.DataFrame(
        [
            pl.concat(others[name], rechunk=True).alias(name)
            if name in others
            else pl.from_numpy(np.frombuffer(numbers[name], NUMBERS[dtype]), schema=[name]).to_series()
            for name, dtype in dtypes.items()
        ]
    )
