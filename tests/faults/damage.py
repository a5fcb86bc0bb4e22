"""Damage to each kind of stored file: every reader gives the undamaged result, or names the damaged file.

`python tests/faults/damage.py --tries 1000` runs the whole sweep (`make test-faults`); `--seed S --only N` repeats one.
"""

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl
import torch
from sweep import options_of, swept

from flows.tasks.evaluation.promote import champion_of
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots, open_snapshots
from storage.artifacts.artifact import ArtifactMissing, Lineage, manifest, read_bytes, read_table, write_artifact
from storage.artifacts.checkpoints import CheckpointMissing, from_bytes, load_checkpoint, save_checkpoint, to_bytes
from storage.bytes import files
from storage.bytes.checksums import Damaged
from storage.champions import replace_champion
from storage.events.declarations import declaration
from storage.events.table import history, node_dictionary, read_events, scan_quarantine
from storage.layout import WEIGHTS, Layout
from storage.queries import QueryFailed, query
from storage.tracking.marks import mark, marked
from storage.verification import dataset_of, faults, repaired

KEYS = {"version": 1, "until": 2, "settings": "0" * 12, "seed": 0}
NAMED = (Damaged, ArtifactMissing, CheckpointMissing, QueryFailed)
MODEL = Lineage(kind="model", dataset="log", table_version=1, until=2)
READINGS = {"log": {"window": "3 equal"}, "other": {"window": "2 equal"}}


def prepared_store(folder: Path, layout: Layout) -> None:
    """Make a small store with each kind of file, by the functions of a run; logs and plots lie in the folder."""
    for number, (name, reading) in enumerate(READINGS.items()):
        rows = [f"u{i % 7},v{(i * 3 + number) % 5},{1000 + 10 * i}" for i in range(40)]
        for part in range(2):
            log = folder / f"{name}-{part}.csv"
            log.write_text("\n".join(["source,target,time", *rows[20 * part : 20 * part + 20], ",broken,1"]) + "\n")
            ingest_log(name, {"log": [str(log)], "max_bad": "50%", **reading}, lambda text: None)
        make_snapshots(name)
    weights = to_bytes({"weight": torch.arange(8.0)}, {"epoch": 3})
    losses = pl.DataFrame({"epoch": [1, 2], "value": [0.5, 0.25]})
    model = write_artifact(layout.artifact("model", "log", **KEYS), {WEIGHTS: weights, "losses": losses}, MODEL)
    vectors = pl.DataFrame({"id": ["u0", "u1"], "vector": [[0.5, 1.0], [2.0, 3.0]]})
    write_artifact(
        layout.artifact("vectors", "log", **KEYS),
        {"vectors": vectors},
        Lineage(kind="v", dataset="log", table_version=1),
    )
    forecasts = pl.DataFrame({"id": ["u0"], "partner_id": ["v1"], "probability": [0.25]})
    address = layout.artifact("forecasts", "log", **KEYS)
    write_artifact(address, {"forecasts": forecasts}, Lineage(kind="f", dataset="log", table_version=1))
    save_checkpoint(layout.artifact("pretrain", "log", **KEYS), {"weight": torch.arange(8.0)}, {"epoch": 3})
    about = {"title": "DyFormer", "models": [layout.relative(model)], "identity": "x"}
    record = {**about, "num_tests": 0, "tests": {}, "number": 1, "earlier": []}
    replace_champion(layout, "log", record, None)
    mark(layout, layout.artifact("model", "log", **KEYS), {"run": "run", "model_version": "1"})
    shutil.rmtree(Path(layout.state) / "locks", ignore_errors=True)


def opened(root: str, state: str = "") -> Layout:
    """Open the store of this root, also for all that reads the environment."""
    os.environ["DYFORMER_STORAGE"], os.environ["DYFORMER_STATE"] = root, state
    return Layout.from_environment()


def _snapshots(layout: Layout, dataset: str) -> list[Any]:
    address = make_snapshots(dataset)
    tables = [read_table(address, name).to_dicts() for name in ("edges", "steps", "nodes")]
    return [*tables, open_snapshots(address).window]


def _sql(layout: Layout) -> list[Any]:
    """Give a hash of the rows of each view, in one statement because opening the views takes long."""
    views = ("events", "nodes", "vectors", "forecasts", "snapshots_edges")
    hashes = (f"(select sum(hash({view})::hugeint) from {view})" for view in views)
    return query(layout, f"select {', '.join(hashes)}").rows()


READERS: dict[str, Callable[[Layout], Any]] = {
    "events": lambda layout: read_events(layout, "log").to_dicts(),
    "quarantine": lambda layout: scan_quarantine(layout, "log").sort("ingest", "row").collect().to_dicts(),
    "nodes": lambda layout: node_dictionary(layout, "log").to_dicts(),
    "history": lambda layout: history(layout, "log").to_dicts(),
    "declaration": lambda layout: declaration(layout, "log"),
    "snapshots": lambda layout: _snapshots(layout, "log"),
    "vectors": lambda layout: read_table(layout.artifact("vectors", "log", **KEYS), "vectors").to_dicts(),
    "forecasts": lambda layout: read_table(layout.artifact("forecasts", "log", **KEYS), "forecasts").to_dicts(),
    "weights": lambda layout: _plain(
        from_bytes(read_bytes(layout.artifact("model", "log", **KEYS), WEIGHTS), name="weights")
    ),
    "losses": lambda layout: read_table(layout.artifact("model", "log", **KEYS), "losses").to_dicts(),
    "model": lambda layout: (
        manifest(layout.artifact("model", "log", **KEYS)) or _missing(layout.artifact("model", "log", **KEYS))
    ),
    "checkpoint": lambda layout: _plain(load_checkpoint(layout.artifact("pretrain", "log", **KEYS))),
    "champion": lambda layout: champion_of(layout, "log"),
    "mark": lambda layout: marked(layout.artifact("model", "log", **KEYS)),
}


