"""Each minute, a process that looks -> `reconcile` done, in a fork of one that has imported all that a look needs.

Importing Prefect and the store takes 1.6 s of processor time, and a look in which nothing is due a small part of that.
A fork begins with everything imported and nothing else: no look leaves memory, threads or caches to the next one.
"""

import multiprocessing
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from storage.bytes.files import make_folder
from storage.layout import Layout

LOCK = "looks.lock"
SECONDS_BETWEEN = 60.0  # from the beginning of a look to that of the next one
LONGEST_SECONDS = 300.0  # of a look that hangs: the next one goes on where it was ended
SECONDS_BETWEEN_TRIES = 5.0  # to be the one of this machine that looks


def look_each_minute(look: Callable[[], object], is_over: Callable[[float], bool], longest: float) -> None:
    """Look, and again each minute, one look at a time, until the given wait of some seconds says that it is over.

    Args:
        look: called in a fork of this process.
        is_over: waits for these seconds; returns at once, with True, when no more looks are wanted.
        longest: seconds after which a look is killed.
    """
    forking, seconds = multiprocessing.get_context("fork"), 0.0
    while not is_over(seconds):
        begun = time.monotonic()
        process = forking.Process(target=look)
        process.start()
        process.join(longest)
        if process.is_alive():
            print(f"a look took {longest:.0f} s: it was ended, and the next one begins", flush=True)
            process.kill()
            process.join()
        seconds = max(0.0, begun + SECONDS_BETWEEN - time.monotonic())


def has_ended(seconds: float) -> bool:
    """Wait; returns True as soon as the process that started this one has ended, which closes its end of a pipe."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def main() -> None:
    """Look each minute until the process ends that started this one; one process of a machine and store does."""
    layout = Layout.from_environment()
    make_folder(Path(layout.service))
    lock = FileLock(Path(layout.service) / LOCK)  # a look has it as well, and keeps it if this process is killed
    while not lock.is_locked:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if has_ended(SECONDS_BETWEEN_TRIES):
                return
    from flows.service.look import look_by_itself

    look_each_minute(look_by_itself, has_ended, LONGEST_SECONDS)


if __name__ == "__main__":
    main()
