import json
from datetime import UTC, date, datetime

import polars as pl
import pytest
from raw_logs import EPOCH, SECOND, parquet, read, reasons

from dyformer.logs.raw_file import DamagedLog


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
    with pytest.raises(DamagedLog, match="column 'source' holds large_list"):
        read(parquet(lists))
    content = parquet(pl.DataFrame({"source": [1], "target": [3], "t": [EPOCH]}))
    with pytest.raises(DamagedLog, match=r"part-0.log starts like Parquet but cannot be read"):
        read(content[:-10])
