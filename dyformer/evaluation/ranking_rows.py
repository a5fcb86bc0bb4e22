"""Scored queries -> rows of ranking metrics: per step, pooled and averaged, by family of negatives and slice.

Q queries    C candidates of a query    P pairs    M methods    V values of a query    B resamples
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.evaluation.bootstrap import NodeResamples, interval, node_resamples, resampled_metrics
from dyformer.evaluation.metric_rows import METRICS_SCHEMA
from dyformer.evaluation.query_slices import KNOWN, query_slices
from dyformer.evaluation.scored_queries import ScoredQueries
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.ranking_queries import FAMILIES, RankingQueries
from dyformer.scoring.metrics import auc, average_precision
from dyformer.scoring.ranking_metrics import HITS, hits, mean_ranks, ndcg, reciprocal_rank

MIXED = "mixed"
"""All families but `inductive`, whose candidates become links later and do not exist at the last step."""

MAIN_SLICES = (KNOWN, "new", "repeat")
ALL = "all"  # the known queries, and the links with an unknown end as misses
NUM_PAIR_RESAMPLES = 200  # of AUC and average precision, whose pairs are many

Run = tuple[str, int]  # method, seed
Cell = tuple[str, str, str]  # metric, family, slice


class StepMetric(NamedTuple):
    """A metric of one step, and its values with resampled nodes; a mean has its total and count as well."""

    value: float
    num: int  # queries of a mean, pairs of an AUC
    value_B: NDArray[np.float64]
    total: float = np.nan
    total_B: NDArray[np.float64] | None = None  # None: not a mean over queries, so steps are not pooled
    count_B: NDArray[np.float64] | None = None


def query_resamples(
    queries: Sequence[RankingQueries], *, seed: int, others: Sequence[NDArray[np.int64]] = ()
) -> NodeResamples:
    """Draw resamples of the nodes of all steps' queries and candidates, and of `others`."""
    ends = [*others, *(end for each in queries for end in (each.pairs.source_S, each.pairs.target_S))]
    return node_resamples(ends, num_resamples=1000, generator=np.random.default_rng(seed))


def step_metrics(
    scored: Sequence[ScoredQueries], graph: DynamicGraph, resamples: NodeResamples
) -> dict[Run, dict[Cell, StepMetric]]:
    """Give the metrics of the methods that scored one step's queries, all with the same seed and queries.

    Mean reciprocal ranks are given for every family and every slice, hits and NDCG@10 among the mixed candidates. AUC
    and average precision compare the true pairs with the candidates of a family. Raises ValueError for other queries.
    """
    queries = _same_queries(scored)
    found: dict[Run, dict[Cell, StepMetric]] = {(each.method, each.seed): {} for each in scored}
    if not len(queries.source_Q):
        return found
    slices = query_slices(graph, queries)
    for each in scored:
        cells = found[each.method, each.seed]
        for family in FAMILIES:
            cells.update(_pair_metrics(each, family, slices, resamples))
    _add_means(found, scored, slices, resamples)
    return found


def query_means(
    scored: Sequence[ScoredQueries], metric: str, slices: Mapping[str, NDArray[np.bool_]], resamples: NodeResamples
) -> dict[str, list[StepMetric]]:
    """Give a mean over the queries of each slice, among the mixed candidates, of all methods in their order.

    A slice without a query that has candidates is left out. Raises ValueError for other queries.
    """
    queries = _same_queries(scored)
    value_QM = np.column_stack([_values(each)[metric, MIXED] for each in scored])
    return _means_by_slice(value_QM, pair_weights(resamples, queries.source_Q, queries.target_Q), slices)


def metric_rows(
    steps: Mapping[int, Mapping[Run, Mapping[Cell, StepMetric]]],
    dataset: str,
    *,
    protocol: str = "prequential",
    baselines: Collection[str] = (),
) -> pl.DataFrame:
    """Give the metrics of steps as rows of METRICS_SCHEMA, with `micro` and `macro`.

    Micro pools the queries of all steps (not for AUC and average precision), macro is the mean over steps. The best
    baseline of a metric, family and slice is that of `baselines` with the best macro value, averaged over seeds.
    """
    runs = list(dict.fromkeys(run for by_run in steps.values() for run in by_run))
    whole = {run: _with_means({step: by_run.get(run, {}) for step, by_run in steps.items()}) for run in runs}
    best = _best_baselines(whole, baselines)
    rows = []
    for (method, seed), values in whole.items():
        for (step, cell), own in values.items():
            metric, family, part = cell
            name = best.get(cell)
            other = None if name in (None, method) else whole.get((name, seed), {}).get((step, cell))
            about = (dataset, protocol, method, seed, step, metric, family, part, own.value, own.num)
            rows.append((*about, *interval(own.value_B), method in baselines, name, *_difference(own, other)))
    return pl.DataFrame(rows, schema=METRICS_SCHEMA, orient="row").fill_nan(None)


