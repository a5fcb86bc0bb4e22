import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dyformer.logs.ids import ID
from storage.events import rows as rows_module
from storage.events.rows import numbered

TYPES = {
    "texts": pl.String,
    "each text once": ID,
    "small integers": pl.UInt32,
    "integers": pl.Int64,
    "integers below zero": pl.Int64,
}
SCALE = {"integers": 2**40, "integers below zero": -3}


def expected(rows, known, target_side):
    """Number the nodes one by one, in the order of their rows."""
    number = {(side, text): node for node, (side, text) in enumerate(known)}
    for source, target, _ in sorted(rows, key=lambda row: row[2]):
        for end in ((0, str(source)), (target_side, str(target))):
            number.setdefault(end, len(number))
    numbers = [(number[0, str(source)], number[target_side, str(target)]) for source, target, _ in rows]
    return numbers, [(node, *end) for end, node in number.items() if node >= len(known)]


@given(
    ends=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=25),
    kind=st.sampled_from(list(TYPES)),
    known=st.sets(st.tuples(st.integers(0, 1), st.sampled_from(["1", "01", "x", "-6", str(2**40), "20", str(10**30)]))),
    target_side=st.integers(0, 1),
    table_size=st.sampled_from([1, 6, 1 << 24]),
)
def test_nodes_are_numbered_in_the_order_of_their_first_rows(ends, kind, known, target_side, table_size):
    scale = SCALE.get(kind, 1)
    rows = [(source * scale, target * scale, time) for source, target, time in ends]
    known = sorted((side * target_side, text) for side, text in known)
    known = list(dict.fromkeys(known))
    nodes = {"node": range(len(known)), "side": [side for side, _ in known], "id": [text for _, text in known]}
    schema = {"node": pl.Int64, "side": pl.Int8, "id": pl.String}
    events = pl.DataFrame(rows, schema=["source", "target", "time"], orient="row")
    if kind in ("texts", "each text once"):
        events = events.cast({"source": pl.String, "target": pl.String})
    events = events.cast({"source": TYPES[kind], "target": TYPES[kind]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "TABLE_SIZE", table_size)
        patch.setattr(rows_module, "BLOCK_ROWS", 4)
        result, new = numbered(events, pl.DataFrame(nodes, schema=schema), target_side)
    numbers, new_nodes = expected(rows, known, target_side)
    assert result.select("source_node", "target_node").rows() == numbers
    assert new.rows() == new_nodes
    assert result.drop("source_node", "target_node").equals(events)


@pytest.mark.parametrize(
    "targets", [pl.Series(["8", "x"]), pl.Series([8, 2**40]), pl.Series([8, 9], dtype=pl.UInt32), pl.Series([8, -1])]
)
def test_ends_may_have_different_types(targets):
    events = pl.DataFrame({"source": np.array([7, 8]), "target": targets, "time": [1, 2]})
    result, new = numbered(events, pl.DataFrame(schema=rows_module.NODE_COLUMNS), 0)
    assert result.select("source_node", "target_node").rows() == [(0, 1), (1, 2)]
    assert new["id"].to_list() == ["7", "8", str(targets[1])]


def test_a_known_text_that_is_no_usual_integer_is_another_node():
    known = pl.DataFrame({"node": [0, 1], "side": [0, 0], "id": ["07", "8"]}).cast({"side": pl.Int8})
    events = pl.DataFrame({"source": [7, 8], "target": [8, 7], "time": [1, 2]})
    result, new = numbered(events, known, 0)
    assert result.select("source_node", "target_node").rows() == [(2, 1), (1, 2)]
    assert new.rows() == [(2, 0, "7")]
