import csv
import gzip
import io
import json
from datetime import UTC, date, datetime
from functools import partial

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dyformer.datasets import DATASETS
from dyformer.events import (
    Declared,
    RawFile,
    declared_by,
    describe,
    read_events,
    sniff_plan,
    too_many_bad,
)
from dyformer.raw_log import (
    AmbiguousLog,
    ColumnNotFound,
    DamagedLog,
    EmptyLog,
    NoUsableRows,
    OneColumn,
    TooManyBadRows,
    UnreadableTime,
    WrongSeparator,
)
from dyformer.raw_rows import raw_rows

SECOND = 1_000_000
EPOCH = 1_700_000_000


def raw(*contents, names=None):
    names = names or [f"part-{index}.log" for index in range(len(contents))]
    return [
        RawFile(name=name, open=lambda content=content: io.BytesIO(as_bytes(content)))
        for name, content in zip(names, contents, strict=True)
    ]


def as_bytes(content):
    return content.encode() if isinstance(content, str) else content


def read(*contents, drop_duplicates=False, **declared):
    files = raw(*contents)
    result = read_events(files, sniff_plan(files, Declared(**declared)), drop_duplicates=drop_duplicates)
    assert result.num_read == result.num_accepted + result.num_quarantined + result.num_dropped
    assert result.events.height == result.num_accepted
    assert result.quarantine.height == result.num_quarantined
    return result


def ends(result):
    return result.events.select("source", "target", "time").rows()


def reasons(result):
    return dict(result.quarantine.select("line", "reason").rows())


GOOD = "".join(f"u{i % 7},v{i % 5},{EPOCH + i}\n" for i in range(40))


# ---- delimited text: separators, comments, headers, line ends


