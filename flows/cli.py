"""The `dyformer` command: the same steps and flows, with no server needed."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.environment import server_in_use
from flows.options import with_reading

if TYPE_CHECKING:
    from dyformer.experiments.settings import Experiment

app = typer.Typer(
    help="From a growing interaction log to fresh node vectors and honestly evaluated link forecasts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",  # so a default in a help text stands in round brackets: square ones are markup
)

FAILED, NOTHING_TO_DO = 1, 3  # done is 0, a wrong usage 2

Name = Annotated[
    str, typer.Argument(metavar="DATASET", help="a known name (see `dyformer datasets`) or one of your own")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="change a setting: --set model.num_layers=4; repeat for several", show_default=False),
]
Seed = Annotated[int, typer.Option(help="seed of the split and of the training", min=0)]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="also write the results to this file", dir_okay=False, show_default=False)
]


@app.callback()
def settings(
    storage: Annotated[
        str | None,
        typer.Option(help="folder or s3:// address of the store (DYFORMER_STORAGE, else ./data)", show_default=False),
    ] = None,
) -> None:
    """Settle where everything is kept."""
    if storage is not None:
        os.environ["DYFORMER_STORAGE"] = storage


@app.command()
def datasets(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """List the known logs, and those ingested into the store."""
    import polars as pl

    from flows.console import print_frame, print_json
    from flows.tasks.ingest import known_and_ingested

    rows = known_and_ingested()
    print_json(rows) if as_json else print_frame(pl.DataFrame(rows, infer_schema_length=None))


@app.command()
@with_reading
def ingest(dataset: Name, reading: dict[str, Any]) -> None:
    """Commit the rows of a log; the same bytes again change nothing."""
    from flows.console import counts_line
    from flows.tasks.ingest import ingest_log

    print(counts_line(ingest_log(dataset, reading)))


@app.command()
@with_reading
def snapshots(
    dataset: Name,
    reading: dict[str, Any],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Cut a log into snapshots and count each; ingests the log first where it is not in the store."""
    from flows.console import print_frame, print_json
    from flows.tasks.snapshots import snapshot_counts

    address, _ = _ingested(dataset, reading, say=_silent if as_json else print)
    counts = snapshot_counts(address)
    print_json(counts.to_dicts()) if as_json else print_frame(counts, f"snapshots of {dataset}")


@app.command()
@with_reading
def prepare(
    dataset: Name,
    reading: dict[str, Any],
    until: Annotated[
        int | None, typer.Option(help="last step to read (by default the last but one)", show_default=False)
    ] = None,
    changes: Changes = None,
) -> None:
    """Write the PageRank and distance tables of the steps up to one."""
    experiment = _experiment(dataset, changes)
    from flows.tasks.prepare import prepare_tables
    from flows.tasks.snapshots import check_range, newest_until

    last = 2 if until is None else until
    address, _ = _ingested(dataset, reading, lambda num_steps: check_range(dataset, [last], 1, num_steps))
    for kind, table in prepare_tables(address, newest_until(address) if until is None else until, experiment).items():
        print(f"{kind}: {table}")


@app.command()
def predict(
    dataset: Name,
    top: Annotated[int, typer.Option(help="links to forecast for each node", min=1)] = 10,
    changes: Changes = None,
    seed: Seed = 0,
) -> None:
    """Write node vectors and link forecasts as of the newest step, from the model trained for it."""
    experiment = _experiment(dataset, changes)
    from flows.tasks.predict import write_forecasts, write_vectors
    from flows.tasks.snapshots import make_snapshots, newest_until
    from flows.tasks.train import train_model

    address = make_snapshots(dataset)
    model = train_model(address, newest_until(address), experiment, seed)
    vectors = write_vectors(address, model, seed=seed)
    print(f"vectors: {vectors}")
    print(f"forecasts: {write_forecasts(address, model, vectors, seed, k=top)}")


