"""The command `benchmark`: methods on every step of a protocol, or an experiment of the paper on several logs."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dyformer.evaluation.protocols import PROTOCOLS
from dyformer.logs.counts import counted
from flows.commands.rows import ingested
from flows.commands.runs import announced
from flows.console import plain_steps, print_frame, print_tables, write_json
from flows.options import (
    CAP,
    Changes,
    Epochs,
    JsonFile,
    OnForTrials,
    changed_names,
    check_titles,
    experiment_from,
    known_protocol,
    optional,
    with_cap,
    with_reading,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import polars as pl

    from dyformer.evaluation.protocols.protocol import Protocol
    from dyformer.experiments.printed import PrintedTable
    from dyformer.experiments.settings import Experiment
    from dyformer.experiments.studies.studies import Study
    from flows.tasks.finished import Finished

STUDY_PANEL = "Experiments of the paper"
WITHOUT_CLUSTER = 'leave --on out, or write --on "" where DYFORMER_RAY_ADDRESS is set'
VISIBLE = "visible"  # the setting of a protocol that has an option of its own


@with_reading
def benchmark(  # noqa: PLR0913, because each option is an argument
    reading: dict[str, Any],
    dataset: Annotated[
        str | None,
        typer.Argument(
            metavar="DATASET",
            help="a known name (see `dyformer datasets`) or a new one for your own log",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[str | None, optional('steps to evaluate, "3-13" or "5,7" (by default those of the paper)')] = None,
    seeds: Annotated[int, typer.Option(help="number of seeds, from 0", min=1)] = 1,
    protocol: Annotated[
        str,
        typer.Option(
            help="how methods are compared (--list describes each); its own settings: --set PROTOCOL.NAME=VALUE; or a"
            " Protocol of your own, package.module:OBJECT",
            callback=known_protocol,
            metavar=f"[{'|'.join(PROTOCOLS)}]",
        ),
    ] = "paper",
    visible: Annotated[
        str | None,
        optional("events that a rank of --protocol tgb may read: strict (all earlier ones), batch:200, window:1h"),
    ] = None,
    methods: Annotated[
        list[str] | None,
        optional(
            "names, such as dyformer,l3, and classes of your own, package.module:Class: these alone run (by"
            " default all but trained baselines)",
            "--methods",
            "--method",
        ),
    ] = None,
    epochs: Epochs = None,
    changes: Changes = None,
    json_file: JsonFile = None,
    on: OnForTrials = None,
    experiment: Annotated[
        str | None, optional("run an experiment of --list: its methods and its protocol", rich_help_panel=STUDY_PANEL)
    ] = None,
    is_list: Annotated[
        bool,
        typer.Option(
            "--list", help="list the experiments, the protocols and the methods, and exit", rich_help_panel=STUDY_PANEL
        ),
    ] = False,
    datasets: Annotated[
        str | None,
        optional(
            "datasets of the experiment, as in uci,yelp (by default those of the paper); with several, the file of"
            " each is --log uci=FILE, or its rows are in the store",
            rich_help_panel=STUDY_PANEL,
        ),
    ] = None,
    parallel: Annotated[
        int, typer.Option(help="trials of the experiment at once", min=1, rich_help_panel=STUDY_PANEL)
    ] = 1,
    out: Annotated[
        Path | None,
        optional(
            "folder for the tables (Markdown, LaTeX; those of an experiment as CSV, too) and the plots of an"
            " experiment",
            file_okay=False,
        ),
    ] = None,
) -> None:
    """Evaluate methods on every step of a protocol: DyFormer, its variations, baselines, your own."""
    if is_list:
        _print_studies()
    elif experiment is not None:
        _check_study_options(dataset, datasets, methods, protocol, visible, json_file)
        if on and parallel > 1:
            raise typer.BadParameter(f"--parallel is for processes of this machine: leave it out, or {WITHOUT_CLUSTER}")
        names = [name.strip() for name in (datasets or dataset or "").split(",") if name.strip()]
        _run_study(experiment, names, reading, steps, seeds, epochs, changes, parallel, out)
    elif dataset is None:
        raise typer.BadParameter("name a DATASET, or an experiment by --experiment (--list has their names)")
    elif datasets is not None or parallel > 1:
        raise typer.BadParameter("--datasets and --parallel belong to --experiment")
    else:
        if on and not PROTOCOLS[protocol].startswith("dyformer."):
            raise typer.BadParameter(f"a protocol of your own runs in the process of the command: {WITHOUT_CLUSTER}")
        changes = [*(changes or []), *([] if visible is None else [f"{protocol}.{VISIBLE}={visible}"])]
        _run_protocol(dataset, reading, steps, seeds, protocol, methods, epochs, changes, json_file, out)


def _run_protocol(  # noqa: PLR0913, because each option is an argument
    dataset: str,
    reading: dict[str, Any],
    steps: str | None,
    seeds: int,
    protocol: str,
    methods: list[str] | None,
    epochs: int | None,
    changes: list[str] | None,
    json_file: Path | None,
    out: Path | None = None,
) -> None:
    """Run the benchmark of a protocol on one dataset, unless it has ended before; print its tables and write them."""
    check_titles(methods)
    settings, rest = protocol_settings(protocol, changes)
    from dyformer.experiments.settings import as_record
    from flows.tasks.tracking.projection import project
    from storage.layout import Layout

    experiment = experiment_from(with_cap(rest, epochs))
    options = {"protocol": protocol, "settings": settings, "steps": steps, "seeds": seeds, "methods": methods}
    options |= {"experiment": as_record(experiment)}
    # The code of a user's own class or protocol is not known before it is imported.
    has_own = any(":" in name for name in methods or []) or not PROTOCOLS[protocol].startswith("dyformer.")
    is_read, finished = (False, None) if has_own else _finished(dataset, reading, options)
    if finished is None:
        chosen = _checked(protocol, settings, experiment, methods, rest or [], epochs)
        has_enough = _check_of_steps(chosen.protocol, dataset, steps)
        if not is_read:
            ingested(dataset, reading, has_enough)
        with announced():
            finished = _benchmarked(dataset, reading, options, chosen, is_remembered=not has_own)
    else:
        project(Layout.from_environment())  # as the flow does
    print_tables(finished.tables)
    if json_file is not None:
        write_json(json_file, plain_steps(finished.rows))
    _write(out, {file: text.encode() for table in finished.tables for file, text in table.files().items()})


def _finished(dataset: str, reading: dict[str, Any], options: dict[str, Any]) -> "tuple[bool, Finished | None]":
    """Return whether the log was read, and what an earlier run printed, if all was given as now and no rows are new.

    The log is read if such a run ended on the stored rows, because that run has checked what is given.
    """
    from flows.tasks.finished import finished_benchmark
    from flows.tasks.snapshots import make_snapshots
    from storage.events.table import ingested_datasets
    from storage.layout import Layout

    is_stored = dataset in ingested_datasets(Layout.from_environment())
    if not is_stored or finished_benchmark(make_snapshots(dataset), options) is None:
        return False, None
    return True, finished_benchmark(ingested(dataset, reading)[0], options)


def _benchmarked(
    dataset: str, reading: dict[str, Any], options: dict[str, Any], chosen: "Chosen", *, is_remembered: bool
) -> "Finished":
    """Run the flow and remember its tables."""
    from flows.benchmark import benchmark as flow
    from flows.tasks.evaluation.measure import read_metrics, read_written
    from flows.tasks.finished import Finished, remember_tables

    protocol, experiment, methods = chosen
    arguments = (options["steps"], options["seeds"], experiment, methods, None, protocol.name, options["settings"])
    result = flow(dataset, reading, *arguments)
    tables = tables_of(protocol, result["snapshots"], read_metrics(result["metrics"]), experiment, list(methods))
    if is_remembered:
        remember_tables(result["snapshots"], options, tables, result["metrics"], protocol.written)
    return Finished(tables, read_written(result["metrics"], protocol))


class Chosen(NamedTuple):
    """What a benchmark is run with."""

    protocol: "Protocol"
    experiment: "Experiment"
    methods: dict[str, Any]  # by title


def _check_of_steps(protocol: "Protocol", dataset: str, steps: str | None) -> "Callable[[int], None] | None":
    """Return the check of a number of snapshots. Raises StepOutOfRange for steps of a protocol without them."""
    from dyformer.evaluation.protocols.protocol import check_has_steps, wanted_steps
    from dyformer.graphs.snapshots import FIRST_EVALUATED_STEP
    from flows.tasks.snapshots import check_range

    check_has_steps(protocol, steps)
    evaluated = [FIRST_EVALUATED_STEP] if steps is None else wanted_steps(steps)
    return partial(check_range, dataset, evaluated, FIRST_EVALUATED_STEP) if protocol.unit == "step" else None


def _checked(
    protocol: str,
    own: dict[str, str],
    experiment: "Experiment",
    methods: list[str] | None,
    changes: list[str],
    epochs: int | None,
) -> Chosen:
    """Give what a benchmark is run with, refused before anything is committed."""
    from dyformer.evaluation.protocols import protocol_of

    evaluated = protocol_of(protocol)
    if VISIBLE in own and VISIBLE not in evaluated.settings:
        raise typer.BadParameter("--visible belongs to --protocol tgb")
    evaluated = evaluated.changed(own)
    if evaluated.own_process:
        _check_no_cap(protocol, changes, epochs)
    if evaluated.reads_interactions:
        experiment = experiment.check_interactions()
    from dyformer.experiments.methods import Variation, check_effect
    from flows.tasks.methods import benchmark_methods

    chosen = benchmark_methods(methods, evaluated)
    check_effect(changed_names(with_cap(changes, epochs)), chosen.values(), {} if epochs is None else {CAP: "--epochs"})
    for variation in chosen.values() if evaluated.reads_interactions else ():
        if isinstance(variation, Variation):
            variation.changed(experiment).check_interactions()
    return Chosen(evaluated, experiment, chosen)


def protocol_settings(protocol: str, changes: list[str] | None) -> tuple[dict[str, str], list[str]]:
    """Take from the texts of --set those of a protocol, as in "cost.NAME=VALUE"; return its settings and the rest."""
    of_protocol = [change for change in changes or [] if change.startswith(f"{protocol}.")]
    pairs = [change.removeprefix(f"{protocol}.").partition("=") for change in of_protocol]
    return {name.strip(): value.strip() for name, _, value in pairs}, [
        change for change in changes or [] if change not in of_protocol
    ]


def tables_of(
    protocol: "Protocol", snapshots: str, rows: "pl.DataFrame", experiment: "Experiment", titles: list[str]
) -> "list[PrintedTable]":
    """Give the printed tables of a benchmark; they state its changed settings, those chosen by methods, and the cap."""
    from dyformer.experiments.methods import changes_of
    from dyformer.experiments.studies.study_tables import epochs_sentence
    from dyformer.experiments.tables import printed_tables
    from dyformer.experiments.tuning.grids import tuned_sentence
    from flows.tasks.snapshots import open_snapshots
    from flows.trials import searched_steps

    dataset = open_snapshots(snapshots).dataset
    tables = list(printed_tables(protocol, rows, dataset).values())
    steps = [int(step) for step in rows["step"].unique() if step.isdecimal()]
    tuned = tuned_sentence(titles, searched_steps(snapshots, protocol, steps))
    if tuned is not None:
        tables = [table._replace(sentences=[*table.sentences, tuned]) for table in tables]
    if experiment.max_epochs is not None:
        sentence = epochs_sentence(experiment.max_epochs)
        tables = [table._replace(title=f"{table.title}; {sentence}") for table in tables]
    changes = {f"{protocol.name}.{name}": value for name, value in protocol.given.items() if name != VISIBLE}
    changes |= {name: value for name, value in changes_of(experiment).items() if name != CAP}
    if changes:
        sentence = ", ".join(f"{name}={'none' if value is None else value}" for name, value in changes.items())
        tables = [table._replace(title=f"{table.title}; changed: {sentence}") for table in tables]
    return tables


def _run_study(  # noqa: PLR0913, because each option is an argument
    name: str,
    datasets: list[str],
    reading: dict[str, Any],
    steps: str | None,
    seeds: int,
    epochs: int | None,
    changes: list[str] | None,
    parallel: int,
    out: Path | None,
) -> None:
    """Run an experiment, print its tables, and write its files."""
    from dyformer.evaluation.protocols.protocol import wanted_steps
    from dyformer.experiments.studies.studies import study_of
    from flows.tasks.ingest import check_logs

    study = study_of(name)
    chosen = datasets or list(study.datasets)
    experiments = {dataset: experiment_from(with_cap(changes, epochs)) for dataset in chosen}
    study.check_changes(changed_names(changes or []))
    if study.measures_process:
        if parallel > 1:
            raise typer.BadParameter(f"{name} is measured with one trial at a time: leave --parallel out")
        _check_no_cap(name, changes, epochs)
    if study.reads_interactions:
        experiments = {dataset: experiment.check_interactions() for dataset, experiment in experiments.items()}
    if study.measures_process and any(experiment.pretrain is None for experiment in experiments.values()):
        raise typer.BadParameter(f"{name} measures pre-training too: leave --set pretrain=none out")
    readings = {dataset: reading_of(dataset, chosen, reading) for dataset in chosen}
    if steps is not None:
        wanted_steps(steps)
    check_logs(readings)
    for dataset in chosen:
        ingested(dataset, readings[dataset])
    with announced():
        from flows.commands.studies import run_study

        result = run_study(name, readings, experiments, steps, seeds, parallel, changes or [])
    print_tables([table.printed() for table in result.tables])
    _write(out, result.files)


def _write(out: Path | None, contents: "Mapping[str, bytes]") -> None:
    """Write files into a folder that the user named."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for file, content in contents.items():
            (out / file).write_bytes(content)
        print(f"wrote {counted(len(contents), 'file')} to {out}")


