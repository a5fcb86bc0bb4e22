"""The protocol of the Temporal Graph Benchmark: ranks as of every event among all targets, or among sampled ones.

Q ranked events    S sources    B resamples    K metrics
"""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.evaluation.bootstrap import node_resamples
from dyformer.evaluation.event_splits import (
    SPLITS,
    EventTrial,
    Negatives,
    Split,
    TooFewEvents,
    Visibility,
    rankable_events,
    sampled_negatives,
    samples_negatives,
    split_events,
)
from dyformer.evaluation.protocols.protocol import Cell, Column, Job, Log, Protocol, Result, Setting, TableOf, Tables
from dyformer.evaluation.rows import Cell as Metric
from dyformer.evaluation.rows import Measured, Run, log_rows, means, metric_rows
from dyformer.evaluation.scored_pairs import NotTheSamePairs
from dyformer.scoring.event_ranks import event_ranks
from dyformer.scoring.interfaces import Ranker, RankEvents
from dyformer.streams.event_log import EventLog, event_log_of

NAME = "tgb"
METRICS = ("mrr", "hits@10")
VISIBLE = {
    "strict": "all events before each one",
    "batch": "all events before its batch",
    "window": "all events before its window",
}
LEADERBOARDS: Mapping[str, tuple[str, Mapping[str, tuple[float | None, float]]]] = {
    "snap-wikipedia": (
        "tgbl-wiki-v2, 22 January 2026; visible: strict for DyGFormer and TPNet, batch:200 for EdgeBank and TGN",
        {
            "TPNet": (0.842, 0.827),
            "King's heuristic": (0.842, 0.821),
            "HyperEvent": (0.824, 0.810),
            "DyGFormer": (0.816, 0.798),
            "NAT": (0.773, 0.749),
            "Base3": (0.727, 0.743),
            "DyGMamba": (None, 0.739),
            "TNCN": (None, 0.718),
            "CAWN": (None, 0.711),
            "CTAN": (None, 0.668),
            "EdgeBank (time window)": (0.600, 0.571),
            "EdgeBank (unlimited)": (0.527, 0.495),
            "HTGN": (None, 0.464),
            "EGCNo": (None, 0.398),
            "TGN": (None, 0.396),
            "TGAT": (None, 0.141),
            "GraphMixer": (None, 0.118),
        },
    )
}
"""Public leaderboards of the benchmark by dataset: origin, and MRR of validation and test by method."""

RANKS_SCHEMA = pl.Schema(
    {
        "method": pl.String(),
        "seed": pl.Int64(),
        "split": pl.String(),
        "visible": pl.String(),
        "candidates": pl.String(),
        "event": pl.Int64(),  # number in the log
        "source": pl.Int64(),
        "rank": pl.Float64(),
        "cpu_seconds": pl.Float64(),  # of the fit and of the ranking of both splits, the same in all rows of a run
    }
)

ROWS_SCHEMA = pl.Schema(
    {
        "dataset": pl.String(),
        "protocol": pl.String(),
        "method": pl.String(),
        "split": pl.String(),
        "visible": pl.String(),
        "candidates": pl.String(),
        "metric": pl.String(),
        "value": pl.Float64(),  # mean over events, and over seeds
        "low": pl.Float64(),  # ends of the 95 % interval of `value`
        "high": pl.Float64(),
        "num_queries": pl.Int64(),
        "num_seeds": pl.Int64(),
        "seed_deviation": pl.Float64(),  # standard deviation over seeds
        "cpu_seconds": pl.Float64(),  # of one seed: fit and ranking of both splits
        "is_baseline": pl.Boolean(),
        "best_baseline": pl.String(),  # the baseline with the best value of this split and metric
        "difference": pl.Float64(),  # `value` less that of the best baseline
        "difference_low": pl.Float64(),
        "difference_high": pl.Float64(),
    }
)


class Posed(NamedTuple):
    """The events that are ranked, and the seed of the fits."""

    trial: EventTrial
    seed: int


def log_of(log: Log) -> EventLog:
    """Give all events of a log, those included that its windows leave out."""
    return event_log_of(log.events(), has_steps=log.time_unit == "step").log


