"""The commands of the service: servers, deployments, schedules."""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dyformer.logs.counts import counted
from flows.console import ongoing, print_frame, print_json, printable
from flows.ending import FAILED
from flows.options import AsJson, AsOf, Changes, Seed, experiment_from, of_cluster, optional, with_reading
from flows.tasks.reading_options import on_command_line


def _port_option(server: str, usual: int) -> object:
    text = f"port of {server} (by default {usual}, or a free one if that is taken)"
    return optional(text, min=1, max=65_535)


def up(
    prefect_port: Annotated[int | None, _port_option("Prefect", 4200)] = None,
    mlflow_port: Annotated[int | None, _port_option("MLflow", 5000)] = None,
    workers: Annotated[int, typer.Option(help="number of workers", min=1, max=16)] = 1,
) -> None:
    """Start Prefect, MLflow, the deployments and a worker on this machine, until Ctrl-C; they listen to it alone."""
    from flows.service.stack import Ports, run_stack
    from storage.layout import Layout

    layout = Layout.from_environment()
    run_stack(layout, Ports(prefect=prefect_port, mlflow=mlflow_port), workers, _print)


def ui(port: Annotated[int | None, _port_option("MLflow", 5000)] = None) -> None:
    """Start MLflow's pages of this store's runs on this machine, until Ctrl-C; `up` starts them, too."""
    from flows.service.stack import run_pages
    from storage.layout import Layout

    run_pages(Layout.from_environment(), port, _print)


def login() -> None:
    """Print the login of the servers of `dyformer up` or `dyformer ui`, which a browser requires once."""
    from flows.service.running import ADDRESSES, MLFLOW, PREFECT, running_login
    from storage.layout import Layout

    login = running_login(Layout.from_environment())
    user, password = (login[name] for name in MLFLOW)
    if PREFECT in login:
        print(f"Prefect  {login[ADDRESSES['prefect']].removesuffix('/api')}  {login[PREFECT]}")
    print(f"MLflow   {login[ADDRESSES['mlflow']]}  user {user}, password {password}")


def deploy(
    file: Annotated[
        Path | None, optional("deployments (by default those of the package)", "--file", dir_okay=False)
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="those for workers with a GPU as well")] = False,
) -> None:
    """Send work pools, queues and deployments to the configured Prefect server; a second time changes nothing."""
    from flows.service.deployments import file_of_deployments, read_deployments

    deployments = read_deployments(file_of_deployments() if file is None else file)
    _print(f"deploying to {configured_server()}")
    from flows.service.deployments import deploy as send

    for line in send(deployments, gpu=gpu):
        _print(line)


def _check_action(
    actions: Mapping[str, bool], options: Mapping[str, Any], reading: Mapping[str, Any], *, as_json: bool
) -> None:
    """Raise BadParameter unless one action is given, and for options that have no effect beside it."""
    chosen = [name for name, is_given in actions.items() if is_given]
    if len(chosen) != 1:
        raise typer.BadParameter("give one of --cron or --interval, --list, --remove, --pause, --resume")
    [action] = chosen
    more = ["--json"] if as_json and action != "--list" else []
    if action not in ("--cron", "--interval"):
        more += [name for name, value in options.items() if value]
        more += [on_command_line(f"`{name}`") for name in reading]
    if more:
        raise typer.BadParameter(f"without effect beside {action}: leave out {' and '.join(more)}")


