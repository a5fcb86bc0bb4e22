from dataclasses import replace

import polars as pl
import pytest
from raw_logs import EPOCH, GOOD, SECOND, ends, parquet, raw, read, reasons, texts

from dyformer.logs.plan import Declared, describe
from dyformer.logs.raw_file import (
    AmbiguousLog,
    ColumnNotFound,
    DamagedLog,
    EmptyLog,
    NoUsableRows,
    OneColumn,
    UnreadableTime,
    WrongSeparator,
)
from dyformer.logs.sniffing import sniff_plan


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


@pytest.mark.parametrize(
    "name", ["[deleted]", "[[Main Page]]", "[2001:db8::1]", "[7]", "[]", "{6F9619FF-8B86-D011-B42D-00C04FC964FF}"]
)
def test_an_id_in_brackets_at_the_start_of_a_log_is_no_json(name):
    assert ends(read(f"{name},b,{EPOCH}\nb,{name},{EPOCH}\n")) == [
        (name, "b", EPOCH * SECOND),
        ("b", name, EPOCH * SECOND),
    ]


@pytest.mark.parametrize("separator", [":", "^", ".", "-", "]", "\\", "#", "x"])
def test_any_other_single_character_separates_when_declared(separator):
    text = f'1{separator}"2{separator}3"{separator}{EPOCH}\n4{separator}5{separator}{EPOCH}\n'
    assert ends(read(text, separator=separator)) == [
        ("1", f"2{separator}3", EPOCH * SECOND),
        ("4", "5", EPOCH * SECOND),
    ]


def test_header_names_the_columns_wherever_they_stand():
    result = read(f"id,time,target,weight,source\n1,{EPOCH},v,2.5,u\n2,{EPOCH + 1},w,0,u\n")
    assert ends(result) == [("u", "v", EPOCH * SECOND), ("u", "w", (EPOCH + 1) * SECOND)]
    assert result.events["weight"].to_list() == [2.5, 0.0]


@pytest.mark.parametrize(
    "header",
    [
        "day,note,origin,destination",
        "date,amount,payer,payee",
        "time,amount,account_from,account_to",
        "Event Time,Amount,Account From,Account To",
        "timestamp,n,fromAddress,toAddress",
        "started_at,bike,start_station_id,end_station_id",
        "ts,bytes,src_ip,dst_ip",
        "time,amount,lender_id,borrower_id",
    ],
)
def test_usual_names_of_the_two_ends_are_found_in_any_spelling(header):
    time = header.split(",")[0]
    result = read(f"{header}\n{EPOCH},7,a,b\n{EPOCH + 1},8,b,c\n", time=time)
    assert texts(result, "source", "target").rows() == [("a", "b"), ("b", "c")]


@pytest.mark.parametrize("role", ["label", "weight"])
@pytest.mark.parametrize(
    ("values", "is_read"),
    [(["friend", "pet", "7"], False), (["true", "false", "true"], False), (["1", "", "nan"], True), ([""] * 3, True)],
)
def test_a_column_of_texts_is_neither_weight_nor_label_whatever_its_name(role, values, is_read):
    rows = "".join(f"{i},{i + 1},Directed,{value},{EPOCH + i}\n" for i, value in enumerate(values))
    text = f"Source,Target,Type,{role.title()},timestamp\n{rows}"
    assert sniff_plan(raw(text)).columns.by_role().get(role) == (role.title() if is_read else None)
    assert is_read or read(text).num_accepted == 3


def test_names_that_are_spelt_alike_are_both_offered():
    with pytest.raises(AmbiguousLog, match=r"user_id and item; userId and item.*`source`"):
        read(f"user_id,userId,item,time\n1,2,3,{EPOCH}\n")


def test_a_broken_first_row_is_no_header():
    result = read("x,,y\n" + GOOD)
    assert reasons(result) == {1: "empty target id"}
    assert result.num_accepted == 40


def test_columns_by_name_and_by_position_read_alike():
    text = f"who,whom,when\na,b,{EPOCH}\n"
    by_name = read(text, source="who", target="whom", time="when")
    by_position = read(text, source="0", target=1, time="2")
    assert by_name.events.equals(by_position.events)


