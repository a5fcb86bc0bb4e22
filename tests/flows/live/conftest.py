"""A store with a small log, and its live service."""

from functools import partial

import pytest
from live_logs import ingest, rows_of

from dyformer.scoring.event_forecaster import EventForecaster
from flows.tasks import event_state
from storage.layout import Layout


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    """Fit few trees, because a test needs a forecaster and not a good one."""
    few = partial(EventForecaster, gate_rounds=8, past_rounds=8, new_rounds=8)
    monkeypatch.setattr(event_state, "EventForecaster", few)


@pytest.fixture
def store(tmp_path):
    """Give a store with the small log."""
    layout = Layout(str(tmp_path / "store"))
    ingest(layout, tmp_path, rows_of(), 0)
    return layout
