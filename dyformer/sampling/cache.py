"""A function of one key -> the same function with its values cached, each computed once for any number of threads."""

from collections.abc import Callable, Hashable
from threading import Condition
from typing import TypeVar

import cachetools

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def cached(compute: Callable[[Key], Value], *, size: Callable[[Value], int], max_size: int) -> Callable[[Key], Value]:
    """Cache the values used last, as long as their sizes sum to at most `max_size`; a larger value is cached alone.

    A thread that needs a value which another thread computes waits for it. Different values are computed concurrently.
    """
    values: cachetools.LRUCache[Key, Value] = cachetools.LRUCache(
        max_size, getsizeof=lambda value: min(size(value), max_size)
    )
    return cachetools.cached(values, condition=Condition())(compute)
