import bz2
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dyformer.logs.datasets import DATASETS
from dyformer.logs.events import read_events
from dyformer.logs.plan import Declared
from dyformer.logs.raw_file import DamagedLog, LogError
from dyformer.logs.sniffing import sniff_plan
from storage.bytes.files import write_bytes
from storage.raw.contents import content_of
from storage.raw.log_files import ChecksumMismatch, LogNotFound, find_logs

LOG = b"".join(b"u%d,v%d,%d\n" % (i, i % 3, 1_700_000_000 + i) for i in range(2_000))
LOG_SHA256 = hashlib.sha256(LOG).hexdigest()
OTHER = b"x,y,1700000000\n"


COMPRESS = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "zstd": lambda c: pa.compress(c, "zstd", asbytes=True),
}


def content(file):
    stream = file.open()
    parts = []
    while part := stream.read(1000):
        parts.append(part)
    stream.close()
    return b"".join(parts)


def contents(spec, dataset="mylog", raw_folder=""):
    return [content(file) for file in find_logs(spec, dataset, str(raw_folder))]


def zipped(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(name.replace("__", "/"), member)
    return stream.getvalue()


def tarred(compress, **members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, member in members.items():
            entry = tarfile.TarInfo(f"folder/{name}")
            entry.size = len(member)
            archive.addfile(entry, io.BytesIO(member))
    return compress(stream.getvalue())


@pytest.fixture(autouse=True)
def _no_logs_folder(monkeypatch):
    monkeypatch.delenv("DYFORMER_LOGS", raising=False)


# ---- compression


@pytest.mark.parametrize("kind", COMPRESS)
def test_compression_is_found_by_its_magic_bytes_whatever_the_name(tmp_path, kind):
    path = tmp_path / "log.txt"
    path.write_bytes(COMPRESS[kind](LOG))
    assert contents(str(path)) == [LOG]


@pytest.mark.parametrize("kind", ["gzip", "bz2", "zstd"])
def test_a_second_compressed_part_is_read_too(tmp_path, kind):
    path = tmp_path / "log"
    path.write_bytes(COMPRESS[kind](LOG) + COMPRESS[kind](OTHER))
    assert contents(str(path)) == [LOG + OTHER]


@pytest.mark.parametrize("kind", ["gzip", "bz2", "zstd"])
@pytest.mark.parametrize("left", [0.5, 0.97])
def test_truncated_compression_is_refused_by_the_files_name(tmp_path, kind, left):
    path = tmp_path / f"cut-{kind}.log"
    whole = COMPRESS[kind](LOG)
    path.write_bytes(whole[: int(len(whole) * left)])
    files = find_logs(str(path), "mylog", "")
    with pytest.raises(DamagedLog, match=rf"cut-{kind}.log breaks off or is damaged .* again"):
        read_events(files, sniff_plan(files, Declared()))


@pytest.mark.parametrize(
    "archive",
    [
        zipped(data=LOG),
        tarred(bz2.compress, data=LOG),
        tarred(gzip.compress, data=LOG),
        tarred(bytes, data=LOG),
    ],
    ids=["zip", "tar.bz2", "tar.gz", "tar"],
)
def test_the_only_file_of_an_archive_is_the_log(tmp_path, archive):
    path = tmp_path / "log.download"
    path.write_bytes(archive)
    assert contents(str(path)) == [LOG]


def test_archives_of_several_files_and_unread_compressions_are_refused(tmp_path):
    (tmp_path / "two.zip").write_bytes(zipped(one=LOG, two=LOG))
    with pytest.raises(DamagedLog, match=r"two.zip holds more than one file, or none \(one, two\): unpack it"):
        contents(str(tmp_path / "two.zip"))
    (tmp_path / "log.xz").write_bytes(b"\xfd7zXZ\x00rest")
    with pytest.raises(DamagedLog, match=r"xz-compressed, which is not supported: unpack it first \(xz -d FILE\)"):
        contents(str(tmp_path / "log.xz"))


def as_csv(rows):
    return rows.write_csv().encode()


def as_json_lines(rows):
    return rows.write_ndjson().encode()


def as_parquet(rows):
    stream = io.BytesIO()
    rows.write_parquet(stream)
    return stream.getvalue()


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(
        st.lists(st.tuples(st.integers(0, 99), st.text("añ ,|", min_size=1).map("x{}".format), st.integers(0, 10**9))),
        min_size=1,
        max_size=3,
    ).filter(any)
)
@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("write", [as_csv, as_json_lines, as_parquet])
def test_every_format_in_every_compression_is_read_back(tmp_path, kind, write, parts):
    folder = tmp_path / "log"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    filled = [part for part in parts if part]
    for number, part in enumerate(filled):
        rows = pl.DataFrame(part, schema={"source": pl.Int64, "target": pl.String, "time": pl.Int64}, orient="row")
        (folder / f"{number}.part").write_bytes(COMPRESS[kind](write(rows)))
    files = find_logs(str(folder), "mylog", "")
    declared = Declared(time_unit="step", separator="," if write is as_csv else None)
    result = read_events(files, sniff_plan(files, declared))
    expected = [(str(source), target.strip(), time) for part in filled for source, target, time in part]
    assert result.events.select("source", "target", "time").rows() == expected
    assert result.num_quarantined == 0


# ---- files given by the user


def test_a_file_a_folder_a_pattern_or_a_list_gives_its_files(tmp_path, monkeypatch):
    for name in ("b.csv", "a.csv", "deep/c.csv.gz", "_SUCCESS", ".hidden.csv", "notes.txt"):
        path = tmp_path / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    folder = tmp_path / "logs"
    assert contents(str(folder / "b.csv")) == [b"b.csv"]
    assert contents(str(folder)) == [b"a.csv", b"b.csv", b"deep/c.csv.gz", b"notes.txt"]
    assert contents(str(folder / "*.csv")) == [b"a.csv", b"b.csv"], "as in a shell, no hidden file"
    assert contents(str(folder / ".h*.csv")) == [b".hidden.csv"]
    assert contents(str(folder / "**" / "[bc].csv*")) == [b"b.csv", b"deep/c.csv.gz"]
    assert contents([str(folder / "b.csv"), str(folder / "a.*"), str(folder / "b.csv")]) == [b"b.csv", b"a.csv"]
    monkeypatch.chdir(folder / "deep")
    assert contents("../a.csv") == [b"a.csv"]
    assert contents("../?.csv") == [b"a.csv", b"b.csv"]
    assert [file.name for file in find_logs("../a.csv", "mylog", "")] == ["../a.csv"]


def test_a_link_whose_rows_would_be_missed_is_named(tmp_path):
    folder, elsewhere = tmp_path / "logs", tmp_path / "elsewhere"
    for name in ("logs/a.csv", "logs/2024/b.csv", "elsewhere/c.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    (folder / "newest").symlink_to("2024")  # whose files are found there
    (folder / "linked.csv").symlink_to(elsewhere / "c.csv")
    (folder / ".hidden").symlink_to("nothing")
    assert contents(str(folder)) == [b"logs/2024/b.csv", b"logs/a.csv", b"elsewhere/c.csv"]
    (elsewhere / "c.csv").rename(elsewhere / "d.csv")
    for spec in (folder, folder / "*.csv"):
        with pytest.raises(
            LogNotFound, match=r"linked.csv is a link to '\S+/c.csv', which is not there: bring it back"
        ):
            find_logs(str(spec), "mylog", "")
    (folder / "linked.csv").unlink()
    (folder / ".versions").mkdir()
    for name, target in (("archive", elsewhere), ("current", folder / ".versions")):
        (folder / name).symlink_to(target)
        for spec in (folder, folder / "**" / "*.csv"):
            with pytest.raises(LogNotFound, match=rf"{name} is a link to the folder '{target}', whose files are not"):
                find_logs(str(spec), "mylog", "")
        assert contents(str(folder / "*")) == [b"logs/a.csv"], "as folders that are no links"
        (folder / name).unlink()
    assert contents([str(folder), str(elsewhere)]) == [b"logs/2024/b.csv", b"logs/a.csv", b"elsewhere/c.csv"]


def test_the_marks_of_a_pattern_in_the_name_of_a_folder_are_those_of_its_name(tmp_path):
    folder = tmp_path / "logs [2024]*"
    folder.mkdir()
    for name in ("a[1].csv", "b.csv", "b.txt"):
        (folder / name).write_bytes(name.encode())
    assert contents(str(folder)) == [b"a[1].csv", b"b.csv", b"b.txt"]
    assert contents(str(folder / "a[1].csv")) == [b"a[1].csv"]
    assert contents(str(folder / "*.csv")) == [b"a[1].csv", b"b.csv"]
    assert contents(str(tmp_path / "l*" / "[ab].csv")) == [b"b.csv"]


def test_the_error_for_a_missing_log_lists_similar_names(tmp_path):
    (tmp_path / "interactions.csv").write_bytes(LOG)
    with pytest.raises(LogNotFound, match=r"interaction.csv'.*similar names: interactions.csv.*--log FILE"):
        contents(str(tmp_path / "interaction.csv"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    with pytest.raises(LogNotFound, match=r"the folder '.*empty/' has no file; names that begin with '.' or '_'"):
        contents(f"{tmp_path}/empty/")
    for spec in ("*.parquet", "no/such/folder/*"):
        with pytest.raises(LogNotFound, match="no file matches"):
            contents(str(tmp_path / spec))


def test_a_file_that_is_gone_when_it_is_read_is_named(tmp_path):
    (tmp_path / "log.csv").write_bytes(LOG)
    (file,) = find_logs(str(tmp_path / "log.csv"), "mylog", "")
    (tmp_path / "log.csv").unlink()
    with pytest.raises(LogNotFound, match=r"log.csv cannot be opened \(.*\); check its name"):
        file.open()


def test_an_unknown_dataset_needs_a_file():
    with pytest.raises(ValueError, match=r"'mylog'; known: .*--log FILE"):
        contents(None)


def test_the_generated_log_needs_no_file():
    assert contents(None, "generated")[0].startswith(b"source,target,time\n")


def test_a_file_that_the_user_names_is_never_refused_for_its_checksum(tmp_path):
    (tmp_path / "mine").write_bytes(OTHER)
    assert contents(str(tmp_path / "mine"), "uci") == [OTHER]


# ---- checksum of the source


def test_the_checksum_is_of_the_bytes_alone(tmp_path, shared_log):
    for name, raw in (("a", LOG), ("b.gz", gzip.compress(LOG)), ("c", OTHER)):
        (tmp_path / name).write_bytes(raw)
    assert content_of(find_logs(str(tmp_path / "b.gz"), "mylog", "")[0]).num_bytes == len(LOG)
    digest = {name: content_of(find_logs(str(tmp_path / name), "mylog", "")[0]).sha256 for name in ("a", "b.gz", "c")}
    assert digest["a"] == digest["b.gz"] == hashlib.sha256(LOG).hexdigest()
    assert digest["c"] != digest["a"]


@pytest.mark.parametrize("name", ["rds", "uci", "yelp", "ml-10m", "snap-wikipedia"])
def test_the_published_logs_have_their_documented_checksum(shared_log, name):
    assert content_of(find_logs(str(shared_log(name)), name, "")[0]).sha256 == DATASETS[name].sha256


# ---- DYFORMER_LOGS


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("out.opsahl-ucsocial", LOG),
        ("out.opsahl-ucsocial.gz", gzip.compress(LOG)),
        ("out.opsahl-ucsocial.bz2", bz2.compress(LOG)),
        ("uci/out.opsahl-ucsocial.zst", pa.compress(LOG, "zstd", asbytes=True)),
        ("uci/under-any-name.csv", LOG),
        (
            "download.tsv.opsahl-ucsocial.tar.bz2",
            tarred(bz2.compress, **{"out.opsahl-ucsocial": LOG, "README": b"read me"}),
        ),
    ],
)
def test_known_logs_are_looked_for_in_every_folder_of_the_variable(tmp_path, monkeypatch, name, stored):
    path = tmp_path / "second" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(stored)
    monkeypatch.setenv("DYFORMER_LOGS", os.pathsep.join([str(tmp_path / "first"), str(tmp_path / "second")]))
    assert contents(None, "uci", tmp_path / "raw") == [LOG]
    assert not (tmp_path / "raw").exists()


def test_the_error_for_a_log_without_an_address_names_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("DYFORMER_LOGS", str(tmp_path))
    with pytest.raises(LogNotFound, match=r"yelp .*Yelp_16.csv from https://www.yelp.com/dataset and pass --log FILE"):
        contents(None, "yelp", tmp_path / "raw")


# ---- fetching


class Publisher:
    """A local web server that serves one body and counts the requests."""

    def __init__(self):
        self.bodies = {}
        self.claimed_length = None
        self.num_requests = 0
        publisher = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                publisher.num_requests += 1
                body = publisher.bodies.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(publisher.claimed_length or len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def publisher(monkeypatch):
    server = Publisher()
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.fixture
def published(publisher, monkeypatch):
    def publish(name, body, sha256=LOG_SHA256, dataset="uci"):
        publisher.bodies[f"/files/{name}"] = body
        changed = replace(DATASETS[dataset], origin=f"{publisher.address}/files/{name}", origin_sha256=sha256)
        monkeypatch.setitem(DATASETS, dataset, changed)
        return publisher

    return publish


ARCHIVES = {
    "log.zip": zipped(**{"out.opsahl-ucsocial": LOG, "readme.html": b"<html>"}),
    "log.tar.bz2": tarred(bz2.compress, **{"out.opsahl-ucsocial": LOG, "meta.opsahl-ucsocial": b"code: UC"}),
    "log.gz": gzip.compress(LOG),
    "log.csv": LOG,
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_log_is_fetched_once_checked_and_unpacked(tmp_path, published, name):
    server = published(name, ARCHIVES[name])
    for _ in range(2):
        assert contents(None, "uci", tmp_path / "raw") == [LOG]
    assert server.num_requests == 1
    assert [path.name for path in (tmp_path / "raw").iterdir()] == [name]


def test_fetched_bytes_of_another_checksum_are_not_stored(tmp_path, published):
    published("log.gz", gzip.compress(OTHER))
    with pytest.raises(ChecksumMismatch, match=r"has SHA-256 .*, expected .*Get out.opsahl-ucsocial from http"):
        contents(None, "uci", tmp_path / "raw")
    assert not list(tmp_path.rglob("log.gz"))


def test_a_fetched_archive_that_breaks_off_is_not_stored(tmp_path, published):
    published("log.gz", gzip.compress(LOG)[:-20])
    with pytest.raises(ChecksumMismatch, match="breaks off or is damaged"):
        contents(None, "uci", tmp_path / "raw")
    assert not list(tmp_path.rglob("*"))


def test_a_connection_that_breaks_off_leaves_nothing(tmp_path, published):
    server = published("log.csv", LOG, sha256=None)
    server.claimed_length = len(LOG) + 500
    with pytest.raises(LogNotFound, match=rf"broke off after {len(LOG)} of {len(LOG) + 500} bytes"):
        contents(None, "uci", tmp_path / "raw")
    assert not list(tmp_path.rglob("*"))


def test_the_error_for_an_address_without_the_file_names_where_to_get_the_log(tmp_path, published):
    published("log.csv", None)
    with pytest.raises(LogNotFound, match=r"log.csv could not be fetched \(HTTP Error 404.*pass --log FILE"):
        contents(None, "uci", tmp_path / "raw")


def test_only_web_addresses_are_fetched(tmp_path, monkeypatch):
    (tmp_path / "log").write_bytes(LOG)
    monkeypatch.setitem(DATASETS, "uci", replace(DATASETS["uci"], origin=(tmp_path / "log").as_uri()))
    with pytest.raises(LogNotFound, match="only http and https"):
        contents(None, "uci", tmp_path / "raw")


def test_every_refusal_is_a_value_error():
    assert issubclass(LogError, ValueError)
    assert issubclass(LogNotFound, LogError)
    assert issubclass(ChecksumMismatch, LogError)


# ---- s3://


@pytest.fixture
def bucket(s3_bucket, tmp_path):
    rows = io.BytesIO()
    pl.DataFrame({"source": ["a"], "target": ["b"], "time": [1_700_000_000]}).write_parquet(rows)
    stored = {
        "one/a.csv.gz": gzip.compress(LOG),
        "one/b.csv": OTHER,
        "one/_SUCCESS": b"",
        "one/.d.csv": b"",
        "logs [2024]*/x[1].csv": LOG,
        "logs [2024]*/y.csv": OTHER,
        "one/deep/c.csv": LOG,
        "rows.parquet": rows.getvalue(),
        "cut.gz": gzip.compress(LOG)[:-20],
    }
    folder = f"{s3_bucket}/raw-files/{tmp_path.name}"
    for name, body in stored.items():
        write_bytes(f"{folder}/{name}", body)
    return folder


def test_files_folders_and_patterns_of_an_object_store(bucket):
    assert contents(f"{bucket}/one/a.csv.gz") == [LOG]
    assert contents(f"{bucket}/one") == [LOG, OTHER, LOG]
    assert contents(f"{bucket}/one/") == [LOG, OTHER, LOG]
    assert contents(f"{bucket}/one/?.csv*") == [LOG, OTHER]
    assert contents(f"{bucket}/*/deep/*") == [LOG]
    assert contents(f"{bucket}/one/*.csv*") == [LOG, OTHER], "as on a disk, not those of folders below"
    assert contents(f"{bucket}/one/**/*.csv") == contents(f"{bucket}/**/[bc].csv") == [OTHER, LOG]
    assert contents(f"{bucket}/one/**") == [b"", LOG, OTHER, LOG]
    assert contents(f"{bucket}/logs [2024]*") == contents(f"{bucket}/logs [2024]*/*.csv") == [LOG, OTHER]
    assert contents(f"{bucket}/logs [2024]*/x[1].csv") == [LOG]
    assert contents(f"{bucket}/l*/[xy].csv") == [OTHER]
    for spec in ("*.csv", "o?e", "one/*.csv/x", "*/*/*/*"):
        with pytest.raises(LogNotFound, match="no file matches"):
            contents(f"{bucket}/{spec}")
    with pytest.raises(LogNotFound, match=f"{bucket}/two"):
        contents(f"{bucket}/two")
    with pytest.raises(DamagedLog, match=r"s3://.*/cut.gz breaks off"):
        contents(f"{bucket}/cut.gz")


def test_parquet_is_read_from_an_object_store(bucket):
    files = find_logs(f"{bucket}/rows.parquet", "mylog", "")
    assert read_events(files, sniff_plan(files)).events["source"].to_list() == ["a"]


def test_a_fetched_log_is_stored_in_an_object_store(bucket, published):
    server = published("log.gz", gzip.compress(LOG))
    for _ in range(2):
        assert contents(None, "uci", f"{bucket}/1_raw/dataset=uci") == [LOG]
    assert server.num_requests == 1
