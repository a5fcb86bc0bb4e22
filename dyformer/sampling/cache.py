"""Values by key, each made once whatever number of threads asks for it."""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass
class _Entry(Generic[Value]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    made: list[Value] = field(default_factory=list)  # empty until the value is made
    size: int = 0


class Kept(Generic[Key, Value]):
    """Makes values and keeps those used last, as long as their sizes come to at most `most`; the newest one always."""

    def __init__(self, make: Callable[[Key], Value], *, size: Callable[[Value], int], most: int) -> None:
        self._make, self._size, self._most = make, size, most
        self._lock = threading.Lock()
        self._entries: dict[Key, _Entry[Value]] = {}

    def __call__(self, key: Key) -> Value:
        """Give the value of a key; who asks while another thread makes it, waits."""
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry()
            self._entries[key] = entry  # the newest comes last
        with entry.lock:
            if not entry.made:
                value = self._make(key)
                entry.made, entry.size = [value], self._size(value)
        with self._lock:
            self._let_go(key)
        return entry.made[0]

    def _let_go(self, used: Key) -> None:
        """Forget the oldest; what is still being made has no size yet."""
        total = sum(entry.size for entry in self._entries.values())
        for key, entry in list(self._entries.items()):
            if total > self._most and entry.size and key != used:
                total -= self._entries.pop(key).size
