"""Flow: a log and methods -> checks that nothing later reaches an earlier result, tracked."""

from typing import Any

from prefect import flow

from flows.artifacts import show_page
from flows.service.managed import managed, stored_task
from flows.stages import Changes, experiment_of, ingest, track_task
from flows.tasks.evaluation.audit import audit_log, read_audit
from storage.layout import Layout
from storage.tracking.runs import tracking_of

audit_task = stored_task(name="audit")(audit_log)


@flow(flow_run_name="audit {dataset}")
@managed
def audit(
    dataset: str,
    reading: dict[str, Any] | None = None,
    step: int | None = None,
    changes: Changes = None,
    methods: list[str] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Audit methods (by default all scorers and DyFormer) on a log as of a step.

    Returns:
        report: address of the checks; tracking: as of tracking_of; failed: the checks that failed.
    """
    experiment = experiment_of(dataset, changes)
    snapshots = ingest(dataset, reading)["snapshots"]
    report = audit_task(snapshots, methods, step, experiment, seed)
    _, page, record = read_audit(report)
    show_page("audit", dataset, page)
    track_task(Layout.from_environment())
    return {"report": report, "tracking": tracking_of(report), "failed": record["failed"]}
