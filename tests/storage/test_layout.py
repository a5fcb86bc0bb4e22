from pathlib import Path

import pytest

from flows.cli import main
from storage.bytes.files import temporary_name
from storage.layout import Layout

RUN = {"version": 3, "until": 12, "settings": "ab12cd34ef56789", "seed": 0}


def test_every_kind_has_its_own_address(tmp_path: Path):
    layout = Layout(str(tmp_path))
    addresses = [
        layout.raw("uci"),
        layout.declaration("uci"),
        layout.raw_files("uci"),
        layout.commit("uci", 1),
        layout.commit("uci", 2),
        layout.artifact("snapshots", "uci", version=3, settings="ab"),
        layout.artifact("pagerank", "uci", version=3, until=12, settings="ab"),
        layout.artifact("distances", "uci", version=3, until=12, settings="ab"),
        layout.artifact("pretrain", "uci", **RUN),
        layout.artifact("finetune", "uci", **RUN),
        layout.artifact("model", "uci", **RUN),
        layout.champion("uci"),
        layout.artifact("vectors", "uci", **RUN),
        layout.artifact("forecasts", "uci", **RUN),
        layout.artifact("scores", "uci", **RUN),
        layout.artifact("queries", "uci", **RUN),
        layout.artifact("rankings", "uci", **RUN),
        layout.artifact("ranks", "uci", **RUN),
        layout.artifact("backtests", "uci", **RUN),
        layout.artifact("costs", "uci", **RUN),
        layout.artifact("audit", "uci", **RUN),
        layout.artifact("tuning", "uci", **RUN),
        layout.spills,
        layout.lock("train-uci"),
    ]
    assert len(set(addresses)) == len(addresses)
    assert not any(a != b and b.startswith(f"{a}/") for a in addresses for b in addresses)


@pytest.mark.parametrize(
    "change",
    [{"version": 4}, {"until": 11}, {"settings": "ba12cd34ef56789"}, {"seed": 1}],
    ids=lambda change: next(iter(change)),
)
def test_each_key_of_a_run_changes_its_address(tmp_path: Path, change: dict):
    layout = Layout(str(tmp_path))
    for kind in ("model", "vectors", "forecasts", "scores"):
        assert layout.artifact(kind, "uci", **RUN) != layout.artifact(kind, "uci", **(RUN | change))
    assert layout.artifact("model", "uci", **RUN) != layout.artifact("model", "yelp", **RUN)


def test_an_address_carries_kind_and_keys(tmp_path: Path):
    layout = Layout(str(tmp_path / "dataset=trap"))
    address = layout.artifact("vectors", "uci", **RUN)
    keys = {"dataset": "uci", "version": "3", "until": "12", "settings": "ab12cd34ef56", "seed": "0"}
    assert layout.describe(address) == ("vectors", keys)
    assert layout.absolute(layout.relative(address)) == address


def test_a_foreign_address_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="not below the storage root"):
        Layout(str(tmp_path)).relative("/elsewhere/x")


def test_a_later_change_of_the_working_directory_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYFORMER_STORAGE", raising=False)
    monkeypatch.delenv("DYFORMER_STATE", raising=False)
    layout = Layout.from_environment()
    assert layout.root == str(tmp_path.resolve() / "data")
    monkeypatch.chdir("/")
    assert layout.commits("uci").startswith(str(tmp_path.resolve()))
    assert layout.state == layout.root


def test_locks_and_the_database_stay_on_this_machine_under_an_s3_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("DYFORMER_STORAGE", "s3://bucket/prefix/")
    layout = Layout.from_environment()
    assert layout.commit("uci", 7) == "s3://bucket/prefix/2_events/dataset=uci/commit=7"
    assert not layout.is_local
    assert layout.state == str(tmp_path.resolve() / "dyformer")
    assert layout.tracking_uri == f"sqlite:///{tmp_path.resolve()}/dyformer/mlflow.db"
    assert Path(layout.lock("train")).is_relative_to(tmp_path)
    monkeypatch.setenv("DYFORMER_STATE", str(tmp_path / "own"))
    assert Layout.from_environment().state == str(tmp_path.resolve() / "own")
    snapshots = Layout("s3://other/store").absolute("3_snapshots/dataset=uci/until=3")
    assert Layout.holding(snapshots) == Layout("s3://other/store", str(tmp_path / "own"))


def test_a_given_tracking_server_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert Layout(str(tmp_path)).tracking_uri == "http://mlflow:5000"


@pytest.mark.parametrize("name", ["", "a/b", "../up", ".hidden", "a b", "a=b", "a%20"])
def test_a_name_that_would_leave_its_folder_is_refused(tmp_path: Path, name: str):
    with pytest.raises(ValueError, match="cannot be part of a storage address"):
        Layout(str(tmp_path)).commits(name)


def test_a_name_that_leaves_no_room_for_hidden_files_and_locks_is_refused(tmp_path: Path):
    """A disk has 255 bytes for a name: a dataset of 214 letters was ingested and could not be dropped."""
    layout = Layout(str(tmp_path))
    hidden, lock = temporary_name(Path(layout.commits("n" * 200)).name), Path(layout.lock(f"champion-{'n' * 200}")).name
    assert max(len(hidden), len(lock)) < 255
    with pytest.raises(ValueError, match=r"'n{40}...' has 201 letters: expected at most 200"):
        layout.commits("n" * 201)
    assert layout.dataset_names([f"dataset={'n' * number}" for number in (200, 201)]) == ["n" * 200]


@pytest.mark.parametrize("command", [["compare", "a", "b"], ["datasets"], ["doctor"], ["sql", "select 1"]])
def test_a_file_as_the_store_is_refused_with_the_remedy(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "file"))
    with pytest.raises(SystemExit, match="1"):
        main(command)
    expected = f"dyformer: the store {tmp_path}/file is a file: expected a folder, which may not exist yet, or an s3://"
    assert capsys.readouterr().err.startswith(expected)


@pytest.mark.parametrize("root", ["gs://bucket", "s3://", "/data/50%25", "/data/what?"])
def test_an_unusable_root_is_refused_with_its_name(root: str):
    with pytest.raises(ValueError, match="storage root"):
        Layout(root)
