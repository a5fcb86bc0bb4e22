"""The protocol of labels (appendix): which nodes get their first positive label in the next step."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from dyformer import InvalidInput
from dyformer.evaluation.fitting import MIN_TRAINED_STEPS
from dyformer.evaluation.node_classification import (
    PROTOCOL as NAME,
)
from dyformer.evaluation.node_classification import (
    evaluate_labels,
    label_metrics,
    positive_fractions,
    steps_with_labels,
)
from dyformer.evaluation.protocols.protocol import Column, Job, Log, Protocol, Result, TableOf, Tables
from dyformer.evaluation.scored_pairs import from_table, to_table
from dyformer.graphs.interactions import NodeLabels
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring.interfaces import Embedder, NodeScorer

LABELLED = "users with a first positive label in the next step"
PERCENT: Mapping[str, Any] = {"scale": 100.0, "digits": 2, "missing": None}


class Labelled(NamedTuple):
    """The steps that are evaluated, and what is known up to the last of them."""

    job: Job
    graph: DynamicGraph
    labels: NodeLabels


def steps_to_score(log: Log) -> list[int]:
    """List the steps whose labels can be forecast. Raises ValueError for a log without a positive label."""
    labels = log.labels()
    if not (labels.label_R > 0).any():
        has = "labels, but no positive one" if len(labels.label_R) else "no labels"
        raise InvalidInput(
            f"{log.dataset} has {has}: expected a log whose column of labels (label) has numbers above 0, such as"
            " snap-wikipedia"
        )
    return steps_with_labels(labels, log.num_steps)


def trial_of(job: Job) -> Labelled:
    """Give the graph and the labels up to the last step."""
    last = max(job.units)
    return Labelled(job, job.log.graph(last, interactions=True), job.log.labels().until(last))


def evaluate(title: str, method: Embedder | NodeScorer, trial: Labelled) -> Tables:
    """Score the nodes of all steps in both protocols of labels, because the vectors of a step serve all later ones."""
    job, graph, labels = trial
    scored = evaluate_labels(title, method, graph, labels, job.units, seed=job.seed, config=job.config)
    return {"pairs": to_table(scored)}


def rows_of(results: Sequence[Result], log: Log, protocol: str, baselines: Collection[str]) -> pl.DataFrame:
    """Give the metrics of the nodes that were scored in one of the protocols of labels."""
    scored = [nodes for result in results for nodes in from_table(result.table("pairs"))]
    return label_metrics([nodes for nodes in scored if nodes.family == protocol], log.dataset, baselines=baselines)


def table_of(protocol: str, name: str, contents: str, metric: str, short: str) -> TableOf:
    """Give the table of one metric."""
    description: Mapping[str, Any] = {"metric": metric, "family": protocol, **PERCENT}
    measure = {"AUC": "AUC", "AP": "average precision (AP)"}[short]
    return TableOf(
        name=name,
        key=f"{protocol}-{name}",
        slice="all",
        columns=(
            Column(title=f"Micro {short}", over="micro", form="{:.2f}", single=None, **description),
            Column(title=f"Macro {short}", form="{:.2f}", single=short, **description),
            Column(title="difference", value="difference", form="{:+.2f}", **description),
        ),
        title=f"{{dataset}}, {protocol} protocol: {measure} in percent [95 % interval]; {{num}} {contents}, {{where}},"
        " {seeds}{best}",
        contents=contents,
        measure=f"{measure} in percent [95 % interval]",
        reference="the best count",
    )


def _rows(results: Sequence[Result], log: Log, baselines: Collection[str]) -> Tables:
    steps = sorted({step for result in results for step in result.units})
    parts = (rows_of(results, log, NAME, baselines), positive_fractions(log.labels(), steps, log.dataset))
    return {"metrics": pl.concat(parts)}


PROTOCOL = Protocol(
    name=NAME,
    sentence="which nodes get a positive label next",
    heading="Nodes with a positive label next",
    methods=(Embedder, NodeScorer),
    compared_with=(NodeScorer,),
    units=steps_to_score,
    need="some node known before a step gets its first positive label in it, and some node did in an earlier step",
    trial=trial_of,
    evaluate=evaluate,
    rows=_rows,
    tables=(
        table_of(NAME, "auc", LABELLED, "auc", "AUC"),
        table_of(NAME, "precision", LABELLED, "average_precision", "AP"),
    ),
    trained_until=lambda _, steps: list(range(MIN_TRAINED_STEPS, max(steps))),
    together=True,
)
