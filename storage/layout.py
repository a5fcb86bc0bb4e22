"""The address of everything that is stored; the only module that builds paths and URLs.

    1_raw/dataset=uci/                                              fetched files as published
    2_events/dataset=uci/commit=3                                   events, rejected rows and nodes of an ingest
    2_events/dataset=uci/{declaration,raw_files}.json               how the log is read, and which files were
    3_snapshots/snapshots/dataset=uci/version=3/settings=ab12cd34ef56
    4_graphs/pagerank/dataset=uci/version=3/until=12/settings=...
    5_checkpoints/pretrain/dataset=uci/version=3/until=12/settings=.../seed=0
    6_vectors/vectors/...   7_forecasts/forecasts/...   7_forecasts/scores/...

The names are hive style (`key=value`), so that DuckDB and Polars read all artifacts of a kind as one table.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from dyformer import InvalidInput

RAW, EVENTS, SNAPSHOTS, GRAPHS = "1_raw", "2_events", "3_snapshots", "4_graphs"
CHECKPOINTS, VECTORS, FORECASTS = "5_checkpoints", "6_vectors", "7_forecasts"
ARTIFACT_FOLDERS = (SNAPSHOTS, GRAPHS, CHECKPOINTS, VECTORS, FORECASTS)
KEYS = ("dataset", "version", "until", "settings", "seed")
STEP = ("version", "until", "settings")
PART = "part"  # kind of the rows of an artifact that is being made by ranges
RUN = (*STEP, "seed")
KINDS = {
    "snapshots": (SNAPSHOTS, ("version", "settings")),  # the tables `edges`, `steps` and `nodes`
    "pagerank": (GRAPHS, STEP),  # of the union graph of the snapshots up to `until`
    "distances": (GRAPHS, STEP),
    "event_state": (GRAPHS, ("version", "settings")),  # what is known after the newest event
    "event_model": (CHECKPOINTS, ("version", "settings", "seed")),  # the forecaster that reads the event state
    "horizon_model": (CHECKPOINTS, ("version", "settings", "seed")),  # that of pairs, for a length of time
    "pretrain": (CHECKPOINTS, RUN),  # the newest state of a stage that runs
    "finetune": (CHECKPOINTS, RUN),
    "model": (CHECKPOINTS, RUN),  # the weights of a finished training
    "times": (CHECKPOINTS, RUN),  # the seconds of its epochs
    "training": (CHECKPOINTS, RUN),  # that a model was trained alone, without a retraining
    "vectors": (VECTORS, RUN),  # one vector for each node
    "fitted": (FORECASTS, RUN),  # a method as of step `until`, with its first stage and calibration
    "forecasts": (FORECASTS, RUN),  # the best partners of each node in step `until + 1`
    "publications": (FORECASTS, STEP),  # forecasts that the champion has published
    "rollback": (FORECASTS, STEP),  # an earlier champion that became the present one again
    "outcomes": (FORECASTS, STEP),  # metrics of published forecasts, whose step `until` is complete
    "drift": (FORECASTS, STEP),  # distances of the steps up to `until` from those before them
    "scores": (FORECASTS, RUN),  # evaluated pairs
    "metrics": (FORECASTS, STEP),  # of the results of methods in a protocol
    "benchmark": (FORECASTS, STEP),  # of methods: results, metrics, and the settings of each
    "study": (FORECASTS, STEP),  # tables and plots of an experiment
    "tables": (FORECASTS, RUN),  # of a finished benchmark, as they are printed
    "queries": (FORECASTS, RUN),  # the ranking queries and candidates of a step
    "rankings": (FORECASTS, RUN),  # methods' scores of queries
    "ranks": (FORECASTS, RUN),  # of the held-out links of a week
    "backtests": (FORECASTS, RUN),  # the forecasts of a method for a past step, and the links that came
    "tuning": (FORECASTS, RUN),  # scores of a method's settings
    "costs": (FORECASTS, RUN),  # time and memory of a method's training
    "audit": (FORECASTS, RUN),  # the checks of a leak audit
    PART: (CHECKPOINTS, STEP),
    "report": (FORECASTS, RUN),  # metrics and summary of a finished run
}
"""Folder of each kind of artifact, and the keys of its address beside the dataset."""

STATE, EVENT_MODEL = "state.safetensors", "model.json"  # names of files in event_state and event_model
WEIGHTS, FORECAST = "weights.safetensors", "forecast.json"  # files in artifacts of models, and of forecasts or fitted
HASH_LENGTH = 12  # characters of a settings hash in an address; the lineage record holds the whole hash
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MOST_LETTERS = 200  # of a name: a disk has 255, of which hidden folders and locks need the others


@dataclass(frozen=True)
class Layout:
    """Addresses below one root: a local folder or `s3://bucket/prefix`.

    `state` is a folder of this machine for locks and, under an S3 root, MLflow's database, because an
    object store cannot hold them. It defaults to the root itself, or to the user's state folder under an S3 root.
    """

    root: str
    state: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", _normal_root(str(self.root)))
        object.__setattr__(self, "state", _absolute(str(self.state)) if self.state else self._usual_state())

    @classmethod
    def from_environment(cls) -> "Layout":
        """Root from DYFORMER_STORAGE (default `./data`), state from DYFORMER_STATE."""
        layout = cls(os.environ.get("DYFORMER_STORAGE") or "./data", os.environ.get("DYFORMER_STATE", ""))
        if layout.is_local and Path(layout.root).is_file():
            raise InvalidInput(
                f"the store {layout.root} is a file: expected a folder, which may not exist yet, or an s3:// address;"
                " name it by DYFORMER_STORAGE, or by --storage before the name of the command"
            )
        return layout

    @classmethod
    def holding(cls, address: str) -> "Layout":
        """Layout of the store in which the address of snapshots lies, with the state folder of this process."""
        usual, root = cls.from_environment(), address.rpartition(f"/{SNAPSHOTS}/")[0]
        return usual if root in ("", usual.root) else cls(root, os.environ.get("DYFORMER_STATE", ""))

    @property
    def is_local(self) -> bool:
        """Whether the root is a folder of this machine."""
        return not self.root.startswith("s3://")

    def raw(self, dataset: str) -> str:
        """Folder of the files fetched from the publisher."""
        return self._join(RAW, _hive(dataset=dataset))

    def received(self, dataset: str) -> str:
        """Folder of this machine for the events that `dyformer serve` has received; in the store if that is local."""
        return "/".join((self.root if self.is_local else self.state, RAW, _hive(dataset=dataset), "received"))

    def copies(self, dataset: str) -> str:
        """Folder of this machine for copies of a log's rows in an object store, which later commands read."""
        return str(Path(self.state) / "copies" / _hive(dataset=dataset))

    def declaration(self, dataset: str) -> str:
        """JSON record of how a log is read: columns, separator, time unit, window."""
        return self._join(EVENTS, _hive(dataset=dataset), "declaration.json")

    def commits(self, dataset: str) -> str:
        """Folder of the commits of a log's events, beside its declaration."""
        return self._join(EVENTS, _hive(dataset=dataset))

    def commit(self, dataset: str, version: int) -> str:
        """Artifact with the tables `interactions`, `quarantine`, `nodes`, `sources` and `parts` of one commit."""
        return self._join(EVENTS, _hive(dataset=dataset, commit=version))

    def raw_files(self, dataset: str) -> str:
        """JSON record of the raw files that were read: by address, what shows a change, and the checksum."""
        return self._join(EVENTS, _hive(dataset=dataset), "raw_files.json")

    @property
    def datasets(self) -> str:
        """Folder with one subfolder for each ingested log."""
        return self._join(EVENTS)

    def dataset_names(self, folders: list[str]) -> list[str]:
        """Names of the logs among the children of `datasets`; a folder of another name is no log."""
        names = [folder.removeprefix("dataset=") for folder in folders if folder.startswith("dataset=")]
        return [name for name in names if SAFE_NAME.fullmatch(name) and len(name) <= MOST_LETTERS]

    def of_dataset(self, folder: str, dataset: str) -> str:
        """Folder of a dataset, below the folder of one kind of artifacts or below `datasets`."""
        return f"{folder}/{_hive(dataset=dataset)}"

    def artifact(self, kind: str, dataset: str, **keys: str | int) -> str:
        """Folder of an artifact of one of KINDS, or of the checkpoint of a running stage, with the keys of its kind."""
        folder, names = _kind(kind)
        if set(keys) != set(names):
            raise InvalidInput(f"address of {kind}: expected the keys {', '.join(names)}, got {', '.join(keys)}")
        return self._join(folder, kind, _hive(dataset=dataset, **{name: keys[name] for name in names}))

    def artifacts(self, kind: str, dataset: str, **keys: str | int) -> str:
        """Folder of all artifacts of one of KINDS of a dataset, or of those with these first keys of their kind."""
        return self._join(_kind(kind)[0], kind, _hive(dataset=dataset, **keys))

    def all_artifacts(self, kind: str) -> str:
        """Folder of all artifacts of one of KINDS, of all datasets."""
        return self._join(_kind(kind)[0], kind)

    def champion(self, dataset: str) -> str:
        """JSON record of a dataset's champion."""
        return self._join(CHECKPOINTS, "champion", _hive(dataset=dataset), "champion.json")

    def champion_copy(self, dataset: str) -> str:
        """Copy of the champion's record, written after it, by which a lost record is noticed."""
        return self._join(CHECKPOINTS, "champion", _hive(dataset=dataset), "champion-copy.json")

    @property
    def artifact_folders(self) -> list[str]:
        """Folders under which artifacts live: `<folder>/<kind>/<hive keys>`."""
        return [self._join(folder) for folder in ARTIFACT_FOLDERS]

    @property
    def tracking_uri(self) -> str:
        """MLFLOW_TRACKING_URI, else a SQLite file in the state folder."""
        return os.environ.get("MLFLOW_TRACKING_URI") or self.tracking_database

    @property
    def tracking_database(self) -> str:
        """Address of the SQLite file of this machine for MLflow."""
        return f"sqlite:///{self.state}/mlflow.db"

    @property
    def tracking_artifacts(self) -> str:
        """Folder of MLflow's plots and models, with the server of `dyformer up` and with none."""
        return self._join("mlflow")

    @property
    def spills(self) -> str:
        """Folder of this machine for rows that do not fit in the memory of running tasks."""
        return str(Path(self.state) / "spills")

    @property
    def faults(self) -> str:
        """Folder of this machine for the logs of unexpected errors."""
        return str(Path(self.state) / "faults")

    @property
    def service(self) -> str:
        """Folder of this machine for the servers of `dyformer up`: Prefect's database, logs, addresses."""
        return str(Path(self.state) / "service")

    def lock(self, name: str) -> str:
        """File of this machine that is locked while a process works on `name`."""
        return str(Path(self.state) / "locks" / f"{_safe(name)}.lock")

    def lease(self, name: str) -> str:
        """Object that one process of all machines holds while it works on `name`; for a store in an object store."""
        return self._join("leases", _safe(name))

    def relative(self, address: str) -> str:
        """Address relative to the root; it stays the same when the whole store is moved."""
        prefix = f"{self.root}/"
        if not address.startswith(prefix):
            raise InvalidInput(f"address {address!r} is not below the storage root {self.root!r}")
        return address.removeprefix(prefix)

    def absolute(self, relative: str) -> str:
        """Full address of a relative one; the inverse of `relative`."""
        return self._join(relative)

    def describe(self, address: str) -> tuple[str, dict[str, str]]:
        """Kind and hive keys of an artifact's address."""
        _, kind, *parts = self.relative(address).split("/")
        return kind, {key: value for key, _, value in (part.partition("=") for part in parts) if key in KEYS}

    def kind_of(self, address: str) -> str:
        """Kind of the artifact that a file or a folder belongs to."""
        return self.relative(address).split("/")[1]

    def _usual_state(self) -> str:
        home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        return self.root if self.is_local else _absolute(f"{home}/dyformer")

    def _join(self, *parts: str) -> str:
        return "/".join((self.root, *parts))


