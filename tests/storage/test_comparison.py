"""Comparison of runs in MLflow: what differs, in which order, and which run a text names."""

from collections.abc import Callable
from pathlib import Path

import pytest

from storage.layout import Layout
from storage.tracking.comparison import compare_runs
from storage.tracking.runs import Tracker


@pytest.fixture(scope="module")
def tracker(empty_database: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Tracker:
    folder = tmp_path_factory.mktemp("compared")
    tracker = Tracker(uri=f"sqlite:///{empty_database(folder / 'mlflow.db')}", layout=Layout(str(folder)))
    for name, layers, mrr in (
        ("mylog v1 step 5", 2, 0.25),
        ("mylog v2 step 6", 4, 0.5),
        ("twice", 2, 0),
        ("twice", 2, 0),
    ):
        with tracker.run(dataset="mylog", name=name) as run:
            run.params({"model": {"num_layers": layers, "width": 8}})
            run.metrics({"baseline/mrr/L3": 0.1, "test/mrr": 0.0}, step=1)
            run.metrics({"test/mrr": mrr, "test/mrr_low": 0.2}, step=2)
    return tracker


def test_settings_that_differ_and_the_newest_metrics_are_side_by_side(tracker: Tracker):
    table = compare_runs(tracker, ["mylog v1 step 5", "mylog v2 step 6"])
    assert [row[:2] for row in table.rows()] == [
        ("setting", "model.num_layers"),
        ("metric", "test/mrr"),
        ("metric", "baseline/mrr/L3"),
    ]
    assert [row[2:] for row in table.rows()] == [("2", "4"), ("0.2500", "0.5000"), ("0.1000", "0.1000")]
    assert [name.rpartition(" (")[0] for name in table.columns[2:]] == ["mylog v1 step 5", "mylog v2 step 6"]
    detailed = compare_runs(tracker, ["mylog v1 step 5", "mylog v2 step 6"], details=True)
    assert "test/mrr_low" in detailed["name"].to_list()


def test_a_run_is_found_by_its_id_or_the_beginning_of_it(tracker: Tracker):
    (run,) = [each for each in tracker.client().search_runs(["1"]) if each.info.run_name == "mylog v1 step 5"]
    whole = compare_runs(tracker, [run.info.run_id])
    assert whole.equals(compare_runs(tracker, [run.info.run_id[:10]]))
    assert whole.equals(compare_runs(tracker, ["mylog v1 step 5"]))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [("other", "none of the newest 2,000 runs has the id or"), ("twice", "2 runs"), ("", "none of")],
)
def test_a_text_that_names_no_run_or_two_is_refused(tracker: Tracker, wanted: str, message: str):
    with pytest.raises(ValueError, match=message):
        compare_runs(tracker, [wanted])
