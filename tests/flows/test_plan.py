"""The plan of a run: its stages with their times, from the run before or estimated from links or first forecasts."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from dyformer.experiments.settings import Experiment
from dyformer.scoring.retrieval import MAX_NODES
from flows.tasks import start
from storage.artifacts.artifact import ArtifactMissing

EXPERIMENT = Experiment().changed({"pretrain": None, "finetune.epochs": 1, "finetune.batches_per_epoch": 1})
BEFORE = {"first_forecasts": 30.0, "train": 200.0, "rank": 30.4, "evaluate": 7.0, "predict": 7.0}
AS_BEFORE = "ranking 30 s, evaluation 7 s, forecasts 7 s, report 8 s"
# 2,500 + 400 + 100 links at .0046 s; a training of one batch takes .1 s, so that there is no time of it in the line
BY_LINKS = "estimated from 3,000 links to learn from"
ESTIMATED = "ranking 17 s, evaluation 14 s, forecasts 14 s, report 8 s"


@pytest.fixture(autouse=True)
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Give the machine two cores and another load than none."""

    def loaded(processes: float) -> None:
        monkeypatch.setattr(start.os, "getloadavg", lambda: (processes, 0.0, 0.0))

    monkeypatch.setattr(start.os, "cpu_count", lambda: 2)
    loaded(0.0)
    return loaded


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A graph of four steps with many links; the log has no report."""
    steps = tuple(Mock(source_E=[0] * number) for number in (9_000, 9_000, 400, 100))
    graph = Mock(snapshots=steps, node_N=[0] * 9)
    opened = Mock(dataset="mylog", graph=lambda until: graph, num_steps=4)
    monkeypatch.setattr(start, "open_snapshots", lambda address: opened)
    monkeypatch.setattr(start, "trained_steps", lambda address: [2, 3])
    monkeypatch.setattr(start, "period_before", lambda graph, step: 1)
    monkeypatch.setattr(start, "newest_report", Mock(side_effect=ArtifactMissing("it is the first run")))
    return graph


@pytest.fixture
def after(graph: Mock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the log a report with these seconds and this champion."""

    def reported(champion: str | None = "L3", **seconds: float) -> None:
        summary: dict[str, Any] = {
            "seconds": {**BEFORE, **seconds},
            "promotion": {"champion": champion if champion is None else {"title": champion}},
        }
        monkeypatch.setattr(start, "newest_report", lambda dataset: "report")
        monkeypatch.setattr(start, "read_report", lambda address: (None, summary))

    return reported


def line(*, trains: bool, shows_first: bool = False, first_seconds: float | None = None) -> str | None:
    return start.plan_of("", EXPERIMENT, trains=trains, shows_first=shows_first, first_seconds=first_seconds).line


def test_a_plan_has_the_stages_of_the_run_alone_with_their_times(after: Callable[..., None]):
    after()
    assert line(trains=False) == f"mylog: about 52 s to go, as in the run before: {AS_BEFORE}"
    stages = f"first forecasts 30 s, training 3 min, {AS_BEFORE}"
    assert line(trains=True, shows_first=True) == f"mylog: about 5 min to go, as in the run before: {stages}"


