"""Results, progress and next commands -> lines and tables on a terminal, or JSON."""

import functools
import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dyformer.logs.counts import counted

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table

    from dyformer.experiments.printed import PrintedTable

Item = TypeVar("Item")
MAX_WIDTH = 10_000
SECONDS_BETWEEN_LINES = 15.0
LONGEST_BAR = 0.98  # of a stage's bar, while it goes on for longer than planned
LONGER = "longer than planned"
QUIET = "DYFORMER_NO_PROGRESS"  # a variable of the processes that print no progress
LEAST_PRINTED = 0.0005  # smaller probabilities are written with an exponent
NUM_ROWS = 5  # of a table after a run
LONG_TEXT, LEAST_WRAPPED = 40, 24  # characters of a cell, and of the column that it is wrapped in
SHORT_LIST = 4  # values; a table shows the first two of a longer list
CONTROL = re.compile("[\0-\b\v-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Write control characters, which a terminal obeys, and broken ones as escapes."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printed_probability(value: float) -> str:
    """Write a probability with four decimals, a small one with an exponent, and none as 0."""
    return f"{value:.4f}" if value >= LEAST_PRINTED else f"{value:.1e}" if value > 0 else "0"


def _least_width(table: "Table", console: "Console") -> int:
    """Give the least width in which no word of a cell is divided; names of columns may be.

    Beside long texts the other columns are whole, and a column of long texts has LEAST_WRAPPED characters.
    """
    table.show_header = False
    width = console.measure(table).minimum
    table.show_header = True
    for column in table.columns:
        if any(console.measure(cell).maximum > LONG_TEXT for cell in column.cells):
            column.max_width = LEAST_WRAPPED
    if any(column.max_width for column in table.columns):
        width = max(width, console.measure(table).maximum)
    for column in table.columns:
        column.max_width = None
    return width


def _set_widths(table: "Table", console: "Console", width: int) -> None:
    """Give each column the width of its longest word, and then what is left to the columns in turn.

    Rich itself would narrow the widest column until its words are divided. Names of columns are, where they have to be.
    """
    words = [max((console.measure(cell).minimum for cell in column.cells), default=0) for column in table.columns]
    names = [console.measure(column.header).minimum for column in table.columns]
    left = width - 3 * len(words) - 1  # rich's borders and spaces
    least = list(map(max, words, names))
    least = least if sum(least) <= left else words
    left -= sum(least)
    for column, narrow in zip(table.columns, least, strict=True):
        wide = max(console.measure(text).maximum for text in (column.header, *column.cells))
        column.width = min(wide, narrow + left)
        left -= column.width - narrow


def _transposed(table: "Table") -> "Table":
    """Give a line for each value of a table, and below each row of it a border."""
    from rich.table import Table

    lines = Table(show_header=False)
    for row in zip(*(column.cells for column in table.columns), strict=True):
        for column, cell in zip(table.columns, row, strict=True):
            lines.add_row(column.header, cell)
        lines.add_section()
    return lines


def print_frame(frame: "pl.DataFrame", title: str = "") -> None:
    """Print a small table; where a terminal has no room for its words and long texts, a line for each value."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # a plain string would be read as markup

    table = Table()
    for name, dtype in frame.schema.items():
        table.add_column(Text(printable(name)), justify="right" if dtype.is_numeric() else "left", overflow="fold")
    for row in with_written_times(frame).iter_rows():
        table.add_row(*(Text(printable(_cell(value)).replace("\n", "\\n")) for value in row))
    # Without a terminal rich wraps at 80 columns, but a file or a pipe takes any width.
    console, wide = Console(), Console(width=MAX_WIDTH)
    if not console.is_terminal:
        console = Console(width=wide.measure(table).maximum)
    elif _least_width(table, wide) > console.width:
        table = _transposed(table)
    elif wide.measure(table).maximum > console.width:
        _set_widths(table, wide, console.width)
    if title:  # above the table instead of as its title, which rich would wrap at the width of the table
        console.print(Text(printable(title), style="italic"), soft_wrap=True)
    console.print(table)


def print_tables(tables: "list[PrintedTable]", num_rows: int | None = None) -> None:
    """Print tables, each with its sentences below it; with `num_rows` the first rows of each alone."""
    for table in tables:
        print_frame(table.frame.head(num_rows or table.frame.height), table.title)
        if num_rows is not None and table.frame.height > num_rows:
            print(f"and {table.frame.height - num_rows} more: --table prints all")
        print(*table.sentences, sep="\n", end="\n" if table.sentences else "")


def counts_line(counts: dict[str, Any]) -> str:
    """Format the number of rows read by an ingest, and the number that became events; without any, those of before."""
    from storage.events.versions import COUNTS  # late, because it imports Polars

    before, comments, alike = counts["before"], counts["num_comments"], counts["num_alike"]
    num_files, num_new = before["num_files"], counts["num_read"] - before["num_read"]
    were = "was" if before["num_read"] == 1 else "were"
    files = f"{counted(before['num_read'], 'row')} of {counted(num_files, 'file')} {were} read before"
    new = {name: f"{counts[name] - (before[name] if num_new else 0):,}" for name in COUNTS}
    more = "1 more row has" if alike == 1 else f"{alike:,} more rows have"
    duplicates = f"{new['num_duplicates']} exact duplicate{'' if new['num_duplicates'] == '1' else 's'}"
    read = f"{counted(num_new, 'row')} read" if num_new else f"0 rows read; {files}"
    return (
        f"{counts['dataset']}: {read}"
        f" = {new['num_accepted']} accepted + {new['num_quarantined']} quarantined + {new['num_dropped']} dropped"
        f" ({duplicates}){f'; {files}' if num_new and num_files else ''}"
        f"; event table version {counts['version']}"
        f"{f'; {more} the ends and the time of another, but other columns' if alike else ''}"
        f"{f'; comment lines left out: {comments:,}' if comments else ''}"
        f"{'' if counts['changed'] else ', no new rows'}"
    )


@functools.cache
def print_once(line: str) -> None:
    """Print a line that a command and the flow that it calls both have, once in a process."""
    print(printable(line), flush=True)


def no_new_line(dataset: str) -> str:
    """Say why a retraining makes nothing."""
    return f"{dataset}: no new rows of complete windows, and no new settings, since the last run"


def plain_steps(metrics: "pl.DataFrame") -> list[dict[str, Any]]:
    """Return a row for each metric; a step is a number, `micro` or `macro`."""
    rows = metrics.to_dicts()
    for row in rows:
        row |= {"step": int(row["step"])} if row.get("step", "").isdecimal() else {}
    return rows


def print_no_progress() -> None:
    """Leave the progress to the process that started this one and others beside it, whose lines would mix."""
    os.environ[QUIET] = "1"


def tracked(
    items: Iterable[Item], title: str, total: int | None = None, was_stored: Callable[[Item], bool] = lambda item: False
) -> Iterator[Item]:
    """Yield the items and print how many are done: a bar on a terminal, elsewhere an occasional line.

    An item that an earlier run has stored takes no time, so that the line's time left is that of the others.
    """
    if QUIET in os.environ:
        return iter(items)
    return _with_bar(items, title, total) if sys.stderr.isatty() else _with_lines(items, title, total, was_stored)


@contextmanager
def timed_stage(title: str, seconds: float | None) -> Iterator[None]:
    """Print the time left of a stage that takes about so many seconds; nothing where that is not known.

    A terminal has a bar for it, above what is shown of the work inside. Elsewhere a line is printed where none was for
    SECONDS_BETWEEN_LINES, and lines of work that does not know its own time left end with that of the stage.
    """
    if QUIET in os.environ or not seconds:
        yield
        return
    now = time.monotonic()
    stage = _Stage(title=title, begun=now, seconds=seconds, newest_line=_silent_since(now))
    token = _STAGE.set(stage)
    try:
        with _stage_bar(stage) if sys.stderr.isatty() else _repeated(stage.print_if_silent):
            yield
    finally:
        _STAGE.reset(token)


@contextmanager
def ongoing(title: str, total: int | None = None, *, to_errors: bool = False) -> Iterator[Callable[[], None]]:
    """Print that work goes on, a spinner or a bar on a terminal, elsewhere an occasional line.

    With `to_errors` the lines stand in the standard error, where they do not mix with what the command prints.

    With the number of its parts, it has the time left, from the parts of which the caller said that they are done.
    Without it, what is shown of work inside this one takes its place.
    """
    total = None if total == 1 else total  # its time left is not known before it has ended
    if QUIET in os.environ:
        yield lambda: None
        return
    outer = _OUTER.get()
    if outer is not None:
        outer.hide()
    try:
        with _spinner_or_bar(title, total) if sys.stderr.isatty() else _lines(title, total, to_errors) as advance:
            yield advance
    finally:
        if outer is not None:
            outer.show()


def with_written_times(frame: "pl.DataFrame") -> "pl.DataFrame":
    """Give the times of a table as texts, because Python has none after the year 9999."""
    import polars as pl

    times = [name for name, dtype in frame.schema.items() if dtype == pl.Datetime]
    return frame.with_columns(pl.col(times).dt.strftime("%Y-%m-%d %H:%M:%S%.f"))


def print_json(value: Any) -> None:
    """Print JSON on one line: dates and durations as texts, bytes in hexadecimal, NaN and infinity as null."""
    print(json.dumps(_plain(value), allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Decimal):  # such as the sum of integers in DuckDB
        value = int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, str | int) else str(value)


def write_json(file: Path, value: Any) -> None:
    """Write JSON to a file given by the user; creates its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=1) + "\n")


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list) and len(value) > SHORT_LIST:
        return f"[{_cell(value[0])}, {_cell(value[1])}, ... {len(value)} values]"
    if isinstance(value, list) and all(isinstance(inner, str) for inner in value):
        return "; ".join(value)  # such as reasons, as in a ranking
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    """Write a number with two decimals, one below 1, such as a probability or a score, with four."""
    if not abs(value) < 1:
        return f"{value:.2f}"
    return f"{'-' if value < 0 else ''}{printed_probability(abs(value))}"