def _kind(kind: str) -> tuple[str, tuple[str, ...]]:
    if kind not in KINDS:
        raise InvalidInput(f"there is no artifact of the kind {kind!r}; the kinds are {', '.join(KINDS)}")
    return KINDS[kind]


def _hive(**keys: str | int) -> str:
    short = {key: str(value)[:HASH_LENGTH] if key == "settings" else str(value) for key, value in keys.items()}
    return "/".join(f"{key}={_short(_safe(value))}" for key, value in short.items())


def _short(name: str) -> str:
    if len(name) > MOST_LETTERS:
        raise InvalidInput(f"the name '{name[:40]}...' has {len(name)} letters: expected at most {MOST_LETTERS}")
    return name


def _safe(name: str) -> str:
    if not SAFE_NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} cannot be part of a storage address: use letters, digits, '.', '_' and '-', "
            "beginning with a letter or a digit"
        )
    return name


def _normal_root(root: str) -> str:
    if {"%", "?"} & set(root):  # MLflow decodes the one, and the other ends the path of its database
        raise InvalidInput(f"storage root {root!r}: choose a name without '%' and '?'")
    if root.startswith("s3://"):
        if not root.removeprefix("s3://").strip("/"):
            raise InvalidInput("storage root 's3://' names no bucket: write s3://bucket or s3://bucket/prefix")
        return root.rstrip("/")
    scheme = re.match(r"([a-z][a-z0-9+.-]+)://", root)
    if scheme and scheme.group(1) != "file":
        raise InvalidInput(
            f"storage root {root!r}: expected a local folder or s3://bucket/prefix, found {scheme.group(1)}://"
        )
    return _absolute(root.removeprefix("file://"))


def _absolute(folder: str) -> str:
    # The path is made absolute at once, because a later change of the working directory must not move the store.
    return str(Path(folder).expanduser().resolve())
