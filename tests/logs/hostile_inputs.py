"""Kinds of hostile input, each with its expected outcome: the accepted rows and the reasons of the others, or an error.

The contents are made here, because a stored file could not be read in a review. They are small.
"""

import bz2
import gzip
import io
import lzma
import random
import struct
import tarfile
import zipfile
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from dyformer.logs.raw_file import (
    AmbiguousLog,
    ColumnNotFound,
    DamagedLog,
    EmptyLog,
    NoUsableRows,
    OneColumn,
    SameColumn,
    UnreadableTime,
    WrongSeparator,
)

EPOCH = 1_700_000_000
N = 40
GOOD = "".join(f"u{i % 7},v{i % 5},{EPOCH + i}\n" for i in range(N))
INTEGERS = "".join(f"{i % 7},{i % 5},{EPOCH + i}\n" for i in range(N))
HEADER = "source,target,time\n"
IDS, TIMES = [f"u{i}" for i in range(N)], [EPOCH + i for i in range(N)]
JSON = "".join(f'{{"source": "u{i}", "target": {i}, "time": {EPOCH + i}}}\n' for i in range(N))


@dataclass(frozen=True)
class Case:
    content: bytes
    accepted: int = 0
    rejected: dict[str, int] = field(default_factory=dict)  # reason -> rows
    comments: int = 0
    error: type[Exception] | None = None
    says: tuple[str, ...] = ()  # parts of the error's message
    declared: dict = field(default_factory=dict)
    limits: dict = field(default_factory=dict)


def accepted(content, num_rows=N, rejected=None, comments=0, limits=None, **declared):
    return Case(as_bytes(content), num_rows, rejected or {}, comments, declared=declared, limits=limits or {})


def refused(content, error, *says, limits=None, **declared):
    return Case(as_bytes(content), error=error, says=says, declared=declared, limits=limits or {})


def as_bytes(content):
    return content.encode() if isinstance(content, str) else content


def parquet(names=("source", "target", "time"), columns=None, **changed):
    """A Parquet file of the usual columns, some of them changed."""
    usual = {"source": pa.array(IDS), "target": pa.array(IDS), "time": pa.array(TIMES)} | changed
    table = pa.Table.from_arrays(columns or [usual[name] for name in names], names=list(names))
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


def flipped(content, first, num_bytes):
    return (
        content[:first]
        + bytes(byte ^ 0xFF for byte in content[first : first + num_bytes])
        + content[first + num_bytes :]
    )


def zipped(members, flag=0, method=None):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    content = bytearray(stream.getvalue())
    for mark, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        where = content.find(mark) + at
        content[where] |= flag
        if method is not None:
            content[where + 2] = method
    return bytes(content)