def test_columns_without_a_header_are_found_by_their_values():
    konect = read(f"% asym positive\n1 2 1 {EPOCH}\n3 4 5 {EPOCH + 9}\n")
    assert konect.events["weight"].to_list() == [1.0, 5.0]
    small_times = read("% asym positive\n1 2 3 4\n5 6 7 8\n")
    assert small_times.events.select("weight", "time").rows() == [(3.0, 4), (7.0, 8)]
    time_first = read(f"{EPOCH},1,2\n{EPOCH + 1},2,3\n")
    assert ends(time_first) == [("1", "2", EPOCH * SECOND), ("2", "3", (EPOCH + 1) * SECOND)]
    large_ids = read(f"123456789,223456789,2,{EPOCH}\n323456789,123456789,3,{EPOCH}\n")
    assert texts(large_ids, "source", "weight").rows() == [("123456789", 2.0), ("323456789", 3.0)]


def test_a_konect_header_says_whether_links_have_a_direction():
    def guessed(kind: str, directed: bool | None = None) -> str:
        text = f"% {kind} unweighted\n1 2 1 {EPOCH}\n2 4 1 {EPOCH + 9}\n"
        return describe(sniff_plan(raw(text), Declared(directed=directed)))

    assert "one id space, undirected" in guessed("sym")
    assert "undirected, from the KONECT header" in guessed("sym")
    assert "one id space, directed" in guessed("asym")
    assert "two id spaces, directed" in guessed("bip")
    assert "undirected" not in guessed("sym", directed=True)
    assert "KONECT" not in guessed("asym", directed=False)


def test_the_plan_is_described_in_words():
    plan = sniff_plan(raw("user;item;ts;weight\nu;i;2024-05-01;1\nv;i;2024-05-02;1\n"))
    text = describe(plan)
    assert "delimited text, separator semicolon, header" in text
    assert "source = user, target = item, time = ts, weight = weight" in text
    assert "ISO 8601" in text
    assert "two id spaces" in text
    assert "one id space" in describe(sniff_plan(raw(GOOD)))


def test_one_id_space_is_named_with_its_reason_where_no_id_is_a_source_and_a_target():
    apart = f"who,url,time\nu1,p1,{EPOCH}\nu2,p1,{EPOCH + 1}\n"
    named = Declared(source="who", target="url")

    def guessed(text: str, bipartite: bool | None = None) -> str:
        described = describe(sniff_plan(raw(text), replace(named, bipartite=bipartite)))
        return described.partition("guessed  one id space")[2]

    assert not sniff_plan(raw(apart), named).bipartite  # as before
    assert "no source of the first 2 rows is a target, too" in guessed(apart)
    assert "pass `bipartite=True`" in guessed(apart)
    assert not guessed(apart, bipartite=False)
    assert not guessed(apart.replace("u2,p1", "u2,u1"))
    assert not guessed(f"who,url,time\n7,8.0,{EPOCH}\n8,9.0,{EPOCH}\n")


@pytest.mark.parametrize(
    ("unit", "factor"), [("s", SECOND), ("ms", 1000), ("us", 1), ("ns", 0.001)], ids=["s", "ms", "us", "ns"]
)
def test_the_unit_of_counts_follows_from_their_magnitude(unit, factor):
    counts = [int((EPOCH + i) * SECOND / factor) for i in range(3)]
    text = "".join(f"a,b,{count}\n" for count in counts)
    plan = sniff_plan(raw(text))
    assert plan.time_unit == unit
    assert read(text).events["time"].to_list() == [(EPOCH + i) * SECOND for i in range(3)]


def test_missing_times_do_not_hide_the_unit_of_the_others():
    plan = sniff_plan(raw("u,v,time\n" + "a,b,\n" * 9 + f"a,b,{EPOCH}\n"))
    assert plan.time_unit == "s"


