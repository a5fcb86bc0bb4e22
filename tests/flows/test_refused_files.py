"""Several new files of a log, of which some cannot be read: all are named at once, and none is committed."""

import gzip
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import flows.cli
from storage.events.table import ingested_datasets
from storage.layout import Layout

HEADER = "user,item,time\n"
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def ingest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `dyformer ingest mine --log incoming` with options; return the exit code and what was printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    Path("incoming").mkdir()

    def run(*options: str, log: str = "incoming") -> tuple[int, str]:
        with pytest.raises(SystemExit) as ending:
            flows.cli.main(["ingest", "mine", "--log", log, *options])
        output = capsys.readouterr()
        return int(ending.value.code or 0), output.out + output.err

    return run


def rows(day: int, header: str = HEADER) -> str:
    times = [f"2024-05-{day:02}T{hour:02}:00:00Z" for hour in range(24)]
    return header + "".join(f"u{hour % 9},i{hour % 7},{time}\n" for hour, time in enumerate(times))


def write(day: int, text: str | None = None) -> Path:
    path = Path(f"incoming/{day}.csv")
    path.write_text(rows(day) if text is None else text)
    return path


def cut(day: int) -> Path:
    path = Path(f"incoming/{day}.csv.gz")
    path.write_bytes(gzip.compress(rows(day).encode())[:-20])
    return path


@pytest.mark.parametrize("is_large", [False, True])
def test_all_files_that_cannot_be_read_are_named_and_nothing_is_committed(
    ingest: Command, monkeypatch: pytest.MonkeyPatch, is_large: bool
):
    monkeypatch.setattr("storage.events.scratch_database.is_large", lambda *sizes: is_large)
    for day in range(1, 9):
        write(day)
    broken = [cut(2), write(4, rows(4, "user,article,time\n")), write(5, rows(5, "item,time\n")), write(6, ",,\n" * 30)]
    Path("incoming/2.csv").unlink()
    code, output = ingest("--window", "1d")
    assert code == 1
    assert "4 of 8 new files cannot be read by the plan of incoming/1.csv: incoming/2.csv.gz breaks off" in output
    assert "incoming/4.csv, line 1 has no column 'item'; found: user, article, time" in output
    assert "incoming/5.csv, line 1 has no column 'user'" in output
    assert "incoming/6.csv, line 1 has no column 'user'" in output
    assert "Nothing was committed, because windows would be complete without their rows" in output
    assert not ingested_datasets(Layout.from_environment())
    for path in broken:
        path.rename(path.with_name(f".{path.name}"))
    code, output = ingest("--window", "1d")
    assert (code, "96 accepted" in output) == (0, True), output
    cut(3).with_name("2.csv.gz").write_bytes(gzip.compress(rows(2).encode()))
    Path("incoming/3.csv.gz").unlink()
    assert "24 accepted" in ingest()[1]


def test_of_many_files_that_cannot_be_read_all_have_their_names_in_the_error(ingest: Command):
    write(1)
    for day in range(10, 18):
        cut(day)
    output = ingest()[1]
    assert "8 of 9 new files cannot be read by the plan of incoming/1.csv: incoming/10.csv.gz breaks off" in output
    assert "; also incoming/15.csv.gz, incoming/16.csv.gz, incoming/17.csv.gz. Nothing was committed" in output


def test_a_first_file_without_a_plan_is_one_of_those_that_are_named(ingest: Command):
    for day in (2, 3):
        write(day)
    write(1, "user,article\n" + "u1,i1\n" * 24)
    code, output = ingest()
    named = "1 of 3 new files cannot be read by the plan of incoming/2.csv: incoming/1.csv, line 1 does not split into"
    assert (code, named in output) == (1, True), output
    write(1, rows(1, "user,article,time\n"))  # so that each other file is the one that differs
    code, output = ingest()
    named = "2 of 3 new files cannot be read by the plan of incoming/1.csv: incoming/2.csv, line 1 has no column"
    assert (code, named in output) == (1, True), output


def test_of_several_new_files_the_one_of_another_form_than_the_log_is_named(ingest: Command):
    write(1)
    assert ingest("--window", "1d")[0] == 0
    write(2, rows(2, "user,article,time\n").replace(",i", ",j"))
    write(3)
    cut(4)
    code, output = ingest()
    assert code == 1
    assert "2 of 3 new files cannot be read by the plan of incoming/3.csv: incoming/4.csv.gz breaks off" in output
    assert "incoming/2.csv does not continue the log: its target is the column 'article', so far the" in output
    assert "(insist with --force)" in output
    assert "incoming/3.csv, line 1" not in output


def test_the_error_of_the_only_new_file_is_its_own(ingest: Command):
    write(1)
    assert ingest("--window", "1d")[0] == 0
    cut(2)
    code, output = ingest()
    assert code == 1
    assert output.startswith("dyformer: incoming/2.csv.gz breaks off or is damaged")
    assert "new files" not in output


def test_a_damaged_file_beside_a_new_one_without_a_row_is_an_error(ingest: Command):
    write(1)
    assert ingest("--window", "1d")[0] == 0
    cut(2)
    write(3, HEADER)
    code, output = ingest()
    assert (code, "1 of 2 new files cannot be read: incoming/2.csv.gz breaks off" in output) == (1, True), output


