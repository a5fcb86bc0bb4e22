"""A schedule is a deployment of its own with its parameters: listed, paused, resumed, replaced and removed."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from filelock import FileLock
from own_log import READING, own_log
from prefect.client.orchestration import get_client
from prefect.client.schemas.schedules import CronSchedule
from prefect.states import Completed, Pending, Scheduled

import flows.cli
import flows.console
from flows.service.deployments import deploy, file_of_deployments, read_deployments
from flows.service.running import LOCK
from flows.service.schedules import BadSchedule, _when, absolute_logs, check_logs, make_schedule, schedule_of
from flows.tasks.ingest import ingest_log
from storage.events.declarations import declare
from storage.layout import Layout

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(server: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command against the session's server; returns the exit code and what it printed."""
    monkeypatch.setenv("PREFECT_API_URL", server)

    def command(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("flows.console._PRINTED", flows.console._Printed())  # as in a process of its own
        with pytest.raises(SystemExit) as ending:
            flows.cli.main(["schedule", *arguments])
        printed = capfd.readouterr()
        return int(ending.value.code or 0), printed.out + printed.err

    return command


def test_a_schedule_of_ones_own_log_is_made_paused_resumed_replaced_and_removed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    deploy(read_deployments(file_of_deployments())[:1])
    options = ("--cron", "0 3 * * *", "--timezone", "Europe/Berlin", "--log", "incoming/", "--window", "7d")
    code, printed = run("mine", *options, "--set", "model.num_layers=2", "--seed", "3", "--as-of", "now")
    assert (code, "deployment retrain/mine-schedule" in printed) == (0, True), printed
    with get_client(sync_client=True) as client:
        made = client.read_deployment_by_name("retrain/mine-schedule")
    assert made.parameters == {
        "dataset": "mine",
        "reading": {"log": [str(tmp_path / "incoming")], "window": "7d"},
        "changes": {"model.num_layers": "2"},
        "seed": 3,
        "as_of": "now",
    }
    assert (made.entrypoint, made.pull_steps, made.path) == ("flows.retrain.retrain", [], None)
    assert made.concurrency_options is not None
    assert made.concurrency_options.collision_strategy.value == "CANCEL_NEW"
    assert made.global_concurrency_limit is not None
    assert made.global_concurrency_limit.limit == 1

    def listed() -> list[dict[str, object]]:
        code, printed = run("--list", "--json")
        assert code == 0, printed
        return json.loads(printed)

    [row] = listed()
    assert (row["dataset"], row["schedule"], row["active"]) == ("mine", "0 3 * * * (Europe/Berlin)", True)
    assert row["parameters"] == {name: value for name, value in made.parameters.items() if name != "dataset"}
    assert f"log {tmp_path / 'incoming'}; window 7d; seed 3; as-of now; set model.num_layers 2" in run("--list")[1]
    assert run("mine", "--pause") == (0, "the schedule of mine is paused\n")
    assert [row["active"] for row in listed()] == [False]
    assert run("mine", "--resume")[0] == 0
    assert [row["active"] for row in listed()] == [True]
    assert run("mine", "--interval", "6h")[0] == 0
    assert [(row["schedule"], "seed" in str(row["parameters"])) for row in listed()] == [("every 6h (UTC)", False)]
    assert run("mine", "--remove")[0] == 0
    assert listed() == []
    code, printed = run("mine", "--remove")
    assert (code, "mine has no schedule" in printed) == (1, True)


def test_the_list_of_one_dataset_has_its_schedule_alone(run: Run) -> None:
    deploy(read_deployments(file_of_deployments())[:1])
    for name in ("one", "two"):
        assert run(name, "--interval", "6h")[0] == 0
    assert [row["dataset"] for row in json.loads(run("--list", "one", "--json")[1])] == ["one"]
    code, printed = run("--list", "three")
    assert (code, "three has no schedule" in printed) == (1, True)
    for name in ("one", "two"):
        assert run(name, "--remove")[0] == 0


def test_a_schedule_that_replaces_another_names_each_option_that_differs(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    deploy(read_deployments(file_of_deployments())[:1])
    first = ("--interval", "6h", "--log", "incoming/", "--window", "7d", "--set", "model.num_layers=2", "--seed", "3")
    assert "replaces an earlier" not in run("replaced", *first)[1]
    assert "replaces an earlier" not in run("replaced", *first)[1]
    run("replaced", "--pause")
    code, printed = run("replaced", "--interval", "4h", "--set", "model.num_layers=2", "--set", "finetune.epochs=2")
    run("replaced", "--remove")
    lines = printed.splitlines()
    assert code == 0
    assert "known dataset" not in printed
    assert lines[lines.index(next(line for line in lines if "replaces an earlier schedule" in line)) + 1 :] == [
        "  when: every 6h (UTC) before, now every 4h (UTC)",
        "  paused: yes before, now no",
        f"  log: {tmp_path / 'incoming'} before, now not given",
        "  window: 7d before, now not given",
        "  seed: 3 before, now not given",
        "  set finetune.epochs: not given before, now 2",
    ]


@pytest.mark.parametrize(("options", "expected"), [((), ("dyformer-cpu", False)), (("--gpu",), ("dyformer-gpu", True))])
def test_a_schedule_trains_where_a_worker_has_a_gpu_if_that_is_wanted(
    run: Run, options: tuple[str, ...], expected: tuple[str, bool]
) -> None:
    deploy(read_deployments(file_of_deployments())[:2])
    assert run("fast", "--interval", "6h", *options)[0] == 0
    with get_client(sync_client=True) as client:
        made = client.read_deployment_by_name("retrain/fast-schedule")
    assert (made.work_pool_name, "gpu" in made.tags) == expected
    assert made.work_queue_name == "train"
    assert run("fast", "--remove")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [("mine",), ("mine", "--list", "--remove"), ("--cron", "0 3 * * *"), ("mine", "--pause", "--interval", "6h")],
)
def test_a_command_without_one_clear_wish_is_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments)[0] == 2


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("mine", "--remove", "--set", "model.num_layers=2"), "beside --remove: leave out --set"),
        (("mine", "--pause", "--gpu", "--seed", "3"), "beside --pause: leave out --gpu and --seed"),
        (("mine", "--resume", "--timezone", "Europe/Berlin"), "beside --resume: leave out --timezone"),
        (("mine", "--resume", "--as-of", "now"), "beside --resume: leave out --as-of"),
        (("mine", "--remove", "--log", "in/", "--max-bad", "5%"), "beside --remove: leave out --log and --max-bad"),
        (("mine", "--pause", "--json"), "beside --pause: leave out --json"),
        (("mine", "--interval", "6h", "--json"), "beside --interval: leave out --json"),
        (("--list", "--window", "7d"), "beside --list: leave out --window"),
    ],
)
def test_options_without_effect_are_refused(run: Run, arguments: tuple[str, ...], wrong: str) -> None:
    code, printed = run(*arguments)
    assert (code, f"without effect {wrong}" in " ".join(printed.replace("│", " ").split())) == (2, True), printed


