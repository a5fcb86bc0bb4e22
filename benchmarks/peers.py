"""The ranking queries of steps -> a table with our methods and methods of other libraries, scored on the same pairs.

A peer is a program that reads two Parquet files and writes a third. It gets the interactions before the step, and the
distinct pairs of the queries without a word on which of them is true; our own evaluation reads its scores.
`benchmarks/peer_models.py` runs the methods of tgm-lib so: `pip install tgm-lib` (it needs torch-geometric as well).

    python benchmarks/peers.py uci --steps 10-13 --peers edgebank-both,poptrack,roland

R interactions    S distinct pairs of the queries
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from dyformer.evaluation.rows import metric_rows
from dyformer.evaluation.scored_queries import (
    RankingTrial,
    ScoredQueries,
    evaluate_queries,
    query_resamples,
    step_metrics,
)
from dyformer.experiments.methods import BASELINES, METHODS
from dyformer.graphs.snapshots import DynamicGraph, interactions_of, prefix
from dyformer.sampling.ranking_queries import RankingQueries, ranking_queries

OURS = ("EdgeBank (ever)", "Contact recency", "Forecaster without vectors")
CELLS = {  # column -> metric, family of negatives, slice
    "MRR": ("mrr", "mixed", "known"),
    "MRR, new links": ("mrr", "mixed", "new"),
    "MRR, repeated links": ("mrr", "mixed", "repeat"),
    "AUC random": ("auc", "random", "known"),
    "AUC active": ("auc", "active", "known"),
}
MICROSECONDS = 1_000_000


class Cost(NamedTuple):
    """What a method took for one step."""

    seconds: float  # of CPU, to train and to score
    peak_mib: float
    epochs: int | None = None


def write_past(graph: DynamicGraph, step: int, path: Path) -> None:
    """Write the interactions before a step, in order of time: source, target, time (seconds since the first), step."""
    past = prefix(graph, step - 1)
    rows = interactions_of(past)
    step_R = np.repeat([snapshot.step for snapshot in past.snapshots], [s.num_interactions for s in past.snapshots])
    assert len(step_R) == len(rows.time_R)
    assert (np.diff(rows.time_R) >= 0).all()
    assert rows.time_R[-1] < past.snapshots[-1].end_time, "the file of a peer ends with the step before the queries"
    ends = {"source": rows.source_R, "target": rows.target_R}
    seconds_R = (rows.time_R - rows.time_R[0]) // MICROSECONDS
    pl.DataFrame(ends | {"time": seconds_R, "step": step_R.astype(np.int64)}).write_parquet(path)


def write_pairs(queries: RankingQueries, path: Path) -> None:
    """Write the distinct pairs of queries, sorted; the order does not depend on which pairs are true."""
    pl.DataFrame({"source": queries.pairs.source_S, "target": queries.pairs.target_S}).write_parquet(path)


def read_scores(path: Path, title: str, queries: RankingQueries, seed: int) -> ScoredQueries:
    """Read the scores of a peer. Raises ValueError for other pairs than those of write_pairs, or no finite numbers."""
    scores, pairs = pl.read_parquet(path), queries.pairs
    expected = pl.DataFrame({"source": pairs.source_S, "target": pairs.target_S})
    if not scores.select("source", "target").equals(expected):
        raise ValueError(
            f"{title}: {path} has other pairs than the {len(pairs.source_S)} of step {queries.step}: a peer writes the "
            f"rows of the pairs that it got, in their order, with a column `score`"
        )
    score_S = scores["score"].cast(pl.Float64).to_numpy()
    if not np.isfinite(score_S).all():
        raise ValueError(f"{title}: {int((~np.isfinite(score_S)).sum())} scores are not finite: expected numbers")
    return ScoredQueries(method=title, seed=seed, queries=queries, score_S=score_S)


def peer_scores(
    command: Sequence[str], title: str, graph: DynamicGraph, queries: RankingQueries, seed: int = 0
) -> tuple[ScoredQueries, Cost]:
    """Run a peer as COMMAND PAST PAIRS SCORES --seed SEED in a process of its own; its last line is a Cost as JSON.

    The files lie in a folder of their own, and the interactions in them end with the step before the queries. Raises
    subprocess.CalledProcessError where the peer fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        past, pairs, scores = (Path(folder) / f"{name}.parquet" for name in ("past", "pairs", "scores"))
        write_past(graph, queries.step, past)
        write_pairs(queries, pairs)
        run = [*command, str(past), str(pairs), str(scores), "--seed", str(seed)]
        printed = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout
        return read_scores(scores, title, queries, seed), Cost(**json.loads(printed.splitlines()[-1]))


