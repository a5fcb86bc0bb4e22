"""Ingesting a user's own log: small first files, and the columns of its table of snapshots."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import flows.cli

HEADER = "source,target,time"
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
    assert "no snapshots yet: 12 equal count needs at least 12 rows, but the log has 2" in output
    code, output = dyformer("snapshots", "mine")
    assert code == 1
    assert "2 interactions cannot fill 12 windows" in output
    assert '--window "1 equal"' in output
    Path("second.csv").write_text("\n".join([HEADER, *ROWS[2:]]))
    code, output = dyformer("ingest", "mine", "--log", "second.csv")
    assert code == 0
    assert "no snapshots yet" not in output
    assert dyformer("snapshots", "mine")[0] == 0


def test_two_rows_are_too_few_where_windows_are_wanted(dyformer: Callable[..., tuple[int, str]]):
    Path("log.csv").write_text("\n".join([HEADER, *ROWS[:2]]))
    for command in (("ingest", "--window", "12 equal"), ("run",), ("prepare",)):
        code, output = dyformer(command[0], "mine", "--log", "log.csv", *command[1:])
        assert code == 1
        assert "2 interactions cannot fill 12 windows" in output
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
