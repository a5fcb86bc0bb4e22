"""Compiled loops run by the interpreter, which raises on an index beyond the end of an array."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dyformer.graphs.kernels.union import _copy, _field_of


@pytest.mark.parametrize("length", [0, 1, 14, 15, 16, 17, 31, 32, 47])
def test_a_copy_of_any_length_touches_nothing_else(length: int):
    source = np.arange(3, 3 + length)
    copied = np.full(length + 1, -1)
    assert _copy.py_func(source, 0, length, copied[1:], 0) == length
    assert_array_equal(copied, [-1, *source])
    assert _copy.py_func(source, length, length, copied[1:], length) == length


def test_a_full_field_is_skipped_and_the_first_field_follows_the_last():
    node_F = np.full(64, -1, dtype=np.int64)
    last = [node for node in range(1_000) if _field_of.py_func(node, node_F) == 63][:3]
    for node, field in zip(last, (63, 0, 1), strict=True):
        assert _field_of.py_func(node, node_F) == field
        node_F[field] = node
    assert [_field_of.py_func(node, node_F) for node in last] == [63, 0, 1]