def tarred(*members, size=None):
    """An archive of (name, content) or (name, type); `size` is written in place of the true one."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            if isinstance(content, str) and len(content) > 1:
                entry.size = len(content) if size is None else size
                archive.fileobj.write(entry.tobuf() + content.encode().ljust(-len(content) // 512 * -512, b"\0"))  # pyright: ignore
            else:
                entry.type, entry.linkname = as_bytes(content), "/etc/passwd"
                archive.addfile(entry)
    return stream.getvalue()


def tar_with_long_header():
    """A header that announces a name of 100 MB, which a compressed archive holds in a few bytes."""
    entry = tarfile.TarInfo("././@LongLink")
    entry.type, entry.size = tarfile.GNUTYPE_LONGNAME, 100 << 20
    return gzip.compress(entry.tobuf() + b"a" * (4 << 20))


def deep(num):
    return f'{{"source": 1, "target": 2, "time": {EPOCH}, "x": {"[" * num}{"]" * num}}}\n'


def json_line(source='"a"', target="2", time=str(EPOCH), more=""):
    return f'{{"source": {source}, "target": {target}, "time": {time}{more}}}\n'


TOO_LONG = "line longer than 4,194,304 bytes"
FAR = "time far from the others, as if of another unit"
BINARY = random.Random(0).randbytes(3000)

CASES: dict[str, Case] = {
    # ---- lines
    "nothing": refused("", EmptyLog, "the log is empty", "written completely"),
    "a byte-order mark alone": refused(b"\xef\xbb\xbf", EmptyLog, "the log is empty"),
    "blank lines alone": refused("\n \n\t\n", EmptyLog, "the log is empty"),
    "comments alone": refused("% a\n# b\n", EmptyLog, "but for 2 comment lines", "`comment_marks`"),
    "a header alone": refused(HEADER, EmptyLog, "only a header in line 1"),
    "no end of the last line": accepted(GOOD.rstrip("\n")),
    "carriage returns alone": accepted(GOOD.replace("\n", "\r")),
    "all three line ends": accepted(GOOD.replace("\n", "\r\n", 9).replace("3\n", "3\r")),
    "two line ends a row": accepted(GOOD.replace("\n", "\n\n")),
    "a byte-order mark": accepted(b"\xef\xbb\xbf" + GOOD.encode()),
    "two byte-order marks": accepted(b"\xef\xbb\xbf" * 2 + INTEGERS.encode()),
    "a joined file with its byte-order mark": accepted(INTEGERS + "\ufeff" + INTEGERS, 2 * N),
    "a NUL byte": accepted(GOOD + f"a\0,b,{EPOCH}\n", rejected={"NUL byte": 1}),
    "bytes that are not UTF-8": accepted(GOOD.encode() + b"\xff\xfe,b,%d\n" % EPOCH, rejected={"not UTF-8 text": 1}),
    "half a character": accepted(GOOD.encode() + b"\xc3,b,%d\n" % EPOCH, rejected={"not UTF-8 text": 1}),
    "Latin-1": refused(
        (HEADER + f"é,b,{EPOCH}\n" * N).encode("latin-1"), NoUsableRows, "40 x not UTF-8 text", "line 2"
    ),
    "UTF-16": refused(GOOD.encode("utf-16"), DamagedLog, "UTF-16", "iconv"),
    "UTF-16 without a mark": refused(GOOD.encode("utf-16-le"), DamagedLog, "UTF-16", "iconv"),
    "UTF-16 of the other order": refused(GOOD.encode("utf-16-be"), DamagedLog, "UTF-16", "iconv"),
    "a line of 5 MB": accepted(GOOD + "x" * 5_000_000 + f",b,{EPOCH}\n", rejected={TOO_LONG: 1}),
    "a first line of 5 MB": accepted("x" * 5_000_000 + "\n" + GOOD, rejected={TOO_LONG: 1}),
    "one line of 5 MB": refused("1" * 5_000_000, DamagedLog, "line 1", "4,194,304 bytes", "DYFORMER_MAX_LINE_BYTES"),
    "a line of 300 kB first": accepted("x" * 300_000 + f",b,{EPOCH}\n" + GOOD, N + 1),
    "300 kB of comments first": accepted("% comment\n" * 30_000 + GOOD, comments=30_000),
    "a line above a limit of one's own": accepted(
        GOOD + "x" * 2000 + f",b,{EPOCH}\n",
        rejected={"line longer than 1,000 bytes": 1},
        limits={"max_line_bytes": 1000},
    ),
    # ---- rows
    "a comment among the rows": accepted(GOOD + f"#a,b,{EPOCH}\n", comments=1),
    "hashtags below a header": accepted(HEADER + GOOD + f"#a,%b,{EPOCH}\n" * 3, N + 3),
    "hashtags of integers below a header": accepted(HEADER + INTEGERS + "#1,2,3\n", N, {FAR: 1}),
    "hashtags alone": refused(f"#a,b,{EPOCH}\n" * 9, EmptyLog, "but for 9 comment lines"),
    "hashtags where nothing is a comment": accepted(f"#a,b,{EPOCH}\n" * 9, 9, comment_marks=""),
    "a header again": accepted(HEADER + GOOD + HEADER, rejected={"header repeated": 1}),
    "a tab among the spaces, early": accepted(
        f"1 2 {EPOCH} x\n" * N + f"1 2 {EPOCH} x\ty\n", rejected={"too many fields": 1}
    ),
    "a tab among the spaces, late": accepted(
        f"1 2 {EPOCH} x\n" * 2000 + f"1 2 {EPOCH} x\ty\n", 2000, {"too many fields": 1}
    ),
    "runs of spaces and tabs": accepted(f"1  2\t{EPOCH} x\n" * 2000 + f" 1 2 {EPOCH}   x \n", 2001),
    "a row of too few fields": accepted(GOOD + "a,b\n", rejected={"too few fields": 1}),
    "a row of 10,000 fields": accepted(GOOD + "a," * 10_000 + "\n", rejected={"too many fields": 1}),
    "a header of 2,000 columns": accepted(
        ",".join(["source", "target", "time", *map("c{}".format, range(2_000))])
        + "\n"
        + f"a,b,{EPOCH}{',' * 2_000}\n" * 3,
        3,
    ),
    "an empty id": accepted(GOOD + f",b,{EPOCH}\n", rejected={"empty source id": 1}),
    "an id of blanks": accepted(GOOD + f" \u00a0,b,{EPOCH}\n", rejected={"empty source id": 1}),
    "an unclosed quote": accepted(GOOD + f'"a,b,{EPOCH}\n' + GOOD, 2 * N, {"unclosed quote": 1}),
    "unclosed quotes in every line": accepted(GOOD + f'"a,b,{EPOCH}\n' * 500, rejected={"unclosed quote": 500}),
    "text after a closing quote": accepted(GOOD + f'"a"x,b,{EPOCH}\n', rejected={"broken quoting": 1}),
    "a quote that closes after 200 lines": accepted(
        GOOD + '"a' + "\n" * 200 + f'",b,{EPOCH}\n', rejected={"unclosed quote": 2}
    ),
    "a quoted record above the limit of a line": accepted(
        GOOD + '"a\n' + "x" * 600 + "\n" + "y" * 600 + f'",b,{EPOCH}\n',
        N + 1,
        {"unclosed quote": 1, "too few fields": 1},
        limits={"max_line_bytes": 1000},
    ),
    "one column": refused("a\nb\nc\n", OneColumn, "line 1", "three columns", "`separator`"),
    "no time": refused("a,b,c\n" * 5, UnreadableTime, "no column holds a time", "`time`"),
    "no usable row": refused(f",b,{EPOCH}\n" * 5, NoUsableRows, "5 x empty source id", "line 1"),
    # ---- columns
    "a header that names an end twice": refused(
        f"source,source,target,time\na,b,c,{EPOCH}\n" * 9, AmbiguousLog, "position 0", "position 1", "`source`"
    ),
    "a header that names the time twice": refused(
        f"source,target,time,time\na,b,{EPOCH},{EPOCH}\n", AmbiguousLog, "time at position 2, time at position 3"
    ),
    "a header that names another column twice": accepted(f"id,from,to,id,time\n1,a,b,2,{EPOCH}\n" * 1, 1),
    "a named column that stands twice": refused(
        f"id,from,to,id,time\n1,a,b,2,{EPOCH}\n", AmbiguousLog, "'id' stands twice", "positions 0 and 3", source="id"
    ),
    "a column that stands twice, by its position": accepted(
        f"id,from,to,id,time\n1,a,b,2,{EPOCH}\n", 1, source="3", target="to"
    ),
    "an unknown column": refused(HEADER + GOOD, ColumnNotFound, "'who'", "source, target, time", source="who"),
    "an unknown one of 2,000 columns": refused(
        ",".join(map("c{}".format, range(2_000))) + "\n" + f"{EPOCH}," * 1_999 + "1\n",
        ColumnNotFound,
        "1,980 more",
        source="who",
    ),
    "a position beyond the columns": refused(GOOD, ColumnNotFound, "positions 0 to 2", source=7),
    "one column as both ends": refused(
        HEADER + GOOD, SameColumn, "both source and target", source="source", target="source"
    ),
    "one JSON key as both ends": refused(JSON, SameColumn, "both source and target", source="source", target="source"),
    "a separator of two characters": refused(GOOD, WrongSeparator, "'::'", "single ASCII character", separator="::"),
    "a separator that does not separate": refused(GOOD, WrongSeparator, "did you mean comma?", separator=";"),
    # ---- times and ids
    "half of the times in another unit": accepted(
        "".join(f"a,b{i},{(EPOCH + i) * 10 ** (9 * (i % 2))}\n" for i in range(N)), N // 2, {FAR: N // 2}
    ),
    "a time in seconds among milliseconds": accepted(GOOD.replace("\n", "000\n") + f"a,b,{EPOCH}\n", rejected={FAR: 1}),
    "a zero for a missing time": accepted(GOOD + "a,b,0\n", rejected={FAR: 1}),
    "a negative time": accepted(GOOD + "a,b,-1\n", rejected={"negative time": 1}),
    "a time of 6,000 digits": accepted(GOOD + f"a,b,{'9' * 6000}\n", rejected={"time is not finite": 1}),
    "an infinite time": accepted(GOOD + "a,b,inf\na,b,nan\n", rejected={"time is not finite": 2}),
    "a time beyond the year 9999": accepted(GOOD + "a,b,999999999999\n", rejected={"time out of range": 1}),
    "words for a time": accepted(GOOD + "a,b,soon\n", rejected={"unreadable time": 1}),
    "a date that does not exist": accepted("a,b,2024-01-01\n" * 5 + "a,b,2024-02-30\n", 5, {"unreadable time": 1}),
    "days and months that both fit": refused("a,b,01/02/2024\n" * 5, AmbiguousLog, "day-first", "month-first"),
    "an infinite weight": accepted(
        "source,target,time,weight\n" + f"a,b,{EPOCH},1\n" * 5 + f"a,b,{EPOCH},inf\n", 5, {"weight is not finite": 1}
    ),
    "control characters in an id": accepted(GOOD + f"\x1b[31mred,b\x7f,{EPOCH}\n", N + 1),
    # ---- JSON lines
    "a JSON array": refused(
        "[" + JSON.replace("\n", ",") + "]", DamagedLog, "line 1", "JSON array", "one JSON object a line"
    ),
    "no valid JSON": refused("{'source': 1}\n" * 5, DamagedLog, "broken JSON", "one object a line"),
    "a broken JSON line": accepted(JSON + '{"source": 1, "tar\n', rejected={"broken JSON": 1}),
    "text after a JSON object": accepted(JSON + json_line()[:-1] + " x\n", rejected={"broken JSON": 1}),
    "a JSON line of another kind": accepted(JSON + "[1, 2]\n7\n", rejected={"not a JSON object": 2}),
    "JSON nested 10,000 deep, alone": refused(
        deep(10_000) * 3, DamagedLog, "nested deeper than 100", "one object a line"
    ),
    "JSON nested 10,000 deep": accepted(JSON + deep(10_000), rejected={"JSON nested deeper than 100": 1}),
    "JSON nested 99 deep": accepted(JSON + deep(99), N + 1),
    "brackets in a JSON text": accepted(JSON + json_line(more=f', "x": "{"[" * 500}"'), N + 1),
    "an object for a JSON id": accepted(JSON + json_line('{"a": 1}'), rejected={"source is an object or a list": 1}),
    "objects for all JSON ids": refused(
        json_line("[1]") * 5, NoUsableRows, "source is an object or a list", "write them as columns of their own"
    ),
    "a decimal comma in all weights": refused(
        "source;target;time;amount\n" + f'a;b;{EPOCH};"1.234,56"\n' * 5,
        NoUsableRows,
        "such as 1234.56",
        "DuckDB",
        weight="amount",
    ),
    "a list for a JSON time": accepted(JSON + json_line(time="[1]"), rejected={"time is an object or a list": 1}),
    "a JSON key twice": accepted(JSON + json_line(more=', "source": 3'), rejected={"a JSON key twice": 1}),
    "a JSON key with a quote": accepted(JSON.replace('"source"', '"so\'ur]ce"'), source="so'ur]ce"),
    "a JSON number of 5,000 digits": accepted(JSON + json_line(time="9" * 5000), rejected={"time is not finite": 1}),
    "NaN in JSON": accepted(JSON + json_line(time="NaN"), rejected={"broken JSON": 1}),
    "half a surrogate in JSON": accepted(JSON + json_line('"\\ud800"'), rejected={"not UTF-8 text": 1}),
    "an escaped NUL in JSON": accepted(JSON + json_line('"a\\u0000"'), rejected={"NUL byte": 1}),
    "a missing JSON key": accepted(JSON + '{"source": 1}\n', rejected={"empty target id": 1}),
    "5,000 JSON keys in few lines": accepted(
        JSON * 10 + "{" + ", ".join(f'"k{i}": 1' for i in range(5000)) + "}\n",
        10 * N,
        {"empty source and target ids": 1},
    ),
    # ---- Parquet
    "Parquet that breaks off": refused(parquet()[:-10], DamagedLog, "starts like Parquet", "copy it again"),
    "the first bytes of Parquet": refused(b"PAR1", DamagedLog, "starts like Parquet", "copy it again"),
    "Parquet with a changed page": refused(
        flipped(parquet(), 20, 60), DamagedLog, "starts like Parquet", "copy it again"
    ),
    "Parquet with a name that is no text": refused(
        parquet().replace(b"source", b"\xffource"), DamagedLog, "starts like Parquet", "copy it again"
    ),
    "Parquet without a row": refused(parquet(columns=[pa.array([], pa.string())] * 3), EmptyLog, "no row"),
    "Parquet with a name twice": refused(
        parquet(("source", "target", "time", "time"), [IDS, IDS, TIMES, TIMES]), AmbiguousLog, "time at position 2"
    ),
    "Parquet with a name twice, by its position": refused(
        parquet(("source", "target", "time", "time"), [IDS, IDS, TIMES, TIMES]),
        AmbiguousLog,
        "2 columns 'time'",
        time="3",
    ),
    "Parquet with an unused name twice": accepted(
        parquet(("source", "target", "time", "x", "x"), [IDS, IDS, TIMES, IDS, IDS])
    ),
    "Parquet durations": refused(
        parquet(time=pa.array(TIMES, pa.duration("s"))), DamagedLog, "'time'", "duration", "`time`"
    ),
    "Parquet times of day": refused(parquet(time=pa.array(range(N), pa.time32("s"))), DamagedLog, "'time'", "time32"),
    "Parquet lists": refused(parquet(source=pa.array([[1]] * N)), DamagedLog, "'source'", "list", "`source`"),
    "Parquet decimals of 256 bits": accepted(parquet(source=pa.array(range(N), pa.decimal256(50, 2)))),
    "Parquet bytes": accepted(parquet(source=pa.array([b"a"] * (N - 1) + [b"\xff"])), N - 1, {"not UTF-8 text": 1}),
    "Parquet text that is not UTF-8": accepted(
        parquet(source=pa.array([b"a"] * (N - 1) + [b"\xff"]).view(pa.string())), N - 1, {"not UTF-8 text": 1}
    ),
    "Parquet of nulls": refused(parquet(source=pa.nulls(N)), NoUsableRows, "40 x empty source id", "row 1"),
    "Parquet times far outside of 64 bits": accepted(
        parquet(time=pa.array([*(time * 1000 for time in TIMES[1:]), 2**60], pa.timestamp("ms"))),
        N - 1,
        {"time out of range": 1},
    ),
    # ---- archives and compression
    "gzip that breaks off": refused(gzip.compress(GOOD.encode())[:-9], DamagedLog, "breaks off", "again"),
    "gzip by its first bytes alone": refused(b"\x1f\x8b of no gzip", DamagedLog, "breaks off or is damaged", "again"),
    "gzip with a changed byte": refused(flipped(gzip.compress(GOOD.encode()), 40, 4), DamagedLog, "damaged", "again"),
    "gzip twice": refused(
        gzip.compress(gzip.compress(GOOD.encode())), DamagedLog, "compressed twice", "unpack it once"
    ),
    "xz": refused(lzma.compress(GOOD.encode()), DamagedLog, "xz-compressed", "xz -d"),
    "an encrypted zip": refused(zipped({"log": GOOD}, flag=1), DamagedLog, "encrypted", "unpack it first"),
    "a zip by an unknown method": refused(
        zipped({"log": GOOD}, method=99), DamagedLog, "not supported", "unpack it first"
    ),
    "an empty zip": refused(zipped({}), DamagedLog, "more than one file, or none", "name the log itself"),
    "a zip that breaks off": refused(zipped({"log": GOOD})[:-30], DamagedLog, "damaged", "again"),
    "a zip of two files": refused(zipped({"one": GOOD, "two": GOOD}), DamagedLog, "more than one file", "one, two"),
    "a zip in a zip": refused(
        zipped({"inner": zipped({"log": GOOD})}), DamagedLog, "another archive", "unpack it once"
    ),
    "an Excel workbook": refused(
        zipped({"[Content_Types].xml": "<x/>", "xl/a.xml": "<x/>"}), DamagedLog, "more than one file"
    ),
    "a bomb of bz2": refused(
        bz2.compress(b"0" * 3_000_000),
        DamagedLog,
        "unpacks to more than 1,000,000 bytes",
        "DYFORMER_MAX_UNPACKED_RATIO",
    ),
    "a tar that breaks off": refused(tarred(("log", GOOD * 20))[:3000], DamagedLog, "damaged", "again"),
    "a tar that breaks off before its second file": refused(
        tarred(("log", GOOD), ("log2", GOOD))[: 512 + 1024 + 200], DamagedLog, "has no end", "again"
    ),
    "a link in a tar": refused(tarred(("log", tarfile.SYMTYPE)), DamagedLog, "more than one file, or none"),
    "a forged size in a tar": refused(tarred(("log", GOOD), size=1 << 40), DamagedLog, "holds a file of", "again"),
    "a forged header in a tar": refused(tar_with_long_header(), DamagedLog, "headers of more than", "again"),
    # ---- files that are no log
    "random bytes": refused(BINARY, DamagedLog, "a binary file", "delimited text, JSON lines or Parquet"),
    "a web page": refused("\n<!DOCTYPE html><html>404</html>", DamagedLog, "a web page"),
    "an encrypted Parquet file": refused(b"PARE\x2e\x01\0\0" + bytes(500), DamagedLog, "an encrypted Parquet file"),
    "an SQLite database": refused(b"SQLite format 3\0" + bytes(500), DamagedLog, "an SQLite database"),
    "an Arrow file": refused(b"ARROW1\0\0" + bytes(500), DamagedLog, "an Arrow IPC file"),
    "zeros": refused(bytes(5000), DamagedLog, "a binary file"),
    "a Git LFS pointer": refused("version https://git-lfs.github.com/spec/v1\nsize 1\n", DamagedLog, "git lfs pull"),
    "forged floats": refused(struct.pack("<500d", *map(float, range(500))), DamagedLog, "a binary file"),
}
