"""The start of a raw log -> a table of texts, from which the plan is guessed."""

import codecs
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from dyformer.logs.counts import counted
from dyformer.logs.delimited import odd_records, parsed
from dyformer.logs.json_lines import BadRecord, json_record
from dyformer.logs.lines import text_blocks
from dyformer.logs.names import roles_by_name
from dyformer.logs.plan import SEPARATOR_NAMES, Declared, LogFormat, listed
from dyformer.logs.raw_file import (
    PARQUET_MAGIC,
    AmbiguousLog,
    DamagedLog,
    EmptyLog,
    OneColumn,
    RawFile,
    WrongSeparator,
    first_bytes,
)
from dyformer.logs.records import parquet_start
from dyformer.logs.validation import DAY_PATTERN, ISO_PATTERN, MIN_EPOCH, compact_date

SAMPLE_BYTES = 1 << 18
SAMPLE_ROWS = 2_000
MAX_CONTROL = 0.05  # of the characters of a text, or
FEW_CONTROL = 16  # characters
MAX_TEXT_LINES = 0.1  # of the lines of a binary file
MAX_EMPTY = 5  # files without a row that a message names
MAX_TITLE = 20  # lines above the names of columns
LEAST_RECORDS = 0.05  # of the JSON lines have a key that may be a column

FOREIGN = {
    rb"SQLite format 3\0": "an SQLite database",
    rb"PARE.{3}\0": "an encrypted Parquet file",  # after the mark a length below 2^24, which "parent" is not
    rb"ARROW1\0": "an Arrow IPC file",
    rb"Obj\x01": "an Avro file",
    rb"\x89HDF": "an HDF5 file",
    rb"\xd0\xcf\x11\xe0": "an Excel workbook",
    rb"%PDF-": "a PDF document",
    rb"(?i)\s*<(!doctype|html)": "a web page",
    rb"(?i)\s*<\?xml": "an XML document",
    rb"version https://git-lfs": "a Git LFS pointer instead of the log (get it with `git lfs pull`)",
}
"""Patterns of how files of other formats begin."""
JSON_ARRAY = re.compile(r'\s*(?:\[\s*)+(?:[{"]|-?\d+\s*,|\]?\s*$)')
"""The first line of an array, and not of a log with an id such as [deleted]."""
BRACED_ID = re.compile(r"\s*\{[\dA-Fa-f-]{36}\}")
CONTROL = bytes([0, *range(4, 9), *range(14, 27)])  # without those that separate fields or color a terminal

Row = list[str]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The first rows of a file."""

    file: str
    format: LogFormat
    lines: pl.DataFrame = field(default_factory=pl.DataFrame)  # line, raw, reason; none from Parquet
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
    """Read the start of the first file with rows as a table.

    Raises EmptyLog where no file has a row, and DamagedLog, OneColumn, WrongSeparator and AmbiguousLog.
    """
    _check_separator(declared.separator)
    if not files:
        raise EmptyLog("the log has no file: name a file, a folder with files, or a pattern that matches some")
    empty = []
    for file in files:
        try:
            return _table_of(_sample(file, declared.comment_marks), declared)
        except EmptyLog as error:
            empty.append(str(error))
    more = f"; and {counted(len(empty) - MAX_EMPTY, 'more file')} without a row" if len(empty) > MAX_EMPTY else ""
    raise EmptyLog("; ".join(empty[:MAX_EMPTY]) + more)


def _table_of(sample: Sample, declared: Declared) -> Table:
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


def _sample(file: RawFile, comment_marks: str) -> Sample:
    """Read the start of a file; raises EmptyLog where it has no row."""
    start = first_bytes(file)
    if start.startswith(PARQUET_MAGIC):
        return _parquet_sample(file)
    check_text(start, file.name)
    lines, num_comments = _first_lines(file, comment_marks)
    if lines is None:
        raise EmptyLog(empty_message(file.name, 1, num_comments))
    return _text_sample(file, lines, comment_marks)


def empty_message(names: str, num_files: int, num_comments: int) -> str:
    """Write the message of EmptyLog for files without a row."""
    if num_comments:
        return (
            f"{names}: the log is empty but for {counted(num_comments, 'comment line')}; if there are rows among them,"
            " name the characters that begin a comment with `comment_marks`, none in an empty text"
        )
    return f"{names}: the log is empty (no row in {counted(num_files, 'file')}); check that it was written completely"


def check_text(start: bytes, file: str) -> None:
    """Raise DamagedLog where the start of a file is not UTF-8 text, but that of a known other format."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\0" in start:
        raise DamagedLog(f"{file} is UTF-16 text: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")
    half = len(start) // 2
    even, odd = start[0::2].count(0), start[1::2].count(0)
    if half > 1 and max(even, odd) > 0.7 * half > 0.1 * half > min(even, odd):
        raise DamagedLog(f"{file} looks like UTF-16 text: convert it to UTF-8 (iconv -f UTF-16LE -t UTF-8)")
    text = start.removeprefix(codecs.BOM_UTF8)
    kinds = [kind for pattern, kind in FOREIGN.items() if re.match(pattern, text, re.DOTALL)]
    if not kinds and _num_control(start) > max(FEW_CONTROL, MAX_CONTROL * len(start)):
        lines = [line for line in start.split(b"\n") if line.strip()]
        if sum(map(_is_text, lines)) <= MAX_TEXT_LINES * len(lines):  # else these are bad rows among good ones
            kinds = ["a binary file of an unknown kind"]
    if kinds:
        raise DamagedLog(f"{file} is {kinds[0]}: write its rows as delimited text, JSON lines or Parquet")


