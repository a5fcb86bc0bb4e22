"""The bytes that are hashed are the bytes that are read: a file that changes meanwhile is named, and nothing stored."""

import gzip
import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dyformer.logs.raw_file import LogChanged, LogNotFound, RawFile, pieces
from flows.tasks import ingest
from flows.tasks.ingest import ingest_log
from storage.bytes import files
from storage.events.table import ingested_datasets, newest_version
from storage.layout import Layout
from storage.raw import contents
from storage.raw.contents import Content, content_of, exact_files, known_contents
from storage.raw.log_files import find_logs

NUM_ROWS = 40_000
ROWS = [f"u{row % 97},v{row % 89},{1_600_000_000 + row}" for row in range(NUM_ROWS)]
LOG = "\n".join(["source,target,time", *ROWS]) + "\n"
OTHER = LOG.replace("u1,", "w1,")  # of the same length


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setenv("DYFORMER_STATE", "")
    return Layout.from_environment()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    return path


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def appended(path: Path) -> None:
    with path.open("a") as stream:
        stream.write("late,row,1600041000\n")


def replaced(path: Path) -> None:
    path.with_name("new").write_text(OTHER)
    path.with_name("new").rename(path)


def replaced_by_fewer(path: Path) -> None:
    path.with_name("new").write_text("\n".join(["source,target,time", *ROWS[: NUM_ROWS // 2]]))
    path.with_name("new").rename(path)


def overwritten(path: Path) -> None:
    with path.open("r+") as stream:
        stream.write(OTHER)


def overwritten_unseen(path: Path) -> None:
    """Overwrite a file and set its time back, as some programs that copy do."""
    status = path.stat()
    overwritten(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def removed(path: Path) -> None:
    path.unlink()


CHANGES = (truncated, emptied, appended, replaced, replaced_by_fewer, overwritten, overwritten_unseen, removed)
MOMENTS = ("hashed first bytes", "hashed", "sniffed", "read first bytes", "read")


class Moment:
    """Changes a file once, at a moment of its ingest."""

    def __init__(self, patch: pytest.MonkeyPatch, moment: str, change: Callable[[], None]):
        self.num_changes, self._change = 0, change
        if moment == "hashed":
            self._after(patch, ingest, "content_of")
        elif moment == "sniffed":
            self._after(patch, ingest, "sniff_plan")
        elif moment == "read":
            self._after(patch, ingest, "read_files")
        else:
            number = 0 if moment.startswith("hashed") else 1  # of the streams that are read for long
            patch.setattr(ingest, "find_logs", lambda *arguments: [self._watched(find_logs(*arguments)[0], number)])

    def change(self) -> None:
        if not self.num_changes:
            self.num_changes = 1
            self._change()

    def _after(self, patch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        real = getattr(module, name)

        def then(*arguments: Any, **options: Any) -> Any:
            result = real(*arguments, **options)
            self.change()
            return result

        patch.setattr(module, name, then)

    def _watched(self, file: RawFile, number: int) -> RawFile:
        """Change the file between the first read of a long stream and the second; `number` long ones come before."""
        opened = [0]

        def opened_then_changed() -> Any:
            stream, num_reads, watched = file.open(), [0], self

            class Stream(io.RawIOBase):
                def read(self, size: int = -1, /) -> bytes:
                    num_reads[0] += 1
                    if num_reads[0] == 2:
                        opened[0] += 1
                        if opened[0] == number + 1:
                            watched.change()
                    return stream.read(size)

                def close(self) -> None:
                    stream.close()

            return Stream()

        return replace(file, open=opened_then_changed)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_file_that_changes_while_it_is_read_is_named_and_nothing_is_stored(
    layout: Layout,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    change: Callable[[Path], None],
    packed: bool,
):
    if packed:
        log.write_bytes(gzip.compress(log.read_bytes(), 1))
    with monkeypatch.context() as patched:
        watched = Moment(patched, moment, lambda: change(log))
        with pytest.raises(LogChanged, match=rf"{log} changed while it was read, so nothing is stored"):
            ingest_log("mine", {"log": [str(log)], "window": "1h"}, lambda text: None)
    assert watched.num_changes == 1
    assert ingested_datasets(layout) == []
    if log.exists() and not packed and change is not emptied:
        counts = ingest_log("mine", {"log": [str(log)], "window": "1h"}, lambda text: None)
        assert counts["num_read"] == len(log.read_text().splitlines()) - 1


@pytest.mark.parametrize("moment", ["hashed first bytes", "hashed", "sniffed", "read"])
@pytest.mark.parametrize("change", [truncated, replaced, overwritten_unseen, appended])
def test_a_parquet_file_that_changes_while_it_is_read_is_named(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, change: Callable[[Path], None]
):
    path = tmp_path / "log.parquet"
    pl.read_csv(io.StringIO(LOG)).write_parquet(path, compression="uncompressed")
    with monkeypatch.context() as patched:
        Moment(patched, moment, lambda: change(path))
        with pytest.raises(LogChanged, match=rf"{path} changed while it was read"):
            ingest_log("mine", {"log": [str(path)], "window": "1h", "time_unit": "s"}, lambda text: None)
    assert ingested_datasets(layout) == []


def test_bytes_of_another_checksum_are_no_log_even_if_no_stamp_shows_it(log: Path):
    (file,) = find_logs(str(log), "mine", "")
    file = replace(file, stamp=None)
    content = content_of(file)
    with exact_files({content: file}) as exact:
        assert b"".join(pieces(exact[content].open(), 1000)).decode() == LOG
        overwritten(log)
        for size in (-1, 1 << 20):
            with pytest.raises(LogChanged):
                list(pieces(exact[content].open(), size))


def test_a_removed_file_is_a_named_error(log: Path):
    (file,) = find_logs(str(log), "mine", "")
    log.unlink()
    with pytest.raises(LogNotFound, match=rf"{log} cannot be opened"):
        content_of(file)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the raw files that are opened; those on the disk are as if they had been written long ago."""
    names: list[str] = []
    monkeypatch.setattr(contents, "RECENT_SECONDS", 0.0)

    def watched(*arguments: Any) -> list[RawFile]:
        return [
            replace(file, open=lambda file=file: names.append(file.name) or file.open())
            for file in find_logs(*arguments)
        ]

    monkeypatch.setattr(ingest, "find_logs", watched)
    return names


def parts(folder: Path, num: int) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"day-{number:03}.csv" for number in range(num)]
    for number, path in enumerate(paths):
        if not path.exists():
            rows = [f"u{row},v{row % 3},{1_600_000_000 + 86_400 * number + row}" for row in range(20)]
            path.write_text("\n".join(["source,target,time", *rows]) + "\n")
    return paths


def test_an_unchanged_file_is_not_opened_again(layout: Layout, tmp_path: Path, opened: list[str]):
    reading = {"log": [str(tmp_path / "days")], "window": "1d"}
    for num, is_new in ((12, True), (13, True), (13, False)):
        paths = [str(path) for path in parts(tmp_path / "days", num)]
        opened.clear()
        counts = ingest_log("mine", reading, lambda text: None)
        assert (counts["changed"], counts["num_accepted"]) == (is_new, 20 * num)
        assert sorted(set(opened)) == (paths[-1:] if num == 13 else paths if is_new else [])[: num * is_new]
    assert newest_version(layout, "mine") == 2


@pytest.mark.parametrize("change", [appended, replaced, overwritten_unseen])
def test_a_changed_file_is_opened_again(layout: Layout, log: Path, opened: list[str], change: Callable[[Path], None]):
    reading = {"log": [str(log)], "window": "1h"}
    ingest_log("mine", reading, lambda text: None)
    change(log)
    opened.clear()
    # Most of its rows are in the log, which is no matter here.
    assert ingest_log("mine", {**reading, "force": True}, lambda text: None)["version"] == 2
    assert set(opened) == {str(log)}


def test_a_touched_file_is_opened_once_more(layout: Layout, log: Path, opened: list[str]):
    reading = {"log": [str(log)], "window": "1h"}
    ingest_log("mine", reading, lambda text: None)
    for expected in ({str(log)}, set()):
        if expected:
            log.touch()
        opened.clear()
        assert not ingest_log("mine", reading, lambda text: None)["changed"]
        assert set(opened) == expected


def test_equal_files_are_committed_once_and_remembered_all(layout: Layout, tmp_path: Path, opened: list[str]):
    paths = parts(tmp_path / "days", 2)
    (tmp_path / "days" / "again.csv").write_bytes(paths[0].read_bytes())
    reading = {"log": [str(tmp_path / "days")], "window": "1d"}
    assert ingest_log("mine", reading, lambda text: None)["num_accepted"] == 40
    opened.clear()
    assert ingest_log("mine", reading, lambda text: None)["num_accepted"] == 40
    assert opened == []


def test_a_file_that_was_written_just_now_is_not_remembered(layout: Layout, log: Path):
    """A disk with a coarse clock could give the next content of the same size the same stamp."""
    ingest_log("mine", {"log": [str(log)], "window": "1h"}, lambda text: None)
    assert known_contents(layout, "mine") == {}
    assert not Path(layout.raw_files("mine")).exists()


@pytest.mark.parametrize("damage", [b"", b"{", b'{"digest": "0", "record": {"files": {}}}', b'{"files": {"a": 1}}'])
def test_a_damaged_record_of_the_files_costs_their_reading_alone(
    layout: Layout, log: Path, opened: list[str], damage: bytes
):
    reading = {"log": [str(log)], "window": "1h"}
    ingest_log("mine", reading, lambda text: None)
    Path(layout.raw_files("mine")).write_bytes(damage)
    for expected in ({str(log)}, set()):
        opened.clear()
        assert not ingest_log("mine", reading, lambda text: None)["changed"]
        assert set(opened) == expected


def test_an_unchanged_object_is_not_opened_again(
    s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[str]
):
    address = f"{s3_bucket}/{tmp_path.name}/days/log.csv"
    monkeypatch.setenv("DYFORMER_STORAGE", f"{s3_bucket}/{tmp_path.name}/store")
    monkeypatch.setenv("DYFORMER_STATE", str(tmp_path))
    files.write_bytes(address, LOG.encode())
    for content, is_new in ((LOG, True), (LOG, False), (OTHER, True)):
        if content is OTHER:
            files.write_bytes(address, content.encode())
        opened.clear()
        reading = {"log": [address], "window": "1h", "drop_duplicates": content is OTHER}
        counts = ingest_log("mine", reading, lambda text: None)
        assert (counts["changed"], set(opened)) == (is_new, {address} if is_new else set())


def test_a_file_without_a_stamp_is_no_other_after_it_was_read(layout: Layout):
    assert content_of(RawFile(name="made", open=lambda: io.BytesIO(b"x"))) == Content(
        sha256="2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881", num_bytes=1
    )
