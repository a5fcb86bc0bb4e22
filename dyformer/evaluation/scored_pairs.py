"""Scored pairs -> tables of them, and metrics per step, pooled and averaged.

P pairs of one step    K pairs linked in an earlier step
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.pairs import known_edges, nodes_known_before, pair_keys, past_pair_keys
from dyformer.scoring.metrics import auc, average_precision

METRICS = {"auc": auc, "average_precision": average_precision}

PAIRS_SCHEMA = pl.Schema(
    {
        "method": pl.String(),
        "seed": pl.Int64(),
        "step": pl.Int64(),
        "family": pl.String(),
        "source": pl.Int64(),
        "target": pl.Int64(),
        "positive": pl.Boolean(),
        "new": pl.Boolean(),
        "score": pl.Float64(),
    }
)

METRICS_SCHEMA = pl.Schema(
    {
        "dataset": pl.String(),
        "protocol": pl.String(),
        "method": pl.String(),
        "seed": pl.Int64(),
        "step": pl.String(),
        "metric": pl.String(),
        "family": pl.String(),
        "slice": pl.String(),
        "value": pl.Float64(),
    }
)


class OtherColumns(ValueError):
    """A table without the columns of PAIRS_SCHEMA, as an earlier version of dyformer wrote it."""


@dataclass(frozen=True, kw_only=True)
class ScoredPairs:
    """Labels of the test pairs of one step, and their scores by one method."""

    method: str
    seed: int
    step: int
    family: str  # kind of negative pairs: "random" in the paper's protocol
    source_P: NDArray[np.int64]
    target_P: NDArray[np.int64]
    positive_P: NDArray[np.bool_]
    new_P: NDArray[np.bool_]  # linked in no earlier step
    score_P: NDArray[np.float64]


def metrics_of(scored: Sequence[ScoredPairs], dataset: str, protocol: str = "paper") -> pl.DataFrame:
    """Give the metrics of scored pairs as rows of METRICS_SCHEMA, values 0..1: per step, `micro` and `macro`.

    Micro pools the pairs of all steps, macro is the mean over steps. The slice `new` holds the test pairs that no
    earlier snapshot linked, with the same scores. A step without a positive and a negative pair of a slice has no row
    there and does not count in macro. Raises ValueError for a step evaluated twice, and where methods were not
    evaluated on the same steps.
    """
    runs = _by_method_and_seed(scored)
    rows = [
        (dataset, protocol, method, seed, step, metric, pairs[0].family, part, value)
        for (method, seed), pairs in runs.items()
        for metric in METRICS
        for part in ("all", "new")
        for step, value in _step_metrics(pairs, metric, part)
    ]
    return pl.DataFrame(rows, schema=METRICS_SCHEMA, orient="row")


def log_metrics(graph: DynamicGraph, steps: Iterable[int], dataset: str, protocol: str = "paper") -> pl.DataFrame:
    """Give two properties of the log as rows of METRICS_SCHEMA, under the method `-` without a seed.

    `coverage`: fraction of a step's edges that can be scored, because both ends are known before.
    `repeat_rate`: fraction of its edges that were linked before. Micro pools the edges, macro averages the steps.
    """
    counts = {step: _edge_counts(graph, step) for step in steps}
    rows = []
    for position, metric in enumerate(("coverage", "repeat_rate")):
        fractions = {str(step): count[position] / count[2] for step, count in counts.items() if count[2]}
        if fractions:
            total = sum(count[2] for count in counts.values())
            micro = sum(count[position] for count in counts.values()) / total
            fractions |= {"micro": micro, "macro": float(np.mean(list(fractions.values())))}
        rows += [(dataset, protocol, "-", None, step, metric, "-", "all", value) for step, value in fractions.items()]
    return pl.DataFrame(rows, schema=METRICS_SCHEMA, orient="row")


def to_table(scored: Iterable[ScoredPairs]) -> pl.DataFrame:
    """Put scored pairs in one table with the columns of PAIRS_SCHEMA."""
    frames = [
        pl.DataFrame({name.removesuffix("_P"): value for name, value in vars(pairs).items()}, schema=PAIRS_SCHEMA)
        for pairs in scored
    ]
    return pl.concat([pl.DataFrame(schema=PAIRS_SCHEMA), *frames])


def from_table(table: pl.DataFrame) -> list[ScoredPairs]:
    """Give the scored pairs of a table of to_table, in its order. Raises OtherColumns."""
    if table.columns != PAIRS_SCHEMA.names():
        raise OtherColumns(
            f"scored pairs with the columns {', '.join(table.columns)}, expected {', '.join(PAIRS_SCHEMA.names())}: an "
            f"earlier version of dyformer wrote them; delete them and run `dyformer benchmark` or `dyformer run` again"
        )
    groups = table.partition_by(PAIRS_SCHEMA.names()[:4], maintain_order=True)
    return [
        ScoredPairs(
            method=group["method"][0],
            seed=group["seed"][0],
            step=group["step"][0],
            family=group["family"][0],
            **{f"{name}_P": group[name].to_numpy() for name in PAIRS_SCHEMA.names()[4:]},
        )
        for group in groups
    ]


def _by_method_and_seed(scored: Sequence[ScoredPairs]) -> dict[tuple[str, int], list[ScoredPairs]]:
    runs: dict[tuple[str, int], list[ScoredPairs]] = {}
    for pairs in sorted(scored, key=lambda pairs: pairs.step):
        runs.setdefault((pairs.method, pairs.seed), []).append(pairs)
    steps = {run: [pairs.step for pairs in evaluated] for run, evaluated in runs.items()}
    for (method, seed), evaluated in steps.items():
        if len(set(evaluated)) < len(evaluated):
            raise ValueError(f"{method}, seed {seed}: a step is evaluated twice in {evaluated}; give each step once")
        expected = next(iter(steps.values()))
        if evaluated != expected:
            raise ValueError(
                f"{method}, seed {seed}: evaluated on steps {evaluated}, others on {expected}; only metrics "
                f"over the same steps can be compared"
            )
    return runs


def _step_metrics(evaluated: list[ScoredPairs], metric: str, part: str) -> list[tuple[str, float]]:
    wanted = [pairs.new_P if part == "new" else np.ones_like(pairs.positive_P) for pairs in evaluated]
    parts = [
        (str(pairs.step), pairs.positive_P[wanted_P], pairs.score_P[wanted_P])
        for pairs, wanted_P in zip(evaluated, wanted, strict=True)
    ]
    metrics = [
        (step, METRICS[metric](positive_P, score_P))
        for step, positive_P, score_P in parts
        if positive_P.any() and not positive_P.all()
    ]
    if not metrics:
        return []
    positive_P, score_P = (np.concatenate(columns) for columns in list(zip(*parts, strict=True))[1:])
    return [
        *metrics,
        ("micro", METRICS[metric](positive_P, score_P)),
        ("macro", float(np.mean([value for _, value in metrics]))),
    ]


def _edge_counts(graph: DynamicGraph, step: int) -> tuple[int, int, int]:
    """Count the edges of a step between known nodes, those of them that were linked before, and all of them."""
    num_nodes = nodes_known_before(graph, step)
    snapshot = graph.snapshots[step - 1]
    known = known_edges(snapshot, num_nodes)
    past_K = past_pair_keys(graph.snapshots[: step - 1], num_nodes)
    return len(known[0]), int(np.isin(pair_keys(num_nodes, *known), past_K).sum()), len(snapshot.source_E)
