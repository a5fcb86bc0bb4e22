"""The prequential protocol: methods rank the links of the next step among hard candidates.

At step t a method has the snapshots up to t, and forecasts t + 1; then t + 1 becomes training data.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import polars as pl

from dyformer.evaluation.fitting import NUM_LABELLED_STEPS, model_steps
from dyformer.evaluation.forecasts.best_partners import (
    PUBLISHED,
    best_partners,
    link_ends,
    merged,
    partner_metrics,
    retrieved_links,
    retrieved_of,
    retrieved_table,
)
from dyformer.evaluation.labelled_steps import fitted_scores, has_labelled_steps
from dyformer.evaluation.protocols.protocol import Cell, Column, Job, Log, Protocol, Result, TableOf, Tables
from dyformer.evaluation.query_slices import KNOWN
from dyformer.evaluation.rows import metric_rows
from dyformer.evaluation.scored_queries import (
    MIXED,
    RankingTrial,
    from_table,
    query_log_rows,
    query_resamples,
    scored_queries,
    step_metrics,
    to_table,
)
from dyformer.evaluation.seasons import period_before
from dyformer.graphs.snapshots import FIRST_EVALUATED_STEP, prefix
from dyformer.sampling.pairs import known_edges, nodes_known_before
from dyformer.sampling.ranking_queries import RankingQueries, queries_from_tables, queries_to_tables, ranking_queries
from dyformer.scoring.interfaces import Embedder, Scorer
from dyformer.scoring.metrics import HITS
from dyformer.scoring.retrieval import Retrieved

QUERY_TABLES = ("queries", "links")
NEED = (
    "a step needs two earlier steps, and links between known nodes in itself and in one of those it is learnt from: "
    f"the {NUM_LABELLED_STEPS} before, or, where days of a week recur, those of the same day"
)


class Posed(NamedTuple):
    """The queries of a step and the pairs of stage 1, which are the same for all methods."""

    trial: RankingTrial
    retrieved: Retrieved


def rankable_steps(log: Log) -> list[int]:
    """List the steps with links between known nodes and with labelled steps before them."""
    graph = log.graph(log.num_steps)
    return [
        step
        for step in range(FIRST_EVALUATED_STEP, graph.num_steps + 1)
        if len(known_edges(graph.snapshots[step - 1], nodes_known_before(graph, step))[0])
        and has_labelled_steps(graph, step)
    ]


def _draw(job: Job) -> Tables:
    """Draw the queries and candidates of a step; `inductive` candidates are links of later steps."""
    graph = job.log.graph(job.log.num_steps, interactions=True)
    return queries_to_tables(ranking_queries(graph, job.unit, seed=job.seed))


def _trial(job: Job) -> Posed:
    # The graph ends before the step, so no method can read it.
    graph = job.log.graph(job.unit - 1, interactions=True)
    queries = queries_from_tables({name: job.drawn[name] for name in QUERY_TABLES})
    trial = RankingTrial(graph=graph, queries=queries, seed=job.seed, config=job.config)
    return Posed(trial, retrieved_of(trial, job.candidates_of))


def _evaluate(title: str, method: Embedder | Scorer, posed: Posed) -> Tables:
    trial, retrieved = posed
    fitted = fitted_scores(title, method, trial.past, trial.labelled, trial.seed)
    return {
        "rankings": to_table([scored_queries(name, trial, score_pairs) for name, score_pairs in fitted.items()]),
        "partners": pl.concat(
            best_partners(name, trial, retrieved, score_pairs) for name, score_pairs in fitted.items()
        ),
    }


def _rows(results: Sequence[Result], log: Log, baselines: Collection[str], ks: Sequence[int] = HITS) -> Tables:
    """Give the metrics of all queries and of the best partners, and those of the log."""
    by_job: dict[tuple[int, int], list[Result]] = {}
    for result in results:
        by_job.setdefault((result.units[0], result.seed), []).append(result)
    queries = {job: queries_of(job_results[0]) for job, job_results in by_job.items()}
    ends = [result.table("partners")[end].to_numpy() for result in results for end in ("node", "partner")]
    # Of many links only some are queries, whose ends are resampled anyway.
    ends += [end_L for step, seed in by_job for end_L in link_ends(log.graph(step, interactions=True), seed=seed)]
    seeds = {seed for _, seed in by_job}
    drawn = {seed: [job_queries for (_, of_seed), job_queries in queries.items() if of_seed == seed] for seed in seeds}
    resamples = {seed: query_resamples(seed_queries, seed=seed, others=ends) for seed, seed_queries in drawn.items()}
    steps: dict[int, dict] = {}
    retrieved: dict[int, tuple[int, int]] = {}
    for (step, seed), job_results in sorted(by_job.items(), key=lambda item: item[0][0]):
        # One step is in memory at a time, because its scores are many.
        scored = [
            scored_queries
            for result in job_results
            for scored_queries in from_table(result.table("rankings"), queries[step, seed])
        ]
        graph = log.graph(step, interactions=True)
        measured = step_metrics(scored, prefix(graph, step - 1), resamples[seed], ks)
        best = partner_metrics(pl.concat(result.table("partners") for result in job_results), graph, resamples[seed])
        steps.setdefault(step, {}).update(merged(measured, best))
        retrieved[step] = retrieved_links(job_results[0].table("retrieved"), graph, seed=seed)
    of_log = query_log_rows(queries.values(), log.dataset, retrieved=retrieved)
    return {
        "metrics": pl.concat([metric_rows(steps, log.dataset, protocol="prequential", baselines=baselines), of_log])
    }


def queries_of(result: Result) -> RankingQueries:
    """Read the queries that a result is about."""
    return queries_from_tables({name: result.drawn(name) for name in QUERY_TABLES})


def _sentences(rows: pl.DataFrame, metrics: pl.DataFrame) -> list[str]:
    """Compare the best baseline with the best of the other methods, and say which links are ranked."""
    log = metrics.filter(method="-", step="micro", protocol="prequential")
    fraction = {row["metric"]: row["value"] for row in log.to_dicts()}
    covered = (
        f"{100 * fraction['coverage']:.0f} % of the links can be ranked, because both ends are known before; "
        f"{100 * fraction['repeat_rate']:.0f} % of these repeat an earlier link."
    )
    if "retrieved" in fraction:
        covered += (
            f" The first stage retrieves {100 * fraction['retrieved']:.0f} % of the links of the evaluated nodes."
        )
    return [*comparison(rows), covered]


def comparison(rows: pl.DataFrame) -> list[str]:
    """Give a sentence on the best baseline in MRR, and on the best of the other methods beside it."""
    names = ("value", "difference", "difference_low", "difference_high")
    macro = rows.filter(step="macro", family=MIXED).group_by("method", "is_baseline").agg(pl.col(names).mean())
    best = rows["best_baseline"].drop_nulls().first()
    if best is None:
        return []
    value = macro.filter(method=best)["value"].item()
    sentence = f"The best baseline in MRR is {best} ({value:.3f})"
    ours = macro.filter(~pl.col("is_baseline")).sort("value", "method", descending=[True, False]).to_dicts()
    if not ours or ours[0]["difference"] is None:
        return [f"{sentence}."]
    row: dict[str, Any] = ours[0]
    direction = "above" if row["difference"] > 0 else "below"
    between = f"95 % interval of the difference {row['difference_low']:+.3f} to {row['difference_high']:+.3f}"
    relative = f"{100 * abs(row['difference']) / value:.0f} %"
    return [f"{sentence}; {row['method']} is {abs(row['difference']):.3f} ({relative}) {direction} it, {between}."]


IS_USUAL = pl.col("family").is_in([MIXED, PUBLISHED])
IS_KNOWN = pl.col("slice") == KNOWN

PROTOCOL = Protocol(
    name="prequential",
    sentence="their ranks among hard candidates",
    heading="Ranking of the next links",
    methods=(Embedder, Scorer),
    units=rankable_steps,
    need=NEED,
    draw=_draw,
    trial=_trial,
    evaluate=_evaluate,
    shared=lambda posed: {"retrieved": retrieved_table(posed.retrieved)},
    rows=_rows,
    tables=(
        TableOf(
            name=KNOWN,
            key="rankings",
            slice=KNOWN,
            columns=(
                Column(title="MRR", metric="mrr", family=MIXED),
                Column(title="precision@10", metric="precision_at_10", family=PUBLISHED),
                Column(title="AUC random", metric="auc", family="random", missing=None),  # no such pair in a small log
                Column(title="AUC active", metric="auc", family="active", missing=None),
                Column(title="MRR difference", metric="mrr", family=MIXED, value="difference", form="{:+.3f}"),
            ),
            title="{dataset}, prequential protocol: mean over {steps} [95 % interval]; {num} queries, {seeds}",
            contents="links between known nodes",
            measure="MRR [95 % interval]",
            counted="ranked links",
            sentences=_sentences,
        ),
    ),
    trained_until=lambda log, steps: model_steps(max(steps) - 1, period_before(log.graph(max(steps) - 1), max(steps))),
    kind="rankings",
    main=Cell("mrr", MIXED, KNOWN),
    usual_slice=KNOWN,
    usual_families=(MIXED, PUBLISHED),
    # Of all slices the MRR alone, and of each family of negatives the AUC, because MLflow draws a chart for each name.
    is_tracked=(IS_USUAL & (IS_KNOWN | (pl.col("metric") == "mrr")))
    | (~IS_USUAL & IS_KNOWN & (pl.col("metric") == "auc")),
    plots=("families",),
)


def with_hits(ks: Sequence[int]) -> Protocol:
    """Give the protocol with a column for each k: the fraction of links among the first k of their candidates."""
    (table,) = PROTOCOL.tables
    columns = [Column(title=f"hits@{k}", metric=f"hits_at_{k}", family=MIXED) for k in dict.fromkeys(ks)]
    return replace(PROTOCOL, rows=partial(_rows, ks=ks), tables=(replace(table, columns=(*table.columns, *columns)),))