@functools.cache
def _terminal() -> "Console":
    """Return the shared console, so that a training's bar appears below its benchmark's."""
    from rich.console import Console

    return Console(stderr=True)


def _progress(*columns: "ProgressColumn") -> "Progress":
    """Give a bar, or the columns of another kind, on the terminal; what is printed meanwhile stands above it."""
    from rich.progress import Progress

    # By default rich would print on the terminal, too, what the command writes into a file or a pipe.
    return Progress(*columns, console=_terminal(), transient=True, redirect_stdout=sys.stdout.isatty())


def _with_bar(items: Iterable[Item], title: str, total: int | None) -> Iterator[Item]:
    with _progress() as progress:
        yield from progress.track(items, total=total, description=title)


def _with_lines(
    items: Iterable[Item], title: str, total: int | None, was_stored: Callable[[Item], bool]
) -> Iterator[Item]:
    started = ended_first = time.monotonic()
    printed = _silent_since(started)
    num_stored = 0
    for number, item in enumerate(items, start=1):
        num_stored += was_stored(item)
        yield item
        now, num_new = time.monotonic(), number - num_stored
        ended_first = now if num_new <= 1 else ended_first
        if now - printed >= SECONDS_BETWEEN_LINES:
            # The first item takes longer than others: its part is compiled or read once. A stage knows better then.
            rate = (now - started) if num_new == 1 else (now - ended_first) / max(num_new - 1, 1)
            left = f", about {rate * (total - number):.0f} s left" if total and num_new else ""
            done = f"{number}{f' of {total}' if total else ''}{f' ({num_stored} stored before)' if num_stored else ''}"
            own = "" if num_new == 1 and _STAGE.get() is not None else left
            print(f"{title}: {done}, {now - started:.0f} s{own or _left_of_stage(now)}", flush=True)
            _note_line(now)
            printed = now