def test_the_links_of_the_steps_a_period_before_are_planned_for(graph: Mock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(start, "period_before", lambda graph, step: 2)
    assert "estimated from 400 links to learn from" in str(line(trains=True))


@pytest.mark.parametrize("stage", ["train", "rank", "evaluate", "predict"])
def test_a_run_that_was_paused_or_found_stored_parts_is_no_measure(stage: str, after: Callable[..., None]):
    after(**{stage: 0.9})
    assert line(trains=True) == f"mylog: about 52 s to go, {BY_LINKS}: {ESTIMATED}"
    assert (line(trains=False) == line(trains=True)) == (stage != "train")


def test_forecasts_that_a_first_run_made_before_its_training_are_of_the_next_forecasts(after: Callable[..., None]):
    after("Forecaster without vectors", predict=0.3)
    rest = "ranking 30 s, evaluation 7 s, forecasts 30 s, report 8 s"
    assert line(trains=False) == f"mylog: about 76 s to go, as in the run before: {rest}"
    after("Forecaster with DyFormer")
    assert line(trains=False) == f"mylog: about 52 s to go, as in the run before: {AS_BEFORE}"
    after(None)
    assert line(trains=False) == f"mylog: about 52 s to go, as in the run before: {AS_BEFORE}"


def test_a_first_plan_is_estimated_from_links_and_then_from_the_first_forecasts(graph: Mock):
    first = f"mylog: about 66 s to go, {BY_LINKS}: first forecasts 14 s, {ESTIMATED}"
    assert line(trains=True, shows_first=True) == first
    assert line(trains=True, first_seconds=0.05) == line(trains=True)  # they were stored already
    measured = "ranking 12 s, evaluation 10 s, forecasts 10 s, report 8 s"
    basis = "estimated from the 10 s of the first forecasts"
    assert line(trains=True, first_seconds=10.0) == f"mylog: about 40 s to go, {basis}: {measured}"


def test_what_was_not_measured_takes_longer_beside_other_programs(
    graph: Mock, load: Callable[[float], None], after: Callable[..., None]
):
    alone = line(trains=True, shows_first=True)
    load(2.0)  # those of the command itself, for example
    assert line(trains=True, shows_first=True) == alone
    load(6.0)
    by_links = f"{BY_LINKS}, beside other programs (a load of 6 on 2 cores)"
    stages = "first forecasts 41 s, training 1 s, ranking 50 s, evaluation 41 s, forecasts 41 s, report 24 s"
    assert line(trains=True, shows_first=True) == f"mylog: about 3 min to go, {by_links}: {stages}"
    load(3.0)  # of the command itself
    twice = "ranking 36 s, evaluation 30 s, forecasts 30 s, report 16 s"
    basis = "estimated from the 30 s of the first forecasts"
    assert line(trains=True, first_seconds=29.6) == f"mylog: about 111 s to go, {basis}: {twice}"
    after()
    assert line(trains=False) == f"mylog: about 52 s to go, as in the run before: {AS_BEFORE}"


def test_first_forecasts_of_a_tiny_log_make_no_other_stage_many_times_longer(graph: Mock):
    graph.snapshots = [*[Mock(source_E=[])] * 3, Mock(source_E=[0] * 19)]
    measured = "ranking 5 s, evaluation 4 s, forecasts 4 s, report 29 s"  # on cores that are four times as slow
    basis = "estimated from the 4 s of the first forecasts"
    assert line(trains=False, first_seconds=4.0) == f"mylog: about 42 s to go, {basis}: {measured}"
    assert line(trains=False, first_seconds=1.0) is not None
    assert "report 8 s" in str(line(trains=False, first_seconds=1.0))


def test_forecasts_of_many_nodes_are_not_estimated_from_links(graph: Mock):
    """They learn from one step alone, and grow with the nodes."""
    graph.node_N = [0] * MAX_NODES
    before, measured = line(trains=True, shows_first=True), line(trains=True, first_seconds=10.0)
    graph.node_N.append(0)
    assert before is not None
    assert line(trains=True, shows_first=True) is None
    assert start.plan_of("", EXPERIMENT, trains=True, shows_first=True).seconds == {}
    assert line(trains=True, first_seconds=10.0) == measured


@pytest.mark.parametrize(("num_links", "is_printed"), [(5, False), (150, False), (170, True)])
def test_a_plan_of_a_moment_is_no_line_though_its_report_takes_longer(num_links: int, is_printed: bool, graph: Mock):
    graph.snapshots = [*[Mock(source_E=[])] * 3, Mock(source_E=[0] * num_links)]
    assert (line(trains=False, shows_first=True) is not None) == is_printed
