import io
import tracemalloc

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_logs import EPOCH, SECOND, ends, raw, read, reasons

from dyformer.logs import delimited, events
from dyformer.logs.events import in_pieces, read_events
from dyformer.logs.ids import ID
from dyformer.logs.lines import integer_rows, text_blocks
from dyformer.logs.plan import Declared
from dyformer.logs.raw_file import RawFile
from dyformer.logs.sniffing import sniff_plan

AT = {"source": 0, "target": 1, "time": 2}


def test_plain_integers_come_as_numbers():
    rows = integer_rows(b"7,12,100\n0,7,99", ",", AT)
    assert rows is not None
    assert rows.select("source", "target", "time").rows() == [(7, 12, 100), (0, 7, 99)]


@pytest.mark.parametrize(
    "odd",
    [
        "007,1,5",
        "+7,1,5",
        " 7,1,5",
        "7 ,1,5",
        "-7,1,5",
        "-0,1,5",
        "7.0,1,5",
        "x,1,5",
        ",1,5",
        "7,1",
        "7,1,5,9",
        "",
        "7,1,",
        "7,1,0x5",
        "7,1,5.5",
        "1e3,1,5",
        "1000000000000000000,1,5",
        "99999999999999999999,1,5",
    ],
)
def test_a_text_that_differs_from_its_integer_is_no_plain_integer(odd):
    assert integer_rows(f"1,2,3\n{odd}\n4,5,6\n".encode(), ",", AT) is None


@pytest.mark.parametrize(
    ("block", "mark"), [(b"1,2,3\n7,5,6\n", b"7"), (b"1,2,3\n4,5,6\n", b"4,5,6"), (b"1,2,3,x\n4,5,6,y%\n", b"%")]
)
def test_a_mark_among_the_numbers_is_found(block, mark):
    assert integer_rows(block, ",", AT, (b'"', mark)) is None
    assert integer_rows(block, ",", AT, (b'"', b"9")) is not None


def test_a_longer_line_does_not_hide_a_short_one():
    assert integer_rows(b"1,2,-3\n1,2\n0,+7,-5\n", ",", AT) is None
    assert integer_rows(b"1,2,3,x\n1,2,3\n1,+2,3,x\n", ",", AT) is None


def test_undecodable_bytes_are_no_plain_integers():
    assert integer_rows(b"\x8b,2,3\n", ",", AT) is None


def test_text_beside_the_numbers_is_ascii():
    assert integer_rows("1,2,3,é\n".encode(), ",", AT) is None
    assert integer_rows(b"1,2,3,e\n", ",", AT) is not None


FIELDS = st.one_of(
    st.integers(-20, 10**7).map(str),
    st.sampled_from(
        ["007", "+7", " 7", "7 ", "-0", "7.0", "", "x", "1e3", str(2**31), str(2**63), str(10**18 - 1), '"7"']
    ),
)
TIMES = st.one_of(st.integers(0, 2 * EPOCH).map(str), st.sampled_from(["-5", "", "5.5", "later", "9" * 17]))
LINES = st.lists(
    st.one_of(st.tuples(FIELDS, FIELDS, TIMES).map(",".join), st.sampled_from(["", "%", "1,2", "1,2,3,4", "# 1,2,3"])),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(lines=LINES, block_bytes=st.integers(8, 80), end=st.sampled_from(["\n", "\r\n"]))
def test_numbers_are_read_as_their_texts_would_be(lines, block_bytes, end):
    files = raw(end.join([f"1,2,{EPOCH}", f"3,4,{EPOCH}", *lines]))
    plan = sniff_plan(raw(f"1,2,{EPOCH}"), Declared(time_unit="s", separator=","))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events.raw_rows, "__kwdefaults__", {"block_bytes": block_bytes})
        fast = read_events(files, plan)
        patch.setattr(delimited, "integer_rows", lambda *_: None)
        slow = read_events(files, plan)
    assert fast.events.equals(slow.events)
    assert fast.quarantine.equals(slow.quarantine)


