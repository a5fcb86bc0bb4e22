"""One rule of ids in all formats: docs/own_log.md, "Rows"."""

import io
import json
import uuid
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raw_logs import EPOCH, SECOND, read, reasons

from dyformer.logs.ids import ID, as_texts, compact, num_digits, united
from dyformer.scoring.sent_events import BadEvent, check_id, checked_event

INEXACT = "id beyond 2^53 as a float, which stands for several integers"
UUID = "550e8400-e29b-41d4-a716-446655440000"

TEXTS = [
    ("7", "7"),
    ("007", "007"),
    ("+7", "+7"),
    ("7.0", "7"),
    ("7.00", "7"),
    ("-7.0", "-7"),
    ("0.0", "0"),
    ("7.5", "7.5"),
    ("7.50", "7.50"),
    ("07.0", "07.0"),
    ("1.2.0", "1.2.0"),
    ("v1.0", "v1.0"),
    ("1000000000000000.0", "1000000000000000"),
    ("9007199254740992.0", "9007199254740992"),
    ("9007199254740994.0", INEXACT),
    ("123456789012345678901234567890.0", INEXACT),
    ("9007199254740993", "9007199254740993"),
    ("123456789012345678901234567890", "123456789012345678901234567890"),
    ("  a b  ", "a b"),
    ("\u00a0a\u00a0", "a"),
    ("\u2003a\u3000", "a"),
    ("\u00a0", "empty source id"),
    ("\u200ba", "\u200ba"),  # a zero-width space is no blank
    (UUID, UUID),
    (UUID.upper(), UUID.upper()),
    ("1e3", "1e3"),
    ("é", "é"),
]


def block(*ends):
    sources, targets = zip(*ends, strict=True)
    return pl.DataFrame({"source": sources, "target": targets})


def types(blocks):
    return {dtype for each in blocks for dtype in each.schema.values()}


def ids(blocks):
    return [row for each in blocks for row in each.cast(pl.String).rows()]


def test_digits_are_those_of_the_texts():
    values = [0, 9, 10, 99, 100, 2**31, 10**17, 10**18 - 1]
    assert num_digits(pl.Series(values)) == len("".join(map(str, values)))
    assert num_digits(pl.Series([], dtype=pl.Int64)) == 0
    for other in (-1, None, 10**18):
        assert num_digits(pl.Series([1, other, 1])) is None


@pytest.mark.parametrize("odd", ["007", "+7", " 7", "7 ", "-7", "-0", "7.0", "1e3", "x", "٣", str(10**18), "9" * 30])
@pytest.mark.parametrize("column", ["source", "target"])
def test_one_text_that_is_no_usual_integer_keeps_all_texts(odd, column):
    good = block(("1", "2"), ("0", "30"))
    rows = good.with_columns(pl.Series(column, ["1", odd]))
    assert types([compact(good)]) == {pl.UInt32}
    assert types([compact(rows)]) == {ID}
    assert ids([compact(rows)]) == rows.rows()


def test_integers_are_held_in_as_few_bytes_as_all_blocks_allow():
    small, large = compact(block((7, 2**32 - 1))), compact(block((7, 2**32)))
    assert types([small]) == {pl.UInt32}
    assert types(united([small, small])) == {pl.UInt32}
    assert types(united([small, large])) == {pl.Int64}
    assert ids(united([small, large])) == [("7", str(2**32 - 1)), ("7", str(2**32))]


def test_one_block_of_texts_makes_texts_of_all():
    blocks = [compact(block((5, 2**40), (5, 0))), compact(block(("a", "5"))), compact(block((0, 5)))]
    assert types(united(blocks)) == {ID}
    assert ids(united(blocks)) == [("5", str(2**40)), ("5", "0"), ("a", "5"), ("0", "5")]


def test_a_block_without_rows_decides_nothing():
    empty = pl.DataFrame(schema={"source": pl.String, "target": pl.String})
    integers, texts = compact(block((1, 2))), compact(block(("a", "b")))
    for none in (empty, compact(empty), empty.cast(ID)):
        assert types(united([none, integers])) == {pl.UInt32}
        assert types(united([none, texts])) == {ID}
        assert types(united([none])) == {ID}


def test_texts_of_integers_are_written_as_usual():
    assert as_texts(pl.Series(np.array([7, 2**40]))).to_list() == ["7", str(2**40)]


def as_parquet(values: Any, times: Any = None) -> bytes:
    stream = io.BytesIO()
    times = times if times is not None else [EPOCH + row for row in range(len(values))]
    pq.write_table(pa.table({"source": values, "target": ["t"] * len(values), "time": times}), stream)
    return stream.getvalue()


