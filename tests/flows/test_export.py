"""What was published last, in files and databases."""

import errno
import json
import sqlite3
from pathlib import Path

import polars as pl
import pytest
from test_promote import champion_skill, contender_of, grown, promoted, rows_of, snapshots  # noqa: F401
from test_publishing import L3, published_by_l3, two_published  # noqa: F401

from flows.cli import main
from flows.tasks.complete_windows import make_complete_snapshots
from flows.tasks.models import Contender
from flows.tasks.predict import write_forecasts
from flows.tasks.publishing.champions import rollback
from flows.tasks.publishing.export import export
from flows.tasks.publishing.ledger import write_outcomes
from flows.tasks.publishing.publications import publish
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import read_table, write_artifact
from storage.bytes import files
from storage.bytes.files import read_bytes
from storage.database import DatabaseFailed
from storage.layout import Layout
from storage.queries import query

pytestmark = pytest.mark.usefixtures("few_trees")


@pytest.fixture
def forecasts(snapshots: str) -> str:  # noqa: F811
    return published_by_l3(snapshots)


def vectors_of(snapshots: str) -> tuple[str, pl.DataFrame]:  # noqa: F811
    """Write vectors of two nodes; return their address and the table."""
    opened = open_snapshots(snapshots)
    lineage = opened.lineage("vectors", until=opened.num_steps, settings={})
    table = pl.DataFrame(
        {"side": [0, 0], "id": [1, 2], "step": 5, "space_id": "ab", "vector": [[0.5, 1.0], [0.0, -1.0]]}
    )
    address = opened.layout.artifact("vectors", "mylog", version=1, until=5, settings=lineage.settings_hash, seed=0)
    return write_artifact(address, {"vectors": table}, lineage), table


def with_vectors(snapshots: str) -> pl.DataFrame:  # noqa: F811
    """Publish the same forecasts beside vectors; return these."""
    address, table = vectors_of(snapshots)
    assert publish(snapshots, L3, write_forecasts(snapshots, L3), address) is not None
    return table


def test_files_have_the_published_tables(forecasts: str, snapshots: str, tmp_path: Path):  # noqa: F811
    vectors = with_vectors(snapshots)
    written = export("mylog", str(tmp_path / "out"))
    folder = tmp_path / "out" / "dataset=mylog"
    assert written == [str(folder / f"{name}.parquet") for name in ("forecasts", "vectors", "ledger")]
    written_forecasts = pl.read_parquet(folder / "forecasts.parquet")
    assert written_forecasts.drop("published_at").equals(read_table(forecasts, "forecasts"))
    assert {"valid_from", "valid_to", "method", "published_at", "score"} <= set(written_forecasts.columns)
    written_vectors = pl.read_parquet(folder / "vectors.parquet")
    assert written_vectors.drop("published_at").equals(vectors)
    assert written_vectors["published_at"].null_count() == 0
    written_ledger = pl.read_parquet(folder / "ledger.parquet")
    assert written_ledger["step"].to_list() == [6, 6]
    in_sql = query(Layout.from_environment(), "select start_time from ledger order by number")["start_time"]
    assert written_ledger["start_time"].to_list() == in_sql.to_list()  # times or nulls, no number of microseconds
    export("mylog", str(tmp_path / "out"), "csv")
    rows = pl.read_csv(folder / "vectors.csv")
    assert [json.loads(text) for text in rows["vector"]] == vectors["vector"].to_list()
    assert pl.read_csv(folder / "forecasts.csv").height == read_table(forecasts, "forecasts").height


def test_a_folder_has_one_export_and_the_users_own_files(forecasts: str, tmp_path: Path):
    folder = tmp_path / "out" / "dataset=mylog"
    folder.mkdir(parents=True)
    (folder / "notes.csv").write_text("mine")
    for kind in ("parquet", "csv", "parquet"):
        written = export("mylog", str(tmp_path / "out"), kind)
        assert sorted(folder.iterdir()) == sorted([*map(Path, written), folder / "notes.csv"])


