"""prefect.yaml is validated before anything is sent, and deploying it twice changes nothing."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.utilities.asyncutils import run_coro_as_sync
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from flows.service.dead_runs import runs_where
from flows.service.deployments import (
    ENDING,
    JOB_TEMPLATE,
    NOT_RUNNING,
    Schedule,
    deploy,
    file_of_deployments,
    read_deployments,
)

HOSTILE = {
    "command": "touch /tmp/hostile",
    "env": {"PATH": "/hostile"},
    "env.LD_PRELOAD": "/hostile.so",
    "working_dir": "/hostile",
    "name": "hostile",
    "labels": {"hostile": "yes"},
    "stream_output": False,
}
POOLS = ("dyformer-cpu", "dyformer-gpu")

SENT = ("description", "entrypoint", "parameters", "tags", "work_pool_name", "work_queue_name", "pull_steps", "path")


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], object]], Path]:
    """Write a copy of the file with a change of its content."""

    def write(change: Callable[[dict[str, Any]], object]) -> Path:
        content = yaml.safe_load(file_of_deployments().read_text())
        change(content)
        path = tmp_path / "prefect.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


def first(content: dict[str, Any]) -> dict[str, Any]:
    return content["deployments"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: first(content).update(concurency_limit=1), "deployment 'any', concurency_limit: Extra"),
        (lambda content: first(content)["concurrency_limit"].update(limits=1), "concurrency_limit, limits: Extra"),
        (lambda content: content.update(deployment=[]), "deployment: Extra"),
        (lambda content: first(content).pop("pull"), "deployment 'any', pull: Field required"),
        (lambda content: first(content).update(pull=None), "deployment 'any', pull"),
        (
            lambda content: first(content).update(entrypoint="flows/retrain.py:retrain"),
            "entrypoint: String should match",
        ),
        (
            lambda content: first(content).update(schedules=[{"slug": "a", "cron": "61 * * * *"}]),
            "schedules, 0, .*cron",
        ),
        (lambda content: first(content).update(schedules=[{"slug": "a"}]), "either `cron` or `interval`"),
        (lambda content: first(content).update(entrypoint="flows.retrain.retrian"), "flows.retrain.retrian is no flow"),
        (lambda content: first(content).update(entrypoint="flows.retrian.retrain"), "no module flows.retrian"),
        (lambda content: first(content).update(parameters={"datset": "uci"}), "has no parameter datset"),
        (lambda content: content["deployments"].append(first(content)), "names retrain/any twice"),
    ],
)
def test_a_wrong_file_is_refused_by_name(
    change: Callable[[dict[str, Any]], object], message: str, changed: Callable[..., Path]
) -> None:
    with pytest.raises(ValueError, match=message):
        read_deployments(changed(change))


@pytest.mark.parametrize("content", [b"deployments: [", b"\xff\xfe", b"[" * 5_000, b"name: 2024-99-99"])
def test_a_file_that_is_no_yaml_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.yaml").write_bytes(content)
    with pytest.raises(ValueError, match="is no YAML"):
        read_deployments(tmp_path / "file.yaml")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing\.yaml cannot be read \(No such file"):
        read_deployments(tmp_path / "missing.yaml")


def deployed() -> dict[str, Any]:
    """Give what the server has, without its own counters and times."""
    with get_client(sync_client=True) as client:
        pools = [client.read_work_pool(name) for name in POOLS]
        queues = [client.read_work_queue_by_name("train", name) for name in POOLS]
        automations = client.read_automations_by_name(ENDING)
        found = {
            f"{deployment.entrypoint}/{deployment.name}": (
                {name: getattr(deployment, name) for name in SENT},
                deployment.id,
                deployment.global_concurrency_limit and deployment.global_concurrency_limit.limit,
                deployment.concurrency_options,
                [(schedule.slug, schedule.schedule, schedule.active) for schedule in deployment.schedules],
            )
            for deployment in client.read_deployments(limit=200)
            if deployment.work_pool_name in POOLS
        }
    return {
        **found,
        "pools": [(pool.id, pool.type, pool.concurrency_limit, pool.is_paused) for pool in pools],
        "queues": [(queue.id, queue.concurrency_limit, queue.is_paused) for queue in queues],
        "automations": [each.model_dump(exclude={"created", "updated"}) for each in automations],
    }


def remove_deployed() -> None:
    """Remove what other tests have deployed to the server that they share."""
    with get_client(sync_client=True) as client:
        for deployment in client.read_deployments(limit=200):
            if deployment.work_pool_name in POOLS:
                client.delete_deployment(deployment.id)
        for automation in client.read_automations_by_name(ENDING):
            client.delete_automation(automation.id)
        for name in POOLS:
            with suppress(ObjectNotFound):
                client.delete_work_pool(name)


def test_deploying_twice_changes_nothing_and_leaves_what_a_user_set(server: str) -> None:
    given = read_deployments(file_of_deployments())
    wanted = [each for each in given if each.work_pool.name == POOLS[0]]
    remove_deployed()
    *lines, last = deploy(given)
    assert all(line.endswith(("made", "at a time")) for line in lines)
    assert last == "3 deployments for a GPU: --gpu sends them"
    before = deployed()
    assert [limit for _, limit, _ in before["queues"]] == [1, 1]
    [automation] = before["automations"]
    assert automation["trigger"]["within"].total_seconds() == 90
    assert {f"prefect.flow-run.{name}" for name in NOT_RUNNING} <= automation["trigger"]["expect"]
    assert [action["state"].name for action in automation["actions"]] == ["CRASHED"]
    *again, last = deploy(given)
    assert all(line.endswith(("as it was", "up to date")) for line in again)
    assert deployed() == before
    sent = {deployment.full_name for deployment in wanted}
    assert len(sent) == len(before) - 3 == len(wanted)
    with get_client(sync_client=True) as client:
        client.update_work_queue(before["queues"][1][0], concurrency_limit=2)
    lines = deploy(given, gpu=True)
    assert [line for line in lines if line.endswith(" made")] == [
        f"deployment {flow}/any-gpu: made" for flow in ("retrain", "train", "benchmark")
    ]
    assert [limit for _, limit, _ in deployed()["queues"]] == [1, 2]
    assert sum("any-gpu: up to date" in line for line in deploy(given)) == 3  # those that there are, without --gpu, too


def test_the_forms_describe_all_parameters_and_take_no_value_out_of_range(server: str) -> None:
    given = read_deployments(file_of_deployments())
    deploy(given)
    with get_client(sync_client=True) as client:
        for name in {each.full_name for each in given if each.work_pool.name == POOLS[0]}:
            schema = client.read_deployment_by_name(name).parameter_openapi_schema
            assert schema is not None
            missing = [name for name, described in schema["properties"].items() if not described["description"]]
            assert missing == []
        for name, parameters in (
            ("retrain/any", {"dataset": "mylog", "seed": -1}),
            ("retrain/any", {"dataset": "mylog", "seed": 2**32}),
            ("benchmark/any", {"dataset": "mylog", "seeds": 0}),
            ("reconcile/any", {"keep": 1}),
        ):
            number = client.read_deployment_by_name(name).id
            with pytest.raises(PrefectHTTPStatusError, match=r"minimum|maximum"):
                client.create_flow_run_from_deployment(number, parameters=parameters)


def test_a_schedule_that_the_file_has_no_more_is_removed_with_its_runs(server: str) -> None:
    [own] = [each for each in read_deployments(file_of_deployments()) if each.full_name == "reconcile/any"]
    each_minute = Schedule(slug="always", interval=timedelta(minutes=1))
    with get_client(sync_client=True) as client:
        deploy([own.model_copy(update={"schedules": [each_minute]})])
        number = client.read_deployment_by_name(own.full_name).id
        client.request("POST", "/deployments/{id}/schedule", path_params={"id": number}, json={"min_runs": 3})
        runs = {run.id for run in runs_where(client, deployment_id={"any_": [number]})}
        assert len(runs) >= 3
        deploy([own])
        assert client.read_deployment_by_name(own.full_name).schedules == []
        # Prefect's scheduler may write one more of the removed schedule, which it read before.
        assert not runs & {run.id for run in runs_where(client, deployment_id={"any_": [number]})}


def test_an_automation_that_two_deployments_make_at_once_is_one(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_deployed()
    with get_client(sync_client=True) as client:
        own, delete = type(client).create_automation, type(client).delete_automation
        with monkeypatch.context() as patch:
            wanted: list[Any] = []
            patch.setattr(
                type(client), "create_automation", lambda *given: [own(*given), wanted.append(given), own(*given)]
            )
            # The other deployment deletes the second one just before this one does.
            patch.setattr(type(client), "delete_automation", lambda *given: [delete(*given), delete(*given)][0])
            deploy(read_deployments(file_of_deployments()))
        assert len(client.read_automations_by_name(ENDING)) == 1
        own(client, wanted[0][1])  # as a deployment that was killed has left it
        deploy(read_deployments(file_of_deployments()))
        assert len(client.read_automations_by_name(ENDING)) == 1


def configuration(template: dict[str, Any], values: dict[str, Any]) -> ProcessJobConfiguration:
    """The process that a worker starts for a run with these job variables."""
    return run_coro_as_sync(ProcessJobConfiguration.from_template_and_values(template, values))  # pyright: ignore


def test_nothing_that_a_run_brings_reaches_its_process(server: str) -> None:
    usual = configuration(JOB_TEMPLATE, {})
    assert (usual.command, usual.env, usual.working_dir, usual.stream_output) == (None, {}, None, True)
    assert configuration(JOB_TEMPLATE, HOSTILE) == usual
    open_one = configuration(ProcessWorker.get_default_base_job_template(), HOSTILE)
    assert open_one.command == HOSTILE["command"]  # Prefect's own template, which is why there is another one
    assert open_one.env == {"PATH": "/hostile", "LD_PRELOAD": "/hostile.so"}


def test_a_pool_with_another_template_is_corrected_and_refuses_runs_with_values(server: str) -> None:
    deploy(read_deployments(file_of_deployments()))
    with get_client(sync_client=True) as client:
        template = ProcessWorker.get_default_base_job_template()
        client.update_work_pool(POOLS[0], WorkPoolUpdate(base_job_template=template))
        lines = deploy(read_deployments(file_of_deployments()))
        assert [line for line in lines if "corrected" in line] == [
            f"work pool {POOLS[0]}: corrected, because its runs could choose what their processes execute"
        ]
        assert [client.read_work_pool(name).base_job_template for name in POOLS] == [JOB_TEMPLATE] * 2
        deployment = client.read_deployment_by_name("retrain/any")
        for name, value in HOSTILE.items():
            with pytest.raises(PrefectHTTPStatusError, match="422"):
                client.create_flow_run_from_deployment(
                    deployment.id, parameters={"dataset": "no"}, job_variables={name: value}
                )
        run = client.create_flow_run_from_deployment(deployment.id, parameters={"dataset": "no"})
        client.delete_flow_run(run.id)
