"""What a flow prints, which on a server is the log of its run: what it committed, and why it made nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.retrain import retrain

Retrained = Callable[..., str | None]


@pytest.fixture
def retrained(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Retrained:
    """Return a function that retrains on a log of some days."""
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "CRITICAL")
    log = tmp_path / "log.csv"

    def run(num_days: int) -> str | None:
        rows = [f"a,b,2024-01-{day + 1:02}T00:00:00Z" for day in range(num_days)]
        log.write_text("\n".join(["source,target,time", *rows]))
        return retrain("mine", {"log": [str(log)], "window": "7d"})

    return run


def test_too_few_windows_are_named_below_the_rows(retrained: Retrained, capsys: pytest.CaptureFixture[str]):
    assert retrained(14) is None
    output = capsys.readouterr().out
    assert "mine: 14 rows read = 14 accepted" in output
    assert "mine has 1 complete window of '7d', and a run needs 3" in output


def test_a_finished_run_is_named(
    retrained: Retrained, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("flows.retrain.finished_report", lambda *_: "report")
    monkeypatch.setattr("flows.retrain.unsent_alarm", lambda _: None)
    assert retrained(29) == "report"
    assert "mine: no new rows of complete windows, and no new settings, since the last run" in capsys.readouterr().out
