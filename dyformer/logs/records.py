"""Tables with typed columns (Parquet, data frames) -> blocks of rows in the form of `events.raw_rows`."""

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import polars as pl

from dyformer import InvalidInput
from dyformer.logs.plan import ReadPlan, position
from dyformer.logs.raw_file import AmbiguousLog, DamagedLog, LogNotFound, OneColumn, RawFile, seekable
from dyformer.logs.validation import (
    INEXACT_ID,
    INFINITE_TIME,
    INFINITE_WEIGHT,
    LAST_CLOCK_TIME,
    MICROSECONDS,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

BATCH_ROWS = 1 << 20
ENDS = ("source", "target")
TUPLE_COLUMNS = (*ENDS, "time", "weight")
MAX_BITS = 63  # of an integer beside its sign
MAX_WHOLE = 2**53  # a float up to it that is whole is written as an integer
OUT_OF_RANGE = 1 << 62
DAY_MICROSECONDS = 86_400_000_000
WITHOUT_TYPE = (pl.Object, pl.Int128)  # in Parquet; an object of Python may be a UUID


def as_frame(table: object) -> "pl.DataFrame | pd.DataFrame":
    """Give rows in memory as a data frame: any frame, an Arrow stream, or a list of tuples.

    Arrow streams are tables of pyarrow, relations of DuckDB and all objects with `__arrow_c_stream__`. Tuples are
    (source, target, time) or (source, target, time, weight). Raises LogNotFound for anything else, and OneColumn for
    tuples of other lengths.
    """
    if isinstance(table, pl.DataFrame) or (hasattr(table, "iloc") and hasattr(table, "columns")):  # that is pandas
        return table  # pyright: ignore[reportReturnType]
    if isinstance(table, pl.LazyFrame):
        try:
            return table.collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise DamagedLog(f"the lazy frame cannot be collected: {str(error).partition(chr(10))[0]}") from error
    if isinstance(table, Sequence) and not isinstance(table, str | bytes):
        return _of_tuples(table)
    if hasattr(table, "__arrow_c_stream__"):
        with suppress(pl.exceptions.SchemaError):  # a stream of single values has no rows
            return pl.DataFrame(table)  # pyright: ignore[reportArgumentType]
    raise LogNotFound(
        "expected a path, paths, a list of tuples (source, target, time), a polars or pandas DataFrame, or an Arrow"
        f" stream; found {type(table).__name__}"
    )


def _of_tuples(rows: Sequence[object]) -> pl.DataFrame:
    for at, row in enumerate(rows, start=1):
        if not isinstance(row, tuple | list) or len(row) not in (3, 4) or len(row) != len(rows[0]):  # pyright: ignore[reportArgumentType]
            found = f"a {type(row).__name__}" if hasattr(row, "columns") else repr(row)  # a frame has many lines
            raise OneColumn(
                f"row {at} is {found}: expected tuples (source, target, time), or all with a weight as the fourth value"
            )
    columns = dict(zip(TUPLE_COLUMNS, zip(*rows, strict=True), strict=False))  # pyright: ignore[reportArgumentType]
    return pl.DataFrame({name: _of_one_type(values) for name, values in columns.items()})


def _of_one_type(values: Sequence[object]) -> pl.Series:
    """Make a column; values of several types, such as integers and texts as ids, and longer integers become texts."""
    are_longer = any(isinstance(value, int) and value.bit_length() > MAX_BITS for value in values)
    if are_longer or len({type(value) for value in values if value is not None}) > 1:
        return _as_texts(values)
    return text_series(values) if isinstance(values[0], str) else pl.Series(list(values))


def _as_texts(values: Iterable[object]) -> pl.Series:
    return text_series([None if value is None else str(value) for value in values])


def text_series(texts: Sequence[Any]) -> pl.Series:
    """Give texts as a series. Raises InvalidInput for one that is not UTF-8, such as half a surrogate pair."""
    try:
        return pl.Series(list(texts), dtype=pl.String)
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{error.object!r} is not UTF-8 text: write it in other characters") from error


def frame_file(frame: "pl.DataFrame | pd.DataFrame") -> RawFile:
    """Write a data frame to a Parquet file in memory, so that it is read like any other file of a log."""
    if not isinstance(frame, pl.DataFrame):
        import pyarrow as pa

        frame = frame.rename(columns=str)
        # a column of objects may mix integers and texts, which Arrow refuses
        texts = {column: "string" for column, dtype in frame.dtypes.items() if dtype.kind == "O"}
        zoned = {column: frame[column].dt.tz_convert(None) for column in frame.select_dtypes("datetimetz")}
        frame = frame.assign(**zoned).astype(texts)
        try:
            frame = pl.DataFrame(pa.Table.from_pandas(frame, preserve_index=False))
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise DamagedLog(f"the data frame cannot be read: {error}; leave out or rewrite such columns") from error
    frame = frame.with_columns(_as_texts(column).alias(column.name) for column in frame if column.dtype in WITHOUT_TYPE)
    content = io.BytesIO()
    frame.write_parquet(content, compression="lz4")
    return RawFile(name="the data frame", open=lambda: io.BytesIO(content.getbuffer()))


def parquet_rows(file: RawFile, plan: ReadPlan) -> Iterator[pl.DataFrame]:
    """Read the planned columns batch by batch, every value but dates and times of day as its text.

    Raises DamagedLog and ColumnNotFound.
    """
    first_row = 1
    with _parquet(file) as table:
        names = tuple(table.schema_arrow.names)
        columns = plan.columns.by_role().items()
        roles = {role: names[position(role, column, names, len(names), file.name)] for role, column in columns}
        for role, name in roles.items():
            _check_column(table, role, name, file.name)
        unread = sorted(set(names) - set(roles.values())) if plan.has_unread else []
        for batch in table.iter_batches(BATCH_ROWS, columns=sorted({*roles.values(), *unread})):
            others = [_whole(batch.column(at)) for at, name in enumerate(batch.schema.names) if name in unread]
            arrays = {role: _whole(batch.column(name)) for role, name in roles.items()}
            texts = {role: _texts(array) for role, array in arrays.items() if not _is_clock(role, array)}
            is_bad = pl.Series([False]).new_from_index(0, batch.num_rows)
            for _, is_undecodable in texts.values():
                is_bad = is_bad if is_undecodable is None else is_bad | is_undecodable
            is_inexact = pl.any_horizontal(pl.lit(False), *(_inexact(arrays[end]) for end in ENDS))
            yield pl.DataFrame(
                {role: texts[role][0] if role in texts else _clock_times(array) for role, array in arrays.items()}
            ).select(
                pl.col(pl.String).str.strip_chars(),
                pl.col(pl.Datetime),
                line=pl.int_range(first_row, first_row + batch.num_rows),
                raw=pl.lit(None, pl.String),
                **({"rest": _hashed(others)} if unread else {}),
                reason=pl.when(is_bad)
                .then(pl.lit("not UTF-8 text"))
                .when(is_inexact)
                .then(pl.lit(INEXACT_ID))
                .when(_is_infinite(arrays["time"]))
                .then(pl.lit(INFINITE_TIME))
                .when(_is_infinite(arrays.get("weight")))
                .then(pl.lit(INFINITE_WEIGHT)),
            )
            first_row += batch.num_rows


def _hashed(arrays: "Sequence[pa.Array]") -> pl.Series:
    """Hash the values of columns, row by row."""
    texts = [
        _texts(array)[0] if _is_single(array.type) else pl.Series(map(str, array.to_pylist()), dtype=pl.String)
        for array in arrays
    ]
    return pl.select(pl.struct(pl.lit(text).alias(str(at)) for at, text in enumerate(texts)).hash(0)).to_series()


def parquet_start(file: RawFile, num_rows: int) -> tuple[tuple[str, ...], list[list[str]], tuple[int, ...]]:
    """Read the names, the first texts of each column (nothing where they are not single values), and the clock columns.

    A clock column holds dates or times. Raises DamagedLog.
    """
    import pyarrow as pa

    with _parquet(file) as table:
        fields = list(table.schema_arrow)
        names = tuple(field.name for field in fields)
        single = [name for name, field in zip(names, fields, strict=True) if _is_single(field.type)]
        batch = next(table.iter_batches(num_rows, columns=single if len(set(names)) == len(names) else None), None)
        if batch is None:
            return names, [[] for _ in names], ()
        columns = dict(zip(single, batch.columns, strict=True)) if batch.num_columns != len(names) else {}
        arrays = [columns.get(name) if columns else batch.columns[at] for at, name in enumerate(names)]
        texts = [
            [""] * batch.num_rows
            if array is None or not _is_single(array.type)
            else _texts(_whole(array))[0].fill_null("").to_list()
            for array in arrays
        ]
    return names, texts, tuple(at for at, field in enumerate(fields) if pa.types.is_temporal(field.type))


@contextmanager
def _parquet(file: RawFile) -> "Iterator[pq.ParquetFile]":
    """Open a Parquet file; raises DamagedLog with its name for every fault of its bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with closing(seekable(file.open())) as stream:
        try:
            yield pq.ParquetFile(stream, page_checksum_verification=True)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last one from names
            reason = str(error).partition("\n")[0]
            raise DamagedLog(f"{file.name} starts like Parquet but cannot be read ({reason}); copy it again") from error


def _check_column(table: "pq.ParquetFile", role: str, name: str, file: str) -> None:
    """Raise for a column that stands twice, because it is read by its name, or that does not hold single values."""
    fields = [field for field in table.schema_arrow if field.name == name]
    if len(fields) > 1:
        raise AmbiguousLog(f"{file} has {len(fields)} columns {name!r}: rename one, or choose another with `{role}`")
    if not _is_single(fields[0].type):
        raise DamagedLog(
            f"{file}: the column {name!r} holds {fields[0].type}, not single values: write it as text, numbers or"
            f" times, or choose another with `{role}`"
        )


def _is_single(dtype: "pa.DataType") -> bool:
    """Whether a type holds one number, text, truth value, date or time in a value."""
    from pyarrow import types

    if types.is_dictionary(dtype):
        return _is_single(dtype.value_type)
    numbers = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null)
    texts = (
        types.is_string,
        types.is_large_string,
        types.is_string_view,
        types.is_binary,
        types.is_large_binary,
        types.is_binary_view,
        _is_uuid,
    )
    clocks = (types.is_date, types.is_timestamp)
    return any(is_one(dtype) for is_one in (*numbers, *texts, *clocks))


def _is_uuid(dtype: "pa.DataType") -> bool:
    return getattr(dtype, "extension_name", None) == "arrow.uuid"


def _is_clock(role: str, array: "pa.Array") -> bool:
    from pyarrow import types

    return role == "time" and (types.is_date(array.type) or types.is_timestamp(array.type))


def _whole(array: "pa.Array | pa.ChunkedArray") -> "pa.Array":
    import pyarrow as pa

    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _texts(array: "pa.Array") -> tuple[pl.Series, pl.Series | None]:
    """Write the values of a column as texts; the second result marks those that are not UTF-8, None if all are."""
    import pyarrow as pa
    from pyarrow import types

    dtype = array.type
    if isinstance(array, pa.DictionaryArray):
        (texts, is_bad), index = _texts(array.dictionary), pl.Series(values=pl.from_arrow(array.indices))
        return texts.gather(index), None if is_bad is None else is_bad.gather(index).fill_null(False)
    if types.is_date(dtype) or types.is_timestamp(dtype):
        return _clock_times(array).cast(pl.Int64).cast(pl.String), None
    if _is_uuid(dtype):
        return pl.Series([None if value is None else str(value) for value in array.to_pylist()], dtype=pl.String), None
    if types.is_decimal(dtype):
        return pl.Series(values=pl.from_arrow(array.cast(pa.large_string()))).str.replace(r"\.0+$", ""), None
    array = _plain(array)
    column = pl.Series(values=pl.from_arrow(array))
    if column.dtype == pl.Binary:
        texts = pl.Series([_decoded(value) for value in column], dtype=pl.String)
        is_bad = column.is_not_null() & texts.is_null()
        return texts, is_bad if is_bad.any() else None
    return pl.select(_text(column)).to_series(), None


def _plain(array: "pa.Array") -> "pa.Array":
    """Cast an array to a type that polars reads safely."""
    import pyarrow as pa
    from pyarrow import types

    dtype = array.type
    if types.is_float16(dtype):
        return array.cast(pa.float32())
    if types.is_binary_view(dtype):
        return array.cast(pa.large_binary())
    if not (types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype)):
        return array
    array = array.cast(pa.large_string())
    try:
        array.validate(full=True)  # Arrow reads any bytes as text, and polars expects it to be valid
    except pa.ArrowInvalid:
        return array.cast(pa.large_binary())
    return array


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _text(column: pl.Series) -> pl.Expr:
    if not column.dtype.is_float():
        return pl.lit(column).cast(pl.String)
    # a column of integers with gaps arrives as floats: 7.0 is the id 7
    value = pl.lit(column)
    is_whole = (value == value.floor()) & (value.abs() <= MAX_WHOLE)
    whole = value.cast(pl.Int64, strict=False).cast(pl.String)
    written = pl.when(is_whole).then(whole).otherwise(value.cast(pl.String))
    return pl.when(value.is_finite()).then(written)  # NaN is a missing id


def _inexact(array: "pa.Array") -> pl.Expr:
    """Mark the floats that stand for several integers: such an id may be that of another node."""
    import pyarrow as pa
    from pyarrow import types

    if not types.is_floating(array.type):
        return pl.lit(False)
    digits = 11 if types.is_float16(array.type) else 24 if types.is_float32(array.type) else 53
    value = pl.lit(pl.Series(values=pl.from_arrow(array.cast(pa.float64()))))
    return value.is_finite().fill_null(False) & (value.abs() > 1 << digits)


def _is_infinite(array: "pa.Array | None") -> pl.Expr:
    """Mark the infinite floats, whose texts are left out as those of missing values are."""
    import pyarrow as pa
    from pyarrow import types

    if array is None or not types.is_floating(array.type):
        return pl.lit(False)
    return pl.lit(pl.Series(values=pl.from_arrow(array.cast(pa.float64())))).is_infinite().fill_null(False)


def _clock_times(array: "pa.Array") -> pl.Series:
    """Convert dates and times to microseconds since the epoch."""
    import pyarrow as pa
    from pyarrow import types

    dtype = array.type
    plain = array.cast(pa.int32() if types.is_date32(dtype) else pa.int64())
    count = pl.Series(values=pl.from_arrow(plain)).cast(pl.Int64)
    unit = "day" if types.is_date32(dtype) else "ms" if types.is_date64(dtype) else dtype.unit
    if unit == "ns":
        return (count // 1000).cast(pl.Datetime("us"))
    factor = DAY_MICROSECONDS if unit == "day" else MICROSECONDS[unit]
    is_small = count.abs() <= LAST_CLOCK_TIME // factor
    scaled = pl.when(is_small).then(count * factor).when(count.is_not_null()).then(OUT_OF_RANGE)
    return pl.select(scaled.cast(pl.Int64).cast(pl.Datetime("us"))).to_series()
