"""The commands about the rows of a log: `ingest`, `snapshots`, `prepare`."""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dyformer.logs.counts import counted
from flows.console import counts_line, print_frame, print_json, printable
from flows.options import AsJson, Changes, Name, On, check_alone, experiment_from, optional, with_reading
from flows.tasks.reading_options import on_command_line

if TYPE_CHECKING:
    from storage.events.commits import TakenBack


def print_plan(text: str) -> None:
    """Print a text that names arguments as options of the command."""
    print(printable(on_command_line(text)))


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


def _undone_line(dataset: str, taken: "TakenBack") -> str:
    """Say which commit was taken back, and what follows from it."""
    return (
        f"{dataset}: took back commit {taken.commit} ({', '.join(taken.files)}): {counted(taken.num_accepted, 'event')}"
        f" and {counted(taken.num_quarantined, 'rejected row')} left the log; event table version {taken.version}\n"
        "The next ingest reads a file again that is still where it looks. Forecasts that were made with these rows stay"
        f" published until `dyformer predict {dataset}` or a retraining; outcomes that read them are made anew."
    )


@with_reading
def ingest(
    dataset: Name,
    reading: dict[str, Any],
    undo: Annotated[
        bool,
        typer.Option("--undo", help="take back the newest commit: its rows leave the log, its files may come again"),
    ] = False,
) -> None:
    """Commit the rows of a log; a file that was committed before changes nothing."""
    from flows.tasks.ingest import ingest_log, undo_ingest

    if undo:
        check_alone("--undo", reading)
        print(_undone_line(dataset, undo_ingest(dataset)))
        return

    print(counts_line(ingest_log(dataset, reading, print_plan)))
    if os.environ.get("PREFECT_API_URL"):
        from flows.service.commit_events import announce

        announce(dataset)


@with_reading
def snapshots(
    dataset: Name,
    reading: dict[str, Any],
    as_json: AsJson = False,
) -> None:
    """Cut a log into snapshots and count the rows of each; ingests new rows of the log first."""
    from flows.tasks.snapshots import snapshot_counts, weights_and_labels

    address, _ = ingested(dataset, reading, lambda num_steps: None, (lambda text: None) if as_json else print_plan)
    counts = snapshot_counts(address).hstack(weights_and_labels(address))
    print_json(counts.to_dicts()) if as_json else print_frame(counts, f"snapshots of {dataset}")


@with_reading
def prepare(
    dataset: Name,
    reading: dict[str, Any],
    until: Annotated[int | None, optional("last step to use (by default the last but one)")] = None,
    changes: Changes = None,
    on: On = None,
) -> None:
    """Write the PageRank and distance tables of the steps up to `--until`, for queries.

    They are for you, as the views `pagerank` and `distances` of `dyformer sql`: nothing that is trained, evaluated or
    forecast reads them, because it needs other nodes or steps.
    """
    experiment = experiment_from(changes)
    from flows.tasks.prepare import prepare_tables
    from flows.tasks.snapshots import check_range, newest_until

    last = 2 if until is None else until
    address, _ = ingested(dataset, reading, lambda num_steps: check_range(dataset, [last], 1, num_steps))
    for kind, table in prepare_tables(address, newest_until(address) if until is None else until, experiment).items():
        print(f"{kind}: {table}")
