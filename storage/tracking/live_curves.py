"""Losses of a training that runs -> the curves of its run in MLflow, as well as may be.

They are in the store anyway, and the projection completes the run. After one failure MLflow is left alone for
PAUSE_SECONDS, because each call to a server that hangs takes seconds; what waits is sent later or by the projection.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from filelock import Timeout

from storage.locks import LeaseBusy
from storage.tracking.mlflow_client import failures
from storage.tracking.runs import Status, TrackedRun, Tracker

FLUSH_SECONDS = 2.0  # pause before metrics are sent again, at least FLUSH_PAUSE times as long as the last sending
FLUSH_PAUSE = 20
FLUSH_METRICS = 1000
SECONDS_TO_WAIT = 1.0  # for another process that sends: a training is not held up, and what waits is sent later


@dataclass(kw_only=True)
class LiveCurves:
    """The curves of one training. No method raises if MLflow fails."""

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
