"""A challenger and its scores -> the champion of the dataset, chosen on the pairs of the newest step."""

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np

from dyformer.evaluation.metric_rows import METRICS
from dyformer.evaluation.scored_pairs import ScoredPairs
from dyformer.evaluation.significance import new_pairs, paired_difference
from dyformer.experiments.settings import OldSettings
from dyformer.training.checkpoint import WeightsDoNotFit
from flows.tasks.evaluate import evaluate_model, read_scores
from flows.tasks.models import space_of, trained_until
from flows.tasks.snapshots import Snapshots, open_snapshots
from storage import files
from storage.artifacts.artifact import lineage_of, manifest
from storage.layout import Layout
from storage.locks import alone

CHALLENGER, CHAMPION = "DyFormer", "champion"


class NotEvaluated(ValueError):
    """A challenger without scores cannot be promoted."""


def promote_if_better(snapshots: str, model: str, scores: list[str], seed: int = 0) -> dict[str, Any]:
    """Promote a model to champion of its dataset if there is none, or if it is significantly better.

    The champion is evaluated on the challenger's own pairs with the paper's decoder. The challenger is promoted if the
    95 % interval of the difference in AUC is above 0, unless that on new pairs is below 0. A champion that was trained
    on the evaluated step cannot be evaluated and stays. A champion without weights, or whose weights do not fit the
    model, is replaced.

    Args:
        snapshots: address of the snapshots for both evaluations.
        model: address of the challenger's weights.
        scores: addresses of evaluated pairs, the challenger's newest among them.
        seed: seed of the evaluated split and of the resampling.

    Returns:
        promoted; champion: the address of its weights from now on; difference: low, mean and high of the difference
        in AUC, None if there was no comparison; reason.
    """
    opened = open_snapshots(snapshots)
    pairs = _challengers_pairs(opened, model, scores, seed)
    with alone(opened.layout, f"champion-{opened.dataset}"):
        record = champion_of(opened.layout, opened.dataset)
        champion = None if record is None else opened.layout.absolute(record["model"])
        if champion == model and record is not None and record["space"] == space_of(model):
            return _outcome(model, "the model is the champion already")
        promoted, difference, reason = _comparison(opened, champion, pairs)
        if not promoted:
            assert champion is not None
            return _outcome(champion, reason, difference=difference)
        _record_champion(opened, model, pairs, difference)
        return _outcome(model, reason, difference=difference, promoted=True)


def champion_of(layout: Layout, dataset: str) -> dict[str, Any] | None:
    """Read the champion's record: model (address below the root), version, until, space, step, seed, metrics, since."""
    address = layout.champion(dataset)
    return json.loads(files.read_bytes(address)) if files.size(address) is not None else None


def _challengers_pairs(opened: Snapshots, model: str, scores: list[str], seed: int) -> ScoredPairs:
    """Find the model's own scores of the newest step, made with the paper's decoder."""
    name = opened.layout.relative(model)
    own = [address for address in scores if name in lineage_of(address).inputs]
    evaluated = [pairs for address in own for pairs in read_scores(address)]
    fitting = [pairs for pairs in evaluated if pairs.method == CHALLENGER and pairs.seed == seed]
    if not fitting:
        found = ", ".join(sorted({f"{pairs.method} (seed {pairs.seed})" for pairs in evaluated})) or "nothing"
        raise NotEvaluated(
            f"{name}: expected scores of {CHALLENGER} with seed {seed}, found {found}; evaluate it first"
        )
    return max(fitting, key=lambda pairs: pairs.step)


def _comparison(
    opened: Snapshots, champion: str | None, pairs: ScoredPairs
) -> tuple[bool, tuple[float, float, float] | None, str]:
    """Decide on the promotion; returns whether to promote, the difference, and the reason."""
    trained = None if champion is None else manifest(champion)
    if champion is None or trained is None:
        return True, None, "there was no champion" if champion is None else "the champion's weights are missing"
    if trained_until(trained, opened) >= pairs.step:
        return False, None, f"the champion was trained on step {pairs.step} and cannot be evaluated on it"
    try:
        address = evaluate_model(opened.address, champion, pairs.step, CHAMPION, pairs.seed)
    except (WeightsDoNotFit, OldSettings):
        return True, None, "the champion's weights do not fit the model of this version"
    baseline = next(scored for scored in read_scores(address) if scored.method == CHAMPION)
    difference = _difference(pairs, baseline)
    if difference[0] <= 0:
        return False, difference, "the 95 % interval of the difference in AUC does not lie above 0"
    if _loses_new_pairs(pairs, baseline):
        return (
            False,
            difference,
            "better on all pairs, but on new pairs the 95 % interval of the difference lies below 0",
        )
    return True, difference, "the 95 % interval of the difference in AUC lies above 0"


def _difference(challenger: ScoredPairs, champion: ScoredPairs) -> tuple[float, float, float]:
    generator = np.random.default_rng([challenger.seed, challenger.step])
    return paired_difference(challenger, champion, generator=generator)


def _loses_new_pairs(challenger: ScoredPairs, champion: ScoredPairs) -> bool:
    new, baseline = new_pairs(challenger), new_pairs(champion)
    return new is not None and baseline is not None and _difference(new, baseline)[2] < 0


def _record_champion(
    opened: Snapshots, model: str, pairs: ScoredPairs, difference: tuple[float, float, float] | None
) -> None:
    trained = lineage_of(model)
    record = {
        "model": opened.layout.relative(model),
        "version": trained.table_version,
        "until": trained.until,
        "space": space_of(model),
        "step": pairs.step,
        "seed": pairs.seed,
        "metrics": {name: metric(pairs.positive_P, pairs.score_P) for name, metric in METRICS.items()},
        "difference": difference,
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    files.write_bytes(opened.layout.champion(opened.dataset), json.dumps(record, indent=1).encode())


def _outcome(
    champion: str, reason: str, *, difference: tuple[float, float, float] | None = None, promoted: bool = False
) -> dict[str, Any]:
    return {
        "promoted": promoted,
        "champion": champion,
        "difference": None if difference is None else list(difference),
        "reason": reason,
    }
