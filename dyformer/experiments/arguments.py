"""Checks of the arguments of the Python API, and of the process that calls it: errors say what was expected."""

import glob
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import polars as pl

from dyformer import DyformerError, InvalidInput
from dyformer.experiments.extras import need
from dyformer.logs.plan import ReadPlan
from dyformer.logs.raw_file import LogNotFound
from dyformer.logs.records import text_series
from dyformer.logs.validation import whole_ids

if TYPE_CHECKING:
    import pandas as pd

ENDS = ("source", "target")  # ends of a pair; in a log with two id spaces also the names of the sides

_used_in: int | None = None  # the process that has used the API


class ForkedProcess(DyformerError, RuntimeError):
    """A child made by fork uses the API after its parent did: threads of libraries are missing there, and it hangs."""


def check_process() -> None:
    """Raise ForkedProcess in a child made by fork if its parent used the API before.

    The threads with which polars computes do not exist in such a child, so that every use of them waits for ever.
    """
    global _used_in
    if _used_in not in (None, os.getpid()):
        raise ForkedProcess(
            "this process was made by fork after its parent had used dyformer, and would hang: expected one made by"
            ' spawn, as by multiprocessing.get_context("spawn") and by a ProcessPoolExecutor with it as `mp_context`'
        )
    _used_in = os.getpid()


def whole(name: str, value: object, *, least: int) -> int:
    """Give an argument as an integer; raises ValueError for any other value and for one below `least`."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InvalidInput(f"{name} = {value!r}: expected an integer from {least}, found {type(value).__name__}")
    if (number := operator.index(value)) < least:
        raise InvalidInput(f"{name} = {number}: expected an integer from {least}")
    return number


def several(name: str, value: object, *, least: int) -> list[int]:
    """Give an argument that is an integer, or several of them, as a list; raises ValueError."""
    if isinstance(value, SupportsIndex) or not isinstance(value, Iterable) or isinstance(value, str | bytes):
        return [whole(name, value, least=least)]
    numbers = [whole(name, entry, least=least) for entry in value]
    if not numbers:
        raise InvalidInput(f"{name} = []: expected one integer at least, from {least}")
    return numbers


def one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise ValueError unless a value is one of the allowed ones."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidInput(f"{name} = {value!r}: expected one of {', '.join(allowed)}")


def texts(name: str, value: object) -> list[str]:
    """Give an argument that is a text, or several of them, as a list; raises ValueError."""
    values = [value] if isinstance(value, str) else value
    if (
        not isinstance(values, Sequence)
        or isinstance(values, bytes)
        or not all(isinstance(text, str) for text in values)
    ):
        raise InvalidInput(f'{name} = {value!r}: expected texts such as ["1d"], found {type(value).__name__}')
    return list(values)


def settings_of(value: object) -> dict[str, Any]:
    """Give changes of settings as a dictionary, empty for None; raises ValueError for anything but a mapping."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        kind = type(value).__name__
        raise InvalidInput(f'settings: expected a dictionary such as {{"model.num_layers": 4}}, found {kind} {value!r}')
    return dict(value)


def check_device(device: object) -> None:
    """Raise ValueError for a device that torch does not know, or that this machine lacks."""
    if device == "cpu":  # also where torch is not installed
        return
    need("torch")
    import torch

    try:
        parsed = torch.device(device)  # pyright: ignore[reportArgumentType, reportCallIssue]
    except (RuntimeError, TypeError) as error:
        raise InvalidInput(f'device = {device!r}: expected "cpu", "cuda" or "cuda:1"') from error
    if parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        raise InvalidInput(f'device = {device!r}: this machine has {torch.cuda.device_count()} GPUs; pass device="cpu"')


def reported(progress: object) -> Callable[[str], None]:
    """Give the function that is called with each sentence of the progress; raises ValueError for what is none."""
    if progress is None:
        return lambda text: None
    if not isinstance(progress, Callable):
        raise InvalidInput(f"progress = {progress!r}: expected a function of one text, such as print, or None")
    return progress


def paths_of(log: object) -> list[str | Path] | None:
    """Give the paths of a log; None where it is in memory. Raises LogNotFound for what is no name of a file."""
    if isinstance(log, str | Path):
        return [_file(log)]
    if isinstance(log, Sequence) and not isinstance(log, bytes) and all(isinstance(path, str | Path) for path in log):
        return [_file(path) for path in log]
    return None


