import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dyformer.logs import events as module
from dyformer.logs.events import repeats

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
