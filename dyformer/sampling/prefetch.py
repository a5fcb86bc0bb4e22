"""Works -> their results in order, computed in background threads while earlier results are used."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")

NUM_THREADS = max(2, min(16, os.cpu_count() or 2))  # a GPU is done with a batch sooner than two threads with the next
NUM_AHEAD = 2 * NUM_THREADS


def loaded(works: Iterable[Callable[[], Item]], *, num_threads: int, num_ahead: int) -> Generator[Item, None, None]:
    """Yield the result of each work, in the order of the works; without a thread, each when it is asked for.

    Works are called in `num_threads` threads, and at most `num_ahead` of them before their results are asked for. An
    error of a work is raised where its result would come. Closing the generator, or an error, forgets the works that
    have not begun and waits for those that have: no thread is left.
    """
    if num_threads == 0:
        yield from (work() for work in works)
        return
    coming: deque[Future[Item]] = deque()
    with ThreadPoolExecutor(num_threads, thread_name_prefix="loader") as pool:
        try:
            for work in works:
                coming.append(pool.submit(work))
                if len(coming) > num_ahead:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()