def _plain(loaded: tuple[dict[str, torch.Tensor], dict[str, Any]]) -> Any:
    return {name: tensor.tolist() for name, tensor in loaded[0].items()}, loaded[1]


def _missing(address: str) -> None:
    raise ArtifactMissing(address)


def results(layout: Layout, *, with_sql: bool = True) -> dict[str, Any]:
    """Read everything; a named error stands for a result."""
    found = {}
    for name, read in (READERS | ({"sql": _sql} if with_sql else {})).items():
        try:
            found[name] = read(layout)
        except NAMED as error:
            found[name] = error
    return found


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One file and the damage to it."""

    path: str  # below the store
    damage: str
    position: float  # of the byte that is changed, or the length that is left, as a fraction

    def __str__(self) -> str:
        return f"{self.damage} {self.path} at {self.position:.4f}"

    def apply(self, layout: Layout) -> None:
        """Damage the file."""
        address = f"{layout.root}/{self.path}"
        content = files.read_bytes(address)
        at = min(int(self.position * len(content)), max(len(content) - 1, 0))
        if self.damage == "delete":
            files.remove(address)
        elif self.damage == "empty":
            files.write_bytes(address, b"")
        elif self.damage == "truncate":
            files.write_bytes(address, content[:at])
        else:
            bit = 1 << int(self.position * 1e6) % 8
            files.write_bytes(address, content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])


def trials(layout: Layout, num_tries: int, seed: int) -> list[Trial]:
    """Draw trials: the kinds of file in turn, so that each gets as many."""
    generator = random.Random(seed)
    kinds: dict[str, list[str]] = {}
    for address in files.find(layout.root, hidden=True):
        relative = PurePosixPath(layout.relative(address))
        if "locks" not in relative.parts and relative.name != "lock":
            kind = f"{'/'.join(part for part in relative.parts[:4] if '=' not in part)}{relative.suffix}"
            kinds.setdefault(kind, []).append(str(relative))
    names = sorted(kinds)
    damages = ("flip", "flip", "truncate", "empty", "delete")
    return [
        Trial(
            path=generator.choice(kinds[names[number % len(names)]]),
            damage=generator.choice(damages),
            position=generator.random(),
        )
        for number in range(num_tries)
    ]


def failures(store: Path, expected: dict[str, Any], trial: Trial, folder: Path) -> list[str]:
    """Damage a copy of the store; list the claims that do not hold."""
    copy = folder / "store"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store, copy)
    layout = opened(str(copy))
    trial.apply(layout)
    return wrong_readings(layout, expected)


def wrong_readings(layout: Layout, expected: dict[str, Any]) -> list[str]:
    """Read and repair a damaged store; list the claims that do not hold."""
    wrong: list[str] = []
    try:
        named = list(faults(layout))  # before the readers, because they may make a part again
        found = results(layout)
    except BaseException as error:  # noqa: BLE001, because a panic of a library is no Exception
        return [f"an error without a name: {error!r}"]
    for name, value in found.items():
        if isinstance(value, NAMED):
            wrong += [f"{name}: {value!r} names no file"] * (layout.root not in str(value) and name != "weights")
        elif value != expected[name] and not (name == "mark" and value is None):  # without one a result is sent again
            wrong.append(f"{name}: another result without a word")
    if any(isinstance(value, Damaged) for value in found.values()) and not named:
        wrong.append("verify does not name it")
    return wrong + _failures_after_repair(layout, expected)


def _failures_after_repair(layout: Layout, expected: dict[str, Any]) -> list[str]:
    """Repair all that can be; what is then still damaged cannot be made again, and nothing else is."""
    for fault in list(faults(layout)):
        repaired(layout, dataset_of(fault), fault)
    for dataset in READINGS if not any("2_events" in fault.address for fault in faults(layout)) else ():
        make_snapshots(dataset)  # as the next command does
    left = list(faults(layout))
    wrong = [f"not repaired: {fault}" for fault in left if fault.repair is not None]
    found = results(layout, with_sql=False)
    return wrong + [
        f"after the repair, {name} has another result"
        for name, value in found.items()
        if not isinstance(value, NAMED) and value != expected[name] and name != "mark"
    ]


def main() -> None:
    """Run the sweep and print how many held."""
    options = options_of(__doc__, 1000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "made").mkdir()
        made = opened(str(folder / "made" / "store"))
        prepared_store(folder / "made", made)
        expected = results(made)

        def wrong(made: Layout, trial: Trial) -> list[str]:
            return failures(Path(made.root), expected, trial, folder)

        num_failed = swept(made, trials, wrong, options, "damaged files")
    sys.exit(num_failed > 0)


if __name__ == "__main__":
    main()
