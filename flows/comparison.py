"""The command `compare`: tracked runs -> their settings and metrics side by side."""

from typing import Annotated

import typer

from flows.console import print_frame, print_json
from flows.options import AsJson


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
