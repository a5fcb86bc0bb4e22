"""Tests of this folder change deployments, schedules and automations of a server that all processes share."""

import os
from collections.abc import Iterator

import pytest
from filelock import FileLock
from prefect.client.orchestration import SyncPrefectClient, get_client


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the test of one process at a time use the server, because a test lists and counts what is there."""
    if "server" not in request.fixturenames:
        yield
        return
    folder = tmp_path_factory.getbasetemp()
    with FileLock((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "service.lock"):
        yield


@pytest.fixture
def client(server: str) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client
