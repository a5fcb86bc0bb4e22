"""The command `dyformer verify`, damaged datasets beside sound ones, first ingests at once, and many new files."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.cli import main
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots
from storage.events.table import history, newest_version
from storage.layout import Layout
from storage.locks import DatasetInUse


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    for name in ("mine", "other"):
        log = tmp_path / f"{name}.csv"
        log.write_text("source,target,time\n" + "".join(f"a{i % 5},b{i % 3},{10 * i}\n" for i in range(40)))
        ingest_log(name, {"log": [str(log)], "window": "4 equal"}, lambda text: None)
        make_snapshots(name)
    return Layout(str(tmp_path / "store"))


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        main(list(arguments))
    return int(ending.value.code or 0)


def flipped(path: Path) -> Path:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path


def test_verify_prints_a_line_for_each_damaged_part_and_repairs(layout: Layout, capsys: pytest.CaptureFixture[str]):
    assert run("verify") == 0
    assert "nothing is damaged" in capsys.readouterr().out
    (edges,) = Path(layout.root).glob("3_snapshots/snapshots/dataset=mine/**/edges.parquet")
    flipped(edges)
    assert run("verify", "mine") == 1
    printed = capsys.readouterr().out
    assert f"{edges} was changed after it was written: `--repair` removes it, and the next run that needs it" in printed
    assert run("verify", "other") == 0
    assert run("verify", "--repair") == 0
    printed = capsys.readouterr().out
    assert f"{edges} was changed after it was written: removed; the next run that needs it makes it again" in printed
    assert "--repair" not in printed
    assert run("verify") == 0
    assert make_snapshots("mine")
    assert edges.exists()


def test_damage_that_only_raw_files_mend_is_named_and_hurts_no_other_dataset(
    layout: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows = Path(layout.commit("mine", 1), "interactions.parquet")
    log = flipped(Path(layout.commit("mine", 1), "sources.parquet"))
    flipped(rows)
    assert run("verify", "--repair") == 1
    printed = capsys.readouterr().out
    assert f"{log} was changed" in printed
    assert "cannot be made again here: `dyformer drop mine`" in printed
    assert run("datasets") == 0
    output = capsys.readouterr()
    assert "mine" in output.out
    assert str(log) in output.err
    statement = "select dataset, count(*) as n from events group by dataset"
    assert run("sql", statement) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert str(log) in output.err
    assert run("sql", statement, "--skip-damaged") == 0
    output = capsys.readouterr()
    assert "other" in output.out
    assert "mine" not in output.out
    assert str(log) in output.err
    more = tmp_path / "more.csv"
    more.write_text("source,target,time\nx,y,500\n")
    assert run("ingest", "other", "--log", str(more)) == 0
    assert run("ingest", "mine", "--log", str(more)) == 1
    assert str(log) in capsys.readouterr().err
    assert run("drop", "mine", "--yes") == 0
    assert run("ingest", "mine", "--log", str(tmp_path / "mine.csv"), "--window", "4 equal") == 0
    assert run("verify") == 0


FIRST_INGEST = """
import sys, time
from pathlib import Path
from flows.tasks import ingest

real = ingest.declare

def at_once(*arguments, **options):
    Path(sys.argv[3]).touch()
    while not Path(sys.argv[4]).exists():
        time.sleep(0.01)
    return real(*arguments, **options)

ingest.declare = at_once
try:
    ingest.ingest_log("new", {"log": [sys.argv[1]], "time_unit": sys.argv[2], "window": "2 equal"}, lambda text: None)
except ValueError as error:
    print(error)
    sys.exit(1)
"""


def test_of_two_first_ingests_at_once_one_is_refused_by_name(tmp_path: Path):
    log = tmp_path / "log.csv"
    log.write_text("source,target,time\n" + "".join(f"a{i % 5},b{i % 3},{1_600_000_000 + i}\n" for i in range(40)))
    environment = {**os.environ, "DYFORMER_STORAGE": str(tmp_path / "store")}
    ready = [str(tmp_path / name) for name in ("one", "two")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST_INGEST, str(log), unit, *order],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for unit, order in (("s", ready), ("ms", ready[::-1]))
    ]
    printed = [process.communicate(timeout=120)[0] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 1]
    (refused,) = [text for text, process in zip(printed, processes, strict=True) if process.returncode]
    assert "dataset 'new' was ingested with time_unit = " in refused
    assert "dyformer drop new" in refused
    assert history(Layout(str(tmp_path / "store")), "new").height == 1


def test_a_folder_of_many_new_files_is_one_commit_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in range(57):
        rows = (f"a{i % 5},b{(i + number) % 13},{1000 * number + i}\n" for i in range(50))
        (folder / f"day-{number:02}.csv").write_text("source,target,time\n" + "".join(rows))
    started = time.process_time()
    counts = ingest_log("days", {"log": [str(folder)], "window": "4 equal"}, lambda text: None)
    assert time.process_time() - started < 5
    layout = Layout(str(tmp_path / "store"))
    assert (counts["version"], counts["num_accepted"], newest_version(layout, "days")) == (1, 57 * 50, 1)
    assert history(layout, "days").height == 57
    assert not ingest_log("days", {"log": [str(folder)]}, lambda text: None)["changed"]


def test_a_missing_store_is_no_sound_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "nowhere"))
    assert run("verify") == 1
    assert f"there is no store at {tmp_path / 'nowhere'}: check DYFORMER_STORAGE" in capsys.readouterr().err


def test_a_dataset_in_use_ends_no_repair_of_others(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    from storage import verification

    def in_use(layout: Layout, dataset: str, fault: verification.Fault) -> str:
        if dataset == "mine":
            raise DatasetInUse("dataset 'mine' is being ingested or trained on")
        return "made again"

    faults = [
        verification.Fault(address=f"store/dataset={name}/x", problem="is missing", remedy="made again")
        for name in ("mine", "other")
    ]
    monkeypatch.setattr(verification, "faults", lambda *arguments: iter(faults))
    monkeypatch.setattr(verification, "repaired", in_use)
    assert run("verify", "--repair") == 1
    printed = capsys.readouterr().out
    assert "dataset=mine/x is missing: dataset 'mine' is being ingested" in printed
    assert "dataset=other/x is missing: made again" in printed
    assert "1 damaged" in printed
