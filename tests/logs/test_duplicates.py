import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_logs import EPOCH, parquet, raw, read

from dyformer.logs import events as module
from dyformer.logs.events import EVENT_COLUMNS, repeats
from dyformer.logs.plan import Declared, describe
from dyformer.logs.sniffing import sniff_plan

ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"]), st.sampled_from([None, 0.5, 1.0])), max_size=25
)


def frame(rows):
    return pl.DataFrame(
        rows, schema={"source": pl.UInt32, "target": pl.Categorical, "weight": pl.Float64}, orient="row"
    )


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
