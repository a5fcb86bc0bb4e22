"""READING_OPTIONS: how a log is read. The command line, the parameters of flows and messages all follow this table."""

import re
from typing import NamedTuple


class ReadingOption(NamedTuple):
    """An option of the command line; a flow takes its value under its name, and None where it is not given."""

    flags: str
    help: str
    kind: type = str


READING_OPTIONS = {
    "log": ReadingOption("--log", "file, folder, pattern or s3:// address; repeat for several", list[str]),
    "source": ReadingOption("--source", "column of the source: a name, or a position from 0"),
    "target": ReadingOption("--target", "column of the target"),
    "time": ReadingOption("--time", "column of the time"),
    "weight": ReadingOption(
        "--weight",
        "column of the weight, such as an amount; the forecasters alone read it, and snapshots count rows",
    ),
    "label": ReadingOption("--label", "column of the label (0 or 1)"),
    "separator": ReadingOption("--separator", "comma, tab, semicolon, pipe, space (one or more), or a character"),
    "has_header": ReadingOption("--header/--no-header", "whether the first row names the columns", bool),
    "comment_marks": ReadingOption(
        "--comments", 'characters that begin a comment above the rows (by default "%#", "" for none)'
    ),
    "time_unit": ReadingOption(
        "--time-unit",
        "s, ms, us, ns (since the epoch), iso, day-first (31/12/2024 23:59), month-first (12/31/2024 23:59), or step",
    ),
    "bipartite": ReadingOption("--bipartite/--one-space", "two id spaces: user 7 and item 7 are two nodes", bool),
    "directed": ReadingOption("--directed/--undirected", "whether the order of source and target matters", bool),
    "window": ReadingOption(
        "--window", 'snapshots: "7d", "12 equal", "calendar 1mo in Europe/Berlin", "10d trim 5d 60d"'
    ),
    "lateness": ReadingOption(
        "--lateness", 'how late rows may come: a window is complete so long after its end, as in "1d"'
    ),
    "finished": ReadingOption(
        "--finished/--growing", "whether no more rows will come, so that the last window is complete, too", bool
    ),
    "new_ids": ReadingOption(
        "--new-ids/--known-ids", "whether a later file may have other ids only, such as those of sessions", bool
    ),
    "drop_duplicates": ReadingOption("--drop-duplicates", "drop exact repeats of a row", bool),
    "force": ReadingOption(
        "--force", "commit files of another form, other times or unknown ids to a dataset that has rows", bool
    ),
    "max_bad": ReadingOption("--max-bad", "stop if a larger part of the rows is unusable (5% or 0.05; by default 1%)"),
}
SWITCHES = [name for name, option in READING_OPTIONS.items() if option.kind is bool]
RUN_OPTIONS = ("steps", "as_of")
"""Arguments of flows that messages name, with options of their own names."""


def on_command_line(message: str) -> str:
    """Write the arguments named in a message, such as `time_unit="s"`, as options: --time-unit s."""
    return re.sub(r"`(\w+)(?:=([^`]+))?`", _as_option, message)


def _as_option(named: re.Match[str]) -> str:
    name, value = named[1], named[2]
    if name not in READING_OPTIONS:
        return f"--{name.replace('_', '-')}" if name in RUN_OPTIONS else named[0]
    flags = READING_OPTIONS[name].flags.split("/")
    if value in (None, "True", "False"):
        return flags[-1 if value == "False" else 0]
    text = value.strip('"')
    return f'{flags[0]} "{text}"' if " " in text else f"{flags[0]} {text}"
