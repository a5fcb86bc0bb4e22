"""A log's name or address -> its files, given by the user, in a folder of DYFORMER_LOGS, or fetched."""

import dataclasses
import difflib
import fnmatch
import functools
import glob
import io
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import BinaryIO

from pydantic import ValidationError

from dyformer.logs.compression import decompressed, local_file
from dyformer.logs.datasets import GENERATED, Dataset, dataset_named
from dyformer.logs.planted import PLANTED, planted_log
from dyformer.logs.raw_file import DamagedLog, LogError, LogNotFound, RawFile, ReadLimits
from dyformer.logs.synthetic import generated_log
from storage.bytes import files
from storage.raw.contents import content_of

LOGS_VARIABLE = "DYFORMER_LOGS"
COMPRESSED = ("", ".gz", ".bz2", ".zst")
FETCH_TIMEOUT = 30  # seconds without a byte


class ChecksumMismatch(LogError):
    """Fetched bytes differ from the published ones."""


def find_logs(spec: str | Sequence[str] | None, dataset: str, raw_folder: str) -> list[RawFile]:
    """Find the files of a log, in the order in which they are read.

    Args:
        spec: file, folder (all files below it, sorted), pattern, or several of these; local or `s3://`. Without it a
            known dataset is looked for in the folders of DYFORMER_LOGS, then in `raw_folder`, then fetched.
        dataset: name of the log; without `spec` it must be a known one.
        raw_folder: folder of fetched files.

    Raises:
        LogNotFound: there is no such file; the message names where to get it and which option to pass.
        ChecksumMismatch: the fetched file has another checksum than the published one.
        ValueError: no `spec` and no known dataset.
    """
    if spec is not None:
        specs = [spec] if isinstance(spec, str) else spec
        if not all(one.strip() for one in specs):  # an empty path is the working folder
            raise LogNotFound("`log` is an empty text: name a file, a folder or a pattern, or leave the option out")
        addresses = list(dict.fromkeys(address for one in specs for address in _named(one)))
        return [raw_file(address) for address in addresses]
    dataset_entry = dataset_named(dataset)
    if dataset_entry.name in GENERATED:
        return [RawFile(name=f"{dataset_entry.name}.csv", open=lambda: io.BytesIO(_generated(dataset_entry.name)))]
    addresses = _stored(dataset_entry, raw_folder) or [_fetched(dataset_entry, raw_folder)]
    return [raw_file(address, dataset_entry.archive_member) for address in addresses]


def _generated(name: str) -> bytes:
    """Make the rows of a log of GENERATED."""
    return planted_log(PLANTED[name]) if name in PLANTED else generated_log()


def raw_file(address: str, member: str | None = None) -> RawFile:
    """Make a raw file of a local file or an object; `member` is the file to read from an archive."""
    limits = limits_from_environment()
    if not files.is_remote(address):
        return local_file(address, member, limits)
    open_content = functools.partial(decompressed, address, functools.partial(_opened, address), member, limits)
    return RawFile(name=address, open=open_content, limits=limits, stamp=functools.partial(files.stamp, address))


def limits_from_environment() -> ReadLimits:
    """Read the limits of raw files from DYFORMER_MAX_LINE_BYTES and so on; raises LogError for a wrong value."""
    names = {field.name: f"DYFORMER_{field.name.upper()}" for field in dataclasses.fields(ReadLimits)}
    settings = {field: os.environ[name] for field, name in names.items() if os.environ.get(name)}
    try:
        return ReadLimits(**settings)  # pyright: ignore[reportArgumentType]
    except ValidationError as error:
        fault = error.errors()[0]
        field = str(fault["loc"][0])
        raise LogError(
            f"{names[field]}={settings[field]!r}: {fault['msg']}; or unset it for the usual limit"
        ) from error


def _opened(address: str) -> BinaryIO:
    try:
        return files.open_stream(address)
    except OSError as error:
        raise LogNotFound(f"{address} cannot be opened ({error}); check its name, and that you may read it") from error


