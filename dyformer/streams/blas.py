"""One thread for the products of BLAS, for as long as any thread of this process needs that."""

import sys
from contextlib import ContextDecorator
from functools import lru_cache
from threading import Lock
from typing import Any

import threadpoolctl


class _OneThread(ContextDecorator):
    """A limit that several threads may need at once: the first sets it, and the last restores what was before.

    `threadpool_limits` alone restores in whatever order the threads end: one of them then goes on with two threads of
    BLAS, which round otherwise, and the process keeps one for ever.
    """

    def __init__(self) -> None:
        self._lock, self._num_inside = Lock(), 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._num_inside == 0:
                _take_control()
                self._limits = _libraries(len(sys.modules)).limit(limits=1)
            self._num_inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0 and self._limits is not None:
                _take_control()
                self._limits.restore_original_limits()
                _take_control()


one_blas_thread = _OneThread()
"""A decorator and a context."""


@lru_cache(maxsize=1)
def _libraries(num_modules: int) -> threadpoolctl.ThreadpoolController:
    """Find the libraries of BLAS. Only an import loads one more, and to look for them takes milliseconds."""
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def _take_control() -> None:
    """Let any thread set a limit: from version 3.8 on only the one does that set the last one, while it lives."""
    if openblas := getattr(threadpoolctl, "OpenBLASController", None):
        getattr(openblas, "clear_controlling_thread", lambda **_: None)(force=True)
