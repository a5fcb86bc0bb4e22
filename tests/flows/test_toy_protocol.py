"""A protocol of one file and one line stands in the command, the table, MLflow, the report and an experiment."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import toy_protocol
import typer
from own_snapshots import ingest_own
from prefect import Flow, Task

import flows.benchmark
import flows.commands.studies
import flows.stages
import flows.tasks.methods
import flows.trials
from dyformer.evaluation.protocols import PROTOCOLS, protocol_of
from dyformer.experiments.html_report import html_report
from dyformer.experiments.settings import Experiment
from dyformer.experiments.studies.studies import STUDIES, Study
from dyformer.experiments.titles import UnknownMethod
from flows.commands.benchmark import _print_studies, _run_protocol
from flows.commands.studies import run_study
from flows.options import known_protocol
from flows.tasks.evaluation.measure import read_metrics
from storage.layout import Layout
from storage.tracking.runs import experiment_name, open_tracker

pytestmark = pytest.mark.usefixtures("few_trees")

NAMES = ["l3,contact_recency"]


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory, empty_database: Callable[[Path], Path]) -> Iterator[Path]:
    """A store with a log, the protocol's one line, and flows and tasks as plain functions."""
    folder = tmp_path_factory.mktemp("toy")
    empty_database(folder / "store" / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYFORMER_STORAGE", str(folder / "store"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setitem(PROTOCOLS, "toy", "toy_protocol")
        patch.setattr("flows.commands.benchmark.announced", nullcontext)
        for module in (flows.benchmark, flows.stages, flows.commands.studies, flows.trials):
            for name, value in list(vars(module).items()):
                if isinstance(value, Flow | Task):
                    patch.setattr(module, name, value.fn)
        ingest_own(folder)
        yield folder


def command(
    changes: list[str] | None = None,
    methods: list[str] = NAMES,
    file: Path | None = None,
    protocol: str = "toy",
    out: Path | None = None,
) -> None:
    _run_protocol("mylog", {}, "5-6", 1, protocol, methods, None, changes, file, out)


def test_the_command_prints_its_table_and_mlflow_has_its_runs(store: Path, capsys: pytest.CaptureFixture[str]):
    command(file=store / "toy.json")
    printed = capsys.readouterr().out
    assert "mylog, toy protocol: " in printed
    assert "2 steps, 1 seed" in printed
    rows = json.loads((store / "toy.json").read_text())
    value = {row["method"]: row["value"] for row in rows if row["step"] == "macro"}
    assert set(value) == {"L3", "Contact recency"}
    assert all(f"{value[method]:.2f}" in printed for method in value)
    tracker = open_tracker(Layout.from_environment())
    own = tracker.client().get_experiment_by_name(experiment_name("mylog"))
    assert own is not None
    runs = tracker.client().search_runs([own.experiment_id], "tags.protocol = 'toy'")
    tracked = {run.data.tags["method"]: run.data.metrics.get("test/macro_above") for run in runs}
    assert tracked == {**value, "all": None}


def test_one_of_ones_own_is_named_by_its_module(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    command()
    expected = capsys.readouterr().out
    monkeypatch.delitem(PROTOCOLS, "toy")
    for _ in range(2):  # a second command of a process finds it there
        assert known_protocol("toy_protocol:PROTOCOL") == "toy"
    assert protocol_of("toy") is toy_protocol.PROTOCOL
    command()
    assert capsys.readouterr().out == expected
    monkeypatch.setattr(toy_protocol, "SECOND", replace(toy_protocol.PROTOCOL, name="second"), raising=False)
    assert known_protocol("toy_protocol:SECOND") == "second"
    second = protocol_of("second")
    del PROTOCOLS["second"]
    assert second is vars(toy_protocol)["SECOND"]


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("toy", "'toy' is not one of 'paper', .*, and none of your own, package.module:OBJECT"),
        ("toy_protocol:", "'toy_protocol:' is not the address of a protocol: expected package.module:OBJECT"),
        ("nowhere:PROTOCOL", "the module nowhere cannot be imported: No module named 'nowhere'"),
        ("toy_protocol:PROTOCOLS", "has no 'PROTOCOLS'"),
        ("toy_protocol:Known", "expected an object of the class Protocol, found type"),
        ("toy_protocol:RENAMED", "another protocol has the name 'paper'"),
    ],
)
def test_what_is_no_protocol_is_refused_by_name(address: str, problem: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(PROTOCOLS, "toy")
    monkeypatch.setattr(toy_protocol, "RENAMED", replace(toy_protocol.PROTOCOL, name="paper"), raising=False)
    with pytest.raises(typer.BadParameter, match=problem):
        known_protocol(address)
    assert "toy" not in PROTOCOLS
    assert protocol_of("paper") is not toy_protocol.PROTOCOL


def test_its_tables_are_files_in_markdown_and_latex(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    command(out=store / "new" / "tables")
    printed = capsys.readouterr().out
    assert f"wrote 2 files to {store / 'new' / 'tables'}" in printed
    files = {path.name: path.read_text() for path in (store / "new" / "tables").iterdir()}
    assert set(files) == {"toy-mylog-all.md", "toy-mylog-all.tex"}
    for method in ("L3", "Contact recency"):
        (value,) = re.findall(rf"^\| {method} \| ([\d.]+) \|$", files["toy-mylog-all.md"], re.MULTILINE)
        assert f"{method} & {value} \\\\\n" in files["toy-mylog-all.tex"]
        assert value in printed
    assert r"\label{tab:toy-mylog-all}" in files["toy-mylog-all.tex"]
    assert "footnotesize" not in files["toy-mylog-all.tex"]  # there is no sentence below it


def test_a_setting_of_it_is_a_setting_of_the_command(capsys: pytest.CaptureFixture[str]):
    command(["toy.mirrored=yes"])
    mirrored = capsys.readouterr().out
    command()
    assert mirrored != capsys.readouterr().out
    with pytest.raises(ValueError, match=r"toy\.mirrored: expected one of no, yes, got 'maybe'"):
        command(["toy.mirrored=maybe"])
    with pytest.raises(ValueError, match="has no setting 'mirored'; it has mirrored"):
        command(["toy.mirored=yes"])


def test_a_method_of_another_kind_is_refused():
    with pytest.raises(UnknownMethod, match="DyFormer: the toy protocol evaluates methods that score pairs"):
        command(methods=["l3,dyformer"])


def test_the_list_and_the_report_have_it(capsys: pytest.CaptureFixture[str]):
    _print_studies()
    listed = capsys.readouterr().out
    assert [name for name in PROTOCOLS if protocol_of(name).sentence not in listed] == []
    assert {"tgb", "toy"} < set(PROTOCOLS)
    made = flows.benchmark.benchmark("mylog", None, "5-6", 1, None, ["L3"], protocol="toy")
    page = html_report(read_metrics(made["metrics"]), "mylog", counts={})
    assert ">Links above random pairs</h2>" in page
    assert "mylog, toy protocol" in page


def test_an_experiment_of_it_has_tables_and_files(monkeypatch: pytest.MonkeyPatch):
    study = Study(
        sentence="", rows={"L3": None, "Contact recency": None}, datasets=("mylog",), protocols=("toy",), paper={}
    )
    monkeypatch.setitem(STUDIES, "toys", study)
    made = run_study("toys", {"mylog": {}}, {"mylog": Experiment()}, steps="5-6")
    assert set(made.files) == {f"toys-mylog-all.{ending}" for ending in ("md", "csv", "tex")}
    assert "| L3 | 1 |" in made.files["toys-mylog-all.md"].decode()


def test_a_finished_benchmark_measures_nothing_again(monkeypatch: pytest.MonkeyPatch):
    first = flows.benchmark.benchmark("mylog", None, "5-6", 1, None, ["L3"], protocol="toy")
    monkeypatch.setattr(toy_protocol, "pl", None)  # without which it draws, scores and measures nothing
    assert flows.benchmark.benchmark("mylog", None, "5-6", 1, None, ["L3"], protocol="toy") == first


def test_a_name_is_resolved_once(monkeypatch: pytest.MonkeyPatch):
    names, full = [], "flows.tasks.methods.full_title"
    honest = flows.tasks.methods.full_title
    monkeypatch.setattr(full, lambda name, titles: (names.append(name), honest(name, titles))[1])
    command(methods=["contact_rec,common"])
    assert names == ["contact_rec", "common"]
