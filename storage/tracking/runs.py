"""Runs, metrics, plots and models -> MLflow, or a local spool while MLflow is unreachable, replayed once.

Everything that is tracked is a record. It is sent to MLflow at once. From MLflow's first failure on, all records of
the run go to the spool. A tracker that is down therefore costs a training only a few seconds.
"""

import re
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from storage.layout import Layout
from storage.objects import is_remote
from storage.tracking.mlflow_client import (
    MODEL_PATH,
    NeedsServer,
    apply_record,
    connect,
    ensure_run,
    failures,
    limit_s3_requests,
    probe,
    reason,
)
from storage.tracking.spool import (
    Apply,
    Record,
    Refused,
    SpoolWriter,
    faults_of_spool,
    open_spool,
    replay_run,
    spooled_runs,
)
from storage.tracking.turns import EXCLUSIVE, turn

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure as Plot
    from mlflow import MlflowClient

FLUSH_SECONDS = 2.0  # pause before metrics are sent again, at least FLUSH_PAUSE times as long as the last sending
FLUSH_PAUSE = 20
FLUSH_METRICS = 1000
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")  # that MLflow opens without a server
LONGEST_TEXT = 5000  # that MLflow keeps of a tag
Status = Literal["FINISHED", "FAILED", "KILLED"]


def experiment_name(dataset: str) -> str:
    """Name the MLflow experiment (and the registered model) of a dataset; MLflow's pages cut a name at `/`."""
    return f"dyformer-{dataset.replace('/', '-')}"


@dataclass(kw_only=True)
class Tracker:
    """Address of the tracking server. MLflow is imported and reached at the first use."""

    uri: str
    spool: Path
    artifact_root: str | None = None  # of new experiments; None leaves it to the server
    layout: Layout | None = None  # of a store whose leases keep several machines from tracking one run at once
    problem: str | None = None  # why MLflow is unreachable; it is not tried again before the next replay
    damage: str | None = None  # why a run in the spool cannot be sent; set by replay_spool
    _client: "MlflowClient | None" = field(default=None, repr=False)

    def client(self) -> "MlflowClient":
        """Open MLflow's own client for this address."""
        if self._client is None:
            self._client = connect(self.uri)
            if self.artifact_root is None or is_remote(self.artifact_root):  # a server may give the address of S3
                limit_s3_requests()
        else:
            probe(self.uri)
        return self._client

    def start_run(
        self, *, dataset: str, name: str, tags: Mapping[str, object] | None = None, key: str | None = None
    ) -> "TrackedRun":
        """Begin a run in the experiment of the dataset, or continue the run of this key.

        It never fails; while MLflow is unreachable the run goes to the spool.
        """
        start = {
            **_record("start"),
            "run_key": key or uuid.uuid4().hex,
            "keyed": key is not None,
            "experiment": experiment_name(dataset),
            "artifact_root": self.artifact_root,
            "name": name,
            "tags": _texts({"dataset": dataset, **(tags or {})}),
        }
        run = TrackedRun(tracker=self, start=start)
        run.send(start)
        return run

    @contextmanager
    def run(
        self, *, dataset: str, name: str, tags: Mapping[str, object] | None = None, key: str | None = None
    ) -> "Iterator[TrackedRun]":
        """Begin a run that ends with the `with` block: FINISHED, or FAILED if the block raises."""
        run = self.start_run(dataset=dataset, name=name, tags=tags, key=key)
        status: Status = "FAILED"
        try:
            yield run
            status = "FINISHED"
        finally:
            run.finish(status)

    def replay_spool(self) -> None:
        """Send each record of the spool to MLflow once; `problem` is why the rest waits for the next replay.

        `damage` is why a run is left out, and does not keep the others waiting.
        """
        self.problem = None
        damaged = dict(faults_of_spool(self.spool))
        self.damage = next(map(str, damaged.values()), None)
        try:
            for folder in spooled_runs(self.spool):
                if folder not in damaged:
                    self._replay(folder)
        except failures() as error:
            self.problem = reason(error)

    def _replay(self, folder: Path) -> None:
        try:
            replay_run(folder, self._begin_replay)
        except NeedsServer as error:
            self.damage = self.damage or str(error)

    def run_of(self, start: Record) -> str:
        """MLflow's id of the run of a start record; the run is created by one of the processes that need it."""
        with self._turn(start):
            return ensure_run(self.client(), start)

    def apply(self, start: Record, run_id: str, record: Record, files: Path | None) -> Any:
        """Apply a record to the run of a start record."""
        with self._turn(start) if record["kind"] in EXCLUSIVE else nullcontext():
            return apply_record(self.client(), run_id, record, files)

    def _turn(self, start: Record) -> AbstractContextManager[None]:
        return turn(self.uri, self.spool.with_name("locks"), start["experiment"], self.layout)

    def _begin_replay(self, start: Record) -> Apply:
        run_id = self.run_of(start)
        return lambda record, files: self.apply(start, run_id, record, files)


def open_tracker(layout: Layout) -> Tracker:
    """Open the tracker at MLFLOW_TRACKING_URI, else the store's database; a server names the folder of files itself."""
    engine = layout.tracking_uri.partition(":")[0].partition("+")[0]
    artifact_root = layout.tracking_artifacts if engine in DATABASES else None
    return Tracker(uri=layout.tracking_uri, spool=Path(layout.spool), artifact_root=artifact_root, layout=layout)


