"""JSON lines and a ReadPlan -> blocks of rows in the form of `events.raw_rows`."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from dyformer import InvalidInput
from dyformer.logs.lines import BLANK, text_blocks
from dyformer.logs.plan import ReadPlan
from dyformer.logs.raw_file import RawFile

TEXT = re.compile(r'"(?:[^"\\]|\\.)*+"')


class BadRecord(InvalidInput):
    """A line that is no usable JSON object; the message is the reason."""


def json_rows(file: RawFile, plan: ReadPlan, block_bytes: int) -> Iterator[pl.DataFrame]:
    """Read JSON lines block by block, every planned value as its text."""
    is_blank = pl.col("raw").str.strip_chars().str.len_bytes() == 0
    columns = plan.columns.by_role()
    schema = {"reason": pl.String, **dict.fromkeys(columns, pl.String)}
    for lines in text_blocks(file, block_bytes):
        frame = lines.frame.filter(~is_blank)
        rows = [
            _json_row(raw, list(columns.items()), file.limits.max_json_depth)
            if reason is None
            else (reason, *(None for _ in columns))
            for raw, reason in frame.select("raw", "reason").iter_rows()
        ]
        yield frame.drop("reason").hstack(pl.DataFrame(rows, schema=schema, orient="row"))


def json_record(line: str, max_depth: int) -> dict[str, Any]:
    """Read a line as a JSON object; numbers stay the texts that they are. Raises BadRecord."""
    if not line.lstrip(BLANK).startswith("{"):
        raise BadRecord("not a JSON object")
    if line.count("{") + line.count("[") > max_depth and _depth(line) > max_depth:
        raise BadRecord(f"JSON nested deeper than {max_depth}")
    try:
        return DECODER.decode(line.strip(BLANK))
    except json.JSONDecodeError as error:
        raise BadRecord("broken JSON") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise BadRecord("a JSON key twice")
    return record


def _no_number(text: str) -> None:
    raise json.JSONDecodeError("no number of JSON", text, 0)


# The texts of numbers are kept, because a float cannot hold a long integer.
DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=str, parse_float=str, parse_constant=_no_number)


def _depth(line: str) -> int:
    depth = deepest = 0
    for mark in re.findall(r"[\[{\]}]", TEXT.sub("", line)):
        depth += 1 if mark in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _json_row(line: str, columns: Sequence[tuple[str, Any]], max_depth: int) -> tuple[str | None, ...]:
    """Give the reason why a line cannot be used, None if there is none, and the texts of the planned values."""
    nothing = (None for _ in columns)
    try:
        record = json_record(line, max_depth)
        return (None, *(_json_text(role, record.get(str(column))) for role, column in columns))
    except BadRecord as error:
        return (str(error), *nothing)


def _json_text(role: str, value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        return None if value is None else str(value).lower()
    if not isinstance(value, str):
        raise BadRecord(f"{role} is an object or a list")
    if "\0" in value:
        raise BadRecord("NUL byte")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise BadRecord("not UTF-8 text")
    return value.strip(BLANK)