def _is_text(line: bytes) -> bool:
    return not _num_control(line) and "\ufffd" not in line.decode("utf-8", "replace")


def _num_control(text: bytes) -> int:
    return len(text) - len(text.translate(None, CONTROL))


def _first_lines(file: RawFile, comment_marks: str) -> tuple[pl.DataFrame | None, int]:
    """Read lines up to the first row and, if it has one, to the size of a sample; else count the comments."""
    read, num_bytes, num_comments, long_line = [], 0, 0, None
    for lines in text_blocks(file, SAMPLE_BYTES):
        if lines.max_bytes is not None:
            long_line = long_line or lines.first_line
            continue
        is_row = [_is_row(text, comment_marks) for text in lines.frame["raw"]]
        num_comments += sum(bool(text.strip()) for text in lines.frame["raw"]) - sum(is_row)
        if not any(is_row) and not num_bytes:
            read = read or [lines.frame.head(1)]  # KONECT's first comment
            continue
        if not num_bytes:
            first = is_row.index(True)
            read = (read or [lines.frame.head(min(first, 1))]) + [lines.frame.slice(first)]
        else:
            read.append(lines.frame)
        num_bytes += len(lines.block)
        if num_bytes >= SAMPLE_BYTES:
            break
    if long_line is not None and not num_bytes:
        raise DamagedLog(
            f"{file.name}, line {long_line} has more than {file.limits.max_line_bytes:,} bytes, and no other line is a"
            " row: write one row a line, or raise DYFORMER_MAX_LINE_BYTES"
        )
    return (pl.concat(read).head(SAMPLE_ROWS) if num_bytes else None), num_comments


def _split_rows(sample: Sample, separator: str) -> list[tuple[int, Row]]:
    """Split the sample's lines into stripped fields, with line numbers; records over several lines are joined."""
    texts = sample.lines["raw"].to_list()
    rows = [at for at, text in enumerate(texts) if _is_row(text, sample.comment_marks)]
    is_read = sample.lines["reason"].is_null()
    starts = [at for at in rows if is_read[at] and parsed(texts[at], separator)[1] == "unclosed quote"]
    joined = odd_records(sample.lines, starts, separator, range(3, 1 << 30), SAMPLE_BYTES)
    taken = {at for record in joined for at in range(record.first + 1, record.first + record.num_lines)}
    records = {record.first: record.fields for record in joined if record.reason is None}
    return [
        (sample.lines["line"][at], records[at] if at in records else _loosely_parsed(texts[at], separator))
        for at in rows
        if at not in taken
    ]


def _common_length(rows: Sequence[Row]) -> int:
    """Give the most frequent number of fields."""
    return Counter(len(row) for row in rows).most_common(1)[0][0]


def _is_row(line: str, comment_marks: str) -> bool:
    return bool(line.strip()) and not line.startswith(tuple(comment_marks))


def _loosely_parsed(text: str, separator: str) -> Row:
    fields, fault = parsed(text, separator)
    return fields if fault is None else parsed(text.replace('"', ""), separator)[0]


def _text_sample(file: RawFile, lines: pl.DataFrame, comment_marks: str) -> Sample:
    is_row = [_is_row(text, comment_marks) for text in lines["raw"]]
    line, first = lines.filter(pl.Series(is_row)).select("line", "raw").row(0)
    if JSON_ARRAY.match(first):
        raise DamagedLog(f"{file.name}, line {line} starts a JSON array: write one JSON object a line")
    if first.lstrip().startswith("{") and not BRACED_ID.match(first):
        return _json_sample(file, lines)
    return Sample(file=file.name, format="delimited", lines=lines, comment_marks=comment_marks)


