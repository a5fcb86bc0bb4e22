"""Records with named values (Parquet, JSON lines, data frames) -> blocks of rows in the form of `events.raw_rows`."""

import io
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import polars as pl

from dyformer.logs.lines import text_blocks
from dyformer.logs.plan import ReadPlan, position
from dyformer.logs.raw_file import DamagedLog, LogNotFound, RawFile, seekable

if TYPE_CHECKING:
    import pandas as pd

BATCH_ROWS = 1 << 20


def frame_file(frame: "pl.DataFrame | pd.DataFrame", name: str = "the data frame") -> RawFile:
    """Write a data frame to a Parquet file in memory, so that it is read like any other file of a log."""
    if not isinstance(frame, pl.DataFrame):
        if not hasattr(frame, "select_dtypes"):  # of pandas alone, which is no dependency
            raise LogNotFound(f"expected a path, paths, or a polars or pandas DataFrame; found {type(frame).__name__}")
        import pyarrow as pa

        frame = frame.rename(columns=str)
        # a column of objects may mix integers and texts, which Arrow refuses
        texts = {column: "string" for column, dtype in frame.dtypes.items() if dtype.kind == "O"}
        zoned = {column: frame[column].dt.tz_convert(None) for column in frame.select_dtypes("datetimetz")}
        frame = frame.assign(**zoned).astype(texts)
        frame = pl.DataFrame(pa.Table.from_pandas(frame, preserve_index=False))
    content = io.BytesIO()
    frame.write_parquet(content, compression="lz4")
    return RawFile(name=name, open=lambda: io.BytesIO(content.getbuffer()))


def parquet_rows(file: RawFile, plan: ReadPlan) -> Iterator[pl.DataFrame]:
    """Read the planned columns batch by batch, every value as its text; raises DamagedLog and ColumnNotFound."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first_row = 1
    with closing(seekable(file.open())) as stream:
        try:
            table = pq.ParquetFile(stream)
            names = tuple(table.schema_arrow.names)
            columns = plan.columns.by_role().items()
            roles = {role: names[position(role, column, names, len(names), file.name)] for role, column in columns}
            for batch in table.iter_batches(BATCH_ROWS, columns=sorted(set(roles.values()))):
                yield _texts(pl.DataFrame(pa.Table.from_batches([batch])), roles, first_row, file.name)
                first_row += batch.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            raise DamagedLog(f"{file.name} starts like Parquet but cannot be read ({error}); copy it again") from error


def json_rows(file: RawFile, plan: ReadPlan, block_bytes: int) -> Iterator[pl.DataFrame]:
    """Read JSON lines block by block, every planned value as its text."""
    is_blank = pl.col("raw").str.strip_chars().str.len_bytes() == 0
    for lines in text_blocks(file, block_bytes):
        frame = lines.frame.filter(~is_blank)
        texts = {
            role: frame["raw"].str.json_path_match(f"$['{column}']").str.strip_chars()
            for role, column in plan.columns.by_role().items()
        }
        is_broken = pl.col("source").is_null() & pl.col("raw").str.json_path_match("$").is_null()
        reason = (
            pl.when(pl.col("reason").is_not_null())
            .then("reason")
            .when(~pl.col("raw").str.strip_chars().str.starts_with("{"))
            .then(pl.lit("not a JSON object"))
            .when(is_broken)
            .then(pl.lit("broken JSON"))
            .otherwise(None)
        )
        yield frame.with_columns(**texts).with_columns(reason=reason)


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
        is_whole = (column == column.floor()) & (column.abs() < 2**53)
        whole = column.cast(pl.Int64, strict=False).cast(pl.String)
        return pl.when(is_whole).then(whole).otherwise(column.cast(pl.String))
    return column.cast(pl.String)
