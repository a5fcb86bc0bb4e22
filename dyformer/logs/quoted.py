"""Lines with quoted fields -> fields: quoted separators, doubled quotes, and records over several lines.

Lines whose quoting is regular are taken apart by pattern, all at once; the odd ones one by one.
"""

import csv
import io
import re
from dataclasses import dataclass

import polars as pl

MAX_RECORD_LINES = 100

QUOTED = r'"(?:[^"]|"")*"'


@dataclass(frozen=True, kw_only=True)
class OddRecord:
    """A record that starts in a line of irregular quoting."""

    first: int  # index of its first line in the block
    num_lines: int
    raw: str
    fields: list[str]
    reason: str | None = None
    is_open: bool = False  # the block ends before the record may be given up


def regular(text: pl.Expr, separator: str) -> pl.Expr:
    """Say whether each text is one record whose every field is quoted as a whole or not at all."""
    field = _field(separator)
    return text.str.strip_chars(" ").str.contains(f"^(?:{field})(?:{_pattern(separator)}(?:{field}))*$")


def quoted_fields(raw: pl.Series, separator: str, at: dict[str, int]) -> pl.DataFrame:
    """Take regular lines apart: the fields at the wanted positions, and `num_fields`."""
    text = raw.str.strip_chars(" \t" if separator == " " else " ")
    pattern = _pattern(separator)
    groups = text.str.extract_groups("^" + pattern.join([f"({_field(separator)})"] * (max(at.values()) + 1)))
    outside = text.str.replace_all(QUOTED, "q")
    fields = [_unquoted(groups.struct.field(str(index + 1))).alias(role) for role, index in at.items()]
    return pl.DataFrame([*fields, (outside.str.count_matches(pattern) + 1).alias("num_fields")])


def odd_records(texts: pl.Series, starts: list[int], separator: str, num_fields: range) -> list[OddRecord]:
    """Read the records that start at the given lines, in order; lines swallowed by an earlier record are skipped.

    A quote left open is closed by the following lines if they then make one record of a fitting number of fields.
    """
    records: list[OddRecord] = []
    for start in starts:
        if records and start < records[-1].first + records[-1].num_lines:
            continue
        records.append(_odd_record(texts, start, separator, num_fields))
    return records


def _odd_record(texts: pl.Series, start: int, separator: str, num_fields: range) -> OddRecord:
    text = texts[start]
    values, problem = parsed(text, separator)
    if problem != "unclosed quote":
        return OddRecord(first=start, num_lines=1, raw=text, fields=values, reason=problem)
    for end in range(start + 1, min(start + MAX_RECORD_LINES, len(texts))):
        text += "\n" + texts[end]
        if '"' not in texts[end]:
            continue
        values, joined_problem = parsed(text, separator)
        if joined_problem is None and len(values) in num_fields:
            return OddRecord(first=start, num_lines=end - start + 1, raw=text, fields=values)
        if joined_problem != "unclosed quote":
            return OddRecord(first=start, num_lines=1, raw=texts[start], fields=[], reason=problem)
    is_open = start + MAX_RECORD_LINES > len(texts)
    return OddRecord(first=start, num_lines=1, raw=texts[start], fields=[], reason=problem, is_open=is_open)


def parsed(text: str, separator: str) -> tuple[list[str], str | None]:
    """Take one record apart: its stripped fields, and what is wrong with its quoting."""
    line = text.replace("\t", " ").strip() if separator == " " else text
    lines = io.StringIO(line, newline="\n")
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
    try:
        values = next(reader)
    except csv.Error as error:
        return [], "unclosed quote" if "unexpected end" in str(error) else "broken quoting"
    return [value.strip() for value in values], None


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
