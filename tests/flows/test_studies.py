"""The paper's experiments at toy size: every row has its value, and one that was killed ends as one that was not."""

import pickle
import random
import re
import resource
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
import torch
from matplotlib.figure import Figure
from own_snapshots import ingest_own
from toy_graphs import toy_graph

import flows.benchmark
import flows.cli
import flows.commands.studies
import flows.stages
import flows.trials
from dyformer.baselines.dynaernn.method import DynAERNN
from dyformer.baselines.dyngem.method import DynGEM
from dyformer.baselines.dysat.method import DySAT
from dyformer.baselines.evolvegcn.method import EvolveGCN
from dyformer.baselines.graphsage.method import GraphSAGE
from dyformer.baselines.node2vec import Node2Vec
from dyformer.evaluation.protocols import protocol_of
from dyformer.evaluation.protocols.cost import peak_gigabytes
from dyformer.evaluation.protocols.protocol import wanted_steps
from dyformer.evaluation.rows import METRICS_SCHEMA
from dyformer.experiments.methods import METHODS, NoEffect
from dyformer.experiments.printed import PrintedTable
from dyformer.experiments.settings import Experiment
from dyformer.experiments.studies.studies import STUDIES, Study, study_of
from dyformer.experiments.studies.study_tables import Setup, StudyTable
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.logs.datasets import DATASETS
from dyformer.scoring.interfaces import Embed
from flows.commands.benchmark import tables_of, with_cap
from flows.commands.studies import plots, run_study, setup_of
from flows.console import QUIET, ongoing, tracked
from flows.options import experiment_from
from flows.tasks.ingest import ingest_log
from flows.tasks.methods import check_kinds, configured, resolved
from flows.tasks.snapshots import StepOutOfRange, make_snapshots
from flows.trials import Ended, Trial, finished, results, run_trials, trials_of
from storage.layout import Layout
from storage.tracking.comparison import compare_runs
from storage.tracking.runs import experiment_name, open_tracker

pytestmark = pytest.mark.usefixtures("few_trees", "plain_functions")

SMALL = {"model.width": 8, "model.num_heads": 2, "model.num_context": 8} | {
    f"{stage}.{name}": 1
    for stage in ("pretrain", "finetune")
    for name in ("epochs", "batches_per_epoch", "validation_batches")
}
TRACKED = (
    "towers",
    "forecaster",
    "labels",
)  # one experiment of each protocol has its runs in MLflow, the others their tables
TINY = {
    "node2vec": Node2Vec(width=8, num_walks=1, walk_length=5),
    "GraphSAGE": GraphSAGE(width=8, fan_out=(3, 2), num_walks=1, batches=1, batch_pairs=16),
    "DynGEM": DynGEM(width=8, hidden=(16, 8), first_epochs=1, epochs=1),
    "DynAERNN": DynAERNN(width=8, hidden=(16, 8), epochs=1),
    "DySAT": DySAT(width=16, num_walks=1, walk_length=5, batches=1),
    "EvolveGCN-O": EvolveGCN(evolution="O", width=8, epochs=1),
    "EvolveGCN-H": EvolveGCN(evolution="H", width=8, epochs=1),
}


CAPS = ("", ", max_epochs=1")  # in the names of runs


@dataclass(frozen=True)
class RandomVectors:
    """Vectors drawn by the seed; `fits` are the steps and seeds that were fitted, as often as they were."""

    name: str
    fits: ClassVar[list[tuple[str, int, int]]] = []
    width: int = field(default=4)

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        self.fits.append((self.name, graph.until, seed))
        vector_ND = np.random.default_rng([seed, graph.until]).normal(size=(len(graph.history.node_N), self.width))
        return lambda node_N: vector_ND[node_N]