@pytest.mark.parametrize("separator", [",", "\t", ";", "|", " ", "   ", " \t "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last_end", [True, False])
def test_every_separator_and_line_end_is_found(separator, end, last_end):
    rows = [separator.join(fields) for fields in (("7", "b", f"{EPOCH}"), ("b", "7", f"{EPOCH + 1}"))]
    result = read(end.join(rows) + (end if last_end else ""))
    assert ends(result) == [("7", "b", EPOCH * SECOND), ("b", "7", (EPOCH + 1) * SECOND)]
    assert result.events["line"].to_list() == [1, 2]
    assert result.events["weight"].to_list() == [1.0, 1.0]


def test_the_separator_is_the_one_that_leaves_a_time():
    assert read("a;b,c,d;2024-01-01\ne;f,g,h;2024-01-02\n").events["target"].to_list() == ["b,c,d", "f,g,h"]


@pytest.mark.parametrize("separator", [":", "^", ".", "-", "]", "\\", "#", "x"])
def test_any_other_single_character_separates_when_declared(separator):
    text = f'1{separator}"2{separator}3"{separator}{EPOCH}\n4{separator}5{separator}{EPOCH}\n'
    assert ends(read(text, separator=separator)) == [
        ("1", f"2{separator}3", EPOCH * SECOND),
        ("4", "5", EPOCH * SECOND),
    ]


def test_comments_blank_lines_and_byte_order_mark_are_no_rows():
    text = f'\ufeff% asym\n# source target\n\na b {EPOCH}\n% 5" in the middle\n   \nb c {EPOCH}\n\n'
    result = read(text)
    assert ends(result) == [("a", "b", EPOCH * SECOND), ("b", "c", EPOCH * SECOND)]
    assert result.events["line"].to_list() == [4, 7]
    assert result.num_read == 2


def test_hash_tags_are_ids_where_no_comment_marks_are_declared():
    result = read(f"#a,b,{EPOCH}\n#b,c,{EPOCH}\n", comment_marks="")
    assert result.events["source"].to_list() == ["#a", "#b"]


def test_header_names_the_columns_wherever_they_stand():
    result = read(f"id,time,target,weight,source\n1,{EPOCH},v,2.5,u\n2,{EPOCH + 1},w,0,u\n")
    assert ends(result) == [("u", "v", EPOCH * SECOND), ("u", "w", (EPOCH + 1) * SECOND)]
    assert result.events["weight"].to_list() == [2.5, 0.0]


def test_columns_by_name_and_by_position_read_alike():
    text = f"who,whom,when\na,b,{EPOCH}\n"
    by_name = read(text, source="who", target="whom", time="when")
    by_position = read(text, source="0", target=1, time="2")
    assert by_name.events.equals(by_position.events)


def test_values_alone_tell_the_columns_of_a_headless_log():
    konect = read(f"% asym positive\n1 2 1 {EPOCH}\n3 4 5 {EPOCH + 9}\n")
    assert konect.events["weight"].to_list() == [1.0, 5.0]
    small_times = read("% asym positive\n1 2 3 4\n5 6 7 8\n")
    assert small_times.events.select("weight", "time").rows() == [(3.0, 4), (7.0, 8)]
    time_first = read(f"{EPOCH},1,2\n{EPOCH + 1},2,3\n")
    assert ends(time_first) == [("1", "2", EPOCH * SECOND), ("2", "3", (EPOCH + 1) * SECOND)]
    large_ids = read(f"123456789,223456789,2,{EPOCH}\n323456789,123456789,3,{EPOCH}\n")
    assert large_ids.events.select("source", "weight").rows() == [("123456789", 2.0), ("323456789", 3.0)]


def test_later_files_may_order_their_columns_anew_or_have_no_header():
    first = f"source,target,time\na,b,{EPOCH}\n"
    result = read(first, f"time,note,source,target\n{EPOCH + 1},wide,b,c\n", f"c,d,{EPOCH + 2}\n", first)
    assert [end[:2] for end in ends(result)] == [("a", "b"), ("b", "c"), ("c", "d"), ("a", "b")]
    assert result.events["file"].to_list() == [f"part-{index}.log" for index in range(4)]
    assert result.num_duplicates == 1
    with pytest.raises(ColumnNotFound, match=r"part-1.log, line 1 has no column 'time'; found: source, target, clock"):
        read(first, f"source,target,clock\na,b,{EPOCH}\n")


def test_the_plan_is_described_in_words():
    plan = sniff_plan(raw("user;item;ts;weight\nu;i;2024-05-01;1\nv;i;2024-05-02;1\n"))
    text = describe(plan)
    assert "delimited text, separator semicolon, header" in text
    assert "source = user, target = item, time = ts, weight = weight" in text
    assert "ISO 8601" in text
    assert "two id spaces" in text
    assert "one id space" in describe(sniff_plan(raw(GOOD)))


# ---- quoted fields


def test_quoted_fields_keep_separators_quotes_and_line_ends():
    text = (
        "source,target,time\n"
        f'"a, b","say ""hi""",{EPOCH}\n'
        f'plain, "spaced out" ,"{EPOCH}"\n'
        f'"two\nlines","x",{EPOCH}\n'
        f'"\n# three\n\n",y,{EPOCH}\n'
        f"last,z,{EPOCH}\n"
    )
    result = read(text)
    assert result.events["source"].to_list() == ["a, b", "plain", "two\nlines", "# three", "last"]
    assert result.events["target"].to_list() == ['say "hi"', "spaced out", "x", "y", "z"]
    assert result.events["line"].to_list() == [2, 3, 4, 6, 10]
    assert result.num_quarantined == 0


def test_quoted_fields_between_spaces():
    assert ends(read(f'"a b"  c\t{EPOCH}\nd "e" {EPOCH}\n')) == [
        ("a b", "c", EPOCH * SECOND),
        ("d", "e", EPOCH * SECOND),
    ]


def test_a_stray_quote_inside_a_field_is_text():
    assert read(f'5" nail,box,{EPOCH}\n7" nail,box,{EPOCH}\n').events["source"].to_list() == ['5" nail', '7" nail']


def test_an_unclosed_quote_costs_one_row():
    text = GOOD + f'"open,v,{EPOCH}\n' + GOOD + f'u,"open,{EPOCH}\n' + GOOD
    result = read(text)
    assert reasons(result) == {41: "unclosed quote", 82: "unclosed quote"}
    assert result.num_accepted == 120


def test_an_open_quote_is_not_closed_by_lines_that_make_no_row():
    result = read(GOOD + f'"a\nb",c,{EPOCH},more,fields\n')
    assert reasons(result) == {41: "unclosed quote", 42: "too many fields"}


def test_a_file_of_short_rows_alone_is_rejected_row_by_row():
    assert read(GOOD, "a,b\nc,d\n").quarantine.select("line", "reason").rows() == [
        (1, "too few fields"),
        (2, "too few fields"),
    ]


@pytest.mark.parametrize("block_bytes", [16, 33, 64, 1000])
def test_records_cut_by_the_end_of_a_block_are_whole(block_bytes):
    text = "source,target,time\n" + "".join(f'"a\n{i}\n",b,{EPOCH + i}\nc,"d{i}",{EPOCH}\n' for i in range(9))
    text += f'"open,v,{EPOCH}\nu,v,{EPOCH}\n"z\nz",v,{EPOCH}'
    files = raw(text)
    plan = sniff_plan(files)
    whole = pl.concat(raw_rows(files[0], plan), how="diagonal")
    cut = pl.concat(raw_rows(files[0], plan, block_bytes=block_bytes), how="diagonal")
    assert cut.select(sorted(cut.columns)).equals(whole.select(sorted(cut.columns)))
    assert whole.filter(pl.col("reason").is_null()).height == 20
    assert whole["reason"].drop_nulls().to_list() == ["unclosed quote"]


# ---- JODIE's two forms


def test_jodie_rows_may_have_more_values_than_the_header_has_names():
    text = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
    text += "0,0,0.0,0,-0.17,0.3,0.9\n1,0,36.5,1,0.1,0.2,0.3,0.4\n1,0,77.0,0\n"
    text += "2,0,99.0,0,0.1,0.2,0.3\n"
    result = read(text)
    assert result.events.select("source", "target", "time", "label").rows() == [
        ("0", "0", 0, 0),
        ("1", "0", 36_500_000, 1),
        ("2", "0", 99_000_000, 0),
    ]
    assert reasons(result) == {4: "too few fields"}


def test_both_jodie_forms_read_alike_as_the_known_dataset():
    published = (
        "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n0,0,0.0,0,1,2\n1,1,36.0,1,1,2\n"
    )
    renumbered = "u,i,ts,label\r\n0,0,0,0\r\n1,1,36,1\r\n"
    known = declared_by(DATASETS["snap-wikipedia"])
    one, other = (read_events(raw(text), sniff_plan(raw(text), known)) for text in (published, renumbered))
    assert one.events.equals(other.events)
    assert one.events["label"].to_list() == [0, 1]


# ---- times


@pytest.mark.parametrize(
    ("unit", "factor"), [("s", SECOND), ("ms", 1000), ("us", 1), ("ns", 0.001)], ids=["s", "ms", "us", "ns"]
)
def test_the_unit_of_counts_is_told_by_their_magnitude(unit, factor):
    counts = [int((EPOCH + i) * SECOND / factor) for i in range(3)]
    text = "".join(f"a,b,{count}\n" for count in counts)
    plan = sniff_plan(raw(text))
    assert plan.time_unit == unit
    assert read(text).events["time"].to_list() == [(EPOCH + i) * SECOND for i in range(3)]


def test_a_declared_unit_overrides_the_magnitude():
    text = f"a,b,{EPOCH}\n"
    assert read(text, time_unit="ms").events["time"].to_list() == [EPOCH * 1000]
    assert read(text, time_unit="step").events["time"].to_list() == [EPOCH]
    assert read("a,b,3\na,b,4\n").events["time"].to_list() == [3, 4]
    assert read("a,b,3\na,b,4\n", time_unit="s").events["time"].to_list() == [3 * SECOND, 4 * SECOND]


def test_iso_times_with_and_without_zone_mean_the_same_moment():
    moment = datetime(2024, 3, 1, 12, 30, tzinfo=UTC)
    spellings = [
        "2024-03-01T12:30:00Z",
        "2024-03-01T12:30:00",
        "2024-03-01 12:30:00",
        "2024-03-01T12:30",
        "2024-03-01 12:30:00.000000",
        "2024-03-01T14:30:00+02:00",
        "2024-03-01T14:30:00+0200",
        "2024-03-01 14:30:00 +02:00",
        "2024-03-01T07:30:00.000-05",
        "2024-03-01 12:30:00 UTC",
        "20240301T123000Z",
        "20240301T1230",
    ]
    result = read("".join(f"a;b;{text}\n" for text in spellings))
    assert result.events["time"].to_list() == [int(moment.timestamp()) * SECOND] * len(spellings)
    assert read("a,b,2024-03-01\na,b,1969-12-31\n").events["time"].to_list() == [
        int(datetime(2024, 3, 1, tzinfo=UTC).timestamp()) * SECOND,
        -86_400 * SECOND,
    ]


def test_fractions_of_seconds_are_kept_to_the_microsecond():
    fractions = [123_457, 900_000, *range(1, 400)]
    text = "".join(f"a,b,{EPOCH}.{fraction:06d}\n" for fraction in fractions)
    assert read(text).events["time"].to_list() == [EPOCH * SECOND + fraction for fraction in fractions]


# ---- quarantine


def test_each_kind_of_broken_row_has_its_reason_and_place():
    header = "source,target,time,weight,label\n"
    good = f"a,b,{EPOCH},1,0\n"
    broken = {
        f"a,b,{EPOCH}": "too few fields",
        f"a,b,{EPOCH},1,0,9": "too many fields",
        f",b,{EPOCH},1,0": "empty id",
        f"a,  ,{EPOCH},1,0": "empty id",
        f'a,"",{EPOCH},1,0': "empty id",
        "a,b,yesterday,1,0": "unreadable time",
        "a,b,,1,0": "unreadable time",
        "a,b,-5,1,0": "negative time",
        "a,b,nan,1,0": "time is not finite",
        "a,b,inf,1,0": "time is not finite",
        f"a,b,{EPOCH}000000,1,0": "time out of range",
        f"a,b,{EPOCH},much,0": "unreadable weight",
        f"a,b,{EPOCH},,0": "unreadable weight",
        f"a,b,{EPOCH},NaN,0": "weight is not finite",
        f"a,b,{EPOCH},-1,0": "negative weight",
        f"a,b,{EPOCH},1,maybe": "bad label",
        f"a,b,{EPOCH},1,1.5": "bad label",
        f"a,b,{EPOCH},1,400": "bad label",
        "a,\0b,{EPOCH},1,0": "NUL byte",
        'a,"b"c,5,1,0': "broken quoting",
        'a,"b,5,1,0': "unclosed quote",
        header.strip(): "header repeated",
    }
    lines = [header.encode()] + [text for row in broken for text in (good.encode(), f"{row}\n".encode())]
    lines += [f"a,b,{EPOCH},1,0\n".encode() * 100, b"caf\xe9,b,1,1,0\n", good.encode()]
    result = read(b"".join(lines))
    expected = {3 + 2 * index: reason for index, reason in enumerate(broken.values())}
    assert reasons(result) == {**expected, 2 + 2 * len(broken) + 100: "not UTF-8 text"}
    assert result.num_accepted == len(broken) + 101
    raws = result.quarantine["raw"].to_list()
    assert raws[0] == f"a,b,{EPOCH}"
    assert raws[-1] == r"caf\xe9,b,1,1,0"
    assert r"a,\x00b,{EPOCH},1,0" in raws
    assert result.quarantine["file"].unique().to_list() == ["part-0.log"]


def test_a_rejected_row_is_kept_as_it_stands_without_its_line_end():
    result = read(GOOD.replace("\n", "\r\n") + "  two, fields \r\n")
    assert result.quarantine.rows() == [("part-0.log", 41, "too few fields", "  two, fields ")]


def test_many_undecodable_lines_each_cost_one_row():
    rows = [b"\xff\xfe,b,%d\n" % EPOCH, b"\xc3\xa9,b,%d\n" % EPOCH, b"a,b\xc3,%d\n" % EPOCH]
    result = read(b"".join(rows) + GOOD.encode() + rows[0].strip())
    assert result.events["source"][0] == "é"
    assert reasons(result) == {1: "not UTF-8 text", 3: "not UTF-8 text", 44: "not UTF-8 text"}


def test_too_many_bad_rows_are_named_with_their_reasons():
    result = read(GOOD + f"a,b\n,b,{EPOCH}\nc,d\n")
    too_many_bad(result, 0.07)
    with pytest.raises(
        TooManyBadRows, match=r"3 of 43 rows \(6.98%\).*2 x too few fields \(as in part-0.log, line 41\)"
    ):
        too_many_bad(result, 0.06)
    with pytest.raises(ValueError, match="from 0 to 1"):
        too_many_bad(result, 5)


# ---- duplicates


def test_exact_duplicates_are_kept_and_counted_or_dropped_over_all_files():
    texts = (f"a,b,{EPOCH}\na,b,{EPOCH}\nb,a,{EPOCH}\n", f"a,b,{EPOCH}\na,b,{EPOCH + 1}\n")
    kept = read(*texts)
    assert (kept.num_accepted, kept.num_duplicates, kept.num_dropped) == (5, 2, 0)
    dropped = read(*texts, drop_duplicates=True)
    assert (dropped.num_accepted, dropped.num_duplicates, dropped.num_dropped) == (3, 2, 2)
    assert dropped.events.select("file", "line").rows() == [("part-0.log", 1), ("part-0.log", 3), ("part-1.log", 2)]


def test_rows_that_differ_in_weight_or_label_alone_are_no_duplicates():
    text = f"source,target,time,weight,label\na,b,{EPOCH},1,0\na,b,{EPOCH},2,0\na,b,{EPOCH},2,1\na,b,{EPOCH},2,\n"
    assert read(text + f"a,b,{EPOCH},2,\n").num_duplicates == 1


# ---- JSON lines and Parquet


def test_json_lines_read_like_text():
    lines = [
        json.dumps({"user": 7, "item": "é", "time": EPOCH, "extra": {"deep": [1]}}),
        json.dumps({"item": 8.5, "time": f"{EPOCH}", "user": "7"}),
        "",
        '{"user": 7, "item"',
        "[1, 2]",
        json.dumps({"user": 7, "time": EPOCH}),
        json.dumps({"user": None, "item": 1, "time": EPOCH}),
        json.dumps({"user": 1, "item": 1, "time": True}),
    ]
    result = read("\n".join(lines * 1))
    assert ends(result) == [("7", "é", EPOCH * SECOND), ("7", "8.5", EPOCH * SECOND)]
    assert reasons(result) == {
        4: "broken JSON",
        5: "not a JSON object",
        6: "empty id",
        7: "empty id",
        8: "unreadable time",
    }
    assert result.quarantine["raw"][0] == '{"user": 7, "item"'


def parquet(frame, **options):
    stream = io.BytesIO()
    frame.write_parquet(stream, **options)
    return stream.getvalue()


def test_parquet_reads_typed_columns():
    moments = [datetime(2024, 1, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC), None]
    frame = pl.DataFrame(
        {"source": [7.0, None, 8.0], "target": ["a", "b", "c"], "when": moments, "weight": [1.5, 2.0, 3.0]}
    )
    for unit in ("ms", "us", "ns"):
        content = parquet(frame.with_columns(pl.col("when").dt.cast_time_unit(unit).dt.convert_time_zone("Asia/Tokyo")))
        result = read(content)
        assert result.events.select("source", "target", "time", "weight", "line").rows() == [
            ("7", "a", int(moments[0].timestamp()) * SECOND, 1.5, 1)
        ]
        assert reasons(result) == {2: "empty id", 3: "unreadable time"}
    assert json.loads(result.quarantine["raw"][0])["target"] == "b"


def test_parquet_of_dates_and_of_counts():
    dates = pl.DataFrame({"source": [1, 2], "target": [3, 4], "t": [date(2024, 1, 1)] * 2})
    assert (
        read(parquet(dates)).events["time"].to_list()
        == [int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()) * SECOND] * 2
    )
    counts = pl.DataFrame({"source": [1, 2], "target": [3, 4], "t": [EPOCH * 1000, EPOCH * 1000 + 1]})
    assert read(parquet(counts)).events["time"].to_list() == [EPOCH * SECOND, EPOCH * SECOND + 1000]


def test_parquet_of_lists_or_broken_bytes_is_refused():
    lists = pl.DataFrame({"source": [[1]], "target": [3], "t": [EPOCH]})
    with pytest.raises(DamagedLog, match="column 'source' holds List"):
        read(parquet(lists))
    content = parquet(pl.DataFrame({"source": [1], "target": [3], "t": [EPOCH]}))
    with pytest.raises(DamagedLog, match=r"part-0.log starts like Parquet but cannot be read"):
        read(content[:-10])


# ---- refusals name thing, place and remedy


@pytest.mark.parametrize(
    ("text", "declared", "error", "message"),
    [
        ("", {}, EmptyLog, r"part-0.log: the log is empty"),
        ("\n\n% only\n# comments\n", {}, EmptyLog, r"the log is empty"),
        ("source,target,time\n", {}, EmptyLog, r"only a header in line 1"),
        ("a\nb\nc\n", {}, OneColumn, r"part-0.log, line 1 has no three columns .*--separator"),
        (GOOD, {"separator": ";"}, WrongSeparator, r"'semicolon' finds 1 column.*did you mean comma\?"),
        (GOOD, {"separator": "::"}, WrongSeparator, r"'::' is not a single ASCII character: choose one of comma"),
        ("a\nb\n", {"separator": ","}, WrongSeparator, r"no separator fits"),
        (GOOD, {"time": "when"}, ColumnNotFound, r"no column 'when'"),
        (GOOD, {"time": 3}, ColumnNotFound, r"line 1 has no column 3; found: positions 0 to 2 and no header"),
        (
            f"source,target,time\na,b,{EPOCH}\n",
            {"source": "user"},
            ColumnNotFound,
            "found: source, target, time.*--source",
        ),
        ("a,b,soon\nc,d,later\n", {"time": 2}, UnreadableTime, r"the time 'soon' is neither"),
        ("a,b,c\nd,e,f\n", {"has_header": False}, UnreadableTime, r"no column holds a time.*--time"),
        (GOOD, {"time_unit": "iso"}, UnreadableTime, r"no time of part-0.log can be read as iso.*--time-unit"),
        (
            f",b,{EPOCH}\nc,,{EPOCH}\n",
            {},
            NoUsableRows,
            r"none of the 2 rows .*2 x empty id \(as in part-0.log, line 1\)",
        ),
        (f"x,y,z,t\n1,2,3,{EPOCH}\n", {}, AmbiguousLog, r"choose with --source and --target"),
        (f"source,target,user,item,t\n1,2,3,4,{EPOCH}\n", {}, AmbiguousLog, r"source and target; user and item"),
        (f"source,target,time,date\n1,2,{EPOCH},2024-01-01\n", {}, AmbiguousLog, r"could be the time .*--time"),
        ("1 2 3 4\n5 6 7 8\n", {}, AmbiguousLog, r"several columns could be the time \(2, 3\)"),
        ("1,2;3,4;5,6\n" * 3, {}, AmbiguousLog, r"comma and semicolon separate equally well"),
        ("a,b,c\n".encode("utf-16"), {}, DamagedLog, r"part-0.log is UTF-16"),
        ('[{"source": 1}]', {}, DamagedLog, r"JSON array: write one JSON object a line"),
        ("{broken\n{worse\n", {}, DamagedLog, r"no line of its start is valid JSON"),
        (GOOD, {"format": "jsonl"}, DamagedLog, r"declared as jsonl, but its start reads as delimited"),
        ("% sym positive\n1 2 5\n2 3 1\n", {}, UnreadableTime, r"weights but no times"),
    ],
)
def test_refusals_name_thing_place_and_remedy(text, declared, error, message):
    with pytest.raises(error, match=message):
        read(text, **declared)


def test_no_file_and_unlike_files_are_refused():
    with pytest.raises(EmptyLog, match="the log has no file"):
        sniff_plan([])
    with pytest.raises(DamagedLog, match=r"part-1.log is not delimited like the files before it"):
        read(GOOD, parquet(pl.DataFrame({"source": [1], "target": [3], "t": [EPOCH]})))


def test_an_empty_file_among_others_is_passed_over():
    assert read("", GOOD, "# nothing\n").num_accepted == 40


# ---- round trips

identifiers = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=9).filter(
    lambda text: text[0] not in "%#" and '"' not in text and "\\" not in text
)
interactions = st.lists(
    st.tuples(identifiers, identifiers, st.integers(10**8, 9 * 10**10), st.integers(0, 2**40).map(lambda n: n / 8)),
    min_size=1,
    max_size=30,
)