def ranked_events(name: str, method: Ranker, trial: EventTrial, *, seed: int) -> pl.DataFrame:
    """Fit a method on the events before the test and rank both splits; rows of RANKS_SCHEMA.

    The method is fitted once: what it reads of test events later is its memory alone. Raises ValueError.
    """
    started = time.process_time()
    rank_events = method.fit_events(*trial.fitting, seed=seed)
    if not callable(rank_events):
        raise InvalidInput(f"{name}: fit_events must return a function; found {type(rank_events).__name__}")
    frames = [_split_ranks(trial, split, rank_events) for split in SPLITS]
    return (
        pl.concat(frames)
        .with_columns(
            method=pl.lit(name),
            seed=pl.lit(seed, pl.Int64),
            visible=pl.lit(str(trial.visibility)),
            candidates=pl.lit(trial.candidates),
            cpu_seconds=pl.lit(time.process_time() - started),
        )
        .select(RANKS_SCHEMA.names())
    )


def _split_ranks(trial: EventTrial, split: Split, rank_events: RankEvents) -> pl.DataFrame:
    """Rank the events of a split."""
    frames = []
    for event_Q in trial.ranked(split):
        queries = trial.ranked_queries(split, event_Q)
        rank_Q = event_ranks(rank_events(trial.log, queries), trial.log, queries, trial.chosen(event_Q))
        frames.append(pl.DataFrame({"event": event_Q, "source": queries.source_Q, "rank": rank_Q}))
    none = pl.DataFrame(schema={name: RANKS_SCHEMA[name] for name in ("event", "source", "rank")})
    return pl.concat([none, *frames]).with_columns(split=pl.lit(split))


def metrics_of_ranks(ranks: pl.DataFrame, dataset: str, *, baselines: Collection[str] = ()) -> pl.DataFrame:
    """Give the metrics of ranks (RANKS_SCHEMA, one visibility), averaged over their seeds, as rows of METRICS_SCHEMA.

    Every event weighs alike. The split is the family and the step, with `macro` once more; the rows have no seed.
    Intervals resample the sources with all their events (NodeResamples), alike for all methods. `cpu_seconds` are of
    one seed. `baselines` are titles; the best of them in a split and metric is the one that all are compared with.
    Raises NotTheSamePairs where methods or seeds were not evaluated on the same events, candidates and visibility.
    """
    _check_same(ranks)
    steps: dict[str, dict[Run, dict[Metric, Measured]]] = {}
    for (split,), part in ranks.group_by("split", maintain_order=True):
        source_S, count_S = _sources(part)
        weight_BS = node_resamples([source_S] * 2, num_resamples=None, generator=np.random.default_rng(0)).weight_BS
        for (method,), of_method in part.group_by("method", maintain_order=True):
            measured = means(_totals(of_method, source_S), weight_BS, count_S)
            cells = {(metric, str(split), "all"): value for metric, value in zip(METRICS, measured, strict=True)}
            steps.setdefault(str(split), {})[str(method), 0] = cells
    seconds: dict[Run, dict[Metric, Measured]] = {
        (method, 0): {("cpu_seconds", "test", "all"): Measured(value, num, np.empty(0))}
        for method, value, num in _seconds(ranks).iter_rows()
    }
    rows = pl.concat(
        [
            metric_rows(steps, dataset, protocol=NAME, baselines=baselines),
            metric_rows({"test": seconds}, dataset, protocol=NAME),
        ]
    )
    rows = rows.with_columns(seed=pl.lit(None, pl.Int64), is_baseline=pl.col("method").is_in(list(baselines)))
    return rows.filter(pl.col("step") != "micro")


def _check_same(ranks: pl.DataFrame) -> None:
    if ranks.select("visible", "candidates").unique().height > 1:
        raise NotTheSamePairs("ranks of several visibilities or kinds of candidates: give those of one")
    runs = ranks.group_by("split", "method", "seed").agg(pl.col("event").sort().hash().alias("events").sum())
    uneven = runs.group_by("split").agg(pl.col("events").n_unique()).filter(pl.col("events") > 1)
    if uneven.height:
        raise NotTheSamePairs(f"methods ranked different events of {', '.join(uneven['split'])}: rank the same ones")