@app.command()
def sql(
    statement: Annotated[str, typer.Argument(help='such as "select * from forecasts where id = 7"')],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Ask the store: every artifact is a view."""
    from flows.console import print_frame, print_json
    from storage.layout import Layout
    from storage.queries import sql as answer

    rows = answer(Layout.from_environment(), statement)
    print_json(rows.to_dicts()) if as_json else print_frame(rows)


@app.command()
@with_reading
def run(
    dataset: Name, reading: dict[str, Any], changes: Changes = None, seed: Seed = 0, json_file: JsonFile = None
) -> None:
    """Bring a log from raw rows to a evaluated, tracked model and its forecasts; a rerun does only what is new."""
    experiment = _experiment(dataset, changes)
    report, seconds = _finished(dataset, reading, experiment, seed)
    if report is None:
        report = _retrain(dataset, reading, experiment, seed)
    else:
        print("nothing new: this is the report of the earlier run")
        seconds = 0.0
    _show(report, dataset, json_file, seconds)


@app.command()
@with_reading
def retrain(
    dataset: Name, reading: dict[str, Any], changes: Changes = None, seed: Seed = 0, json_file: JsonFile = None
) -> None:
    """Do what `run` does, for schedulers: exit code 3 where nothing is new."""
    experiment = _experiment(dataset, changes)
    finished, seconds = _finished(dataset, reading, experiment, seed)
    if finished is not None:
        print(f"{dataset}: nothing new")
        raise typer.Exit(NOTHING_TO_DO)
    _show(_retrain(dataset, reading, experiment, seed), dataset, json_file, seconds)


@app.command()
@with_reading
def benchmark(
    dataset: Name,
    reading: dict[str, Any],
    steps: Annotated[
        str | None,
        typer.Option(help='steps to evaluate, "3-13" or "5,7" (by default those of the paper)', show_default=False),
    ] = None,
    seeds: Annotated[int, typer.Option(help="number of seeds, from 0", min=1)] = 1,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            "--method",
            help="titles, such as dyformer,l3 (by default all), and your own classes, package.module:Class",
            show_default=False,
        ),
    ] = None,
    changes: Changes = None,
    json_file: JsonFile = None,
) -> None:
    """Evaluate methods on every step of the paper's protocol: DyFormer, its variations, the baselines, your own."""
    experiment = _experiment(dataset, changes)  # an error comes before anything is committed or started
    from dyformer.experiments.tables import score_table
    from flows.console import print_frame, write_json
    from flows.tasks.evaluate import metrics, steps_to_evaluate, wanted_steps
    from flows.tasks.methods import benchmark_methods
    from flows.tasks.snapshots import FIRST_EVALUATED_STEP, check_range

    names = benchmark_methods(methods)
    wanted = [FIRST_EVALUATED_STEP] if steps is None else wanted_steps(steps)
    address, _ = _ingested(
        dataset, reading, lambda num_steps: check_range(dataset, wanted, FIRST_EVALUATED_STEP, num_steps)
    )
    steps_to_evaluate(address, steps)
    _announce()
    from flows.benchmark import benchmark as flow

    made = flow(dataset, reading, steps, seeds, experiment, names)
    rows = metrics(made["scores"], made["snapshots"])
    print_frame(score_table(rows, dataset), f"{dataset}: AUC in percent, the paper's protocol")
    if json_file is not None:
        write_json(json_file, _plain_steps(rows))


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit; what a user can cause ends in one message."""
    try:
        app(arguments)
    except (ValueError, OSError) as error:
        print(f"dyformer: {error}", file=sys.stderr)
        sys.exit(FAILED)


def _ingested(
    dataset: str,
    reading: dict[str, Any],
    check: Callable[[int], None] | None = None,
    say: Callable[[str], None] = print,
) -> tuple[str, float]:
    """Commit what is new in a log; give the address of its snapshots and the seconds it took."""
    from flows.console import counts_line
    from flows.tasks.ingest import ingest_log
    from flows.tasks.snapshots import make_snapshots

    started = time.monotonic()
    counts = ingest_log(dataset, reading, say, check)
    address = make_snapshots(dataset, counts["version"])
    say(counts_line(counts))
    return address, round(time.monotonic() - started, 2)


def _finished(dataset: str, reading: dict[str, Any], experiment: "Experiment", seed: int) -> tuple[str | None, float]:
    """Commit what is new, and give the earlier run's report if nothing was; and the seconds it took."""
    from flows.tasks.report import finished_report
    from flows.tasks.snapshots import FIRST_EVALUATED_STEP, check_range

    newest = [FIRST_EVALUATED_STEP]
    address, seconds = _ingested(
        dataset, reading, lambda num_steps: check_range(dataset, newest, FIRST_EVALUATED_STEP, num_steps)
    )
    return finished_report(address, experiment, seed), seconds


def _retrain(dataset: str, reading: dict[str, Any], experiment: "Experiment", seed: int) -> str:
    _announce()
    from flows.retrain import retrain as flow

    return flow(dataset, reading, experiment, seed)


def _announce() -> None:
    """Say where the flow runs; its output comes here, so that Prefect itself need not write to the terminal."""
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    print(f"running on {server_in_use()}", flush=True)


def _show(report: str, dataset: str, json_file: Path | None, ingest_seconds: float) -> None:
    from dyformer.experiments.tables import PAPER_METRICS, score_table
    from flows.console import print_frame, tracked_line, write_json
    from flows.tasks.report import read_report

    metrics, summary = read_report(report)
    summary["counts"].pop("changed")  # of the flow, which finds committed what the command has ingested
    summary["seconds"]["ingest"] = round(summary["seconds"]["ingest"] + ingest_seconds, 2)
    paper = " (the paper's: over all its steps)" if dataset in PAPER_METRICS else ""
    print_frame(score_table(metrics, dataset), f"{dataset}: AUC in percent on the newest step{paper}")
    for kind in ("model", "vectors", "forecasts"):
        print(f"{kind}: {summary['addresses'][kind]}")
    print(tracked_line(summary["tracking"]))
    if json_file is not None:
        write_json(json_file, {**summary, "scores": _plain_steps(metrics), "report": report})


def _plain_steps(metrics: Any) -> list[dict[str, Any]]:
    """One row a figure, the step a number, `micro` or `macro`."""
    return [{**row, "step": int(row["step"]) if row["step"].isdecimal() else row["step"]} for row in metrics.to_dicts()]


def _experiment(dataset: str, changes: list[str] | None) -> "Experiment":
    """Read the `name=value` texts of --set, before anything heavy is imported."""
    from dyformer.experiments.settings import experiment_for

    pairs = [change.partition("=") for change in changes or []]
    wrong = [name for name, sign, _ in pairs if not sign]
    if wrong:
        raise typer.BadParameter(f"--set {wrong[0]}: write name=value, such as --set model.num_layers=4")
    return experiment_for(dataset).changed({name.strip(): value.strip() for name, _, value in pairs})


def _silent(text: str) -> None:
    """Say nothing."""
