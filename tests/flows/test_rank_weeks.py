"""Ranks of each week's held-out links as artifacts: one a week, made once, by methods that know no later week."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from own_snapshots import own_snapshots
from posed import evaluate_methods, metrics_of

from dyformer.baselines.recency import ContactRecency
from dyformer.evaluation.protocols import live_update
from dyformer.evaluation.protocols.live_update import held_out_links, live_update_ranks, weeks_to_rank
from dyformer.experiments.methods import METHODS
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.snapshots import build_snapshots
from dyformer.logs.time_windows import Window
from flows.tasks.snapshots import StepOutOfRange, open_snapshots
from storage.artifacts.artifact import read_table
from storage.events.table import read_events

pytestmark = pytest.mark.usefixtures("few_trees")

PROTOCOL = "live-update"
FORMULA, CLASSIFIER = "Contact recency", "Logistic regression on pair features"


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("weeks")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DYFORMER_STORAGE", str(folder / "store"))
        yield own_snapshots(folder)


def test_the_ranks_of_a_week_are_those_of_a_fit_on_the_weeks_before(snapshots: str):
    opened, week = open_snapshots(snapshots), weeks_to_rank(open_snapshots(snapshots))[-1]
    events = read_events(opened.layout, "mylog", opened.version)
    graph = build_snapshots(events, Window.parse("calendar 1w"), "iso")
    links, past = held_out_links(graph, week, seed=1), prepare_graph(graph, until=week - 1, config=GraphConfig())
    expected = live_update_ranks(ContactRecency().fit_pairs(past, ()), links, len(past.history.node_N))
    found = read_table(evaluate_methods(snapshots, [FORMULA], week, seed=1, protocol=PROTOCOL), "ranks")
    assert found["rank"].to_list() == expected.tolist()
    assert found["source"].to_list() == links.source_S.tolist()
    assert set(found["step"]) == {week}


def test_methods_and_labels_end_before_the_week(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    given = []

    class Watcher:
        def fit_pairs(self, graph, labelled):
            given.append((graph, labelled))
            return lambda source_P, target_P: np.zeros(len(source_P))

    for title in ("L3", "Adamic-Adar"):
        monkeypatch.setitem(METHODS, title, Watcher())  # pyright: ignore[reportArgumentType]
    evaluate_methods(snapshots, ["L3", "Adamic-Adar"], 6, protocol=PROTOCOL)
    (graph, labelled), other = given
    assert graph.until == graph.history.num_steps == 5
    assert [step.before.until for step in labelled] == [4, 3, 2, 1]
    assert all(step.before.history.num_steps == step.before.until for step in labelled)
    assert other == (graph, labelled)  # the same labels for all methods


def test_an_interrupted_run_ranks_only_the_missing_weeks(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    weeks, names = weeks_to_rank(open_snapshots(snapshots))[-3:], [FORMULA, CLASSIFIER]
    made = [evaluate_methods(snapshots, names, week, protocol=PROTOCOL) for week in weeks]
    rows = metrics_of(made, snapshots, protocol=PROTOCOL)
    assert set(rows["step"]) == {*map(str, weeks), "macro"}
    shutil.rmtree(Path(made[1]))
    ranked: list[int] = []
    links_of = live_update.held_out_links
    monkeypatch.setattr(
        live_update,
        "held_out_links",
        lambda graph, week, seed: (ranked.append(week), links_of(graph, week, seed=seed))[1],
    )
    assert [evaluate_methods(snapshots, names, week, protocol=PROTOCOL) for week in weeks] == made
    assert ranked == weeks[1:2]
    assert metrics_of(made, snapshots, protocol=PROTOCOL).equals(rows)


def test_a_log_without_a_labelled_week_is_refused(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_update, "has_labelled_steps", lambda graph, week, num_steps: False)
    with pytest.raises(StepOutOfRange, match="mylog has 6 weeks, and none has links between known nodes"):
        weeks_to_rank(open_snapshots(snapshots))
