"""Runs, metrics, plots and models -> MLflow, by calls that are safe to repeat.

A run is found by its key, a metric has its step, a file has one path, and a run registers one model. What was sent in
part is therefore sent again as a whole. Each call raises one of `failures()` where MLflow is unreachable.
"""

import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock, Timeout

from dyformer import DyformerError
from storage.artifacts.artifact import ArtifactMissing
from storage.bytes.checksums import Damaged, sha256
from storage.bytes.objects import is_remote
from storage.layout import Layout
from storage.locks import MOST_SECONDS, LeaseBusy, leased
from storage.tracking import mlflow_client
from storage.tracking.addresses import database_of, without_password
from storage.tracking.marks import marked
from storage.tracking.mlflow_client import (
    connect,
    ensure_run,
    failures,
    follow_store,
    limit_s3_requests,
    probe,
    reason,
    runs_of_key,
)

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure as Plot
    from mlflow import MlflowClient

PAUSE_SECONDS = 300.0  # without a call, for the curves of a training that runs, after a call that failed
FLUSH_SECONDS = 2.0  # pause before curves are sent again, at least FLUSH_PAUSE times as long as the last sending
FLUSH_PAUSE = 20
FLUSH_METRICS = 1000
SECONDS_TO_WAIT = 1.0  # for another process that sends: a training is not held up, and what waits is sent later
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")  # that MLflow opens without a server
LONGEST_TEXT = 5000  # that MLflow keeps of a tag
MOST_WAITING_BYTES = 1 << 26  # of files, which are on this machine's disk twice until they are sent
Status = Literal["FINISHED", "FAILED", "KILLED"]


class TrackedTwice(DyformerError, OSError):
    """Another machine has created the same run meanwhile; the next one that tracks it removes the younger one."""


def experiment_name(dataset: str) -> str:
    """Name the MLflow experiment (and the registered model) of a dataset; MLflow's pages cut a name at `/`."""
    return f"{mlflow_client.PREFIX}{dataset.replace('/', '-')}"


@dataclass(kw_only=True)
class Tracker:
    """MLflow as one process sees it. MLflow is imported and reached at the first use."""

    uri: str
    layout: Layout
    artifact_root: str | None = None  # of new experiments; None leaves it to the server
    problem: str | None = None  # the newest failure; None after results were sent
    _client: "MlflowClient | None" = field(default=None, repr=False)
    _paused_until: float = 0.0

    def client(self) -> "MlflowClient":
        """Open MLflow's own client for this address."""
        if self._client is None:
            self._client = connect(self.uri)
            if self.uri == self.layout.tracking_database:
                follow_store(self.layout)
            if self.artifact_root is None or is_remote(self.artifact_root):  # a server may give the address of S3
                limit_s3_requests()
        else:
            probe(self.uri)
        return self._client

    @property
    def is_paused(self) -> bool:
        """Whether a call failed a short time ago: a server that hangs would hold up a training at every epoch."""
        return time.monotonic() < self._paused_until

    def failed(self, error: Exception) -> str:
        """Remember a failure of MLflow, and make a pause; returns the reason."""
        self.problem, self._paused_until = reason(error), time.monotonic() + PAUSE_SECONDS
        return self.problem

    def resume(self) -> None:
        """Forget the newest failure, because results are sent now."""
        self.problem, self._paused_until = None, 0.0

    def turn(self, dataset: str, seconds: float | None = None) -> AbstractContextManager[None]:
        """Wait until no other process changes the runs of a dataset; raises OSError after some seconds."""
        return turn(self.layout, self.uri, experiment_name(dataset), seconds)

    def start_run(
        self, *, dataset: str, name: str, tags: Mapping[str, object] | None = None, key: str | None = None
    ) -> "TrackedRun":
        """Begin a run in the experiment of the dataset, or continue the run of this key and remove others that have it.

        The caller has its turn where other processes may track the same run.
        """
        texts = {**_texts({"dataset": dataset, **(tags or {})}), mlflow_client.RUN_KEY: key or uuid.uuid4().hex}
        experiment_id, run_id = ensure_run(self.client(), experiment_name(dataset), self.artifact_root, name, texts)
        return TrackedRun(tracker=self, experiment_id=experiment_id, run_id=run_id, start_tags=texts)

    @contextmanager
    def run(
        self, *, dataset: str, name: str, tags: Mapping[str, object] | None = None, key: str | None = None
    ) -> "Iterator[TrackedRun]":
        """Begin a run that is FINISHED at the end of the `with` block; after an error it goes on at the next try.

        A result whose parts are removed has no next try: its run ends as KILLED. Raises TrackedTwice if another machine
        has begun the same run.
        """
        run = self.start_run(dataset=dataset, name=name, tags=tags, key=key)
        with tempfile.TemporaryDirectory() as folder:
            run.folder = Path(folder)
            try:
                yield run
            except ArtifactMissing:
                run.finish("KILLED")
                raise
            run.finish()
        if len(runs_of_key(self.client(), experiment_name(dataset), run.start_tags[mlflow_client.RUN_KEY])) > 1:
            raise TrackedTwice(f"another machine tracks the run {name} at the same time: it is sent again")


