import csv
import io

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_logs import EPOCH, GOOD, SECOND, ends, raw, read, reasons

from dyformer.logs.events import raw_rows, read_events
from dyformer.logs.plan import Declared
from dyformer.logs.sniffing import sniff_plan


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