def ingest_labels(folder: Path) -> None:
    """Users with many rows in a week often get a label in the next one."""
    generator, busy, rows = np.random.default_rng(0), set(), []
    for week in range(4):
        now_busy = set(generator.integers(0, 40, 10).tolist())
        users = [*range(0, 40, 2), *range(1, 40, 4), *(3 * sorted(now_busy))]
        for minute, user in enumerate(users):
            time = 1_600_000_000 + 604_800 * week + 60 * minute
            rows.append(f"u{user},page{generator.integers(6)},{time},{int(user in busy)}")
        busy = now_busy
    (folder / "labelled.csv").write_text("\n".join(["user,item,timestamp,state_label", *rows]) + "\n")
    ingest_log("labelled", {"log": [str(folder / "labelled.csv")], "window": "7d"}, show=lambda text: None)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_database: Callable[[Path], Path]) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("studies")
    empty_database(folder / "store" / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYFORMER_STORAGE", str(folder / "store"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        for title, method in TINY.items():
            patch.setitem(METHODS, title, method)
        ingest_own(folder)
        ingest_labels(folder)
        yield folder


def small(study: Study) -> dict[str, Any]:
    """Give those of SMALL that a method of a study reads: the published one sets its width itself."""
    read = {}
    for name, value in SMALL.items():
        with suppress(NoEffect):
            study.check_changes([name])
            read[name] = value
    return read


def trial_of(protocol: str, title: str = "L3", snapshots: str = "") -> Trial:
    """Give a trial of one method on step 3."""
    return Trial(protocol, "mylog", snapshots, [(3,)], 0, Experiment(), resolved([title]))


def in_this_process(trials: list[Trial], parallel: int) -> Iterator[Ended]:
    """Run trials as `finished` does, those too that have a process of their own, whose start takes seconds."""
    for trial in trials:
        flows.trials.run_trial(trial)
        yield Ended(trial, was_stored=False)


def check_differences(table: StudyTable, compared: Mapping[str, str]) -> None:
    """Compare the differences of a table with those of its values."""
    title = table.values[-1]
    value = {row["method"]: row[title] for row in table.frame.to_dicts()}
    gain = {row["method"]: row[f"{title}_minus_best"] for row in table.frame.to_dicts()}
    others = {method: other for method, other in compared.items() if method != other}
    expected = {method: value[method] - value[other] for method, other in others.items()}
    assert {method: gain[method] for method in others} == pytest.approx(expected)
    if compared:
        assert {gain[method] for method in value if method not in others} <= {None}


@pytest.mark.parametrize("name", STUDIES)
def test_every_row_of_an_experiment_has_its_value(name: str, store: Path, monkeypatch: pytest.MonkeyPatch):
    if name not in TRACKED:
        monkeypatch.setattr(flows.benchmark, "record_task", lambda *given: str(store / "no record"))
        monkeypatch.setattr(flows.benchmark, "track_task", lambda *given: None)
    monkeypatch.setattr("flows.tasks.tracking.benchmarks.draw", lambda *given: None)  # plots of every benchmark
    monkeypatch.setattr(flows.trials, "finished", in_this_process)
    dataset, steps = ("labelled", "4") if STUDIES[name].protocols[0] == "labels" else ("mylog", "3")
    made = run_study(name, {dataset: {}}, {dataset: Experiment().changed(small(STUDIES[name]))}, steps=steps)
    assert made.tables
    for table in made.tables:
        assert table.frame["method"].to_list() == list(STUDIES[name].rows)
        assert table.frame[table.values[-1]].is_finite().all(), table.frame
        assert set(table.files()) <= set(made.files)
        check_differences(table, STUDIES[name].compared)
    assert [file for file in made.files if file.endswith("-steps.csv")] == ["steps-mylog-steps.csv"] * (name == "steps")
    plots = [file for file in made.files if file.endswith(".png")]
    assert len(plots) == (0 if STUDIES[name].plot is None else len(made.tables))
    tracker = open_tracker(Layout.from_environment())
    own = tracker.client().get_experiment_by_name(experiment_name(dataset))
    assert own is not None
    runs = tracker.client().search_runs([own.experiment_id], f"tags.experiment = '{name}'")
    rows = {(row, "0") for row in STUDIES[name].rows} if name in TRACKED else set()
    assert {(run.data.tags["method"], run.data.tags.get("seed")) for run in runs} >= rows
    assert all("finetune.epochs=1" in run.data.tags["changed_settings"] for run in runs if "seed" in run.data.tags)
    tables = [run for run in runs if run.data.tags["stage"] == "experiment"]
    assert len(tables) == 1
    assert {each.path for each in tracker.client().list_artifacts(tables[0].info.run_id)} == set(made.files)


def test_labels_of_a_log_without_them_are_refused_with_what_is_expected(store: Path):
    with pytest.raises(ValueError, match=r"mylog has no labels.*column of labels"):
        run_study("labels", {"mylog": {}}, {"mylog": Experiment()})


def killed_at_random(monkeypatch: pytest.MonkeyPatch, probability: float) -> None:
    """End the study with this probability before each step of a trial, as Ctrl-C does."""
    scored, generator = flows.trials.results, random.Random(0)

    def until_killed(jobs):
        for job in jobs:
            if generator.random() < probability:
                raise KeyboardInterrupt
            yield job

    monkeypatch.setattr(
        flows.trials,
        "results",
        lambda snapshots, protocol, jobs, *rest, **named: scored(
            snapshots, protocol, until_killed(jobs), *rest, **named
        ),
    )


def test_an_experiment_killed_at_random_and_finished_equals_one_run(
    store: Path, tmp_path: Path, empty_database: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("flows.tasks.tracking.benchmarks.draw", lambda *given: None)  # plots of every benchmark
    for title in ("First", "Second"):
        monkeypatch.setitem(METHODS, title, RandomVectors(title))
    rows = dict.fromkeys(["L3", "First", "Second", "Forecaster with Second"])
    monkeypatch.setitem(STUDIES, "toy", Study(sentence="", rows=rows, datasets=("mylog",), paper={}))
    given, finished, num_killed = ("toy", {"mylog": {}}, {"mylog": Experiment()}, "5-6", 2), None, 0
    RandomVectors.fits.clear()
    with monkeypatch.context() as patch:
        killed_at_random(patch, 0.3)
        while finished is None:
            try:
                finished = run_study(*given)
            except KeyboardInterrupt:
                num_killed += 1
    assert num_killed >= 2
    fits = sorted(RandomVectors.fits)
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    empty_database(tmp_path / "store" / "mlflow.db")
    ingest_own(tmp_path)
    RandomVectors.fits.clear()
    once = run_study(*given)
    assert fits == sorted(RandomVectors.fits)  # no trial ran twice
    assert all(own.frame.equals(other.frame) for own, other in zip(finished.tables, once.tables, strict=True))
    assert finished.files == once.files


def test_rows_compared_with_others_are_measured_anew(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("flows.tasks.tracking.benchmarks.draw", lambda *given: None)  # plots of every benchmark
    rows = ["L3", "Adamic-Adar", "Shortest path"]
    for other in rows[1:]:
        study = Study(sentence="", rows=dict.fromkeys(rows), datasets=("mylog",), paper={}, compared={"L3": other})
        monkeypatch.setitem(STUDIES, "toy", study)
        tables = run_study("toy", {"mylog": {}}, {"mylog": Experiment()}, "5-6").tables
        assert tables
        for table in tables:
            check_differences(table, study.compared)


def test_an_unknown_experiment_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match="links, steps"):
        study_of("link")


def test_titles_of_the_rows_are_known_methods():
    for study in STUDIES.values():
        assert list(resolved(study.methods)) == study.methods
        for protocol in map(protocol_of, study.protocols):
            assert check_kinds(resolved(study.methods), protocol)


def test_a_change_beside_which_a_search_chose_another_value_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch):
    folder = store / "chosen"
    folder.mkdir(exist_ok=True)
    (folder / "uci.json").write_text('{"DyFormer": {"settings": {"model.width": 32}}}')
    monkeypatch.setattr("dyformer.experiments.tuning.grids.FOLDER", folder)
    for name in ("links", "cost"):
        STUDIES[name].check_changes(["model.width", "model.num_heads"])
        STUDIES[name].check_changes(["model.num_heads"], "uci")
        with pytest.raises(NoEffect, match=r"model\.width has no effect"):
            STUDIES[name].check_changes(["model.width"], "uci")


def test_an_error_of_a_trials_process_keeps_its_class_and_message(monkeypatch: pytest.MonkeyPatch):
    trial = trial_of("paper")
    monkeypatch.setattr(flows.trials, "run_trial", lambda trial: wanted_steps("x"))
    with pytest.raises(StepOutOfRange) as raised:
        flows.trials._run(trial)
    future: Future = Future()
    future.set_exception(pickle.loads(pickle.dumps(raised.value)))
    pool = SimpleNamespace(submit=lambda run, trial: future, shutdown=lambda cancel_futures: None)
    monkeypatch.setattr(flows.trials, "ProcessPoolExecutor", lambda *given, **options: pool)
    with pytest.raises(StepOutOfRange, match="'x' is not a list of steps"):
        list(finished([trial], 2))


def test_a_trial_of_an_earlier_run_is_recognized(store: Path):
    experiment = Experiment().changed({"graph.max_distance": 4})
    address = make_snapshots("mylog", 1)
    trial = trial_of("paper", "L3", address)._replace(experiment=experiment)
    assert [ended.was_stored for _ in range(2) for ended in finished([trial], 1)] == [False, True]


def refuse(*given: Any, **named: Any) -> str:
    raise AssertionError("a task in a process without a server")


def test_workers_of_a_cluster_run_trials_without_tasks(store: Path, monkeypatch: pytest.MonkeyPatch):
    sent = []

    def done_on(address: str, layout: Layout, jobs: list[Callable[[], bool]]) -> Iterator[tuple[int, bool]]:
        sent.append((address, layout.root, len(jobs)))
        for number in reversed(range(len(jobs))):
            yield number, pickle.loads(pickle.dumps(jobs[number]))()

    address = make_snapshots("mylog", 1)
    of_two = Experiment().changed({**SMALL, "graph.max_distance": 3})
    trials = [
        trial._replace(experiment=of_two, protocol=protocol)
        for protocol in ("paper", "prequential")
        for trial in (trial_of("paper", "Adamic-Adar", address), trial_of("paper", "DyFormer", address))
    ]
    with monkeypatch.context() as without_server:
        without_server.setattr("flows.cluster.done_on", done_on)
        without_server.setenv("DYFORMER_RAY_ADDRESS", "head:6379")
        for name in ("draw_task", "evaluate_task", "train_task"):
            without_server.setattr(flows.trials, name, refuse)
            without_server.setattr(flows.stages, name, refuse)
        for was_stored in (False, True):
            ended = list(finished(trials, 1))
            assert [each.trial for each in ended] == trials[::-1]
            assert {each.was_stored for each in ended} == {was_stored}
    assert sent == [("head:6379", str(store / "store"), 4)] * 2
    assert all(each.was_stored for each in finished(trials, 1))  # what the command then finds


def test_the_command_has_the_trials_of_a_benchmark_on_the_cluster(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def command(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ending:
            flows.cli.main(["benchmark", "mylog", "--steps", "4", "--on", "head:6379", *arguments])
        return int(ending.value.code or 0)

    sent = []
    monkeypatch.setenv("DYFORMER_RAY_ADDRESS", "")  # the option sets it
    monkeypatch.setattr("flows.commands.benchmark.announced", nullcontext)
    monkeypatch.setattr(
        "flows.cluster.done_on", lambda address, layout, jobs: (sent.extend(jobs), enumerate(job() for job in jobs))[1]
    )
    assert command("--methods", "adamic-adar,edgebank-last", "--seeds", "2") == 0
    printed = capsys.readouterr().out
    assert "trials of the benchmark paper: 2, on the cluster at head:6379" in printed
    assert "EdgeBank (last)" in printed
    assert [sorted(job.args[0].methods) for job in sent] == [["Adamic-Adar", "EdgeBank (last)"]] * 2
    assert command("--parallel", "2", "--experiment", "towers") == 2
    assert 'write --on "" where DYFORMER_RAY_ADDRESS is set' in " ".join(capsys.readouterr().err.split())


def test_a_benchmark_of_a_deployment_has_its_trials_on_the_cluster(store: Path, monkeypatch: pytest.MonkeyPatch):
    sent = []
    monkeypatch.setenv("DYFORMER_RAY_ADDRESS", "head:6379")
    monkeypatch.setattr(
        "flows.cluster.done_on", lambda address, layout, jobs: (sent.extend(jobs), enumerate(job() for job in jobs))[1]
    )
    monkeypatch.setattr(flows.trials, "evaluate_task", refuse)  # a worker reaches no server
    with pytest.raises(AssertionError, match="without a server"):  # after the workers have evaluated
        flows.benchmark.benchmark("mylog", None, "4", 2, methods=["L3"])
    assert [(job.args[0].seed, list(job.args[0].methods)) for job in sent] == [(0, ["L3"]), (1, ["L3"])]


@pytest.mark.parametrize(
    ("address", "study", "protocol", "num_started"),
    [
        ("head:6379", None, "paper", 1),
        ("head:6379", "links", "paper", 0),  # whose trials have run
        (None, None, "paper", 0),
        (None, None, "cost", 1),  # which measures its process
        (None, "cost", "cost", 0),
    ],
)
def test_a_benchmark_starts_trials_for_a_cluster_or_where_its_process_is_measured(
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str | None,
    study: str | None,
    protocol: str,
    num_started: int,
):
    started = []
    if address is not None:
        monkeypatch.setenv("DYFORMER_RAY_ADDRESS", address)
    monkeypatch.setattr(flows.benchmark, "run_trials", lambda *given: started.append(given))
    monkeypatch.setattr(flows.benchmark, "results", lambda *given: [])
    monkeypatch.setattr(flows.benchmark, "metrics_task", refuse)
    with pytest.raises(AssertionError):
        flows.benchmark.benchmark("mylog", None, "4", 1, None, ["DyFormer"], study, protocol)
    assert len(started) == num_started


def test_a_trial_has_the_settings_of_its_protocol(store: Path):
    protocol = protocol_of("tgb").changed({"visible": "batch:200"})
    methods = resolved(["pair_recency"], protocol.methods)
    [trial] = trials_of(protocol, methods, make_snapshots("mylog", 1), None, 1, Experiment())
    assert trial.evaluated.given == protocol.given == {"visible": "batch:200"}


def test_a_step_that_is_named_twice_is_evaluated_once():
    assert wanted_steps("5,3-5") == [3, 4, 5]


def test_a_cap_on_epochs_and_changed_settings_are_in_the_titles_of_a_benchmark(monkeypatch: pytest.MonkeyPatch):
    experiment = experiment_from(with_cap(["finetune.epochs=9"], 4))
    assert [experiment.max_epochs, experiment.finetune.epochs, experiment.capped.finetune.epochs] == [4, 9, 4]
    assert with_cap(None, None) == []
    opened = SimpleNamespace(dataset="mylog")
    table = PrintedTable("AUC", pl.DataFrame(), [])
    monkeypatch.setattr("dyformer.experiments.tables.printed_tables", lambda *given: {"scores": table})
    monkeypatch.setattr("flows.tasks.snapshots.open_snapshots", lambda address: opened)
    monkeypatch.setattr(flows.trials, "searched_steps", lambda *given: None)
    rows = pl.DataFrame({"step": ["3"]})
    capped = "AUC; cap on epochs of every trained method: 4; changed: finetune.epochs=9"
    unpretrained = Experiment().changed({"pretrain": "none", "graph.max_distance": 3})
    changed = "AUC; changed: graph.max_distance=3, pretrain=none"
    for own, title in ((experiment, capped), (unpretrained, changed), (Experiment(), "AUC")):
        assert tables_of(protocol_of("paper"), "", rows, own, [])[0].title == title
    tgb = protocol_of("tgb").changed({"visible": "batch:200"})  # its own title has it
    assert tables_of(tgb, "", rows, Experiment(), [])[0].title == "AUC"


def test_costs_are_measured_one_at_a_time_each_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pools = []

    class Pool:
        def __init__(self, num: int, **options: Any) -> None:
            pools.append({**options, "num": num})

        def submit(self, run: Any, trial: Trial) -> Future:
            future: Future = Future()
            future.set_result(False)
            return future

        def shutdown(self, cancel_futures: bool) -> None: ...

    monkeypatch.setattr(flows.trials, "ProcessPoolExecutor", Pool)
    monkeypatch.setenv("DYFORMER_RAY_ADDRESS", "head:6379")  # of no use to them
    trials = [trial_of("cost", name) for name in ("DySAT", "node2vec")]
    assert sorted(ended.trial.names for ended in finished(trials, 1)) == ["DySAT", "node2vec"]
    run_trials("costs", trials)
    assert "trials of costs: 2, 1 at once" in capsys.readouterr().out
    monkeypatch.delenv("DYFORMER_RAY_ADDRESS")
    list(finished([trials[0]._replace(protocol="paper")], 4))
    assert [(pool["num"], pool["max_tasks_per_child"]) for pool in pools] == [(1, 1), (1, 1), (4, None)]
    ran = []
    monkeypatch.setattr(flows.trials, "run_trial", SimpleNamespace(fn=lambda trial: ran.append(trial) or []))
    flows.trials._run(trials[0])
    assert ran == [trials[0]]  # without a flow, which would start a server of this process


def test_peak_memory_is_that_of_the_process():
    before = peak_gigabytes()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e9
    assert before >= resident
    size = int((before - resident + 0.2) * 1e9 / 8)
    np.ones(size)  # freed at once
    assert before + 0.15 < peak_gigabytes() < before + 0.4


def test_a_trial_runs_on_one_thread_and_its_process_prints_no_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    threads = []
    monkeypatch.setattr(flows.trials, "results", lambda *given, **named: threads.append(torch.get_num_threads()) or [])
    torch.set_num_threads(2)
    try:
        flows.trials.run_trial(trial_of("paper"))
    finally:
        torch.set_num_threads(1)
    assert threads == [1]
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.delenv(QUIET, raising=False)
    assert list(tracked([1, 2], "jobs")) == [1, 2]
    assert "jobs: 2" in capsys.readouterr().out
    monkeypatch.setattr("flows.trials.threading.Thread", Mock())
    monkeypatch.setenv(QUIET, "")  # so that it is taken away at the end
    monkeypatch.delenv(QUIET)
    monkeypatch.setattr(flows.trials, "PROTOCOLS", {})
    flows.trials._settle({"own": "own_module:OBJECT"})
    assert flows.trials.PROTOCOLS == {"own": "own_module:OBJECT"}
    assert list(tracked([1, 2], "jobs")) == [1, 2]
    with ongoing("jobs"):
        pass
    assert capsys.readouterr().out == ""


def test_dyformer_is_trained_with_the_settings_that_a_search_chose(store: Path, monkeypatch: pytest.MonkeyPatch):
    folder = store / "chosen"
    folder.mkdir(exist_ok=True)
    (folder / "uci.json").write_text('{"DyFormer": {"settings": {"model.width": 32}}}')
    monkeypatch.setattr("dyformer.experiments.tuning.grids.FOLDER", folder)
    widths = []

    def no_training(snapshots, untils, experiment, seed, known, train):
        widths.append((experiment.model.width, experiment.graph.noise_seed))
        raise StopIteration

    monkeypatch.setattr(flows.trials, "trained", no_training)
    log = SimpleNamespace(num_steps=5, graph=lambda until: toy_graph(*[[(0, 1)]] * until))
    monkeypatch.setattr(flows.trials, "open_snapshots", lambda address: log)
    noisy = Experiment().changed({"graph.noise": 0.2})
    for searched, seed, experiment in (("uci", 0, Experiment()), (None, 0, Experiment()), ("uci", 2, noisy)):
        for name in ("paper", "prequential", "labels"):
            monkeypatch.setattr(flows.trials, "draw_task", lambda *given: "")
            methods = configured(resolved(["DyFormer"]), dataset=searched)
            with pytest.raises((StopIteration, RuntimeError)):
                results("", protocol_of(name), [((5,), seed)], methods, experiment)
    assert widths == [(32, 0)] * 3 + [(128, 0)] * 3 + [(32, 2)] * 3


def test_the_windows_steps_and_graphs_decide_whether_the_papers_values_are_beside_ours(monkeypatch: pytest.MonkeyPatch):
    usual = str(DATASETS["uci"].window)
    steps_of = {None: [12, 13], "12-13": [12, 13], "13": [13]}
    without_last = {None: [11, 12]}
    for dataset, window, steps, changes, numbers, is_papers in (
        ("uci", usual, None, [], steps_of, True),
        ("uci", usual, "12-13", ["finetune.epochs=3"], steps_of, True),
        ("uci", usual, "13", [], steps_of, False),
        ("uci", "2d", None, [], steps_of, False),
        ("uci", usual, None, [], without_last, False),
        ("uci", usual, None, ["graph.noise=0.1"], steps_of, False),
        ("mylog", usual, None, [], steps_of, False),
    ):
        monkeypatch.setattr(
            flows.commands.studies, "units_of", lambda snapshots, protocol, wanted=None, known=numbers: known[wanted]
        )
        opened = SimpleNamespace(dataset=dataset, window=window)
        for module in (flows.commands.studies, flows.trials):
            monkeypatch.setattr(module, "open_snapshots", lambda address, found=opened: found)
        setup = setup_of(STUDIES["layers"], "", steps, Experiment(), changes)
        assert (setup.is_papers, setup.window) == (is_papers, window)


def test_runs_with_other_settings_differ_in_name_and_parameters(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("flows.tasks.tracking.benchmarks.draw", lambda *given: None)
    for epochs in (None, 1):
        chosen = {} if epochs is None else {"max_epochs": epochs}
        flows.benchmark.benchmark("mylog", {}, "3", 1, Experiment().changed(chosen), ["DySAT", "L3"])
    names = [f"{title}, mylog v1 step 3{changes}, seed 0" for title in ("DySAT", "L3") for changes in CAPS]
    table = compare_runs(open_tracker(Layout.from_environment()), names[:2])
    differing = {name: texts for kind, name, *texts in table.rows() if kind == "setting"}
    assert differing == {"epochs": ["None", "1"]}
    assert all(compare_runs(open_tracker(Layout.from_environment()), names[2:])["kind"] == "metric")


def test_a_cap_that_changes_no_score_has_runs_of_its_own(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("flows.tasks.tracking.benchmarks.draw", lambda *given: None)
    for experiment in (Experiment(), Experiment(max_epochs=5)):
        flows.benchmark.benchmark("mylog", None, "4", 1, experiment, ["node2vec"])  # which has one epoch
    names = [f"node2vec, mylog v1 step 4{changes}, seed 0" for changes in ("", ", max_epochs=5")]
    assert compare_runs(open_tracker(Layout.from_environment()), names).width == 4  # kind, name and two runs


def test_a_run_with_many_changes_has_them_in_its_tag_and_not_in_its_name(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("flows.tasks.tracking.benchmarks.draw", lambda *given: None)
    many = {"graph.max_distance": 4, "graph.history_window": 2, "graph.noise": 0.1, "graph.noise_seed": 7}
    flows.benchmark.benchmark("mylog", None, "3", 1, Experiment().changed(many), ["L3"])
    tracker = open_tracker(Layout.from_environment())
    own = tracker.client().get_experiment_by_name(experiment_name("mylog"))
    assert own is not None
    found = tracker.client().search_runs([own.experiment_id], "tags.changed_settings LIKE '%graph.noise_seed=7%'")
    name = "mylog v1 step 3, changed settings"
    assert {run.info.run_name for run in found} == {f"L3, {name}, seed 0", f"comparison of methods, {name}"}
    [comparison] = [run for run in found if run.data.tags["method"] == "all"]
    assert re.search(r"^\| L3 \| \d", comparison.data.tags["mlflow.note.content"], re.MULTILINE)


def test_a_change_that_some_row_reads_is_taken():
    for name, changed in (
        ("pretraining", "model.width"),
        ("layers", "finetune.epochs"),
        ("labels", "graph.history_window"),
        ("cost", "model.width"),
        ("noise", "max_epochs"),
    ):
        STUDIES[name].check_changes([changed])


@pytest.mark.parametrize("name", ["paper", "prequential", "forecasts", "live-update", "labels"])
def test_a_change_that_no_method_reads_is_refused_without_the_command_too(name: str, store: Path):
    experiment = Experiment().changed({"model.width": 64})
    steps = {"live-update": None, "labels": "4", "forecasts": "5"}.get(name, "3")
    dataset, method = ("labelled", "Activity so far") if name == "labels" else ("mylog", "L3")
    with pytest.raises(NoEffect, match=r"model\.width has no effect"):
        flows.benchmark.benchmark(dataset, None, steps, 1, experiment, [method], protocol=name)


def test_a_change_beside_which_a_search_chose_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch):
    folder = store / "chosen"
    folder.mkdir(exist_ok=True)
    (folder / "mylog.json").write_text('{"DyFormer": {"settings": {"model.width": 32}}}')
    monkeypatch.setattr("dyformer.experiments.tuning.grids.FOLDER", folder)
    monkeypatch.setattr("flows.trials.searched_dataset", lambda opened, step: "mylog")
    with pytest.raises(NoEffect, match=r"model\.width has no effect"):
        flows.benchmark.benchmark("mylog", None, "3", 1, Experiment().changed({"model.width": 64}), ["DyFormer"])


def test_the_title_of_a_plot_states_steps_and_cap(monkeypatch: pytest.MonkeyPatch):
    figure = Figure()
    figure.add_subplot().set_title("all links", loc="left")
    monkeypatch.setitem(flows.commands.studies.DRAWN, "comparison", lambda rows, **given: figure)
    about = {"dataset": "uci", "protocol": "paper", "method": "L3", "seed": 0, "slice": "all", "metric": "auc"}
    rows = [dict.fromkeys(METRICS_SCHEMA) | about | {"step": step, "value": 0.9} for step in ("3", "4", "macro")]
    setup = Setup(experiment=Experiment(max_epochs=3))
    plots("links", STUDIES["links"], pl.DataFrame(rows, METRICS_SCHEMA), "uci", setup)
    first, second = figure.axes[0].get_title(loc="left").splitlines()
    assert first == "all links"
    assert second == "2 steps from 3 to 4; cap on epochs of every trained method: 3"
