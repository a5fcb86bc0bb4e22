"""One raw file and its ReadPlan -> blocks of rows: the texts of the planned columns, line by line.

A block has the columns `source, target, time` and, where planned, `weight, label` (stripped texts, null where
missing), `line` (from 1; the row's number in Parquet), `raw` (the text as it stands; null in Parquet) and `reason`
(null unless the row cannot be taken apart). Blank lines, comment lines and headers are no rows.

Where all ids of a block are plain integers its ids, and times that are so, come as Int64; instead of `raw` it then has
every field of the text in `field_0, field_1, ...`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import polars as pl

from dyformer.logs.datasets import Columns
from dyformer.logs.integers import integer_rows
from dyformer.logs.lines import Lines, text_blocks
from dyformer.logs.log_file import DamagedLog, RawFile
from dyformer.logs.parquet import parquet_rows
from dyformer.logs.plan import ReadPlan, position
from dyformer.logs.quoted import OddRecord, odd_records, parsed, quoted_fields, regular
from dyformer.logs.sample import PARQUET_MAGIC, decoded, first_bytes
from dyformer.logs.times import read_times
from dyformer.logs.unquoted import plain_fields

BLOCK_BYTES = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where one file has the planned columns."""

    at: dict[str, int]  # role -> position
    num_fields: range  # that a row may have
    header: str | None = None


def raw_rows(file: RawFile, plan: ReadPlan, *, block_bytes: int = BLOCK_BYTES) -> Iterator[pl.DataFrame]:
    """Read one file block by block; raises DamagedLog and ColumnNotFound."""
    start = first_bytes(file, 64)
    if start.startswith(PARQUET_MAGIC) != (plan.format == "parquet"):
        raise DamagedLog(f"{file.name} is not {plan.format} like the files before it; ingest it on its own")
    decoded(start, file.name)
    if plan.format == "parquet":
        yield from parquet_rows(file, plan)
    elif plan.format == "jsonl":
        for lines in text_blocks(file, block_bytes):
            yield _json_rows(lines.frame.filter(~_is_blank()), plan)
    else:
        yield from _delimited_rows(file, plan, block_bytes)


def _delimited_rows(file: RawFile, plan: ReadPlan, block_bytes: int) -> Iterator[pl.DataFrame]:
    places: Places | None = None
    kept_back: pl.DataFrame | None = None
    for lines in text_blocks(file, block_bytes):
        numbers = None if places is None or kept_back is not None else _integer_rows(lines, plan, places)
        if numbers is not None:
            yield numbers
            continue
        frame = lines.frame if kept_back is None else pl.concat([kept_back, lines.frame])
        if places is None:
            first = frame.filter(~_is_no_row(plan)).head(1)
            if first.is_empty():
                continue
            places = _places(file, plan, first["raw"][0], first["line"][0])
            frame = frame if places.header is None else frame.filter(pl.col("line") > first["line"][0])
        odd = []
        if b'"' in lines.block or kept_back is not None:
            odd, waiting = _odd_records(frame, plan, places, is_last=lines.is_last)
            kept_back = None if waiting.is_empty() else waiting
            frame = frame.head(frame.height - waiting.height)
        yield _rows(frame, odd, plan, places)


def _integer_rows(lines: Lines, plan: ReadPlan, places: Places) -> pl.DataFrame | None:
    """Read a block as numbers, where it is nothing but rows of plain fields."""
    block = lines.block.replace(b"\r\n", b"\n") if b"\r" in lines.block else lines.block
    marks = ('"', "\0", "\r", *plan.comment_marks, *([places.header] if places.header else []))
    rows = integer_rows(block, str(plan.separator), places.at, tuple(mark.encode() for mark in marks))
    if rows is None or rows.width - len(places.at) not in places.num_fields:
        return None
    nothing = pl.lit(None, pl.String)
    line = pl.int_range(lines.first_line, lines.first_line + rows.height)
    return rows.with_columns(line=line, raw=nothing, reason=nothing)


def _odd_records(
    frame: pl.DataFrame, plan: ReadPlan, places: Places, *, is_last: bool
) -> tuple[list[OddRecord], pl.DataFrame]:
    """Find the records of irregular quoting, and the lines that must wait for the next block to be understood."""
    starts = frame.select(
        pl.col("raw").str.contains('"', literal=True)
        & pl.col("reason").is_null()
        & ~_is_no_row(plan)
        & ~regular(pl.col("raw"), str(plan.separator))
    ).to_series()
    records = odd_records(frame["raw"], starts.arg_true().to_list(), str(plan.separator), places.num_fields)
    waiting = next((record.first for record in records if record.is_open and not is_last), frame.height)
    return [record for record in records if record.first < waiting], frame.slice(waiting)


