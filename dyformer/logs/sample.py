"""The start of a raw log -> a table of texts: what guessing the plan looks at."""

import codecs
import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import polars as pl

from dyformer.logs.log_file import ByteStream, DamagedLog, EmptyLog, RawFile
from dyformer.logs.plan import LogFormat
from dyformer.logs.quoted import odd_records, parsed

SAMPLE_BYTES = 1 << 18
SAMPLE_ROWS = 2_000
FIELD_LIMIT = 100_000  # characters; below the csv module's own limit

PARQUET_MAGIC = b"PAR1"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The first rows of the first file that has any."""

    file: str
    format: LogFormat
    lines: tuple[str, ...] = ()  # from line 1
    comment_marks: str = ""
    names: tuple[str, ...] = ()  # of JSON keys or Parquet columns
    rows: tuple[tuple[str, ...], ...] = ()  # of JSON lines or Parquet
    clock_columns: tuple[int, ...] = ()  # Parquet columns of a date or time type


def sample_log(files: list[RawFile], comment_marks: str) -> Sample:
    """Look at the first file that has rows; raises EmptyLog where none has."""
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


def first_bytes(file: RawFile, size: int) -> bytes:
    """Read up to `size` bytes, though the stream may give them in pieces."""
    parts = []
    with closing(file.open()) as stream:
        while size > 0 and (part := stream.read(size)):
            parts.append(part)
            size -= len(part)
    return b"".join(parts)


def seekable(stream: ByteStream) -> io.BufferedIOBase:
    """Give a Parquet reader what it can jump about in."""
    if isinstance(stream, io.BufferedIOBase) and stream.seekable():
        return stream
    with closing(stream):
        return io.BytesIO(stream.read())


def decoded(start: bytes, file: str) -> str:
    """Decode the start of a text file, without its byte-order mark; raises DamagedLog on UTF-16."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\0" in start:
        raise DamagedLog(f"{file} is UTF-16 text: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")
    return start.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")


def is_row(line: str, comment_marks: str) -> bool:
    """Say whether a line is neither blank nor a comment."""
    return bool(line.strip()) and not line.startswith(tuple(comment_marks))


def split_rows(sample: Sample, separator: str) -> list[tuple[int, list[str]]]:
    """Split the sample's lines into stripped fields, with line numbers; records over several lines are joined."""
    texts = [text[:FIELD_LIMIT].replace("\r", " ") for text in sample.lines]
    rows = [at for at, text in enumerate(texts) if is_row(text, sample.comment_marks)]
    starts = [at for at in rows if parsed(texts[at], separator)[1] == "unclosed quote"]
    joined = odd_records(pl.Series(texts), starts, separator, range(3, 1 << 30))
    swallowed = {at for record in joined for at in range(record.first + 1, record.first + record.num_lines)}
    records = {record.first: record.fields for record in joined if record.reason is None}
    return [
        (at + 1, records[at] if at in records else _loosely_parsed(texts[at], separator))
        for at in rows
        if at not in swallowed
    ]


def _loosely_parsed(text: str, separator: str) -> list[str]:
    line = text.replace("\t", " ").strip() if separator == " " else text
    return [field.strip() for field in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]


def common_length(rows: Sequence[list[str]]) -> int:
    """Give the most frequent number of fields."""
    return Counter(len(row) for row in rows).most_common(1)[0][0]


def _text_sample(file: str, start: bytes, comment_marks: str) -> Sample | None:
    lines = tuple(line.rstrip("\r") for line in decoded(start, file).split("\n")[:SAMPLE_ROWS])
    first = next((line for line in lines if is_row(line, comment_marks)), None)
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
    rows = tuple(tuple(_text(record.get(name)) for name in names) for record in records)
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
        raise EmptyLog(f"{file.name} is a Parquet file with no row")
    columns = [[_text(value) for value in column.to_pylist()] for column in batch.columns]
    return Sample(
        file=file.name,
        format="parquet",
        names=tuple(batch.schema.names),
        rows=tuple(zip(*columns, strict=True)),
        clock_columns=tuple(clock),
    )
