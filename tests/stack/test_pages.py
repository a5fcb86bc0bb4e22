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
from browser import Browser, browser
from stack_processes import Up, called, command, running, wait_until

from storage.tracking.pages import runs_page

pytestmark = pytest.mark.stack

SMALL = {
    "pretrain": None,
    "finetune.epochs": 2,
    "finetune.batches_per_epoch": 4,
    "model.width": 16,
    "model.num_heads": 2,
    "model.num_layers": 1,
}
DATASET = "generated"
METHODS = ("EdgeBank (ever)", "L3", "Contact recency", "Forecaster without vectors", "DyFormer")


@dataclass(kw_only=True)
class Stack:
    """A stack with two finished retrainings, a benchmark, a schedule, a report and a browser."""

    up: Up
    tab: Browser
    report: Path
    retrainings: list[str]

    def mlflow(self, path: str, body: object) -> Any:
        return called(f"{self.up.record['mlflow']}/api/2.0/mlflow/{path}", body)

    def runs(self, condition: str) -> list[dict[str, Any]]:
        """Runs of the dataset, the newest first, with their tags and metrics as dictionaries."""
        found = self.mlflow("runs/search", {"experiment_ids": [self.experiment], "filter": condition})["runs"]
        for run in found:
            for kind in ("tags", "metrics"):
                run[kind] = {each["key"]: each["value"] for each in run["data"].get(kind, [])}
        return found

    @property
    def experiment(self) -> str:
        name = f"name = 'dyformer-{DATASET}'"
        (found,) = self.mlflow("experiments/search", {"max_results": 9, "filter": name})["experiments"]
        return found["experiment_id"]

    def picture(self, name: str, **size: int) -> None:
        folder = os.environ.get("DYFORMER_SCREENSHOTS")
        if folder:
            self.tab.picture(Path(folder) / f"{name}.png", **size)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("pages")
    store, report = folder / "store", folder / "report.html"
    with browser(folder / "profile") as tab, running(store) as up:
        settings = [text for name, value in SMALL.items() for text in ("--set", f"{name}={value}")]
        runs = [retrained(up, {**SMALL, "model.width": width}) for width in (16, 8)]
        methods = [text for method in METHODS for text in ("--method", method)]
        for arguments in (
            ("benchmark", DATASET, "--protocol", "prequential", "--steps", "11-12", *methods, *settings),
            ("schedule", DATASET, "--cron", "0 3 * * *", *settings),
            ("report", DATASET, "--out", str(report)),
        ):
            ended = command(store, *arguments)
            assert ended.returncode == 0, ended.stderr
        yield Stack(up=up, tab=tab, report=report, retrainings=runs)


def retrained(up: Up, changes: dict[str, Any]) -> str:
    """Retrain on the worker; returns the id of the run."""
    deployment = up.request(f"/deployments/name/retrain/{DATASET}")
    given = {"parameters": {"dataset": DATASET, "changes": changes}}
    run = up.request(f"/deployments/{deployment['id']}/create_flow_run", given)["id"]
    wait_until(
        lambda: up.request(f"/flow_runs/{run}")["state_name"] in ("Completed", "Failed", "Crashed"), 300, "no end"
    )
    assert up.request(f"/flow_runs/{run}")["state_name"] == "Completed"
    return run
