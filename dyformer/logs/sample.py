"""The start of a raw log -> a table of texts, from which the plan is guessed."""

import codecs
import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import polars as pl

from dyformer.logs.delimited import odd_records, parsed
from dyformer.logs.plan import SEPARATOR_NAMES, Declared, LogFormat
from dyformer.logs.raw_file import (
    AmbiguousLog,
    DamagedLog,
    EmptyLog,
    OneColumn,
    RawFile,
    WrongSeparator,
    first_bytes,
    seekable,
)
from dyformer.logs.validation import DAY_PATTERN, ISO_PATTERN

SAMPLE_BYTES = 1 << 18
SAMPLE_ROWS = 2_000
FIELD_LIMIT = 100_000  # characters; below the csv module's own limit

MIN_EPOCH = 1e8  # seconds: 1973

PARQUET_MAGIC = b"PAR1"

Row = list[str]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The first rows of the first file that has any."""

    file: str
    format: LogFormat
    lines: tuple[str, ...] = ()  # from line 1
    comment_marks: str = ""
    names: tuple[str, ...] = ()  # JSON keys or Parquet columns
    rows: tuple[Row, ...] = ()  # only from JSON lines or Parquet
    clock_columns: tuple[int, ...] = ()  # Parquet columns of a date or time type


@dataclass(frozen=True, kw_only=True)
class Table:
    """The sample's rows under one separator."""

    where: str  # file and first line
    format: LogFormat
    names: tuple[str, ...]
    rows: Sequence[Row]  # all of the most frequent length
    num_fields: int
    separator: str | None = None
    has_header: bool = False
    konect: str = ""  # KONECT's first comment words, "asym positive" or "bip positive"
    clock_columns: tuple[int, ...] = ()

    def column(self, at: int) -> Row:
        """Give the sample's texts of one column."""
        return [row[at] for row in self.rows]


def sample_table(files: list[RawFile], declared: Declared) -> Table:
    """Read the start of a log as a table; raises EmptyLog, DamagedLog, OneColumn, WrongSeparator and AmbiguousLog."""
    _check_separator(declared.separator)
    sample = _sample(files, declared.comment_marks)
    if declared.format not in (None, sample.format):
        raise DamagedLog(f"{sample.file} is declared as {declared.format}, but its start reads as {sample.format}")
    if sample.format == "delimited":
        return _delimited_table(sample, declared)
    return Table(
        where=f"{sample.file}, row 1",
        format=sample.format,
        names=sample.names,
        rows=sample.rows,
        num_fields=len(sample.names),
        clock_columns=sample.clock_columns,
    )


def _sample(files: list[RawFile], comment_marks: str) -> Sample:
    """Read the start of the first file that has rows; raises EmptyLog where none has."""
    if not files:
        raise EmptyLog("the log has no file: name a file, a folder with files, or a pattern that matches some")
    for file in files:
        start = first_bytes(file, SAMPLE_BYTES)
        if start.startswith(PARQUET_MAGIC):
            return _parquet_sample(file)
        sample = _text_sample(file.name, start, comment_marks)
        if sample is not None:
            return sample
    names = ", ".join(file.name for file in files[:5])
    raise EmptyLog(f"{names}: the log is empty (no row in {len(files)} file(s)); check that it was written completely")


def decoded(start: bytes, file: str) -> str:
    """Decode the start of a text file, without its byte-order mark; raises DamagedLog on UTF-16."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\0" in start:
        raise DamagedLog(f"{file} is UTF-16 text: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")
    return start.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")


def _split_rows(sample: Sample, separator: str) -> list[tuple[int, Row]]:
    """Split the sample's lines into stripped fields, with line numbers; records over several lines are joined."""
    texts = [text[:FIELD_LIMIT].replace("\r", " ") for text in sample.lines]
    rows = [at for at, text in enumerate(texts) if _is_row(text, sample.comment_marks)]
    starts = [at for at in rows if parsed(texts[at], separator)[1] == "unclosed quote"]
    joined = odd_records(pl.Series(texts), starts, separator, range(3, 1 << 30))
    taken = {at for record in joined for at in range(record.first + 1, record.first + record.num_lines)}
    records = {record.first: record.fields for record in joined if record.reason is None}
    return [
        (at + 1, records[at] if at in records else _loosely_parsed(texts[at], separator))
        for at in rows
        if at not in taken
    ]