def query_log_rows(
    queries: Iterable[RankingQueries],
    dataset: str,
    *,
    protocol: str = "prequential",
    retrieved: Mapping[int, tuple[int, int]] | None = None,
) -> pl.DataFrame:
    """Give properties of the log as rows of METRICS_SCHEMA, under the method `-` without a seed.

    `coverage`: fraction of a step's links that can be scored, because both ends are known. `unseen_ends_1` and
    `unseen_ends_2`: fractions with one and two unknown ends. `repeat_rate`: fraction of the queries whose pair was
    linked before. `retrieved`, given as counts by step: fraction of the evaluated nodes' links that stage 1 retrieved.
    """
    names = ("coverage", "unseen_ends_1", "unseen_ends_2")
    counts = {
        (name, str(each.step)): (each.num_links_3[number], sum(each.num_links_3))
        for each in queries
        for number, name in enumerate(names)
    }
    counts |= {("repeat_rate", str(each.step)): (int((~each.new_Q).sum()), len(each.new_Q)) for each in queries}
    counts |= {("retrieved", str(step)): count for step, count in (retrieved or {}).items()}
    counts = {key: count for key, count in counts.items() if count[1]}
    rows = []
    for name in (*names, "repeat_rate", "retrieved"):
        steps = {step: count for (own, step), count in counts.items() if own == name}
        total = sum(count[1] for count in steps.values())
        values = {step: (part / whole, whole) for step, (part, whole) in steps.items()}
        if steps:
            values["micro"] = sum(count[0] for count in steps.values()) / total, total
            values["macro"] = float(np.mean([values[step][0] for step in steps])), total
        rows += [(dataset, protocol, "-", None, step, name, "-", ALL, *value) for step, value in values.items()]
    columns = METRICS_SCHEMA.names()[:10]
    known = pl.DataFrame(rows, schema=pl.Schema({name: METRICS_SCHEMA[name] for name in columns}), orient="row")
    return pl.concat([pl.DataFrame(schema=METRICS_SCHEMA), known], how="diagonal")


def ranks_of(scored: ScoredQueries, family: str) -> NDArray[np.float64]:
    """Rank the true targets among the candidates of a family or the mixed ones, [Q]; NaN without a candidate."""
    family_QC = scored.queries.family_QC
    inductive = FAMILIES.index("inductive")
    among_QC = family_QC == FAMILIES.index(family) if family != MIXED else (family_QC >= 0) & (family_QC != inductive)
    rank_Q = mean_ranks(scored.score_Q, scored.score_QC, among_QC)
    return np.where(among_QC.any(axis=1), rank_Q, np.nan)


def _same_queries(scored: Sequence[ScoredQueries]) -> RankingQueries:
    queries = scored[0].queries
    if any(each.queries is not queries for each in scored):
        raise ValueError(f"step {queries.step}: methods were evaluated on other queries; evaluate all on the same ones")
    return queries


def _values(scored: ScoredQueries) -> dict[tuple[str, str], NDArray[np.float64]]:
    """Give the values [Q] of metrics that are means over queries, by metric and family."""
    rank_Q = ranks_of(scored, MIXED)
    values = {("mrr", MIXED): reciprocal_rank(rank_Q), ("ndcg_at_10", MIXED): ndcg(rank_Q, 10)}
    values |= {(f"hits_at_{k}", MIXED): hits(rank_Q, k) for k in HITS}
    values |= {("mrr", family): reciprocal_rank(ranks_of(scored, family)) for family in FAMILIES}
    has_candidates_Q = np.isfinite(rank_Q)
    return {
        key: np.where(has_candidates_Q, value_Q, np.nan) if key[1] == MIXED else value_Q
        for key, value_Q in values.items()
    }


def _add_means(
    found: dict[Run, dict[Cell, StepMetric]],
    scored: Sequence[ScoredQueries],
    slices: Mapping[str, NDArray[np.bool_]],
    resamples: NodeResamples,
) -> None:
    queries = scored[0].queries
    weight_BQ = pair_weights(resamples, queries.source_Q, queries.target_Q)
    values = [_values(each) for each in scored]
    for metric, family in values[0]:
        value_QM = np.column_stack([each[metric, family] for each in values])
        parts = slices if (metric, family) == ("mrr", MIXED) else [part for part in MAIN_SLICES if part in slices]
        for part, measured in _means_by_slice(value_QM, weight_BQ, {part: slices[part] for part in parts}).items():
            for each, own in zip(scored, measured, strict=True):
                found[each.method, each.seed][metric, family, part] = own
                if family == MIXED and part == KNOWN:
                    found[each.method, each.seed][metric, family, ALL] = _with_misses(own, queries)


