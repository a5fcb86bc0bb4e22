"""A store with a small log, and its live service."""

import shutil
from functools import partial

import pytest
from live_logs import NAME, ingest, rows_of

from dyformer.scoring.event_forecaster import EventForecaster
from flows.live.service import LiveService
from flows.tasks import event_state
from storage.layout import Layout


@pytest.fixture(scope="package", autouse=True)
def few_rounds():
    """Fit few trees, because a test needs a forecaster and not a good one."""
    few = partial(EventForecaster, gate_rounds=8, past_rounds=8, new_rounds=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_state, "EventForecaster", few)
        yield


@pytest.fixture(scope="package")
def fitted(tmp_path_factory, few_rounds):
    """Ingest the small log and fit its forecaster once, as the first service of a store does."""
    folder = tmp_path_factory.mktemp("fitted")
    layout = Layout(str(folder / "store"))
    ingest(layout, folder, rows_of(), 0)
    LiveService(layout=layout, dataset=NAME, show=lambda text: None)
    return folder / "store"


@pytest.fixture
def store(tmp_path, fitted):
    """Give a store of this test's own with the small log and its forecaster."""
    return Layout(str(shutil.copytree(fitted, tmp_path / "store")))
