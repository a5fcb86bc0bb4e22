"""Values are made once, and no more are kept than fit."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dyformer.sampling.cache import Kept


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


def test_values_whose_sizes_come_to_just_the_most_are_all_kept():
    kept, made = recorded(10)
    for key in (4, 6, 4, 6):
        kept(key)
    assert made == [4, 6]


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


def test_a_value_that_is_being_made_is_not_forgotten_for_a_large_one():
    begun, go_on, made = threading.Event(), threading.Event(), []

    def make(key: int) -> int:
        made.append(key)
        if key == 1:
            begun.set()
            assert go_on.wait(10)
        return key

    kept = Kept(make, size=lambda value: value, most=10)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(kept, 1)
        assert begun.wait(10)
        assert kept(50) == 50
        second = pool.submit(kept, 1)
        go_on.set()
        assert first.result(10) is second.result(10)
    assert made == [1, 50]


def test_what_is_kept_changes_under_the_lock_alone():
    kept = Kept(lambda key: key, size=lambda value: 4, most=10)

    class Guarded(dict):
        def pop(self, *arguments):
            assert kept._lock.locked()
            return super().pop(*arguments)

        def __setitem__(self, key, value):
            assert kept._lock.locked()
            super().__setitem__(key, value)

    kept._entries = Guarded()
    assert [kept(key) for key in (1, 2, 3, 4, 1)] == [1, 2, 3, 4, 1]
    assert not kept._lock.locked()


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
