"""Forged files with right checksums: every command refuses each by name, or does as without it.

`python tests/faults/forgeries.py` runs the whole sweep (`make test-faults`); `--only N` repeats one.
Whoever can write to a store can forge a checksum, too. That must not lead out of the store, nor to results of numbers
that are none, nor to an error without a name.
"""

import hashlib
import json
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from children import Ended
from errors import wrong_end
from ingests import ingested
from pipeline import SEED, promote, snapshots, train
from prepared import END, Prepared
from sweep import main

import flows.retrain as retraining
from flows.ending import exit_code
from storage.artifacts.artifact import MANIFEST, _digest, read_table
from storage.artifacts.checkpoints import from_bytes, to_bytes
from storage.bytes.checksums import checksummed
from storage.layout import WEIGHTS, Layout
from storage.queries import query
from storage.verification import dataset_of, faults, repaired

DEPTH = 20_000
SQL = "select (select sum(hash(vectors)::hugeint) from vectors), (select sum(hash(events)::hugeint) from events)"
Store = Path


def _model(store: Store) -> Path:
    """Folder of the newest model."""
    return max(path.parent for path in store.glob(f"5_checkpoints/model/**/{WEIGHTS}"))


def _vectors(store: Store) -> Path:
    return next(path.parent for path in store.glob("6_vectors/vectors/**/vectors.parquet"))


def _snapshots(store: Store) -> Path:
    return max(path.parent for path in store.glob("3_snapshots/snapshots/**/edges.parquet"))


def _outside(store: Store) -> Path:
    return store.parent / "outside"


