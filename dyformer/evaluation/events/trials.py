"""A ranker and a trial -> the ranks of the targets that the validation and test events chose."""

import time

import polars as pl

from dyformer.embedder import Ranker, RankEvents
from dyformer.evaluation.events.rows import RANKS_SCHEMA
from dyformer.evaluation.events.splits import SPLITS, EventTrial, Split
from dyformer.scoring.event_ranks import BadScores, event_ranks


def ranked_events(name: str, method: Ranker, trial: EventTrial, *, seed: int) -> pl.DataFrame:
    """Fit a method on the events before the test and rank both splits; rows of RANKS_SCHEMA.

    The method is fitted once: what it reads of test events later is its memory alone. Raises BadScores.
    """
    started = time.process_time()
    rank_events = method.fit_events(*trial.fitting, seed=seed)
    if not callable(rank_events):
        raise BadScores(f"{name}: fit_events must return a function; found {type(rank_events).__name__}")
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
