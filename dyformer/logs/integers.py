"""A block of text whose ids are plain integers -> its rows as numbers, all at once.

A number stands for the text it was read from only where writing it again gives that text (`log_ids`). One comparison
shows this for a whole block: the fields written again, with their separators and line ends, must be as long as it.
"""

import io

import polars as pl

from dyformer.logs.ids import num_digits

NOT_PLAIN = -1 << 62


def integer_rows(
    block: bytes, separator: str, at: dict[str, int], marks: tuple[bytes, ...] = ()
) -> pl.DataFrame | None:
    """Read lines of text: ids as Int64, times too where the first one is an integer.

    Args:
        block: whole lines that end in a line feed alone.
        separator: one character.
        at: position of each wanted role.
        marks: what makes a line more than its fields, as quotes and comment marks do.

    Returns:
        The wanted roles, ids and times as Int64 and the others as stripped texts, and all fields as they stand in
        `field_0, field_1, ...`. None where a line has another number of fields than the first, an id or time is not
        a plain integer of up to 18 digits, a mark is met, or a text that is not ASCII.
    """
    first = io.BytesIO(block).readline().decode("latin-1").rstrip("\n").split(separator)
    if len(first) <= max(at.values()) or not first[at["source"]].isdecimal() or not first[at["target"]].isdecimal():
        return None
    numbers = {role: at[role] for role in ("source", "target", "time") if first[at[role]].isdecimal()}
    if len(numbers) == len(first):  # no byte of the block can be anything else
        marks = tuple(mark for mark in marks if not mark.strip(f"0123456789{separator}".encode()))
    elif not block.isascii():
        return None
    if any(mark in block for mark in marks):
        return None
    fields = _fields(block, separator, len(first), frozenset(numbers.values()))
    if fields.to_series(-1).null_count():  # a line may be short of fields, which others' bytes would make up for
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
    # What is no integer becomes null, and what is too much is cut off and missing from the count of bytes.
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
    """Count the bytes of a column as it is written; far too few where a value is missing or no plain number."""
    if column.dtype == pl.String:
        return int(column.str.len_bytes().sum())
    digits = num_digits(column)
    return NOT_PLAIN if digits is None else digits