@dataclass(kw_only=True)
class TrackedRun:
    """One run. No method raises if MLflow fails; `problem` is the first failure, None without one."""

    tracker: Tracker
    start: Record
    run_id: str | None = None  # MLflow's id; None while only the spool has the run
    problem: str | None = None
    _spool: SpoolWriter | None = field(default=None, repr=False)
    _replaces: bool = field(default=False, repr=False)  # of all that is in the buffer
    _buffer: list[tuple[str, float, int, int]] = field(default_factory=list, repr=False)
    _next_flush: float = field(default_factory=lambda: time.monotonic() + FLUSH_SECONDS, repr=False)

    def params(self, params: Mapping[str, object]) -> None:
        """Track settings; nested mappings get dotted names."""
        self.send({**_record("params"), "params": _texts(dict(_flat(params)))})

    def tags(self, tags: Mapping[str, object]) -> None:
        """Set tags of the run; the newest value of each is kept."""
        self.send({**_record("tags"), "tags": _texts(tags)})

    def metrics(self, metrics: Mapping[str, float], *, step: int = 0, replace: bool = False) -> None:
        """Track metrics of one step or epoch; they are sent together, every few seconds and at the end of the run.

        In a run with a key, the first value of each name and step is kept, or with `replace` the newest.
        """
        if replace != self._replaces:
            self.flush()
            self._replaces = replace
        moment = _now()
        self._buffer += [(_legal(name), float(value), moment, step) for name, value in metrics.items()]
        if time.monotonic() > self._next_flush or len(self._buffer) >= FLUSH_METRICS:
            self.flush()

    def flush(self) -> None:
        """Send the buffered metrics."""
        waiting, self._buffer = self._buffer, []
        started = time.monotonic()
        if waiting:
            record = {**_record("metrics"), "metrics": waiting, "once": self.start["keyed"]}
            self._deliver({**record, "replaces": self._replaces}, None)
        now = time.monotonic()
        self._next_flush = now + max(FLUSH_SECONDS, FLUSH_PAUSE * (now - started))

    def plot(self, path: str, plot: "Plot") -> None:
        """Track a plot as the artifact `path`, such as `plots/auc_per_step.png`."""
        with self._artifact(path) as file:
            plot.savefig(file, dpi=120)

    def table(self, path: str, frame: "pl.DataFrame") -> None:
        """Track a small table as the artifact `path`, such as `scores.csv`: MLflow's pages show it as a table."""
        with self._artifact(path) as file:
            frame.write_csv(file)

    def artifact(self, path: str, content: bytes) -> None:
        """Track bytes as the artifact `path`."""
        with self._artifact(path) as file:
            file.write_bytes(content)

    @contextmanager
    def _artifact(self, path: str) -> Iterator[Path]:
        folder, _, name = path.rpartition("/")
        with tempfile.TemporaryDirectory() as files:
            yield Path(files) / name
            self.send({**_record("artifact"), "path": folder}, Path(files))

    def dataset(self, frame: "pl.DataFrame", *, name: str, digest: str, source: str) -> None:
        """Track the data that the run read: a small frame that gives the columns, and the digest of all rows.

        MLflow accepts a digest of at most 36 characters.
        """
        from mlflow.data.polars_dataset import from_polars

        described = from_polars(frame, name=name, digest=digest[:36]).to_dict()
        described |= {"source_type": "dyformer", "source": f'{{"uri": "{source}"}}'}
        self.send({**_record("dataset"), "dataset": described, "context": "training"})

    def register_model(
        self,
        model: Path,
        *,
        name: str,
        aliases: tuple[str, ...] = ("challenger",),
        tags: Mapping[str, object] | None = None,
        description: str = "",
    ) -> str | None:
        """Upload a saved pyfunc folder and register it as the run's model, with the run's tags and these.

        Returns:
            The version, or None while MLflow is unreachable, because then the replay of the spool registers it.
        """
        self.send({**_record("artifact"), "path": MODEL_PATH}, model)
        own = {**self.start["tags"], **_texts(tags or {})}
        record = {**_record("register"), "model": name, "tags": own, "aliases": aliases}
        return self.send({**record, "description": description[:LONGEST_TEXT]})

    def finish(self, status: Status = "FINISHED") -> None:
        """End the run."""
        self.send({**_record("finish"), "status": status})
        if self._spool is not None:
            self._spool.close()

    def send(self, record: Record, files: Path | None = None) -> Any:
        """Send the buffered metrics and then a record; returns None if the record went to the spool."""
        self.flush()
        return self._deliver(record, files)

    def _deliver(self, record: Record, files: Path | None) -> Any:
        if self.problem is None and self.tracker.problem is None:
            try:
                return self._apply(record, files)
            except (Refused, NeedsServer, *failures()) as error:
                self._go_to_spool(error)
        self._spool_record(record, files)
        return None

    def _apply(self, record: Record, files: Path | None) -> Any:
        if self.run_id is None:
            self.run_id = self.tracker.run_of(self.start)
        return self.tracker.apply(self.start, self.run_id, record, files)

    def _go_to_spool(self, error: Exception) -> None:
        self.problem = reason(error)
        if not isinstance(error, Refused | NeedsServer):  # which is of this run alone
            self.tracker.problem = self.problem

    def _spool_record(self, record: Record, files: Path | None) -> None:
        self.problem = self.problem or self.tracker.problem
        try:
            if self._spool is None:
                self._spool = open_spool(self.tracker.spool, self.start)
            if record["kind"] != "start":
                self._spool.append(record, files)
        except OSError as error:
            self.problem = f"{self.problem}; in addition, the spool {self.tracker.spool} cannot be written: {error}"


def _record(kind: str) -> dict[str, Any]:
    return {"id": uuid.uuid4().hex, "kind": kind, "time": _now()}


def _now() -> int:
    return time.time_ns() // 1_000_000


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {_legal(name): str(value)[:LONGEST_TEXT] for name, value in values.items()}


def _legal(name: str) -> str:
    return re.sub(r"[^\w.\-/ :]", "_", name.replace("@", "_at_"))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
