"""Archives and compressed files are streams: their size in memory is bounded, and their faults are named."""

import bz2
import gzip
import io
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable

import pytest

from dyformer.logs import compression
from dyformer.logs.compression import decompressed, local_file
from dyformer.logs.raw_file import DamagedLog, LogError, ReadLimits, pieces

ROWS = b"".join(b"u%d,v%d,%d\n" % (i, i % 3, 1_700_000_000 + i) for i in range(500))


def zipped(content, method=zipfile.ZIP_DEFLATED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("log", content)
    return stream.getvalue()


def tarred(content: bytes, pack: Callable[[bytes], bytes] = bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        entry = tarfile.TarInfo("log")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return pack(stream.getvalue())


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda content: gzip.compress(content),
    "bz2": bz2.compress,
    "zip": zipped,
    "tar": tarred,
    "tar.gz": lambda content: tarred(content, gzip.compress),
}


@pytest.mark.parametrize("kind", sorted(PACKED.keys() - {"bz2"}))  # which takes seconds to write
def test_large_content_is_never_held_as_a_whole(kind):
    content = ROWS * 1000  # 9 MB
    stored = PACKED[kind](content)
    tracemalloc.start()
    num_bytes = sum(map(len, pieces(decompressed("log", lambda: io.BytesIO(stored)))))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_bytes == len(content)
    assert peak < 6 << 20


@pytest.mark.parametrize("kind", ["bz2", "zip", "gzip"])
def test_content_above_the_ratio_is_refused_and_a_raised_limit_takes_it(kind, monkeypatch):
    monkeypatch.setattr(compression, "FREE_BYTES", 1 << 20)
    stored = PACKED[kind](ROWS * 200)  # 2 MB
    strict, wide = ReadLimits(max_unpacked_ratio=2), ReadLimits(max_unpacked_ratio=10**6)
    with pytest.raises(DamagedLog, match=r"log unpacks to more than [\d,]+ bytes.*DYFORMER_MAX_UNPACKED_RATIO"):
        list(pieces(decompressed("log", lambda: io.BytesIO(stored), None, strict)))
    assert b"".join(pieces(decompressed("log", lambda: io.BytesIO(stored), None, wide))) == ROWS * 200


@pytest.mark.parametrize("kind", PACKED)
def test_every_changed_byte_is_harmless_or_named(kind):
    """Some changes do not change the content, such as those of a name or a date."""
    stored = PACKED[kind](ROWS)
    step, refused = max(1, len(stored) // 150), []
    for at in range(0, len(stored), step):
        damaged = stored[:at] + bytes([stored[at] ^ 0xFF]) + stored[at + 1 :]
        try:
            found = b"".join(pieces(decompressed("name.log", lambda damaged=damaged: io.BytesIO(damaged))))
        except LogError as error:
            refused.append(str(error))
        else:
            assert kind == "tar" or found in (ROWS, damaged), at
    assert all("name.log" in message for message in refused)
    assert refused


@pytest.mark.parametrize("kind", PACKED)
def test_every_cut_is_harmless_or_named(kind):
    stored, refused = PACKED[kind](ROWS), []
    for length in range(4, len(stored), max(1, len(stored) // 100)):
        try:
            found = b"".join(pieces(decompressed("name.log", lambda length=length: io.BytesIO(stored[:length]))))
        except LogError as error:
            refused.append(str(error))
        else:
            assert found in (ROWS, stored[:length]), length
    assert all("name.log" in message for message in refused)
    assert refused


def test_name_that_is_not_text_is_written_in_escapes():
    assert local_file(b"/tmp/\xff.csv".decode(errors="surrogateescape")).name == r"/tmp/\xff.csv"
