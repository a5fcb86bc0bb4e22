"""A checked log -> a model of its events, which every later event changes as soon as it is observed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.experiments.api import Log, read_log
from dyformer.experiments.arguments import as_path, check_process, reported, stripped, texts, whole
from dyformer.experiments.saved_models import Parts, read_model, write_model
from dyformer.logs.counts import counted
from dyformer.logs.datasets import Columns
from dyformer.logs.moments import MICROSECONDS_OF, UnreadableMoment, expected_times, read_moment, written_moment
from dyformer.logs.plan import ReadPlan
from dyformer.logs.raw_file import UnreadableTime
from dyformer.logs.records import as_frame, text_series
from dyformer.logs.time_windows import TimeUnit, horizon_length
from dyformer.scoring.event_forecaster import EventForecaster, FittedEventForecaster, fit_on_past
from dyformer.scoring.event_heads import Done
from dyformer.scoring.event_horizon import FittedHorizon, fit_horizon, horizon_starts, naming
from dyformer.scoring.live_ranking import LiveRanking, NamedEvents, NodeIds
from dyformer.scoring.sent_events import check_id
from dyformer.streams.event_log import EventLog
from dyformer.streams.event_state import EventState

if TYPE_CHECKING:
    import pandas as pd


class EventModel:
    """A forecaster of each source's next target, and the state of all events so far."""

    def __init__(
        self, ranking: LiveRanking, plan: ReadPlan, ids: pl.DataType, horizons: Mapping[str, FittedHorizon]
    ) -> None:
        """Take a ranking, how its log was read, the type of its ids and horizons by name; `fit_events` makes one."""
        self._ranking, self._plan, self._ids, self._horizons = ranking, plan, ids, dict(horizons)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what `save` stores, because locks and fitted functions cannot be pickled."""
        return _model_of, self._parts()

    def save(self, folder: str | Path) -> None:
        """Store the model with all events so far in a folder: JSON, Parquet and safetensors, no pickle.

        `EventModel.load` reads it. A model that is there is replaced. Raises ValueError for a folder of other files.
        """
        check_process()
        write_model(as_path("folder", folder), "events", self._parts())

    @classmethod
    def load(cls, folder: str | Path) -> "EventModel":
        """Read a model that `save` stored: it ranks as that one did, and observes further events.

        Raises ValueError for a folder without one, or of another version.
        """
        check_process()
        return _model_of(*read_model(as_path("folder", folder), "events"))

    def _parts(self) -> Parts:
        arrays, ids = self._ranking.copied()
        record = {
            "forecaster": self._ranking.fitted.record(),
            "horizons": {name: horizon.record() for name, horizon in self._horizons.items()},
            "plan": asdict(self._plan),
            "has_integer_ids": self._ids.is_integer(),
        }
        sides = {"sources": ids.sources, "targets": ids.targets} if ids.two_sides else {"sources": ids.sources}
        tables = {side: pl.DataFrame({"id": names}, schema={"id": pl.String}) for side, names in sides.items()}
        return record, tables, arrays

    def __repr__(self) -> str:
        return f"EventModel of {counted(self._ranking.num_events, 'event')}"

    def observe(self, events: "pl.DataFrame | pd.DataFrame | list[tuple[Any, ...]]") -> None:
        """Let events count that are not older than the newest one so far; they may have new nodes.

        Args:
            events: a frame with the columns of the log, that of the weight too, or tuples (source, target, time) or
                with a weight.

        Raises:
            ValueError: an event older than the newest one so far, or rows that are not usable.
        """
        check_process()
        frame = as_frame(events)
        if len(frame) == 0:
            return
        columns = {} if isinstance(events, list) else {name: getattr(self._plan.columns, name) for name in COLUMNS}
        log = self._read(frame, columns)
        named, newest = NamedEvents.from_table(log.events), self._ranking.newest_time
        self._check_ids([*named.sources, *named.targets])
        if len(named) and newest is not None and named.times[0] < newest:
            times = pl.Series([newest, named.times[0]], dtype=pl.Int64).cast(log.events.schema["time"])
            raise InvalidInput(
                f"expected events from {times[0]} on, the time of the newest so far; got one of {times[1]}"
            )
        self._ranking.observe(named)

    def _read(self, frame: "pl.DataFrame | pd.DataFrame", columns: dict[str, Any]) -> Log:
        """Read events as the log was read; one of counts since the epoch takes dates, too. Raises ValueError."""
        unit, bipartite = self._plan.time_unit, self._plan.bipartite
        for tried in (unit, "iso") if unit in MICROSECONDS_OF else (unit,):
            with suppress(UnreadableTime):
                log = read_log(frame, **columns, time_unit=tried, bipartite=bipartite, max_bad=0.0)
                if (log.plan.time_unit == "step") == (unit == "step"):
                    return log
        time = columns.get("time", "time")
        first = next(iter(frame[list(frame.columns)[time] if isinstance(time, int) else time]))
        raise InvalidInput(f"the time {first!r}: expected times as the log has them, {expected_times(unit)}")

    def _check_ids(self, ids: list[str]) -> None:
        """Raise ValueError for ids of another type than those of the log, which no ranking could give back."""
        if self._ids.is_integer():
            names = pl.Series(ids, dtype=pl.String)
            wrong = names.filter(names.cast(self._ids, strict=False).cast(pl.String).ne_missing(names))
            if len(wrong):
                raise InvalidInput(f"expected integer ids, as the log has; got {wrong[0]!r}")

    def rank(
        self, source: Any, *, at: "datetime | str | int | None" = None, k: int = 10, horizon: str | None = None
    ) -> pl.DataFrame:
        """Rank a source's next targets: rank (from 1), target, probability, linked_before, reasons.

        The probability is that the target is the source's next one, or with a horizon that the pair occurs within it.

        A source without an event is ranked by what new sources choose.

        Args:
            source: id of the source.
            at: the time, after the newest event: a date (in UTC if it has no zone), or a step of a log with integer
                steps. By default the earliest time at which all events so far count.
            k: number of targets at most.
            horizon: one of those that were fitted.

        Raises:
            ValueError: a source that is no id of the log's type, a time that is not after the newest event or does not
                fit the log, k below 1, or a horizon that was not fitted.
        """
        check_process()
        if isinstance(source, bool) or not isinstance(source, str | int | np.integer):
            raise InvalidInput(f"source = {source!r}: expected an id, found {type(source).__name__}")
        [name] = stripped(text_series([str(source)]))
        self._check_ids([name])
        check_id("source", name)
        unit, newest = self._plan.time_unit, self._ranking.newest_time
        moment = None if at is None else _moment(at, unit)
        if moment is not None and newest is not None and moment <= newest:
            raise InvalidInput(
                f"at = {at!r}: expected a time after that of the newest event, {written_moment(newest, unit)}"
            )
        if horizon is not None and horizon not in self._horizons:
            fitted = ", ".join(map(repr, self._horizons)) or "none"
            raise InvalidInput(
                f"horizon = {horizon!r}: expected one that was fitted ({fitted}); give `horizons` to fit"
            )
        chosen = None if horizon is None else self._horizons[horizon]
        ranking = self._ranking.rank(name, at=moment, k=whole("k", k, least=1), horizon=chosen)
        columns = {
            "rank": pl.int_range(1, len(ranking.targets) + 1, eager=True),
            "target": pl.Series(ranking.targets, dtype=pl.String).cast(self._ids),
            "probability": ranking.probability_K,
            "linked_before": ~ranking.is_new_K,
            "reasons": pl.Series(ranking.reasons, dtype=pl.List(pl.String)),
        }
        return pl.DataFrame(columns)


COLUMNS = ("source", "target", "time", "weight")


def _model_of(
    record: Mapping[str, Any], tables: Mapping[str, pl.DataFrame], arrays: Mapping[str, NDArray]
) -> EventModel:
    """Give the model of its stored parts."""
    check_process()  # pickle calls this function alone
    fitted = FittedEventForecaster.from_record(record["forecaster"])
    sources = tables["sources"]["id"].to_list()
    ids = NodeIds(sources=sources, targets=tables["targets"]["id"].to_list() if "targets" in tables else sources)
    ranking = LiveRanking(fitted, EventState.from_arrays(arrays, fitted.settings), ids)
    horizons = {name: FittedHorizon.from_record(values) for name, values in record["horizons"].items()}
    lists = {name: tuple(record["plan"][name]) for name in ("names", "notes")}
    plan = ReadPlan(**{**record["plan"], **lists, "columns": Columns(**record["plan"]["columns"])})
    return EventModel(ranking, plan, pl.Int64() if record["has_integer_ids"] else pl.String(), horizons)


def fit_events(
    log: Log,
    *,
    horizons: Sequence[str] | str = (),
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> EventModel:
    """Fit the event forecaster on the earlier part of a log, choose on the later one, and let all its events count.

    Args:
        log: a log that `read_log` gives.
        horizons: lengths of time such as "1d" (a number of steps on a log with integer steps), for which `rank` gives
            the probability of each pair.
        seed: seed of training and of negative sampling.
        progress: called with a sentence before each part of the fit and after each tenth of its rounds, as in
            `progress=print`.

    Raises:
        ValueError: `log` is no log, too few events or times, or a horizon that does not fit the log.
    """
    check_process()
    if not isinstance(log, Log):
        raise InvalidInput(f"expected a Log, as read_log gives; found {type(log).__name__}")
    seed = whole("seed", seed, least=0)
    say = reported(progress)
    events, plan = NamedEvents.from_table(log.events), log.plan
    lengths = {horizon: horizon_length(horizon, plan.time_unit) for horizon in texts("horizons", horizons)}
    sources: list[str] = []
    ids = NodeIds(sources=sources, targets=[] if plan.bipartite else sources)
    source_E, target_E = ids.numbered(events)
    frame = log.events.sort("time", maintain_order=True)
    numbered = EventLog(
        source_E=source_E,
        target_E=target_E,
        time_E=frame["time"].to_physical().to_numpy(),
        weight_E=frame["weight"].to_numpy(),
        num_sources=len(ids.sources),
        num_targets=len(ids.targets),
        two_sides=plan.bipartite,
        seconds=1.0 if plan.time_unit == "step" else 1e-6,
    )
    for name, length in lengths.items():
        with naming(name):
            horizon_starts(numbered.time_E, length)  # before minutes of fitting
    method = EventForecaster(directed=plan.bipartite or plan.directed)
    say(f"event forecaster: reading the features of {len(numbered):,} events")
    fitted = fit_on_past(method, numbered, seed=seed, done=_tenths(method.num_rounds, say))
    of_pairs: dict[str, FittedHorizon] = {}
    for name, length in lengths.items():
        say(f"horizon {name}: fitting the forecaster by pair")
        with naming(name):
            of_pairs[name] = fit_horizon(numbered, fitted.settings, length=length, seed=seed)
    say(f"counting all {len(numbered):,} events")
    state = EventState(numbered.num_sources, numbered.num_targets, fitted.settings)
    state.observe(numbered)
    return EventModel(LiveRanking(fitted, state, ids), plan, log.events.schema["source"], of_pairs)


def _tenths(num_rounds: int, say: Callable[[str], None]) -> Done:
    """Give what is called after each round, and reports each tenth of them."""
    rounds, part = count(1), max(1, num_rounds // 10)

    def done() -> None:
        if (number := next(rounds)) % part == 0:
            say(f"event forecaster: {number} of {num_rounds} rounds")

    return done


def _moment(at: "datetime | str | int", unit: TimeUnit) -> int:
    try:
        return read_moment(at.isoformat() if isinstance(at, datetime) else at, unit)
    except UnreadableMoment as error:
        raise InvalidInput(f"at = {at!r}: {error}") from None
