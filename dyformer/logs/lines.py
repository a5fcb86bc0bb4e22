"""A raw text file -> blocks of numbered lines: as texts, or as numbers where the ids of a block are plain integers.

This project has its own reader, because it gives a line and a reason for every rejected row. It was measured 2.8 times
as fast as DuckDB and 3.7 times as fast as pandas on 10 million rows (`benchmarks/ingest.py`).

A line ends in a line feed, a carriage return, or both. A line longer than the file's limit is never held as a whole.
A number replaces its text only where writing it again gives that text (`ids`). One comparison checks a whole block: the
fields written again, with their separators and line ends, must be as long as the block.
"""

import codecs
import io
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from dyformer.logs.ids import num_digits
from dyformer.logs.raw_file import RawFile, read_exactly

NEWLINE = 10
FIRST_BYTES = 1 << 14  # the first block is read as texts because of the header
COUNTED_BYTES = 1 << 18
DECODE_BYTES = 1 << 14
NOT_PLAIN = -1 << 62
HIGH_TO_QUESTION_MARK = bytes(range(128)) + b"?" * 128
KEPT_BYTES = 1000  # of a line that is too long
BYTE_ORDER_MARK = "\ufeff"

BLANK = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""The characters that `strip_chars` of polars removes; `str.strip` of Python removes others too."""


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Consecutive whole lines of a file, or one line that is too long."""

    block: bytes  # line feeds are the only line ends
    first_line: int  # from 1
    is_last: bool
    max_bytes: int | None = None  # the limit that the line exceeds, None if the lines are within it

    @cached_property
    def num_lines(self) -> int:
        """Count the lines of the block; the last one may lack a line end."""
        pieces = np.array_split(np.frombuffer(self.block, np.uint8), len(self.block) // COUNTED_BYTES + 1)
        return sum(int(np.count_nonzero(piece == NEWLINE)) for piece in pieces) + (not self.block.endswith(b"\n"))

    @cached_property
    def frame(self) -> pl.DataFrame:
        """Give each line's number `line`, its text `raw` without the line end, and `reason` (null for good text)."""
        if self.max_bytes is None:
            return _line_frame(self.block, self.first_line)
        start = _line_frame(self.block[:KEPT_BYTES] + b"...", self.first_line)
        return start.with_columns(reason=pl.lit(f"line longer than {self.max_bytes:,} bytes"))


def text_blocks(file: RawFile, block_bytes: int) -> Iterator[Lines]:
    """Read a file, without a byte-order mark, as blocks of whole lines: a short one, then of about `block_bytes`."""
    max_bytes = file.limits.max_line_bytes
    first_line = 1
    for block, is_last in _blocks(file, block_bytes, max_bytes):
        runs = list(_runs(block, max_bytes))
        for index, (run, is_long) in enumerate(runs):
            lines = Lines(
                block=run,
                first_line=first_line,
                is_last=is_last and index == len(runs) - 1,
                max_bytes=max_bytes if is_long else None,
            )
            first_line += lines.num_lines
            yield lines


def _blocks(file: RawFile, block_bytes: int, max_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Read blocks of whole lines; the inner part of a line that is too long is left out."""
    open_line, num_open = [], 0
    with closing(file.open()) as stream:
        part = read_exactly(stream, max(4, min(block_bytes, FIRST_BYTES))).removeprefix(codecs.BOM_UTF8)
        while part:
            following = read_exactly(stream, block_bytes)
            part = _with_line_feeds(part, following)
            cut = part.rfind(b"\n") + 1 if following else len(part)
            if cut or not following:
                yield b"".join((*open_line, memoryview(part)[:cut])), not following
                open_line, num_open = [], 0
            if cut < len(part) and num_open <= max_bytes:
                open_line.append(part[cut:])
                num_open += len(part) - cut
            part = following


def _with_line_feeds(part: bytes, following: bytes) -> bytes:
    """Replace the other line ends; a pair that the end of the part cuts in two is one line end."""
    if b"\r" not in part:
        return part
    if part.endswith(b"\r") and following.startswith(b"\n"):
        part = part[:-1]
    return part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _runs(block: bytes, max_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Split whole lines into runs of lines within the limit, and single lines that exceed it."""
    start = at = 0
    while len(block) - at > max_bytes:
        end = block.rfind(b"\n", at, at + max_bytes + 1) + 1
        if end:
            at = end
            continue
        if at > start:
            yield block[start:at], False
        start = at
        at = block.find(b"\n", at) + 1 or len(block)
        yield block[start:at], True
        start = at
    if start < len(block):
        yield block[start:] if start else block, False


def _line_frame(block: bytes, first_line: int) -> pl.DataFrame:
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == NEWLINE) + 1
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(block))
    bounds = np.concatenate([[0], ends]).astype(np.int64)
    undecodable = _undecodable_lines(block, bounds)
    text = _text_column(block, bounds, undecodable)
    reason = pl.Series([None], dtype=pl.String).new_from_index(0, len(ends))
    if undecodable:
        reason = reason.scatter(undecodable, "not UTF-8 text")
    frame = pl.DataFrame(
        {"line": pl.int_range(first_line, first_line + len(ends), eager=True), "raw": text, "reason": reason}
    )
    return _nul_marked(frame) if b"\0" in block else frame