def _check_no_cap(name: str, changes: list[str] | None, epochs: int | None) -> None:
    if CAP in changed_names(with_cap(changes, epochs)):
        option = f"--set {CAP}" if epochs is None else "--epochs"
        raise typer.BadParameter(f"{name} measures an epoch, whatever their number: leave {option} out")


def reading_of(dataset: str, datasets: list[str], reading: dict[str, Any]) -> dict[str, Any]:
    """Return how the log of one of several datasets is read: with its own files of `--log uci=FILE`.

    A file without a name belongs to the only dataset. Raises BadParameter for one without a name among several.
    """
    files = [text.partition("=") for text in reading.get("log", [])]
    dataset_files = [file for name, sign, file in files if sign and name == dataset]
    unnamed = [sign.join([name, file]) if sign else name for name, sign, file in files if name not in datasets]
    if unnamed and len(datasets) > 1:
        raise typer.BadParameter(f"--log {unnamed[0]}: with several datasets write --log {datasets[0]}={unnamed[0]}")
    rest = {name: value for name, value in reading.items() if name != "log"}
    return {**rest, "log": [*dataset_files, *unnamed]} if dataset_files or unnamed else rest


def _check_study_options(
    dataset: str | None,
    datasets: str | None,
    methods: list[str] | None,
    protocol: str,
    visible: str | None,
    json_file: Path | None,
) -> None:
    if dataset is not None and datasets is not None:
        raise typer.BadParameter("name the datasets once: as DATASET, or by --datasets")
    options = {"--methods": methods, "--protocol": protocol != "paper", "--visible": visible, "--json": json_file}
    named = " and ".join(option for option, value in options.items() if value)
    if named:
        raise typer.BadParameter(
            f"an experiment has its own methods and protocol, and writes its tables to --out: leave {named} out"
        )


def _print_studies() -> None:
    import polars as pl

    from dyformer.evaluation.protocols import protocol_of
    from dyformer.experiments.studies.studies import STUDIES
    from dyformer.experiments.titles import OF_NODES, short_name, written_titles

    print_frame(pl.DataFrame([_row(name, study) for name, study in STUDIES.items()]))
    protocols = [protocol_of(name) for name in PROTOCOLS]
    print_frame(pl.DataFrame([{"protocol": listed.name, "meaning": listed.sentence} for listed in protocols]))
    kinds = {
        "links of steps": written_titles(["METHODS"]),
        "events (tgb)": written_titles(["EVENT_METHODS"]),
        "labels of nodes": written_titles(OF_NODES),
    }
    methods = [
        {"method": short_name(title), "title": title, "forecasts": kind} for kind in kinds for title in kinds[kind]
    ]
    print_frame(pl.DataFrame(methods))


def _row(name: str, study: "Study") -> dict[str, str]:
    methods = counted(len(study.rows), "row")
    return {"experiment": name, "rows": methods, "datasets": ", ".join(study.datasets), "meaning": study.sentence}
