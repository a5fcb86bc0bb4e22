"""How far a value travels: a setting is parsed once, and a step's time is read from the small table of steps."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

import flows.cli
import flows.tasks.snapshots
from dyformer.experiments.settings import Experiment
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots, open_snapshots

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
    """Snapshots of the generated log in a store of this test's own."""
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
        assert experiment_of("generated", taken).model.num_layers == 3
        assert parsed["model.num_layers"] == expected


@pytest.fixture
def tables_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List the tables that are read from a snapshots artifact."""
    names: list[str] = []
    read_table = flows.tasks.snapshots.read_table

    def listing(address: str, name: str):
        names.append(name)
        return read_table(address, name)

    monkeypatch.setattr(flows.tasks.snapshots, "read_table", listing)
    return names


def test_a_lineage_reads_no_edges(generated: str, tables_read: list[str]):
    opened = open_snapshots(generated)
    lineage = opened.lineage("vectors", until=3, settings={})
    assert tables_read == ["steps"]
    assert lineage.max_event_time == opened.graph(3).snapshots[-1].end_time - 1
