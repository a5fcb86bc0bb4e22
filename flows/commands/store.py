"""The commands about all that is stored: `datasets`, `sql`, `drop`, `verify`, `prune`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dyformer import InvalidInput
from flows.console import ongoing, print_frame, print_json, printable, with_written_times
from flows.ending import FAILED
from flows.options import AsJson, Stored
from flows.tasks.retention import KEEP


def datasets(as_json: AsJson = False) -> None:
    """List the known logs, and those ingested into the store."""
    import polars as pl

    from flows.tasks.ingest import known_and_ingested

    rows = known_and_ingested(_print_damage)
    print_json(rows) if as_json else print_frame(pl.DataFrame(rows, infer_schema_length=None))


def sql(
    statement: Annotated[str, typer.Argument(help='a SQL query, such as "select * from forecasts where id = 7"')],
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="leave out what is damaged, and name it, instead of ending with 1")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Query the store: every artifact is a view."""
    from storage.layout import Layout
    from storage.queries import query, stop

    rows = query(Layout.from_environment(), statement, _print_damage if skip_damaged else stop)
    print_json(with_written_times(rows).to_dicts()) if as_json else print_frame(rows)


def drop(
    dataset: Stored,
    everything: Annotated[
        bool,
        typer.Option(
            "--everything", help="also its runs and models in MLflow, fetched files, and events that a server received"
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="remove it without confirmation")] = False,
) -> None:
    """Remove a dataset from the store permanently; it can then be ingested again with other options."""
    from flows.tasks.retention import dropped
    from storage.events.table import check_dataset
    from storage.layout import Layout
    from storage.tracking.addresses import without_password

    layout = Layout.from_environment()
    check_dataset(layout, dataset)
    more = ""
    if everything:
        from flows.live.running import check_not_served

        check_not_served(layout, dataset)
        address = without_password(layout.tracking_uri)
        more = f", all its runs and its model from MLflow at {address}, and its files and received events from 1_raw"
    if not yes:
        removed = f"the events, artifacts, checkpoints and champion of {dataset}"
        typer.confirm(f"Remove {removed} from {layout.root}{more}?", abort=True)
    lines = dropped(dataset, everything=everything)
    staying = "" if everything else "runs and models in MLflow and files in 1_raw were kept (`--everything`); "
    print(
        *lines,
        f"{staying}a schedule stays, and would ingest it again (`dyformer schedule {dataset} --remove`)",
        sep="\n",
    )


def verify(
    dataset: Annotated[
        str | None, typer.Argument(metavar="DATASET", help="verify this dataset alone", show_default=False)
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="make damaged parts again, or remove them so that the next run makes them")
    ] = False,
) -> None:
    """Read everything stored and compare it with its checksums; the exit code is 1 if something is damaged."""
    from storage.events.table import check_dataset
    from storage.layout import Layout
    from storage.locks import DatasetInUse
    from storage.verification import dataset_of, faults, repaired

    layout = Layout.from_environment()
    if dataset is not None:
        check_dataset(layout, dataset)
    num_left = 0
    if layout.is_local and not Path(layout.root).exists():
        raise InvalidInput(
            f"there is no store at {layout.root}: check DYFORMER_STORAGE, or run `dyformer ingest` first"
        )
    with ongoing("verify", to_errors=True):
        damaged = list(faults(layout, dataset))
    for fault in damaged:
        outcome = None
        try:
            outcome = repaired(layout, dataset_of(fault), fault) if repair else None
            remedy = fault.remedy
        except DatasetInUse as error:
            remedy = str(error)
        num_left += outcome is None
        print(printable(f"{fault.address} {fault.problem}: {outcome or remedy}"))
    print(f"{num_left} damaged" if num_left else f"{layout.root}: nothing is damaged")
    if num_left:
        raise typer.Exit(FAILED)


def prune(
    dataset: Stored,
    keep: Annotated[int, typer.Option(help="number of newest versions that stay", min=2)] = KEEP,
) -> None:
    """Remove old versions: what neither the newest ones, nor a champion, nor the ledger needs."""
    from flows.tasks.retention import pruned

    for line in pruned(dataset, keep):
        print(printable(line))


def _print_damage(damage: object) -> None:
    print(printable(f"dyformer: left out, because it is damaged: {damage}"), file=sys.stderr)