def in_format(kind: str, text: str) -> str | bytes:
    if kind == "parquet":
        return as_parquet([text])
    if kind == "view":
        return as_parquet(pa.array([text], pa.string_view()))
    if kind == "binary":
        return as_parquet(pa.array([text.encode()], pa.binary()))
    if kind == "json":
        return json.dumps({"source": text, "target": "t", "time": EPOCH}) + "\n"
    separator = {"csv": ",", "tsv": "\t"}[kind]
    return separator.join(("source", "target", "time")) + "\n" + separator.join((text, "t", str(EPOCH))) + "\n"


def id_or_reason(content: str | bytes) -> str:
    good = json.dumps({"source": "x", "target": "t", "time": EPOCH}) + "\n"
    if isinstance(content, bytes):
        result = read(content, as_parquet(["x"]))
    elif content.startswith("{"):
        result = read(content + good)
    else:
        separator = "," if "," in content.partition("\n")[0] else "\t"
        result = read(content + separator.join(("x", "t", str(EPOCH))))
    sources = result.events["source"].cast(pl.String).to_list()
    return sources[0] if len(sources) == 2 else result.quarantine["reason"][0]


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "parquet", "view", "binary"])
@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_a_text_is_the_same_id_in_every_format(kind: str, text: str, expected: str):
    assert id_or_reason(in_format(kind, text)) == expected


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_an_event_is_accepted_if_an_ingest_reads_its_ids_as_they_are(text: str, expected: str):
    stays = nullcontext() if text == expected else pytest.raises(BadEvent)
    with stays:
        check_id("source", text)
    with stays:
        assert checked_event("u1", text, 1, 1.0, "s").target == text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([7], pa.int64()), "7"),
        (pa.array([-7], pa.int8()), "-7"),
        (pa.array([2**64 - 1], pa.uint64()), "18446744073709551615"),
        (pa.array([7.0]), "7"),
        (pa.array([7.5]), "7.5"),
        (pa.array([-0.0]), "0"),
        (pa.array([1e15]), "1000000000000000"),
        (pa.array([2.0**53]), "9007199254740992"),
        (pa.array([2.0**53 + 2]), INEXACT),
        (pa.array([-1e300]), INEXACT),
        (pa.array([2.0**24], pa.float32()), "16777216"),
        (pa.array([2.0**24 + 2], pa.float32()), INEXACT),
        (pa.array([Decimal("7.00")]), "7"),
        (pa.array([Decimal("7.50")]), "7.50"),
        (pa.array([Decimal("12345678901234567890.00")]), "12345678901234567890"),
        (pa.array([Decimal(7)], pa.decimal256(50, 10)), "7"),
        (pa.array([uuid.UUID(UUID).bytes], pa.uuid()), UUID),
        (pa.array(["a"]).dictionary_encode(), "a"),
        (pa.array([7.0]).dictionary_encode(), "7"),
        (pa.array([True]), "true"),
    ],
)
def test_a_typed_value_is_the_id_of_its_text(values: pa.Array, expected: str):
    assert id_or_reason(as_parquet(values)) == expected


@pytest.mark.parametrize("value", [7, 7.0, "7", "7.0", " 7 "])
def test_a_json_number_is_the_id_of_its_text(value: Any):
    assert id_or_reason(json.dumps({"source": value, "target": "t", "time": EPOCH}) + "\n") == "7"


@pytest.mark.parametrize(
    "times",
    [
        pa.array([datetime(1960, 5, 1, tzinfo=UTC)] * 2, pa.timestamp("us", "UTC")),
        pa.array([datetime(1960, 5, 1, tzinfo=UTC)] * 2, pa.timestamp("ns", "UTC")),
        pa.array([datetime(1960, 5, 1, tzinfo=UTC)] * 2, pa.timestamp("s", "UTC")),
        pa.array([date(1960, 5, 1)] * 2, pa.date32()),
        pa.array([date(1960, 5, 1)] * 2, pa.date64()),
    ],
)
def test_a_time_type_before_1970_is_read_as_its_date_in_a_text(times: pa.Array):
    from_parquet = read(as_parquet(["a", "b"], times)).events["time"].to_list()
    assert from_parquet == read("source,target,time\na,t,1960-05-01\nb,t,1960-05-01\n").events["time"].to_list()
    assert from_parquet[0] == int(datetime(1960, 5, 1, tzinfo=UTC).timestamp()) * SECOND


def test_a_time_type_in_a_log_of_another_unit_keeps_its_meaning_and_is_no_step():
    content = as_parquet(["a", "b"], pa.array([datetime(2020, 5, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")))
    result = read(content, time_unit="s")
    assert result.events["time"].to_list() == [int(datetime(2020, 5, 1, tzinfo=UTC).timestamp()) * SECOND]
    assert reasons(result) == {2: "missing time"}
    assert json.loads(result.quarantine["raw"][0])["source"] == "b"