def _named(spec: str) -> list[str]:
    """Find the files of a name, folder or pattern; raises LogNotFound where there is none."""
    files_found = _remote(spec) if files.is_remote(spec) else _local(Path(spec).expanduser())
    if not files_found and Path(spec).expanduser().is_dir():
        raise LogNotFound(f"the folder {spec!r} has no file; names that begin with '.' or '_' are no logs")
    if not files_found:
        raise LogNotFound(f"no file matches {spec!r}{_nearest(spec)}; pass --log FILE, a folder or a pattern")
    return files_found


def _local(path: Path) -> list[str]:
    if path.is_file():
        return [str(path)]
    if path.is_dir():
        below = [each for each in sorted(path.rglob("*")) if _is_data(each.relative_to(path))]
        _check_folders(below, path)
        return [str(each) for each in below if _is_file(each)]
    folder = next(parent for parent in path.parents if parent.is_dir())  # the marks in its name are no pattern
    pattern = path.relative_to(folder)
    if "**" in pattern.parts:
        _check_folders([each for each in folder.rglob("*") if not _has_hidden(each.relative_to(folder))], folder)
    matches = [match for match in folder.glob(str(pattern)) if _is_named(match.relative_to(folder), pattern)]
    return sorted(str(match) for match in matches if _is_file(match))


def _is_file(path: Path) -> bool:
    """Whether a path is a file; raises LogNotFound for a link to nothing, whose rows would be missed without a word."""
    if path.is_symlink() and not path.exists():
        raise LogNotFound(
            f"{path} is a link to {str(path.readlink())!r}, which is not there: bring it back, or remove the link"
        )
    return path.is_file()


def _check_folders(paths: Sequence[Path], top: Path) -> None:
    """Raise LogNotFound for a link to a folder whose files are not found below `top` under its own name."""
    top = Path(os.path.realpath(top))
    for path in paths:
        if path.is_symlink() and path.is_dir():
            target = Path(os.path.realpath(path))
            if not target.is_relative_to(top) or _has_hidden(target.relative_to(top)):
                raise LogNotFound(
                    f"{path} is a link to the folder {str(target)!r}, whose files are not read there: remove the link,"
                    " and name that folder, too"
                )


def _remote(spec: str) -> list[str]:
    folder = spec.rstrip("/")
    try:
        if files.size(spec) is not None:
            return [spec]
        while not (addresses := files.find(folder)) and glob.has_magic(folder):  # which a folder's name may have, too
            folder = folder.rpartition("/")[0]
    except OSError as error:
        raise LogNotFound(str(error)) from error
    names = {address: address.removeprefix(f"{folder}/") for address in addresses}
    if pattern := spec.rstrip("/").removeprefix(folder)[1:]:
        fitting = [address for address, name in names.items() if _fits(name.split("/"), pattern.split("/"))]
        return [address for address in fitting if _is_named(PurePosixPath(names[address]), PurePosixPath(pattern))]
    return [address for address, name in names.items() if _is_data(PurePosixPath(name))]


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether an object's address fits a pattern as on a disk, where `*` is within a name, and `**` is any folders."""
    if not (parts and pattern):
        return not parts and set(pattern) <= {"**"}
    if pattern[0] == "**":
        return _fits(parts, pattern[1:]) or _fits(parts[1:], pattern)
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


def _is_named(path: PurePath, pattern: PurePath) -> bool:
    """Whether no part of a match is hidden, as that of an unfinished file, unless the pattern names hidden ones."""
    return not _has_hidden(path) or _has_hidden(pattern)


def _has_hidden(path: PurePath) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _is_data(path: PurePath) -> bool:
    """Whether a file is data: no hidden file, _SUCCESS marker or checksum, which writers put beside the data."""
    return not any(part.startswith((".", "_")) for part in path.parts) and path.suffix != ".crc"


