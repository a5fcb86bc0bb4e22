"""A file dropped under a watched S3 prefix becomes published forecasts, by the services of the compose file alone.

The files are dropped once, in order, and everything that a test looks at is read as it happens.
"""

import time
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import boto3
import psycopg2
import pytest
from compose_stack import Stack, ends, run_alone
from published import latest
from stack_processes import wait_until
from weekly_log import rows_of

from storage.artifacts.artifact import read_table
from storage.champions import publications, read_champion
from storage.layout import Layout

pytestmark = pytest.mark.stack

BUCKET, DATASET = "incoming", "mylog"
READING = ["--log", f"s3://{BUCKET}/{DATASET}/", "--source", "user", "--target", "item", "--time", "created_at"]
READING += ["--window", "7d"]
VALUES = {"pretrain": "none", "finetune.epochs": 2, "finetune.batches_per_epoch": 2, "model.width": 16}
VALUES |= {"model.num_heads": 2, "model.num_layers": 1}
SETTINGS = [text for name, value in VALUES.items() for text in ("--set", f"{name}={value}")]
FILES = [rows_of(range(28)), rows_of(range(28, 36)), rows_of(range(36, 43))]


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


def all_runs(stack: Stack, name: str) -> list[dict[str, Any]]:
    """Read the runs of a deployment."""
    deployment = stack.request(f"/deployments/name/{name}")
    return stack.request("/flow_runs/filter", {"deployments": {"id": {"any_": [deployment["id"]]}}, "limit": 200})


def runs_of(stack: Stack, name: str) -> list[dict[str, Any]]:
    """Read the runs of a deployment that have begun, in their order."""
    return sorted((run for run in all_runs(stack, name) if run["start_time"]), key=lambda run: run["start_time"])


def is_active(run: dict[str, Any]) -> bool:
    return run["state_type"] in ("PENDING", "RUNNING") or run["state_name"] == "Late"