def written(rows, format_, separator):
    if format_ == "jsonl":
        return "\n".join(
            json.dumps(dict(zip(("source", "target", "time", "weight"), row, strict=True))) for row in rows
        )
    if format_ == "parquet":
        stream = io.BytesIO()
        columns = list(zip(*rows, strict=True))
        pq.write_table(pa.table(dict(zip(("source", "target", "time", "weight"), columns, strict=True))), stream)
        return stream.getvalue()
    lines = [separator.join(("source", "target", "time", "weight"))]
    for source, target, time, weight in rows:
        lines.append(separator.join((f'"{source}"', f'"{target}"', str(time), repr(weight))))
    return "\n".join(lines)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=interactions,
    kind=st.sampled_from([("delimited", separator) for separator in ",\t;| "] + [("jsonl", ""), ("parquet", "")]),
    end=st.sampled_from(["\n", "\r\n"]),
    block_bytes=st.integers(1, 400),
)
def test_what_is_written_is_read_back(rows, kind, end, block_bytes):
    content = as_bytes(written(rows, *kind))
    if kind[0] == "delimited":
        content = content.replace(b"\n", end.encode())
    files = raw(content)
    plan = sniff_plan(files, Declared(separator=kind[1] or None, has_header=True if kind[1] else None, time_unit="s"))
    result = read_events(files, plan)
    assert result.num_quarantined == 0
    expected = [(source, target, time * SECOND, weight) for source, target, time, weight in rows]
    assert result.events.select("source", "target", "time", "weight").rows() == expected
    if kind[0] != "parquet":
        pieces = pl.concat(raw_rows(files[0], plan, block_bytes=block_bytes), how="diagonal")
        assert pieces["source"].to_list() == [row[0] for row in expected]


