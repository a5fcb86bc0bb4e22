"""The `dyformer` command: arguments -> the flows and tasks, with no server needed."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dyformer import InvalidInput
from flows.commands import live, results, tune
from flows.commands.benchmark import benchmark
from flows.commands.runs import announced, finished_run, ingested, next_options, print_plan, print_run, retrained
from flows.commands.service import register
from flows.console import (
    counts_line,
    no_new_line,
    ongoing,
    print_frame,
    print_json,
    printable,
    tracking_line,
    undone_line,
    with_written_times,
)
from flows.ending import FAILED, NOTHING_TO_DO, exit_code
from flows.options import (
    AsJson,
    AsOf,
    Changes,
    JsonFile,
    LinksName,
    Name,
    On,
    Ranks,
    Seed,
    Stored,
    WholeTables,
    check_alone,
    check_ingested,
    check_titles,
    experiment_from,
    optional,
    with_reading,
)
from flows.service.environment import collect_seldom, end_with_code
from flows.service.running import use_running_stack

app = typer.Typer(
    help="Node vectors and evaluated link forecasts from a growing log of interactions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",  # square brackets are markup, so defaults in help texts are in round ones
)


def _print_version(wanted: bool) -> None:
    if wanted:
        import dyformer

        print(f"dyformer {dyformer.__version__}")
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    storage: Annotated[
        str | None, optional("folder or s3:// address of the store (DYFORMER_STORAGE, else ./data)")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Set the store of the command."""
    if storage is not None:
        if not storage.strip():
            raise InvalidInput("--storage is an empty text: name a folder or an s3:// address")
        os.environ["DYFORMER_STORAGE"] = storage
    if context.invoked_subcommand != "up":  # which starts one
        use_running_stack()


@app.command()
def datasets(as_json: AsJson = False) -> None:
    """List the known logs, and those ingested into the store."""
    import polars as pl

    from flows.tasks.ingest import known_and_ingested

    rows = known_and_ingested(_print_damage)
    print_json(rows) if as_json else print_frame(pl.DataFrame(rows, infer_schema_length=None))


@app.command()
def settings(as_json: AsJson = False) -> None:
    """List every setting of --set: its default, the allowed values, the meaning."""
    import polars as pl

    from dyformer.experiments.settings import settings_table

    names = ("setting", "value", "allowed", "meaning")
    rows = [dict(zip(names, row, strict=True)) for row in settings_table()]
    print_json(rows) if as_json else print_frame(pl.DataFrame(rows))


@app.command()
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
        print(undone_line(dataset, undo_ingest(dataset)))
        return

    print(counts_line(ingest_log(dataset, reading, print_plan)))
    if os.environ.get("PREFECT_API_URL"):
        from flows.service.commit_events import announce

        announce(dataset)


@app.command()
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


@app.command()
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


@app.command()
def predict(  # noqa: PLR0913, because each option is an argument
    dataset: Name,
    top: Annotated[int, typer.Option(help="links to forecast for each node", min=1)] = 10,
    links: Annotated[LinksName, typer.Option(help="which pairs: all, only new ones, or only past ones")] = "all",
    changes: Changes = None,
    seed: Seed = 0,
    as_of: AsOf = None,
    on: On = None,
    ranks: Ranks = None,
) -> None:
    """Write the champion's vectors and link forecasts as of the newest complete step.

    The forecasts are published if they are at least ten of all links. With --set, DyFormer is trained first by these
    settings, unless it was trained before.
    """
    experiment = experiment_from(changes).check_interactions()
    check_ingested(dataset)
    from flows.tasks.complete_windows import later_windows, make_complete_snapshots
    from flows.tasks.evaluation.promote import champion_to_publish
    from flows.tasks.predict import write_forecasts
    from flows.tasks.publishing.publications import publish, vectors_to_publish

    address = make_complete_snapshots(dataset, as_of, show=print_plan)
    too_late = later_windows(address)
    if changes:
        from flows.tasks.train import train_contender

        contender = train_contender(address, experiment, seed)
    else:
        contender = champion_to_publish(address)
    vectors = vectors_to_publish(address, contender, seed)
    print(f"method: {contender.title}")
    if not contender.models:
        none, others = (
            "there is no trained model that has some",
            "they are of the model whose vectors were published last",
        )
        print(f"this method has no vectors of its own: {none if vectors is None else others}")
    print(f"vectors: {vectors or 'none'}")
    forecasts = write_forecasts(address, contender, vectors if contender.models else None, seed, k=top, links=links)
    print(f"forecasts: {forecasts}")
    reason = too_late or _part(links, top)
    if reason is not None:
        print(f"not published: {reason}")
    elif publish(address, contender, forecasts, vectors) is not None:
        views = "view latest_forecasts has" if vectors is None else "views latest_forecasts and latest_vectors have"
        print(f"published: the {views} them")


def _part(links: str, top: int) -> str | None:
    """Say which part of what is published some forecasts are; None for all of it, or more."""
    from dyformer.evaluation.forecasts.best_partners import NUM_PARTNERS

    if links != "all":
        return f"they are of {links} links alone"
    if top < NUM_PARTNERS:
        return f"they are fewer than {NUM_PARTNERS} links of each node, which the ledger counts"
    return None


@app.command()
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