@pytest.mark.parametrize(
    "odd", ["%x,1,2,{}", '"a,b",1,2,{}', '"a",1,2,{}', "a\0b,1,2,{}", "a\rb,1,2,{}", "é,1,2,{}", "n,1,2,3"]
)
def test_a_text_beside_the_numbers_is_read_as_the_slow_reader_does(odd, monkeypatch):
    header = "n,1,2,3\n"
    files = raw(header + f"x,5,6,{EPOCH}\n" * 3 + odd.format(EPOCH) + f"\nx,7,8,{EPOCH}\n")
    plan = sniff_plan(files, Declared(source=1, target=2, time=3, has_header=True, separator=",", time_unit="s"))
    monkeypatch.setitem(events.raw_rows.__kwdefaults__, "block_bytes", 30)
    fast = read_events(files, plan)
    monkeypatch.setattr(delimited, "integer_rows", lambda *_: None)
    slow = read_events(files, plan)
    assert fast.events.equals(slow.events)
    assert fast.quarantine.equals(slow.quarantine)


def test_the_quarantine_has_the_text_of_a_rejected_row_of_numbers(monkeypatch):
    monkeypatch.setitem(events.raw_rows.__kwdefaults__, "block_bytes", 40)
    text = "".join(f"{row},{row + 1},{EPOCH + row},{row},note\n" for row in range(9)) + f"5,6,{EPOCH},-1,note\n"
    result = read("source,target,time,weight,text\n" + text)
    assert reasons(result) == {11: "negative weight"}
    assert result.quarantine["raw"].to_list() == [f"5,6,{EPOCH},-1,note"]
    assert ends(result)[8] == ("8", "9", (EPOCH + 8) * SECOND)


class LongLine:
    """A stream of good rows around a line of many bytes, which are never all in memory."""

    def __init__(self, num_bytes):
        row = f"1,2,{EPOCH}\n".encode()
        self.parts = iter([row, *[b"x" * (1 << 20)] * (num_bytes >> 20), b"\n", row])

    def read(self, size=-1):
        return next(self.parts, b"")

    def close(self):
        pass


def test_a_long_line_is_never_held_as_a_whole():
    tracemalloc.start()
    blocks = list(text_blocks(RawFile(name="log", open=lambda: LongLine(256 << 20)), 1 << 20))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [(lines.first_line, lines.max_bytes) for lines in blocks] == [(1, None), (2, 1 << 22), (3, None)]
    assert peak < 4 * (1 << 22)


@pytest.mark.parametrize("block_bytes", [4, 5, 7, 1000])
def test_every_line_end_ends_one_line(block_bytes):
    content = b"a\r\nb\rc\n\nd\r\re\n\rf"
    blocks = text_blocks(RawFile(name="log", open=lambda: io.BytesIO(content)), block_bytes)
    frame = pl.concat(lines.frame for lines in blocks)
    assert frame["raw"].to_list() == ["a", "b", "c", "", "d", "", "e", "", "f"]
    assert frame["line"].to_list() == list(range(1, 10))


def block(ids, labels, dtype):
    return pl.DataFrame({"source": ids, "label": labels}, schema={"source": dtype, "label": pl.Int8})


BLOCKS = [
    block([1, 2], [None, 1], pl.Int64),
    block([2**40], [0], pl.Int64),
    block(["b", "a"], [1, None], ID),
    block(["b"], [None], ID),
    block([7], [1], pl.UInt32),
    block([5, 0, 6], [None, None, 1], pl.UInt32),
]


def test_blocks_of_the_same_types_come_in_one_piece_and_in_order():
    pieces = list(in_pieces(iter(BLOCKS)))
    assert [piece.schema["source"] for piece in pieces] == [pl.Int64, ID, pl.UInt32]
    assert [piece.rows() for piece in pieces] == [
        [(1, None), (2, 1), (2**40, 0)],
        [("b", 1), ("a", None), ("b", None)],
        [(7, 1), (5, None), (0, None), (6, 1)],
    ]
    assert all(column.n_chunks() == 1 for piece in pieces for column in piece.get_columns())
    assert list(in_pieces([])) == []


def test_a_piece_outlives_its_blocks():
    (piece,) = in_pieces(block([row], [0], pl.Int64) for row in range(3000))
    others = [bytearray(24_000) for _ in range(50)]
    assert piece["source"].to_list() == list(range(3000))
    assert len(others) == 50
