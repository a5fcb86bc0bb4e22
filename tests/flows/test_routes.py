"""The number of modules that a raw row, a setting and the times of the steps pass through."""

import io
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import FrameType

import numpy as np
import polars as pl
import pytest

import flows.cli
from dyformer.experiments.settings import Experiment
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots, open_snapshots
from storage.artifacts.artifact import Artifact

pytestmark = pytest.mark.usefixtures("few_trees", "short_generated_log")

TINY = {
    "model.width": 8,
    "model.num_heads": 2,
    "model.num_layers": 1,
    "pretrain": None,
    "finetune.epochs": 1,
    "finetune.batches_per_epoch": 1,
}


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each setting is parsed."""
    counts: Counter[str] = Counter()
    changed = Experiment.changed

    def counting(experiment: Experiment, changes: Mapping[str, object]) -> Experiment:
        counts.update(changes.keys())
        return changed(experiment, changes)

    monkeypatch.setattr(Experiment, "changed", counting)
    return counts


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Snapshots of the generated log in a new store."""
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    ingest_log("generated", None, lambda text: None)
    return make_snapshots("generated")


@pytest.mark.parametrize("command", ["prepare", "predict"])
def test_a_setting_of_a_command_is_parsed_once(command: str, parsed: Counter[str], generated: str):
    settings = [text for name, value in TINY.items() for text in ("--set", f"{name}={value}")]
    with pytest.raises(SystemExit) as ending:
        flows.cli.main([command, "generated", *settings])
    assert not ending.value.code
    assert parsed == dict.fromkeys(TINY, 1)


def test_a_flow_takes_changes_or_a_whole_experiment_as_it_is(parsed: Counter[str]):
    from flows.retrain import retrain
    from flows.stages import experiment_of

    for changes, expected in (({"model.num_layers": 3}, 1), (Experiment().changed({"model.num_layers": 3}), 0)):
        parsed.clear()
        taken = retrain.validate_parameters({"dataset": "generated", "changes": changes})["changes"]
        assert experiment_of(taken).model.num_layers == 3
        assert parsed["model.num_layers"] == expected


@pytest.fixture
def tables_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List the tables that are read from a snapshots artifact."""
    names: list[str] = []
    table = Artifact.table

    def listing(artifact: Artifact, name: str) -> pl.DataFrame:
        names.append(name)
        return table(artifact, name)

    monkeypatch.setattr(Artifact, "table", listing)
    return names


def test_a_lineage_reads_no_edges(generated: str, tables_read: list[str]):
    opened = open_snapshots(generated)
    lineage = opened.lineage("vectors", until=3, settings={})
    assert tables_read == ["steps"]
    assert lineage.max_event_time == opened.graph(3).snapshots[-1].end_time - 1


ROOT = Path(flows.cli.__file__).parents[1]
PACKAGES = tuple(f"{ROOT / folder}/" for folder in ("flows", "dyformer/logs", "storage"))
TABLES = (pl.DataFrame, pl.LazyFrame, pl.Series, np.ndarray, io.IOBase)
MARK = "the-marked-id"


def carries_rows(value: object, depth: int = 4) -> bool:
    """Whether a value is a table or a stream, or contains the text of the marked row."""
    if isinstance(value, str | bytes):
        return MARK in (value if isinstance(value, str) else value.decode("latin-1"))
    if isinstance(value, TABLES) or hasattr(type(value), "read"):
        return True
    if is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    return depth > 0 and isinstance(value, list | tuple) and any(carries_rows(each, depth - 1) for each in value)


def test_a_raw_row_enters_at_most_15_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    rows = [f"{MARK},{number % 5},2024-01-01T00:00:{number % 60:02}Z" for number in range(2_000)]
    (tmp_path / "log.csv").write_text("\n".join(["source,target,time", *rows]))
    entered = {"flows/cli.py"}  # the command itself

    def profile(frame: FrameType, event: str, value: object) -> None:
        file = frame.f_code.co_filename
        if event in ("call", "return") and file.startswith(PACKAGES):
            values = list(frame.f_locals.values()) if event == "call" else [value]
            if carries_rows(values):
                entered.add(Path(file).relative_to(ROOT).as_posix())

    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        with pytest.raises(SystemExit) as ending:
            flows.cli.main(["ingest", "mine", "--log", str(tmp_path / "log.csv")])
    finally:
        sys.setprofile(previous)
    assert not ending.value.code
    assert {"dyformer/logs/events.py", "storage/events/commits.py"} <= entered
    assert len(entered) <= 15, "\n".join(sorted(entered))
