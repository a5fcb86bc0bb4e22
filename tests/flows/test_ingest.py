"""Ingesting a user's own log: small first files, and the columns of its table of snapshots."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flows.cli
from dyformer.logs.counts import counted
from flows.tasks.ingest import ingest_log
from storage.events import versions

HEADER = "source,target,time"
TOO_FEW = "2 interactions cannot fill 12 windows of equal count: add interactions until there are 12"
ROWS = [f"u{number % 5},v{number % 3},2024-01-{number + 1:02}T00:00:00Z" for number in range(14)]


@pytest.fixture
def dyformer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Run a command on an empty store; return its exit code and its output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ending:
            flows.cli.main(list(arguments))
        output = capsys.readouterr()
        return int(ending.value.code or 0), output.out + output.err

    return run


def test_a_first_file_of_two_rows_is_ingested_and_may_grow(dyformer: Callable[..., tuple[int, str]]):
    Path("first.csv").write_text("\n".join([HEADER, *ROWS[:2]]))
    code, output = dyformer("ingest", "mine", "--log", "first.csv")
    assert code == 0
    assert "2 accepted" in output
    assert f"no snapshots yet: {TOO_FEW}" in output
    assert dyformer("snapshots", "mine") == (1, f"dyformer: {TOO_FEW}\n")
    Path("second.csv").write_text("\n".join([HEADER, *ROWS[2:]]))
    code, output = dyformer("ingest", "mine", "--log", "second.csv")
    assert code == 0
    assert "no snapshots yet" not in output
    assert dyformer("snapshots", "mine")[0] == 0


def test_one_row_is_a_row_and_two_are_rows(dyformer: Callable[..., tuple[int, str]]):
    assert [counted(number, "query") for number in (0, 1, 2, 1_000)] == [
        "0 queries",
        "1 query",
        "2 queries",
        "1,000 queries",
    ]
    Path("first.csv").write_text("\n".join([HEADER, ROWS[0]]))
    assert "mine: 1 row read = 1 accepted" in dyformer("ingest", "mine", "--log", "first.csv")[1]
    assert "mine: 0 rows read; 1 row of 1 file was read before = 1 accepted" in dyformer("ingest", "mine")[1]
    Path("second.csv").write_text("\n".join([HEADER, *ROWS[1:3], ROWS[2]]))
    output = dyformer("ingest", "mine", "--log", "second.csv")[1]
    assert "mine: 3 rows read = 3 accepted + 0 quarantined + 0 dropped (1 exact duplicate)" in output
    assert (
        "took back commit 2 (second.csv): 3 events and 0 rejected rows left" in dyformer("ingest", "mine", "--undo")[1]
    )


def test_a_log_of_ones_own_under_a_known_name_is_read_in_the_published_form_and_the_output_names_it(
    dyformer: Callable[..., tuple[int, str]],
):
    Path("log.csv").write_text("\n".join([HEADER, *ROWS]))
    named = "uci is the name of a known dataset: its files are read in their published form"
    code, output = dyformer("ingest", "uci", "--log", "log.csv", "--window", "7d")
    assert (code, named in output, "did you mean comma?" in output) == (1, True, True)
    assert "known dataset" not in dyformer("ingest", "mine", "--log", "log.csv", "--window", "7d")[1]


def test_two_rows_are_too_few_where_windows_are_wanted(dyformer: Callable[..., tuple[int, str]]):
    Path("log.csv").write_text("\n".join([HEADER, *ROWS[:2]]))
    for command in (("ingest", "--window", "12 equal"), ("run",), ("prepare",)):
        code, output = dyformer(command[0], "mine", "--log", "log.csv", *command[1:])
        assert code == 1
        assert f"dyformer: {TOO_FEW}\n" in output
    assert "mine" not in dyformer("datasets")[1]


def test_weights_and_labels_stand_beside_the_counts_of_each_snapshot(dyformer: Callable[..., tuple[int, str]]):
    rows = [f"{row},{weight},{label}" for row, weight, label in zip(ROWS, range(14), "01" * 7, strict=True)]
    Path("log.csv").write_text("\n".join([f"{HEADER},weight,label", *rows[1::2], *rows[0::2]]))
    code, output = dyformer("snapshots", "mine", "--log", "log.csv", "--window", "5d", "--json")
    assert code == 0
    steps = json.loads(output)
    assert [step["weight"] for step in steps] == [0 + 1 + 2 + 3 + 4, 5 + 6 + 7 + 8 + 9, 10 + 11 + 12 + 13]
    assert [step["positive_labels"] for step in steps] == [2, 3, 2]


def test_a_log_without_weights_and_labels_has_no_column_of_them(dyformer: Callable[..., tuple[int, str]]):
    Path("log.csv").write_text("\n".join([HEADER, *ROWS]))
    steps = json.loads(dyformer("snapshots", "mine", "--log", "log.csv", "--json")[1])
    assert not {"weight", "positive_labels"} & steps[0].keys()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--source", "nope"), "source = (guessed), but now source = 'nope'"),
        (("--source", "target", "--target", "source"), "leave out --source and --target, name a new file with --log"),
        (("--log", "log.csv", "--source", "nope"), "no column 'nope'; found: source, target, time"),
        (("--log", "log.csv", "--source", "target", "--target", "source"), "but now source = 'target'"),
        (("--separator", "tab"), r"but now separator = '\t'"),
        (("--undirected",), "directed = (guessed), but now directed = False"),
        (("--drop-duplicates",), "was ingested with 2 exact duplicates"),
        (("--max-bad", "many"), "--max-bad 'many': expected a fraction"),
    ],
)
def test_options_that_would_read_committed_rows_otherwise_are_refused(
    options: tuple[str, ...], says: str, dyformer: Callable[..., tuple[int, str]]
):
    Path("log.csv").write_text("\n".join([HEADER, *ROWS, *ROWS[:2]]))
    assert dyformer("ingest", "mine", "--log", "log.csv")[0] == 0
    declared = Path("store/2_events/dataset=mine/declaration.json").read_bytes()
    code, output = dyformer("ingest", "mine", *options)
    assert code == 1
    assert output.startswith("dyformer: ")
    assert says in output
    assert Path("store/2_events/dataset=mine/declaration.json").read_bytes() == declared


def test_options_that_name_the_guessed_reading_are_accepted_again(dyformer: Callable[..., tuple[int, str]]):
    Path("log.csv").write_text("\n".join([HEADER, *ROWS]))
    assert dyformer("ingest", "mine", "--log", "log.csv")[0] == 0
    again = ("--log", "log.csv", "--source", "source", "--target", "1", "--separator", "comma", "--header")
    for options in (again, ("--max-bad", "5%"), ("--drop-duplicates",), ("--source", "source")):
        code, output = dyformer("ingest", "mine", *options)
        assert code == 0, output
        assert "no new rows" in output


@pytest.mark.parametrize(
    ("options", "both"),
    [
        (("--source", "source", "--target", "source"), "'source' cannot be both source and target"),
        (("--source", "time", "--target", "target", "--time", "2"), "'time' cannot be both source and time"),
        (("--source", "source", "--target", "2", "--time", "time"), "'time' cannot be both target and time"),
    ],
)
def test_one_column_cannot_have_two_roles(
    options: tuple[str, ...], both: str, dyformer: Callable[..., tuple[int, str]]
):
    Path("log.csv").write_text("\n".join([HEADER, *ROWS]))
    code, output = dyformer("ingest", "mine", "--log", "log.csv", *options)
    assert code == 1
    assert both in output
    assert not Path("store/2_events/dataset=mine").exists()


def test_windows_are_listed_as_the_user_writes_them(dyformer: Callable[..., tuple[int, str]]):
    Path("log.csv").write_text("\n".join([HEADER, *ROWS]))
    assert dyformer("ingest", "mine", "--log", "log.csv", "--window", "4 equal")[0] == 0
    windows = {row["name"]: row["window"] for row in json.loads(dyformer("datasets", "--json")[1])}
    assert (windows["mine"], windows["rds"]) == ("4 equal", "100 equal")


def test_a_window_that_replaces_another_one_is_named_with_what_it_changes(dyformer: Callable[..., tuple[int, str]]):
    Path("log.csv").write_text("\n".join([HEADER, *ROWS]))
    assert "from now on" not in dyformer("ingest", "mine", "--log", "log.csv", "--window", "2d")[1]
    assert "from now on" not in dyformer("snapshots", "mine", "--window", "2d")[1]
    code, output = dyformer("snapshots", "mine", "--window", "3d")
    assert code == 0
    assert "mine: windows of '3d' from now on, where no --window is given; before, of '2d'" in output
    assert "from now on" not in dyformer("snapshots", "mine")[1]


def test_a_new_file_may_drop_the_duplicates_that_an_earlier_one_has(dyformer: Callable[..., tuple[int, str]]):
    Path("logs").mkdir()
    Path("logs/a.csv").write_text("\n".join([HEADER, *ROWS, ROWS[0]]))
    assert dyformer("ingest", "mine", "--log", "logs")[0] == 0
    options = ("mine", "--log", "logs", "--drop-duplicates", "--source", "source")
    assert dyformer("ingest", *options)[0] == 1
    Path("logs/b.csv").write_text(f"{HEADER}\nu9,v9,2024-02-01T00:00:00Z")
    assert dyformer("ingest", *options)[0] == 0
    code, output = dyformer("ingest", *options)  # as a run does in its flow
    assert code == 0
    assert "no new rows" in output


def test_the_rows_of_new_files_are_counted_apart_from_those_of_files_that_were_read_before(
    dyformer: Callable[..., tuple[int, str]],
):
    Path("logs").mkdir()
    Path("logs/a.csv").write_text("\n".join([HEADER, *ROWS, ROWS[0]]))
    first = dyformer("ingest", "mine", "--log", "logs")[1]
    assert "mine: 15 rows read = 15 accepted + 0 quarantined + 0 dropped (1 exact duplicate); event table" in first
    Path("logs/b.csv").write_text("\n".join([HEADER, *ROWS[:3]]))
    second = dyformer("ingest", "mine", "--log", "logs")[1]
    assert (
        "mine: 3 rows read = 3 accepted + 0 quarantined + 0 dropped (0 exact duplicates);"
        " 15 rows of 1 file were read before; event table version 2\n"
    ) in second
    third = dyformer("ingest", "mine", "--log", "logs")[1]
    assert (
        "mine: 0 rows read; 18 rows of 2 files were read before = 18 accepted + 0 quarantined + 0 dropped"
        " (1 exact duplicate); event table version 2, no new rows"
    ) in third


def test_a_corrected_file_is_a_new_one_whose_rows_come_beside_the_old_ones(
    dyformer: Callable[..., tuple[int, str]],
):
    def ingest(rows: list[str], *options: str) -> str:
        Path("logs/2.csv").write_text("\n".join([HEADER, *rows]))
        code, output = dyformer("ingest", "mine", "--log", "logs", *options)
        assert code == 0
        return output

    def num_events() -> int:
        return json.loads(dyformer("sql", "select count(*) as num from events", "--json")[1])[0]["num"]

    Path("logs").mkdir()
    Path("logs/1.csv").write_text("\n".join([HEADER, *ROWS[:10]]))
    assert dyformer("ingest", "mine", "--log", "logs")[0] == 0
    ingest(ROWS[10:])
    corrected = [*ROWS[10:13], "u9,v1,2024-01-14T00:00:00Z"]
    assert "mine: 4 rows read = 4 accepted" in ingest(corrected)
    assert num_events() == 18  # the day counts twice
    for _ in range(2):
        assert dyformer("ingest", "mine", "--undo")[0] == 0
    assert "4 rows read = 4 accepted + 0 quarantined + 0 dropped (0 exact duplicates); 10 rows of 1 file" in ingest(
        corrected
    )
    assert num_events() == 14
    assert dyformer("ingest", "mine", "--undo")[0] == 0
    ingest(ROWS[10:])
    assert "4 rows read = 1 accepted + 0 quarantined + 3 dropped" in ingest(corrected, "--drop-duplicates")
    assert num_events() == 15  # the row that the correction changed stays


def test_comment_lines_are_counted_and_below_a_header_there_are_none(dyformer: Callable[..., tuple[int, str]]):
    rows = "\n".join(ROWS).replace("u1", "#1")
    Path("bare.csv").write_text(f"% made by hand\n{rows}\n")
    code, output = dyformer("ingest", "bare", "--log", "bare.csv")
    assert code == 0
    assert "11 rows read = 11 accepted" in output
    assert "; comment lines left out: 4" in output
    code, output = dyformer("ingest", "bare", "--log", "bare.csv")
    assert "comment" not in output  # no line was read
    Path("named.csv").write_text(f"% made by hand\n{HEADER}\n{rows}\n")
    code, output = dyformer("ingest", "named", "--log", "named.csv")
    assert code == 0
    assert "14 rows read = 14 accepted" in output
    assert "; comment lines left out: 1" in output
    Path("tags.csv").write_text("\n".join(f"#{row}" for row in ROWS))
    code, output = dyformer("ingest", "tags", "--log", "tags.csv")
    assert code == 1
    assert "the log is empty but for 14 comment lines" in output
    assert "--comments" in output
    assert dyformer("ingest", "tags", "--log", "tags.csv", "--comments", "")[0] == 0


def test_an_empty_name_of_a_log_is_refused(dyformer: Callable[..., tuple[int, str]]):
    Path("log.csv").write_text("\n".join([HEADER, *ROWS]))
    for empty in ("", " "):
        code, output = dyformer("ingest", "mine", "--log", empty)
        assert code == 1
        assert "--log is an empty text" in output


@pytest.mark.parametrize(
    ("reading", "says"),
    [
        ({"logs": ["log.csv"]}, r"no option 'logs' for reading a log; the nearest are log, "),
        ({"log": ["log.csv"], "bipartite": "no"}, "`bipartite`: expected true or false, got 'no'"),
        ({"log": ["log.csv"], "drop_duplicates": "no"}, "`drop_duplicates`: expected true or false"),
    ],
)
def test_options_of_a_deployment_that_the_command_line_does_not_have_are_refused(
    reading: dict[str, Any], says: str, dyformer: Callable[..., tuple[int, str]]
):
    Path("log.csv").write_text("\n".join([HEADER, *ROWS]))
    with pytest.raises(ValueError, match=says):
        ingest_log("mine", reading)
    assert dyformer("ingest", "mine", "--log", "log.csv")[0] == 0
    with pytest.raises(ValueError, match=says):
        ingest_log("mine", reading)


@pytest.mark.usefixtures("dyformer")
def test_the_log_of_a_run_on_a_server_has_how_its_rows_are_read(monkeypatch: pytest.MonkeyPatch):
    Path("log.csv").write_text("\n".join([HEADER, *ROWS]))
    lines: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *texts, **_: lines.extend(texts))  # as Prefect does in a run
    ingest_log("mine", {"log": ["log.csv"]})
    assert any("guessed  time column, by name" in line for line in lines)


def test_limits_of_raw_files_are_set_by_variables(
    dyformer: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
):
    Path("log.csv").write_text("\n".join([HEADER, *ROWS, f"{'x' * 2000},v1,2024-01-01T00:00:00Z"]))
    monkeypatch.setenv("DYFORMER_MAX_LINE_BYTES", "1000")
    code, output = dyformer("ingest", "mine", "--log", "log.csv", "--max-bad", "10%")
    assert code == 0
    assert "14 accepted + 1 quarantined" in output
    for value in ("many", "-1", "0"):
        monkeypatch.setenv("DYFORMER_MAX_LINE_BYTES", value)
        code, output = dyformer("ingest", "other", "--log", "log.csv")
        assert code == 1
        assert f"DYFORMER_MAX_LINE_BYTES='{value}'" in output


def test_a_row_of_another_time_and_mostly_empty_windows_are_named(dyformer: Callable[..., tuple[int, str]]):
    rows = [f"u{row % 5},v{row % 3},2024-01-{row % 28 + 1:02}T00:00:00Z" for row in range(200)]
    Path("far.csv").write_text("\n".join([HEADER, *rows, "u1,v1,2999-01-01T00:00:00Z"]))
    code, output = dyformer("ingest", "far", "--log", "far.csv", "--window", "7d")
    assert code == 0
    assert "200 accepted + 1 quarantined" in output
    assert "windows have no row" not in output
    Path("late.csv").write_text("\n".join([HEADER, *rows, "u1,v1,2050-01-01T00:00:00Z"]))
    code, output = dyformer("ingest", "late", "--log", "late.csv", "--window", "7d", "--force")
    assert code == 0
    assert "of 1,357 windows have no row: the first row is of 2024-01-01 and the last of 2050-01-01" in output
    assert "with --window" in output


def test_a_new_file_without_a_row_is_named_and_the_others_are_committed(dyformer: Callable[..., tuple[int, str]]):
    folder = Path("incoming")
    folder.mkdir()
    (folder / "1_quiet.csv").write_text(f"{HEADER}\n")
    code, output = dyformer("ingest", "mine", "--log", "incoming")
    assert code == 1
    assert "only a header in line 1" in output
    (folder / "2_busy.csv").write_text("\n".join([HEADER, *ROWS]))
    code, output = dyformer("ingest", "mine", "--log", "incoming")
    assert code == 0, output  # the form is that of the first file with rows
    assert "14 accepted" in output
    (folder / "3_nothing.csv").touch()
    for _ in range(2):  # neither file is committed, so that each ingest finds it again
        code, output = dyformer("ingest", "mine", "--log", "incoming")
        assert code == 0, output
        assert "no new row: incoming/1_quiet.csv: the log is empty, there is only a header in line 1" in output
        assert "incoming/3_nothing.csv: the log is empty (no row in 1 file)" in output
        assert "event table version 1" in output
    (folder / "4_busy.csv").write_text(f"{HEADER}\nu1,v1,2024-01-15T00:00:00Z\n")
    code, output = dyformer("ingest", "mine", "--log", "incoming")
    assert "event table version 2" in output
    assert "no row in incoming/1_quiet.csv, incoming/3_nothing.csv: check that nothing is missing" in output


def test_of_many_files_the_first_and_the_last_are_named(dyformer: Callable[..., tuple[int, str]]):
    for number, row in enumerate(ROWS[:8]):
        path = Path(f"days/date=2024-01-0{number + 1}/part-0.csv")
        path.parent.mkdir(parents=True)
        path.write_text(f"{HEADER}\n{row}\n")
    code, output = dyformer("ingest", "mine", "--log", "days")
    assert code == 0, output
    named = "8 files, the first days/date=2024-01-01/part-0.csv, the last days/date=2024-01-08/part-0.csv"
    assert output.splitlines()[0] == f"reading mine from {named}"


def test_an_ingest_opens_no_other_log(dyformer: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch):
    rows = ["source,target,time", *(f"a,b,{number}" for number in range(30))]
    Path("rows.csv").write_text("\n".join(rows))
    for name in ("one", "two"):
        assert dyformer("ingest", name, "--log", "rows.csv")[0] == 0
    opened, newest = set(), versions.newest
    monkeypatch.setattr(versions, "newest", lambda layout, name: (opened.add(name), newest(layout, name))[1])
    Path("more.csv").write_text("\n".join([rows[0], *(f"a,b,{number}" for number in range(30, 60))]))
    assert dyformer("ingest", "two", "--log", "more.csv")[0] == 0
    assert opened == {"two"}
