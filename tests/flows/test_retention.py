"""Old versions go from every dataset, whatever is wrong with another one."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from flows.reconcile import reconcile
from storage.artifacts.artifact import MANIFEST, Lineage, write_artifact
from storage.bytes import files
from storage.champions import PUBLICATION_SCHEMA, PUBLICATIONS
from storage.layout import Layout

SETTINGS = "0" * 12


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