@contextmanager
def turn(layout: Layout, uri: str, experiment: str, seconds: float | None = None) -> Iterator[None]:
    """Wait until no other process has its turn, for at most so many seconds, or MOST_SECONDS; raises OSError then.

    MLflow has no name that only one of two writers can create, for runs, points of a curve and versions of a model. A
    writer searches for them and creates what is missing, alone: on one machine by the lock of a file, on several
    machines by a lease in the object store that they share. A machine that is slower than a lease lasts may double a
    run, which the next writer of that run removes.

    The lock of a SQLite database lies beside it, because processes with other state folders may use it, and its first
    writer makes its tables. The lease is used if the store is in an object store and MLflow is a server.
    """
    database, lease = database_of(uri), lease_of(layout, uri, experiment)
    path = Path(layout.lock(_lock_name(uri, experiment)) if database is None else f"{database}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        FileLock(path, timeout=MOST_SECONDS if seconds is None else seconds),
        nullcontext() if lease is None else leased(lease, seconds),
    ):
        yield


def lease_of(layout: Layout, uri: str, experiment: str) -> str | None:
    """Address of the lease for an experiment of a server; None where one machine alone can be the writer."""
    if layout.is_local or database_of(uri) is not None:
        return None
    return layout.lease(_lock_name(uri, experiment))


def _lock_name(uri: str, experiment: str) -> str:
    return f"tracking-{sha256(f'{uri} {experiment}'.encode())[:16]}"


def open_tracker(layout: Layout) -> Tracker:
    """Open the tracker at MLFLOW_TRACKING_URI, else the store's database; a server names the folder of files itself.

    A process has one for each address, which knows what failed last.
    """
    engine = layout.tracking_uri.partition(":")[0].partition("+")[0]
    return _tracker(layout, layout.tracking_uri, layout.tracking_artifacts if engine in DATABASES else None)


@lru_cache
def _tracker(layout: Layout, uri: str, artifact_root: str | None) -> Tracker:
    return Tracker(uri=uri, layout=layout, artifact_root=artifact_root)


def tracking_of(address: str) -> dict[str, Any]:
    """Say where a result is in MLflow, or why it is not there yet: tracker, experiment, run, model_version, problem."""
    try:
        mark = marked(address)
    except Damaged as error:
        mark = {"problem": str(error)}
    return where(open_tracker(Layout.from_environment()), mark)


def where(tracker: Tracker, mark: Mapping[str, Any] | None) -> dict[str, Any]:
    """Say where a result is in MLflow, by its mark, as `tracking_of` does."""
    unsent = {"problem": tracker.problem or "it was not sent yet"}
    result = {"experiment": None, "run": None, "model_version": None, **unsent}
    marked = {} if mark is None else {"problem": None, **{name: mark[name] for name in result if name in mark}}
    return {"tracker": without_password(tracker.uri), **result, **marked}


