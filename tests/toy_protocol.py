"""A protocol in one file: the fraction of a step's links that a method scores above a random pair of their sources."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from dyformer.evaluation.labelled_steps import labelled_steps
from dyformer.evaluation.protocols.prequential import rankable_steps
from dyformer.evaluation.protocols.protocol import Cell, Column, Job, Log, Protocol, Result, TableOf, Tables, one_of
from dyformer.evaluation.rows import METRICS_SCHEMA
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.sampling.pairs import known_edges, nodes_known_before
from dyformer.scoring.interfaces import Scorer


class Known(NamedTuple):
    """What methods are fitted on, and the links that come."""

    job: Job
    past: PreparedGraph


def _draw(job: Job) -> Tables:
    graph = job.log.graph(job.unit)
    num_known = nodes_known_before(graph, job.unit)
    source_P, target_P = known_edges(graph.snapshots[job.unit - 1], num_known)
    other_P = np.random.default_rng([job.seed, job.unit]).integers(num_known, size=len(source_P))
    if job.settings["mirrored"] == "yes":
        source_P, target_P = target_P, source_P
    return {"pairs": pl.DataFrame({"source": source_P, "target": target_P, "other": other_P})}


def _trial(job: Job) -> Known:
    graph = job.log.graph(job.unit - 1, interactions=True)
    return Known(job, prepare_graph(graph, until=job.unit - 1, config=job.config))


def _evaluate(title: str, method: Scorer, known: Known) -> Tables:
    job = known.job
    score_pairs = method.fit_pairs(known.past, labelled_steps(known.past, seed=job.seed))
    source_P, target_P, other_P = (column.to_numpy() for column in job.drawn["pairs"])
    is_above = score_pairs(source_P, target_P) > score_pairs(source_P, other_P)
    row = {"method": title, "seed": job.seed, "step": job.unit, "above": is_above.mean(), "num_pairs": len(source_P)}
    return {"toy": pl.DataFrame([row])}


def _rows(results: Sequence[Result], log: Log, baselines: Collection[str]) -> Tables:
    table = pl.concat(result.table("toy") for result in results)
    of_step = table.select("method", "seed", pl.col("step").cast(pl.String), "num_pairs", value="above")
    macro = of_step.group_by("method", "seed", maintain_order=True).agg(
        pl.col("value").mean(), pl.col("num_pairs").sum(), step=pl.lit("macro")
    )
    rows = pl.concat([of_step, macro.select(of_step.columns)]).with_columns(
        dataset=pl.lit(log.dataset),
        protocol=pl.lit("toy"),
        metric=pl.lit("above"),
        family=pl.lit("random"),
        slice=pl.lit("all"),
        is_baseline=pl.col("method").is_in(list(baselines)),
    )
    return {"metrics": pl.concat([pl.DataFrame(schema=METRICS_SCHEMA), rows], how="diagonal")}


PROTOCOL = Protocol(
    name="toy",
    sentence="links above random pairs of their sources",
    heading="Links above random pairs",
    methods=(Scorer,),
    units=rankable_steps,
    need="a step needs links",
    draw=_draw,
    trial=_trial,
    evaluate=_evaluate,
    rows=_rows,
    tables=(
        TableOf(
            name="all",
            key="toy",
            slice="all",
            columns=(Column(title="above", metric="above", family="random", form="{:.2f}"),),
            title="{dataset}, toy protocol: {num} links, {where}, {seeds}",
            contents="links",
            measure="fraction above",
        ),
    ),
    settings={"mirrored": one_of("no", "yes")},
    main=Cell("above", "random", "all"),
)
