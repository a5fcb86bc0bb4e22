"""Files of a log -> the checksums of their bytes, and streams of exactly these bytes, or an error with the file's name.

A file is opened for its checksum once, and again when its stamp shows that it may have changed: size, times, inode and
device of a local file, size and ETag of an object.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel

from dyformer.logs.raw_file import LogError, LogNotFound, RawFile, changed, exact_file, pieces
from storage.bytes.checksums import Count, RecordDamaged, read_record, write_record, wrong_kind
from storage.layout import Layout

TICK_SECONDS = 0.05  # two writes within a tick of the system's clock give a file the same time
RECENT_SECONDS = 2.0  # a tick of the coarsest clock of a disk
CHANGED_AT = 2  # place of the time of the last change in the stamp of a local file, nanoseconds since the epoch

Stamp = tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True)
class Content:
    """Checksum and number of a file's decompressed bytes, and the file's stamp before they were read."""

    sha256: str
    num_bytes: int
    stamp: Stamp | None = field(default=None, compare=False)  # None for bytes that never change
    is_recent: bool = field(default=False, compare=False)  # so that a later content may have the same stamp


def _unicode(text: str) -> str:
    text.encode()  # UnicodeEncodeError is a ValueError, as a validator raises it
    return text


Text = Annotated[str, AfterValidator(_unicode)]


class RawContent(BaseModel, strict=True):
    """The checksum of a raw file, and what shows that it has changed since."""

    sha256: Text
    num_bytes: Count
    stamp: list[int | str]


class RawFiles(BaseModel, strict=True):
    """The raw files of a log that were read, by name."""

    files: dict[Text, RawContent]


def content_of(file: RawFile, known: Content | None = None) -> Content:
    """Read a file to its end, unless it has the stamp of its known content.

    Raises:
        LogNotFound: there is no such file.
        LogChanged: the file changed meanwhile.
    """
    stamp, is_recent = _stamp_at_rest(file)
    if known is not None and known.stamp is not None and known.stamp == stamp:
        return known
    digest, num_bytes = hashlib.sha256(), 0
    with _unchanged({Content(sha256="", num_bytes=0, stamp=stamp): file}):
        for part in pieces(file.open()):
            digest.update(part)
            num_bytes += len(part)
    return Content(sha256=digest.hexdigest(), num_bytes=num_bytes, stamp=stamp, is_recent=is_recent)


@contextmanager
def exact_files(contents: Mapping[Content, RawFile]) -> Iterator[dict[Content, RawFile]]:
    """Give files whose streams have the bytes of their checksums; raises LogChanged where one has changed.

    A text is compared at the end of its stream, because another file may have its name by then. The footer of a Parquet
    file is read first, so that its stamp alone shows a change.
    """
    with _unchanged(contents):
        yield {content: exact_file(file, content.sha256) for content, file in contents.items()}


def known_contents(layout: Layout, dataset: str) -> dict[str, Content]:
    """Contents of the files of a log that were read before, by name; none where the record of them is damaged."""
    try:
        record = read_record(layout.raw_files(dataset), "", partial(wrong_kind, RawFiles)) or {"files": {}}
    except RecordDamaged:  # the files are read again, and the record is written anew
        return {}
    return {name: Content(**{**entry, "stamp": tuple(entry["stamp"])}) for name, entry in record["files"].items()}


def remember_contents(layout: Layout, dataset: str, contents: Iterable[tuple[str, Content]]) -> None:
    """Record the contents of files by name, so that a later ingest opens them only if they have changed."""
    entries_before = _entries(known_contents(layout, dataset).items())
    entries = entries_before | _entries(contents)
    if entries != entries_before:
        write_record(layout.raw_files(dataset), {"files": entries})


def _entries(contents: Iterable[tuple[str, Content]]) -> dict[str, dict[str, Any]]:
    return {
        name: {"sha256": content.sha256, "num_bytes": content.num_bytes, "stamp": list(content.stamp)}
        for name, content in contents
        if content.stamp is not None and not content.is_recent
    }


def _stamp_at_rest(file: RawFile) -> tuple[Stamp | None, bool]:
    """Give the stamp of a file, which every later write will change, and whether a disk may have a coarser clock."""
    if file.stamp is None:
        return None, False
    stamp = _stamp_of(file, file.stamp)
    if _age(stamp) < TICK_SECONDS:
        time.sleep(TICK_SECONDS)
        stamp = _stamp_of(file, file.stamp)
    return stamp, _age(stamp) < RECENT_SECONDS


def _stamp_of(file: RawFile, read: Any) -> Stamp:
    try:
        return read()
    except FileNotFoundError as error:
        raise LogNotFound(f"{file.name} cannot be opened ({error}); check its name") from error


def _age(stamp: Stamp) -> float:
    """Seconds since the last change of a local file; an object's ETag is that of its bytes."""
    return time.time() - int(stamp[CHANGED_AT]) / 1e9 if len(stamp) > CHANGED_AT else float("inf")


@contextmanager
def _unchanged(contents: Mapping[Content, RawFile]) -> Iterator[None]:
    """Raise LogChanged, also in place of another error, if a file has another stamp afterwards."""
    try:
        yield
    except (LogError, OSError) as error:
        _check_stamps(contents, error)
        raise
    _check_stamps(contents)


def _check_stamps(contents: Mapping[Content, RawFile], error: Exception | None = None) -> None:
    for content, file in contents.items():
        try:
            is_same = file.stamp is None or file.stamp() == content.stamp
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise changed(file) from error
