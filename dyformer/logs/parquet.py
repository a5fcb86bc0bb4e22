"""One Parquet file and its ReadPlan -> blocks of rows, in the form of `raw_rows`."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields

import polars as pl

from dyformer.logs.datasets import Columns
from dyformer.logs.log_file import DamagedLog, RawFile
from dyformer.logs.plan import ReadPlan, position
from dyformer.logs.sample import seekable

BATCH_ROWS = 1 << 20


def parquet_rows(file: RawFile, plan: ReadPlan) -> Iterator[pl.DataFrame]:
    """Read the planned columns batch by batch, every value as its text; raises DamagedLog and ColumnNotFound."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first_row = 1
    with closing(seekable(file.open())) as stream:
        try:
            table = pq.ParquetFile(stream)
            names = tuple(table.schema_arrow.names)
            roles = _roles(plan, names, file.name)
            for batch in table.iter_batches(BATCH_ROWS, columns=sorted(set(roles.values()))):
                yield _texts(pl.DataFrame(pa.Table.from_batches([batch])), roles, first_row, file.name)
                first_row += batch.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            raise DamagedLog(f"{file.name} starts like Parquet but cannot be read ({error}); copy it again") from error


def _roles(plan: ReadPlan, names: tuple[str, ...], place: str) -> dict[str, str]:
    columns = {field.name: getattr(plan.columns, field.name) for field in fields(Columns)}
    return {
        role: names[position(column, names, len(names), place)]
        for role, column in columns.items()
        if column is not None
    }


def _texts(frame: pl.DataFrame, roles: dict[str, str], first_row: int, file: str) -> pl.DataFrame:
    for name in set(roles.values()):
        if frame.schema[name].is_nested():
            raise DamagedLog(f"{file}: the column {name!r} holds {frame.schema[name]}, not single values")
    return frame.select(
        *[_text(name, frame.schema[name]).str.strip_chars().alias(role) for role, name in roles.items()],
        line=pl.int_range(first_row, first_row + frame.height),
        raw=pl.lit(None, pl.String),
        reason=pl.lit(None, pl.String),
    )


def _text(name: str, dtype: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if isinstance(dtype, pl.Date | pl.Datetime):
        return column.dt.epoch("us").cast(pl.String)
    if dtype.is_float():
        # a column of integers with gaps arrives as floats: 7.0 is the id 7
        whole = (column == column.floor()) & (column.abs() < 2**53)
        return (
            pl.when(whole).then(column.cast(pl.Int64, strict=False).cast(pl.String)).otherwise(column.cast(pl.String))
        )
    return column.cast(pl.String)
