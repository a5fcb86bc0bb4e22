"""Progress of a long computation: a bar on a terminal, a plain line now and then elsewhere."""

import functools
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 15.0


def tracked(items: Iterable[Item], title: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items and show how far they have come."""
    return _with_bar(items, title, total) if sys.stderr.isatty() else _with_lines(items, title, total)


@functools.cache
def _terminal() -> Any:
    """One console, so that a training's bar stands below its benchmark's."""
    from rich.console import Console

    return Console(stderr=True)


def _with_bar(items: Iterable[Item], title: str, total: int | None) -> Iterator[Item]:
    from rich.progress import track

    return iter(track(items, description=title, total=total, console=_terminal(), transient=True))


def _with_lines(items: Iterable[Item], title: str, total: int | None) -> Iterator[Item]:
    started = said = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - said >= SECONDS_BETWEEN_LINES:
            print(f"{title}: {number}{f' of {total}' if total else ''}, {now - started:.0f} s", flush=True)
            said = now
