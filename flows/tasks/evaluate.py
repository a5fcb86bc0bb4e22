"""Weights, or a simple baseline -> the scored pairs of a step, evaluated as the paper does."""

import polars as pl

from dyformer.evaluation.protocols import (
    baseline_scores,
    evaluate_embedding,
    from_table,
    log_metrics,
    metrics_of,
    to_table,
)
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.sampling.pairs import evaluated_steps
from dyformer.training.stages import embed
from flows.tasks.models import device, open_model, was_trained_on
from flows.tasks.snapshots import FIRST_EVALUATED_STEP, Snapshots, StepOutOfRange, first_evaluated_step, open_snapshots
from storage.artifacts.artifact import is_current, read_table, write_artifact

PROTOCOL = "paper"
FEATURES_SUFFIX = " + pair features"  # the same vectors, decoded together with the past of the pair


def evaluate_model(snapshots: str, model: str, step: int, method: str = "DyFormer", seed: int = 0) -> str:
    """Judge a model on a step after its training, with the paper's decoder and with the one that reads pair features.

    The graph is shown up to `step - 1`; from the step itself come the 20 % of its pairs that the protocol fits its
    decoder on, the 20 % that choose the regularisation, and the 60 % that are evaluated. Raises StepOutOfRange
    for a step that the model was trained on.
    """
    opened = open_snapshots(snapshots)
    weights, experiment, trained = open_model(model)
    if was_trained_on(trained, opened, step):
        raise StepOutOfRange(f"step {step} cannot evaluate {model}: it was trained on it; take a later step")
    settings = {"protocol": PROTOCOL, "method": method, "seed": seed, "model": trained.settings_hash}
    lineage = opened.lineage("scores", until=step, settings=settings, inputs=(model,))
    address = scores_address(opened, step, lineage.settings_hash, seed)
    if is_current(address, lineage):
        return address
    graph = opened.graph(step)
    prepared = prepare_graph(graph, until=step - 1, config=experiment.graph)
    vectors_ND = embed(prepared, weights, experiment.model, device=device())
    scored = [
        evaluate_embedding(method, vectors_ND, graph, step, seed, decoder="paper"),
        evaluate_embedding(method + FEATURES_SUFFIX, vectors_ND, graph, step, seed, decoder="features"),
    ]
    return write_artifact(address, {"pairs": to_table(scored)}, lineage)


def evaluate_baselines(snapshots: str, step: int, seed: int = 0) -> str:
    """Judge every simple past-only baseline on the same pairs."""
    opened = open_snapshots(snapshots)
    settings = {"protocol": PROTOCOL, "method": "baselines", "seed": seed}
    lineage = opened.lineage("scores", until=step, settings=settings)
    address = scores_address(opened, step, lineage.settings_hash, seed)
    if is_current(address, lineage):
        return address
    return write_artifact(address, {"pairs": to_table(baseline_scores(opened.graph(step), step, seed))}, lineage)


def scores_address(opened: Snapshots, step: int, settings: str, seed: int) -> str:
    """Give where the scored pairs of a step lie, under the cut before it."""
    return opened.layout.scores(opened.dataset, version=opened.version, until=step - 1, settings=settings, seed=seed)


def steps_to_evaluate(snapshots: str, wanted: str | None = None) -> list[int]:
    """List the steps that are evaluated: those of the paper, or `wanted` such as "3-13" or "5,7".

    Raises:
        StepOutOfRange: a step without a history to learn from, or beyond the newest.
    """
    opened = open_snapshots(snapshots)
    graph = opened.graph(opened.num_steps)
    possible = evaluated_steps(graph, first_step=FIRST_EVALUATED_STEP)
    first = first_evaluated_step(opened.dataset)
    steps = [step for step in possible if step >= first] if wanted is None else wanted_steps(wanted)
    wrong = [step for step in steps if step not in possible]
    if wrong or not steps:
        can = f"steps {possible[0]} to {possible[-1]} can" if possible else "no step can"
        raise StepOutOfRange(
            f"{opened.dataset}: {', '.join(map(str, wrong)) or 'no step'} cannot be evaluated; {can}"
            " (a step needs two before it, and enough links of known nodes)"
        )
    return steps


def wanted_steps(text: str) -> list[int]:
    """Read "5", "3-13" or "3,5,7"; raises StepOutOfRange for anything else."""
    return [step for part in text.split(",") for step in _range(part)]


def metrics(scores: list[str], snapshots: str) -> pl.DataFrame:
    """Sum up scores artifacts, one row a figure: per step, micro and macro."""
    opened = open_snapshots(snapshots)
    scored = [pairs for address in scores for pairs in from_table(read_table(address, "pairs"))]
    steps = sorted({pairs.step for pairs in scored})
    log = log_metrics(opened.graph(max(steps)), steps, opened.dataset)
    return pl.concat([metrics_of(scored, opened.dataset, PROTOCOL), log])


def _range(text: str) -> list[int]:
    first, dash, last = text.strip().partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise StepOutOfRange(f'{text!r} is no step: write "5", "3-13" or "3,5,7"')
    if int(last or first) < int(first):
        raise StepOutOfRange(f"{text!r} goes backwards: write {last}-{first}")
    return list(range(int(first), int(last or first) + 1))