messy = st.text("ab\"\n,;| é#%'", min_size=1, max_size=8).map(str.strip).filter(bool)
junk = st.sampled_from(
    ["", "% comment", "# one, two", "x,y", "a,b,c,d,e", ",b,5,1", 'p,"q"r,5,1', "source,target,time,weight"]
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.lists(st.tuples(messy, messy, junk), min_size=1, max_size=25),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    block_bytes=st.integers(1, 200),
)
def test_messy_fields_survive_among_broken_lines(rows, quoting, block_bytes):
    stream = io.StringIO()
    writer = csv.writer(stream, quoting=quoting, lineterminator="\n")
    writer.writerow(["source", "target", "time", "weight"])
    for source, target, after in rows:
        # a first field that looks like a comment is a comment: only quotes protect it
        stream.write(f'"{source.replace(chr(34), 2 * chr(34))}"')
        stream.write(",")
        writer.writerow([target, EPOCH, 1.5])
        stream.write(after + "\n")
    files = raw(stream.getvalue())
    plan = sniff_plan(files, Declared(separator=",", has_header=True, time_unit="s"))
    result = read_events(files, plan)
    assert result.events.select("source", "target").rows() == [row[:2] for row in rows]
    num_bad = sum(bool(after) and after[0] not in "%#" for _, _, after in rows)
    assert (result.num_quarantined, result.num_read) == (num_bad, num_bad + len(rows))
    pieces = pl.concat(raw_rows(files[0], plan, block_bytes=block_bytes), how="diagonal")
    bad = set(result.quarantine["line"])
    assert [line for line in pieces["line"] if line not in bad] == result.events["line"].to_list()


