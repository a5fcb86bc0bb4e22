"""The commands `run` and `retrain`: new rows of a log -> the report of its run, printed."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dyformer import InvalidInput
from flows.commands.temporary_server import is_temporary, use_temporary_server
from flows.console import counts_line, drift_line, plain_steps, print_report, printable, write_json
from flows.ending import NOTHING_TO_DO
from flows.service import TAG
from flows.service.environment import TEMPORARY, ServerUnreachable, server_in_use
from flows.tasks.reading_options import on_command_line

if TYPE_CHECKING:
    from dyformer.experiments.settings import Experiment


def print_plan(text: str) -> None:
    """Print a text that names arguments as options of the command."""
    print(printable(on_command_line(text)))


def finished_run(
    dataset: str,
    reading: dict[str, Any],
    experiment: "Experiment",
    seed: int,
    as_of: str | None,
    *,
    few: bool,
) -> tuple[str | None, float]:
    """Commit the new rows; return the earlier run's report, if nothing has changed for it, and the seconds taken.

    With `few`, a log with too few windows is committed all the same, and the command ends: there is nothing to do yet.
    It ends, too, where later windows than those as of `as_of` are complete.

    Raises:
        LaterWindows: such windows are complete, without `few`.
    """
    from dyformer.graphs.snapshots import FIRST_EVALUATED_STEP
    from flows.tasks.complete_windows import (
        LaterWindows,
        complete_snapshots,
        later_windows,
        make_complete_snapshots,
    )
    from flows.tasks.ingest import ingest_log
    from flows.tasks.snapshots import check_range

    started, newest = time.monotonic(), [FIRST_EVALUATED_STEP]
    enough = None if few else lambda num: check_range(dataset, newest, FIRST_EVALUATED_STEP, num)
    print_plan(counts_line(ingest_log(dataset, reading, print_plan, enough)))
    make = complete_snapshots if few else make_complete_snapshots
    address = make(dataset, as_of, show=print_plan)
    if address is None:
        raise typer.Exit(NOTHING_TO_DO)
    seconds = round(time.monotonic() - started, 2)
    from flows.tasks.finished import finished_report, unsent_alarm
    from flows.tasks.tracking.projection import project
    from storage.layout import Layout

    report = finished_report(address, experiment, seed)
    if report is not None:
        if drift := unsent_alarm(report):
            from flows.tasks.drift import send_again

            if became := send_again(address, drift["alarms"]):
                print_plan(drift_line(drift | {"alarm": became}))
        project(Layout.from_environment())  # as every run does that has new rows
    elif as_of is not None and (line := later_windows(address)):
        if few:
            print_plan(line)
            raise typer.Exit(NOTHING_TO_DO)
        raise LaterWindows(
            f"{line}: leave --as-of out; `dyformer benchmark {dataset} --protocol forecasts` evaluates those of earlier"
            f" steps, and `dyformer predict {dataset}` with this time writes the champion's, if it was not trained on"
            " later ones"
        )
    return report, seconds


def ingested(
    dataset: str,
    reading: dict[str, Any],
    check: Callable[[int], None] | None = None,
    write: Callable[[str], None] = print_plan,
) -> tuple[str, float]:
    """Commit the new rows of a log; return the address of its snapshots and the seconds it took."""
    from flows.tasks.ingest import ingest_log
    from flows.tasks.snapshots import make_snapshots

    started = time.monotonic()
    counts = ingest_log(dataset, reading, write, check)
    address = make_snapshots(dataset, counts["version"])
    write(counts_line(counts))
    return address, round(time.monotonic() - started, 2)


@contextmanager
def announced() -> Iterator[None]:
    """Print which server runs the flow, and tag its runs, by which they are found if this process dies.

    Prefect itself writes nothing, because the command prints the results. A second use in one process takes the same
    temporary server, or another one if that has ended.
    """
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    print(f"running on {TEMPORARY if is_temporary() else server_in_use()}", flush=True)
    use_temporary_server()
    from prefect import tags

    with tags(TAG), _lost_server_named():
        yield


LOST = frozenset([401, 403, *range(500, 600)])  # status codes of a server that has other logins, or that ends


@contextmanager
def _lost_server_named() -> Iterator[None]:
    """Name the error of a server that ended during the run, or that `dyformer up` has started again with other logins.

    Prefect's client repeats its calls for minutes before.
    """
    from httpx import HTTPStatusError, TransportError

    try:
        yield
    except (HTTPStatusError, TransportError) as error:
        if isinstance(error, HTTPStatusError) and error.response.status_code not in LOST:
            raise
        raise ServerUnreachable(
            f"the Prefect server was lost during the run ({str(error).partition(chr(10))[0]}): it ended,"
            " or was started again with another login; run the same command again, which repeats no finished step"
        ) from error


def retrained(
    dataset: str,
    reading: dict[str, Any],
    experiment: "Experiment",
    seed: int,
    as_of: str | None,
    *,
    from_scratch: bool = False,
) -> str:
    """Run the flow and return the address of the report."""
    with announced():
        from flows.retrain import retrain as flow

        report = flow(dataset, reading, experiment, seed, as_of, from_scratch)
    if report is None:
        raise InvalidInput(f"{dataset}: its windows were changed by another commit meanwhile: run it again")
    return report


def next_options(context: typer.Context) -> dict[str, Any]:
    """Return the options of a run that a later command must repeat (`--storage`, `--set`, `--seed`), and `--table`."""
    values = context.params
    options = [text for change in values["changes"] or [] for text in ("--set", change)]
    options += ["--seed", str(values["seed"])] if values["seed"] else []
    options += ["--as-of", values["as_of"]] if values["as_of"] else []
    return {"options": options, "storage": context.find_root().params["storage"], "whole": values["table"]}


def print_run(report: str, json_file: Path | None, ingest_seconds: float, next_options: dict[str, Any]) -> None:
    """Print the verdict and the scores of a run and the commands that may follow; write everything to the file."""
    from flows.tasks.report import read_report, verdict_of
    from flows.tasks.snapshots import open_snapshots
    from storage.events.declarations import declared_record

    metrics, summary = read_report(report)
    for name in ("changed", "before"):  # the flow's values: the command ingested the rows before it
        summary["counts"].pop(name, None)
    summary["seconds"]["ingest"] = round(summary["seconds"]["ingest"] + ingest_seconds, 2)
    sentences = verdict_of(metrics, summary).sentences
    opened = open_snapshots(summary["addresses"]["snapshots"])
    has_two = declared_record(opened.layout, opened.dataset)["bipartite"]
    ends = {"directed": opened.directed or has_two, "bipartite": has_two}
    print_report(metrics, {**summary, **ends}, sentences, **next_options)
    if json_file is not None:
        write_json(json_file, {**summary, "verdict": list(sentences), "scores": plain_steps(metrics), "report": report})