@app.command()
def drop(
    dataset: Stored,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="remove it without confirmation")] = False,
) -> None:
    """Remove a dataset from the store permanently; it can then be ingested again with other options."""
    from storage.events.table import check_dataset
    from storage.layout import Layout
    from storage.removal import drop_dataset

    layout = Layout.from_environment()
    check_dataset(layout, dataset)
    removed = f"the events, artifacts, checkpoints and champion of {dataset}"
    if not yes:
        typer.confirm(f"Remove {removed} from {layout.root}?", abort=True)
    drop_dataset(layout, dataset)
    print(
        f"removed {removed} from {layout.root}; runs and models in MLflow and files in 1_raw were kept, and so was a"
        f" schedule, if it has one, which ingests it again (`dyformer schedule {dataset} --remove`)"
    )


@app.command()
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


@app.command()
@with_reading
def run(  # noqa: PLR0913, because each option is an argument
    context: typer.Context,
    dataset: Name,
    reading: dict[str, Any],
    changes: Changes = None,
    seed: Seed = 0,
    as_of: AsOf = None,
    on: On = None,
    ranks: Ranks = None,
    table: WholeTables = False,
    json_file: JsonFile = None,
) -> None:
    """Bring a log from raw rows to an evaluated, tracked model and its forecasts; a rerun computes only new results."""
    experiment = experiment_from(changes).check_interactions()
    report, seconds = finished_run(dataset, reading, experiment, seed, as_of, few=False)
    if report is None:
        report = retrained(dataset, reading, experiment, seed, as_of, from_scratch=True)
    else:
        print("no new rows or settings: this is the report of the earlier run")
        seconds = 0.0
    print_run(report, json_file, seconds, next_options(context))


@app.command()
@with_reading
def retrain(  # noqa: PLR0913, because each option is an argument
    context: typer.Context,
    dataset: Name,
    reading: dict[str, Any],
    changes: Changes = None,
    seed: Seed = 0,
    as_of: AsOf = None,
    on: On = None,
    ranks: Ranks = None,
    table: WholeTables = False,
    json_file: JsonFile = None,
) -> None:
    """Do the same as `run` for schedulers, from the champion's weights: exit code 3 without new rows or settings."""
    experiment = experiment_from(changes).check_interactions()
    finished, seconds = finished_run(dataset, reading, experiment, seed, as_of, few=True)
    if finished is not None:
        print(no_new_line(dataset))
        raise typer.Exit(NOTHING_TO_DO)
    report = retrained(dataset, reading, experiment, seed, as_of)
    print_run(report, json_file, seconds, next_options(context))


@app.command()
def report(
    dataset: Name,
    out: Annotated[Path | None, optional("file to write (by default DATASET-report.html)", dir_okay=False)] = None,
) -> None:
    """Write the report that was made last as one HTML file that opens offline."""
    check_ingested(dataset)
    from flows.tasks.report import newest_report, read_report, report_page

    file = Path(f"{dataset}-report.html") if out is None else out
    page = report_page(*read_report(newest_report(dataset)))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")
    print(f"report: {file}")


@app.command()
@with_reading
def audit(  # noqa: PLR0913, because each option is an argument
    dataset: Name,
    reading: dict[str, Any],
    step: Annotated[
        int | None,
        optional("last step that the methods know; later rows are replaced (by default the last but two)", min=2),
    ] = None,
    methods: Annotated[
        list[str] | None,
        optional(
            "names, such as dyformer,l3 (by default all scorers and DyFormer), and classes of your own",
            "--methods",
            "--method",
        ),
    ] = None,
    changes: Changes = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
    report_file: Annotated[
        Path | None,
        typer.Option("--report", help="also write the report to this file, as Markdown", dir_okay=False),
    ] = None,
) -> None:
    """Check that nothing later than a step reaches what is made as of it; the exit code is 1 if a check fails."""
    experiment = experiment_from(changes).check_interactions()
    check_titles(methods)
    with announced():
        from dyformer.experiments.titles import split_names
        from flows.stages import audit as flow
        from flows.tasks.evaluation.audit import read_audit

        audited = flow(dataset, reading, step, experiment, split_names(methods) or None, seed)
    table, page, record = read_audit(audited["report"])
    print_frame(
        table.select("check", "outcome", "detail", "seconds"), f"audit of {dataset} as of step {record['step']}"
    )
    for file, text in ((json_file, json.dumps(record, indent=1)), (report_file, page)):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    print(tracking_line(audited["tracking"]))
    print(
        f"{len(audited['failed'])} of {table.height} checks failed: {', '.join(audited['failed'])}"
        if audited["failed"]
        else "no check failed"
    )
    if audited["failed"]:
        raise typer.Exit(FAILED)


register(app)
results.register(app)
tune.register(app)
live.register(app)
app.command()(benchmark)
app.command()(results.compare)
app.command()(results.prune)


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit; an error prints one line. Without arguments, those of the process, it ends, too."""
    if arguments is not None:
        sys.exit(exit_code(lambda: app(arguments, prog_name="dyformer")))
    collect_seldom()
    code = exit_code(lambda: app(prog_name="dyformer"))
    end_with_code(code)
    sys.exit(code)


def _print_damage(damage: object) -> None:
    print(printable(f"dyformer: left out, because it is damaged: {damage}"), file=sys.stderr)