def test_an_export_that_cannot_be_written_leaves_that_of_before(
    forecasts: str,
    snapshots: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """A program that reads the folder meanwhile finds forecasts and ledger of one publication."""
    export("mylog", str(tmp_path / "out"))
    folder = tmp_path / "out" / "dataset=mylog"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"forecasts.parquet", "ledger.parquet"}
    with_vectors(snapshots)
    write_synced = files.write_synced

    def full(path: Path, content: bytes | Path) -> None:
        if "ledger" in path.name:
            raise OSError(errno.ENOSPC, "no space left on device", str(path))
        write_synced(path, content)

    monkeypatch.setattr(files, "write_synced", full)
    with pytest.raises(files.WriteFailed, match="ledger"):
        export("mylog", str(tmp_path / "out"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_under_the_name_of_a_file_leaves_the_export_of_before(
    forecasts: str,
    snapshots: str,  # noqa: F811
    tmp_path: Path,
):
    export("mylog", str(tmp_path / "out"))
    folder = tmp_path / "out" / "dataset=mylog"
    (folder / "ledger.parquet").unlink()
    (folder / "ledger.parquet").mkdir()
    before = (folder / "forecasts.parquet").read_bytes()
    with_vectors(snapshots)
    with pytest.raises(files.WriteFailed, match=r"ledger\.parquet cannot be written \(Is a directory\): a folder has"):
        export("mylog", str(tmp_path / "out"))
    assert {path.name for path in folder.iterdir()} == {"forecasts.parquet", "ledger.parquet"}
    assert (folder / "forecasts.parquet").read_bytes() == before


@pytest.mark.parametrize("prefix", ["", "s3:/"])
def test_the_ledger_is_written_last(
    prefix: str,
    forecasts: str,
    snapshots: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Until all files have their new contents, the ledger is that of the publication before."""
    with_vectors(snapshots)
    written: list[str] = []
    monkeypatch.setattr(files, "renamed", lambda temporary, path: written.append(str(path)))
    monkeypatch.setattr(files, "write_bytes", lambda address, content: written.append(address))
    monkeypatch.setattr(files, "remove", lambda address: written.append(f"no {address}"))
    to = f"{prefix}{tmp_path}/out"
    export("mylog", to)
    names = [f"{to}/dataset=mylog/{name}" for name in ("forecasts", "vectors", "ledger")]
    assert written == [f"{name}.parquet" for name in names] + [f"no {name}.csv" for name in names]


def test_files_go_to_an_object_store(forecasts: str, s3_bucket: str, tmp_path: Path):
    [first, *_] = export("mylog", f"{s3_bucket}/{tmp_path.name}/out/")
    assert first == f"{s3_bucket}/{tmp_path.name}/out/dataset=mylog/forecasts.parquet"
    assert pl.read_parquet(read_bytes(first)).drop("published_at").equals(read_table(forecasts, "forecasts"))


def test_a_database_has_the_newest_forecasts_of_each_step(forecasts: str, tmp_path: Path):
    address = f"sqlite:///{tmp_path / 'out.db'}"
    assert export("mylog", address) == ["dyformer_forecasts", "dyformer_ledger"]
    export("mylog", address)
    grown(tmp_path, "second", [*rows_of(6), "1,2,70"])
    complete = make_complete_snapshots("mylog")
    newer = published_by_l3(complete)
    write_outcomes(complete)
    export("mylog", address)
    with sqlite3.connect(tmp_path / "out.db") as database:
        found = dict(database.execute("select step, count(*) from dyformer_forecasts group by 1"))
        expected = {6: read_table(forecasts, "forecasts").height, 7: read_table(newer, "forecasts").height}
        assert found == expected
        rows = database.execute("select number, step, num_pairs is null from dyformer_ledger order by 1").fetchall()
        assert rows == [(1, 6, 0), (2, 7, 1)]
        [kind] = database.execute("select distinct typeof(id) from dyformer_forecasts").fetchone()
        assert kind == "text"
    database.close()


def test_what_a_rollback_takes_back_goes_from_a_database_and_a_folder(
    snapshots: str,  # noqa: F811
    two_published: list[str],  # noqa: F811
    tmp_path: Path,
):
    recency = Contender(title="Contact recency")
    assert publish(snapshots, recency, two_published[1], vectors_of(snapshots)[0]) is not None
    address, folder = f"sqlite:///{tmp_path / 'out.db'}", tmp_path / "out" / "dataset=mylog"
    assert "dyformer_vectors" in export("mylog", address)
    for kind in ("parquet", "csv"):
        export("mylog", str(tmp_path / "out"), kind)
        assert (folder / f"vectors.{kind}").exists()
    rollback("mylog")  # to forecasts of the step before, without vectors
    assert export("mylog", address) == ["dyformer_forecasts", "dyformer_ledger"]
    with sqlite3.connect(tmp_path / "out.db") as database:
        assert database.execute("select distinct step from dyformer_forecasts").fetchall() == [(6,)]
        assert database.execute("select count(*) from dyformer_vectors").fetchall() == [(0,)]
    database.close()
    for kind in ("parquet", "csv"):
        export("mylog", str(tmp_path / "out"), kind)
        assert not (folder / f"vectors.{kind}").exists()
        assert (folder / f"forecasts.{kind}").exists()


@pytest.mark.parametrize("scheme", ["postgres", "mysql", "gs", "POSTGRESQL", "s3a"])
def test_an_address_of_another_kind_is_refused_and_not_repeated(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ending:
        main(["export", "mylog", "--to", f"{scheme}://user:canary@host/x"])
    printed = capsys.readouterr()
    assert ending.value.code == 1
    assert "expected a folder, s3://bucket/prefix" in " ".join(printed.err.split())
    assert "canary" not in printed.err + printed.out
    assert not list(tmp_path.rglob("*canary*"))


def test_nothing_to_export_is_named(snapshots: str, tmp_path: Path):  # noqa: F811
    with pytest.raises(ValueError, match="run `dyformer run mylog` first"):
        export("mylog", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_password_is_in_no_output(forecasts: str, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    with pytest.raises(DatabaseFailed):
        export("mylog", "postgresql://user:canary@localhost/x")
    with pytest.raises(SystemExit) as ending:
        main(["export", "mylog", "--to", "postgresql://user:canary@localhost/x"])
    printed = capsys.readouterr()
    assert ending.value.code == 1
    assert "PGPASSWORD" in printed.err
    assert "canary" not in printed.err + printed.out
    with pytest.raises(SystemExit) as ending:
        main(["export", "mylog", "--to", str(tmp_path / "out"), "--format", "csv"])
    assert not ending.value.code
    assert f"wrote {tmp_path / 'out'}" in capsys.readouterr().out


@pytest.mark.parametrize("to", ["out.csv", "out.parquet/", "s3://bucket/out.csv"])
def test_the_name_of_a_file_takes_no_export(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatabaseFailed, match=f"--to {to} is the name of a file: expected a folder"):
        export("mylog", to)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to", ["", "  "])
def test_an_empty_folder_name_takes_no_export(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatabaseFailed, match="--to is empty: expected a folder"):
        export("mylog", to)
    assert not list(tmp_path.iterdir())


def test_a_database_takes_no_format_of_files(forecasts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    to = f"sqlite:///{tmp_path / 'out.db'}"
    for kind in ("csv", "parquet"):
        with pytest.raises(SystemExit) as ending:
            main(["export", "mylog", "--to", to, "--format", kind])
        assert ending.value.code == 1
        assert f"leave out --format {kind}" in capsys.readouterr().err
    assert not (tmp_path / "out.db").exists()
    assert export("mylog", to) == ["dyformer_forecasts", "dyformer_ledger"]
