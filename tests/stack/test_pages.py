"""What a user looks for is on the pages of MLflow and Prefect, and in the report; the pictures of docs/ui.md.

The pictures are written to the folder DYFORMER_SCREENSHOTS, if it is set.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from browser import Browser
from logged_in import LoggedIn
from own_log import READING, own_log
from stack_processes import Up, command, wait_until

from flows.service.running import MLFLOW
from storage.tracking.pages import run_page, runs_page

pytestmark = pytest.mark.stack

SMALL = {
    "pretrain": None,
    "finetune.epochs": 2,
    "finetune.batches_per_epoch": 4,
    "model.width": 16,
    "model.num_heads": 2,
    "model.num_layers": 1,
}
DATASET = "mylog"
METHODS = ("EdgeBank (ever)", "L3", "Contact recency", "Forecaster without vectors", "DyFormer")

LINKS = "[...document.links].map(each => each.href)"
LOG_END = """[...document.querySelectorAll('*')].filter(each => each.scrollHeight > each.clientHeight)
    .forEach(each => each.scrollTop = each.scrollHeight)"""


@dataclass(kw_only=True)
class Stack:
    """A stack with two finished retrainings, a benchmark, a schedule, a report and a browser."""

    up: Up
    tab: Browser
    report: Path
    retrainings: list[str]

    def runs(self) -> list[dict[str, Any]]:
        """The finished retrainings in MLflow, the newest first, with their tags and metrics as dictionaries."""
        condition = "tags.stage = 'retrain' and tags.promoted LIKE '%'"
        found = self.up.tracked("runs/search", {"experiment_ids": [self.experiment], "filter": condition})["runs"]
        for run in found:
            for kind in ("tags", "metrics"):
                run[kind] = {each["key"]: each["value"] for each in run["data"].get(kind, [])}
        return found

    @property
    def experiment(self) -> str:
        name = f"name = 'dyformer-{DATASET}'"
        (found,) = self.up.tracked("experiments/search", {"max_results": 9, "filter": name})["experiments"]
        return found["experiment_id"]

    def picture(self, name: str, **options: Any) -> None:
        folder = os.environ.get("DYFORMER_SCREENSHOTS")
        if folder:
            self.tab.picture(Path(folder) / f"{name}.png", **options)


@pytest.fixture(scope="module")
def stack(logged_in: LoggedIn) -> Iterator[Stack]:
    up, folder = logged_in.up, logged_in.folder
    report, log = folder / "report.html", own_log(folder / "mylog.csv")
    options = (
        "--log",
        str(log),
        *(text for name, value in READING.items() for text in (f"--{name.replace('_', '-')}", value)),
    )
    with pytest.MonkeyPatch.context() as patch:
        settings = [text for name, value in SMALL.items() for text in ("--set", f"{name}={value}")]
        runs = [retrained(up, log, {**SMALL, "model.width": width}) for width in (16, 8)]
        methods = [text for method in METHODS for text in ("--method", method)]
        for arguments in (
            ("benchmark", DATASET, "--protocol", "prequential", "--steps", "11-12", *methods, *settings),
            ("schedule", DATASET, "--cron", "0 3 * * *", *options, "--window", "7d", *settings),
            ("report", DATASET, "--out", str(report)),
        ):
            ended = command(logged_in.store, *arguments)
            assert ended.returncode == 0, ended.stderr
        for name in MLFLOW:  # of this process, which looks for the address of a page
            patch.setenv(name, up.login[name])
        yield Stack(up=up, tab=logged_in.tab, report=report, retrainings=runs)


def retrained(up: Up, log: Path, changes: dict[str, Any]) -> str:
    """Retrain on the worker; returns the id of the run."""
    deployment = up.request("/deployments/name/retrain/any")
    given = {"parameters": {"dataset": DATASET, "reading": {**READING, "log": [str(log)]}, "changes": changes}}
    run = up.request(f"/deployments/{deployment['id']}/create_flow_run", given)["id"]
    wait_until(
        lambda: up.request(f"/flow_runs/{run}")["state_name"] in ("Completed", "Failed", "Crashed"), 600, "no end"
    )
    assert up.request(f"/flow_runs/{run}")["state_name"] == "Completed"
    return run


def test_mlflow_lists_the_runs_with_the_columns_that_matter_first(stack: Stack) -> None:
    stack.tab.size(1600, 800)
    newest, first = stack.runs()
    stack.tab.open(runs_page(stack.up.record["mlflow"]), newest["info"]["run_name"], "difference", "champion")
    assert newest["info"]["run_name"] == f"{DATASET} v1 step 12"
    heads = """[...document.querySelectorAll('.ag-header-cell')]
        .sort((one, other) => one.getBoundingClientRect().left - other.getBoundingClientRect().left)
        .map(each => each.innerText)"""
    assert stack.tab.run(heads)[1:] == [
        "Run Name",
        "Created",
        "promoted",
        "test/macro_mrr",
        "difference",
        "best_baseline",
        "champion",
        "test/macro_auc",
        "Duration",
    ]
    for run in (newest, first):
        digits = str(run["metrics"]["test/macro_mrr"])[:7]  # which the page does not round
        text = stack.tab.wait(run["tags"]["promoted"], run["tags"]["difference"], digits)
    assert re.search(r"\[[+-]0\.\d+, [+-]0\.\d+\]", first["tags"]["difference"])
    assert "promoted: whether the retraining made its method champion" in text
    stack.picture("mlflow-runs", width=1600, height=720)


def test_mlflows_charts_are_few_and_begin_with_our_methods(stack: Stack) -> None:
    stack.tab.size(1600, 1000)
    page = runs_page(stack.up.record["mlflow"])
    expected = ("promotion", "baseline/auc", f"{DATASET} v1 step 12", "Forecaster with DyFormer")  # the list comes last
    text = stack.tab.open(f"{page}&compareRunsMode=CHART", *expected)
    titles = [*re.findall(r"^(promotion|test|published|finetune|ours/mrr|baseline/mrr)$", text, re.MULTILINE)]
    assert titles == ["promotion", "test", "published", "finetune", "ours/mrr", "baseline/mrr"]
    numbers = [int(number) for number in re.findall(r"^\((\d+)\)$", text, re.MULTILINE)]
    assert 20 < sum(numbers) < 150
    lines = [line for line in text.splitlines() if f"{DATASET} v1 step" in line]
    assert [line.split(",")[0] for line in lines[1:4]] == [
        "Forecaster with DyFormer",
        "DyFormer",
        "Forecaster without vectors",
    ], text
    stack.picture("mlflow-charts", width=1600, height=900)


def test_a_run_begins_with_its_outcome_and_has_the_report(stack: Stack) -> None:
    stack.tab.size(1280, 1000)
    first = stack.runs()[-1]
    page = run_page(stack.up.record["mlflow"], first["info"]["run_id"], stack.experiment)
    assert page is not None
    reason = first["tags"]["promotion_reason"]
    text = stack.tab.open(page, "Description", reason, "best_baseline")
    assert "Evaluation runs" not in text  # as beside the traces of a language model
    assert text.index(" publishes") < text.index("Of ten forecasts") < text.index("Metric")
    stack.picture("mlflow-run", width=1280, height=760)
    artifacts = f"/#/experiments/{stack.experiment}/runs/{first['info']['run_id']}/artifacts"
    stack.tab.open(stack.up.record["mlflow"] + artifacts, "report.html", "metrics.csv", "drift.csv")


def test_two_runs_are_compared_side_by_side(stack: Stack) -> None:
    stack.tab.size(1280, 2400)
    ids = [run["info"]["run_id"] for run in stack.runs()]
    wanted = f"runs={quote(json.dumps(ids))}&experiments={quote(json.dumps([stack.experiment]))}"
    text = stack.tab.open(f"{stack.up.record['mlflow']}/#/compare-runs?{wanted}", "Comparing 2 Runs", "Run details")
    assert text.count(f"{DATASET} v1 step 12") >= 2
    text = stack.tab.wait("model.width", "baseline/auc/L3", "promotion_reason")
    assert re.search(r"^model.width\s+8\s+16$", text, re.MULTILINE)
    promoted = [str(run["tags"]["promoted"]) for run in stack.runs()]
    assert re.search(rf"^promoted\s+{promoted[0]}\s+{promoted[1]}$", text, re.MULTILINE)
    stack.picture("mlflow-compare", width=1280, height=900, around="promotion_reason")


def test_the_registered_model_has_description_metrics_alias_and_forecasts(stack: Stack) -> None:
    stack.tab.size(1280, 1400)
    model = f"{stack.up.record['mlflow']}/#/models/dyformer-{DATASET}"
    stack.tab.open(model, "Version 1", "Version 2", "champion")
    first = stack.runs()[-1]
    outcome, name = f"{first['tags']['champion']} publishes", f"{DATASET} v1 step 12"
    text = stack.tab.open(f"{model}/versions/1", outcome, "forecasts", "Source Run", name)
    assert "Of ten forecasts" in text
    assert "MRR difference" in text
    assert re.search(r"7_forecasts/\S*dataset=mylog", text)
    stack.picture("mlflow-model", width=1280, height=900)


def test_prefect_shows_the_deployments_and_the_schedule(stack: Stack) -> None:
    stack.tab.size(1280, 1000)
    address = stack.up.record["prefect"].removesuffix("/api")
    stack.tab.open(f"{address}/v2/deployments", "Deployments", "retrain", "Ready", "reconcile")
    stack.picture("prefect-deployments")
    deployment = stack.up.request(f"/deployments/name/retrain/{DATASET}-schedule")
    stack.tab.open(f"{address}/v2/deployments/deployment/{deployment['id']}", f"{DATASET}-schedule", "03:00 AM")
    stack.picture("prefect-schedule")


def test_prefect_shows_a_run_with_its_outcome_in_the_log_and_its_artifacts(stack: Stack) -> None:
    stack.tab.size(1280, 8000)  # the page renders only the lines of the log that fit, and the outcome is the last
    address = stack.up.record["prefect"].removesuffix("/api")
    first = stack.runs()[-1]
    outcome = f"{first['tags']['champion']} publishes"
    page = f"{address}/v2/runs/flow-run/{stack.retrainings[0]}"
    stack.tab.open(page, f"retrain {DATASET}", "Completed", outcome)
    stack.tab.size(1280, 1600)
    stack.tab.run(LOG_END)
    stack.tab.wait(outcome)
    stack.picture("prefect-run", height=1600)
    (summary,) = stack.up.request(
        "/artifacts/filter",
        {"artifacts": {"key": {"any_": [f"summary-{DATASET}"]}, "flow_run_id": {"any_": [stack.retrainings[0]]}}},
    )
    text = stack.tab.open(f"{address}/v2/artifacts/artifact/{summary['id']}", outcome, "The run in MLflow")
    assert text.index(outcome) < text.index("prequential protocol")
    stack.picture("prefect-summary", height=900)
    wanted = run_page(stack.up.record["mlflow"], first["info"]["run_id"], stack.experiment)
    wait_until(
        lambda: wanted in stack.tab.run(LINKS), 30, f"the page has no link to {wanted}"
    )  # the text is there first


def test_the_report_begins_with_the_outcome_and_requests_nothing(stack: Stack, tmp_path: Path) -> None:
    newest = stack.runs()[0]
    text = stack.tab.open(stack.report.as_uri(), "Ranking of the next links", "Most probable links")
    assert text.startswith(f"{DATASET} v1 step 12: report")
    assert newest["tags"]["promotion_reason"] not in text  # folded
    stack.tab.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    text = stack.tab.run("document.body.innerText")
    marks = (" publishes", "of ten forecasts come", newest["tags"]["promotion_reason"], "event table version")
    found = [text.index(part) for part in marks]
    assert found == sorted(found)
    for part in ("MRR difference", "Forecaster with DyFormer", "Drift of the log", "expected calibration error"):
        assert part in text
    assert stack.tab.run("[...document.images].every(each => each.naturalWidth > 0) && document.images.length") > 3
    outside = [address for address in stack.tab.requests if not address.startswith(("data:", stack.report.as_uri()))]
    assert outside == []
    other = tmp_path / "other.html"
    other.write_text('<img src="http://127.0.0.1:9/picture.png">a page')
    stack.tab.open(other.as_uri(), "a page")
    assert "http://127.0.0.1:9/picture.png" in stack.tab.requests  # as a request of the report would be
