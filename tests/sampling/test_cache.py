"""Values are computed once, and the size of the cache is bounded."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dyformer.sampling.link_batches import cached


def recorded(max_size: int) -> tuple[Callable[[int], str], list[int]]:
    """A cached text of `key` letters, and the keys in the order in which values were computed."""
    computed: list[int] = []

    def compute(key: int) -> str:
        computed.append(key)
        return "x" * key

    return cached(compute, size=len, max_size=max_size), computed


def test_a_cached_value_is_not_computed_again():
    function, computed = recorded(100)
    assert [function(3), function(5), function(3)] == ["xxx", "xxxxx", "xxx"]
    assert function(3) is function(3)
    assert computed == [3, 5]


def test_the_least_recently_used_value_is_evicted_first():
    function, computed = recorded(10)
    for key in (4, 5, 4, 3):  # 5 is evicted for 3
        function(key)
    assert computed == [4, 5, 3]
    function(4)
    function(3)
    assert computed == [4, 5, 3]
    function(5)
    assert computed == [4, 5, 3, 5]


def test_values_whose_sizes_sum_to_the_maximum_are_all_cached():
    function, computed = recorded(10)
    for key in (4, 6, 4, 6):
        function(key)
    assert computed == [4, 6]


def test_a_value_larger_than_the_maximum_is_cached_alone():
    function, computed = recorded(10)
    for key in (2, 50, 50, 2):
        function(key)
    assert computed == [2, 50, 2]


def test_many_threads_that_need_one_value_get_the_same_one():
    together, computed = threading.Barrier(8), []

    def compute(key: int) -> object:
        computed.append(key)
        threading.Event().wait(0.05)
        return object()

    function = cached(compute, size=lambda value: 1, max_size=10)

    def wait_and_call(_: int) -> object:
        together.wait(10)
        return function(1)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(wait_and_call, range(8)))) == 1
    assert computed == [1]


def test_different_values_are_computed_concurrently():
    together = threading.Barrier(2)
    function = cached(lambda key: together.wait(10), size=lambda value: 1, max_size=10)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(function, range(2))) == [0, 1]


def test_a_value_in_computation_is_not_computed_again_after_a_large_one():
    begun, go_on, computed = threading.Event(), threading.Event(), []

    def compute(key: int) -> int:
        computed.append(key)
        if key == 1:
            begun.set()
            assert go_on.wait(10)
        return key

    function = cached(compute, size=lambda value: value, max_size=10)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(function, 1)
        assert begun.wait(10)
        assert function(50) == 50
        second = pool.submit(function, 1)
        go_on.set()
        assert first.result(10) is second.result(10)
    assert computed == [1, 50]


def test_many_threads_and_evictions_give_each_key_its_value():
    function, _ = recorded(20)
    with ThreadPoolExecutor(8) as pool:
        keys = [key % 13 for key in range(2_000)]
        assert list(pool.map(function, keys)) == ["x" * key for key in keys]


def test_a_failed_computation_is_tried_again():
    tries: list[int] = []

    def compute(key: int) -> int:
        tries.append(key)
        if len(tries) == 1:
            raise ZeroDivisionError
        return key

    function = cached(compute, size=lambda value: 1, max_size=10)
    with pytest.raises(ZeroDivisionError):
        function(7)
    assert function(7) == 7