def _changed_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest and give it the digest that fits."""
    record = json.loads((folder / MANIFEST).read_text())
    change(record)
    record["digest"] = _digest(record)
    (folder / MANIFEST).write_text(json.dumps(record))


def _replaced(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of an artifact, and its checksum in the manifest."""
    (folder / name).write_bytes(content)
    entry = {"path": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    _changed_manifest(folder, lambda record: record["files"].update({name: entry}))


def _with_path(folder: Path, name: str, path: str) -> None:
    _changed_manifest(folder, lambda record: record["files"][name].update({"path": path}))


def _weights(store: Store, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change tensors of the newest model and give them the checksum that fits."""
    folder = _model(store)
    tensors, record = from_bytes((folder / WEIGHTS).read_bytes(), name="")
    change(tensors)
    _replaced(folder, WEIGHTS, to_bytes(tensors, record))


def _first(tensors: dict[str, torch.Tensor]) -> str:
    return next(name for name, tensor in sorted(tensors.items()) if tensor.is_floating_point() and tensor.ndim == 2)


def _filled(tensors: dict[str, torch.Tensor], value: float) -> None:
    tensors[_first(tensors)][0, 0] = value


def _header(shape: list[int], size: int | None = None) -> bytes:
    header = json.dumps({"weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header) if size is None else size) + header + bytes(4)


def _table(folder: Path, name: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    target = folder / f"{name}.parquet"
    change(pl.read_parquet(target)).write_parquet(target)
    _replaced(folder, target.name, target.read_bytes())


def _vector_values(store: Store, change: Callable[[list[float], int], list[Any]], dtype: Any = pl.Float32) -> None:
    def changed(table: pl.DataFrame) -> pl.DataFrame:
        rows = [change(vector, number) for number, vector in enumerate(table["vector"].to_list())]
        return table.with_columns(vector=pl.Series(rows, dtype=pl.List(dtype), strict=False))

    _table(_vectors(store), "vectors", changed)


def _linked(store: Store, path: Path) -> None:
    """Put a file or a folder outside of the store and a link in its place."""
    moved = _outside(store) / path.name
    path.rename(moved)
    path.symlink_to(moved)


def _copied_from_other_dataset(store: Store) -> None:
    """Give a model the lineage of another log, as a copied folder has it."""
    _changed_manifest(_model(store), lambda record: record["lineage"].update({"dataset": "other"}))


def _commit(store: Store, name: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    """Change a table of the newest commit, and its checksum in the manifest."""
    _table(max(store.glob("2_events/*/commit=*")), name, change)


def _parts(store: Store, **values: pl.Expr) -> None:
    """Change what the newest commit says about the files of its version."""
    _commit(store, "parts", lambda table: table.with_columns(**values))


def _record(path: Path, **values: Any) -> None:
    record = json.loads(path.read_bytes())["record"]
    path.write_bytes(checksummed({**record, **values}))


def _champion(store: Store, **values: Any) -> None:
    for name in ("champion.json", "champion-copy.json"):
        _record(next(store.glob(f"5_checkpoints/champion/*/{name}")), **values)


def _deep(path: Path) -> None:
    path.write_text("[" * DEPTH + "]" * DEPTH)


FORGERIES: dict[str, Callable[[Store], object]] = {
    "manifest: a path above the folder": lambda store: _with_path(_model(store), WEIGHTS, f"../{WEIGHTS}"),
    "manifest: a path outside": lambda store: _with_path(
        _vectors(store), "vectors.parquet", str(_outside(store) / "other.parquet")
    ),
    "manifest: an address in S3": lambda store: _with_path(_vectors(store), "vectors.parquet", "s3://bucket/key"),
    "manifest: a path that is a number": lambda store: _with_path(_model(store), WEIGHTS, 5),  # pyright: ignore
    "manifest: a huge size": lambda store: _changed_manifest(
        _model(store), lambda record: record["files"][WEIGHTS].update({"bytes": 10**30})
    ),
    "manifest: a size that is text": lambda store: _changed_manifest(
        _model(store), lambda record: record["files"][WEIGHTS].update({"bytes": "all"})
    ),
    "manifest: a lineage with more keys": lambda store: _changed_manifest(
        _model(store), lambda record: record["lineage"].update({"more": 1})
    ),
    "manifest: a lineage of another log": _copied_from_other_dataset,
    "manifest: a step that is text": lambda store: _changed_manifest(
        _model(store), lambda record: record["lineage"].update({"until": "six"})
    ),
    "manifest: deep JSON": lambda store: _deep(_model(store) / MANIFEST),
    "link: the manifest": lambda store: _linked(store, _model(store) / MANIFEST),
    "link: the weights": lambda store: _linked(store, _model(store) / WEIGHTS),
    "link: the folder of a model": lambda store: _linked(store, _model(store)),
    "link: the folder of all vectors": lambda store: _linked(store, store / "6_vectors"),
    "weights: not a number": lambda store: _weights(store, lambda tensors: _filled(tensors, float("nan"))),
    "weights: infinite": lambda store: _weights(store, lambda tensors: _filled(tensors, float("-inf"))),
    "weights: other shapes": lambda store: _weights(
        store, lambda tensors: tensors.update({_first(tensors): torch.zeros(3, 3)})
    ),
    "weights: other types": lambda store: _weights(
        store, lambda tensors: tensors.update({_first(tensors): tensors[_first(tensors)].double()})
    ),
    "weights: one is missing": lambda store: _weights(store, lambda tensors: tensors.pop(_first(tensors))),
    "weights: one more": lambda store: _weights(store, lambda tensors: tensors.update({"more": torch.zeros(2)})),
    "weights: a shape of 10^18 numbers": lambda store: _replaced(_model(store), WEIGHTS, _header([10**9, 10**9])),
    "weights: a header of 2^60 bytes": lambda store: _replaced(_model(store), WEIGHTS, _header([1], 1 << 60)),
    "weights: a pickle": lambda store: _replaced(_model(store), WEIGHTS, b"\x80\x04\x8c\x05posix\x8c\x06system\x93."),
    "vectors: not a number": lambda store: _vector_values(store, lambda vector, number: [float("nan"), *vector[1:]]),
    "vectors: several widths": lambda store: _vector_values(store, lambda vector, number: vector[: 1 + number % 2]),
    "vectors: integers": lambda store: _vector_values(store, lambda vector, number: [1] * len(vector), pl.Int64),
    "vectors: another column": lambda store: _table(
        _vectors(store), "vectors", lambda table: table.rename({"vector": "vectors"})
    ),
    "snapshots: a node that does not exist": lambda store: _table(
        _snapshots(store), "edges", lambda table: table.with_columns(pl.lit(10**9).alias("source"))
    ),
    "events: a data file above the commit": lambda store: _parts(
        store, path=pl.lit("../../../../outside/other.parquet")
    ),
    "events: a data file at an address": lambda store: _parts(
        store, path=pl.lit(f"file://{_outside(store)}/other.parquet")
    ),
    "events: a negative size": lambda store: _parts(store, bytes=pl.lit(-1, pl.Int64)),
    "events: a size that is text": lambda store: _parts(store, bytes=pl.lit("all")),
    "events: a commit of no number": lambda store: _parts(store, version=pl.lit(None, pl.Int64)),
    "events: sources without a column": lambda store: _commit(store, "sources", lambda table: table.drop("batch")),
    "champion: models outside": lambda store: _champion(store, models=["../../outside"]),
    "champion: a title that is a list": lambda store: _champion(store, title=["a", "b"]),
    "champion: tests that are text": lambda store: _champion(store, tests="none"),
    "champion: deep JSON": lambda store: _deep(next(store.glob("5_checkpoints/champion/*/champion.json"))),
    "declaration: a window that is a list": lambda store: _record(
        next(store.glob("2_events/*/declaration.json")), window=["1d"]
    ),
}
"""Title of a forgery -> the function that does it in a store."""


def _vectors_again() -> str:
    """Write the vectors of the stored weights again."""
    store = Path(os.environ["DYFORMER_STORAGE"])
    if not (store / "6_vectors").is_symlink():  # or this would remove what lies outside
        shutil.rmtree(store / "6_vectors" / "vectors")
    address = retraining.vectors_task(snapshots(), train().models[-1], seed=SEED)
    return _digest_of(read_table(address, "vectors"))


def _forecasts_again() -> str:
    """Write the forecasts of the stored weights and vectors again."""
    shutil.rmtree(Path(os.environ["DYFORMER_STORAGE"], "7_forecasts", "forecasts"))
    address, contender = snapshots(), train()
    vectors = retraining.vectors_task(address, contender.models[-1], seed=SEED)
    return _digest_of(read_table(retraining.forecasts_task(address, contender, vectors, seed=SEED), "forecasts"))


def _query() -> list[Any]:
    return [str(value) for value in query(Layout.from_environment(), SQL).row(0)]


def _verify() -> None:
    """Verify and repair; its result is no other one, because it removes what is forged."""
    layout = Layout.from_environment()
    for fault in list(faults(layout)):
        repaired(layout, dataset_of(fault), fault)


COMMANDS: dict[str, Callable[[], object]] = {
    "vectors": _vectors_again,
    "forecasts": _forecasts_again,
    "promotion": promote,
    "sql": _query,
    "ingest": lambda: ingested("second"),
    "verify": _verify,
}


def _digest_of(table: pl.DataFrame) -> str:
    return hashlib.sha256(table.write_ndjson().encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One forgery, and a command that may meet it."""

    title: str
    command: str

    def __str__(self) -> str:
        return f"{self.title}, met by {self.command}"


def trials(made: Prepared, num_tries: int, seed: int) -> Iterator[Trial]:
    """Give each forgery to each command."""
    pairs = [Trial(title=title, command=command) for title in FORGERIES for command in COMMANDS]
    yield from pairs[: num_tries * len(COMMANDS)]


def failures(made: Prepared, trial: Trial) -> list[str]:
    """Forge a file and do a command; list the claims that do not hold."""
    command = COMMANDS[trial.command]
    if trial.command not in made.results:
        expected = _ended(made, command, lambda store: None)
        assert expected.code == 0, expected.output
        made.results[trial.command] = expected.value["result"]
    end = _ended(made, command, FORGERIES[trial.title])
    wrong = wrong_end(end.code, end.output, str(made.disk))
    # A statement prints the values of a table, which is then the forged one.
    is_printed = trial.command == "sql" and trial.title.startswith("vectors")
    if not wrong and end.code == 0 and end.value["result"] != made.results[trial.command] and not is_printed:
        wrong.append("another result without a word")
    return wrong


def _ended(made: Prepared, command: Callable[[], object], forge: Callable[[Store], object]) -> Ended:
    """Do a command on the store at the end of a retraining, after a forgery."""
    made.restore(END)
    outside = _outside(made.store)
    shutil.rmtree(outside, ignore_errors=True)
    outside.mkdir()
    shutil.copy(_vectors(made.store) / "vectors.parquet", outside / "other.parquet")
    result: list[object] = []

    def plain() -> None:
        result.append(command())

    def forged() -> dict[str, Any]:
        forge(made.store)
        before = _files(outside)
        code = exit_code(plain)
        assert _files(outside) == before, "a file outside was changed"
        return {"result": result[0]} if code == 0 else sys.exit(code)

    return made.read(forged)


def _files(folder: Path) -> dict[str, str]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


if __name__ == "__main__":
    main(__doc__, trials, failures, len(FORGERIES), "forgeries")