# ---- the published logs


@pytest.mark.parametrize(
    ("name", "num_rows", "num_nodes", "num_loops", "num_duplicates"),
    [
        ("rds", 82_927, 167, 51, 313),
        ("uci", 59_835, 1_899, 0, 37),
        ("yelp", 95_361, 6_569, 0, 0),
        ("ml-10m", 95_580, 20_537, 0, 58),
        ("snap-wikipedia", 157_474, 9_227, 0, 0),
    ],
)
@pytest.mark.parametrize("declared", [True, False])
def test_published_logs_have_their_counts(shared_log, name, num_rows, num_nodes, num_loops, num_duplicates, declared):
    path = shared_log(name)
    files = [RawFile(name=path.name, open=partial(gzip.open, path))]
    plan = sniff_plan(files, declared_by(DATASETS[name]) if declared else None)
    result = read_events(files, plan)
    assert (result.num_read, result.num_accepted, result.num_quarantined) == (num_rows, num_rows, 0)
    assert result.num_duplicates == num_duplicates
    source, target = result.events["source"], result.events["target"]
    both = source.n_unique() + target.n_unique() if plan.bipartite else pl.concat([source, target]).n_unique()
    if name != "yelp" or declared:
        assert both == num_nodes
        assert (0 if plan.bipartite else (source == target).sum()) == num_loops


def test_published_times_are_the_documented_moments(shared_log):
    path = shared_log("uci")
    files = [RawFile(name=path.name, open=partial(gzip.open, path))]
    time = read_events(files, sniff_plan(files)).events["time"].cast(pl.Datetime("us", "UTC"))
    assert time.min() == datetime(2004, 4, 15, 5, 56, 1, tzinfo=UTC)
    assert time.max() == datetime(2004, 10, 25, 22, 52, 22, tzinfo=UTC)
