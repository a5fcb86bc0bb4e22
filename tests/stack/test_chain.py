"""A file dropped under a watched S3 prefix becomes published forecasts, by the services of the compose file alone.

The files are dropped once, in order, and everything that a test looks at is read as it happens.
"""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import numpy as np
import pytest
from compose_stack import Stack, wait_until

from storage.champions import read_champion, tenure
from storage.layout import Layout
from storage.published import publications

pytestmark = pytest.mark.stack

BUCKET, DATASET = "incoming", "mylog"
SETTINGS = {
    "pretrain": "none",
    "finetune.epochs": 2,
    "finetune.batches_per_epoch": 2,
    "model.width": 16,
    "model.num_heads": 2,
    "model.num_layers": 1,
}
START = datetime(2024, 1, 1, tzinfo=UTC)
SECONDS_TO_PROMOTION = 120.0
SECONDS_OF_NOTHING = 5.0


def rows_of(days: range, seed: int, repeats: float) -> bytes:
    """Write a log of 60 users and 40 items in four groups; a fraction of the rows repeats one of the week before."""
    generator = np.random.default_rng(seed)
    rows: list[tuple[int, int]] = []
    lines = ["created_at,user,item"]
    for day in days:
        for number in range(40):
            if rows and generator.random() < repeats:
                user, item = rows[generator.integers(max(0, len(rows) - 280), len(rows))]
            else:
                group = generator.integers(4)
                user, item = int(generator.integers(15) * 4 + group), int(generator.integers(10) * 4 + group)
            rows.append((user, item))
            moment = START + timedelta(days=day, minutes=30 * number)
            lines.append(f"{moment.isoformat()},user-{user},item/{item}")
    return "\n".join(lines).encode() + b"\n"


def s3(stack: Stack) -> Any:
    own = stack.environment("worker-cpu")
    return boto3.client(
        "s3",
        aws_access_key_id=own["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=own["AWS_SECRET_ACCESS_KEY"],
        region_name=own["AWS_REGION"],
        endpoint_url=own["AWS_ENDPOINT_URL"],
    )


def champion(store: Layout, dataset: str = DATASET) -> dict[str, Any]:
    """Read the record of a champion; empty if there is none."""
    return read_champion(store, dataset)[0] or {}


def runs_of(stack: Stack, name: str) -> list[dict[str, Any]]:
    """Read the runs of a deployment that have begun, in their order."""
    deployment = stack.request(f"/deployments/name/{name}")
    found = stack.request("/flow_runs/filter", {"deployments": {"id": {"any_": [deployment["id"]]}}, "limit": 200})
    return sorted((run for run in found if run["start_time"]), key=lambda run: run["start_time"])


@dataclass
class Story:
    """What was there after each dropped file."""

    seconds: list[float] = field(default_factory=list)  # from each file to the end of its run
    champions: list[dict[str, Any]] = field(default_factory=list)
    num_steps: list[int] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="module")
def story(stack: Stack, store: Layout) -> Story:
    client, found = s3(stack), Story()
    client.create_bucket(Bucket=BUCKET)
    reading = ["--log", f"s3://{BUCKET}/{DATASET}/", "--source", "user", "--target", "item", "--time", "created_at"]
    settings = [text for name, value in SETTINGS.items() for text in ("--set", f"{name}={value}")]
    files = [rows_of(range(28), 1, 0.0), rows_of(range(28, 43), 2, 0.9), rows_of(range(43, 50), 3, 0.0)]
    for number, content in enumerate(files):
        client.put_object(Bucket=BUCKET, Key=f"{DATASET}/{number}.csv", Body=content)
        dropped = time.monotonic()
        if number == 0:
            options = ["--gpu", "--interval", "1m", *reading, "--window", "7d", *settings]
            made = stack.command("schedule", DATASET, *options)
            assert made.returncode == 0, made.stderr
        wait_until(lambda: len(publications(store, DATASET)) > number, 300, f"file {number} was not published")  # noqa: B023
        wait_until(
            lambda: "Running" not in [run["state_name"] for run in runs_of(stack, f"retrain/{DATASET}-schedule")],
            60,
            "the run goes on",
        )
        found.seconds.append(time.monotonic() - dropped)
        found.champions.append(champion(store))
        found.num_steps.append(publications(store, DATASET)["step"][-1])
    wait_until(lambda: runs_of(stack, f"retrain/{DATASET}-schedule")[-1]["state_name"] == "Completed", 90, "runs go on")
    stack.command("schedule", DATASET, "--pause")
    found.runs = runs_of(stack, f"retrain/{DATASET}-schedule")
    print(
        [round(each, 1) for each in found.seconds],
        [(each["title"], tenure(each)["number"]) for each in found.champions],
    )
    return found


def test_each_file_is_published_by_its_champion(story: Story) -> None:
    print(story)