@dataclass
class Story:
    """What was there after each dropped file."""

    seconds: list[float] = field(default_factory=list)  # from each file to the end of its run
    champions: list[dict[str, Any]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # that the newest publication forecasts
    runs: list[dict[str, Any]] = field(default_factory=list)  # that published


@pytest.fixture(scope="module")
def story(stack: Stack, store: Layout) -> Story:
    """Drop three files, one after the other; the first is of a new dataset with a schedule."""
    client, found, name = s3(stack), Story(), f"retrain/{DATASET}-schedule"
    client.create_bucket(Bucket=BUCKET)
    for number, content in enumerate(FILES):
        client.put_object(Bucket=BUCKET, Key=f"{DATASET}/{number}.csv", Body=content)
        dropped = time.monotonic()
        if number == 0:
            made = stack.command("schedule", DATASET, "--gpu", "--interval", "1m", *READING, *SETTINGS)
            assert made.returncode == 0, made.stderr
        wait_until(lambda: publications(store, DATASET).height == number + 1, 300, "nothing was published")  # noqa: B023
        run = next(run for run in reversed(runs_of(stack, name)) if run["state_type"] in ("RUNNING", "COMPLETED"))
        ends(stack, run["id"])
        found.seconds.append(time.monotonic() - dropped)
        found.champions.append(champion(store))
        found.steps.append(publications(store, DATASET)["step"][-1])
        found.runs.append(stack.request(f"/flow_runs/{run['id']}"))
        print(f"file {number}: {found.seconds[-1]:.0f} s", found.champions[-1]["title"], found.champions[-1]["reason"])
    paused = stack.command("schedule", DATASET, "--pause")
    assert paused.returncode == 0, paused.stderr
    # Beside such a run of a schedule another one is cancelled; one that is late begins at any moment.
    wait_until(lambda: not any(map(is_active, all_runs(stack, name))), 120, "a run goes on")
    return found


def test_each_file_is_published_once(story: Story) -> None:
    assert story.steps == [4, 6, 7]
    assert [run["run_count"] for run in story.runs] == [1, 1, 1]


def test_the_trainings_ran_on_the_pool_that_the_schedule_names(stack: Stack, story: Story) -> None:
    assert {run["work_pool_name"] for run in story.runs} == {"dyformer-gpu"}
    for run in story.runs:
        assert run["id"] in stack.log("worker-gpu").read_text()
        assert run["id"] not in stack.log("worker-cpu").read_text()


def test_what_a_run_prints_is_in_prefect_and_its_address_is_a_browsers(stack: Stack, story: Story) -> None:
    run = story.runs[-1]["id"]
    lines = stack.request("/logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200})
    texts = "\n".join(line["message"] for line in lines)
    assert "EdgeBank (last) publishes" in texts
    assert "the vectors are the challenger's, because EdgeBank (last) has none" in texts
    link = f"View at {stack.environment('worker-cpu')['PREFECT_UI_URL']}/runs/flow-run/{run}"
    assert link in stack.log("worker-gpu").read_text()


def test_a_worse_model_is_not_promoted(story: Story) -> None:
    before, after = story.champions[1:]
    assert after["identity"] == before["identity"]
    assert after["number"] == before["number"]
    outcomes = [outcome for key, outcome in after["tests"].items() if key not in before["tests"]]
    assert [outcome["promoted"] for outcome in outcomes] == [False]
    assert "does not lie above 0" in outcomes[0]["reason"]


def test_without_new_rows_a_run_publishes_nothing(stack: Stack, story: Story, store: Layout) -> None:
    before = publications(store, DATASET).height
    run = run_alone(stack, f"retrain/{DATASET}-schedule")
    print(f"nothing to do: {stack.request(f'/flow_runs/{run}')['total_run_time']:.1f} s")
    assert publications(store, DATASET).height == before


def test_the_forecasts_are_exported_to_postgres(stack: Stack, story: Story, store: Layout) -> None:
    own, port = stack.environment("postgres"), stack.port("postgres", 5432)
    login = {"host": "127.0.0.1", "port": port, "user": own["POSTGRES_USER"], "password": own["POSTGRES_PASSWORD"]}
    with closing(psycopg2.connect(dbname="postgres", **login)) as connection:
        connection.autocommit = True
        connection.cursor().execute("create database export")
    target = f"postgresql://{own['POSTGRES_USER']}@127.0.0.1:{port}/export"
    done = stack.command("export", DATASET, "--to", target, PGPASSWORD=own["POSTGRES_PASSWORD"])
    assert done.returncode == 0, done.stderr
    expected = read_table(latest(store, DATASET)["forecasts"], "forecasts").sort("side", "id", "rank")
    with closing(psycopg2.connect(dbname="export", **login)) as connection:
        cursor = connection.cursor()
        cursor.execute("select side, id, rank, partner_id, probability from dyformer_forecasts order by side, id, rank")
        rows = cursor.fetchall()
    names = ("side", "id", "rank", "partner_id", "probability")
    assert sorted(rows) == sorted(expected.select(names).rows())
    assert len(rows) > 100


def test_a_rollback_publishes_what_the_champion_before_had_published(stack: Stack, story: Story, store: Layout) -> None:
    first, second = story.champions[0], story.champions[1]
    assert (first["number"], second["number"]) == (1, 2)
    before = read_table(latest(store, DATASET)["forecasts"], "forecasts")
    done = stack.command("rollback", DATASET)
    assert done.returncode == 0, done.stderr
    record = champion(store)
    assert (record["identity"], record["number"]) == (first["identity"], 3)
    after = read_table(latest(store, DATASET)["forecasts"], "forecasts")
    assert after["step"].unique().to_list() == [story.steps[0]]
    assert not after.equals(before)


def test_three_trainings_of_two_datasets_wait_for_one_slot(stack: Stack, story: Story) -> None:
    log = Path(stack.environment("worker-cpu")["DYFORMER_LOGS"]) / "queued.csv"
    log.write_bytes(FILES[0])
    reading = {"log": [str(log)], "source": "user", "target": "item", "time": "created_at", "window": "7d"}
    wanted = [
        stack.run_of("retrain/any", {"dataset": "queued", "reading": reading, "changes": VALUES}),
        stack.run_of("train/any", {"dataset": DATASET, "changes": VALUES, "seed": 1}),
        stack.run_of("train/any", {"dataset": DATASET, "changes": VALUES, "seed": 2}),
    ]
    for run in wanted:
        ends(stack, run)
    found = sorted((stack.request(f"/flow_runs/{run}") for run in wanted), key=lambda run: run["start_time"])
    assert {run["work_queue_name"] for run in found} == {"train"}
    for earlier, later in pairwise(found):
        assert earlier["end_time"] <= later["start_time"]