def _json_sample(file: RawFile, lines: pl.DataFrame) -> Sample:
    records, fault = [], "blank lines"
    for line in filter(str.strip, lines["raw"]):
        try:
            records.append(json_record(line, file.limits.max_json_depth))
        except BadRecord as error:
            fault = str(error)
    if not records:
        raise DamagedLog(
            f"{file.name} starts like JSON lines, but no line of its start is valid JSON ({fault}); write one object a"
            " line"
        )
    counts = Counter(name for record in records for name in record)
    names = tuple(name for name, count in counts.items() if count >= LEAST_RECORDS * len(records))
    rows = tuple([_text(record.get(name)) for name in names] for record in records)
    return Sample(file=file.name, format="jsonl", lines=lines, names=names, rows=rows)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _parquet_sample(file: RawFile) -> Sample:
    names, columns, clock_columns = parquet_start(file, SAMPLE_ROWS)
    rows = tuple(map(list, zip(*columns, strict=True)))
    if not rows:
        raise EmptyLog(f"{file.name} has columns, but no row")
    return Sample(file=file.name, format="parquet", names=names, rows=rows, clock_columns=clock_columns)


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
        text = sample.lines.filter(line=first)["raw"][0]
        raise OneColumn(
            f"{sample.file}, line {first} does not split into three columns (source, target, time) by any of"
            f" {', '.join(SEPARATOR_NAMES.values())}: {shortened(text)}; declare the separator with"
            " `separator`, or write the missing columns"
        )
    tables = [_table(sample, separator, declared) for separator in fitting]
    timed = [table for table in tables if time_like(table)] or tables
    if len(timed) > 1:
        names = " and ".join(SEPARATOR_NAMES[str(table.separator)] for table in timed)
        raise AmbiguousLog(f"{timed[0].where}: {names} separate equally well; choose one with `separator`")
    return timed[0]


def _check_separator(separator: str | None) -> None:
    if separator is None or (
        isinstance(separator, str) and len(separator) == 1 and separator.isascii() and separator not in '"\r\n'
    ):
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
        if not any(separator in line for line in sample.lines["raw"]):
            continue
        rows = [row for _, row in _split_rows(sample, separator)]
        if _common_length(rows) >= 3 and sum(len(row) >= 3 for row in rows) > 0.6 * len(rows):
            fitting.append(separator)
    return [separator for separator in fitting if separator != " "] or fitting


def _table(sample: Sample, separator: str, declared: Declared) -> Table:
    konect = re.match(r"%\s*((?:sym|asym|bip)\s+\w+)", sample.lines["raw"][0])
    lines, rows = zip(*_split_rows(sample, separator), strict=True)
    has_header = declared.has_header
    if has_header is None:
        has_header = _looks_like_header(rows, declared)
        _check_first(sample.file, lines, rows)
    if has_header:  # below it, no line is a comment
        sample = replace(sample, comment_marks="", lines=sample.lines.filter(pl.col("line") >= lines[0]))
        lines, rows = zip(*_split_rows(sample, separator), strict=True)
    first = 1 if has_header else 0
    body = rows[first:]
    if not body:
        raise EmptyLog(f"{sample.file}: the log is empty, there is only a header in line {lines[0]}")
    num_fields = _common_length(body)
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


def _check_first(file: str, lines: Sequence[int], rows: Sequence[Row]) -> None:
    """Raise AmbiguousLog where lines that are no rows, as a title, stand above the names of source, target and time."""
    for line, row in zip(lines[1:MAX_TITLE], rows[1:MAX_TITLE], strict=False):
        if row != rows[0] and len(roles_by_name(row)) == 3:
            raise AmbiguousLog(
                f"{file}, line {line} names the columns ({listed(row)}), but is not the first one: remove what stands"
                " above it"
            )


def _looks_like_header(rows: Sequence[Row], declared: Declared) -> bool:
    """Whether the first row names the columns: it has no number or date, and the rows below it have."""
    columns = (declared.source, declared.target, declared.time)
    if any(isinstance(column, str) and not column.isdecimal() for column in columns):
        return True
    first, below = rows[0], rows[1:20]
    while below and first and not any((first[-1], *(row[len(first) - 1] for row in below if len(row) >= len(first)))):
        first = first[:-1]  # a separator ends each row
    if any(map(_is_value, first)) or not all(first[1:]):  # that of row numbers, as pandas writes them, has no name
        return False
    return not below or any(_is_value(cell) for row in below for cell in row)


def time_like(table: Table) -> list[int]:
    """Find the columns of dates or, if there is none, of counts large enough to be times since the epoch."""
    dates = [at for at in range(table.num_fields) if mostly(table.column(at), is_date)]
    dates = dates or [at for at in range(table.num_fields) if mostly(table.column(at), is_compact_date)]
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


def is_compact_date(text: str) -> bool:
    """Whether a text is a date of digits alone, such as 20240531."""
    return compact_date(text) is not None


def _is_epoch(text: str) -> bool:
    return is_number(text) and float(text) >= MIN_EPOCH


def _is_value(text: str) -> bool:
    return is_number(text) or is_date(text)


def shortened(text: str) -> str:
    """Quote a text for a message, cut to 60 characters."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
