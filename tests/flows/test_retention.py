"""Old versions go from every dataset, whatever is wrong with another one; a dataset goes with all that has its rows."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from filelock import FileLock

from dyformer import InvalidInput
from flows.live.running import check_not_served, login_file
from flows.reconcile import reconcile
from flows.tasks.retention import dropped
from storage.artifacts.artifact import MANIFEST, Lineage, write_artifact
from storage.bytes import files
from storage.bytes.files import make_folder
from storage.champions import PUBLICATION_SCHEMA, PUBLICATIONS
from storage.events.table import DatasetNotIngested
from storage.layout import Layout
from storage.locks import DatasetInUse
from storage.tracking.runs import open_tracker
from storage.tracking.upkeep import prune_runs

SETTINGS = "0" * 12
HOLDER = """
import sys
from storage.layout import Layout
from storage.locks import in_use

with in_use(Layout(sys.argv[1], sys.argv[2]), "mine").read_lock():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Callable[[Path], Path]) -> Layout:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path))
    for name in ("DYFORMER_STATE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    empty_database(tmp_path / "mlflow.db")
    return Layout.from_environment()


def publish(layout: Layout, dataset: str, num_versions: int) -> Path:
    """Store a dataset with snapshots of some versions and a publication; returns the file of the publication."""
    Path(layout.commit(dataset, 1)).mkdir(parents=True)
    Path(layout.commit(dataset, 1), "part").touch()
    for version in range(1, num_versions + 1):
        address = layout.artifact("snapshots", dataset, version=version, settings=SETTINGS)
        lineage = Lineage(kind="snapshots", dataset=dataset, table_version=version)
        steps = pl.DataFrame({"step": range(version), "version": range(1, version + 1)})
        write_artifact(address, {"steps": steps}, lineage)
    row = {"number": 1, "champion": 1, "method": "m", "step": 3, "start_time": 0, "forecasts": "f", "vectors": None}
    address = layout.artifact("publications", dataset, version=num_versions, until=2, settings=SETTINGS)
    lineage = Lineage(kind=PUBLICATIONS, dataset=dataset, table_version=num_versions)
    write_artifact(address, {PUBLICATIONS: pl.DataFrame([row], schema=PUBLICATION_SCHEMA)}, lineage)
    return Path(address, f"{PUBLICATIONS}.parquet")


def test_a_damaged_dataset_is_reported_and_the_others_are_pruned(
    server: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.removal.YOUNG_SECONDS", -60.0)
    publication = publish(layout, "broken", 9)
    publication.write_bytes(publication.read_bytes()[:-1])
    publish(layout, "lost", 9).unlink()
    publish(layout, "sound", 9)
    done = reconcile(keep=2)  # and the steps that a run reads before the two newest
    assert [problem.split(":")[0] for problem in done["problems"]] == ["broken", "lost"]
    assert str(publication) in done["problems"][0]
    assert done["pruned"][0].startswith("removed 2 artifacts of sound")
    left = {
        name: len(list(files.find(layout.artifacts("snapshots", name), MANIFEST)))
        for name in ("broken", "lost", "sound")
    }
    assert left == {"broken": 9, "lost": 9, "sound": 7}


def tracked(layout: Layout, dataset: str) -> Path:
    """Track two runs of a dataset, one of them hidden since, and register a model; returns the folder of the files."""
    tracker, run_ids = open_tracker(layout), []
    for number in range(2):
        with tracker.run(dataset=dataset, name=str(number), tags={"stage": "retrain"}) as run:
            run.table("forecasts.csv", pl.DataFrame({"id": ["anna"]}))
            run_ids.append(run.run_id)
    tracker.client().delete_run(run_ids[-1])
    tracker.client().create_registered_model(f"dyformer-{dataset}")
    return Path(layout.root, "mlflow", f"dyformer-{dataset}")


def with_raw_files(layout: Layout, dataset: str) -> list[Path]:
    paths = [Path(layout.raw(dataset), "log.csv"), Path(layout.received(dataset), ".open-1.jsonl")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("anna")
    return paths


def left_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_everything_that_has_rows_of_a_dataset_goes_and_another_stays(layout: Layout) -> None:
    for dataset in ("gone", "stays"):
        publish(layout, dataset, 1)
    files_of = {dataset: tracked(layout, dataset) for dataset in ("gone", "stays")}
    raw = with_raw_files(layout, "gone") + with_raw_files(layout, "stays")
    assert len(left_of(files_of["gone"])) == 2
    lines = dropped("gone", everything=True)
    assert [line.partition(" of gone")[0].removeprefix("removed ") for line in lines] == [
        "1 run and the registered model",
        "the files and the received events",
        "the events, artifacts, checkpoints and champion",
    ]
    assert [path.exists() for path in raw] == [False, False, True, True]
    assert left_of(files_of["gone"]) == []
    assert len(left_of(files_of["stays"])) == 2
    assert not list(files.find(layout.root, "dataset=gone"))
    client = open_tracker(layout).client()
    assert [model.name for model in client.search_registered_models()] == ["dyformer-stays"]
    with pytest.raises(DatasetNotIngested, match=r"'gone'.*it has: stays"):
        dropped("gone", everything=True)
    tracked(layout, "gone")  # the name is free again


def test_a_store_without_mlflow_gets_no_database(layout: Layout) -> None:
    publish(layout, "mine", 1)
    Path(layout.root, "mlflow.db").unlink()
    [line] = dropped("mine", everything=True)
    assert line.startswith("removed the events")
    assert not Path(layout.root, "mlflow.db").exists()


@pytest.mark.parametrize("folder", ["dyformer-mine", "1"], ids=["made by a run", "made by a server"])
def test_a_copy_of_a_store_removes_its_own_files(folder: str, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server gives the folder of an experiment its number as a name."""
    publish(layout, "mine", 1)
    original = Path(layout.root)
    client = open_tracker(layout).client()
    assert client.create_experiment("dyformer-mine", str(original / "mlflow" / folder)) == "1"
    files_of = {original: tracked(layout, "mine").with_name(folder)}
    copy = original.with_name(f"{original.name}-copy")
    shutil.copytree(original, copy)
    files_of[copy] = copy / "mlflow" / folder
    assert [len(left_of(path)) for path in files_of.values()] == [2, 2]
    monkeypatch.setenv("DYFORMER_STORAGE", str(copy))
    dropped("mine", everything=True)
    assert [len(left_of(path)) for path in files_of.values()] == [2, 0]


def test_files_outside_of_the_store_are_not_removed(layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> None:
    publish(layout, "mine", 1)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    open_tracker(layout).client().create_experiment("dyformer-mine", str(elsewhere))
    tracked(layout, "mine")
    stored = set(left_of(Path(layout.root)))
    with pytest.raises(
        InvalidInput, match=rf"lie in {elsewhere}/.*outside of this store, which may be a copy: nothing"
    ):
        dropped("mine", everything=True)
    assert prune_runs(open_tracker(layout), "mine", 0) == 1
    assert len(left_of(elsewhere)) == 2
    assert stored <= set(left_of(Path(layout.root)))


def test_runs_whose_files_only_a_server_removes_stay_until_there_is_one(layout: Layout) -> None:
    publish(layout, "mine", 1)
    client = open_tracker(layout).client()
    client.create_run(client.create_experiment("dyformer-mine", "mlflow-artifacts:/1"))
    client.create_registered_model("dyformer-mine")
    with pytest.raises(InvalidInput, match=r"go through a server to mlflow-artifacts:/1/.*start `dyformer up`"):
        dropped("mine", everything=True)
    assert [model.name for model in client.search_registered_models()] == ["dyformer-mine"]
    assert dropped("mine")


def test_nothing_goes_while_mlflow_cannot_be_reached_or_a_process_uses_the_dataset(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(layout, "mine", 1)
    raw, runs = with_raw_files(layout, "mine"), tracked(layout, "mine")
    stored = left_of(Path(layout.root))
    command = [sys.executable, "-c", HOLDER, layout.root, layout.state]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DatasetInUse, match="drop it after that process has ended"):
            dropped("mine", everything=True)
        assert len(left_of(runs)) == 2
        holder.kill()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(
        InvalidInput, match="cannot remove the runs of mine, so that the store was not touched"
    ) as error:
        dropped("mine", everything=True)
    assert "secret" not in str(error.value)
    assert set(stored) <= set(left_of(Path(layout.root)))
    dropped("mine")
    assert all(path.exists() for path in raw)


def test_what_a_running_server_serves_is_not_dropped_with_everything(layout: Layout) -> None:
    check_not_served(layout, "mine")
    assert not Path(layout.service).exists()
    make_folder(Path(layout.service))
    check_not_served(layout, "mine")
    with FileLock(login_file(layout, "mine").with_suffix(".lock")):
        with pytest.raises(InvalidInput, match="`dyformer serve mine` runs already"):
            check_not_served(layout, "mine")
        check_not_served(layout, "another")
