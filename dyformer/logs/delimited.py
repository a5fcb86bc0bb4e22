"""A file of delimited text and its ReadPlan -> blocks of rows: the texts of the planned columns, line by line.

A line is regular if each of its fields is quoted as a whole or has no quote. Regular lines are split all together:
those without quotes at every separator, those with quotes by one pattern. Any other line with a quote starts an odd
record. Odd records are read one by one, because such a record may continue on the next lines or have broken quotes.

A field that starts with a quote, blanks before it aside, is quoted as a whole, and a quote inside it is doubled. Any
other field is the text up to the next separator, quotes included.
"""

import functools
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl

from dyformer.logs.lines import BLANK, BYTE_ORDER_MARK, Lines, integer_rows, text_blocks
from dyformer.logs.names import roles_by_name
from dyformer.logs.plan import ReadPlan, position
from dyformer.logs.raw_file import AmbiguousLog, RawFile
from dyformer.logs.validation import COMMENT, read_times

QUOTED = r'"(?:[^"]|"")*"'
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


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Positions of the planned columns in one file; `num_fields` are the numbers of fields that a row may have."""

    at: dict[str, int]  # role -> position
    num_fields: range
    header: str | None = None


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
            before, frame = _cut_at_first_row(frame, plan)
            yield _comments(before, plan)
            if frame.is_empty():
                continue
            positions = _positions(file, plan, frame["raw"][0], frame["line"][0])
            frame = frame if positions.header is None else frame.slice(1)
            plan = replace(plan, comment_marks="") if plan.has_header else plan
        odd = []
        if b'"' in lines.block or waiting is not None:
            odd, waiting = _odd_records(frame, file, plan, positions, is_last=lines.is_last)
            frame = frame.head(frame.height - waiting.height)
            waiting = None if waiting.is_empty() else waiting
        yield _rows(frame, odd, plan, positions)


def _cut_at_first_row(frame: pl.DataFrame, plan: ReadPlan) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Separate the blank lines and comments before a file's first row from the rest of its first block."""
    is_row = frame.select(~(_is_blank() | _is_comment(plan)) & pl.col("reason").is_null()).to_series()
    if not is_row.any():
        return frame, frame.clear()
    first = int(is_row.arg_max() or 0)
    return frame.head(first), frame.slice(first)


def _comments(frame: pl.DataFrame, plan: ReadPlan) -> pl.DataFrame:
    """Mark the comments by their reason; lines that cannot be read before the first row keep theirs."""
    frame = frame.filter(~_is_blank())
    nothing = {role: pl.lit(None, pl.String) for role in plan.columns.by_role()}
    reason = pl.when(_is_comment(plan)).then(pl.lit(COMMENT)).otherwise("reason")
    return frame.with_columns(reason=reason, **nothing)


def _positions(file: RawFile, plan: ReadPlan, first_row: str, line: int) -> Positions:
    """Find the planned columns in this file, whose header may have another order than the first file's.

    Files after the first may also lack the header.
    """
    most = plan.max_fields if plan.max_fields is not None else 1 << 30
    column_of = plan.columns.by_role()
    if not plan.has_header:
        at = {role: int(column) for role, column in column_of.items()}
        _check_names(file, plan, first_row, line, at)
        return Positions(at=at, num_fields=range(plan.min_fields, most + 1))
    names = tuple(parsed(first_row, str(plan.separator))[0])
    position_of = {
        role: position(role, column, plan.names, len(plan.names), file.name) for role, column in column_of.items()
    }
    is_header = all(column in names for column in column_of.values() if isinstance(column, str))
    if not is_header and position_of["time"] < len(names):
        texts = pl.Series([names[position_of["time"]]])
        if read_times(texts, plan.time_unit)["time"][0] is not None:
            return Positions(at=position_of, num_fields=range(plan.min_fields, most + 1))
    where = f"{file.name}, line {line}"
    at = {role: position(role, column, names, len(names), where) for role, column in column_of.items()}
    more = len(names) - len(plan.names)
    return Positions(at=at, num_fields=range(plan.min_fields + more, most + more + 1), header=first_row.strip(BLANK))


def _check_names(file: RawFile, plan: ReadPlan, first_row: str, line: int, at: dict[str, int]) -> None:
    """Raise AmbiguousLog where a file of a log without a header has one that names the columns otherwise."""
    names = parsed(first_row, str(plan.separator))[0]
    otherwise = {role: column for role, column in roles_by_name(names).items() if role in at and at[role] != column}
    if otherwise:
        listed = ", ".join(f"{names[column]!r} in column {column + 1}" for column in otherwise.values())
        expected = ", ".join(f"{role} in column {at[role] + 1}" for role in otherwise)
        raise AmbiguousLog(
            f"{file.name}, line {line} is a header with {listed}, but the files before it have none and are read with"
            f" {expected}: write its columns in their order, or ingest it on its own, its columns named by `source`,"
            " `target` and `time`"
        )