def test_a_misspelt_setting_is_refused_before_anything_is_sent(run: Run) -> None:
    code, printed = run("other", "--interval", "6h", "--set", "model.num_layer=2")
    assert (code, "model.num_layer" in printed) == (1, True)
    assert run("--list", "--json") == (0, "[]\n")


@pytest.mark.parametrize(
    ("cron", "interval", "zone"),
    [
        ("61 * * * *", None, None),
        (None, "6", None),
        (None, "0h", None),
        (None, "30s", None),
        (None, "521w", None),
        (None, "999999999999w", None),
        (None, "9" * 5000 + "w", None),
        ("0 3 * * *", None, "Mars"),
    ],
)
def test_a_time_that_is_none_is_refused(cron: str | None, interval: str | None, zone: str | None) -> None:
    with pytest.raises(BadSchedule):
        schedule_of(cron, interval, zone)


@pytest.mark.parametrize("name", ["my data", "a/b", "-a", ""])
def test_a_name_that_the_store_cannot_have_is_refused(run: Run, name: str) -> None:
    with pytest.raises(BadSchedule, match="beginning with a letter or a digit"):
        make_schedule(name, schedule_of(None, "6h"), {}, {}, 0)
    code, printed = run("--interval", "6h", "--", name)
    assert code == 1
    assert f"dataset {name!r} cannot have a schedule" in printed


def test_windows_that_new_rows_move_are_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    code, printed = run("grown", "--interval", "6h", "--log", "incoming/")
    assert (code, "grown: the window '12 equal' divides the whole log" in printed) == (1, True), printed
    assert "--window 7d" in printed
    ingest_log("grown", {"log": [str(own_log(tmp_path / "log.csv"))], **READING}, show=lambda text: None)
    assert run("grown", "--interval", "6h")[0] == 1
    assert run("--list", "--json") == (0, "[]\n")
    for options in (["--window", "7d"], ["--finished"], ["--log", "incoming/", "--window", "calendar 1mo"]):
        assert run("grown", "--interval", "6h", *options)[0] == 0
    assert run("uci", "--interval", "6h", "--log", "out.ucsocial")[0] == 0
    for options in ([], ["--log", "rds.txt"], ["--window", "12 equal time"]):  # its own windows are a number, too
        assert run("rds", "--interval", "6h", *options)[0] == 1
    declare(Layout.from_environment(), "ended", {"window": "12 equal", "finished": True})
    assert run("ended", "--interval", "6h")[0] == 0
    for dataset in ("grown", "uci", "ended"):
        assert run(dataset, "--remove")[0] == 0


