import gzip
import io
import json
import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_logs import EPOCH, GOOD, SECOND, as_bytes, parquet, raw, read, reasons, texts

from dyformer.logs import events as module
from dyformer.logs.compression import local_file
from dyformer.logs.datasets import DATASETS
from dyformer.logs.events import EVENT_COLUMNS, check_bad_rows, raw_rows, read_events, repeats
from dyformer.logs.plan import Declared, declared_by, describe
from dyformer.logs.raw_file import RawFile, TooManyBadRows
from dyformer.logs.sniffing import sniff_plan

ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"]), st.sampled_from([None, 0.5, 1.0])), max_size=25
)


def test_each_kind_of_broken_row_has_its_reason_and_line():
    header = "source,target,time,weight,label\n"
    good = f"a,b,{EPOCH},1,0\n"
    broken = {
        f"a,b,{EPOCH}": "too few fields",
        f"a,b,{EPOCH},1,0,9": "too many fields",
        f",b,{EPOCH},1,0": "empty source id",
        f"a,  ,{EPOCH},1,0": "empty target id",
        f'a,"",{EPOCH},1,0': "empty target id",
        f",,{EPOCH},1,0": "empty source and target ids",
        "a,b,yesterday,1,0": "unreadable time",
        "a,b,,1,0": "missing time",
        "a,b, ,1,0": "missing time",
        "a,b,-5,1,0": "negative time",
        "a,b,nan,1,0": "time is not finite",
        "a,b,inf,1,0": "time is not finite",
        f"a,b,{EPOCH}000000,1,0": "time out of range",
        f"a,b,{EPOCH},much,0": "unreadable weight",
        f"a,b,{EPOCH},,0": "missing weight",
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


def test_the_quarantine_has_the_text_of_a_rejected_row_without_its_line_end():
    result = read(GOOD.replace("\n", "\r\n") + "  two, fields \r\n")
    assert result.quarantine.rows() == [("part-0.log", 41, "too few fields", "  two, fields ")]


def test_check_bad_rows_rows_are_named_with_their_reasons():
    result = read(GOOD + f"a,b\n,b,{EPOCH}\nc,d\n")
    check_bad_rows(result.quarantine, result.num_read, 0.07)
    with pytest.raises(
        TooManyBadRows, match=r"3 of 43 rows \(6.98%\).*2 x too few fields \(as in part-0.log, line 41\)"
    ):
        check_bad_rows(result.quarantine, result.num_read, 0.06)
    with pytest.raises(ValueError, match="from 0 to 1"):
        check_bad_rows(result.quarantine, result.num_read, 5)


def test_numbers_count_lines_of_a_text_and_rows_of_parquet(tmp_path: Path):
    frame = pl.DataFrame({"source": ["a", "b"], "target": ["b", ""], "time": [EPOCH, EPOCH]})
    for name, write, at in (
        ("log.csv", frame.write_csv, "line 3"),  # below the header
        ("log.jsonl", frame.write_ndjson, "line 2"),
        ("log.parquet", frame.write_parquet, "row 2"),
    ):
        write(tmp_path / name)
        file = local_file(tmp_path / name)
        plan = sniff_plan([file], Declared())
        result = read_events([file], plan)
        with pytest.raises(TooManyBadRows, match=rf"\(as in .*{re.escape(name)}, {at}\)"):
            check_bad_rows(result.quarantine, result.num_read, 0.0, plan.row_name)


def test_exact_duplicates_are_counted_and_remain_or_are_dropped_over_all_files():
    texts = (f"a,b,{EPOCH}\na,b,{EPOCH}\nb,a,{EPOCH}\n", f"a,b,{EPOCH}\na,b,{EPOCH + 1}\n")
    unchanged = read(*texts)
    assert (unchanged.num_accepted, unchanged.num_duplicates, unchanged.num_dropped) == (5, 2, 0)
    dropped = read(*texts, drop_duplicates=True)
    assert (dropped.num_accepted, dropped.num_duplicates, dropped.num_dropped) == (3, 2, 2)
    assert dropped.events.select("file", "line").rows() == [("part-0.log", 1), ("part-0.log", 3), ("part-1.log", 2)]


def test_duplicates_far_apart_are_found(monkeypatch):
    monkeypatch.setattr("dyformer.logs.events.BLOCK_ROWS", 3)
    text = "".join(f"a,b,{EPOCH + row}\n" for row in (0, 1, 2, 3, 4, 0, 5, 6, 4, 0))
    result = read(text, drop_duplicates=True)
    assert result.events["line"].to_list() == [1, 2, 3, 4, 5, 7, 8]


def test_rows_that_differ_in_weight_or_label_alone_are_no_duplicates():
    text = f"source,target,time,weight,label\na,b,{EPOCH},1,0\na,b,{EPOCH},2,0\na,b,{EPOCH},2,1\na,b,{EPOCH},2,\n"
    assert read(text + f"a,b,{EPOCH},2,\n").num_duplicates == 1


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
    assert texts(result, "source", "target", "time", "weight").rows() == expected
    if kind[0] != "parquet":
        pieces = pl.concat(raw_rows(files[0], plan, block_bytes=block_bytes), how="diagonal")
        assert pieces["source"].to_list() == [row[0] for row in expected]


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


def frame(rows):
    return pl.DataFrame(
        rows, schema={"source": pl.UInt32, "target": pl.Categorical, "weight": pl.Float64}, orient="row"
    )


@settings(deadline=None)
@given(rows=ROWS, block_rows=st.sampled_from([1, 3, 1 << 17]), is_hash_poor=st.booleans())
def test_a_row_repeats_what_stands_before_it(rows, block_rows, is_hash_poor):
    expected = [row in rows[:at] for at, row in enumerate(rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_ROWS", block_rows)
        if is_hash_poor:  # different rows share a hash
            hashed = module._hashed
            patch.setattr(module, "_hashed", lambda rows: hashed(rows) & 0x8000000000000000)
        assert repeats(frame(rows)).tolist() == expected


HEADER = "source,target,time,weight,note"
MIXED = ["1,2,{t},1,a", "1,2,{t},1,a", "1,2,{t},1,b", "1,2,{t},2,a", "1,2,{late},1,a", "3,2,{t},1,a", "1,2,{t},1,a"]
"""Two exact repeats of the first row, and two more rows with its ends and its time."""


def _content(kind: str, rows: list[str]) -> str | bytes:
    values = [row.split(",") for row in rows]
    if kind == "json":
        return "\n".join(json.dumps(dict(zip(HEADER.split(","), row, strict=True))) for row in values)
    if kind == "tab":
        return "\n".join(row.replace(",", "\t") for row in [HEADER, *rows])
    if kind == "parquet":
        return parquet(pl.DataFrame(values, schema=HEADER.split(","), orient="row").cast({"time": pl.Int64}))
    return "\n".join([HEADER, *rows])


@pytest.mark.parametrize("kind", ["csv", "tab", "json", "parquet"])
@pytest.mark.parametrize("num_before", [0, 3_000])  # the first block is read as texts, later ones as numbers
def test_repeats_are_exact_over_all_columns_and_others_are_counted_apart(kind: str, num_before: int):
    first = [f"{number + 10},{number},{EPOCH + number},1,x" for number in range(num_before)]
    rows = [row.format(t=EPOCH, late=EPOCH + 9_999) for row in MIXED]
    content = _content(kind, [rows[0], *first, *rows[1:]])
    result = read(content)
    assert (result.num_duplicates, result.num_alike) == (2, 2)
    distinct = read(content, drop_duplicates=True)
    assert (distinct.num_dropped, distinct.num_accepted) == (2, num_before + 5)
    assert distinct.events.columns == list(EVENT_COLUMNS)


def test_parquet_columns_that_are_no_single_values_are_compared_too():
    frame = pl.DataFrame({"source": ["a"] * 3, "target": ["b"] * 3, "time": [EPOCH] * 3, "tags": [["x"], ["x"], ["y"]]})
    assert (read(parquet(frame)).num_duplicates, read(parquet(frame)).num_alike) == (1, 1)


def test_the_plan_names_the_columns_that_are_not_read():
    assert "unread   note" in describe(sniff_plan(raw(_content("csv", [MIXED[0].format(t=EPOCH)]))))
    assert "unread   the other columns" in describe(
        sniff_plan(raw(f"a,b,{EPOCH},x,y\nc,d,{EPOCH + 1},x,y\n"), Declared(source=0, target=1, time=2))
    )
    assert "unread" not in describe(sniff_plan(raw(f"source,target,time\na,b,{EPOCH}\n")))