@with_reading
def schedule(  # noqa: PLR0913, because each option is an argument
    reading: dict[str, Any],
    dataset: Annotated[
        str | None, typer.Argument(metavar="DATASET", help="what to retrain", show_default=False)
    ] = None,
    cron: Annotated[str | None, optional('when, such as "0 3 * * *"')] = None,
    interval: Annotated[str | None, optional("how often, such as 6h or 7d")] = None,
    timezone: Annotated[str | None, optional("of the cron line, such as Europe/Berlin (by default UTC)")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="list all schedules, or that of DATASET")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="remove the schedule")] = False,
    pause: Annotated[bool, typer.Option("--pause", help="pause the schedule")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="resume a paused schedule")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="train where a worker has a GPU")] = False,
    as_of: AsOf = None,
    changes: Changes = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Retrain a dataset by itself on the configured Prefect server; needs no file and no new image.

    A run that is due while the one before it still runs does nothing: it ends as Cancelled, with the reason.
    """
    _check_action(
        {
            "--list": list_all,
            "--remove": remove,
            "--pause": pause,
            "--resume": resume,
            "--cron" if interval is None else "--interval": cron is not None or interval is not None,
        },
        {"--timezone": timezone, "--gpu": gpu, "--as-of": as_of, "--set": changes, "--seed": seed},
        reading,
        as_json=as_json,
    )
    if dataset is None and not list_all:
        raise typer.BadParameter("name the dataset: dyformer schedule DATASET ...")
    from flows.service import schedules
    from flows.tasks.reading import known_form

    server = configured_server()
    if list_all or dataset is None:
        import polars as pl

        rows = schedules.schedules(dataset)
        written = [
            row | {"parameters": "; ".join(map(" ".join, schedules.options_of(row["parameters"]).items()))}
            for row in rows
        ]
        print_json(rows) if as_json else print_frame(pl.DataFrame(written), f"schedules on {server}")
    elif remove:
        schedules.remove_schedule(dataset)
        _print(f"{dataset} has no schedule any more")
    elif pause or resume:
        schedules.set_active(dataset, is_active=resume)
        _print(f"the schedule of {dataset} is {'active' if resume else 'paused'}")
    else:
        when = schedules.schedule_of(cron, interval, timezone)
        experiment_from(changes).check_interactions()  # a wrong setting is refused here, not at night
        values = dict(change.split("=", 1) for change in changes or [])
        missing = schedules.check_logs(dataset, reading)
        with ongoing("make the schedule", to_errors=True):
            name, changed = schedules.replace_schedule(dataset, when, reading, values, seed, as_of=as_of, gpu=gpu)
        _print(f"{dataset} is retrained by itself: deployment {name} on {server}")
        notes = [
            f"{path} is not on this machine: each run fails where its worker does not find it either"
            for path in missing
        ]
        for line in [*changed, *notes, *known_form(dataset, reading)]:
            _print(line)


def track(
    again: Annotated[
        bool, typer.Option("--again", help="send all results of the store, as to an empty MLflow")
    ] = False,
) -> None:
    """Send the results that MLflow lacks; the exit code is 1 if some cannot be sent. Each run does so, too.

    The runs of a store that was moved or copied get the addresses of its files, too.
    """
    from flows.tasks.tracking.projection import project
    from storage.layout import Layout
    from storage.tracking.marks import due
    from storage.tracking.mlflow_client import follow_store

    layout, problems = Layout.from_environment(), list[str]()
    if layout.tracking_uri == layout.tracking_database:
        try:
            follow_store(layout)
        except sqlite3.Error as error:  # such as of a database that may not be written
            problems = [f"the addresses of the store's files: {error}"]
    done = project(layout, again=again, whole=True)
    problems += done.problems
    for problem in problems:
        _print(f"not sent: {problem}")
    num_waiting = len(due(layout))
    waiting = f"{num_waiting:,} {'waits' if num_waiting == 1 else 'wait'}"
    _print(f"{counted(len(done.sent), 'result')} sent to MLflow, {waiting}")
    if problems:
        raise typer.Exit(FAILED)


def doctor(
    on: Annotated[str | None, of_cluster("head of a Ray cluster whose nodes are checked, too")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at versions, store, disk, MLflow, GPU, servers and Ray; the exit code is 1 if something is wrong."""
    import polars as pl

    from flows.service.doctor import findings

    with ongoing("look at the installation", to_errors=True):
        rows = [finding._asdict() for finding in findings(on)]
    print_json(rows) if as_json else print_frame(pl.DataFrame(rows))
    if any(finding["outcome"] == "wrong" for finding in rows):
        raise typer.Exit(FAILED)


def configured_server() -> str:
    """Describe the server of PREFECT_API_URL, or of the running stack; raises ServerUnreachable if there is none."""
    from prefect.settings import PREFECT_API_URL

    from flows.service.running import LOCK, is_held
    from flows.service.server import ServerUnreachable, server_in_use
    from storage.layout import Layout

    if not PREFECT_API_URL.value():
        layout = Layout.from_environment()
        if is_held(Path(layout.service) / LOCK):
            raise ServerUnreachable(f"`dyformer up` starts for {layout.root}: wait until it prints that it is ready")
        raise ServerUnreachable("no Prefect server is configured: run `dyformer up`, or set PREFECT_API_URL")
    return server_in_use()


def _print(text: str) -> None:
    print(printable(text), flush=True)
