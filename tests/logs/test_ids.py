import numpy as np
import polars as pl
import pytest

from dyformer.logs.ids import ID, as_texts, compact, num_digits, united


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
