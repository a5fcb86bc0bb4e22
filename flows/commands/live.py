"""The commands that rank as of now: `rank` in a process of its own, `serve` for other programs and browsers."""

import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from dyformer.logs.counts import counted
from flows.console import ongoing, print_frame, print_json, printable, printed_probability
from flows.options import AsJson, Stored, optional

COLUMNS = ("rank", "target", "probability", "linked before", "reasons")
Source = Annotated[str, typer.Argument(metavar="SOURCE", help="id of the source, as in the log")]
Refit = Annotated[bool, typer.Option("--refit", help="fit the forecaster again, on all events so far")]


def rank(
    dataset: Stored,
    source: Source,
    at: Annotated[
        str | None,
        optional(
            "as of this time, from the events before it: 2024-03-01T00:00 (UTC), or a step (by default after the"
            " newest event)"
        ),
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", help="number of targets", min=1)] = 10,
    horizon: Annotated[
        str | None,
        optional(
            "give the probability that each pair occurs within this time, as 1d or 6h (or a number of steps), not"
            " that it is the source's next"
        ),
    ] = None,
    refit: Refit = False,
    as_json: AsJson = False,
) -> None:
    """Rank the next partners of a source as of now, or as of a time: every event before it counts.

    The forecaster is fitted on the events so far, once; `--refit` fits it again. As of an earlier time, one is taken
    that has read no event at that time or later. With `--horizon`, a forecaster by pair is fitted on past times of this
    length and calibrated on the newest one, once for each version of the log.
    """
    import polars as pl

    from dyformer.logs.moments import read_moment, written_moment
    from dyformer.scoring.sent_events import check_id
    from flows.tasks.live import checked_horizons, open_horizon, open_ranking, ranking_record
    from storage.events.declarations import declared_record
    from storage.events.table import newest_version
    from storage.layout import Layout

    layout = Layout.from_environment()
    newest_version(layout, dataset)  # an unknown dataset is named before its time is read
    unit = declared_record(layout, dataset)["time_unit"]
    time = None if at is None else read_moment(at, unit)
    check_id("source", source)
    lengths = checked_horizons(layout, dataset, [] if horizon is None else [horizon], at=time)
    with ongoing(f"rank {dataset}", to_errors=True):
        opened = open_ranking(dataset, at=time, refit=refit, show=_show)
        of_pairs = [open_horizon(opened, length, at=time, show=_show, layout=layout) for length in lengths.values()]
        ranking = opened.ranking.rank(source, at=time, k=k, horizon=next(iter(of_pairs), None))
    record = {**ranking_record(opened, ranking), "horizon": horizon}
    _check_source(source, record["num_events"])
    if as_json:
        print_json(record)
        return
    rows = [tuple(map(str, _cells(row))) for row in record["ranking"]]
    within = "next partners" if horizon is None else f"partners within {horizon}"
    newest = opened.ranking.newest_time
    when = f"as of {record['at']}"
    if time is None and newest is not None:
        when = f"after the newest event, of {written_moment(newest, unit)}"
    print_frame(pl.DataFrame(rows, schema=COLUMNS, orient="row"), f"{within} of {source} {when}")
    print(printable(f"{source}: {record['note'] or counted(record['num_events'], 'event') + ' before this time'}"))


def _check_source(source: str, num_events: int) -> None:
    """Raise BadParameter for a misspelt option. Unknown options are taken as sources, because an id may be -5."""
    if source.startswith("--") and not num_events:
        raise typer.BadParameter(f"no such option, and no source with an event: {source}")


def _cells(row: dict[str, Any]) -> Iterator[Any]:
    yield row["rank"]
    yield row["target"]
    yield printed_probability(row["probability"])
    yield "yes" if row["linked_before"] else "no"
    yield "; ".join(row["reasons"]) or "nothing stands out"


def serve(
    dataset: Stored,
    port: Annotated[
        int | None, optional("port (by default 8100, or a free one if that is taken)", min=1, max=65_535)
    ] = None,
    host: Annotated[str, typer.Option(help="address of this machine at which it listens")] = "127.0.0.1",
    names: Annotated[
        list[str] | None,
        optional("name by which it or a proxy before it is called, beside that address; repeat for several", "--name"),
    ] = None,
    horizons: Annotated[
        list[str] | None,
        optional(
            "length of time, as 1d or 6h (or a number of steps), for which it gives the probability that a pair"
            " occurs within it; repeat for several",
            "--horizon",
        ),
    ] = None,
) -> None:
    """Serve a dataset as of now until Ctrl-C: events in, rankings and scores out, and a page that finds a node.

    An event that was acknowledged is on the disk, counts in the next request and is committed by the next ingest.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # set before the libraries load, because requests are the threads
    from flows.live.running import serve_dataset
    from storage.layout import Layout

    served_names, served_horizons = (tuple(dict.fromkeys(texts or ())) for texts in (names, horizons))
    serve_dataset(Layout.from_environment(), dataset, host, port, served_names, served_horizons, _show)


def _show(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
