"""A store with a small log, and its live service."""

import shutil
from functools import partial

import pytest
from live_logs import NAME, ingest, rows_of

from dyformer.scoring.event_forecaster import EventForecaster
from flows.live.service import LiveService
from flows.tasks import event_state
from storage.layout import Layout

FEW_ROUNDS = partial(EventForecaster, gate_rounds=8, past_rounds=8, new_rounds=8)


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    """Fit few trees, because a test needs a forecaster and not a good one."""
    monkeypatch.setattr(event_state, "EventForecaster", FEW_ROUNDS)


@pytest.fixture(scope="session")
def fitted(tmp_path_factory):
    """Ingest the small log and fit its forecaster once, as the first service of a store does."""
    folder = tmp_path_factory.mktemp("fitted")
    layout = Layout(str(folder / "store"))
    ingest(layout, folder, rows_of(), 0)
    with pytest.MonkeyPatch.context() as patch:  # in it alone, because tests of other folders run meanwhile
        patch.setattr(event_state, "EventForecaster", FEW_ROUNDS)
        LiveService(layout=layout, dataset=NAME, show=lambda text: None)
    return folder / "store"


@pytest.fixture
def store(tmp_path, fitted):
    """Give a store of this test's own with the small log and its forecaster."""
    return Layout(str(shutil.copytree(fitted, tmp_path / "store")))