def _sources(part: pl.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give the sources of a split's events, and the number of events of each."""
    events = part.select("event", "source").unique("event")
    source_S, count_S = np.unique(events["source"].to_numpy(), return_counts=True)
    return source_S, count_S


def _totals(own: pl.DataFrame, source_S: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sum a method's metrics by source, averaged over its seeds, [S, K]."""
    rank_R = own["rank"].to_numpy()
    position_R = np.searchsorted(source_S, own["source"].to_numpy())
    values = (1 / rank_R, (rank_R <= 10).astype(np.float64))
    total_SK = np.column_stack([np.bincount(position_R, value_R, len(source_S)) for value_R in values])
    return total_SK / own["seed"].n_unique()


def _seconds(ranks: pl.DataFrame) -> pl.DataFrame:
    """Give method, CPU seconds of one seed, and number of test events."""
    by_seed = ranks.filter(split="test").group_by("method", "seed", maintain_order=True)
    runs = by_seed.agg(pl.col("cpu_seconds").first(), num=pl.len())
    return runs.group_by("method", maintain_order=True).agg(pl.col("cpu_seconds").mean(), pl.col("num").first())


def event_rows(ranks: pl.DataFrame, metrics: pl.DataFrame) -> pl.DataFrame:
    """Give the metrics of metrics_of_ranks, with more about their ranks, as rows of ROWS_SCHEMA.

    They stand in the order of the splits and of METRICS, the best value first.
    """
    is_hit = (pl.col("rank") <= 10).cast(pl.Float64)
    values = ranks.with_columns((1 / pl.col("rank")).alias(METRICS[0]), is_hit.alias(METRICS[1]))
    keys = ["split", "method"]
    by_seed = values.group_by(*keys, "seed").agg(pl.col(METRICS).mean()).sort("seed")
    deviations = by_seed.group_by(keys).agg(pl.col(METRICS).std())
    deviations = deviations.unpivot(METRICS, index=keys, variable_name="metric", value_name="seed_deviation")
    of_cells = ranks.group_by(keys, maintain_order=True).agg(
        pl.col("visible", "candidates").first(), num_seeds=pl.col("seed").n_unique().cast(pl.Int64)
    )
    seconds = _seconds(ranks).select("method", "cpu_seconds")
    rows = metrics.filter(pl.col("metric").is_in(METRICS), step="macro")
    rows = rows.rename({"family": "split", "num_pairs": "num_queries"}).join(of_cells, on=keys)
    rows = rows.join(deviations, on=[*keys, "metric"]).join(seconds, on="method")
    orders = {"split": of_cells["split"].unique(maintain_order=True).to_list(), "metric": list(METRICS)}
    numbers = [pl.col(name).cast(pl.Enum(values)) for name, values in orders.items()]
    rows = rows.sort(*numbers, "value", descending=[False, False, True], maintain_order=True)
    return rows.select(pl.col(name).cast(kind) for name, kind in ROWS_SCHEMA.items())


def _splits(log: Log) -> Sequence[Split]:
    """List both splits. Raises TooFewEvents for a log that cannot be split, or none of whose test events is ranked."""
    events = log_of(log)
    splits = split_events(events)
    if not len(rankable_events(events, splits, "test")):
        part = splits.events("test")
        raise TooFewEvents(
            f"all {part.stop - part.start} test events are of a node with itself, which are not ranked: give a log with"
            " other events in the last 15 % of its times, or choose another protocol"
        )
    return SPLITS


def _draw(job: Job) -> Tables:
    """Draw the negatives of validation and test events; where all targets are candidates, the table is empty."""
    log = log_of(job.log)
    if not samples_negatives(log):
        return {"negatives": pl.DataFrame(schema={"split": pl.String(), "negatives": pl.List(pl.Int32())})}
    drawn = sampled_negatives(log, split_events(log))
    parts = [
        pl.DataFrame({"negatives": rows}).select(pl.lit(split).alias("split"), "negatives")
        for split, rows in drawn.items()
    ]
    return {"negatives": pl.concat(parts)}


def _trial(job: Job) -> Posed:
    """Give the events to rank. Raises ValueError for a visibility that does not fit the log."""
    log = log_of(job.log)
    visibility, negatives = Visibility.parse(job.settings["visible"]), _read_negatives(job.drawn["negatives"])
    trial = EventTrial(log=log, splits=split_events(log), visibility=visibility, negatives=negatives)
    assert len(trial.num_visible_E) == len(log)
    return Posed(trial, job.seed)


def _read_negatives(table: pl.DataFrame) -> Negatives | None:
    if table.is_empty():
        return None
    rows: dict[Split, NDArray[np.int32]] = {
        split: np.stack(list(table.filter(split=split)["negatives"].to_numpy())) for split in SPLITS
    }
    return rows


def _evaluate(title: str, method: Ranker, posed: Posed) -> Tables:
    return {"ranks": ranked_events(title, method, posed.trial, seed=posed.seed)}


def _rows(results: Sequence[Result], log: Log, baselines: Collection[str]) -> Tables:
    """Give the metrics of each seed, and those of all seeds together, also as rows of ROWS_SCHEMA."""
    ranks = pl.concat(result.table("ranks") for result in results)
    together = metrics_of_ranks(ranks, log.dataset, baselines=baselines)
    by_seed = [
        metrics_of_ranks(of_seed, log.dataset, baselines=baselines).with_columns(seed=pl.lit(seed, pl.Int64))
        for (seed,), of_seed in ranks.group_by("seed", maintain_order=True)
    ]
    kind, number = ranks["candidates"][0].split(" ")  # as in EventTrial.candidates
    of_log = log_rows(log.dataset, NAME, "candidates", {"macro": (float(number), ranks.height)}, family=kind)
    rows = pl.concat([*by_seed, together, of_log]).with_columns(pl.col("metric").str.replace("@", "_at_"))
    return {"metrics": rows, "events": event_rows(ranks, together)}


def _words(settings: Mapping[str, str], metrics: pl.DataFrame) -> dict[str, str]:
    """Give the words of the title on what is visible, and on the candidates."""
    kind, number = metrics.filter(protocol=NAME, metric="candidates").select("family", "value").row(0)
    meaning = VISIBLE[settings["visible"].partition(":")[0]]
    return {"visible": f"{settings['visible']} ({meaning})", "candidates": f"{kind} {number:.0f}"}


def _sentences(rows: pl.DataFrame, metrics: pl.DataFrame) -> list[str]:
    origin, _ = LEADERBOARDS.get(rows["dataset"][0], (None, {}))
    return [] if origin is None else [f"(leaderboard): {origin}."]


PROTOCOL = Protocol(
    name=NAME,
    sentence="ranks as of every event, by the rules of the Temporal Graph Benchmark",
    heading="Ranks as of every event",
    methods=(Ranker,),
    units=_splits,
    need="a log needs events at different times",
    draw=_draw,
    trial=_trial,
    evaluate=_evaluate,
    rows=_rows,
    tables=(
        TableOf(
            name="events",
            key=NAME,
            slice="all",
            columns=(
                Column(title="test MRR", metric="mrr", family="test", deviation=" ± {:.4f}"),
                Column(title="difference", metric="mrr", family="test", value="difference", form="{:+.3f}"),
                Column(title="test Hits@10", metric="hits_at_10", family="test", interval=False),
                Column(title="validation MRR", metric="mrr", family="validation", interval=False),
                Column(title="CPU s", metric="cpu_seconds", family="test", form="{:.0f}", interval=False),
            ),
            title="{dataset}, protocol tgb, visible: {visible}; {num} test events, candidates: {candidates}, {seeds}"
            " [95 % interval]{best}",
            words=_words,
            contents="test events",
            measure="MRR [95 % interval]",
            counted="test events",
            sentences=_sentences,
            published={
                dataset: {
                    f"{name} (leaderboard)": {"test MRR": test, "validation MRR": validation}
                    for name, (validation, test) in values.items()
                }
                for dataset, (_, values) in LEADERBOARDS.items()
            },
            published_below=False,
        ),
    ),
    kind="ranks",
    unit="split",
    together=True,
    same_draw=True,
    whole_log=True,
    settings={"visible": Setting("strict", lambda text: str(Visibility.parse(text)))},
    main=Cell("mrr", "test", "all"),
    usual_families=("test",),
    written="events",
)
