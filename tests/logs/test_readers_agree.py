"""Every row has one outcome: by the fast reader, by the slow one, and by a plain reader of one row after the other."""

import dataclasses
import os
from dataclasses import dataclass

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_reader import PlainReader
from raw_logs import raw

from dyformer.logs import delimited, events
from dyformer.logs.datasets import Columns
from dyformer.logs.events import event_blocks
from dyformer.logs.plan import ReadPlan
from dyformer.logs.raw_file import ReadLimits

NUM_EXAMPLES = int(os.environ.get("DYFORMER_FUZZ_EXAMPLES", "150"))
MAX_ROWS = int(os.environ.get("DYFORMER_FUZZ_ROWS", "12"))  # of an example
TEXT_PIECES = [
    "1",
    "23",
    "x",
    "",
    " ",
    "  ",
    '"',
    '""',
    '"a"',
    '"b ',
    "\t",
    ",",
    "|",
    "#",
    "%",
    "é",
    "\u00a0",
    "\ufeff",
]
PIECES = [*(piece.encode() for piece in TEXT_PIECES), *b"\0 \xff \r \n \r\n \x1f \v 7.0 7.00 007 -1".split(b" ")]
TIMES = ["1700000000", "0", "5", "17.25", "-3", "1e3", "", "soon", "9" * 13, "+4"]
# which fields a row has: the positions of source, target and time, and the allowed numbers of fields
SHAPES = [((0, 1, 2), range(3, 4)), ((1, 2, 3), range(4, 5)), ((2, 0, 1), range(3, 6)), ((0, 1, 3), range(4, 1 << 30))]


@dataclass
class Outcome:
    events: list
    rejected: list
    num_comments: int


def outcome(content, plan, limits, block_bytes, *, fast):
    """Read by this project's reader."""
    (file,) = raw(content)
    file = dataclasses.replace(file, limits=limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events.raw_rows, "__kwdefaults__", {"block_bytes": block_bytes})
        if not fast:
            patch.setattr(delimited, "integer_rows", lambda *_: None)
        accepted, rejected, num_comments = [], [], 0
        for rows, quarantine, comments in event_blocks(file, plan):
            ends = pl.col("source", "target").cast(pl.String)
            accepted += rows.select("line", ends, "time").rows()
            rejected += quarantine.select("line", "reason", "raw").rows()
            num_comments += comments
    return Outcome(accepted, sorted(rejected), num_comments)


def plan_of(separator, header, shape):
    (source, target, time), num_fields = shape
    names = tuple(f"column{at}" for at in range(num_fields.start))
    columns = (names[source], names[target], names[time]) if header else (source, target, time)
    return ReadPlan(
        format="delimited",
        columns=Columns(source=columns[0], target=columns[1], time=columns[2]),
        time_unit="s",
        separator=separator,
        has_header=header,
        names=names if header else (),
        min_fields=num_fields.start,
        max_fields=None if num_fields.stop > 100 else num_fields.stop - 1,
    )


def check(rows, separator, header, shape, block_bytes, limits):
    plan = plan_of(separator, header, shape)
    content = b"".join(([separator.join(plan.names).encode() + b"\n"] if header else []) + rows)
    expected = PlainReader(
        content, separator=separator, at=shape[0], num_fields=shape[1], header=header, max_bytes=limits.max_line_bytes
    )
    plain = Outcome(expected.events, sorted(expected.rejected), expected.num_comments)
    assert outcome(content, plan, limits, block_bytes, fast=False) == plain
    assert outcome(content, plan, limits, block_bytes, fast=True) == plain
    assert outcome(content, plan, limits, 1 << 22, fast=True) == plain


@st.composite
def written_rows(draw, separator, shape):
    """Rows, most of them of plain integers, with odd pieces put in here and there."""
    (source, target, time), num_fields = shape
    rows = []
    for _ in range(draw(st.integers(1, MAX_ROWS))):
        fields = [draw(st.sampled_from(["7", "12", "305", "a", "b c", "5.0"])) for _ in range(num_fields.start)]
        if draw(st.integers(0, 3)):
            fields[source], fields[target] = (str(draw(st.integers(0, 10**6))) for _ in range(2))
        fields[time] = draw(st.sampled_from(TIMES)) if not draw(st.integers(0, 3)) else "1700000000"
        row = separator.join(fields).encode()
        pieces = [b"a" * 995] * (not draw(st.integers(0, 20))) + [
            draw(st.sampled_from(PIECES)) for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3])))
        ]
        for piece in pieces:
            at = draw(st.integers(0, len(row)))
            row = row[:at] + piece + row[at:]
        rows.append(row + draw(st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r"])))
    rows[-1] = rows[-1].rstrip(b"\r\n") if draw(st.booleans()) else rows[-1]
    return rows


@settings(
    deadline=None, max_examples=NUM_EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data(), header=st.booleans(), block_bytes=st.integers(4, 120))
def test_fast_slow_and_plain_readers_agree_on_every_row(data, header, block_bytes):
    separator = data.draw(st.sampled_from([",", " ", "\t", ";", "|", "^"]))
    shape = data.draw(st.sampled_from(SHAPES))
    rows = data.draw(written_rows(separator, shape))
    check(rows, separator, header, shape, block_bytes, ReadLimits(max_line_bytes=1_000))


def test_a_byte_order_mark_inside_a_line_is_text_wherever_the_line_stands():
    rows = [b"1 2 1700000000\n", b" \xef\xbb\xbf7 7 1700000000\n"]
    for block_bytes in (4, 1000):
        check(rows, " ", False, SHAPES[0], block_bytes, ReadLimits())
