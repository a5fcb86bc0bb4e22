"""Prefect's server is away or hangs during a retraining: it ends like an undisturbed one."""

import time
from pathlib import Path
from typing import Any

import pytest
from compose_stack import Stack, ends
from retrainings import assert_sound, in_training, reconciled, started

from storage.layout import Layout

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("idle")]


def test_a_server_that_is_started_again_loses_no_run(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "server-restarted")
    in_training(stack, store, run, "server-restarted")
    stack.stop("prefect-server")
    time.sleep(5)
    stack.restart("prefect-server")
    ends(stack, run)
    assert stack.request(f"/flow_runs/{run}")["run_count"] == 1
    assert_sound(stack, store, "server-restarted", undisturbed)


def test_a_run_outlasts_a_server_that_hangs(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "prefect-server-hanging")
    in_training(stack, store, run, "prefect-server-hanging")
    with stack.hanging("prefect-server"):
        time.sleep(60)
    ends(stack, run, 400)
    reconciled(stack, store)
    assert_sound(stack, store, "prefect-server-hanging", undisturbed)
