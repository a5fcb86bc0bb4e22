"""Options that several commands share, and the experiment of their --set."""

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from dyformer.experiments.settings import Experiment

Name = Annotated[
    str, typer.Argument(metavar="DATASET", help="a known name (see `dyformer datasets`) or a new one for your own log")
]
Stored = Annotated[str, typer.Argument(metavar="DATASET", help="name of a dataset in the store")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="change a setting: --set model.num_layers=4; repeat for several", show_default=False),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        help="cap on the epochs of every trained method: DyFormer's stages and the baselines",
        min=1,
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(help="seed of the split and of the training", min=0, max=2**32 - 1)]
AsOf = Annotated[
    str | None,
    typer.Option(
        help='the time by which windows are complete: "now", 2024-03-01T00:00 (UTC), or a step (by default that of the'
        " newest row)",
        show_default=False,
    ),
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="also write the results to this file", dir_okay=False, show_default=False)
]


def _name_cluster(context: typer.Context, address: str | None) -> str | None:
    """Have the flows of this process use a Ray cluster; an empty address switches it off."""
    if address is not None and not context.resilient_parsing:  # else a shell completes the line
        os.environ["DYFORMER_RAY_ADDRESS"] = address
    return address


def _use_cluster(context: typer.Context, address: str | None) -> str | None:
    """Have the flows of this process use a Ray cluster, which is checked before anything is read."""
    if _name_cluster(context, address) and not context.resilient_parsing:
        from flows.cluster import check_cluster
        from storage.layout import Layout

        check_cluster(address or "", Layout.from_environment())
    return address


OnForTrials = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="HOST:PORT",
        envvar="DYFORMER_RAY_ADDRESS",
        help="head of a Ray cluster whose workers run the trials",
        callback=_name_cluster,
        show_default=False,
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="HOST:PORT",
        envvar="DYFORMER_RAY_ADDRESS",
        help="head of a Ray cluster whose workers compute vectors, forecasts and the PageRank table",
        callback=_use_cluster,
        show_default=False,
    ),
]


def _use_ranks(context: typer.Context, num: int | None) -> int | None:
    """Have the trainings of this process shared by so many."""
    if num is not None and not context.resilient_parsing:  # a shell completes the line
        os.environ["DYFORMER_RANKS"] = str(num)
    return num


Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        envvar="DYFORMER_RANKS",
        help="processes that share a training, on this machine; needs pretrain.batches_per_step and"
        " finetune.batches_per_step of at least as many",
        min=1,
        callback=_use_ranks,
        show_default=False,
    ),
]
LinksName = Literal["all", "new", "repeat"]
WholeTables = Annotated[bool, typer.Option("--table", help="print all rows of the tables instead of the first five")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]

READING_PANEL = "How the log is read (guessed if not given)"


def _option(kind: Any, *names: str, help: str) -> Any:
    return Annotated[kind | None, typer.Option(*names, help=help, rich_help_panel=READING_PANEL, show_default=False)]


READING_OPTIONS: dict[str, Any] = {
    "log": Annotated[
        list[str] | None,
        typer.Option("--log", help="file, folder, pattern or s3:// address; repeat for several", show_default=False),
    ],
    "source": _option(str, "--source", help="column of the source: a name, or a position from 0"),
    "target": _option(str, "--target", help="column of the target"),
    "time": _option(str, "--time", help="column of the time"),
    "weight": _option(
        str,
        "--weight",
        help="column of the weight, such as an amount; the forecasters alone read it, and snapshots count rows",
    ),
    "label": _option(str, "--label", help="column of the label (0 or 1)"),
    "separator": _option(str, "--separator", help="comma, tab, semicolon, pipe, space (one or more), or a character"),
    "has_header": _option(bool, "--header/--no-header", help="whether the first row names the columns"),
    "comment_marks": _option(
        str,
        "--comments",
        help='characters that begin a comment above the rows (by default "%#", "" for none)',
    ),
    "time_unit": _option(
        str,
        "--time-unit",
        help="s, ms, us, ns (since the epoch), iso, day-first (31/12/2024 23:59), month-first (12/31/2024 23:59),"
        " or step",
    ),
    "bipartite": _option(bool, "--bipartite/--one-space", help="two id spaces: user 7 and item 7 are two nodes"),
    "directed": _option(bool, "--directed/--undirected", help="whether the order of source and target matters"),
    "window": _option(
        str, "--window", help='snapshots: "7d", "12 equal", "calendar 1mo in Europe/Berlin", "10d trim 5d 60d"'
    ),
    "lateness": _option(
        str, "--lateness", help='how late rows may come: a window is complete so long after its end, as in "1d"'
    ),
    "finished": _option(
        bool, "--finished/--growing", help="whether no more rows will come, so that the last window is complete, too"
    ),
    "new_ids": _option(
        bool, "--new-ids/--known-ids", help="whether a later file may have other ids only, such as those of sessions"
    ),
    "drop_duplicates": Annotated[
        bool, typer.Option("--drop-duplicates", help="drop exact repeats of a row", rich_help_panel=READING_PANEL)
    ],
    "force": Annotated[
        bool,
        typer.Option(
            "--force",
            help="commit files of another form, other times or unknown ids to a dataset that has rows",
            rich_help_panel=READING_PANEL,
        ),
    ],
    "max_bad": Annotated[
        str,
        typer.Option(
            "--max-bad",
            help="stop if a larger part of the rows is unusable (5% or 0.05)",
            rich_help_panel=READING_PANEL,
        ),
    ],
}
RUN_OPTIONS = ("steps", "as_of")
"""Arguments of flows that messages name, with options of their own names."""

