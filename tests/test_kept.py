"""Values are made once, and no more are kept than fit."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dyformer.kept import Kept


def recorded(most: int) -> tuple[Kept[int, str], list[int]]:
    """Text of `key` letters, and the keys in the order in which they were made."""
    made: list[int] = []

    def make(key: int) -> str:
        made.append(key)
        return "x" * key

    return Kept(make, size=len, most=most), made


def test_a_kept_value_is_not_made_again():
    kept, made = recorded(100)
    assert [kept(3), kept(5), kept(3)] == ["xxx", "xxxxx", "xxx"]
    assert kept(3) is kept(3)
    assert made == [3, 5]


def test_what_was_used_least_recently_goes_first():
    kept, made = recorded(10)
    for key in (4, 5, 4, 3):  # 5 goes for 3
        kept(key)
    assert made == [4, 5, 3]
    kept(4)
    kept(3)
    assert made == [4, 5, 3]
    kept(5)
    assert made == [4, 5, 3, 5]


def test_a_value_larger_than_all_that_may_be_kept_is_kept_alone():
    kept, made = recorded(10)
    for key in (2, 50, 50, 2):
        kept(key)
    assert made == [2, 50, 2]


def test_many_threads_that_ask_for_one_value_get_the_one_that_was_made():
    together, made = threading.Barrier(8), []

    def make(key: int) -> object:
        made.append(key)
        threading.Event().wait(0.05)
        return object()

    kept = Kept(make, size=lambda value: 1, most=10)

    def ask(_: int) -> object:
        together.wait(10)
        return kept(1)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    assert made == [1]


def test_different_values_are_made_beside_each_other():
    together = threading.Barrier(2)
    kept = Kept(lambda key: together.wait(10), size=lambda value: 1, most=10)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(kept, range(2))) == [0, 1]


def test_a_failed_making_is_tried_again():
    tries: list[int] = []

    def make(key: int) -> int:
        tries.append(key)
        if len(tries) == 1:
            raise ZeroDivisionError
        return key

    kept = Kept(make, size=lambda value: 1, most=10)
    with pytest.raises(ZeroDivisionError):
        kept(7)
    assert kept(7) == 7
