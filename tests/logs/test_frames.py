"""Data frames and files of this machine become events without any store."""

import gzip
from datetime import UTC, datetime
from uuid import UUID

import pandas as pd
import polars as pl
import pytest
from raw_logs import EPOCH, SECOND, ends, reasons

from dyformer.logs.compression import local_file
from dyformer.logs.events import read_events
from dyformer.logs.plan import Declared
from dyformer.logs.raw_file import DamagedLog, LogNotFound
from dyformer.logs.records import as_frame, frame_file
from dyformer.logs.sniffing import sniff_plan

ROWS = {
    "user": ["ann", "bob", None, "7"],
    "item": [1, 2, 3, 4],
    "time": [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)],
    "weight": [1.0, 0.5, 2.0, -1.0],
}


def read_files(*files, **declared):
    return read_events(files, sniff_plan(list(files), Declared(**declared)))


@pytest.mark.parametrize("missing", [float("nan"), float("inf"), None])
@pytest.mark.parametrize("make", [pl.DataFrame, pd.DataFrame])
def test_an_id_that_is_no_number_is_missing(make, missing):
    read = read_files(frame_file(make({**ROWS, "user": [1.0, missing, 3.0, 4.0]})))
    assert reasons(read) == {2: "empty source id", 4: "negative weight"}
    assert [str(row[0]) for row in ends(read)] == ["1", "3"]


@pytest.mark.parametrize("make", [pl.DataFrame, pd.DataFrame])
def test_a_missing_number_and_an_infinite_one_have_reasons_of_their_own(make):
    table = {
        "source": ["ann"] * 9,
        "target": ["bob"] * 9,
        "time": [float(EPOCH), float("nan"), float("inf"), *[float(EPOCH)] * 6],
        "weight": [1.0, 1.0, 1.0, float("nan"), float("inf"), *[1.0] * 4],
    }
    read = read_files(frame_file(make(table)))
    assert reasons(read) == {2: "missing time", 3: "time is not finite", 4: "missing weight", 5: "weight is not finite"}


@pytest.mark.parametrize("make", [pl.DataFrame, pd.DataFrame])
def test_a_frame_is_read_as_a_file_of_the_same_rows_is(make, tmp_path):
    pl.DataFrame(ROWS).with_columns(pl.col("time").dt.to_string("iso:strict")).write_csv(tmp_path / "log.csv")
    of_frame, of_file = read_files(frame_file(make(ROWS))), read_files(local_file(tmp_path / "log.csv"))
    assert ends(of_frame) == ends(of_file)
    assert of_frame.events["weight"].to_list() == of_file.events["weight"].to_list() == [1.0, 0.5]
    assert reasons(of_frame) == {3: "empty source id", 4: "negative weight"}
    assert list(reasons(of_file).values()) == ["empty source id", "negative weight"]
    assert of_frame.events["file"].unique().to_list() == ["the data frame"]


def test_the_ids_of_a_frame_may_be_of_any_kind():
    times = [EPOCH, EPOCH + 1]
    for ids, texts in (
        ([7, 8], ["7", "8"]),
        ([7.0, 8.0], ["7", "8"]),
        (["x", "y"], ["x", "y"]),
        ([7, "x"], ["7", "x"]),
        (pd.Categorical(["x", "y"]), ["x", "y"]),
    ):
        frame = pd.DataFrame({"source": ids, "target": ids, "time": times}, index=["b", "a"])
        expected = [(text, text, time * SECOND) for text, time in zip(texts, times, strict=True)]
        assert ends(read_files(frame_file(frame))) == expected


@pytest.mark.parametrize(("make", "dtype"), [(UUID, pl.Object), (int, pl.Int128)])
def test_ids_that_parquet_has_no_type_for_are_texts(make, dtype):
    first, second = make("1" * 32), make("2" * 32)
    rows = [(first, second, EPOCH), (second, first, EPOCH + 1), (None, first, EPOCH + 2)]
    dtypes = dict.fromkeys(("source", "target"), dtype)
    for frame in (pl.DataFrame(rows, schema={**dtypes, "time": pl.Int64}, orient="row"), as_frame(rows)):
        read = read_files(frame_file(frame))
        expected = [(str(first), str(second), EPOCH * SECOND), (str(second), str(first), (EPOCH + 1) * SECOND)]
        assert ends(read) == expected
        assert reasons(read) == {3: "empty source id"}


def test_columns_of_a_frame_can_be_declared():
    frame = pd.DataFrame({0: ["a", "b"], 1: ["b", "c"], 2: pd.to_datetime([EPOCH, EPOCH + 1], unit="s", utc=True)})
    read = read_files(frame_file(frame), source=0, target=1, time=2)
    assert ends(read) == [("a", "b", EPOCH * SECOND), ("b", "c", (EPOCH + 1) * SECOND)]


def test_a_local_file_is_read_plain_or_compressed_and_named_when_it_cannot_be(tmp_path):
    text = f"a,b,{EPOCH}\n".encode()
    for name, content in (("plain", text), ("packed", gzip.compress(text))):
        (tmp_path / name).write_bytes(content)
        assert ends(read_files(local_file(tmp_path / name))) == [("a", "b", EPOCH * SECOND)]
    (tmp_path / "cut").write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(DamagedLog, match="cut breaks off or is damaged"):
        read_files(local_file(tmp_path / "cut"))
    with pytest.raises(LogNotFound, match="none cannot be opened"):
        read_files(local_file(tmp_path / "none"))
