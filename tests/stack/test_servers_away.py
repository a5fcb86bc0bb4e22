"""MLflow or the object store is away or hangs during a retraining: it ends like an undisturbed one."""

import time
from pathlib import Path
from typing import Any

import pytest
from compose_stack import Stack, ends
from retrainings import assert_sound, in_training, reconciled, started

from storage.layout import Layout
from storage.tracking.marks import due

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("idle")]


def test_results_wait_while_mlflow_is_down_and_are_sent_once(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "mlflow-down")
    in_training(stack, store, run, "mlflow-down")
    stack.stop("mlflow")
    ends(stack, run)
    assert due(store) != []
    stack.restart("mlflow")
    reconciled(stack, store)
    assert_sound(stack, store, "mlflow-down", undisturbed)


def test_results_wait_while_mlflow_hangs_and_are_sent_once(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "mlflow-hanging")
    in_training(stack, store, run, "mlflow-hanging")
    with stack.hanging("mlflow"):
        ends(stack, run)
    reconciled(stack, store)
    assert_sound(stack, store, "mlflow-hanging", undisturbed)


@pytest.mark.parametrize("seconds", [30, 120])
def test_a_run_outlasts_an_object_store_that_is_away(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any], seconds: int
) -> None:
    run = started(stack, log, f"store-away-{seconds}")
    in_training(stack, store, run, f"store-away-{seconds}")
    stack.stop("s3")
    time.sleep(seconds)
    stack.restart("s3")
    ends(stack, run, 400)
    reconciled(stack, store)
    assert_sound(stack, store, f"store-away-{seconds}", undisturbed)


def test_a_run_outlasts_an_object_store_that_hangs(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "s3-hanging")
    in_training(stack, store, run, "s3-hanging")
    with stack.hanging("s3"):
        time.sleep(45)
    ends(stack, run, 400)
    reconciled(stack, store)
    assert_sound(stack, store, "s3-hanging", undisturbed)
