"""Methods and stored weights evaluated on one unit of a protocol, as the flows do it, and their metrics."""

from collections.abc import Collection, Sequence

import polars as pl

from dyformer.evaluation.protocols import protocol_of
from dyformer.experiments.settings import Experiment
from flows.tasks.evaluation.evaluate import Group, Posed, draw, evaluate, evaluate_baselines
from flows.tasks.evaluation.measure import measure, read_metrics
from flows.tasks.methods import configured, resolved
from storage.artifacts.artifact import lineage_of


def evaluate_methods(
    snapshots: str,
    names: Sequence[str],
    step: int,
    experiment: Experiment | None = None,
    seed: int = 0,
    *,
    protocol: str = "paper",
) -> str:
    """Fit methods before a step and evaluate them; return the address of the results."""
    methods = configured(resolved(names), None if experiment is None else experiment.max_epochs)
    return evaluate(_posed(snapshots, step, seed, protocol, experiment), Group(methods))


def evaluate_model(
    snapshots: str,
    model: str,
    step: int,
    method: str = "DyFormer",
    seed: int = 0,
    older: tuple[str, ...] = (),
    *,
    protocol: str = "paper",
) -> str:
    """Evaluate stored weights on a step after their training; return the address of the results."""
    return evaluate(_posed(snapshots, step, seed, protocol), Group({method: None}, (*older, model)))


def baselines_on(snapshots: str, step: int, seed: int = 0) -> str:
    """Evaluate the baselines that score pairs in the paper's protocol."""
    return evaluate_baselines(snapshots, protocol_of("paper"), step, seed)


def write_queries(snapshots: str, step: int, seed: int = 0) -> str:
    """Draw the queries of a step."""
    address = draw(_posed(snapshots, step, seed, "prequential"))
    assert address is not None
    return address


def rank_methods(
    snapshots: str, queries: str, names: Sequence[str], experiment: Experiment | None = None, seed: int = 0
) -> str:
    """Fit methods on what is known before the step of queries, and score these."""
    [step] = lineage_of(queries).settings["units"]
    return evaluate_methods(snapshots, names, step, experiment, seed, protocol="prequential")


def rank_model(
    snapshots: str, queries: str, model: str, method: str = "DyFormer", seed: int = 0, older: tuple[str, ...] = ()
) -> str:
    """Score queries by stored weights."""
    [step] = lineage_of(queries).settings["units"]
    return evaluate_model(snapshots, model, step, method, seed, older, protocol="prequential")


def metrics_of(
    scores: list[str], snapshots: str, baselines: Collection[str] | None = None, *, protocol: str = "paper"
) -> pl.DataFrame:
    """Give the metrics of results."""
    return read_metrics(measure(snapshots, protocol_of(protocol), scores, baselines))


def _posed(snapshots: str, unit: int, seed: int, protocol: str, experiment: Experiment | None = None) -> Posed:
    return Posed(snapshots=snapshots, protocol=protocol_of(protocol), units=(unit,), seed=seed, experiment=experiment)