def _integer_rows(lines: Lines, plan: ReadPlan, positions: Positions) -> pl.DataFrame | None:
    """Read a block whose ids are all integers; None if it has other ids, quotes, comments or uneven rows."""
    if lines.max_bytes is not None:
        return None
    marks = ('"', "\0", *plan.comment_marks, *([positions.header] if positions.header else []))
    rows = integer_rows(lines.block, str(plan.separator), positions.at, tuple(mark.encode() for mark in marks))
    if rows is None or rows.width - len(positions.at) not in positions.num_fields:
        return None
    nothing = pl.lit(None, pl.String)
    line = pl.int_range(lines.first_line, lines.first_line + rows.height)
    return rows.with_columns(line=line, raw=nothing, reason=nothing)


def _odd_records(
    frame: pl.DataFrame, file: RawFile, plan: ReadPlan, positions: Positions, *, is_last: bool
) -> tuple[list[OddRecord], pl.DataFrame]:
    """Find the odd records, and the lines that must wait for the next block, because the last record may continue."""
    starts = frame.select(
        pl.col("raw").str.contains('"', literal=True)
        & pl.col("reason").is_null()
        & ~_is_comment(plan)
        & ~_is_regular(pl.col("raw"), str(plan.separator))
    ).to_series()
    separator, max_length = str(plan.separator), file.limits.max_line_bytes
    records = odd_records(frame, starts.arg_true().to_list(), separator, positions.num_fields, max_length)
    waiting = next((record.first for record in records if record.is_open and not is_last), frame.height)
    return [record for record in records if record.first < waiting], frame.slice(waiting)


def _rows(frame: pl.DataFrame, odd: list[OddRecord], plan: ReadPlan, positions: Positions) -> pl.DataFrame:
    parts = []
    if odd:
        taken = [at for record in odd for at in range(record.first, record.first + record.num_lines)]
        parts.append(_odd_rows(frame, odd, positions))
        frame = frame.filter(~pl.int_range(pl.len()).is_in(taken))
    is_no_row = frame.select(_is_blank() | _is_comment(plan)).to_series()
    if is_no_row.any():  # a filter copies all texts
        parts.append(_comments(frame.filter(is_no_row), plan))
        frame = frame.filter(~is_no_row)
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


def _is_blank() -> pl.Expr:
    return pl.col("raw").str.strip_chars().str.len_bytes() == 0


def _is_comment(plan: ReadPlan) -> pl.Expr:
    return pl.any_horizontal(pl.lit(False), *(pl.col("raw").str.starts_with(mark) for mark in plan.comment_marks))


def _plain_fields(raw: pl.Series, separator: str, at: dict[str, int]) -> pl.DataFrame:
    """Split lines without quotes: the stripped fields at the wanted positions (null if missing), and `num_fields`."""
    if separator == " ":
        raw = raw.str.strip_chars(" \t")
        if raw.str.contains(r"\t|  ").any():
            raw = raw.str.replace_all(r"[ \t]+", " ")
    num_fields = raw.str.count_matches(separator, literal=True) + 1
    # polars' CSV reader takes away a byte-order mark, although only the first line of a file can have one
    is_even = raw.len() > 0 and num_fields.min() == num_fields.max() and not raw[0].startswith(BYTE_ORDER_MARK)
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
    return text.str.strip_chars(" ").str.contains(f"^(?:{field})(?:{separator_pattern(separator)}(?:{field}))*$")


def _quoted_fields(raw: pl.Series, separator: str, at: dict[str, int]) -> pl.DataFrame:
    """Split regular lines with quotes: the fields at the wanted positions, and `num_fields`."""
    text = raw.str.strip_chars(" \t" if separator == " " else " ")
    pattern = separator_pattern(separator)
    groups = text.str.extract_groups("^" + pattern.join([f"({_field(separator)})"] * (max(at.values()) + 1)))
    outside = text.str.replace_all(QUOTED, "q")
    fields = [_unquoted(groups.struct.field(str(index + 1))).alias(role) for role, index in at.items()]
    return pl.DataFrame([*fields, (outside.str.count_matches(pattern) + 1).alias("num_fields")])


def _field(separator: str) -> str:
    bare = r'[^" \t]+' if separator == " " else f'[^"{separator_pattern(separator)}]*'
    return f"{QUOTED}|{bare}" if separator == " " else f" *{QUOTED} *|{bare}"


def _unquoted(field: pl.Series) -> pl.Series:
    text = field.str.strip_chars()
    frame = pl.DataFrame({"text": text})
    inner = pl.col("text").str.slice(1, pl.col("text").str.len_chars() - 2).str.replace_all('""', '"', literal=True)
    quoted = pl.col("text").str.starts_with('"')
    return frame.select(pl.when(quoted).then(inner.str.strip_chars()).otherwise("text")).to_series()