def _common_length(rows: Sequence[Row]) -> int:
    """Give the most frequent number of fields."""
    return Counter(len(row) for row in rows).most_common(1)[0][0]


def _is_row(line: str, comment_marks: str) -> bool:
    return bool(line.strip()) and not line.startswith(tuple(comment_marks))


def _loosely_parsed(text: str, separator: str) -> Row:
    line = text.replace("\t", " ").strip() if separator == " " else text
    return [field.strip() for field in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]


def _text_sample(file: str, start: bytes, comment_marks: str) -> Sample | None:
    lines = tuple(line.rstrip("\r") for line in decoded(start, file).split("\n")[:SAMPLE_ROWS])
    first = next((line for line in lines if _is_row(line, comment_marks)), None)
    if first is None:
        return None
    if first.lstrip().startswith("["):
        raise DamagedLog(f"{file}, line {lines.index(first) + 1} starts a JSON array: write one JSON object a line")
    if first.lstrip().startswith("{"):
        return _json_sample(file, lines)
    return Sample(file=file, format="delimited", lines=lines, comment_marks=comment_marks)


def _json_sample(file: str, lines: tuple[str, ...]) -> Sample:
    records = [record for line in lines if isinstance(record := _json_or_none(line), dict)]
    if not records:
        raise DamagedLog(
            f"{file} starts like JSON lines, but no line of its start is valid JSON; write one object a line"
        )
    names = tuple(dict.fromkeys(name for record in records for name in record))
    rows = tuple([_text(record.get(name)) for name in names] for record in records)
    return Sample(file=file, format="jsonl", lines=lines, names=names, rows=rows)


