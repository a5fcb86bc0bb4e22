"""Snapshots of a log with labels and a method -> its scores of the nodes of all steps, and their metrics."""

from collections.abc import Sequence

import polars as pl

from dyformer.embedder import Embedder, NodeScorer
from dyformer.evaluation.node_classification import (
    PROTOCOL,
    NoLabels,
    evaluate_labels,
    label_metrics,
    steps_with_labels,
)
from dyformer.evaluation.scored_pairs import to_table
from dyformer.experiments.methods import NODE_METHODS
from dyformer.experiments.settings import Experiment, as_record, experiment_for
from flows.tasks.evaluation.evaluate import chosen_steps, read_scores
from flows.tasks.methods import label_methods, own_errors, record_of
from flows.tasks.models import space_of, stored_method
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import is_current, write_artifact


def score_labels(
    snapshots: str,
    name: str,
    steps: Sequence[int],
    experiment: Experiment | None = None,
    seed: int = 0,
    models: Sequence[str] = (),
    searched: str | None = None,
) -> str:
    """Score the nodes of steps by a method, titled as in label_methods; return the address of the scores.

    All steps are in one artifact, because vectors as of each step serve all later ones. `models` are the stored weights
    of the method, one trained up to each step that needs vectors; without them the method is fitted here, with the
    settings that a search chose for the dataset `searched`.
    """
    opened, about = open_snapshots(snapshots), {"protocol": PROTOCOL, "seed": seed, "steps": list(steps)}
    if models:
        method, experiment = stored_method(opened, models[-1], models[:-1], max(steps))
        settings = {**about, "method": name, "models": list(map(space_of, models))}
    else:
        experiment = experiment_for(opened.dataset) if experiment is None else experiment
        method = label_methods([name], experiment.max_epochs, searched)[name]
        settings = {**about, "methods": {name: record_of(method)}, **as_record(experiment, "graph")}
    lineage = opened.lineage("scores", until=max(steps), settings=settings, inputs=tuple(models))
    keys = {"version": lineage.table_version, "until": max(steps) - 1, "settings": lineage.settings_hash, "seed": seed}
    address = opened.layout.scores(opened.dataset, **keys)
    if is_current(address, lineage):
        return address
    assert isinstance(method, Embedder | NodeScorer), f"{name} scores pairs, which have no labels"
    graph, labels = opened.graph(max(steps), interactions=True), opened.labels().until(max(steps))
    with own_errors(name, method):
        scored = evaluate_labels(name, method, graph, labels, steps, seed=seed, config=experiment.graph)
    return write_artifact(address, {"pairs": to_table(scored)}, lineage)


def steps_to_score(snapshots: str, wanted: str | None = None) -> list[int]:
    """List the steps whose labels can be forecast, or `wanted` such as "4-11".

    Raises:
        NoLabels: the log has no positive label.
        StepOutOfRange: a step without a positive label of a known node, or without one before it.
    """
    opened = open_snapshots(snapshots)
    labels = opened.labels()
    if not (labels.label_R > 0).any():
        has = "labels, but no positive one" if len(labels.label_R) else "no labels"
        raise NoLabels(
            f"{opened.dataset} has {has}: expected a log whose column of labels (`label`) has numbers above 0, such as"
            " snap-wikipedia"
        )
    need = "some node known before a step gets its first positive label in it, and some node did in an earlier step"
    return chosen_steps(snapshots, steps_with_labels(labels, opened.num_steps), wanted, need)


def scored_labels_metrics(scores: list[str], snapshots: str) -> pl.DataFrame:
    """Return the metrics of scores artifacts as rows of METRICS_SCHEMA, compared with the best of NODE_METHODS."""
    opened = open_snapshots(snapshots)
    scored = [nodes for address in scores for nodes in read_scores(address)]
    return label_metrics(scored, opened.labels(), opened.dataset, baselines=NODE_METHODS)