def test_a_copy_of_another_file_is_named(ingest: Command):
    for name in ("1", "2", "3"):
        Path(f"incoming/{name}.csv").write_text(rows(1))
    code, output = ingest("--window", "1d")
    assert code == 0
    named = "incoming/{}.csv has the bytes of incoming/1.csv, and is not read"
    assert output.splitlines()[0] == f"{named.format(2)}; {named.format(3)}"
    assert "reading mine from incoming/1.csv\n" in output
    write(4, rows(1))
    assert named.format(4) in ingest()[1]


def test_a_file_of_another_format_is_ingested_on_its_own_as_the_error_says(ingest: Command):
    write(1)
    frame = pl.DataFrame({"user": [f"u{row % 9}" for row in range(24)], "item": "i1"})
    frame.with_columns(time=pl.datetime(2024, 5, 2)).write_parquet("incoming/2.parquet")
    code, output = ingest("--window", "1d")
    remedy = "write its rows as delimited text, or read it on its own, the first time with --force"
    assert (code, f"incoming/2.parquet is Parquet, unlike the files before it: {remedy}" in output) == (1, True), output
    assert ingest("--window", "1d", log="incoming/1.csv")[0] == 0
    assert ingest(log="incoming/2.parquet")[0] == 1
    assert ingest("--force", log="incoming/2.parquet")[0] == 0
    frame.with_columns(time=pl.datetime(2024, 5, 3)).write_parquet("incoming/3.parquet")
    assert ingest(log="incoming/3.parquet")[0] == 0


def test_a_header_after_files_without_one_is_read_on_its_own_as_the_error_says(ingest: Command):
    write(1, rows(1, ""))
    write(2, rows(2, "target,source,time\n"))
    code, output = ingest("--window", "1d")
    remedy = "ingest it on its own, its columns named by --source, --target and --time"
    assert (code, remedy in output) == (1, True), output
    assert ingest("--window", "1d", log="incoming/1.csv")[0] == 0
    named = ("--source", "source", "--target", "target", "--time", "time", "--new-ids")
    assert ingest(*named, log="incoming/2.csv")[0] == 0


def test_weights_of_texts_may_be_left_out(ingest: Command):
    text = rows(1).replace("Z\n", "Z,12 EUR\n").replace("time\n", "time,amount\n")
    write(1, text)
    for some in (text, text.replace(" EUR", "", 12)):
        write(1, some)
        code, output = ingest("--weight", "amount")
        assert code == 1
        assert "choose another column with --weight, or leave it out in the first ingest of a log" in output
    assert ingest()[0] == 0


def weighted(day: int) -> str:
    return rows(day, HEADER.replace("time", "time,weight")).replace("Z\n", "Z,5\n")


def test_a_later_file_without_the_weights_of_the_log_is_refused(ingest: Command):
    write(1, weighted(1))
    assert ingest("--window", "1d")[0] == 0
    write(2)
    code, output = ingest()
    assert (code, "incoming/2.csv: it has no weight, so far the column 'weight'" in output) == (1, True), output
    assert ingest("--force")[0] == 0
    write(3)
    assert ingest()[0] == 0  # a forced form is one of the log's


def test_weights_by_position_that_a_later_file_does_not_show_are_named(ingest: Command):
    some = rows(1, "").replace(",2024", ",5,2024")
    write(1, some)
    assert "weight = column 3" in ingest("--window", "1d")[1]
    write(2, rows(2, "").replace(",2024", ",0,2024"))  # a column with a zero is not guessed to be one of weights
    code, output = ingest()
    assert (code, "it has no weight, so far column 3; if it has one, name it with --weight" in output) == (1, True)
    assert ingest("--weight", "2")[0] == 0


def test_several_files_of_another_format_without_a_plan_are_named_as_such(ingest: Command):
    write(1)
    assert ingest("--window", "1d")[0] == 0
    for day in (2, 3):  # which of the columns are the ends is open
        row = f'{{"one": "a", "other": "b", "third": "c", "at": "2024-05-0{day}"}}\n'
        Path(f"incoming/{day}.json").write_text(row * 24)
    code, output = ingest()
    assert code == 1
    assert "2 of 2 new files cannot be read" in output
    assert "incoming/3.json: its format is JSON lines, so far delimited text" in output


def test_weights_that_come_later_are_read_where_they_are_named(ingest: Command):
    write(1)
    assert ingest("--window", "1d")[0] == 0
    write(2, weighted(2))
    code, output = ingest()
    assert (code, "unread   weight" in output) == (0, True), output
    write(3, weighted(3))
    code, output = ingest("--weight", "weight")
    assert (code, "weight = weight" in output) == (0, True), output


def test_rows_far_after_a_first_ingest_are_refused_unless_they_are_insisted_on(ingest: Command):
    for day in range(1, 11):
        write(day)
    write(11, HEADER + "u1,i1,2040-01-01T00:00:00Z\nu2,i1,2040-01-02T00:00:00Z\n")
    code, output = ingest("--window", "1d")
    assert code == 1
    assert "incoming/11.csv: 2 rows lie far after all others, from 2040-01-01, where the others end at 2024" in output
    assert not ingested_datasets(Layout.from_environment())
    assert ingest("--window", "1d", "--force")[0] == 0
