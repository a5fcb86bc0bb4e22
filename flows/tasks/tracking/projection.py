"""The store -> MLflow, brought up to date: each finished result without a mark becomes a run, and gets its mark."""

from contextlib import ExitStack
from typing import Any, NamedTuple

from dyformer.extras import is_installed, missing
from storage.artifacts.artifact import ArtifactMissing
from storage.checksums import Damaged
from storage.layout import Layout
from storage.locks import in_use
from storage.tracking.marks import due, is_due, marked
from storage.tracking.marks import mark as write_mark
from storage.tracking.mlflow_client import failures, is_of_one_run, reason
from storage.tracking.runs import Tracker, open_tracker, where


class Projected(NamedTuple):
    """Which results were sent, by their addresses below the root, and why others were not."""

    sent: list[str]
    problems: list[str]


def project(layout: Layout, *, again: bool = False) -> Projected:
    """Send each result of the store that has no mark to MLflow, and mark it; with `again` also those with a mark.

    It raises nothing because of MLflow, and a fault of one result keeps no other one. What was not sent is due at the
    next call, and a run that was sent in part is completed, because it is found by its key.
    """
    addresses = due(layout, again=again)
    done = Projected([], [])
    if not addresses:
        return done
    if not is_installed("mlflow"):
        return Projected([], [str(missing("mlflow"))])
    tracker = open_tracker(layout)
    tracker.resume()
    for address in addresses:
        name = layout.relative(address)
        try:
            done.sent.extend([name] if _is_sent(tracker, address, again=again) else [])
        except ArtifactMissing as error:  # of old results that were removed before MLflow was back
            write_mark(layout, address, {"problem": f"it cannot be sent any more: {error}"})
            done.problems.append(f"{name}: {error}")
        except Exception as error:  # noqa: BLE001, because no fault of one result may keep the others
            is_away = isinstance(error, failures()) and not is_of_one_run(error)
            tracker.failed(error)
            done.problems.append(tracker.problem or "" if is_away else f"{name}: {reason(error)}")
            if is_away:
                break
    return done


def tracking_of(address: str) -> dict[str, Any]:
    """Say where a result is in MLflow, or why it is not there yet: tracker, run, model_version, problem."""
    try:
        mark = marked(address)
    except Damaged as error:
        mark = {"problem": str(error)}
    return where(open_tracker(Layout.from_environment()), mark)


def _is_sent(tracker: Tracker, address: str, *, again: bool) -> bool:
    """Send a result and mark it; False if another process has done so meanwhile, or removed it."""
    from flows.tasks.tracking.results import SEND

    layout, (kind, keys) = tracker.layout, tracker.layout.describe(address)
    with ExitStack() as alone:
        alone.enter_context(in_use(layout, keys["dataset"]).read_lock())  # it is not dropped meanwhile
        alone.enter_context(tracker.turn(keys["dataset"]))
        if not again and not is_due(layout, address):
            return False
        write_mark(layout, address, SEND[kind](tracker, address))
    return True
