"""The end of a command -> one line and its exit code; an unexpected error also leaves a log with its traceback.

0 the command did its work            1 an error, named in one line          2 wrong usage
3 there were no new rows or settings  130 stopped, by Ctrl-C for example
"""

import errno
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dyformer import DyformerError
from dyformer.experiments.extras import missing
from flows.console import printable
from flows.tasks.reading_options import on_command_line
from storage.tracking.addresses import without_password

FULL = (errno.ENOSPC, errno.EDQUOT)
FAILED, USAGE, NOTHING_TO_DO, STOPPED = 1, 2, 3, 130
SECONDS_TO_STOP = 2.0
SECONDS_TO_POSTPONE = 0.05
STOPPED_LINE = "stopped; the same command goes on from here"


def exit_code(command: Callable[[], None]) -> int:
    """Run a command that may raise SystemExit; print one line for an error, also where its output cannot be written."""
    code = _written_out(_code_of(command))
    if _was_interrupted.is_set():  # the end of the interpreter frees the memory of all libraries, which takes seconds
        _end_now(code)
    return code


def _end_now(code: int) -> NoReturn:
    """End this process without Python's own end; the copies of files in S3 that it has read are removed first."""
    try:
        if (checksums := sys.modules.get("storage.bytes.checksums")) is not None:  # else it has read none
            checksums.remove_copies()
    finally:
        os._exit(code)


def _code_of(command: Callable[[], None]) -> int:
    try:
        with _stopped_in_time():
            command()
    except SystemExit as ending:
        if ending.code != STOPPED:
            return ending.code if isinstance(ending.code, int) else FAILED
    except KeyboardInterrupt:
        pass
    except BaseException as error:  # noqa: BLE001, because panics of libraries in Rust are no Exception
        if not _was_interrupted.is_set():  # a library may raise an error of its own for it
            _print_line(_message(error))
            return FAILED
    else:
        return 0
    _print_stopped()
    return STOPPED


def _written_out(code: int) -> int:
    """Write what is left of the output, and give the exit code; nothing is printed where nobody reads the output."""
    if sys.stdout is None:  # closed by the shell
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and code != FAILED:
            _print_line(_message(error))
        with Path(os.devnull).open("w") as nothing:  # else the interpreter's end writes again, and prints a traceback
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        return code or FAILED
    return code


def _message(error: BaseException) -> str:
    """Write an error that this program names as it is, and any other with the place of its log."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror or error}; check that the disk works, has space and may be written"
    if isinstance(error, OSError) and error.errno in FULL:
        remedy = "free space on its disk, or write it elsewhere, then run the same command again"
        return f"the output, or a file that has no name here, cannot be written ({error.strerror}): {remedy}"
    if isinstance(error, MemoryError):
        return "not enough memory: end other programs, or take a larger machine, then run the same command again"
    if isinstance(error, DyformerError):
        return on_command_line(str(error))
    if isinstance(error, ModuleNotFoundError) and error.name and (remedy := missing(error.name)) is not None:
        return remedy
    first = str(error).strip().partition("\n")[0]
    return f"unexpected error ({type(error).__name__}: {first}); {_logged(error)}"


def _logged(error: BaseException) -> str:
    """Write the traceback to a file of the store's state, or of the system's temporary folder; give its place."""
    from storage.layout import Layout

    name = f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}-{os.getpid()}.log"
    text = "".join([f"{sys.argv}\n", *traceback.format_exception(error)])
    problem: Exception | None = None
    for folder in (lambda: Layout.from_environment().faults, lambda: tempfile.gettempdir() + "/dyformer-faults"):
        try:
            file = Path(folder()) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(without_password(text), encoding="utf-8", errors="backslashreplace")
        except (OSError, ValueError) as fault:
            problem = fault
            continue
        return f"its log is {file}"
    return f"its log could not be written ({problem})"


def _print_line(text: str) -> None:
    print(f"dyformer: {printable(without_password(text))}", file=sys.stderr)


_was_interrupted, _has_ended, _printing = threading.Event(), threading.Event(), threading.Lock()


def _print_stopped() -> None:
    """Print the line once; a second thread returns, and ends the process, after it is written."""
    with _printing:
        if not _has_ended.is_set():
            _has_ended.set()
            os.write(2, f"{STOPPED_LINE}\n".encode())


@contextmanager
def _stopped_in_time() -> Iterator[None]:
    """End the process soon after Ctrl-C, whatever a library does meanwhile.

    Python's own handler only runs between two of its instructions, so a thread waits for the signal as well.
    """
    # A shell's background job ignores Ctrl-C, which is meant for the job in the foreground.
    is_ignored = signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None)
    if is_ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    handler, hook = signal.signal(signal.SIGINT, _interrupted), sys.unraisablehook
    sys.unraisablehook = partial(_print_unraisable, hook)
    threading.Thread(target=_wait_for_interrupt, args=(reader,), daemon=True).start()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.set_wakeup_fd(descriptor)
        sys.unraisablehook = hook
        writer.close()


@contextmanager
def ended_by_itself() -> Iterator[None]:
    """Set no time limit after Ctrl-C to what runs in the `with` block, as a server that finishes its requests."""
    descriptor = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)


def _print_unraisable(hook: Callable[["sys.UnraisableHookArgs"], object], error: "sys.UnraisableHookArgs") -> None:
    """Print an error that cannot be raised, such as one of a finalizer; Ctrl-C in one ends the process all the same."""
    if not issubclass(error.exc_type, KeyboardInterrupt):
        hook(error)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, in an import soon after it: some libraries in C++ abort where theirs is interrupted."""
    if not _was_interrupted.is_set():
        _was_interrupted.set()
        threading.Thread(target=_end_soon, daemon=True).start()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            threading.Thread(target=_interrupt_soon, daemon=True).start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _interrupt_soon() -> None:
    time.sleep(SECONDS_TO_POSTPONE)
    if signal.getsignal(signal.SIGINT) is _interrupted:  # else the command has ended
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _wait_for_interrupt(reader: socket.socket) -> None:
    with reader:
        while number := reader.recv(1):
            if number[0] == signal.SIGINT:
                _end_soon()


def _end_soon() -> None:
    time.sleep(SECONDS_TO_STOP)
    _print_stopped()
    _end_now(STOPPED)
