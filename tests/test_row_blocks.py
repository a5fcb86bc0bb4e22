import numpy as np
import polars as pl

from dyformer.raw_logs import row_blocks
from dyformer.raw_logs.log_ids import ID
from dyformer.raw_logs.row_blocks import in_large_blocks, in_one

SOURCES = [[1, 2], [], [2**40], ["a", "b", "c"]]


def blocks(sources, labels=(None, 1)):
    dtypes = {"source": pl.Int64, "target": pl.Int64, "label": pl.Int8}
    frames = []
    for ends in sources:
        ids = ID if "a" in ends else pl.Int64
        columns = {"source": ends, "target": ends, "label": [labels[at % 2] for at in range(len(ends))]}
        frames.append(pl.DataFrame(columns, schema=dtypes | {"source": ids, "target": ids}))
    return frames


def test_all_rows_or_those_kept_stay_in_order_and_in_one_piece():
    keep = np.array([True, False, True, False, True, True])
    whole = in_one(blocks(SOURCES))
    assert whole["source"].to_list() == ["1", "2", str(2**40), "a", "b", "c"]
    assert whole["label"].to_list() == [None, 1, None, None, 1, None]
    assert in_one(blocks(SOURCES), keep).equals(whole.filter(keep))
    numbers = in_one(blocks(SOURCES[:3]), keep[:3])
    assert numbers.schema == {"source": pl.Int64, "target": pl.Int64, "label": pl.Int8}
    assert numbers.rows() == [(1, 1, None), (2**40, 2**40, None)]
    assert numbers.n_chunks() == 1


def test_small_blocks_make_large_ones(monkeypatch):
    monkeypatch.setattr(row_blocks, "LARGE_BLOCK_ROWS", 3)
    made = list(in_large_blocks(iter(blocks([*SOURCES, [5]]))))
    assert [block.height for block in made] == [3, 3, 1]
    assert in_one(made).equals(in_one(blocks([*SOURCES, [5]])))
    assert list(in_large_blocks(iter([]))) == []
