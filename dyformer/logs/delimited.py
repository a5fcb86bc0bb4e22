"""A file of delimited text and its ReadPlan -> blocks of rows: the texts of the planned columns, line by line.

A line is regular if each of its fields is quoted as a whole or not at all. Regular lines are split all together: those
without quotes at every separator, those with quotes by one pattern. Any other line with a quote starts an odd record.
Odd records are read one by one, because such a record may continue on the next lines or have broken quotes.
"""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from dyformer.logs.lines import Lines, integer_rows, text_blocks
from dyformer.logs.plan import ReadPlan, position
from dyformer.logs.raw_file import RawFile
from dyformer.logs.validation import read_times

MAX_RECORD_LINES = 100

QUOTED = r'"(?:[^"]|"")*"'


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Positions of the planned columns in one file; `num_fields` are the numbers of fields that a row may have."""

    at: dict[str, int]  # role -> position
    num_fields: range
    header: str | None = None


@dataclass(frozen=True, kw_only=True)
class OddRecord:
    """A record whose first line has a quote and is not regular."""

    first: int  # index of its first line in the block
    num_lines: int
    raw: str
    fields: list[str]
    reason: str | None = None  # None if the record can be split
    is_open: bool = False  # the record may continue in the next block, because its quote is not closed in this one


def delimited_rows(file: RawFile, plan: ReadPlan, block_bytes: int) -> Iterator[pl.DataFrame]:
    """Read one file of delimited text, block by block, in the form of `events.raw_rows`."""
    positions: Positions | None = None
    waiting: pl.DataFrame | None = None
    for lines in text_blocks(file, block_bytes):
        numbers = None if positions is None or waiting is not None else _integer_rows(lines, plan, positions)
        if numbers is not None:
            yield numbers
            continue
        frame = lines.frame if waiting is None else pl.concat([waiting, lines.frame])
        if positions is None:
            first = frame.filter(~_is_no_row(plan)).head(1)
            if first.is_empty():
                continue
            positions = _positions(file, plan, first["raw"][0], first["line"][0])
            frame = frame if positions.header is None else frame.filter(pl.col("line") > first["line"][0])
        odd = []
        if b'"' in lines.block or waiting is not None:
            odd, waiting = _odd_records(frame, plan, positions, is_last=lines.is_last)
            frame = frame.head(frame.height - waiting.height)
            waiting = None if waiting.is_empty() else waiting
        yield _rows(frame, odd, plan, positions)


def odd_records(texts: pl.Series, starts: list[int], separator: str, num_fields: range) -> list[OddRecord]:
    """Read the odd records that start at the given lines, in order.

    Lines after an open quote become part of its record if the record then has an allowed number of fields. A given line
    that is part of an earlier record starts no record.
    """
    records: list[OddRecord] = []
    for start in starts:
        if records and start < records[-1].first + records[-1].num_lines:
            continue
        records.append(_odd_record(texts, start, separator, num_fields))
    return records


def parsed(text: str, separator: str) -> tuple[list[str], str | None]:
    """Split one record into its stripped fields; the second result says how its quoting is broken, None if sound."""
    line = text.replace("\t", " ").strip() if separator == " " else text
    lines = io.StringIO(line, newline="\n")
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
    try:
        values = next(reader)
    except csv.Error as error:
        return [], "unclosed quote" if "unexpected end" in str(error) else "broken quoting"
    return [value.strip() for value in values], None


def _positions(file: RawFile, plan: ReadPlan, first_row: str, line: int) -> Positions:
    """Find the planned columns in this file, whose header may have another order than the first file's.

    Files after the first may also lack the header.
    """
    most = plan.max_fields if plan.max_fields is not None else 1 << 30
    wanted = plan.columns.by_role()
    if not plan.has_header:
        at = {role: int(column) for role, column in wanted.items()}
        return Positions(at=at, num_fields=range(plan.min_fields, most + 1))
    names = tuple(parsed(first_row, str(plan.separator))[0])
    known = {role: position(role, column, plan.names, len(plan.names), file.name) for role, column in wanted.items()}
    is_header = all(column in names for column in wanted.values() if isinstance(column, str))
    if not is_header and known["time"] < len(names):
        texts = pl.Series([names[known["time"]]])
        if read_times(texts, plan.time_unit)["time"][0] is not None:
            return Positions(at=known, num_fields=range(plan.min_fields, most + 1))
    where = f"{file.name}, line {line}"
    at = {role: position(role, column, names, len(names), where) for role, column in wanted.items()}
    more = len(names) - len(plan.names)
    return Positions(at=at, num_fields=range(plan.min_fields + more, most + more + 1), header=first_row.strip())


def _integer_rows(lines: Lines, plan: ReadPlan, positions: Positions) -> pl.DataFrame | None:
    """Read a block whose ids are all integers; None if it has other ids, quotes, comments or uneven rows."""
    block = lines.block.replace(b"\r\n", b"\n") if b"\r" in lines.block else lines.block
    marks = ('"', "\0", "\r", *plan.comment_marks, *([positions.header] if positions.header else []))
    rows = integer_rows(block, str(plan.separator), positions.at, tuple(mark.encode() for mark in marks))
    if rows is None or rows.width - len(positions.at) not in positions.num_fields:
        return None
    nothing = pl.lit(None, pl.String)
    line = pl.int_range(lines.first_line, lines.first_line + rows.height)
    return rows.with_columns(line=line, raw=nothing, reason=nothing)


def _odd_records(
    frame: pl.DataFrame, plan: ReadPlan, positions: Positions, *, is_last: bool
) -> tuple[list[OddRecord], pl.DataFrame]:
    """Find the odd records, and the lines that must wait for the next block, because the last record may continue."""
    starts = frame.select(
        pl.col("raw").str.contains('"', literal=True)
        & pl.col("reason").is_null()
        & ~_is_no_row(plan)
        & ~_is_regular(pl.col("raw"), str(plan.separator))
    ).to_series()
    records = odd_records(frame["raw"], starts.arg_true().to_list(), str(plan.separator), positions.num_fields)
    waiting = next((record.first for record in records if record.is_open and not is_last), frame.height)
    return [record for record in records if record.first < waiting], frame.slice(waiting)


def _odd_record(texts: pl.Series, start: int, separator: str, num_fields: range) -> OddRecord:
    text = texts[start]
    values, fault = parsed(text, separator)
    if fault != "unclosed quote":
        return OddRecord(first=start, num_lines=1, raw=text, fields=values, reason=fault)
    for end in range(start + 1, min(start + MAX_RECORD_LINES, len(texts))):
        text += "\n" + texts[end]
        if '"' not in texts[end]:
            continue
        values, joined_fault = parsed(text, separator)
        if joined_fault is None and len(values) in num_fields:
            return OddRecord(first=start, num_lines=end - start + 1, raw=text, fields=values)
        if joined_fault != "unclosed quote":
            return OddRecord(first=start, num_lines=1, raw=texts[start], fields=[], reason=fault)
    is_open = start + MAX_RECORD_LINES > len(texts)
    return OddRecord(first=start, num_lines=1, raw=texts[start], fields=[], reason=fault, is_open=is_open)


def _rows(frame: pl.DataFrame, odd: list[OddRecord], plan: ReadPlan, positions: Positions) -> pl.DataFrame:
    parts = []
    if odd:
        taken = [at for record in odd for at in range(record.first, record.first + record.num_lines)]
        parts.append(_odd_rows(frame, odd, positions))
        frame = frame.filter(~pl.int_range(pl.len()).is_in(taken))
    is_no_row = frame.select(_is_no_row(plan)).to_series()
    frame = frame.filter(~is_no_row) if is_no_row.any() else frame  # a filter copies all texts
    is_quoted = frame.select(pl.col("raw").str.contains('"', literal=True) & pl.col("reason").is_null()).to_series()
    if is_quoted.any():
        quoted = frame.filter(is_quoted)
        parts.append(quoted.hstack(_quoted_fields(quoted["raw"], str(plan.separator), positions.at)))
        frame = frame.filter(~is_quoted)
    parts.append(frame.hstack(_plain_fields(frame["raw"], str(plan.separator), positions.at)))
    rows = parts[0] if len(parts) == 1 else pl.concat(parts, how="diagonal").sort("line")
    return _counted(rows, positions)


def _odd_rows(frame: pl.DataFrame, odd: list[OddRecord], positions: Positions) -> pl.DataFrame:
    values = {
        role: [record.fields[at] if at < len(record.fields) else None for record in odd]
        for role, at in positions.at.items()
    }
    return pl.DataFrame(
        {
            "line": frame["line"].gather([record.first for record in odd]),
            "raw": [record.raw for record in odd],
            "reason": pl.Series([record.reason for record in odd], dtype=pl.String),
            **{role: pl.Series(texts, dtype=pl.String) for role, texts in values.items()},
            "num_fields": pl.Series([len(record.fields) for record in odd], dtype=pl.UInt32),
        }
    )


def _counted(rows: pl.DataFrame, positions: Positions) -> pl.DataFrame:
    """Mark the rows with too few or too many fields, and repeated headers."""
    count = pl.col("num_fields")
    reason = (
        pl.when(pl.col("reason").is_not_null())
        .then("reason")
        .when(pl.lit(False) if positions.header is None else pl.col("raw").str.strip_chars() == positions.header)
        .then(pl.lit("header repeated"))
        .when(count < positions.num_fields.start)
        .then(pl.lit("too few fields"))
        .when(count >= positions.num_fields.stop)
        .then(pl.lit("too many fields"))
        .otherwise(None)
    )
    return rows.with_columns(reason=reason).drop("num_fields")


def _is_no_row(plan: ReadPlan) -> pl.Expr:
    is_blank = pl.col("raw").str.strip_chars().str.len_bytes() == 0
    return pl.any_horizontal(is_blank, *(pl.col("raw").str.starts_with(mark) for mark in plan.comment_marks))


def _plain_fields(raw: pl.Series, separator: str, at: dict[str, int]) -> pl.DataFrame:
    """Split lines without quotes: the stripped fields at the wanted positions (null if missing), and `num_fields`."""
    if separator == " ":
        raw = raw.str.strip_chars()
        if raw.str.contains(r"\t|  ").any():
            raw = raw.str.replace_all(r"[ \t]+", " ")
    num_fields = raw.str.count_matches(separator, literal=True) + 1
    is_even = raw.len() > 0 and num_fields.min() == num_fields.max()
    texts = _even_texts if is_even and int(num_fields[0]) > max(at.values()) else _ragged_texts
    fields = texts(raw, separator, at).with_columns(pl.all().str.strip_chars())
    return fields.with_columns(num_fields=num_fields)


def _even_texts(raw: pl.Series, separator: str, at: dict[str, int]) -> pl.DataFrame:
    """Split lines with the same number of fields; polars' CSV reader does it several times as fast as `str.split`."""
    bytes_again = io.BytesIO()
    raw.to_frame().write_csv(bytes_again, include_header=False, quote_style="never")
    table = pl.read_csv(
        bytes_again.getvalue(), has_header=False, separator=separator, quote_char=None, infer_schema=False
    )
    return table.select(**{role: pl.nth(index) for role, index in at.items()})


