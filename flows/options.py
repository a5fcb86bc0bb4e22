"""Options that several commands share, and the experiment of their --set."""

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.tasks.reading_options import READING_OPTIONS, ReadingOption, on_command_line

if TYPE_CHECKING:
    from dyformer.experiments.settings import Experiment


def optional(help_text: str, *flags: str, **limits: Any) -> Any:
    """Give an option that may be left out; its help says what holds then. `limits` are those of typer."""
    return typer.Option(*flags, help=help_text, show_default=False, **limits)


Name = Annotated[
    str, typer.Argument(metavar="DATASET", help="a known name (see `dyformer datasets`) or a new one for your own log")
]
Stored = Annotated[str, typer.Argument(metavar="DATASET", help="name of a dataset in the store")]
Changes = Annotated[
    list[str] | None, optional("change a setting: --set model.num_layers=4; repeat for several", "--set")
]
Epochs = Annotated[
    int | None, optional("cap on the epochs of every trained method: DyFormer's stages and the baselines", min=1)
]
Seed = Annotated[int, typer.Option(help="seed of the split and of the training", min=0, max=2**32 - 1)]
AsOf = Annotated[
    str | None,
    optional(
        'the time by which windows are complete: "now", 2024-03-01T00:00 (UTC), or a step (by default that of the'
        " newest row)"
    ),
]
JsonFile = Annotated[Path | None, optional("also write the results to this file", "--json", dir_okay=False)]


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


def of_cluster(help_text: str, callback: Callable[..., str | None] | None = None) -> Any:
    """Give the option that names the head of a Ray cluster."""
    return optional(help_text, "--on", metavar="HOST:PORT", envvar="DYFORMER_RAY_ADDRESS", callback=callback)


OnForTrials = Annotated[str | None, of_cluster("head of a Ray cluster whose workers run the trials", _name_cluster)]
On = Annotated[
    str | None,
    of_cluster("head of a Ray cluster whose workers compute vectors, forecasts and the PageRank table", _use_cluster),
]


def _use_ranks(context: typer.Context, num: int | None) -> int | None:
    """Have the trainings of this process shared by so many."""
    if num is not None and not context.resilient_parsing:  # a shell completes the line
        os.environ["DYFORMER_RANKS"] = str(num)
    return num


Ranks = Annotated[
    int | None,
    optional(
        "processes that share a training, on this machine; needs pretrain.batches_per_step and"
        " finetune.batches_per_step of at least as many",
        "--ranks",
        envvar="DYFORMER_RANKS",
        min=1,
        callback=_use_ranks,
    ),
]
LinksName = Literal["all", "new", "repeat"]
WholeTables = Annotated[bool, typer.Option("--table", help="print all rows of the tables instead of the first five")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]

READING_PANEL = "How the log is read (guessed if not given)"


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


def _annotation(option: ReadingOption) -> Any:
    panel = None if option.flags == "--log" else READING_PANEL
    return Annotated[option.kind | None, optional(option.help, option.flags, rich_help_panel=panel)]


def with_reading(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that takes `reading: dict` the options of READING_OPTIONS instead, and those given."""
    parameters = [
        parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != "reading"
    ]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(option))
        for name, option in READING_OPTIONS.items()
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
    for name in reading:
        raise typer.BadParameter(on_command_line(f"{option} reads no file: leave out `{name}`"))


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
