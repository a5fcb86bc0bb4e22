"""`dyformer ingest` refuses a later file that does not continue the dataset: it names why, and stores nothing."""

import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars as pl
import pytest

import flows.cli
import flows.tasks.ingest
from storage.bytes.files import WriteFailed
from storage.events import scratch_database
from storage.events.declarations import declaration
from storage.events.table import history, newest_version
from storage.layout import Layout

START = 1_600_000_000  # 2020-09-13
STEP = 3_600
NEW = range(300, 600)  # rows after those of the first file

Ingest = Callable[..., tuple[int, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ingest:
    """Run `dyformer ingest mine` with options; return the exit code and what was printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))

    def run(*options: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ending:
            flows.cli.main(["ingest", "mine", *options])
        output = capsys.readouterr()
        return int(ending.value.code or 0), output.out + output.err

    return run


@pytest.fixture
def ingest(command: Ingest) -> Ingest:
    """Do the same on a file."""
    return lambda file, *options: command("--log", file, *options)


def seconds(row: int) -> int:
    return START + row * STEP


def rows(
    time: Callable[[int], object] = seconds,
    at: Iterable[int] = NEW,
    *,
    prefix: str = "",
    form: str = "{source},{target},{time}",
) -> str:
    return "".join(
        form.format(source=f"{prefix}u{row % 40}", target=f"{prefix}v{row % 30}", time=time(row)) + "\n" for row in at
    )


def dated(form: str) -> Callable[[int], str]:
    return lambda row: datetime.fromtimestamp(seconds(row), UTC).strftime(form)


HEADER = "source,target,time\n"
OLD = range(300)
BASES = {
    "s": HEADER + rows(at=OLD),
    "ms": HEADER + rows(lambda row: seconds(row) * 1_000, OLD),
    "us": HEADER + rows(lambda row: seconds(row) * 1_000_000, OLD),
    "step": HEADER + rows(lambda row: row + 1, OLD),
    "relative": HEADER + rows(lambda row: row * 60.5, OLD),
    "iso": HEADER + rows(dated("%Y-%m-%dT%H:%M:%SZ"), OLD),
    "compact": HEADER + rows(dated("%Y%m%d"), OLD),
    "bare": rows(at=OLD),
    "tab": rows(at=OLD, form="{source}\t{target}\t{time}"),
    "json": rows(at=OLD, form='{{"source": "{source}", "target": "{target}", "time": {time}}}'),
    "integers": HEADER + "".join(f"{row % 40},{row % 30 + 40},{seconds(row)}\n" for row in OLD),
}

FOREIGN = {
    # another unit or era of the times
    "ms, then s": ("ms", HEADER + rows(), "--time-unit s"),
    "us, then ms": ("us", HEADER + rows(lambda row: seconds(row) * 1_000), "--time-unit ms"),
    "us, then s": ("us", HEADER + rows(), "--time-unit s"),
    "s, then ms": ("s", HEADER + rows(lambda row: seconds(row) * 1_000), "out of range"),
    "s, then relative seconds": ("s", HEADER + rows(lambda row: row * 60), "around 1970-01-01"),
    "s, then days of a spreadsheet": ("s", HEADER + rows(lambda row: 44_087 + row / 24), "a day of a spreadsheet"),
    "s, then compact dates": ("s", HEADER + rows(dated("%Y%m%d")), "--time-unit iso"),
    "s, then steps": ("s", HEADER + rows(lambda row: row), "around 1970-01-01"),
    "s, then dates": ("s", HEADER + rows(dated("%Y-%m-%d")), "Where this is not the unit of these times, name theirs"),
    "dates, then s": ("iso", HEADER + rows(), "unreadable time"),
    "compact dates, then s": ("compact", HEADER + rows(), "unreadable time"),
    "steps, then s": ("step", HEADER + rows(), "times since the epoch are no steps"),
    "steps, then compact dates": ("step", HEADER + rows(dated("%Y%m%d")), "around step 20,2"),
    "relative seconds, then s": ("relative", HEADER + rows(), "so far 1970-01-01"),
    "dates, then dates of another century": ("iso", HEADER + rows(lambda row: "1820-01-02"), "around 1820-01-02"),
    # another form
    "comma, then semicolon": ("s", HEADER.replace(",", ";") + rows(form="{source};{target};{time}"), "semicolon"),
    "comma, then tab": ("s", HEADER.replace(",", "\t") + rows(form="{source}\t{target}\t{time}"), "the tab"),
    "tab, then comma": ("tab", rows(), "the comma, so far the tab"),
    "other names": ("s", "from,to,when\n" + rows(), "its source is the column 'from', so far the column 'source'"),
    "no header, then ends swapped by name": ("bare", "target,source,time\n" + rows(), "its source is the column"),
    "no header, then other order": ("bare", rows(form="{time},{source},{target}"), "its time is column 1"),
    "header, then other order without": ("s", rows(form="{time},{source},{target}"), "its time is column 1"),
    "no header, then one more column": ("bare", rows(form="{source},{target},{time},7"), "4 columns, so far 3"),
    "text, then JSON lines": ("s", BASES["json"].replace("u1", "u11"), "its format is JSON lines"),
    "JSON lines, then text": ("json", HEADER + rows(), "its format is delimited text"),
    "JSON lines, then other keys": (
        "json",
        rows(form='{{"from": "{source}", "to": "{target}", "time": {time}}}'),
        "its source is the column 'from'",
    ),
    # other nodes
    "no id known": ("s", HEADER + rows(prefix="x"), "none is among the 70 known ones"),
    "ids with a prefix": ("s", HEADER + rows(prefix="user_"), "none is among the 70 known ones"),
    "integers, then texts": ("integers", HEADER + rows(), "none is among the 70 known ones"),
    "texts, then integers": ("s", BASES["integers"], "none is among the 70 known ones"),
    "hashed ids": (
        "s",
        HEADER + "".join(f"{row % 40 * 2654435761:08x},{row % 30 * 40503:08x},{seconds(row)}\n" for row in NEW),
        "is among the 70 known ones",
    ),
}


def test_new_ids_are_declared_once_and_the_other_checks_stay(ingest: Ingest):
    Path("first.log").write_text(BASES["s"])
    Path("second.log").write_text(HEADER + rows(prefix="x"))
    Path("third.log").write_text(HEADER + rows(prefix="y", at=range(600, 900)))
    Path("later.log").write_text(HEADER + rows(lambda row: seconds(row) * 1_000, at=range(600, 900), prefix="z"))
    ingest("first.log")
    code, output = ingest("second.log")
    assert code == 1
    assert "(with --new-ids where ids alone are other ones" in output
    assert ingest("second.log", "--new-ids")[0] == 0
    assert ingest("third.log")[0] == 0  # it is declared
    assert ingest("later.log")[0] == 1
    assert counted() == (3, 3)


def test_a_foreign_file_that_was_insisted_on_is_taken_back_with_its_form(ingest: Ingest, command: Ingest):
    base, text, named = FOREIGN["other names"]
    Path("first.log").write_text(BASES[base])
    Path("second.log").write_text(text)
    ingest("first.log")
    before = declaration(Layout.from_environment(), "mine")
    assert ingest("second.log", "--force")[0] == 0
    assert counted() == (2, 2)

    code, output = command("--undo")

    assert code == 0
    assert "took back commit 2 (second.log): 300 events and 0 rejected rows left the log" in output
    assert counted() == (3, 1)
    assert declaration(Layout.from_environment(), "mine") == before
    code, output = ingest("second.log")
    assert code == 1
    assert named in output


def test_undo_reads_no_file_and_leaves_one_commit(ingest: Ingest, command: Ingest):
    Path("first.log").write_text(BASES["s"])
    ingest("first.log")
    code, output = ingest("first.log", "--undo")
    assert code == 2
    assert "--undo reads no file: leave out --log" in output
    code, output = command("--undo")
    assert code == 1
    assert "`dyformer drop mine` removes the dataset" in output
    assert counted() == (1, 1)


def test_an_undo_that_fails_after_its_commit_is_not_to_be_repeated(
    ingest: Ingest, command: Ingest, monkeypatch: pytest.MonkeyPatch
):
    for number in range(3):
        Path(f"{number}.log").write_text(HEADER + rows(at=range(300 * number, 300 * number + 300)))
        ingest(f"{number}.log", "--window", "1d")
    with monkeypatch.context() as patch:
        patch.setattr(flows.tasks.ingest, "declare", Mock(side_effect=WriteFailed("the disk is full")))
        code, output = command("--undo")
    assert code == 1
    assert "its newest commit is taken back" in output
    assert "do not repeat the command" in output
    assert history(Layout.from_environment(), "mine")["version"].to_list() == [1, 2]
    monkeypatch.setattr(flows.tasks.ingest, "take_back", Mock(side_effect=WriteFailed("the disk is full")))
    assert "repeat" not in command("--undo")[1]


@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])
def test_an_id_that_may_stand_for_a_missing_one_is_named(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch, *, on_disk: bool
):
    monkeypatch.setattr(scratch_database, "is_large", lambda *_: on_disk)
    missing = f"NULL,v1,{seconds(90)}\nnull,v2,{seconds(91)}\nNULL,v3,{seconds(92)}\nu1,#N/A,{seconds(93)}\n"
    Path("first.log").write_text(HEADER + rows(at=range(80)) + missing)
    code, output = ingest("first.log")
    assert code == 0
    named = [line.partition(";")[0] for line in output.splitlines() if "missing id" in line]
    expected = ["'NULL' is the source of 2 rows", "'null' is the source of 1 row", "'#N/A' is the target of 1 row"]
    assert named == [f"mine: {line}" for line in expected]
    Path("second.log").write_text(HEADER + rows(at=range(94, 174)) + f"nullable,banana,{seconds(175)}\n")
    assert "missing id" not in ingest("second.log")[1]


def test_a_mistyped_newest_row_ends_no_window_unless_it_is_insisted_on(ingest: Ingest):
    Path("first.log").write_text(BASES["s"])
    typo, late = range(300, 324), range(2000, 2024)
    Path("typo.log").write_text(HEADER + rows(at=[*typo, 1000]))
    Path("late.log").write_text(HEADER + rows(at=late))
    ingest("first.log", "--window", "1d")
    code, output = ingest("typo.log")
    assert code == 1
    assert "typo.log: 1 row lies far after all others, from 2020-10-25" in output
    assert "where the others end at 2020-09-26" in output
    assert "would end 28 windows that may still grow" in output
    assert "Nothing was committed; correct the times, or insist with" in output
    assert counted() == (1, 1)
    assert ingest("late.log")[0] == 0  # a log that was quiet and goes on
    Path("typo.log").write_text(HEADER + rows(at=[*range(2024, 2048), 7000]))
    code, output = ingest("typo.log", "--force")
    assert code == 0
    assert "1 row lies far after all others" in output


@pytest.mark.parametrize("is_large", [False, True])
def test_a_file_that_grew_is_refused_unless_its_earlier_rows_are_left_out(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch, is_large: bool
):
    monkeypatch.setattr(scratch_database, "is_large", lambda *_: is_large)
    Path("day.log").write_text(HEADER + rows(at=range(300)))
    Path("day2.log").write_text(HEADER + rows(at=range(301)) + rows(at=[7, 300]))
    ingest("day.log", "--window", "1d")
    code, output = ingest("day2.log")
    assert code == 1
    assert "day2.log: 300 of 301 distinct rows are in the log already, or in another new file, as in" in output
    assert "leave these rows out with --drop-duplicates, take an earlier file back with" in output
    assert counted() == (1, 1)
    code, output = ingest("day2.log", "--drop-duplicates")
    assert (code, "303 rows read = 1 accepted + 0 quarantined + 302 dropped" in output) == (0, True), output
    code, output = ingest("day2.log", "--force")
    assert code == 0  # the same bytes again
    Path("day2.log").write_text(HEADER + rows(at=range(302)))
    code, output = ingest("day2.log", "--force")
    assert (code, "301 of 302 distinct rows are in the log already, or in another new file, and" in output) == (0, True)
    assert counted() == (3, 3)


@pytest.mark.parametrize("has_rows", [False, True])
def test_a_file_that_another_process_commits_meanwhile_is_no_copy(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch, has_rows: bool
):
    Path("0.log").write_text(HEADER + rows(at=range(300)))
    Path("1.log").write_text(HEADER + rows(at=range(300, 600)))
    if has_rows:
        ingest("0.log", "--window", "1d")
    check, reading = flows.tasks.ingest.check_contract, {"log": ["1.log"], "window": "1d"}

    def committed(*arguments: Any) -> None:
        monkeypatch.setattr(flows.tasks.ingest, "check_contract", check)
        assert flows.tasks.ingest.ingest_log("mine", reading, lambda text: None)["changed"]
        check(*arguments)

    monkeypatch.setattr(flows.tasks.ingest, "check_contract", committed)
    code, output = ingest("1.log", "--window", "1d")
    assert (code, "no new rows" in output) == (0, True), output
    assert counted() == (1 + has_rows, 1 + has_rows)


def test_of_two_new_files_with_the_same_rows_both_are_named(ingest: Ingest):
    Path("day.log").write_text(HEADER + rows(at=range(300)))
    Path("day_corrected.log").write_text(HEADER + rows(at=range(1, 300)))
    code, output = ingest("*.log", "--window", "1d")
    assert code == 1
    assert "day.log: 299 of 300 distinct rows are" in output
    assert "day_corrected.log: 299 of 299 distinct rows are" in output


def test_a_half_of_rows_that_are_there_or_few_rows_are_named_and_count_once_more(ingest: Ingest):
    Path("one.log").write_text(HEADER + rows(at=range(300)))
    Path("two.log").write_text(HEADER + rows(at=range(150, 450)))
    Path("few.log").write_text(HEADER + rows(at=range(400, 419)))
    Path("later.log").write_text(HEADER + rows(at=range(450, 500)))
    ingest("one.log", "--window", "1d")
    code, output = ingest("two.log")
    assert code == 0
    assert "two.log: 150 of 300 distinct rows are in the log already, or in another new file, and count once" in output
    code, output = ingest("few.log")
    assert (code, "few.log: 19 of 19 distinct rows are in the log" in output) == (0, True)
    code, output = ingest("later.log")
    assert (code, "distinct" in output) == (0, False)
    assert counted() == (4, 4)


def counted() -> tuple[int, int]:
    layout = Layout.from_environment()
    return newest_version(layout, "mine"), history(layout, "mine").height


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_refused_with_its_difference_and_leaves_no_trace(ingest: Ingest, kind: str):
    base, text, named = FOREIGN[kind]
    Path("first.log").write_text(BASES[base])
    assert ingest("first.log")[0] == 0
    before = counted(), Path("store").stat().st_size
    Path("second.log").write_text(text)
    code, output = ingest("second.log")
    assert code == 1
    assert "second.log" in output
    assert named in output
    assert "--" in output.splitlines()[-1]  # a remedy
    assert (counted(), Path("store").stat().st_size) == before
    if "be read as" not in output and "out of range" not in output:
        assert "does not continue dataset 'mine'" in output
        assert ingest("second.log", "--force")[0] == 0
        assert counted() == (2, 2)


def test_swapped_ends_of_a_log_with_two_id_spaces_are_named_and_new_ids_of_one_end_are_not(ingest: Ingest):
    header = "user,item,time\n"
    Path("first.log").write_text(header + rows(at=OLD))
    Path("swapped.log").write_text(header + rows(form="{target},{source},{time}"))
    Path("sessions.log").write_text(header + rows(form="s{source},{target},{time}"))
    assert "two id spaces" in ingest("first.log")[1]
    code, output = ingest("swapped.log")
    assert code == 1
    assert "of its 70 ids, none is among the 70 known ones; 70 are ids of the other end" in output
    assert counted() == (1, 1)
    assert ingest("sessions.log")[0] == 0


def test_parquet_after_text_is_of_another_form(ingest: Ingest):
    Path("first.log").write_text(BASES["s"])
    assert ingest("first.log")[0] == 0
    pl.read_csv(BASES["s"].encode()).with_columns(pl.col("time") + 1).write_parquet("second.log")
    code, output = ingest("second.log")
    assert code == 1
    assert "its format is Parquet, so far delimited text" in output


def test_a_file_of_another_format_is_named_as_such_where_its_times_have_another_unit_too(ingest: Ingest):
    times = (pl.from_epoch(pl.col("time"), "s") + pl.duration(microseconds=1)).dt.cast_time_unit("us")
    pl.read_csv(BASES["s"].encode()).with_columns(times).write_parquet("first.log")
    code, output = ingest("first.log")
    assert code == 0
    assert "time unit" not in output  # because the type of the column has it
    Path("second.log").write_text(BASES["iso"])
    before = Path("store").stat().st_size
    code, output = ingest("second.log")
    assert code == 1
    assert "does not continue dataset 'mine': second.log: its format is delimited text, so far Parquet" in output
    assert (counted(), Path("store").stat().st_size) == ((1, 1), before)
    Path("third.log").write_text("")
    code, output = ingest("third.log")
    assert code == 0
    assert "no new row" in output


@pytest.mark.parametrize("base", BASES)
def test_a_later_part_of_the_same_log_is_accepted(ingest: Ingest, base: str):
    """Half of the rows, then the others, which repeat some ids and have new ones."""
    lines = BASES[base].splitlines(keepends=True)
    header = lines[:1] if lines[0] == HEADER else []
    Path("first.log").write_text("".join(lines[:150]))
    Path("second.log").write_text("".join([*header, *lines[150:]]))
    assert ingest("first.log")[0] == 0
    assert ingest("second.log")[0] == 0
    assert counted() == (2, 2)


def test_a_file_of_another_unit_is_read_in_the_unit_that_the_user_states(ingest: Ingest):
    Path("first.log").write_text(BASES["ms"])
    Path("second.log").write_text(HEADER + rows())
    assert ingest("first.log")[0] == 0
    assert ingest("second.log", "--time-unit", "s")[0] == 0
    Path("third.log").write_text(HEADER + rows(lambda row: seconds(row + 300) * 1_000))
    assert ingest("third.log")[0] == 0  # the dataset's own unit is unchanged
    times = history(Layout.from_environment(), "mine").select("first_time", "last_time").row(1)
    assert times == (seconds(300) * 10**6, seconds(599) * 10**6)


def test_dates_after_counts_are_read_as_dates_where_the_user_states_it(ingest: Ingest):
    Path("first.log").write_text(BASES["ms"])
    Path("second.log").write_text(HEADER + rows(dated("%Y-%m-%dT%H:%M:%SZ")))
    assert ingest("first.log")[0] == 0
    assert ingest("second.log", "--time-unit", "iso")[0] == 0
    times = history(Layout.from_environment(), "mine").select("first_time", "last_time").row(1)
    assert times == (seconds(300) * 10**6, seconds(599) * 10**6)


def test_another_column_of_a_file_that_has_the_earlier_one_too_is_refused_even_if_it_is_named(ingest: Ingest):
    """A name that stands there by mistake would otherwise make other nodes of all later files, too."""
    header, text = HEADER.replace("\n", ",note\n"), rows(form="{source},{target},{time},v{source}")
    Path("first.log").write_text(header + rows(at=OLD, form="{source},{target},{time},v{source}"))
    Path("second.log").write_text(header + text)
    assert ingest("first.log", "--source", "source", "--target", "target", "--time", "time")[0] == 0
    code, output = ingest("second.log", "--target", "note")
    assert code == 1
    assert "its target is the column 'note', so far the column 'target', which it has too" in output
    assert counted() == (1, 1)
    assert (declaration(Layout.from_environment(), "mine") or {})["target"] == "target"
    assert ingest("second.log", "--target", "note", "--force")[0] == 0


def test_a_forced_form_is_one_of_the_dataset(ingest: Ingest):
    Path("first.log").write_text(BASES["s"])
    other = HEADER.replace(",", ";")
    for name, at, options in (("second", range(300, 400), ["--force"]), ("third", range(400, 500), [])):
        Path(f"{name}.log").write_text(other + rows(at=at, form="{source};{target};{time}"))
        if name == "second":
            assert ingest("first.log")[0] == 0
            assert ingest("second.log")[0] == 1
        assert ingest(f"{name}.log", *options)[0] == 0


def test_of_several_first_files_one_of_another_unit_is_named(ingest: Ingest):
    Path("logs").mkdir()
    Path("logs/1.csv").write_text(BASES["relative"])
    Path("logs/2.csv").write_text(HEADER + rows())
    code, output = ingest("logs")
    assert code == 1
    assert "logs/2.csv: its times are around 2020-" in output
    assert ingest("logs", "--force")[0] == 0


def test_of_several_files_one_with_a_header_that_swaps_the_ends_is_named(ingest: Ingest):
    Path("logs").mkdir()
    Path("logs/1.csv").write_text(BASES["bare"])
    Path("logs/2.csv").write_text("target,source,time\n" + rows())
    code, output = ingest("logs")
    assert code == 1
    assert "logs/2.csv, line 1 is a header with 'source' in column 2" in output


def test_a_log_larger_than_memory_is_compared_too(ingest: Ingest, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("storage.events.scratch_database.is_large", lambda *sizes: True)
    Path("first.log").write_text(BASES["s"])
    assert ingest("first.log")[0] == 0
    Path("second.log").write_text(HEADER + rows(lambda row: row * 60, prefix="x"))
    code, output = ingest("second.log")
    assert code == 1
    assert "its times are around 1970-01-01" in output
    assert "none is among the 70 known ones" in output


def test_of_two_ingests_at_once_both_forms_and_options_are_declared(ingest: Ingest, monkeypatch: pytest.MonkeyPatch):
    Path("first.log").write_text(BASES["s"])
    ingest("first.log", "--window", "1d")
    for name, mark, at in (("tab", "\t", NEW), ("semicolon", ";", range(600, 900))):
        columns = HEADER.replace(",", mark), rows(at=at, form=mark.join(("{source}", "{target}", "{time}")))
        Path(f"{name}.log").write_text("".join(columns))
    declare = flows.tasks.ingest.declare

    def while_another_ends(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(flows.tasks.ingest, "declare", declare)
        command = [sys.executable, "-c", "from flows.cli import main; main()", "ingest", "mine", "--log", "tab.log"]
        subprocess.run([*command, "--force", "--lateness", "2d"], check=True, timeout=120)
        declare(*arguments, **options)

    monkeypatch.setattr(flows.tasks.ingest, "declare", while_another_ends)
    assert ingest("semicolon.log", "--force", "--window", "2d")[0] == 0
    assert counted()[0] == 3
    record = declaration(Layout.from_environment(), "mine") or {}
    assert [form["separator"] for form in record["forms"]] == [",", "\t", ";"]
    assert (record["lateness"], record["window"]) == ("2d", "2d")


def test_the_forms_of_a_dataset_are_in_its_declaration(ingest: Ingest):
    Path("first.log").write_text(BASES["s"])
    assert ingest("first.log")[0] == 0
    (form,) = (declaration(Layout.from_environment(), "mine") or {})["forms"]
    assert form["columns"] == {"source": "source", "target": "target", "time": "time"}


def test_a_call_that_names_one_end_has_the_other_of_the_files_before(ingest: Ingest, tmp_path: Path):
    header, form = "source,kind,target,time\n", "{source},{target},{target},{time}"
    for name, at in (("old.csv", range(300)), ("new.csv", NEW)):
        (tmp_path / name).write_text(header + rows(at=at, form=form))
    assert ingest("old.csv")[0] == 0
    code, printed = ingest("new.csv", "--target", "kind")  # a slip
    assert (code, "its target is the column 'kind', so far the column 'target'" in printed) == (1, True), printed
    code, printed = ingest("new.csv", "--target", "target")
    assert (code, "columns  source = source, target = target, time = time" in printed) == (0, True), printed


def test_the_form_of_a_first_ingest_that_failed_binds_nobody(
    ingest: Ingest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "first.csv").write_text(HEADER + rows(at=OLD))
    (tmp_path / "other.csv").write_text(HEADER.replace("source", "src") + rows(at=OLD))

    def full(*_: object, **__: object) -> None:
        raise WriteFailed("no space is left")

    with monkeypatch.context() as patched:
        patched.setattr(flows.tasks.ingest, "append_all", full)
        assert ingest("first.csv")[0] == 1
    code, output = ingest("other.csv")
    assert code == 0, output
