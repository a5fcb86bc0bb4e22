"""A stored log -> its ranking as of now or as of a time: the forecaster, the state, and the ids of the nodes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from dyformer.logs.moments import written_moment
from dyformer.logs.time_windows import TimeUnit, horizon_length
from dyformer.scoring.event_forecaster import FittedEventForecaster
from dyformer.scoring.event_horizon import FittedHorizon, horizon_starts, naming
from dyformer.scoring.live_ranking import LiveRanking, NodeIds, Ranking
from dyformer.scoring.packed_ranking import PackedRanking
from dyformer.streams.event_state import EventState
from flows.tasks.event_state import (
    Show,
    events_before,
    is_state_stored,
    make_horizon,
    make_model,
    newest_model,
    newest_time,
    node_numbers,
    open_state,
    read_horizon,
    read_model,
    settings_of,
)
from storage.events import versions
from storage.events.declarations import declared_record
from storage.events.rows import ids_are_integers
from storage.events.table import history, newest_version, node_dictionary, scan_events
from storage.layout import Layout

INTEGER = re.compile("0|-?[1-9][0-9]{0,18}")
NO_PAST = "the source has no event before this time: its targets are those that new sources choose"


@dataclass(frozen=True, kw_only=True)
class OpenedRanking:
    """A ranking, and which version of the log and which stored forecaster it is of."""

    ranking: LiveRanking
    dataset: str
    version: int
    digest: str  # of the commit of this version, by which a log differs from a dropped one
    model: str  # address
    time_unit: TimeUnit
    has_integer_ids: bool


def quiet(text: str) -> None:
    """Show nothing."""


def open_ranking(
    dataset: str,
    *,
    at: int | None = None,
    refit: bool = False,
    show: Show = quiet,
    layout: Layout | None = None,
    earlier: OpenedRanking | None = None,
) -> OpenedRanking:
    """Open the ranking of a log as of a time, by default after its newest event.

    The newest stored forecaster is read that was fitted on events before that time (as of now, on all events of a
    version), and one is made where there is none, or with `refit`. As of now the state is the stored one, brought up to
    date; as of an earlier time it is made from the events before it. The forecaster of `earlier` is not read again if
    it is still the newest, and stays where there is no other.

    Raises:
        DatasetNotIngested: the store lacks the log.
        TooFewPastEvents: a forecaster cannot be fitted on so few events.
    """
    layout = layout or Layout.from_environment()
    version = newest_version(layout, dataset)
    newest = newest_time(layout, dataset, version)
    before = at if at is not None and at <= newest else None
    model = None if refit else newest_model(layout, dataset, before=before)
    model = model or (earlier.model if earlier is not None else None)
    if model is None:
        show(
            f"fitting the event forecaster of {dataset} on its past: once, some minutes for 100,000 events, and about"
            " a minute more after an installation, which has to compile code once"
        )
        model = make_model(dataset, version, before=before, layout=layout)
    fitted = earlier.ranking.fitted if earlier is not None and earlier.model == model else read_model(model)
    ranking = _past_ranking(layout, dataset, version, before, fitted) if before is not None else None
    if ranking is None:
        if not is_state_stored(layout, dataset, version):
            show(f"bringing the state of {dataset} up to its newest event")
        ranking = current_ranking(layout, dataset, version, fitted, show)
    return OpenedRanking(
        ranking=ranking,
        dataset=dataset,
        version=version,
        digest=versions.opened(layout, dataset, version).digest,
        model=model,
        time_unit=declared_record(layout, dataset)["time_unit"],
        has_integer_ids=ids_are_integers(_with_events(layout, dataset, version)),
    )


def _with_events(layout: Layout, dataset: str, version: int) -> pl.DataFrame:
    """Give the nodes that have events: the dictionary has those of a commit that was taken back, too."""
    nodes = node_dictionary(layout, dataset, version)
    if history(layout, dataset, version)["version"].n_unique() == version:
        return nodes
    ends = scan_events(layout, dataset, version).select(node=pl.concat_list("source_node", "target_node"))
    return nodes.join(ends.explode("node").unique().collect(), on="node", how="semi")


def current_ranking(
    layout: Layout, dataset: str, version: int, fitted: FittedEventForecaster, show: Show = quiet
) -> LiveRanking:
    """Give the ranking after all events of a version, from the stored state."""
    state = open_state(dataset, version, layout, show)
    return LiveRanking(fitted, state, stored_ids(layout, dataset, version))


def packed_ranking(layout: Layout, dataset: str, version: int) -> PackedRanking | None:
    """Give all that ranks as of now, after all events of a version, for a package that is independent of the store.

    None where no event forecaster of this version or an earlier one is stored.
    """
    model = newest_model(layout, dataset, version=version)
    if model is None:
        return None
    return PackedRanking(
        fitted=read_model(model),
        state=open_state(dataset, version, layout, quiet),
        ids=stored_ids(layout, dataset, version),
        time_unit=declared_record(layout, dataset)["time_unit"],
        first_time=min(history(layout, dataset, version)["first_time"]),
        has_integer_ids=ids_are_integers(_with_events(layout, dataset, version)),
    )


def _past_ranking(
    layout: Layout, dataset: str, version: int, before: int, fitted: FittedEventForecaster
) -> LiveRanking:
    numbered = events_before(layout, dataset, version, before)
    state = EventState(numbered.log.num_sources, numbered.log.num_targets, settings_of(layout, dataset, version))
    state.observe(numbered.log)
    targets = numbered.target_node_T if numbered.log.two_sides else numbered.source_node_S
    ids = _ids(node_dictionary(layout, dataset, version), numbered.source_node_S, targets)
    return LiveRanking(fitted, state, ids)


def stored_ids(layout: Layout, dataset: str, version: int) -> NodeIds:
    """Give the ids of the sources and of the targets of a version, each in the order of its numbers."""
    sources, targets = node_numbers(layout, dataset, version)
    return _ids(node_dictionary(layout, dataset, version), sources, targets)


def _ids(nodes: pl.DataFrame, sources: np.ndarray, targets: np.ndarray) -> NodeIds:
    names = nodes["id"]  # row n is node n
    source_ids = names.gather(sources).to_list()
    return NodeIds(sources=source_ids, targets=source_ids if targets is sources else names.gather(targets).to_list())


def checked_horizons(layout: Layout, dataset: str, names: Sequence[str], *, at: int | None = None) -> dict[str, int]:
    """Give the lengths of horizons, such as "1d", before anything is fitted.

    Raises DatasetNotIngested, WindowError for one that does not fit the log, and TooFewPastEvents where the events
    before `at` are too few.
    """
    version = newest_version(layout, dataset)
    unit = declared_record(layout, dataset)["time_unit"]
    lengths = {name: horizon_length(name, unit) for name in names}
    if lengths:
        times = scan_events(layout, dataset, version).select("time")
        times = times if at is None else times.filter(pl.col("time") < at)
        time_E = times.sort("time").collect()["time"].to_numpy()
        for name, length in lengths.items():
            with naming(name):
                horizon_starts(time_E, length)
    return lengths


def open_horizon(
    opened: OpenedRanking, length: int, *, at: int | None = None, show: Show = quiet, layout: Layout | None = None
) -> FittedHorizon:
    """Open the forecaster by pair for a length of time, fitted on events before `at`, and make it if it is not stored.

    It has read no other version of the log than the ranking.

    Raises TooFewPastEvents for a log that is too short for the horizon.
    """
    layout = layout or Layout.from_environment()
    newest = newest_time(layout, opened.dataset, opened.version)
    before = at if at is not None and at <= newest else None
    show(f"fitting the forecaster by pair of {opened.dataset} on past horizons, unless it is stored")
    return read_horizon(make_horizon(opened.dataset, length, version=opened.version, before=before, layout=layout))


def ranking_record(opened: OpenedRanking, ranking: Ranking) -> dict[str, Any]:
    """Give a ranking as plain values: of the source, the time, and a list of the best targets."""
    rows = [
        {
            "rank": position + 1,
            "target": written_id(opened, target),
            "probability": float(ranking.probability_K[position]),
            "linked_before": not ranking.is_new_K[position],
            "reasons": ranking.reasons[position] if ranking.reasons else [],
        }
        for position, target in enumerate(ranking.targets)
    ]
    is_known = ranking.num_events > 0
    return {
        "dataset": opened.dataset,
        "source": written_id(opened, ranking.source),
        "at": written_moment(ranking.at, opened.time_unit),
        "num_events": ranking.num_events,
        "known": is_known,
        "note": None if is_known else no_past_note(opened, ranking.source),
        "ranking": rows,
    }


def no_past_note(opened: OpenedRanking, source: str) -> str:
    """Say that a source has no event, and name the one that it may mean; ids are exact texts, so that is no match."""
    other = opened.ranking.ids.in_other_capitals(source)
    return NO_PAST if other is None else f"{NO_PAST}. The log has {other}, which differs in capitals only"


def written_id(opened: OpenedRanking, text: str) -> str | int:
    """Give an id as the user's own type: an integer where all ids of the log are integers."""
    return int(text) if opened.has_integer_ids and INTEGER.fullmatch(text) else text