def _ragged_texts(raw: pl.Series, separator: str, at: dict[str, int]) -> pl.DataFrame:
    split = raw.str.split(separator)
    return pl.DataFrame({role: split.list.get(index, null_on_oob=True) for role, index in at.items()})


def _is_regular(text: pl.Expr, separator: str) -> pl.Expr:
    """Whether each line is regular."""
    field = _field(separator)
    return text.str.strip_chars(" ").str.contains(f"^(?:{field})(?:{_pattern(separator)}(?:{field}))*$")


def _quoted_fields(raw: pl.Series, separator: str, at: dict[str, int]) -> pl.DataFrame:
    """Split regular lines with quotes: the fields at the wanted positions, and `num_fields`."""
    text = raw.str.strip_chars(" \t" if separator == " " else " ")
    pattern = _pattern(separator)
    groups = text.str.extract_groups("^" + pattern.join([f"({_field(separator)})"] * (max(at.values()) + 1)))
    outside = text.str.replace_all(QUOTED, "q")
    fields = [_unquoted(groups.struct.field(str(index + 1))).alias(role) for role, index in at.items()]
    return pl.DataFrame([*fields, (outside.str.count_matches(pattern) + 1).alias("num_fields")])


def _pattern(separator: str) -> str:
    return {" ": r"[ \t]+", "\t": r"\t"}.get(separator) or re.escape(separator)


def _field(separator: str) -> str:
    bare = r'[^" \t]+' if separator == " " else f'[^"{_pattern(separator)}]*'
    return f"{QUOTED}|{bare}" if separator == " " else f" *{QUOTED} *|{bare}"


def _unquoted(field: pl.Series) -> pl.Series:
    text = field.str.strip_chars()
    frame = pl.DataFrame({"text": text})
    inner = pl.col("text").str.slice(1, pl.col("text").str.len_chars() - 2).str.replace_all('""', '"', literal=True)
    quoted = pl.col("text").str.starts_with('"')
    return frame.select(pl.when(quoted).then(inner.str.strip_chars()).otherwise("text")).to_series()
