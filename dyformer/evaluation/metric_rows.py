"""Scored pairs -> rows of metrics: per step, pooled and averaged, with intervals and the best baseline beside them.

P pairs of one step    K pairs linked in an earlier step    B resamples    T steps
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.evaluation.bootstrap import NodeResamples, interval, node_resamples, resampled_metrics
from dyformer.evaluation.scored_pairs import ScoredPairs, check_same_pairs, slice_of
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.pairs import known_edges, nodes_known_before, pair_keys, past_pair_keys
from dyformer.scoring.metrics import auc, average_precision

METRICS = {"auc": auc, "average_precision": average_precision}  # in the order of resampled_metrics
SLICES = ("all", "new")

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
        "num_pairs": pl.Int64(),
        "low": pl.Float64(),  # ends of the 95 % interval of `value`
        "high": pl.Float64(),
        "is_baseline": pl.Boolean(),
        "best_baseline": pl.String(),  # the baseline with the best macro value of this metric and slice
        "difference": pl.Float64(),  # `value` less that of the best baseline
        "difference_low": pl.Float64(),
        "difference_high": pl.Float64(),
    }
)


class Measured(NamedTuple):
    """A metric of the pairs of one step or of all steps, and its values with resampled nodes."""

    value: float
    num_pairs: int
    value_B: NDArray[np.float64]


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
    rows = []
    for part in SLICES:
        measured = _measured(runs, part)
        best = {metric: _best_baseline(measured, metric, baselines) for metric in METRICS}
        for (method, seed), values in measured.items():
            for (metric, step), own in values.items():
                best_values = {} if best[metric] == method else measured.get((best[metric] or "", seed), {})
                about = (dataset, protocol, method, seed, step, metric, runs[method, seed][0].family, part)
                row = (*about, own.value, own.num_pairs, *interval(own.value_B), method in baselines, best[metric])
                rows.append((*row, *_difference(own, best_values.get((metric, step)))))
    return pl.DataFrame(rows, schema=METRICS_SCHEMA, orient="row").fill_nan(None)


def log_metrics(graph: DynamicGraph, steps: Iterable[int], dataset: str, protocol: str = "paper") -> pl.DataFrame:
    """Give two properties of the log as rows of METRICS_SCHEMA, under the method `-` without a seed.

    `coverage`: fraction of a step's edges that can be scored, because both ends are known before.
    `repeat_rate`: fraction of its edges that were linked before. Micro pools the edges, macro averages the steps.
    """
    counts = {step: _edge_counts(graph, step) for step in steps}
    total = sum(count[2] for count in counts.values())
    rows = []
    for position, metric in enumerate(("coverage", "repeat_rate")):
        fractions = {str(step): (count[position] / count[2], count[2]) for step, count in counts.items() if count[2]}
        if fractions:
            micro = sum(count[position] for count in counts.values()) / total
            macro = float(np.mean([value for value, _ in fractions.values()]))
            fractions |= {"micro": (micro, total), "macro": (macro, total)}
        rows += [(dataset, protocol, "-", None, step, metric, "-", "all", *pair) for step, pair in fractions.items()]
    columns = METRICS_SCHEMA.names()
    known = pl.DataFrame(rows, schema=pl.Schema({name: METRICS_SCHEMA[name] for name in columns[:10]}), orient="row")
    return pl.concat([pl.DataFrame(schema=METRICS_SCHEMA), known], how="diagonal")


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


def _check_same_pairs(runs: Mapping[tuple[str, int], list[ScoredPairs]]) -> None:
    first: dict[int, list[ScoredPairs]] = {}
    for (_, seed), evaluated in runs.items():
        expected = first.setdefault(seed, evaluated)
        for pairs, same in zip(evaluated, expected, strict=True):
            check_same_pairs(pairs, same)


def _measured(
    runs: Mapping[tuple[str, int], list[ScoredPairs]], part: str
) -> dict[tuple[str, int], dict[tuple[str, str], Measured]]:
    """Give the metrics of each method and seed, by metric and step, over one slice of the pairs."""
    sliced = {run: [slice_of(pairs, part) for pairs in evaluated] for run, evaluated in runs.items()}
    resamples = {}
    for (_, seed), evaluated in sliced.items():
        if seed not in resamples:  # all methods of a seed have the same pairs
            ends = [end_P for pairs in evaluated for end_P in (pairs.source_P, pairs.target_P)]
            resamples[seed] = node_resamples(ends, generator=np.random.default_rng(seed))
    return {run: _metrics_by_step(steps, resamples[run[1]]) for run, steps in sliced.items()}


def _metrics_by_step(evaluated: list[ScoredPairs], resamples: NodeResamples) -> dict[tuple[str, str], Measured]:
    usable = [pairs for pairs in evaluated if pairs.positive_P.any() and not pairs.positive_P.all()]
    if not usable:
        return {}
    steps = {str(pairs.step): _values([pairs], resamples) for pairs in usable}
    pooled = _values(evaluated, resamples) if len(evaluated) > 1 else next(iter(steps.values()))
    found = {}
    for metric in METRICS:
        values = [steps[step][metric] for step in steps]
        found |= {(metric, step): steps[step][metric] for step in steps}
        found[metric, "micro"] = pooled[metric]
        found[metric, "macro"] = Measured(
            float(np.mean([each.value for each in values])),
            sum(each.num_pairs for each in values),
            _mean_of_known(np.stack([each.value_B for each in values])),
        )
    return found


def _values(evaluated: Sequence[ScoredPairs], resamples: NodeResamples) -> dict[str, Measured]:
    """Give the metrics of the pooled pairs of some steps."""
    source_P, target_P, positive_P, score_P = (
        np.concatenate([getattr(pairs, name) for pairs in evaluated])
        for name in ("source_P", "target_P", "positive_P", "score_P")
    )
    resampled = resampled_metrics(resamples, source_P, target_P, positive_P, score_P)
    return {
        metric: Measured(METRICS[metric](positive_P, score_P), len(positive_P), value_B)
        for metric, value_B in zip(METRICS, resampled, strict=True)
    }


def _mean_of_known(value_TB: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average over the steps that have a value in a resample."""
    is_known_TB = np.isfinite(value_TB)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN where no step has one
        return np.where(is_known_TB, value_TB, 0).sum(axis=0) / is_known_TB.sum(axis=0)


def _best_baseline(
    measured: Mapping[tuple[str, int], Mapping[tuple[str, str], Measured]], metric: str, baselines: Collection[str]
) -> str | None:
    values: dict[str, list[float]] = {}
    for (method, _), by_step in measured.items():
        if method in baselines and (metric, "macro") in by_step:
            values.setdefault(method, []).append(by_step[metric, "macro"].value)
    return max(values, key=lambda method: float(np.mean(values[method])), default=None)


def _difference(own: Measured, other: Measured | None) -> tuple[float | None, ...]:
    if other is None:
        return None, None, None
    return own.value - other.value, *interval(own.value_B - other.value_B)


def _edge_counts(graph: DynamicGraph, step: int) -> tuple[int, int, int]:
    """Count the edges of a step between known nodes, those of them that were linked before, and all of them."""
    num_nodes = nodes_known_before(graph, step)
    snapshot = graph.snapshots[step - 1]
    known = known_edges(snapshot, num_nodes)
    past_K = past_pair_keys(graph.snapshots[: step - 1], num_nodes)
    return len(known[0]), int(np.isin(pair_keys(num_nodes, *known), past_K).sum()), len(snapshot.source_E)
