"""Every change of the store's files by a process -> a number, at which the process is killed or the call fails.

Python's functions that change files are replaced in this process. Writes of native code (SQLite) are not numbered;
the calls to MLflow that make them are.
"""

import builtins
import io
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

When = Literal["before", "inside", "after"]
Act = Callable[[int, str, When], None]
"""Called before and after the effect of a number and a name, and inside a write, when half of the bytes are written."""

CHANGES = ("replace", "rename", "link", "symlink", "unlink", "remove", "mkdir", "rmdir")
TO_MLFLOW = (
    "create_experiment",
    "create_run",
    "log_batch",
    "set_tag",
    "log_artifacts",
    "log_inputs",
    "set_terminated",
    "create_registered_model",
    "create_model_version",
    "set_registered_model_alias",
)


class ShortWrite(Exception):
    """Raised inside a write that is to take half of the bytes and to say so."""


class Effects:
    """Numbers the effects of this process below a folder, from 1."""

    def __init__(self, root: Path, act: Act):
        self.names: list[str] = []
        self._root, self._act = f"{root}{os.sep}", act

    def install(self) -> "Effects":
        """Replace the functions of this process."""
        for name in CHANGES:
            setattr(os, name, self._changing(name, getattr(os, name)))
        setattr(os, "fsync", self._of_descriptor("fsync", os.fsync))  # noqa: B010, as a type checker refuses assignments
        if "mlflow" in sys.modules:
            client = sys.modules["mlflow"].MlflowClient
            for name in TO_MLFLOW:
                setattr(client, name, self._numbered(f"mlflow {name}", getattr(client, name)))
        setattr(shutil, "_USE_CP_SENDFILE", False)  # noqa: B010, so that a copy writes by the file's own function
        opening = self._opening(io.open)
        for module in (io, builtins):
            setattr(module, "open", opening)  # noqa: B010
        return self

    def perform(self, name: str, effect: Callable[[], Any]) -> Any:
        """Number an effect, and do it."""
        self.names.append(name)
        number = len(self.names)
        self._act(number, name, "before")
        try:
            return effect()
        finally:  # a folder that exists already is an error, too
            self._act(number, name, "after")

    def write(self, name: str, content: Any, write: Callable[[Any], int]) -> int:
        """Number a write, and do it in two halves."""
        self.names.append(name)
        number, view = len(self.names), memoryview(content).cast("B")
        self._act(number, name, "before")
        done = write(view[: len(view) // 2])
        try:
            self._act(number, name, "inside")
        except ShortWrite:
            return done
        done += write(view[done:])
        self._act(number, name, "after")
        return done

    def _is_ours(self, path: Any, folder: int | None = None) -> bool:
        if isinstance(path, int):
            path = Path(f"/proc/self/fd/{path}").readlink()
        text = os.fspath(path)
        text = text if isinstance(text, str) else os.fsdecode(text)
        if folder is not None:
            text = str(Path(f"/proc/self/fd/{folder}").readlink() / text)
        return text.startswith(self._root) and "/locks/" not in text and not text.endswith("/lock")

    def _changing(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def changed(path: Any, *arguments: Any, **options: Any) -> Any:
            target = arguments[0] if arguments and name != "mkdir" else path
            if not self._is_ours(target, options.get("dir_fd")):
                return function(path, *arguments, **options)
            label = f"{name} {Path(os.fsdecode(target)).name}"
            with _named(path):
                return self.perform(label, lambda: function(path, *arguments, **options))

        return changed

    def _of_descriptor(self, name: str, function: Callable[[int], None]) -> Callable[[int], None]:
        def changed(descriptor: int) -> None:
            if not self._is_ours(descriptor):
                return function(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            return self.perform(f"{name} {path.name}", lambda: function(descriptor))

        return changed

    def _numbered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            return self.perform(name, lambda: function(*arguments, **options))

        return changed

    def _opening(self, function: Callable[..., Any]) -> Callable[..., Any]:
        effects = self

        class Raw(io.FileIO):
            def write(self, content: Any, /) -> int:
                return effects.write(f"write {Path(str(self.name)).name}", content, super().write)

        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if isinstance(file, int) or not set(mode) & set("wax+") or not effects._is_ours(file):
                return function(file, mode, *arguments, **options)
            names = ("buffering", "encoding", "errors", "newline")
            given = dict(zip(names, arguments, strict=False)) | options
            plain = mode.replace("b", "").replace("t", "")
            with _named(file):
                raw = effects.perform(f"create {Path(os.fsdecode(file)).name}", lambda: Raw(os.fspath(file), plain))
            if given.get("buffering") == 0:
                return raw
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            texts = {name: given[name] for name in names[1:] if name in given}
            return buffered if "b" in mode else io.TextIOWrapper(buffered, **texts)

        return opened


@contextmanager
def _named(path: Any) -> Iterator[None]:
    """Give an error the name of the file, as a system's call of a path does."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fsdecode(path)
        raise


def kill_at(number: int, when: When) -> Act:
    """End this process at an effect as a lost power does, without any of its handlers."""

    def act(found: int, name: str, now: When) -> None:
        if found == number and now == when:
            os.kill(os.getpid(), signal.SIGKILL)

    return act


def fail_at(number: int, error: BaseException) -> Act:
    """Raise the error in place of an effect; of a write half of the bytes are there."""

    def act(found: int, name: str, now: When) -> None:
        if found == number and now == ("inside" if name.startswith("write ") else "before"):
            raise error

    return act


def ignore(number: int, name: str, when: When) -> None:
    """Only number the effects."""