@dataclass(kw_only=True)
class _Stage:
    """A stage, about how many seconds it takes, and when the newest line of it was printed."""

    title: str
    begun: float
    seconds: float
    newest_line: float

    def left(self, now: float) -> str:
        """Write the time left."""
        left = self.begun + self.seconds - now
        return f"about {left:.0f} s left" if left > 0 else LONGER

    def print_if_silent(self) -> None:
        """Print the time left, where no line was printed for SECONDS_BETWEEN_LINES."""
        now = time.monotonic()
        if now - self.newest_line >= SECONDS_BETWEEN_LINES:
            print(f"{self.title}: {now - self.begun:.0f} s so far, {self.left(now)}", flush=True)
            self.newest_line = _PRINTED.newest = now


_STAGE: ContextVar[_Stage | None] = ContextVar("_STAGE", default=None)


def _left_of_stage(now: float) -> str:
    """Write the time left of the stage that a line belongs to; nothing without one."""
    stage = _STAGE.get()
    return "" if stage is None else f"; {stage.title}: {stage.left(now)}"


@dataclass(kw_only=True)
class _Printed:
    """When the newest line was printed, or work began after one of long ago."""

    newest: float = -math.inf


_PRINTED = _Printed()


def _silent_since(now: float) -> float:
    """Give the moment of the newest line, so that no silence is longer where one work ends and another begins."""
    if not 0 <= now - _PRINTED.newest <= SECONDS_BETWEEN_LINES:
        _PRINTED.newest = now
    return _PRINTED.newest