def _rows(frame: pl.DataFrame, odd: list[OddRecord], plan: ReadPlan, places: Places) -> pl.DataFrame:
    parts = []
    if odd:
        swallowed = [at for record in odd for at in range(record.first, record.first + record.num_lines)]
        parts.append(_odd_rows(frame, odd, places))
        frame = frame.filter(~pl.int_range(pl.len()).is_in(swallowed))
    frame = _without(frame, _is_no_row(plan))
    is_quoted = frame.select(pl.col("raw").str.contains('"', literal=True) & pl.col("reason").is_null()).to_series()
    if is_quoted.any():
        quoted = frame.filter(is_quoted)
        parts.append(quoted.hstack(quoted_fields(quoted["raw"], str(plan.separator), places.at)))
        frame = frame.filter(~is_quoted)
    parts.append(frame.hstack(plain_fields(frame["raw"], str(plan.separator), places.at)))
    rows = parts[0] if len(parts) == 1 else pl.concat(parts, how="diagonal").sort("line")
    return _counted(rows, places)


def _without(frame: pl.DataFrame, unwanted: pl.Expr) -> pl.DataFrame:
    """Filter, without copying the frame where nothing is unwanted."""
    mask = frame.select(unwanted).to_series()
    return frame.filter(~mask) if mask.any() else frame


def _odd_rows(frame: pl.DataFrame, odd: list[OddRecord], places: Places) -> pl.DataFrame:
    lines = frame["line"].gather([record.first for record in odd])
    values = {
        role: [record.fields[at] if at < len(record.fields) else None for record in odd]
        for role, at in places.at.items()
    }
    return pl.DataFrame(
        {
            "line": lines,
            "raw": [record.raw for record in odd],
            "reason": pl.Series([record.reason for record in odd], dtype=pl.String),
            **{role: pl.Series(texts, dtype=pl.String) for role, texts in values.items()},
            "num_fields": pl.Series([len(record.fields) for record in odd], dtype=pl.UInt32),
        }
    )


def _counted(rows: pl.DataFrame, places: Places) -> pl.DataFrame:
    """Mark the rows with too few or too many fields, and headers met again."""
    count = pl.col("num_fields")
    reason = (
        pl.when(pl.col("reason").is_not_null())
        .then("reason")
        .when(pl.lit(False) if places.header is None else pl.col("raw").str.strip_chars() == places.header)
        .then(pl.lit("header repeated"))
        .when(count < places.num_fields.start)
        .then(pl.lit("too few fields"))
        .when(count >= places.num_fields.stop)
        .then(pl.lit("too many fields"))
        .otherwise(None)
    )
    return rows.with_columns(reason=reason).drop("num_fields")


def _json_rows(frame: pl.DataFrame, plan: ReadPlan) -> pl.DataFrame:
    columns = {field.name: getattr(plan.columns, field.name) for field in fields(Columns)}
    texts = {
        role: frame["raw"].str.json_path_match(f"$['{column}']").str.strip_chars()
        for role, column in columns.items()
        if column is not None
    }
    rows = frame.with_columns(**texts)
    object_start = pl.col("raw").str.strip_chars().str.starts_with("{")
    broken = pl.col("source").is_null() & pl.col("raw").str.json_path_match("$").is_null()
    reason = (
        pl.when(pl.col("reason").is_not_null())
        .then("reason")
        .when(~object_start)
        .then(pl.lit("not a JSON object"))
        .when(broken)
        .then(pl.lit("broken JSON"))
        .otherwise(None)
    )
    return rows.with_columns(reason=reason)


def _is_blank() -> pl.Expr:
    return pl.col("raw").str.strip_chars().str.len_bytes() == 0


def _is_no_row(plan: ReadPlan) -> pl.Expr:
    comments = [pl.col("raw").str.starts_with(mark) for mark in plan.comment_marks]
    return pl.any_horizontal(_is_blank(), *comments)


def _places(file: RawFile, plan: ReadPlan, first_row: str, line: int) -> Places:
    """Find the planned columns in this file: its header may order them anew, or be missing after the first file."""
    most = plan.max_fields if plan.max_fields is not None else 1 << 30
    roles = {field.name: getattr(plan.columns, field.name) for field in fields(Columns)}
    wanted = {role: column for role, column in roles.items() if column is not None}
    if not plan.has_header:
        at = {role: int(column) for role, column in wanted.items()}
        return Places(at=at, num_fields=range(plan.min_fields, most + 1))
    names = tuple(parsed(first_row, str(plan.separator))[0])
    known = {role: position(column, plan.names, len(plan.names), file.name) for role, column in wanted.items()}
    is_header = all(column in names for column in wanted.values() if isinstance(column, str))
    if not is_header and known["time"] < len(names):
        texts = pl.Series([names[known["time"]]])
        if read_times(texts, plan.time_unit)["time"][0] is not None:
            return Places(at=known, num_fields=range(plan.min_fields, most + 1))
    place = f"{file.name}, line {line}"
    at = {role: position(column, names, len(names), place) for role, column in wanted.items()}
    more = len(names) - len(plan.names)
    return Places(at=at, num_fields=range(plan.min_fields + more, most + more + 1), header=first_row.strip())
