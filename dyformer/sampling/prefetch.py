"""Jobs -> their results in order, computed in background threads while earlier results are used.

The loader is our own, because torch's DataLoader makes batches in processes, each with a copy of the graph. Threads
suffice here, because the compiled loops release Python's lock.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from dyformer.sampling.limits import usable_cpus

Item = TypeVar("Item")

NUM_THREADS = max(2, min(16, usable_cpus()))  # a GPU uses a batch faster than two threads make the next one
NUM_AHEAD = 2 * NUM_THREADS


def loaded(jobs: Iterable[Callable[[], Item]], *, num_threads: int, num_ahead: int) -> Generator[Item, None, None]:
    """Yield the result of each job, in the order of the jobs; with 0 threads, each is computed when it is needed.

    Jobs run in `num_threads` threads, at most `num_ahead` of them before their results are needed. The error of a job
    is raised instead of its result. Closing the generator, or an error, cancels the jobs that have not begun and waits
    for those that have: no thread is left.
    """
    if num_threads == 0:
        yield from (job() for job in jobs)
        return
    coming: deque[Future[Item]] = deque()
    with ThreadPoolExecutor(num_threads, thread_name_prefix="loader") as pool:
        try:
            for job in jobs:
                coming.append(pool.submit(job))
                if len(coming) > num_ahead:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()