@pytest.mark.parametrize(
    ("text", "declared", "error", "message"),
    [
        ("", {}, EmptyLog, r"part-0.log: the log is empty"),
        ("\n\n% only\n# comments\n", {}, EmptyLog, r"the log is empty"),
        ("source,target,time\n", {}, EmptyLog, r"only a header in line 1"),
        ("a\nb\nc\n", {}, OneColumn, r"part-0.log, line 1 does not split into three columns .*`separator`"),
        (GOOD, {"separator": ";"}, WrongSeparator, r"'semicolon' finds 1 column.*did you mean comma\?"),
        (GOOD, {"separator": "::"}, WrongSeparator, r"'::' is not a single ASCII character: choose one of comma"),
        ("a\nb\n", {"separator": ","}, WrongSeparator, r"no separator fits"),
        (GOOD, {"time": "when"}, ColumnNotFound, r"no column 'when'"),
        (GOOD, {"time": 3}, ColumnNotFound, r"line 1 has no column 3; found: positions 0 to 2 and no header"),
        (
            f"source,target,time\na,b,{EPOCH}\n",
            {"source": "user"},
            ColumnNotFound,
            "found: source, target, time.*`source`",
        ),
        ("a,b,soon\nc,d,later\n", {"time": 2}, UnreadableTime, r"from .*line 1 on: the time 'soon' is neither"),
        (f"a,b,\nc,d,{EPOCH}\na,d,unknown\n", {"time": 2}, UnreadableTime, r"line 1 on: the time 'unknown' is neither"),
        (
            "u,v,time\na,b,\nc,d,\n",
            {"has_header": True},
            UnreadableTime,
            r"the time column \(time\) is empty in the first 2 rows",
        ),
        ("a,b,\nc,d,\n", {"time": 2}, UnreadableTime, r"the time column \(2\) is empty in the first 2 rows"),
        ("a,b,c\nd,e,f\n", {"has_header": False}, UnreadableTime, r"no column holds a time.*`time`"),
        ("a,b,time\nc,d,May 2024\n", {}, UnreadableTime, r"no column holds a time \(last column: 'May 2024'\)"),
        (GOOD, {"time_unit": "iso"}, UnreadableTime, r"no time of part-0.log can be read as iso.*`time_unit`"),
        (
            f",b,{EPOCH}\nc,,{EPOCH}\n",
            {},
            NoUsableRows,
            r"none of the 2 rows .*1 x empty source id \(as in part-0.log, line 1\); 1 x empty target id",
        ),
        (f",b,{EPOCH}\n", {}, NoUsableRows, r"the only row of part-0.log cannot be used: 1 x empty source id"),
        ("a,b,\n", {"time": 2}, UnreadableTime, r"the time column \(2\) is empty in the first 1 row;"),
        (f"x,y,z,t\n1,2,3,{EPOCH}\n", {}, AmbiguousLog, r"choose with `source` and `target`"),
        (f"source,target,user,item,t\n1,2,3,4,{EPOCH}\n", {}, AmbiguousLog, r"source and target; user and item"),
        (f"source,target,time,date\n1,2,{EPOCH},2024-01-01\n", {}, AmbiguousLog, r"could be the time .*`time`"),
        ("1 2 3 4\n5 6 7 8\n", {}, AmbiguousLog, r"several columns could be the time \(2, 3\)"),
        ("1,2;3,4;5,6\n" * 3, {}, AmbiguousLog, r"comma and semicolon separate equally well"),
        ("a,b,c\n".encode("utf-16"), {}, DamagedLog, r"part-0.log is UTF-16"),
        ('[{"source": 1}]', {}, DamagedLog, r"JSON array: write one JSON object a line"),
        ('[\n{"source": 1}]', {}, DamagedLog, r"JSON array"),
        (f'[["a", "b", {EPOCH}],\n', {}, DamagedLog, r"JSON array"),
        (f"[[1, 2, {EPOCH}],\n", {}, DamagedLog, r"JSON array"),
        (f"[-1, 2, {EPOCH}]\n", {}, DamagedLog, r"JSON array"),
        ("[]\n", {}, DamagedLog, r"JSON array"),
        ("{broken\n{worse\n", {}, DamagedLog, r"no line of its start is valid JSON"),
        (GOOD, {"format": "jsonl"}, DamagedLog, r"declared as jsonl, but its start reads as delimited"),
        ("% sym positive\n1 2 5\n2 3 1\n", {}, UnreadableTime, r"weights but no times"),
    ],
)
def test_refusals_name_the_fault_the_line_and_the_remedy(text, declared, error, message):
    with pytest.raises(error, match=message):
        read(text, **declared)


@pytest.mark.parametrize(
    ("first", "declared"),
    [("parent,child,time", {"source": "parent", "target": "child"}), ("PARENT;CHILD;TIME", {}), ("Paredes,Bo,1", {})],
)
def test_a_log_that_begins_like_the_mark_of_another_format_is_read(first, declared):
    separator = ";" if ";" in first else ","
    assert read(f"{first}\na{separator}b{separator}1\nb{separator}a{separator}2\n", **declared).num_accepted >= 2


@pytest.mark.parametrize("empty", ["", "% only\n", "source,target,t\n", parquet(pl.DataFrame({"source": []}))])
def test_files_without_a_row_are_passed_over_in_any_order(empty):
    assert sniff_plan(raw(empty, GOOD)).columns == sniff_plan(raw(GOOD, empty)).columns