def test_a_clock_of_a_schedule_is_now_and_needs_times(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    options = ("clock", "--interval", "6h", "--window", "7d")
    code, printed = run(*options, "--as-of", "nwo")
    assert (code, "'nwo': expected \"now\"" in printed) == (1, True), printed
    code, printed = run(*options, "--as-of", "now", "--time-unit", "step")
    assert (code, "no clock" in printed) == (1, True), printed
    assert run("--list", "--json") == (0, "[]\n")


def test_a_run_that_is_due_while_the_one_before_runs_is_cancelled_by_the_server(run: Run) -> None:
    deploy(read_deployments(file_of_deployments())[:1])
    name = make_schedule("overtaken", schedule_of("0 3 1 * *", None), {}, {}, 0)
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name(name).id
        before = client.create_flow_run_from_deployment(deployment)
        assert client.set_flow_run_state(before.id, Pending()).status.value == "ACCEPT"
        taken = client.create_flow_run_from_deployment(deployment)  # by a worker, because its queue has a free slot
        client.set_flow_run_state(taken.id, Pending())
        due = datetime.now(UTC) - timedelta(seconds=15)  # from then on the server takes a run for late
        waiting = client.create_flow_run_from_deployment(deployment, state=Scheduled(scheduled_time=due))
        until = time.monotonic() + 60
        while client.read_flow_run(waiting.id).state_name == "Scheduled":
            assert time.monotonic() < until
            time.sleep(0.2)
        states = [client.read_flow_run(each.id).state for each in (taken, waiting)]
        client.set_flow_run_state(before.id, Completed(), force=True)
    assert [state and (state.name, state.message) for state in states] == [
        ("Cancelled", "Deployment concurrency limit reached.")
    ] * 2
    [row] = json.loads(run("--list", "--json")[1])
    assert row["last run"] is None, "what was cancelled did not run"
    assert run("overtaken", "--remove")[0] == 0


def test_each_schedule_of_a_deployment_has_a_row(run: Run) -> None:
    deploy(read_deployments(file_of_deployments())[:1])
    make_schedule("twice", schedule_of("0 3 1 * *", None), {}, {}, 0)
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("retrain/twice-schedule")
        client.create_deployment_schedules(
            deployment.id, [(CronSchedule(cron="0 5 2 * *", timezone="Asia/Kolkata"), True)]
        )
        client.request("POST", "/deployments/{id}/schedule", path_params={"id": deployment.id}, json={"min_runs": 2})
        code, printed = run("--list", "--json")
        client.delete_deployment(deployment.id)
    assert code == 0
    rows = {row["schedule"]: row for row in json.loads(printed)}
    assert {row["dataset"] for row in rows.values()} == {"twice"}
    ends = {when.removesuffix(" (UTC)"): row["next run"][7:] for when, row in rows.items()}
    assert ends == {"0 3 1 * *": "-01 03:00 UTC", "0 5 2 * * (Asia/Kolkata)": "-01 23:30 UTC"}
    remaining = run("--list", "--json")
    assert remaining == (0, "[]\n")


def test_both_kinds_of_time_at_once_are_refused() -> None:
    with pytest.raises(BadSchedule, match="either `cron` or `interval`"):
        schedule_of("0 3 * * *", "6h")


def test_addresses_of_an_object_store_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reading = {"log": ["s3://bucket/logs/", "a.csv", "/abs/b.csv"], "window": "7d"}
    assert absolute_logs(reading)["log"] == ["s3://bucket/logs/", str(tmp_path / "a.csv"), "/abs/b.csv"]
    assert absolute_logs({"window": "7d"}) == {"window": "7d"}


def test_a_log_that_no_worker_could_find_is_refused_on_this_machine_and_named_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    (tmp_path / "incoming").mkdir()
    missing = {"log": ["incoming/*.csv", "nosuch/", "s3://bucket/nosuch/"]}
    assert check_logs("mine", missing) == [str(tmp_path / "nosuch")]
    stack = {"prefect": "http://127.0.0.1:4200/api"}
    monkeypatch.setattr("flows.service.schedules.running_stack", lambda layout: stack)
    with pytest.raises(BadSchedule, match=r"expected a file or a folder at .*nosuch, .*make the folder"):
        check_logs("mine", missing)
    assert check_logs("mine", {"log": ["incoming/*.csv"]}) == check_logs("uci", {}) == []
    with pytest.raises(BadSchedule, match=r"mine is no known dataset .* pass `log`, or .* \(ingested: none"):
        check_logs("mine", {"window": "7d"})
    stack["prefect"] = "http://127.0.0.1:4201/api"  # the schedule goes to another server, with other workers
    assert check_logs("mine", missing) == [str(tmp_path / "nosuch")]
    assert check_logs("mine", {}) == []


def test_a_command_without_a_server_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path))
    with temporary_settings(restore_defaults={PREFECT_API_URL}), pytest.raises(SystemExit) as ending:
        flows.cli.main(["schedule", "--list"])
    assert ending.value.code == 1
    assert "no Prefect server is configured: run `dyformer up`" in capfd.readouterr().err
    service = Path(Layout.from_environment().service)
    service.mkdir()
    with FileLock(service / LOCK), temporary_settings(restore_defaults={PREFECT_API_URL}), pytest.raises(SystemExit):
        flows.cli.main(["schedule", "--list"])
    assert f"`dyformer up` starts for {tmp_path}: wait until" in capfd.readouterr().err


def test_an_interval_is_written_as_it_is_read() -> None:
    for text in ("6h", "90m", "1d", "2w", "61s"):
        found = schedule_of(None, text, None)
        assert _when(found) == f"every {text}{f' ({found.timezone})' if found.timezone else ''}"