def pair_weights(
    resamples: NodeResamples, source_Q: NDArray[np.int64], target_Q: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Give how often each pair counts in each resample, [B, Q]."""
    source_Q, target_Q = (np.searchsorted(resamples.node_S, end_Q) for end_Q in (source_Q, target_Q))
    return resamples.weight_BS[:, source_Q].astype(np.float32) * resamples.weight_BS[:, target_Q]


def _means_by_slice(
    value_QM: NDArray[np.float64], weight_BQ: NDArray[np.float32], slices: Mapping[str, NDArray[np.bool_]]
) -> dict[str, list[StepMetric]]:
    used_Q = np.isfinite(value_QM[:, 0])  # the same queries for all methods
    masks = {part: mask_Q & used_Q for part, mask_Q in slices.items()}
    return {part: means(value_QM[mask_Q], weight_BQ[:, mask_Q]) for part, mask_Q in masks.items() if mask_Q.any()}


def means(value_QM: NDArray[np.float64], weight_BQ: NDArray[np.float32]) -> list[StepMetric]:
    """Give the means over queries of the values of M methods, and their resampled means."""
    total_BM, count_B = weight_BQ @ value_QM, weight_BQ.sum(axis=1, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # a resample without any of the queries is NaN
        value_BM = total_BM / count_B[:, None]
    return [
        StepMetric(float(value_Q.mean()), len(value_Q), value_B, float(value_Q.sum()), total_B, count_B)
        for value_Q, value_B, total_B in zip(value_QM.T, value_BM.T, total_BM.T, strict=True)
    ]


def _with_misses(known: StepMetric, queries: RankingQueries) -> StepMetric:
    """Count the links with an unknown end as misses."""
    # A step with many links has a sample of them as queries, so its misses are scaled down as well.
    count, coverage = known.num / queries.coverage, queries.coverage
    assert known.count_B is not None
    return known._replace(
        value=known.value * coverage,
        num=round(count),
        value_B=known.value_B * coverage,
        count_B=known.count_B / coverage,
    )


def _pair_metrics(
    scored: ScoredQueries, family: str, slices: Mapping[str, NDArray[np.bool_]], resamples: NodeResamples
) -> dict[Cell, StepMetric]:
    """Give AUC and average precision of the true pairs against the candidates of a family; the interval for `known`."""
    queries, cells = scored.queries, {}
    among_QC = queries.family_QC == FAMILIES.index(family)
    for part in (name for name in MAIN_SLICES if name in slices):
        used_Q = slices[part] & among_QC.any(axis=1)
        row_P, column_P = np.nonzero(among_QC & used_Q[:, None])
        if not used_Q.any():
            continue
        source_P = np.concatenate([queries.source_Q[used_Q], queries.source_Q[row_P]])
        target_P = np.concatenate([queries.target_Q[used_Q], queries.candidate_QC[row_P, column_P]])
        score_P = np.concatenate([scored.score_Q[used_Q], scored.score_QC[row_P, column_P]])
        positive_P = np.arange(len(score_P)) < used_Q.sum()
        resampled = (np.empty(0), np.empty(0))
        if part == KNOWN:
            few = NodeResamples(node_S=resamples.node_S, weight_BS=resamples.weight_BS[:NUM_PAIR_RESAMPLES])
            resampled = resampled_metrics(few, source_P, target_P, positive_P, score_P)
        for name, metric, value_B in zip(
            ("auc", "average_precision"), (auc, average_precision), resampled, strict=True
        ):
            cells[name, family, part] = StepMetric(metric(positive_P, score_P), len(score_P), value_B)
    return cells


def _with_means(steps: Mapping[int, Mapping[Cell, StepMetric]]) -> dict[tuple[str, Cell], StepMetric]:
    found = {(str(step), cell): own for step, cells in steps.items() for cell, own in cells.items()}
    for cell in dict.fromkeys(cell for cells in steps.values() for cell in cells):
        values = [cells[cell] for cells in steps.values() if cell in cells]
        num = sum(each.num for each in values)
        totals = [(each.total_B, each.count_B) for each in values if each.total_B is not None]
        if totals:
            total_B, count_B = (np.sum(parts, axis=0) for parts in zip(*totals, strict=True))
            with np.errstate(invalid="ignore", divide="ignore"):  # a resample without any pair that counts
                total = sum(each.total for each in values)
                found["micro", cell] = StepMetric(total / num if num else np.nan, num, total_B / count_B)
        known = [each.value for each in values if np.isfinite(each.value)]
        value = float(np.mean(known)) if known else np.nan
        found["macro", cell] = StepMetric(value, num, _mean_of_known([each.value_B for each in values]))
    return found


def _mean_of_known(value_TB: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Average over the steps that have a value in a resample."""
    stacked_TB = np.stack(value_TB)
    is_known_TB = np.isfinite(stacked_TB)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN where no step has one
        return np.where(is_known_TB, stacked_TB, 0).sum(axis=0) / is_known_TB.sum(axis=0)


def _best_baselines(
    whole: Mapping[Run, Mapping[tuple[str, Cell], StepMetric]], baselines: Collection[str]
) -> dict[Cell, str]:
    values: dict[Cell, dict[str, list[float]]] = {}
    for (method, _), cells in whole.items():
        for (step, cell), own in cells.items():
            if step == "macro" and method in baselines:
                values.setdefault(cell, {}).setdefault(method, []).append(own.value)
    return {cell: max(own, key=lambda method: float(np.mean(own[method]))) for cell, own in values.items()}


def _difference(own: StepMetric, other: StepMetric | None) -> tuple[float | None, ...]:
    if other is None:
        return None, None, None
    return own.value - other.value, *interval(own.value_B - other.value_B)
