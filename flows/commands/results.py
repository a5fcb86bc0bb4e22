"""The commands about what was made: `champions`, `rollback`, `export`, `drift`, `compare`."""

from typing import Annotated, Literal

import typer

from dyformer.logs.counts import counted
from flows.console import print_frame, print_json, printable, with_written_times
from flows.options import AsJson, Changes, Stored, check_ingested, experiment_from, optional


def champions(dataset: Stored, as_json: AsJson = False) -> None:
    """List who was champion, since when and why, with the interval of the difference; the present one is last."""
    import polars as pl

    from dyformer.evaluation.config import METRIC_TITLES
    from storage.champions import champions as listed
    from storage.events.table import check_dataset
    from storage.layout import Layout

    layout = Layout.from_environment()
    check_dataset(layout, dataset)
    rows = with_written_times(listed(layout, dataset))
    if as_json:
        print_json(rows.to_dicts())
    elif rows.is_empty():
        print(f"{dataset} has no champion yet: `dyformer run {dataset}` chooses one")
    else:
        forms = {"value": "{:.3f}", **dict.fromkeys(("low", "difference", "high"), "{:+.3f}")}  # as in a run's tables
        texts = {
            name: pl.Series([None if value is None else form.format(value) for value in rows[name]], dtype=pl.String)
            for name, form in forms.items()
        }
        titles = pl.col("metric").replace(METRIC_TITLES)
        print_frame(rows.with_columns(titles, **texts), f"champions of {dataset}")


def rollback(
    dataset: Stored,
    to: Annotated[int | None, optional("number of an earlier champion (by default the one before)")] = None,
) -> None:
    """Make an earlier champion the present one, with the forecasts and vectors that it published last."""
    check_ingested(dataset)
    from flows.tasks.publishing.champions import rollback as roll_back
    from flows.tasks.tracking.projection import project
    from storage.layout import Layout

    record = roll_back(dataset, to)
    print(printable(f"champion of {dataset}: {record['title']}, because {record['reason']}"))
    published = record.get("published")
    forecasts = f"those for step {published['step']}" if published else "none, as it had published none"
    print(f"published: {forecasts}; `dyformer predict {dataset}` makes new ones")
    for problem in project(Layout.from_environment()).problems:
        print(printable(f"not in MLflow yet: {problem}"))


def export(
    dataset: Stored,
    to: Annotated[
        str,
        typer.Option(
            help="a folder, s3://bucket/prefix, sqlite:///file or postgresql://user@host/database, with a password from"
            " PGPASSWORD or ~/.pgpass"
        ),
    ],
    kind: Annotated[Literal["parquet", "csv"] | None, optional("of the files (by default parquet)", "--format")] = None,
) -> None:
    """Write the forecasts and vectors that were published last, and the ledger, to files or to a database."""
    from flows.tasks.publishing.export import export as write

    for written in write(dataset, to, kind):
        print(printable(f"wrote {written}"))


def drift(
    dataset: Stored,
    changes: Changes = None,
    whole: Annotated[
        bool, typer.Option("--table", help="print the rows of all steps, not the newest one's alone")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the newest complete step with the earlier ones: volume, new nodes, repeats, published forecasts."""
    experiment = experiment_from(changes)
    check_ingested(dataset)
    from dyformer.evaluation.drift import drift_texts
    from flows.tasks.drift import measured

    rows, alarms = measured(dataset, experiment)
    if as_json:
        print_json({"alarms": alarms, "rows": rows.to_dicts()})
    else:
        printed = rows if whole else rows.filter(step=rows["step"].max())
        print_frame(drift_texts(printed), f"drift of {dataset}")
        if len(printed) < len(rows):
            print(f"and {counted(len(rows) - len(printed), 'row')} of earlier steps: --table prints all")
        print(printable("; ".join(alarms) or "no alarm"))


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN RUN ...", help="MLflow's ids (or their beginnings), or names of runs")
    ],
    details: Annotated[bool, typer.Option("--details", help="also list intervals, counts and seconds")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare tracked runs: the settings in which they differ, and the metrics of each."""
    from storage.layout import Layout
    from storage.tracking.comparison import compare_runs
    from storage.tracking.runs import open_tracker

    table = compare_runs(open_tracker(Layout.from_environment()), runs, details=details)
    print_json(table.to_dicts()) if as_json else print_frame(table)
