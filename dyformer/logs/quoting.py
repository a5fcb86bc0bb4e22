"""One record of delimited text -> its fields; records over several lines.

A field that starts with a quote, blanks before it aside, is quoted as a whole, and a quote inside it is doubled. Any
other field is the text up to the next separator, quotes included.
"""

import functools
import re
from dataclasses import dataclass, replace

import polars as pl

from dyformer.logs.lines import BLANK

MAX_RECORD_LINES = 100


@dataclass(frozen=True, kw_only=True)
class OddRecord:
    """A record whose first line has a quote and is not regular."""

    first: int  # index of its first line in the block
    num_lines: int
    raw: str
    fields: list[str]
    reason: str | None = None  # None if the record can be split
    is_open: bool = False  # the record may continue in the next block, because its quote is not closed in this one


def odd_records(
    frame: pl.DataFrame, starts: list[int], separator: str, num_fields: range, max_length: int
) -> list[OddRecord]:
    """Read the odd records that start at the given rows of a frame of lines, in order.

    Lines after an open quote become part of its record if the record then has an allowed number of fields. No line that
    cannot be read becomes part of a record, and no record is longer than `max_length`. A given line that is part of an
    earlier record starts no record.
    """
    texts = pl.select(pl.when(frame["reason"].is_null()).then(frame["raw"])).to_series()
    records: list[OddRecord] = []
    for start in starts:
        if records and start < records[-1].first + records[-1].num_lines:
            continue
        records.append(_odd_record(texts, start, separator, num_fields, max_length))
    return records


def parsed(text: str, separator: str) -> tuple[list[str], str | None]:
    """Split one record into its stripped fields; the second result says how its quoting is broken, None if sound."""
    line = text.strip(" \t") if separator == " " else text
    if '"' not in line:
        fields = re.split(r"[ \t]+", line) if separator == " " else line.split(separator)
        return [field.strip(BLANK) for field in fields], None
    field, open_field = _field_patterns(separator)
    values, at, match = [], 0, None
    while match is None or match["separator"]:
        match = field.match(line, at)
        if match is None:
            return [], "unclosed quote" if open_field.match(line, at) else "broken quoting"
        quoted, bare = match["quoted"], match["bare"]
        values.append((bare if quoted is None else quoted.replace('""', '"')).strip(BLANK))
        at = match.end()
    return values, None


@functools.cache
def _field_patterns(separator: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Give the pattern of a field with the separator after it, and of a field whose quote is not closed."""
    blank = "" if separator == " " else " *+"
    inner = r'[^"]*+(?:""[^"]*+)*+'
    bare = r"[^ \t]*+" if separator == " " else f"[^{separator_pattern(separator)}]*+"
    end = rf"(?P<separator>{separator_pattern(separator)})?+"
    closed = rf'{blank}"(?P<quoted>{inner})"{blank}(?=\Z|{separator_pattern(separator)})'
    return re.compile(rf'(?:{closed}|(?!{blank}")(?P<bare>{bare})){end}'), re.compile(rf'{blank}"{inner}\Z')


def _odd_record(texts: pl.Series, start: int, separator: str, num_fields: range, max_length: int) -> OddRecord:
    """Read the record that starts at a line; a text is null where its line cannot be read."""
    text = texts[start]
    values, fault = parsed(text, separator)
    alone = OddRecord(first=start, num_lines=1, raw=text, fields=values, reason=fault)
    if fault != "unclosed quote":
        return alone
    for end in range(start + 1, min(start + MAX_RECORD_LINES, len(texts))):
        if texts[end] is None or len(text) + len(texts[end]) >= max_length:
            return alone
        text += "\n" + texts[end]
        if '"' not in texts[end].replace('""', ""):  # the quote stays open
            continue
        values, joined_fault = parsed(text, separator)
        if joined_fault is None and len(values) in num_fields:
            return OddRecord(first=start, num_lines=end - start + 1, raw=text, fields=values)
        if joined_fault != "unclosed quote":
            return alone
    return replace(alone, is_open=start + MAX_RECORD_LINES > len(texts))


def separator_pattern(separator: str) -> str:
    """Give the regular expression of a separator, in Python and in polars."""
    return {" ": r"[ \t]+", "\t": r"\t"}.get(separator) or re.escape(separator)
