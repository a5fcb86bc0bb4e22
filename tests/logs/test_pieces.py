import polars as pl

from dyformer.logs.events import in_pieces
from dyformer.logs.ids import ID


def block(ids, labels, dtype):
    return pl.DataFrame({"source": ids, "label": labels}, schema={"source": dtype, "label": pl.Int8})


BLOCKS = [
    block([1, 2], [None, 1], pl.Int64),
    block([2**40], [0], pl.Int64),
    block(["b", "a"], [1, None], ID),
    block(["b"], [None], ID),
    block([7], [1], pl.UInt32),
    block([5, 0, 6], [None, None, 1], pl.UInt32),
]


def test_blocks_of_the_same_types_come_in_one_piece_and_in_order():
    pieces = list(in_pieces(iter(BLOCKS)))
    assert [piece.schema["source"] for piece in pieces] == [pl.Int64, ID, pl.UInt32]
    assert [piece.rows() for piece in pieces] == [
        [(1, None), (2, 1), (2**40, 0)],
        [("b", 1), ("a", None), ("b", None)],
        [(7, 1), (5, None), (0, None), (6, 1)],
    ]
    assert all(column.n_chunks() == 1 for piece in pieces for column in piece.get_columns())
    assert list(in_pieces([])) == []


def test_a_piece_outlives_its_blocks():
    (piece,) = in_pieces(block([row], [0], pl.Int64) for row in range(3000))
    others = [bytearray(24_000) for _ in range(50)]
    assert piece["source"].to_list() == list(range(3000))
    assert len(others) == 50
