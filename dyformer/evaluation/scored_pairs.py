"""Labels and scores of test pairs, as arrays and as tables, and their metrics.

P pairs of one step    K pairs linked in an earlier step
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.evaluation.bootstrap import NodeResamples, node_resamples
from dyformer.evaluation.rows import METRICS_SCHEMA, Cell, Measured, Run, fractions, log_rows, metric_rows, pair_metrics
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.pairs import known_edges, nodes_known_before, pair_keys, past_pair_keys

SLICES = ("all", "new")

NO_NODE = -1
"""The target of scored nodes: they are pairs with one end."""

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


class NotTheSamePairs(InvalidInput):
    """Two methods were evaluated on different pairs, so they cannot be compared pair by pair."""


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


def to_table(scored: Iterable[ScoredPairs]) -> pl.DataFrame:
    """Put scored pairs in one table with the columns of PAIRS_SCHEMA."""
    frames = [
        pl.DataFrame({name.removesuffix("_P"): value for name, value in vars(pairs).items()}, schema=PAIRS_SCHEMA)
        for pairs in scored
    ]
    return pl.concat([pl.DataFrame(schema=PAIRS_SCHEMA), *frames])


def from_table(table: pl.DataFrame) -> list[ScoredPairs]:
    """Give the scored pairs of a table of to_table, in its order."""
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


def slice_of(pairs: ScoredPairs, part: str) -> ScoredPairs:
    """Give the pairs of a slice: "all", or "new" ones, which no earlier snapshot linked."""
    if part == "all":
        return pairs
    names = ("source_P", "target_P", "positive_P", "new_P", "score_P")
    return replace(pairs, **{name: getattr(pairs, name)[pairs.new_P] for name in names})


def check_same_pairs(challenger: ScoredPairs, champion: ScoredPairs) -> None:
    """Raise NotTheSamePairs unless both were evaluated on the same pairs, and ValueError for scores not finite."""
    for name in ("step", "seed", "family"):
        first_pairs, expected = getattr(challenger, name), getattr(champion, name)
        if first_pairs != expected:
            raise NotTheSamePairs(
                f"{challenger.method} was evaluated on {name} {first_pairs}, {champion.method} on {name} {expected}: "
                f"evaluate both on the same pairs"
            )
    for name in ("source_P", "target_P", "positive_P"):
        if not np.array_equal(getattr(challenger, name), getattr(champion, name)):
            raise NotTheSamePairs(
                f"{challenger.method} and {champion.method} were evaluated on different pairs of step "
                f"{challenger.step} ({name} differs): evaluate both on one version of the snapshots"
            )
    for pairs in (challenger, champion):
        if not np.isfinite(pairs.score_P).all():
            raise InvalidInput(f"{pairs.method}: some scores of step {pairs.step} are not finite; train again")


def metrics_of(
    scored: Sequence[ScoredPairs], dataset: str, protocol: str = "paper", *, baselines: Collection[str] = ()
) -> pl.DataFrame:
    """Give the metrics of scored pairs as rows of METRICS_SCHEMA, values 0..1: per step, `micro` and `macro`.

    Micro pools the pairs of all steps, macro is the mean over steps. The slice `new` holds the test pairs that no
    earlier snapshot linked, with the same scores. A step without a positive and a negative pair of a slice has no row
    there and does not count in macro. `baselines` are titles of methods: the one of them with the best macro value of
    a metric and slice, averaged over seeds, is the one that all methods are compared with, pair by pair. Intervals
    come from the two-way bootstrap (NodeResamples), with the same resamples for all methods of a seed.
    Raises ValueError for a step evaluated twice, where methods were not evaluated on the same steps, and where they
    were not evaluated on the same pairs (NotTheSamePairs).
    """
    runs = _by_method_and_seed(scored)
    _check_same_pairs(runs)
    parts = [_slice_rows(runs, part, dataset, protocol, baselines) for part in SLICES]
    return pl.concat([pl.DataFrame(schema=METRICS_SCHEMA), *parts])


def _slice_rows(
    runs: Mapping[Run, list[ScoredPairs]], part: str, dataset: str, protocol: str, baselines: Collection[str]
) -> pl.DataFrame:
    """Give the rows of one slice of the pairs."""
    sliced = {run: [slice_of(pairs, part) for pairs in evaluated] for run, evaluated in runs.items()}
    resamples: dict[int, NodeResamples] = {}
    steps: dict[int, dict[Run, dict[Cell, Measured]]] = {}
    pooled: dict[Run, dict[Cell, Measured]] = {}
    for run, evaluated in sliced.items():
        usable = [pairs for pairs in evaluated if pairs.positive_P.any() and not pairs.positive_P.all()]
        if not usable:
            continue
        if run[1] not in resamples:  # all methods of a seed have the same pairs
            ends = [end_P for pairs in evaluated for end_P in (pairs.source_P, pairs.target_P)]
            resamples[run[1]] = node_resamples(ends, generator=np.random.default_rng(run[1]))
        for pairs in usable:
            steps.setdefault(pairs.step, {})[run] = _pooled([pairs], part, resamples[run[1]])
        pooled[run] = steps[usable[0].step][run] if len(evaluated) == 1 else _pooled(evaluated, part, resamples[run[1]])
    return metric_rows(steps, dataset, protocol=protocol, baselines=baselines, pooled=pooled)


def _pooled(evaluated: Sequence[ScoredPairs], part: str, resamples: NodeResamples) -> dict[Cell, Measured]:
    """Give the metrics of the pooled pairs of some steps."""
    source_P, target_P, positive_P, score_P = (
        np.concatenate([getattr(pairs, name) for pairs in evaluated])
        for name in ("source_P", "target_P", "positive_P", "score_P")
    )
    measured = pair_metrics(resamples, source_P, target_P, positive_P, score_P)
    return {(metric, evaluated[0].family, part): value for metric, value in measured.items()}


def log_metrics(graph: DynamicGraph, steps: Iterable[int], dataset: str) -> pl.DataFrame:
    """Give two properties of the log as rows of METRICS_SCHEMA, under the method `-` without a seed.

    `coverage`: fraction of a step's edges that can be scored, because both ends are known before.
    `repeat_rate`: fraction of its edges that were linked before. Micro pools the edges, macro averages the steps.
    """
    counts = {step: _edge_counts(graph, step) for step in steps}
    return pl.concat(
        log_rows(
            dataset,
            "paper",
            metric,
            fractions({step: (numbers[index], numbers[2]) for step, numbers in counts.items()}),
        )
        for index, metric in enumerate(("coverage", "repeat_rate"))
    )


def _by_method_and_seed(scored: Sequence[ScoredPairs]) -> dict[Run, list[ScoredPairs]]:
    runs: dict[Run, list[ScoredPairs]] = {}
    for pairs in sorted(scored, key=lambda pairs: pairs.step):
        runs.setdefault((pairs.method, pairs.seed), []).append(pairs)
    steps = {run: [pairs.step for pairs in evaluated] for run, evaluated in runs.items()}
    for (method, seed), evaluated in steps.items():
        if len(set(evaluated)) < len(evaluated):
            raise InvalidInput(f"{method}, seed {seed}: a step is evaluated twice in {evaluated}; give each step once")
        expected = next(iter(steps.values()))
        if evaluated != expected:
            raise InvalidInput(
                f"{method}, seed {seed}: evaluated on steps {evaluated}, others on {expected}; only metrics "
                f"over the same steps can be compared"
            )
    return runs


def _check_same_pairs(runs: Mapping[Run, list[ScoredPairs]]) -> None:
    first: dict[int, list[ScoredPairs]] = {}
    for (_, seed), evaluated in runs.items():
        expected = first.setdefault(seed, evaluated)
        for pairs, same in zip(evaluated, expected, strict=True):
            check_same_pairs(pairs, same)


def _edge_counts(graph: DynamicGraph, step: int) -> tuple[int, int, int]:
    """Count the edges of a step between known nodes, those of them that were linked before, and all of them."""
    num_nodes = nodes_known_before(graph, step)
    snapshot = graph.snapshots[step - 1]
    edges = known_edges(snapshot, num_nodes)
    past_K = past_pair_keys(graph.snapshots[: step - 1], num_nodes)
    return len(edges[0]), int(np.isin(pair_keys(num_nodes, *edges), past_K).sum()), len(snapshot.source_E)