@dataclass(kw_only=True)
class TrackedRun:
    """One run of MLflow."""

    tracker: Tracker
    experiment_id: str
    run_id: str
    start_tags: dict[str, str]
    folder: Path | None = None  # of files that wait, which only a run of `Tracker.run` has
    _waiting: list[mlflow_client.Point] = field(default_factory=list, repr=False)
    _num_bytes: int = 0  # of the files that wait

    def params(self, params: Mapping[str, object]) -> None:
        """Track settings; nested mappings get dotted names."""
        mlflow_client.send_params(self.tracker.client(), self.run_id, flat_texts(params))

    def tags(self, tags: Mapping[str, object]) -> None:
        """Set tags of the run; the newest value of each is kept."""
        mlflow_client.send_tags(self.tracker.client(), self.run_id, _texts(tags))

    def metric_names(self) -> set[str]:
        """Names of the metrics that MLflow has of the run."""
        return set(self.tracker.client().get_run(self.run_id).data.metrics)

    def metrics(self, metrics: Mapping[str, float], *, step: int = 0, replace: bool = False) -> None:
        """Track metrics of one step or epoch; sent together, as files are, by `flush` and at the end of the run.

        The first value of each name and step is kept, or with `replace` the newest.
        """
        moment = _now()
        self._waiting += [
            mlflow_client.Point(_legal(name), float(value), moment, step, replace) for name, value in metrics.items()
        ]

    def flush(self) -> None:
        """Send the metrics and the files that wait."""
        if self._waiting:
            mlflow_client.send_points(self.tracker.client(), self.run_id, self._waiting)
            self._waiting = []
        if self.folder is not None and any(self.folder.iterdir()):
            mlflow_client.send_files(self.tracker.client(), self.run_id, self.folder, None)
            for path in self.folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            self._num_bytes = 0

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
        assert self.folder is not None, "a run of `Tracker.run` has files"
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        yield file
        self._num_bytes += file.stat().st_size
        if self._num_bytes > MOST_WAITING_BYTES:
            self.flush()

    def dataset(self, frame: "pl.DataFrame", *, name: str, digest: str, source: str) -> None:
        """Track the data that the run read: a small frame that gives the columns, and the digest of all rows.

        MLflow accepts a digest of at most 36 characters.
        """
        from mlflow.data.polars_dataset import from_polars

        described = from_polars(frame, name=name, digest=digest[:36]).to_dict()
        described |= {"source_type": "dyformer", "source": f'{{"uri": "{source}"}}'}
        mlflow_client.send_dataset(self.tracker.client(), self.run_id, described)

    def register_model(
        self,
        model: Path,
        *,
        name: str,
        aliases: tuple[str, ...] = ("challenger",),
        tags: Mapping[str, object] | None = None,
        description: str = "",
    ) -> str:
        """Upload a saved pyfunc folder and register it as the run's model, with the run's tags and these.

        What waits is sent before, so that a registered version has all files of its run. Returns the version.
        """
        self.flush()
        client = self.tracker.client()
        mlflow_client.send_files(client, self.run_id, model, mlflow_client.MODEL_PATH)
        texts = {name: text for name, text in self.start_tags.items() if name != mlflow_client.RUN_KEY}
        texts |= _texts(tags or {})
        return mlflow_client.register(client, self.run_id, name, texts, aliases, description[:LONGEST_TEXT])

    @property
    def where(self) -> dict[str, str]:
        """The ids of its experiment and its own, as a result's mark has them."""
        return {"experiment": self.experiment_id, "run": self.run_id}

    def finish(self, status: Status = "FINISHED") -> None:
        """Send what waits, and end the run."""
        self.flush()
        self.tracker.client().set_terminated(self.run_id, status=status, end_time=_now())


@dataclass(kw_only=True)
class LiveCurves:
    """The losses of a training that runs, as curves, as well as may be. No method raises if MLflow fails.

    They are in the store anyway, and the projection completes the run. After one failure MLflow is left alone for
    PAUSE_SECONDS, because each call to a server that hangs takes seconds; what waits is sent later.
    """

    tracker: Tracker
    dataset: str
    start: Callable[[], TrackedRun]  # begins or continues the run
    _run: TrackedRun | None = field(default=None, repr=False)
    _waiting: list[tuple[Mapping[str, float], int]] = field(default_factory=list, repr=False)
    _next_flush: float = field(default_factory=lambda: time.monotonic() + FLUSH_SECONDS, repr=False)

    def add(self, metrics: Mapping[str, float], step: int) -> None:
        """Add the metrics of an epoch; they are sent together, every few seconds."""
        self._waiting.append((metrics, step))
        if time.monotonic() > self._next_flush or len(self._waiting) >= FLUSH_METRICS:
            self.flush()

    def flush(self, status: Status | None = None) -> None:
        """Send what waits, and end the run if it failed."""
        started = time.monotonic()
        if not self.tracker.is_paused:
            try:
                with self.tracker.turn(self.dataset, SECONDS_TO_WAIT):
                    self._send(status)
            except (Timeout, LeaseBusy):
                pass
            except failures() as error:
                self.tracker.failed(error)
        now = time.monotonic()
        self._next_flush = now + max(FLUSH_SECONDS, FLUSH_PAUSE * (now - started))

    def _send(self, status: Status | None) -> None:
        self._run = self._run or self.start()
        while self._waiting:
            metrics, step = self._waiting.pop(0)
            self._run.metrics(metrics, step=step)
        self._run.flush()
        if status is not None:
            self._run.finish(status)


def flat_texts(values: Mapping[str, object]) -> dict[str, str]:
    """Give settings as MLflow takes them: texts, those of a part under dotted names."""
    return _texts(dict(_flat(values)))


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
