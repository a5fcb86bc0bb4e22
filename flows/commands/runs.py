"""The commands `run`, `retrain`, `report`, `predict` and `audit`: new rows of a log -> what is made of them."""

import json
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dyformer import InvalidInput
from flows.commands.rows import print_plan
from flows.commands.temporary_server import is_temporary, use_temporary_server
from flows.console import (
    counts_line,
    no_new_line,
    plain_steps,
    print_frame,
    print_once,
    print_tables,
    write_json,
)
from flows.ending import FAILED, NOTHING_TO_DO
from flows.options import (
    AsOf,
    Changes,
    JsonFile,
    LinksName,
    Name,
    On,
    Ranks,
    Seed,
    WholeTables,
    check_ingested,
    check_titles,
    experiment_from,
    optional,
    with_reading,
)
from flows.service import TAG
from flows.service.server import TEMPORARY, ServerUnreachable, server_in_use
from flows.tasks.reading_options import on_command_line

if TYPE_CHECKING:
    from dyformer.experiments.settings import Experiment

NUM_ROWS = 5  # of a table after a run


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
    address = make(dataset, as_of, show=lambda line: print_once(on_command_line(line)))
    if address is None:
        raise typer.Exit(NOTHING_TO_DO)
    seconds = round(time.monotonic() - started, 2)
    from flows.tasks.finished import finished_report, unsent_alarm
    from flows.tasks.tracking.projection import project
    from storage.layout import Layout

    report = finished_report(address, experiment, seed)
    if report is not None:
        if drift := unsent_alarm(report):
            from flows.tasks.drift import drift_line, send_again

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


def print_run(context: typer.Context, report: str, ingest_seconds: float, json_file: Path | None) -> None:
    """Print the verdict of a run, its scores and the commands that may follow; write everything to the file."""
    from dyformer.experiments.tables import run_tables
    from flows.tasks.drift import drift_line
    from flows.tasks.report import read_report, verdict_of
    from flows.tasks.snapshots import open_snapshots
    from storage.events.declarations import declared_record

    given, (metrics, summary) = context.params, read_report(report)
    for name in ("changed", "before"):  # the flow's values: the command ingested the rows before it
        summary["counts"].pop(name, None)
    summary["seconds"]["ingest"] = round(summary["seconds"]["ingest"] + ingest_seconds, 2)
    first, *others = sentences = verdict_of(metrics, summary).sentences
    opened = open_snapshots(summary["addresses"]["snapshots"])
    has_two = declared_record(opened.layout, opened.dataset)["bipartite"]
    ends = {"directed": opened.directed or has_two, "bipartite": has_two}
    print("\n  ".join([f"\n{summary['dataset']}: {first}", *others, drift_line(summary["drift"])]), end="\n\n")
    print_tables(run_tables(metrics, summary["dataset"]), None if given["table"] else NUM_ROWS)
    print(f"challenger: {summary['training']}")
    print(_tracking_line(summary["tracking"]))
    options = ["--seed", str(given["seed"])] if given["seed"] else []
    options += ["--as-of", given["as_of"]] if given["as_of"] else []
    storage = context.find_root().params["storage"]
    print("\n  ".join(["next:", *next_commands({**summary, **ends}, given["changes"] or [], options, storage)]))
    if json_file is not None:
        write_json(json_file, {**summary, "verdict": list(sentences), "scores": plain_steps(metrics), "report": report})


def _tracking_line(tracking: dict[str, Any]) -> str:
    """Name the run in MLflow, and the version of its model, or say why MLflow has none yet."""
    if tracking["problem"]:
        return f"tracked: not in MLflow: {tracking['problem']}; `dyformer track` sends what it lacks"
    model = f", registered model version {tracking['model_version']}" if tracking["model_version"] else ""
    return f"tracked: run {tracking['run']}{model}"


def next_commands(summary: dict[str, Any], changes: list[str], options: list[str], storage: str | None) -> list[str]:
    """List commands to use after a run: show its forecasts, its vectors, make more forecasts, open MLflow.

    Args:
        summary: of the run, and whether its log is `directed` and `bipartite`.
        changes: the run's `--set`, by which `predict` would leave a champion out, and without which it needs one.
        options: others that `predict` has to repeat.
        storage: the value of `--storage`; None where the environment sets it.
    """
    dataset, addresses = summary["dataset"], summary["addresses"]
    program = "dyformer" if storage is None else f"dyformer --storage {shlex.quote(storage)}"
    columns, of_dataset = "id, partner_id, probability, score, linked_before", f"where dataset = '{dataset}'"
    if not summary["directed"]:  # each pair is among those of both its ends
        columns = f"distinct on (least(id, partner_id), greatest(id, partner_id)) {columns}"
    if summary["promotion"]["champion"] is not None:
        tables, is_predicted = [f"latest_forecasts {of_dataset}", f"latest_vectors {of_dataset}"], True
    else:
        tables = [f"{kind} where {_keys(addresses[kind])}" for kind in ("forecasts", "vectors")]
        is_predicted = bool(changes)
        options = [*(text for change in changes for text in ("--set", change)), *options]
    if summary["bipartite"]:
        tables[0] += " and side = 0"
    return [
        f'{program} sql "select {columns} from {tables[0]} order by score desc limit 10"',  # noqa: S608
        f'{program} sql "select id, vector from {tables[1]} limit 10"',  # noqa: S608
        *([f"{program} predict {dataset} {shlex.join(['--top', '20', *options])}"] if is_predicted else []),
        *_mlflow_commands(summary["tracking"], program),
    ]


def _mlflow_commands(tracking: dict[str, Any], program: str) -> list[str]:
    """List the commands that open the run's page in MLflow; without a server one starts it first."""
    from storage.tracking.pages import USUAL_PAGES, run_page

    if tracking["problem"]:
        return []
    own = tracking["run"], tracking["experiment"]
    if page := run_page(tracking["tracker"], *own):
        return [f'open "{page}"']  # zsh takes ? for a pattern
    return [f"{program} ui", f'open "{run_page(USUAL_PAGES, *own)}"']


def _keys(address: str) -> str:
    """Return the condition that selects one artifact's rows in a view, from the `key=value` parts of its address."""
    keys = "".join(address.rpartition("dataset=")[1:])  # a "=" in the folder of the store is no key
    pairs = [part.partition("=") for part in keys.split("/")]
    return " and ".join(f"{key} = '{value}'" for key, _, value in pairs)


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
    print_run(context, report, seconds, json_file)


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
    print_run(context, report, seconds, json_file)


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
    print(_tracking_line(audited["tracking"]))
    print(
        f"{len(audited['failed'])} of {table.height} checks failed: {', '.join(audited['failed'])}"
        if audited["failed"]
        else "no check failed"
    )
    if audited["failed"]:
        raise typer.Exit(FAILED)