def peak_memory() -> Callable[[], float]:
    """Forget the peak so far; the result gives the peak resident memory of this process since then, in MiB (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    return lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def own_scores(graph: DynamicGraph, queries: RankingQueries, seed: int = 0) -> list[tuple[ScoredQueries, Cost]]:
    """Score the queries by OURS; each one's seconds include the labelled pairs of the past, which all of them share."""
    started = time.process_time()
    trial = RankingTrial(graph=prefix(graph, queries.step - 1), queries=queries, seed=seed)
    assert trial.labelled  # made here, and kept
    preparation, found = time.process_time() - started, []
    for title in OURS:
        started, peak_mib = time.process_time(), peak_memory()
        (scored,) = evaluate_queries(title, METHODS[title], trial)
        found.append((scored, Cost(preparation + time.process_time() - started, peak_mib())))
    return found


def comparison(
    dataset: str, graph: DynamicGraph, steps: dict[int, list[tuple[ScoredQueries, Cost]]], *, seed: int = 0
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Give the table of all methods, the best MRR first, and all metrics with their intervals."""
    queries = [scored[0][0].queries for scored in steps.values()]
    resamples = query_resamples(queries, seed=seed)
    measured = {
        step: step_metrics([scored for scored, _ in found], prefix(graph, step - 1), resamples)
        for step, found in steps.items()
    }
    metrics = metric_rows(measured, dataset, protocol="prequential", baselines=BASELINES)
    table = []
    for title in dict.fromkeys(scored.method for found in steps.values() for scored, _ in found):
        costs = [cost for found in steps.values() for scored, cost in found if scored.method == title]
        row: dict[str, Any] = {"method": title}
        for column, (metric, family, part) in CELLS.items():
            own = metrics.filter(method=title, step="macro", metric=metric, family=family, slice=part).to_dicts()
            row[column] = own[0]["value"] if own else None
            if column == "MRR":
                row |= {"low": own[0]["low"], "high": own[0]["high"]}
        row["CPU s a step"] = float(np.mean([cost.seconds for cost in costs]))
        row["peak MiB"] = max(cost.peak_mib for cost in costs)
        row["epochs"] = min((cost.epochs for cost in costs if cost.epochs), default=None)
        table.append(row)
    return pl.DataFrame(table).sort("MRR", descending=True), metrics


def agreement(scored: ScoredQueries, other: ScoredQueries) -> float:
    """Give the fraction of the pairs to which two methods give the same score."""
    return float((scored.score_S == other.score_S).mean())


def main() -> None:
    """Compare on a published log; print the table and how far the two EdgeBanks agree."""
    from graphs import published_graph

    from dyformer.evaluation.protocols.protocol import wanted_steps

    beside = f"{sys.executable} {Path(__file__).with_name('peer_models.py')}"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--steps", required=True, help='such as "10-13"')
    parser.add_argument("--peers", default="edgebank,edgebank-both,poptrack,roland")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds", type=float, default=60, help="no epoch of a peer but the first starts after so many"
    )
    parser.add_argument("--program", default=beside, help="the peers' program, with the Python of its environment")
    parser.add_argument("--out", help="write all metrics to this Parquet file")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    graph = published_graph(arguments.dataset)
    steps: dict[int, list[tuple[ScoredQueries, Cost]]] = {}
    for step in wanted_steps(arguments.steps):
        queries = ranking_queries(graph, step, seed=arguments.seed)
        steps[step] = own_scores(graph, queries, arguments.seed)
        for name in arguments.peers.split(","):
            command = [*shlex.split(arguments.program), "--seconds", str(arguments.seconds), name]
            steps[step].append(peer_scores(command, f"tgm {name}", graph, queries, arguments.seed))
            print(step, name, steps[step][-1][1], file=sys.stderr, flush=True)
        by_title = {scored.method: scored for scored, _ in steps[step]}
        if "tgm edgebank-both" in by_title:
            same = agreement(by_title["EdgeBank (ever)"], by_title["tgm edgebank-both"])
            print(f"step {step}: EdgeBank agrees on {100 * same:.2f} % of {len(queries.pairs.source_S):,} pairs")
    table, metrics = comparison(arguments.dataset, graph, steps, seed=arguments.seed)
    if arguments.out:
        metrics.write_parquet(arguments.out)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=250, float_precision=3):
        print(table)


if __name__ == "__main__":
    main()
