"""A fault of one duty of reconcile stops none of the others."""

from pathlib import Path

import pytest

from flows.reconcile import reconcile


def test_a_store_that_is_away_fails_no_run_and_is_named(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setattr("flows.reconcile.start_missing", _fails)
    monkeypatch.setattr("flows.reconcile.prune_published", lambda *_: (["mylog: 2 versions"], []))
    done = reconcile()
    assert done["problems"] == [
        "retrainings that were missing, started: not done, because of ConnectionError: the store is away"
    ]
    assert (done["started"], done["pruned"]) == ([], ["mylog: 2 versions"])


def _fails(*_: object) -> None:
    raise ConnectionError("the store is away")


def test_a_server_that_fails_one_duty_does_not_stop_the_others(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setattr("flows.reconcile.end_dead_runs", _fails)
    monkeypatch.setattr("flows.reconcile.start_missing", lambda *_: (["mylog, version 2"], []))
    done = reconcile()
    assert [line.partition(":")[0] for line in done["problems"]] == ["runs without a heartbeat, ended"]
    assert done["started"] == ["mylog, version 2"]
