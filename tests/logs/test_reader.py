import csv
import io
import json
from datetime import UTC, date, datetime

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_logs import EPOCH, GOOD, SECOND, ends, parquet, raw, read, reasons, texts

from dyformer.logs.datasets import DATASETS
from dyformer.logs.events import raw_rows, read_events
from dyformer.logs.plan import Declared, declared_by
from dyformer.logs.raw_file import ColumnNotFound, DamagedLog
from dyformer.logs.sniffing import sniff_plan


def test_comments_blank_lines_and_byte_order_mark_are_no_rows():
    text = f'\ufeff% asym\n# source target\n\na b {EPOCH}\n% 5" in the middle\n   \nb c {EPOCH}\n\n'
    result = read(text)
    assert ends(result) == [("a", "b", EPOCH * SECOND), ("b", "c", EPOCH * SECOND)]
    assert result.events["line"].to_list() == [4, 7]
    assert result.num_read == 2


def test_hash_tags_are_ids_where_no_comment_marks_are_declared():
    result = read(f"#a,b,{EPOCH}\n#b,c,{EPOCH}\n", comment_marks="")
    assert result.events["source"].to_list() == ["#a", "#b"]


def test_later_files_may_order_their_columns_anew_or_have_no_header():
    first = f"source,target,time\na,b,{EPOCH}\n"
    result = read(first, f"time,note,source,target\n{EPOCH + 1},wide,b,c\n", f"c,d,{EPOCH + 2}\n", first)
    assert [end[:2] for end in ends(result)] == [("a", "b"), ("b", "c"), ("c", "d"), ("a", "b")]
    assert result.events["file"].to_list() == [f"part-{index}.log" for index in range(4)]
    assert result.num_duplicates == 1
    with pytest.raises(ColumnNotFound, match=r"part-1.log, line 1 has no column 'time'; found: source, target, clock"):
        read(first, f"source,target,clock\na,b,{EPOCH}\n")


def test_a_file_of_short_rows_alone_is_rejected_row_by_row():
    assert read(GOOD, "a,b\nc,d\n").quarantine.select("line", "reason").rows() == [
        (1, "too few fields"),
        (2, "too few fields"),
    ]


def test_jodie_rows_may_have_more_values_than_the_header_has_names():
    text = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
    text += "0,0,0.0,0,-0.17,0.3,0.9\n1,0,36.5,1,0.1,0.2,0.3,0.4\n1,0,77.0,0\n"
    text += "2,0,99.0,0,0.1,0.2,0.3\n"
    result = read(text)
    assert texts(result, "source", "target", "time", "label").rows() == [
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


def test_the_processed_jodie_form_with_row_numbers_is_recognised():
    """TGN's preprocessing writes the numbers of rows first, under an empty name, and those of features last."""
    text = ",u,i,ts,label,idx\n0,7,20,0.0,0,1\n1,8,21,36.0,1,2\n2,7,21,77.0,0,3\n"
    for declared in (None, declared_by(DATASETS["snap-wikipedia"])):
        plan = sniff_plan(raw(text), declared)
        result = read_events(raw(text), plan)
        assert plan.bipartite
        assert texts(result, "source", "target", "time", "label").rows() == [
            ("7", "20", 0, 0),
            ("8", "21", 36 * SECOND, 1),
            ("7", "21", 77 * SECOND, 0),
        ]
        assert not reasons(result)


def test_an_unnamed_first_column_of_a_log_of_ones_own_counts_as_a_column():
    text = ",target,time\nann,bob,1600000000\nbob,cid,1600000001\n"
    plan = sniff_plan(raw(text), Declared(source=0, target=1, time=2))
    assert texts(read_events(raw(text), plan), "source", "target").rows() == [("ann", "bob"), ("bob", "cid")]


def test_many_undecodable_lines_each_cost_one_row():
    rows = [b"\xff\xfe,b,%d\n" % EPOCH, b"\xc3\xa9,b,%d\n" % EPOCH, b"a,b\xc3,%d\n" % EPOCH]
    result = read(b"".join(rows) + GOOD.encode() + rows[0].strip())
    assert result.events["source"][0] == "é"
    assert reasons(result) == {1: "not UTF-8 text", 3: "not UTF-8 text", 44: "not UTF-8 text"}


def test_a_known_log_without_its_header_loses_no_row():
    text = "0,8227,0,0\r\n1,8228,36,0\r\n"
    result = read_events(raw(text), sniff_plan(raw(text), declared_by(DATASETS["snap-wikipedia"])))
    assert texts(result, "source", "time", "label").rows() == [("0", 0, 0), ("1", 36 * SECOND, 0)]


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
        6: "empty target id",
        7: "empty source id",
        8: "unreadable time",
    }
    assert result.quarantine["raw"][0] == '{"user": 7, "item"'


def test_an_empty_file_among_others_is_passed_over():
    assert read("", GOOD, "# nothing\n").num_accepted == 40


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


messy = st.text("ab\"\n,;| é#%'", min_size=1, max_size=8).map(str.strip).filter(bool)


junk = st.sampled_from(
    [
        "",
        "% no comment below a header",
        "# one, two",
        "x,y",
        "a,b,c,d,e",
        ",b,5,1",
        'p,"q"r,5,1',
        "source,target,time,weight",
    ]
)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
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
        writer.writerow([source, target, EPOCH, 1.5])
        stream.write(after + "\n")
    files = raw(stream.getvalue())
    plan = sniff_plan(files, Declared(separator=",", has_header=True, time_unit="s"))
    result = read_events(files, plan)
    assert result.events.select("source", "target").rows() == [row[:2] for row in rows]
    num_bad = sum(bool(after) for _, _, after in rows)
    assert (result.num_quarantined, result.num_read) == (num_bad, num_bad + len(rows))
    pieces = pl.concat(raw_rows(files[0], plan, block_bytes=block_bytes), how="diagonal")
    bad = set(result.quarantine["line"])
    assert [line for line in pieces["line"] if line not in bad] == result.events["line"].to_list()


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
        assert reasons(result) == {2: "empty source id", 3: "missing time"}
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
    with pytest.raises(DamagedLog, match="column 'source' holds large_list"):
        read(parquet(lists))
    content = parquet(pl.DataFrame({"source": [1], "target": [3], "t": [EPOCH]}))
    with pytest.raises(DamagedLog, match=r"part-0.log starts like Parquet but cannot be read"):
        read(content[:-10])