def _json_or_none(line: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _parquet_sample(file: RawFile) -> Sample:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with closing(seekable(file.open())) as stream:
        try:
            table = pq.ParquetFile(stream)
        except pa.ArrowInvalid as error:
            raise DamagedLog(f"{file.name} starts like Parquet but cannot be read ({error}); copy it again") from error
        batch = next(table.iter_batches(SAMPLE_ROWS), None)
        clock = [index for index, column in enumerate(table.schema_arrow) if pa.types.is_temporal(column.type)]
    if batch is None or batch.num_rows == 0:
        raise EmptyLog(f"{file.name} has columns, but no row")
    columns = [[_text(value) for value in column.to_pylist()] for column in batch.columns]
    return Sample(
        file=file.name,
        format="parquet",
        names=tuple(batch.schema.names),
        rows=tuple(map(list, zip(*columns, strict=True))),
        clock_columns=tuple(clock),
    )


def _delimited_table(sample: Sample, declared: Declared) -> Table:
    fitting = _fitting(sample)
    if declared.separator is not None:
        table = _table(sample, declared.separator, declared)
        if table.num_fields < 3:
            others = " or ".join(SEPARATOR_NAMES[separator] for separator in fitting)
            raise WrongSeparator(
                f"the separator {SEPARATOR_NAMES.get(declared.separator, declared.separator)!r} finds"
                f" {table.num_fields} column(s) in {table.where}: {shortened(','.join(table.rows[0]))};"
                f" {f'did you mean {others}?' if others else 'no separator fits this file'}"
            )
        return table
    if not fitting:
        first = _split_rows(sample, ",")[0][0]
        raise OneColumn(
            f"{sample.file}, line {first} does not split into three columns (source, target, time) by any of"
            f" {', '.join(SEPARATOR_NAMES.values())}: {shortened(sample.lines[first - 1])}; declare the separator with"
            " `separator`, or write the missing columns"
        )
    tables = [_table(sample, separator, declared) for separator in fitting]
    timed = [table for table in tables if time_like(table)] or tables
    if len(timed) > 1:
        names = " and ".join(SEPARATOR_NAMES[str(table.separator)] for table in timed)
        raise AmbiguousLog(f"{timed[0].where}: {names} separate equally well; choose one with `separator`")
    return timed[0]


def _check_separator(separator: str | None) -> None:
    if separator is None or (len(separator) == 1 and separator.isascii() and separator not in '"\r\n'):
        return
    names = ", ".join(SEPARATOR_NAMES.values())
    raise WrongSeparator(
        f"the separator {separator!r} is not a single ASCII character: choose one of {names}, or rewrite the log"
        " (sed 's/::/,/g' FILE)"
    )


def _fitting(sample: Sample) -> list[str]:
    """Find the separators that give most rows three fields or more; spaces only where no other does."""
    fitting = []
    for separator in SEPARATOR_NAMES:
        if not any(separator in line for line in sample.lines):
            continue
        rows = [row for _, row in _split_rows(sample, separator)]
        if _common_length(rows) >= 3 and sum(len(row) >= 3 for row in rows) > 0.6 * len(rows):
            fitting.append(separator)
    return [separator for separator in fitting if separator != " "] or fitting


def _table(sample: Sample, separator: str, declared: Declared) -> Table:
    lines, rows = zip(*_split_rows(sample, separator), strict=True)
    has_header = declared.has_header
    if has_header is None:
        has_header = _looks_like_header(rows, declared)
    first = 1 if has_header else 0
    body = rows[first:]
    if not body:
        raise EmptyLog(f"{sample.file}: the log is empty, there is only a header in line {lines[0]}")
    num_fields = _common_length(body)
    konect = re.match(r"%\s*((?:sym|asym|bip)\s+\w+)", sample.lines[0])
    return Table(
        where=f"{sample.file}, line {lines[first]}",
        names=tuple(rows[0])[:num_fields] if has_header else (),
        rows=[row for row in body if len(row) == num_fields],
        num_fields=num_fields,
        separator=separator,
        has_header=has_header,
        konect=konect[1] if konect else "",
        format="delimited",
    )


def _looks_like_header(rows: Sequence[Row], declared: Declared) -> bool:
    """Whether the first row names the columns: it has no number or date, and the rows below it have."""
    columns = (declared.source, declared.target, declared.time)
    if any(isinstance(column, str) and not column.isdecimal() for column in columns):
        return True
    first = rows[0]
    if any(map(_is_value, first)) or not all(first) or len(set(first)) < len(first):
        return False
    return len(rows) == 1 or any(_is_value(cell) for row in rows[1:20] for cell in row)


def time_like(table: Table) -> list[int]:
    """Find the columns of dates or, if there is none, of counts large enough to be times since the epoch."""
    dates = [at for at in range(table.num_fields) if mostly(table.column(at), is_date)]
    large = [at for at in range(table.num_fields) if mostly(table.column(at), _is_epoch)]
    return dates or large


def mostly(texts: Row, test: Callable[[str], bool]) -> bool:
    """Whether at least 7 of 10 texts pass a test."""
    return sum(map(test, texts)) >= 0.7 * len(texts)


def is_number(text: str) -> bool:
    """Whether a text is a decimal number."""
    return re.fullmatch(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", text) is not None


def is_date(text: str) -> bool:
    """Whether a text starts like a date."""
    return re.search(f"{ISO_PATTERN}|{DAY_PATTERN}", text) is not None


def _is_epoch(text: str) -> bool:
    return is_number(text) and float(text) >= MIN_EPOCH


def _is_value(text: str) -> bool:
    return is_number(text) or is_date(text)


def shortened(text: str) -> str:
    """Quote a text for a message, cut to 60 characters."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