def test_a_log_without_a_row_is_refused_and_files_are_named():
    with pytest.raises(
        EmptyLog, match=r"part-0.log: .* only a header in line 1; part-1.log: .*; and 1 more file without a row"
    ):
        sniff_plan(raw("source,target,time\n", *[""] * 5))


def test_no_file_and_unlike_files_are_refused():
    with pytest.raises(EmptyLog, match="the log has no file"):
        sniff_plan([])
    with pytest.raises(DamagedLog, match=r"part-1.log is Parquet, unlike the files before it: write its rows as d"):
        read(GOOD, parquet(pl.DataFrame({"source": [1], "target": [3], "t": [EPOCH]})))


@pytest.mark.parametrize("above", ["sep=,", "Payments of June", "Payments,of,June"])
def test_a_line_above_the_names_of_the_columns_is_an_error_and_swaps_no_ends(above: str):
    text = f"{above}\ntarget,source,time\n{GOOD}"
    with pytest.raises(
        AmbiguousLog, match=r"part-0.log, line 2 names the columns \(target, source, time\), but is not"
    ):
        sniff_plan(raw(text))
    assert read(text, has_header=False, time_unit="s").num_quarantined == 2
    assert read("source,target,time\n" + GOOD[:400] + "source,target,time\n").num_quarantined == 1  # it is repeated


def test_a_header_whose_lines_end_in_a_separator_is_a_header():
    text = "target,source,time,,\n" + GOOD.replace("\n", ",,\n")
    plan = sniff_plan(raw(text))
    assert (plan.has_header, plan.columns.source, plan.columns.target) == (True, "source", "target")
    assert "unread   a column without a name, a column without a name" in describe(plan)
    result = read(text)
    assert (result.num_accepted, result.num_quarantined, result.events["source"][0]) == (40, 0, "v0")
    assert not sniff_plan(raw("a,b,x,\n" + GOOD.replace(",1", ",x,1"))).has_header  # a row that has no time


@pytest.mark.parametrize(
    ("times", "first"),
    [
        (("20200101", "20200102", "20191231"), "2020-01-01"),
        (("20200101000000", "20200102133000", "20191231235959"), "2020-01-01"),
        (("202001010000", "202001021330", "201912312359"), "2020-01-01"),
        (("19991231", "20000229", "20000301"), "1999-12-31"),
    ],
)
def test_dates_of_digits_alone_are_read_as_dates(times: tuple[str, ...], first: str):
    text = "".join(f"a,b,{time}\n" for time in times)
    plan = sniff_plan(raw(text))
    assert plan.time_unit == "iso"
    result = read(text)
    assert result.num_accepted == 3
    assert f"{result.events['time'].cast(pl.Datetime('us'))[0]}"[:10] == first


@pytest.mark.parametrize("times", [("20201301", "20200230", "20200001"), ("18991231", "21000101", "99999999")])
def test_numbers_of_eight_digits_that_are_no_dates_are_steps(times: tuple[str, ...]):
    assert sniff_plan(raw("".join(f"a,b,{time}\n" for time in times))).time_unit == "step"


@pytest.mark.parametrize(
    ("times", "named"),
    [
        (("44000.25", "44001.5", "44002.75"), r"may count seconds, or days of a spreadsheet.*`time_unit=\"s\"`"),
        (("2020010100", "2020010123", "2020010212"), r"after next year \(in 2034\).*`time_unit`"),  # YYYYMMDDHH
        (("99999999990", "99999999991"), r"after next year \(in 5138\) if they are seconds"),
        (("1e400", "1e400"), r"'1e400', are after next year \(after 1,000,000\) if they are nano"),
        (("20990101000061", "20990101000062"), r"after next year \(in 2635\) if they are milliseconds"),
    ],
)
def test_times_that_may_be_of_another_unit_are_refused_unless_it_is_stated(times: tuple[str, ...], named: str):
    text = "".join(f"a,b,{time}\n" for time in times)
    with pytest.raises(AmbiguousLog, match=named):
        sniff_plan(raw(text))
    unit = "ms" if len(times[0]) == 14 else "s"
    assert sniff_plan(raw(text), Declared(time_unit=unit)).time_unit == unit


@pytest.mark.parametrize("times", [("0.5", "3600.25", "44000.75"), ("44000", "44001", "44002")])
def test_relative_seconds_and_whole_days_are_no_days_of_a_spreadsheet(times: tuple[str, ...]):
    text = "".join(f"a,b,{time}\n" for time in times)
    assert sniff_plan(raw(text)).time_unit == ("s" if "." in times[0] else "step")