DEFAULTS: dict[str, Any] = {"drop_duplicates": False, "force": False, "max_bad": "1%"}


def on_command_line(message: str) -> str:
    """Write the arguments named in a message, such as `time_unit="s"`, as options: --time-unit s."""
    return re.sub(r"`(\w+)(?:=([^`]+))?`", _as_option, message)


def _as_option(named: re.Match[str]) -> str:
    name, value = named[1], named[2]
    if name not in READING_OPTIONS:
        return f"--{name.replace('_', '-')}" if name in RUN_OPTIONS else named[0]
    flags = READING_OPTIONS[name].__metadata__[0].default.split("/")  # typer takes the first name for a default
    if value in (None, "True", "False"):
        return flags[-1 if value == "False" else 0]
    text = value.strip('"')
    return f'{flags[0]} "{text}"' if " " in text else f"{flags[0]} {text}"


def check_ingested(dataset: str) -> None:
    """Raise DatasetNotIngested for a name that the store lacks, before anything heavy is imported."""
    from storage.events.table import newest_version
    from storage.layout import Layout

    newest_version(Layout.from_environment(), dataset)


def check_titles(given: list[str] | None) -> None:
    """Raise UnknownMethod for a misspelt title; a user's own classes are checked when they are imported."""
    from dyformer.experiments.titles import check_title, split_names

    for name in split_names(given):
        if ":" not in name:
            check_title(name)


def with_reading(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that takes `reading: dict` the options of READING_OPTIONS instead."""
    parameters = [
        parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != "reading"
    ]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name), annotation=annotation)
        for name, annotation in READING_OPTIONS.items()
    ]

    @functools.wraps(command)
    def with_options(**values: Any) -> Any:
        reading = {name: values.pop(name) for name in READING_OPTIONS}
        return command(**values, reading={name: value for name, value in reading.items() if value is not None})

    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    with_options.__signature__ = inspect.Signature(keyword + shared)  # pyright: ignore[reportAttributeAccessIssue]
    return with_options


def check_alone(option: str, reading: dict[str, Any]) -> None:
    """Raise BadParameter for an option that stands beside options of the reading of a log."""
    others = [name for name, value in reading.items() if value != DEFAULTS.get(name)]
    if others:
        raise typer.BadParameter(on_command_line(f"{option} reads no file: leave out `{others[0]}`"))


def known_protocol(name: str) -> str:
    """Return the name of a protocol, which may be one of the user's own, `package.module:OBJECT`.

    Raises BadParameter for another one, with the known names.
    """
    from dyformer.evaluation.protocols import UnknownProtocol, check_name

    try:
        if ":" in name:
            from flows.tasks.methods import own_protocol

            return own_protocol(name)
        check_name(name)
    except UnknownProtocol as error:
        raise typer.BadParameter(str(error)) from error
    return name


def experiment_from(changes: list[str] | None) -> "Experiment":
    """Read the `name=value` texts of --set, before anything heavy is imported."""
    from dyformer.experiments.settings import Experiment

    pairs = [change.partition("=") for change in changes or []]
    wrong = [name for name, sign, _ in pairs if not sign]
    if wrong:
        raise typer.BadParameter(f"--set {wrong[0]}: write name=value, such as --set model.num_layers=4")
    return Experiment().changed({name.strip(): value.strip() for name, _, value in pairs})


def changed_names(changes: Iterable[str]) -> list[str]:
    """Give the names of `name=value` texts."""
    return [change.partition("=")[0].strip() for change in changes]


CAP = "max_epochs"  # the setting of --epochs


def with_cap(changes: list[str] | None, epochs: int | None) -> list[str]:
    """Give the changes of --set with the cap of --epochs. Raises BadParameter where --set has it, too."""
    if epochs is not None and CAP in changed_names(changes or []):
        raise typer.BadParameter(f"--epochs and --set {CAP} are the same cap: leave one of them out")
    return [*(changes or []), *([] if epochs is None else [f"{CAP}={epochs}"])]
