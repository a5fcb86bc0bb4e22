"""Vectors as inputs of the event forecaster's ranker of new partners.

Each event whose two ends are known and were never linked is a query as of its own moment: its target among the known
nodes that are no partners of its source. The ranker (`dyformer.scoring.event_heads`) is fitted on the steps before the
last three (at most six of them, from step 4 on), chosen on the next one and measured on the last two. It reads the
features of the state that every event updates, and the scores of vectors that were trained on the steps before the
event's. The intervals resample nodes.

    python benchmarks/event_vectors.py --seeds 3 generated-communities generated-roles
    python benchmarks/event_vectors.py --seeds 3 out.opsahl-ucsocial.gz --window 10d --until 13

N nodes    C candidates of a query    R rows of candidates    F inputs    G queries
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from vector_uses import Vectors, decomposition, graph_of, trained

import dyformer
from dyformer.evaluation.bootstrap import interval, node_resamples
from dyformer.evaluation.rows import means, pair_weights
from dyformer.experiments.printed import markdown_rows
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, prefix
from dyformer.logs.planted import PLANTED
from dyformer.scoring.event_forecaster import EventForecaster
from dyformer.scoring.event_heads import Groups, fit_groups, ranks
from dyformer.scoring.event_tables import NUM_NEGATIVES
from dyformer.scoring.vector_scores import NUM_VECTOR_SCORES, VectorScores, prepare_vectors
from dyformer.streams.event_log import MICROSECOND, EventLog
from dyformer.streams.event_state import FEATURES, EventState, StateSettings

FIRST_STEP, NUM_FITTED = 4, 6  # before step 4 vectors have less than three steps to learn from
NUM_VALIDATION, NUM_TEST = 1, 2  # steps at the end
NUM_EVENTS, NUM_CANDIDATES = 1_500, 2_000  # of each part and of each measured query, drawn uniformly
NO_VECTORS, WITH_VECTORS = "counts", "counts and vectors"
RANKERS = {NO_VECTORS: slice(0, len(FEATURES)), WITH_VECTORS: slice(0, None), "vectors": slice(len(FEATURES), None)}
COLUMNS = ("source_E", "target_E", "time_E", "weight_E")

ScoresOf = Callable[[int], VectorScores]
"""A step -> the scores of vectors that were trained on the steps before it."""


class Queries(NamedTuple):
    """New partners, and the candidates of each with their inputs, the new partner first."""

    groups: Groups
    source_G: NDArray[np.int64]
    target_G: NDArray[np.int64]


def events_of(graph: DynamicGraph) -> EventLog:
    """Give the interactions of a graph as events between its nodes, one range of numbers for both sides."""
    rows = graph.interactions
    assert rows is not None, "the graph was read without its interactions"
    columns = (rows.source_R, rows.target_R, rows.time_R, rows.weight_R)
    num = {"num_sources": len(graph.node_N), "num_targets": len(graph.node_N)}
    about = {"two_sides": bool(graph.side_N.any()), "seconds": MICROSECOND}
    return EventLog(**dict(zip(COLUMNS, columns, strict=True)), **num, **about)


def part_of_steps(graph: DynamicGraph) -> dict[int, int]:
    """Give the steps whose events are queries: those to fit on (0), to choose on (1) and to measure on (2)."""
    last_fitted = graph.num_steps - NUM_VALIDATION - NUM_TEST
    first = max(FIRST_STEP, last_fitted - NUM_FITTED + 1)
    return {
        step: (step > last_fitted) + (step > last_fitted + NUM_VALIDATION) for step in range(first, graph.num_steps + 1)
    }


def new_partners(log: EventLog) -> NDArray[np.bool_]:
    """Mark the events [E] that link two different nodes for the first time, both with an event at an earlier time."""
    is_new_E = np.zeros(len(log), dtype=np.bool_)
    known_N, linked, waiting = np.zeros(log.num_sources, dtype=np.bool_), set[tuple[int, int]](), list[int]()
    for event, (source, target) in enumerate(zip(log.source_E.tolist(), log.target_E.tolist(), strict=True)):
        if waiting and log.time_E[waiting[0]] < log.time_E[event]:
            known_N[log.source_E[waiting]] = known_N[log.target_E[waiting]] = True
            waiting.clear()
        pair = (min(source, target), max(source, target))
        is_new_E[event] = known_N[source] and known_N[target] and source != target and pair not in linked
        linked.add(pair)
        waiting.append(event)
    return is_new_E


def inputs(scores: VectorScores, source: int, target_C: NDArray[np.int64]) -> NDArray[np.float32]:
    """Give the scores [C, S] of a source and its candidates, NaN where one of them had no vector yet."""
    input_CS = np.full((len(target_C), NUM_VECTOR_SCORES), np.nan, dtype=np.float32)
    num_nodes = len(scores.own.vector_ND)
    if source < num_nodes:
        known_C = target_C < num_nodes
        source_C = np.full(int(known_C.sum()), source)
        input_CS[known_C] = scores.table(source_C, target_C[known_C], directed=True)
    return input_CS


class _Past:
    """The events before a moment: the state that counts them, and who was whose partner."""

    def __init__(self, log: EventLog) -> None:
        settings = StateSettings(two_sides=log.two_sides, seconds=log.seconds, rank=0)  # without vectors of its own
        self._log, self._num_read = log, 0
        self.state = EventState(log.num_sources, log.num_targets, settings)
        self._is_target_N = np.zeros(log.num_targets, dtype=np.bool_)
        self._partners: dict[int, list[int]] = {}

    def read_until(self, moment: int) -> None:
        """Read the events before a moment: those at it are not before each other."""
        end = int(np.searchsorted(self._log.time_E, moment))
        columns = {name: getattr(self._log, name)[self._num_read : end] for name in COLUMNS}
        self.state.observe(EventLog(**{**vars(self._log), **columns}))
        for source, target in zip(columns["source_E"].tolist(), columns["target_E"].tolist(), strict=True):
            self._partners.setdefault(source, []).append(target)
            self._partners.setdefault(target, []).append(source)
        self._is_target_N[columns["target_E"]] = True
        if not self._log.two_sides:
            self._is_target_N[columns["source_E"]] = True
        self._num_read = end

    def others(self, source: int, target: int) -> NDArray[np.int64]:
        """Give the known nodes that are no partners of a source, without it and its target."""
        other_N = self._is_target_N.copy()
        other_N[[source, target, *self._partners.get(source, [])]] = False
        return np.flatnonzero(other_N)


def queries_of(graph: DynamicGraph, scores_of: ScoresOf, seed: int) -> list[Queries]:
    """Give the queries to fit, to choose and to measure on; those to fit have NUM_NEGATIVES candidates at most."""
    log = events_of(graph)
    part_of, parts = part_of_steps(graph), list[list[tuple[NDArray[np.float32], int, int]]]([[], [], []])
    step_E = np.repeat(np.arange(graph.num_steps) + 1, [snapshot.num_interactions for snapshot in graph.snapshots])
    is_new_E, part_E = new_partners(log), np.array([part_of.get(step, -1) for step in step_E.tolist()])
    of_part = [np.flatnonzero(is_new_E & (part_E == part)) for part in range(len(parts))]
    # Each part and each query has a draw of its own, which no later event changes.
    chosen_E = np.concatenate(
        [np.random.default_rng([seed, part]).permutation(of_part[part])[:NUM_EVENTS] for part in range(len(parts))]
    )
    past, scores_step, scores = _Past(log), 0, None
    for event in np.sort(chosen_E).tolist():
        source, target, step, part = (int(of_E[event]) for of_E in (log.source_E, log.target_E, step_E, part_E))
        past.read_until(int(log.time_E[event]))
        if scores is None or step != scores_step:
            scores_step, scores = step, scores_of(step)
        draw = np.random.default_rng([seed, len(parts), event])
        other_C = draw.permutation(past.others(source, target))[: NUM_CANDIDATES if part else NUM_NEGATIVES]
        target_C = np.append(target, other_C)
        count_CF = past.state.features(source, target_C, at=int(log.time_E[event]))
        parts[part].append((np.hstack([count_CF, inputs(scores, source, target_C)]), source, target))
    return [_joined(rows) for rows in parts]


def _joined(part: list[tuple[NDArray[np.float32], int, int]]) -> Queries:
    rows, sources, targets = zip(*part, strict=True)
    size_G = np.array([len(row_CF) for row_CF in rows])
    groups = Groups(row_RF=np.concatenate(rows), size_G=size_G, chosen_G=np.zeros(len(rows), dtype=np.int64))
    return Queries(groups, np.array(sources), np.array(targets))


def _of_columns(groups: Groups, columns: slice) -> Groups:
    return Groups(row_RF=groups.row_RF[:, columns], size_G=groups.size_G, chosen_G=groups.chosen_G)


def scores_by_step(graph: DynamicGraph, vectors: Vectors, seed: int) -> ScoresOf:
    """Train vectors for a step on the steps before it."""

    def of(step: int) -> VectorScores:
        past = prepare_graph(graph, until=step - 1, config=GraphConfig())
        return prepare_vectors(np.asarray(vectors(past, seed)), past.history)

    return of


def measured(graph: DynamicGraph, scores_of: ScoresOf, seed: int) -> Iterator[tuple[str, float, float, float]]:
    """Yield the name of each measure, its value and the ends of its interval: MRR and AUC, mean over queries.

    A query's AUC is the fraction of the other candidates that the target is ranked above.
    """
    fitted, validation, test = queries_of(graph, scores_of, seed)
    rank_GM = np.empty((len(test.groups), len(RANKERS)))
    for method, columns in enumerate(RANKERS.values()):
        training, choosing, own = (_of_columns(part.groups, columns) for part in (fitted, validation, test))
        settings = {"num_rounds": EventForecaster.new_rounds, "num_leaves": 31, "lambdarank": False}
        head = fit_groups(training, choosing, **settings, seed=seed)
        rank_GM[:, method] = ranks(head.logits(own.row_RF), own)
    resamples = node_resamples([test.source_G, test.target_G], generator=np.random.default_rng(seed))
    weight_BG = pair_weights(resamples, test.source_G, test.target_G)
    yield "queries", len(test.groups), np.nan, np.nan
    for metric, value_GM in {
        "MRR": 1 / rank_GM,
        "AUC": 1 - (rank_GM - 1) / (test.groups.size_G - 1)[:, None],
    }.items():
        mean_of = dict(zip(RANKERS, means(value_GM, weight_BG), strict=True))
        for name, mean in mean_of.items():
            yield f"{metric}, {name}", mean.value, *interval(mean.value_B)
        without, with_vectors = mean_of[NO_VECTORS], mean_of[WITH_VECTORS]
        yield f"{metric}, gain", with_vectors.value - without.value, *interval(with_vectors.value_B - without.value_B)


def read(log: str, window: str, until: int | None) -> DynamicGraph:
    """Give the graph of a planted log, or of a file."""
    graph = graph_of(PLANTED[log])[0] if log in PLANTED else dyformer.read_log(log).snapshots(window).dynamic
    return graph if until is None else prefix(graph, until)


def row_of(values: list[tuple[str, float, float, float]]) -> Mapping[str, str]:
    """Write the means over seeds of each measure and of the ends of its interval."""
    row = {}
    for name in dict.fromkeys(own[0] for own in values):
        value, low, high = np.mean([own[1:] for own in values if own[0] == name], axis=0)
        row[name] = f"{value:.4f} [{low:.4f}, {high:.4f}]" if np.isfinite(low) else f"{value:.0f}"
    return row


def main() -> None:
    """Print the table of all logs and methods, means over seeds, and the CPU seconds of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("logs", nargs="+", metavar="log", help=f"a file, or {', '.join(PLANTED)}")
    parser.add_argument("--window", default="7d", help="of the files")
    parser.add_argument("--until", type=int, help="the last step that is read")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from 0")
    parser.add_argument("--methods", default="DyFormer", help="titles with vectors, with commas")
    given = parser.parse_args()
    methods: dict[str, Vectors] = {"singular vectors": decomposition}
    methods |= {title: partial(trained, title) for title in given.methods.split(",") if title}
    rows = []
    for log in given.logs:
        graph = read(log, given.window, given.until)
        for title, vectors in methods.items():
            started, values = time.process_time(), list[tuple[str, float, float, float]]()
            for seed in range(given.seeds):
                values.extend(measured(graph, scores_by_step(graph, vectors, seed), seed))
            seconds = f"{(time.process_time() - started) / given.seeds:.0f}"
            rows.append({"log": log, "vectors": title, **row_of(values), "CPU s a seed": seconds})
            print(rows[-1], flush=True)
    print("\n".join(markdown_rows(pl.DataFrame(rows))))


if __name__ == "__main__":
    main()
