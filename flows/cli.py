"""The `dyformer` command: arguments -> the flows and tasks, with no server needed."""

import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from dyformer import InvalidInput
from flows.ending import exit_code
from flows.options import optional
from flows.service.environment import collect_seldom, end_with_code
from flows.service.running import use_running_stack

COMMANDS = {
    "datasets": "store",
    "settings": "tune",
    "ingest": "rows",
    "snapshots": "rows",
    "prepare": "rows",
    "predict": "runs",
    "sql": "store",
    "drop": "store",
    "verify": "store",
    "run": "runs",
    "retrain": "runs",
    "report": "runs",
    "audit": "runs",
    **dict.fromkeys(("up", "ui", "login", "deploy", "schedule", "track", "doctor"), "service"),
    **dict.fromkeys(("champions", "rollback", "export", "drift"), "results"),
    "tune": "tune",
    "rank": "live",
    "serve": "live",
    "benchmark": "benchmark",
    "compare": "results",
    "prune": "store",
}
"""Each command, in the order of the help -> the module of `flows.commands` that has it."""

WITH_ID = ("rank",)  # whose argument may be the id -5, so that what is no option is an argument


class _Commands(Mapping[str, Any]):
    """The commands by their names, of which one is imported when it is named, and all are for a list of them."""

    def __getitem__(self, name: str) -> Any:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def _command(name: str) -> Any:
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    function = getattr(import_module(f"flows.commands.{COMMANDS[name]}"), name)
    alone.command(name, context_settings={"ignore_unknown_options": name in WITH_ID})(function)
    return typer.main.get_command(alone)


class _Program(typer.core.TyperGroup):
    """The program, which knows its commands by their names alone."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Commands()


app = typer.Typer(
    cls=_Program,
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


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit; an error prints one line. Without arguments, those of the process, it ends, too."""
    if arguments is not None:
        sys.exit(exit_code(lambda: app(arguments, prog_name="dyformer")))
    collect_seldom()
    code = exit_code(lambda: app(prog_name="dyformer"))
    end_with_code(code)
    sys.exit(code)