def _note_line(now: float) -> None:
    """Note that a line was printed, for its stage, too."""
    _PRINTED.newest = now
    if (stage := _STAGE.get()) is not None:
        stage.newest_line = now


@contextmanager
def _stage_bar(stage: _Stage) -> Iterator[None]:
    with _progress() as progress:
        task = progress.add_task(stage.title, total=stage.seconds)

        def advance() -> None:  # to its end only once the stage has ended
            passed = time.monotonic() - stage.begun
            title = stage.title if passed < stage.seconds else f"{stage.title}, {LONGER}"
            progress.update(task, completed=min(passed, LONGEST_BAR * stage.seconds), description=title)

        with _repeated(advance):
            yield


@contextmanager
def _repeated(call: Callable[[], None], seconds: float | None = None, first: float | None = None) -> Iterator[None]:
    """Call a function again and again in the background, by default every second, the first time after `first`.

    It runs in the caller's context, where Prefect takes what is printed for the log of the run.
    """
    ended, pause = threading.Event(), min(1.0, SECONDS_BETWEEN_LINES) if seconds is None else seconds

    def run() -> None:
        wait = pause if first is None else first
        while not ended.wait(wait):
            call()
            wait = pause

    thread = threading.Thread(target=copy_context().run, args=(run,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@dataclass(frozen=True, kw_only=True)
class _Outer:
    """What is shown of work without a number of parts."""

    hide: Callable[[], None]
    show: Callable[[], None]


_OUTER: ContextVar[_Outer | None] = ContextVar("_OUTER", default=None)


@contextmanager
def _as_outer(outer: _Outer | None) -> Iterator[None]:
    token = _OUTER.set(outer)
    try:
        yield
    finally:
        _OUTER.reset(token)


@contextmanager
def _spinner_or_bar(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    if total is None:
        from rich.progress import SpinnerColumn, TextColumn

        with _progress(SpinnerColumn(), TextColumn("{task.description}")) as progress:
            progress.add_task(title, total=None)
            with _as_outer(_Outer(hide=progress.stop, show=progress.start)):
                yield lambda: None
        return
    with _progress() as progress, _as_outer(None):
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)


@contextmanager
def _lines(title: str, total: int | None, to_errors: bool) -> Iterator[Callable[[], None]]:
    times, hidden = [time.monotonic()], threading.Event()

    def print_line() -> None:
        if hidden.is_set():
            return
        now = time.monotonic()
        left = _left_of_stage(now) if total is None or len(times) == 1 else ""
        _note_line(now)
        print(f"{title}: {_so_far(total, list(times), now)}{left}", file=sys.stderr if to_errors else None, flush=True)

    outer = _Outer(hide=hidden.set, show=hidden.clear) if total is None else None
    first = SECONDS_BETWEEN_LINES - (times[0] - _silent_since(times[0]))
    with _repeated(print_line, SECONDS_BETWEEN_LINES, first), _as_outer(outer):
        yield lambda: times.append(time.monotonic())


def _so_far(total: int | None, times: list[float], now: float) -> str:
    started, newest, num_done = times[0], times[-1], len(times) - 1
    if total is None:
        return f"{now - started:.0f} s so far"
    if num_done == 0:
        return f"0 of {total}, {now - started:.0f} s so far"
    left = (newest - started) / num_done * (total - num_done) - (now - newest)
    return f"{num_done} of {total}, {now - started:.0f} s, about {max(left, 0):.0f} s left"
