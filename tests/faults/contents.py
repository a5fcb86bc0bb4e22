"""A store -> all that it holds, as plain values that are equal for two stores that hold the same.

Left out are the values that differ between two undisturbed runs: moments, seconds, and the ids that MLflow draws.
"""

import hashlib
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from storage.artifacts.artifact import MANIFEST, is_complete, lineage_of, open_artifact, read_bytes, read_table
from storage.bytes import files
from storage.champions import read_champion
from storage.events.declarations import declaration
from storage.events.table import history, ingested_datasets, node_dictionary, read_events, scan_quarantine
from storage.events.versions import commit_numbers
from storage.layout import Layout
from storage.tracking.marks import MARK, due
from storage.verification import faults

OF_TIMES = ("seconds", "waiting_fraction")
OWN_FILES = ("mlflow.db",)  # and the files beside it, of SQLite and of the lock


def contents() -> dict[str, Any]:
    """Read everything in the store of the environment."""
    layout = Layout.from_environment()
    found: dict[str, Any] = {"damage": [f"{fault.address} {fault.problem}" for fault in faults(layout)]}
    for dataset in ingested_datasets(layout):
        found |= dict(_of_log(layout, dataset))
    for address in _artifacts(layout):
        found[layout.relative(address)] = _of_artifact(address)
    found["not in MLflow"] = [layout.relative(address) for address in due(layout)]
    found |= _of_mlflow(Path(layout.state))
    found["files of no command"] = unknown_files(layout)
    return found


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Name what two stores do not have in common."""
    lost = [f"lost: {name}" for name in expected.keys() - found.keys()]
    more = [f"not expected: {name}" for name in found.keys() - expected.keys()]
    other = [
        f"{name}: {_short(found[name])} instead of {_short(expected[name])}"
        for name in found.keys() & expected.keys()
        if found[name] != expected[name]
    ]
    return sorted(lost + more + other)


def unknown_files(layout: Layout) -> list[str]:
    """List the files that nothing in the store refers to: what a killed command left, hidden or not."""
    known: set[str] = set()
    for dataset in ingested_datasets(layout):
        known |= {layout.declaration(dataset), layout.champion(dataset), layout.champion_copy(dataset)}
        known.add(layout.raw_files(dataset))
    commits = [
        layout.commit(name, number) for name in ingested_datasets(layout) for number in commit_numbers(layout, name)
    ]
    for address in _artifacts(layout) + [commit for commit in commits if is_complete(commit)]:
        record = json.loads(files.read_bytes(f"{address}/{MANIFEST}"))
        known |= {f"{address}/{name}" for name in (MANIFEST, MARK)}
        known |= {f"{address}/{entry['path']}" for entry in record["files"].values()}
    ignored = tuple(f"{layout.root}/{name}" for name in ("locks/", "leases/", "mlflow/", *OWN_FILES))
    found = files.find(layout.root, hidden=True)
    return sorted(layout.relative(path) for path in found if path not in known and not path.startswith(ignored))


def _of_log(layout: Layout, dataset: str) -> Iterator[tuple[str, Any]]:
    yield f"{dataset}: events", _digest(read_events(layout, dataset))
    yield f"{dataset}: rejected rows", _digest(scan_quarantine(layout, dataset).drop("arrival").sort("line").collect())
    yield f"{dataset}: nodes", _digest(node_dictionary(layout, dataset))
    yield f"{dataset}: ingests", history(layout, dataset).drop("arrival").to_dicts()
    yield f"{dataset}: declaration", declaration(layout, dataset)
    champion, _ = read_champion(layout, dataset)
    if champion is not None:
        yield f"{dataset}: champion", _without_moments(champion)
        copy = layout.champion_copy(dataset)
        is_same = files.size(copy) is not None and files.read_bytes(copy) == files.read_bytes(layout.champion(dataset))
        yield f"{dataset}: champion is equal to its copy", is_same


def _without_moments(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_moments(each) for name, each in value.items() if name not in ("since", "published_at")}
    return [_without_moments(each) for each in value] if isinstance(value, list) else value


def _artifacts(layout: Layout) -> list[str]:
    found = [address for folder in layout.artifact_folders for address in files.find(folder, MANIFEST)]
    return sorted(address.removesuffix(f"/{MANIFEST}") for address in found)


def _of_artifact(address: str) -> dict[str, Any]:
    lineage = lineage_of(address)
    own: dict[str, Any] = {"settings": lineage.settings_hash, "inputs": lineage.inputs, "until": lineage.until}
    for name in sorted(open_artifact(address).entries):
        if lineage.kind == "times":
            own[name] = read_table(address, "times").drop("value").rows()
        elif lineage.kind == "publications":
            own[name] = _digest(read_table(address, "publications").drop("published_at"))
        elif name == "summary.json":
            summary = json.loads(read_bytes(address, name))
            own[name] = {key: value for key, value in summary.items() if key not in ("seconds", "tracking", "counts")}
        else:
            own[name] = hashlib.sha256(read_bytes(address, name)).hexdigest()
    return own


def _of_mlflow(state: Path) -> dict[str, Any]:
    """Read runs, metric points, files and model versions from the database, under the runs' keys."""
    found: dict[str, Any] = {}
    database = state / "mlflow.db"
    if not database.exists():
        return found
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        query = "select run_uuid, name, status, artifact_uri from runs where lifecycle_stage = 'active'"
        for run in connection.execute(query).fetchall():
            own = _of_run(connection, run["run_uuid"]) | {"status": run["status"]}
            folder = run["artifact_uri"].removeprefix("file://")
            own["files"] = [path.removeprefix(f"{folder}/") for path in files.find(folder, hidden=True)]
            key = f"run {own['tags'].pop('dyformer.run_key', None)} {run['name']}"
            if own["tags"].get("stage") in ("ledger", "rollback"):  # whose keys hold the moment of the first commit
                key = f"run {run['name']} of {own['tags'].get('dataset')}"
            number = sum(name.startswith(key) for name in found)
            found[f"{key} again {number}" if number else key] = own
        query = "select v.name, v.version, r.value from model_versions v join tags r on r.run_uuid = v.run_id"
        found["model versions"] = sorted(map(tuple, connection.execute(f"{query} where r.key = 'dyformer.run_key'")))
        query = "select name, alias, version from registered_model_aliases"
        found["aliases"] = sorted(map(tuple, connection.execute(query)))
    return json.loads(json.dumps(found))


def _of_run(connection: sqlite3.Connection, run: str) -> dict[str, Any]:
    tags = dict(connection.execute("select key, value from tags where run_uuid = ?", [run]).fetchall())
    params = dict(connection.execute("select key, value from params where run_uuid = ?", [run]).fetchall())
    points = connection.execute("select key, step, value from metrics where run_uuid = ?", [run]).fetchall()
    counted = Counter((key, step, None if key.endswith(OF_TIMES) else round(value, 9)) for key, step, value in points)
    metrics = sorted(([*point, times] for point, times in counted.items()), key=str)
    return {"tags": tags, "params": params, "metrics": metrics}


def _digest(frame: pl.DataFrame) -> str:
    return f"{frame.height} rows {hashlib.sha256(frame.write_ndjson().encode()).hexdigest()}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else f"{text[:160]}... ({len(text)})"


def age(store: Path, seconds: float) -> None:
    """Set the times of hidden files and of all below them back, as if their writer had been killed long ago."""
    for path in [*store.rglob(".*"), *store.rglob(".*/**/*")]:
        moment = path.lstat().st_mtime - seconds
        os.utime(path, (moment, moment), follow_symlinks=False)
