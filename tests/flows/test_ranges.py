"""What is made of ranges has the rows of what is made at once, and the parts of an earlier try are read."""

from collections.abc import Callable
from pathlib import Path

import pytest
from own_log import own_log

from dyformer.evaluation import first_stage
from dyformer.evaluation.costs import FORECASTER_WITHOUT
from dyformer.experiments.settings import Experiment
from flows import parallel
from flows.parallel import Shared
from flows.tasks import predict, prepare
from flows.tasks.ingest import ingest_log
from flows.tasks.models import Contender
from flows.tasks.prepare import prepare_tables
from flows.tasks.snapshots import make_snapshots, open_snapshots
from storage import files
from storage.artifacts.artifact import read_table
from storage.artifacts.made import planned
from storage.layout import PART, Layout

UNTIL = 8


@pytest.fixture
def snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    log = own_log(tmp_path / "mylog.csv")
    reading = {"log": [str(log)], "source": "user", "target": "item", "time": "created_at", "max_bad": "5%"}
    return make_snapshots("mylog", ingest_log("mylog", reading, show=lambda text: None)["version"])


def test_a_pagerank_table_of_ranges_is_that_of_all_nodes(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    def table() -> str:
        return prepare_tables(snapshots, UNTIL, Experiment())["pagerank"]

    same_rows_and_resumed(monkeypatch, table, "pagerank", prepare, "pagerank_rows")


@pytest.mark.parametrize("compared", [50_000, 10], ids=["all pairs", "candidates"])
@pytest.mark.parametrize("method", ["L3", FORECASTER_WITHOUT])
def test_forecasts_of_ranges_are_those_of_all_nodes(
    snapshots: str, monkeypatch: pytest.MonkeyPatch, method: str, compared: int
):
    monkeypatch.setattr(first_stage, "MAX_NODES", compared)  # of a graph whose pairs are all compared

    def table() -> str:
        return predict.write_forecasts(snapshots, Contender(title=method), k=3)

    same_rows_and_resumed(monkeypatch, table, "forecasts", predict, "rank_range")


def test_parts_of_a_gpu_are_never_taken_for_those_of_a_cpu(snapshots: str):
    opened = open_snapshots(snapshots)
    whole = planned(opened.layout, opened.lineage("vectors", until=UNTIL, settings={}))
    parts = {
        device: Shared(layout=opened.layout, whole=whole, values={"device": device}).part(range(4))
        for device in ("cpu", "cuda")
    }
    assert parts["cpu"].address != parts["cuda"].address


def same_rows_and_resumed(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], str], name: str, module: object, function: str
) -> None:
    """Make an artifact at once, and in ranges with an error in the second one; then in ranges after that error."""
    whole = read_table(make(), name)
    files.remove_folder(make())
    monkeypatch.setattr(parallel, "RANGE_NODES", 4)
    honest, made = getattr(module, function), []

    def failing(values: dict[str, object], rows: range, num_threads: int) -> object:
        made.append(rows.start)
        if len(made) == 2:
            raise ZeroDivisionError
        return honest(values, rows, num_threads)

    monkeypatch.setattr(module, function, failing)
    with pytest.raises(ZeroDivisionError):
        make()
    parts = Layout.from_environment().artifacts(PART, "mylog")
    assert len(files.find(parts, "manifest.json")) == 1
    assert read_table(make(), name).equals(whole)
    assert len(made) == len(set(made)) + 1 > 3
    assert not files.find(parts)
