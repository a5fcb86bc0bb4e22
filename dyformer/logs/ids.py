"""Ids as texts -> integers where each text is canonical for an integer, else Categorical, which holds a text once.

`007` and `+7` are other ids than `7`: a text is canonical where writing its integer again gives the same text. No text
is shorter than its integer written again, so one comparison of total lengths checks many texts at once.

I integers
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import polars as pl

ID = pl.Categorical(pl.Categories("ids", namespace="dyformer"))

ENDS = ("source", "target")
MAX_DIGITS = 18
MAX = 10**MAX_DIGITS - 1
TEN = np.int64(10)


def num_digits(integers: pl.Series) -> int | None:
    """Count the digits of all integers together; None where one is missing, negative or longer than MAX_DIGITS."""
    if integers.null_count():
        return None
    value_I = integers.to_numpy()
    smallest, largest = int(value_I.min(initial=MAX)), int(value_I.max(initial=0))
    if smallest < 0 or largest > MAX:
        return None
    fewest, most = len(str(smallest)), len(str(largest))
    return fewest * len(value_I) + sum(int(np.count_nonzero(value_I >= TEN**digits)) for digits in range(fewest, most))


def compact(events: pl.DataFrame) -> pl.DataFrame:
    """Convert the ids of a block (String, or Int64 of canonical texts) to UInt32 or Int64, else to Categorical."""
    integers = [column for name in ENDS if (column := _integers(events[name])) is not None]
    if len(integers) < len(ENDS):
        return events.with_columns(as_texts(events[name]) for name in ENDS)
    return events.with_columns(integers)


def united(blocks: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """Give the ids of all blocks one type: integers only where every block that has rows has integers."""
    types = {block.schema[name] for block in blocks if block.height for name in ENDS} or {ID}
    if ID not in types:
        common = pl.Int64 if len(types) > 1 else types.pop()
        return [block.with_columns(pl.col(ENDS).cast(common)) for block in blocks]
    columns = iter(_written([block[name] for block in blocks for name in ENDS]))
    return [block.with_columns(next(columns) for _ in ENDS) for block in blocks]


def are_integers(*columns: pl.Series) -> bool:
    """Whether the ids of all columns are integers from 0."""
    return all(ids.dtype.is_integer() and int(ids.to_numpy().min(initial=0)) >= 0 for ids in columns)


def as_texts(ids: pl.Series) -> pl.Series:
    """Convert ids of any type to Categorical."""
    return ids if ids.dtype == ID else ids.cast(pl.String).cast(ID)


def dense(integers: pl.Series) -> pl.Series:
    """Number the distinct integers from 0 in ascending order; give the number of each (UInt32)."""
    return integers.rank("dense") - 1


def _integers(ids: pl.Series) -> pl.Series | None:
    """Convert ids to integers; None where writing one again would give another text."""
    if ids.dtype == pl.String:
        if ids.len() and not ids[0].isdecimal():
            return None
        texts, ids = ids, ids.cast(pl.Int64, strict=False)
        if num_digits(ids) != texts.str.len_bytes().sum():
            return None
    return ids.cast(pl.UInt32) if int(ids.to_numpy().max(initial=0)) < 1 << 32 else ids


def _written(columns: list[pl.Series]) -> list[pl.Series]:
    """Write columns of ids, some of them integers, as texts; every text is written once."""
    integers = [column.cast(pl.Int64) for column in columns if column.dtype.is_integer()]
    values = pl.concat([pl.Series(dtype=pl.Int64), *integers])
    number, texts = dense(values), as_texts(values.unique().sort())
    bounds = accumulate((column.len() for column in integers), initial=0)
    written = (texts.gather(number.slice(first, column.len())) for first, column in zip(bounds, integers, strict=False))
    return [(next(written) if column.dtype.is_integer() else as_texts(column)).alias(column.name) for column in columns]
