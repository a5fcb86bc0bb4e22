"""A raw text file -> blocks of numbered lines: as texts, or as numbers where the ids of a block are plain integers.

This project has its own reader, because it gives a line and a reason for every rejected row. It was measured 2.8 times
as fast as DuckDB and 3.7 times as fast as pandas on 10 million rows (`benchmarks/ingest.py`).

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


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Consecutive whole lines of a file."""

    block: bytes
    first_line: int  # from 1
    is_last: bool

    @cached_property
    def num_lines(self) -> int:
        """Count the lines of the block; the last one may lack a line end."""
        pieces = np.array_split(np.frombuffer(self.block, np.uint8), len(self.block) // COUNTED_BYTES + 1)
        return sum(int(np.count_nonzero(piece == NEWLINE)) for piece in pieces) + (not self.block.endswith(b"\n"))

    @cached_property
    def frame(self) -> pl.DataFrame:
        """Give each line's number `line`, its text `raw` without the line end, and `reason` (null for good text)."""
        return _line_frame(self.block, self.first_line)


def text_blocks(file: RawFile, block_bytes: int) -> Iterator[Lines]:
    """Read a file, without a byte-order mark, as blocks of whole lines: a short one, then of about `block_bytes`."""
    with closing(file.open()) as stream:
        first_line, rest = 1, b""
        part = read_exactly(stream, min(block_bytes, FIRST_BYTES)).removeprefix(codecs.BOM_UTF8)
        while part:
            following = read_exactly(stream, block_bytes)
            cut = part.rfind(b"\n") + 1 if following else len(part)
            if cut:
                block = b"".join((rest, memoryview(part)[:cut]))
                lines = Lines(block=block, first_line=first_line, is_last=not following)
                first_line += lines.num_lines
                yield lines
            rest = part[cut:] if cut else rest + part
            part = following


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
    return text.str.strip_chars_end("\r\n")


def _undecodable_lines(block: bytes, bounds: NDArray[np.int64]) -> list[int]:
    """Find the lines that are not UTF-8: decode up to an error, note its line, and go on after that line."""
    if block.isascii():
        return []
    found: list[int] = []
    view, start = memoryview(block), 0
    while start < len(block):
        # Short pieces, because a decoder allocates for its whole input: each error would cost a copy of the block.
        stop = int(bounds[np.searchsorted(bounds, min(start + DECODE_BYTES, len(block)))])
        try:
            codecs.utf_8_decode(view[start:stop], "strict", True)
        except UnicodeDecodeError as error:
            found.append(int(np.searchsorted(bounds, start + error.start, side="right")) - 1)
            stop = int(bounds[found[-1] + 1])
        start = stop
    return found


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
        block: whole lines that end in a line feed alone.
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
    if fields.to_series(-1).null_count():
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
