"""A kind of finished results -> the function that sends one of them to MLflow."""

from collections.abc import Callable
from typing import Any

from flows.tasks.publishing.champions import send_rollback
from flows.tasks.publishing.ledger import send_ledger
from flows.tasks.tracking.benchmarks import send_audit, send_benchmark, send_study
from flows.tasks.tracking.retraining import send_report, send_training
from storage.tracking.runs import Tracker

SEND: dict[str, Callable[[Tracker, str], dict[str, Any]]] = {
    "training": send_training,
    "report": send_report,
    "benchmark": send_benchmark,
    "study": send_study,
    "audit": send_audit,
    "outcomes": send_ledger,
    "rollback": send_rollback,
}
"""By the kinds of `storage.tracking.marks`; each returns the run, and the model's version if it registers one."""