def _file(path: str | Path) -> str | Path:
    """Give the path of a file; a folder and a pattern are the command line's."""
    named = Path(as_path("log", path))
    if named.is_dir():
        raise LogNotFound(
            f"{str(path)!r} is a folder: name its files, as in sorted(Path({str(path)!r}).rglob('*.csv'))"
        )
    if glob.has_magic(str(path)) and not named.exists():
        raise LogNotFound(
            f"there is no file {path}: name the files of a pattern, as in sorted(glob.glob({str(path)!r}))"
        )
    return path


def as_path(name: str, value: object) -> Path:
    """Give an argument as a path; raises ValueError for what no file or folder can have as its name."""
    try:
        path = Path(value)  # pyright: ignore[reportArgumentType]
        is_name = b"\0" not in os.fsencode(path)
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidInput(f"{name} = {value!r}: expected a path") from error
    if not is_name:
        raise InvalidInput(f"{name} = {value!r}: expected a path")
    return path


def id_texts(ids: object) -> pl.Series:
    """Give ids as texts; raises ValueError for what is neither an id nor several of them."""
    single = isinstance(ids, str | int | np.integer) and not isinstance(ids, bool)
    if not single and (isinstance(ids, bytes | Mapping) or not isinstance(ids, Iterable)):
        raise InvalidInput(f"ids = {ids!r}: expected an id or several of them, found {type(ids).__name__}")
    texts = [str(number) for number in ([ids] if single else ids)]  # pyright: ignore[reportGeneralTypeIssues]
    return as_read(text_series(texts))


def as_read(ids: pl.Series) -> pl.Series:
    """Give ids as a log is read: as texts without blanks at their ends, which are no part of an id, and 7.0 as 7."""
    return whole_ids(stripped(ids))


def stripped(ids: pl.Series) -> pl.Series:
    """Give ids as texts without blanks at their ends. Raises ValueError for values of a type that is no id."""
    try:
        return ids.cast(pl.String).str.strip_chars()
    except pl.exceptions.PolarsError as error:
        raise InvalidInput(f"ids of the type {ids.dtype}: expected texts or integers") from error


def pair_frame(pairs: Any) -> pl.DataFrame:
    """Give pairs of ids, a frame or a sequence, as texts in the columns of ENDS; raises ValueError for others."""
    if isinstance(pairs, str | bytes | pl.LazyFrame) or not (isinstance(pairs, Sequence) or hasattr(pairs, "columns")):
        raise InvalidInput(
            f"expected pairs such as [(source, target)], or a frame with these columns; found {type(pairs).__name__}"
        )
    if isinstance(pairs, Sequence):
        wrong = [pair for pair in pairs if isinstance(pair, str) or not (isinstance(pair, Sequence) and len(pair) == 2)]
        if wrong:
            raise InvalidInput(f"expected pairs such as [(source, target)]; found {wrong[0]!r}")
        columns = {end: [str(pair[side]) for pair in pairs] for side, end in enumerate(ENDS)}
        return pl.DataFrame({end: as_read(text_series(ids)) for end, ids in columns.items()})
    missing = [end for end in ENDS if end not in pairs.columns]
    if missing:
        raise InvalidInput(f"no column {' and '.join(missing)} among {list(pairs.columns)}: expected source and target")
    return pl.DataFrame({end: as_read(pl.Series(pairs[end].to_list(), strict=False)) for end in ENDS})


def typed_ids(events: pl.DataFrame, *, are_texts: bool) -> list[pl.Series]:
    """Give the ids of both ends as Int64 where each is the usual text of such a number, else as texts."""
    ids = [events[end] for end in ENDS]
    if are_texts or all(column.dtype.is_integer() for column in ids):
        return [column.cast(pl.String if are_texts else pl.Int64) for column in ids]
    ids = [column.cast(pl.String) for column in ids]
    distinct = pl.concat([column.unique() for column in ids])
    is_number = distinct.cast(pl.Int64, strict=False).cast(pl.String) == distinct
    return [column.cast(pl.Int64) for column in ids] if is_number.fill_null(value=False).all() else ids


def has_text_ids(frame: "pl.DataFrame | pd.DataFrame", plan: ReadPlan) -> bool:
    """Whether a column of ids of a frame has texts."""
    ends = (plan.columns.source, plan.columns.target)
    types = {str(name): str(dtype).lower() for name, dtype in zip(frame.columns, frame.dtypes, strict=True)}
    names = [list(types)[end] if isinstance(end, int) else end for end in ends]
    return any(types[name].startswith(("str", "object", "cat", "enum")) for name in names)