def _text_column(block: bytes, bounds: NDArray[np.int64], undecodable: list[int]) -> pl.Series:
    has_mark = codecs.BOM_UTF8 in block  # files that were joined to one have it at the start of a line
    escaped = [block[bounds[at] : bounds[at + 1]].decode("utf-8", "backslashreplace") for at in undecodable]
    if undecodable:
        patched = bytearray(block)
        for at in undecodable:
            line = slice(bounds[at], bounds[at + 1])
            patched[line] = patched[line].translate(HIGH_TO_QUESTION_MARK)
        block = bytes(patched)
    array = pa.LargeStringArray.from_buffers(len(bounds) - 1, pa.py_buffer(bounds), pa.py_buffer(block))
    text = pl.Series("raw", array)
    if undecodable:
        text = text.scatter(undecodable, escaped)
    if has_mark:
        text = text.str.strip_chars_start(BYTE_ORDER_MARK)
    return text.str.strip_chars_end("\n")


def _undecodable_lines(block: bytes, bounds: NDArray[np.int64]) -> list[int]:
    """Find the lines that are not UTF-8: decode up to an error, note its line, and go on after that line."""
    if block.isascii():
        return []
    ends: list[int] = []
    view, start = memoryview(block), 0
    while start < len(block):
        # Short pieces, because a decoder allocates for its whole input: each error would cost a copy of the block.
        stop = int(bounds[np.searchsorted(bounds, min(start + DECODE_BYTES, len(block)))])
        try:
            codecs.utf_8_decode(view[start:stop], "strict", True)
        except UnicodeDecodeError as error:
            ends.append(int(np.searchsorted(bounds, start + error.start, side="right")) - 1)
            stop = int(bounds[ends[-1] + 1])
        start = stop
    return ends


def _nul_marked(frame: pl.DataFrame) -> pl.DataFrame:
    has_nul = pl.col("raw").str.contains("\0", literal=True)
    return frame.with_columns(
        reason=pl.when(pl.col("reason").is_null() & has_nul).then(pl.lit("NUL byte")).otherwise("reason"),
        raw=pl.col("raw").str.replace_all("\0", r"\x00", literal=True),
    )


def integer_rows(
    block: bytes, separator: str, at: dict[str, int], marks: tuple[bytes, ...] = ()
) -> pl.DataFrame | None:
    """Read lines of text: ids as Int64, times too where the first one is an integer.

    Args:
        block: whole lines.
        separator: one character.
        at: position of each wanted role.
        marks: texts with a special meaning, such as quotes and comment marks.

    Returns:
        The columns of the wanted roles: ids and times as Int64, the others as stripped texts. All fields are in
        `field_0, field_1, ...`, unchanged. The result is None in a block that this fast reader cannot split: a line has
        another number of fields than the first, or an id or a time is not a plain integer of up to 18 digits. It is
        also None if the block contains a mark or a character outside of ASCII.
    """
    first = io.BytesIO(block).readline().decode("latin-1").rstrip("\n").split(separator)
    if len(first) <= max(at.values()) or not first[at["source"]].isdecimal() or not first[at["target"]].isdecimal():
        return None
    numbers = {role: at[role] for role in ("source", "target", "time") if first[at[role]].isdecimal()}
    if len(numbers) == len(first):  # all fields are numbers: no other mark can occur
        marks = tuple(mark for mark in marks if not mark.strip(f"0123456789{separator}".encode()))
    elif not block.isascii():
        return None
    if any(mark in block for mark in marks):
        return None
    fields = _fields(block, separator, len(first), frozenset(numbers.values()))
    # A line with too few fields is found here, because in the count of bytes below a longer line could make up for it.
    if fields.to_series(-1).null_count() or (separator == " " and _has_runs_of_spaces(block, fields)):
        return None
    num_bytes = fields.height * len(first) - (not block.endswith(b"\n"))
    for column in fields:
        num_bytes += _num_bytes(column)
    if num_bytes != len(block):
        return None
    return fields.with_columns(
        pl.col(f"field_{index}").alias(role)
        if role in numbers
        else pl.col(f"field_{index}").str.strip_chars().alias(role)
        for role, index in at.items()
    )


def _has_runs_of_spaces(block: bytes, fields: pl.DataFrame) -> bool:
    """Whether a field is empty or holds a tab: the space as a separator stands for any run of spaces and tabs."""
    return b"\t" in block or any(column.null_count() for column in fields)


def _fields(block: bytes, separator: str, num_fields: int, numeric: frozenset[int]) -> pl.DataFrame:
    # A value that is not an integer becomes null; superfluous fields are cut off, so the count of bytes lacks them.
    return pl.read_csv(
        block,
        has_header=False,
        separator=separator,
        quote_char=None,
        schema={f"field_{index}": pl.Int64 if index in numeric else pl.String for index in range(num_fields)},
        ignore_errors=True,
        truncate_ragged_lines=True,
    )


def _num_bytes(column: pl.Series) -> int:
    """Count the bytes of a column's text; the count is far too low where a value is null or not a plain number."""
    if column.dtype == pl.String:
        return int(column.str.len_bytes().sum())
    digits = num_digits(column)
    return NOT_PLAIN if digits is None else digits