def _nearest(spec: str) -> str:
    folder = Path(spec).expanduser().parent
    if files.is_remote(spec) or not folder.is_dir():
        return ""
    near = difflib.get_close_matches(Path(spec).name, [path.name for path in folder.iterdir()], n=3)
    return f" (similar names: {', '.join(near)})" if near else ""


def _stored(dataset: Dataset, raw_folder: str) -> list[str]:
    """Find a known log by its published names, or in a folder with the dataset's name."""
    for folder in _log_folders():
        named = (parent / name for parent in (folder, folder / dataset.name) for name in _stored_names(dataset))
        paths = [str(path) for path in named if path.is_file()][:1] or _local(folder / dataset.name)
        if paths:
            return paths
    fetched = files.children(raw_folder)
    return [f"{raw_folder.rstrip('/')}/{name}" for name in _stored_names(dataset) if name in fetched][:1]


def _log_folders() -> list[Path]:
    return [Path(folder).expanduser() for folder in os.environ.get(LOGS_VARIABLE, "").split(os.pathsep) if folder]


def _stored_names(dataset: Dataset) -> list[str]:
    """List the file names that the log may have: as published, compressed, or the publisher's archive."""
    names = [name + ending for name in dataset.file_names for ending in COMPRESSED]
    return names + ([PurePosixPath(dataset.origin).name] if dataset.origin else [])


def _fetched(dataset: Dataset, raw_folder: str) -> str:
    """Fetch a log to the raw folder, complete and with the right checksum, or raise."""
    if dataset.origin is None:
        raise LogNotFound(_where_to_get(dataset, "no address is known to fetch it from"))
    from http.client import HTTPException  # late, as in _download

    name = PurePosixPath(dataset.origin).name
    with tempfile.TemporaryDirectory(prefix="dyformer-") as scratch:
        path = Path(scratch) / name
        try:
            _download(dataset.origin, path)
        except (OSError, HTTPException) as error:
            raise LogNotFound(_where_to_get(dataset, f"{dataset.origin} could not be fetched ({error})")) from error
        _check(dataset, path)
        address = f"{raw_folder.rstrip('/')}/{name}"
        files.write_bytes(address, path)
    return address


def _download(url: str, path: Path) -> None:
    if not url.startswith(("http://", "https://")):
        raise OSError(f"only http and https addresses are fetched, not {url}")
    import urllib.request  # late, because few commands fetch, and all would load HTTP and e-mail

    with urllib.request.build_opener().open(url, timeout=FETCH_TIMEOUT) as response, path.open("wb") as stream:
        expected = response.headers.get("Content-Length")
        received = sum(stream.write(part) for part in iter(lambda: response.read(1 << 20), b""))
    if expected is not None and received != int(expected):
        raise OSError(f"the connection broke off after {received} of {expected} bytes")


def _check(dataset: Dataset, path: Path) -> None:
    """Read the fetched file to its end; raises ChecksumMismatch if it is truncated or not the published one."""
    try:
        checksum = content_of(raw_file(str(path), dataset.archive_member)).sha256
    except DamagedLog as error:
        raise ChecksumMismatch(
            _where_to_get(dataset, f"the file of {dataset.origin} cannot be read ({error})")
        ) from error
    if dataset.origin_sha256 not in (None, checksum):
        problem = f"the file of {dataset.origin} has SHA-256 {checksum}, expected {dataset.origin_sha256}"
        raise ChecksumMismatch(_where_to_get(dataset, problem))


def _where_to_get(dataset: Dataset, problem: str) -> str:
    folders = ", ".join(map(str, _log_folders())) or "not set"
    return (
        f"no log of {dataset.name} was found: {problem}. Get {dataset.file_names[0]} from {dataset.homepage} and"
        f" pass --log FILE, or put it into a folder of {LOGS_VARIABLE} ({folders})"
    )
