"""A user's own method is one file and one entry of METHODS or one option, evaluated like the others."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from matplotlib.figure import Figure
from toy_walks import Walks

import dyformer.experiments.plots
import flows.cli
from dyformer.evaluation.fitting import FORECASTER_WITH
from dyformer.evaluation.protocols import PROTOCOLS
from dyformer.experiments.methods import METHODS, MethodFailed

TOY, OWN, BASELINE = "Toy node2vec", "Walks", "EdgeBank (last)"
pytestmark = pytest.mark.usefixtures("few_trees", "short_generated_log")

ROWS = {TOY, FORECASTER_WITH + TOY, OWN, FORECASTER_WITH + OWN, BASELINE}


@pytest.fixture(scope="module")
def benchmark(
    server: str, empty_database: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """One benchmark with a new entry of METHODS, a class by its address, and one baseline."""
    folder, plots = tmp_path_factory.mktemp("own"), {}
    empty_database(folder / "store" / "mlflow.db")

    def recorded(name: str) -> Any:
        draw = getattr(dyformer.experiments.plots, name)

        def drawn(*arguments: Any, **options: Any) -> Figure:
            plot = draw(*arguments, **options)
            plots.setdefault(name, plot)
            return plot

        return drawn

    with patch.dict(os.environ, {"DYFORMER_STORAGE": str(folder / "store")}), pytest.MonkeyPatch.context() as monkey:
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        monkey.setitem(METHODS, TOY, Walks(width=4))
        monkey.setattr("dyformer.experiments.titles.known_titles", lambda: list(METHODS))  # else read from the source
        for name in ("step_curve", "comparison_chart"):
            monkey.setattr(dyformer.experiments.plots, name, recorded(name))
        arguments = ["--methods", "toy_node2vec,edgebank_last", "--method", "toy_walks:Walks"]
        with pytest.raises(SystemExit) as ending:
            flows.cli.main(
                ["benchmark", "generated", "--steps", "5-6", *arguments, "--json", str(folder / "benchmark.json")]
            )
        assert not ending.value.code
        yield {"rows": json.loads((folder / "benchmark.json").read_text()), "plots": plots, "folder": folder}


def test_own_methods_have_their_rows_in_the_table(benchmark: dict[str, Any]):
    rows = [row for row in benchmark["rows"] if row["metric"] == "auc" and row["slice"] == "all"]
    assert {row["method"] for row in rows} == ROWS
    for method in ROWS:
        assert [row["step"] for row in rows if row["method"] == method] == [5, 6, "micro", "macro"]
    macro = {row["method"]: row["value"] for row in rows if row["step"] == "macro"}
    assert macro[TOY] > 0.6
    assert macro[TOY] != macro[OWN]


def test_own_methods_have_their_runs_in_mlflow(benchmark: dict[str, Any]):
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{benchmark['folder'] / 'store' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("dyformer-generated")
    assert experiment is not None
    runs = {run.data.tags["method"]: run for run in client.search_runs([experiment.experiment_id])}
    names = {method: f"{method}, generated v1 steps 5-6, seed 0" for method in ROWS}
    names["all"] = "comparison of methods, generated v1 steps 5-6"
    assert {method: run.info.run_name for method, run in runs.items()} == names
    rows = [row for row in benchmark["rows"] if row["metric"] == "auc" and row["slice"] == "all"]
    macro = {row["method"]: row["value"] for row in rows if row["step"] == "macro"}
    for method in ROWS:
        assert runs[method].data.metrics["test/macro_auc"] == pytest.approx(macro[method])


def test_own_methods_are_in_the_plots(benchmark: dict[str, Any]):
    curve, chart = (benchmark["plots"][name].axes[0] for name in ("step_curve", "comparison_chart"))
    assert {text.get_text() for text in curve.get_legend().get_texts()} == ROWS
    assert {text.get_text() for text in chart.get_yticklabels()} == ROWS


def test_scores_of_an_own_method_are_made_again_only_when_it_changes(
    benchmark: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    from posed import evaluate_methods

    from flows.tasks.snapshots import make_snapshots

    snapshots = make_snapshots("generated")
    first = evaluate_methods(snapshots, ["toy_walks:Walks"], 5)
    changed = evaluate_methods(snapshots, [TOY], 5)
    with patch.object(Walks, "fit", side_effect=AssertionError("fitted again")):
        assert evaluate_methods(snapshots, ["toy_walks:Walks"], 5) == first
        monkeypatch.setitem(METHODS, TOY, Walks(width=5))
        with pytest.raises(MethodFailed, match="Toy node2vec, step 5: AssertionError: fitted again"):
            evaluate_methods(snapshots, [TOY], 5)
    assert first != changed


BROKEN = """
class Broken:
    def fit(self, graph, *, seed):
        return {}["missing"]
"""


def test_a_command_names_the_method_that_fails_and_its_step_in_one_line(
    benchmark: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "broken_method.py"
    file.write_text(BROKEN)
    with pytest.raises(SystemExit) as ending:
        flows.cli.main(["benchmark", "generated", "--steps", "6", "--methods", "broken_method:Broken"])
    assert ending.value.code == 1
    line = f"dyformer: Broken, step 6: KeyError: 'missing' ({file}, line 4)"
    assert line in capsys.readouterr().err.splitlines()


def test_a_command_takes_a_protocol_of_ones_own(benchmark: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(PROTOCOLS, "toy", "")
    monkeypatch.delitem(PROTOCOLS, "toy")  # so that it is as before at the end
    file = benchmark["folder"] / "toy.json"
    arguments = ["--protocol", "toy_protocol:PROTOCOL", "--methods", "edgebank_last", "--json", str(file)]
    with pytest.raises(SystemExit) as ending:
        flows.cli.main(["benchmark", "generated", "--steps", "5-6", *arguments])
    assert not ending.value.code
    rows = json.loads(file.read_text())
    assert {(row["protocol"], row["method"], row["step"]) for row in rows} == {
        ("toy", "EdgeBank (last)", step) for step in (5, 6, "macro")
    }
