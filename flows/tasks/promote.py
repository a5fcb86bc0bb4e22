"""A challenger and its scores -> who holds the dataset's seat, decided on the newest step by the same pairs."""

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np

from dyformer.evaluation.scored_pairs import METRICS, ScoredPairs
from dyformer.evaluation.significance import new_pairs, paired_difference
from dyformer.experiments.settings import OldSettings
from dyformer.training.checkpoint import WeightsDoNotFit
from flows.tasks.evaluate import evaluate_model, read_scores
from flows.tasks.models import space_of, was_trained_on
from flows.tasks.snapshots import Snapshots, open_snapshots
from storage import files
from storage.artifacts.artifact import lineage_of, manifest
from storage.layout import Layout
from storage.locks import alone

CHALLENGER, CHAMPION = "DyFormer", "champion"


class NotEvaluated(ValueError):
    """A challenger without scores cannot take a seat."""


def promote_if_better(snapshots: str, model: str, scores: list[str], seed: int = 0) -> dict[str, Any]:
    """Give a model the seat of its dataset if it is empty, or if the champion is beaten beyond doubt.

    The champion's weights, older than the step, are evaluated on the challenger's own pairs with the paper's decoder.
    The challenger wins when the whole 95 % interval of its AUC less the champion's lies above 0 and that of the new
    pairs not wholly below. A champion that was trained on the evaluated step cannot be evaluated on it and stays;
    one whose weights no longer fit the model, or are gone, leaves.

    Args:
        snapshots: address of what both are evaluated on.
        model: address of the challenger's weights.
        scores: addresses of evaluated pairs, the challenger's newest among them.
        seed: of the split that was evaluated, and of the resampling.

    Returns:
        promoted; champion: the address of who holds the seat now; difference: low, mean and high of the AUC
        difference, or None where there was nobody to compare with; reason.
    """
    opened = open_snapshots(snapshots)
    pairs = _challengers_pairs(opened, model, scores, seed)
    with alone(opened.layout, f"champion-{opened.dataset}"):
        record = champion_of(opened.layout, opened.dataset)
        seated = None if record is None else opened.layout.absolute(record["model"])
        if seated == model and record is not None and record["space"] == space_of(model):
            return _outcome(model, "it holds the seat already")
        promoted, difference, reason = _comparison(opened, seated, pairs)
        if not promoted:
            assert seated is not None
            return _outcome(seated, reason, difference=difference)
        _take_seat(opened, model, pairs, difference)
        return _outcome(model, reason, difference=difference, promoted=True)


def champion_of(layout: Layout, dataset: str) -> dict[str, Any] | None:
    """Read who holds the seat: model (address below the root), version, until, space, step, seed, metrics, since."""
    address = layout.champion(dataset)
    return json.loads(files.read_bytes(address)) if files.size(address) is not None else None


def _challengers_pairs(opened: Snapshots, model: str, scores: list[str], seed: int) -> ScoredPairs:
    """Find the model's own scores, of the newest step, decoded as in the paper."""
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
    opened: Snapshots, seated: str | None, pairs: ScoredPairs
) -> tuple[bool, tuple[float, float, float] | None, str]:
    """Decide: whether the challenger takes the seat, the difference, and why."""
    trained = None if seated is None else manifest(seated)
    if seated is None or trained is None:
        return True, None, "nobody held the seat" if seated is None else "the champion's weights are gone"
    if was_trained_on(trained, opened, pairs.step):
        return False, None, f"the champion was trained on step {pairs.step} and cannot be evaluated on it"
    try:
        address = evaluate_model(opened.address, seated, pairs.step, CHAMPION, pairs.seed)
    except (WeightsDoNotFit, OldSettings):
        return True, None, "the champion's weights do not fit the model any more"
    baseline = next(scored for scored in read_scores(address) if scored.method == CHAMPION)
    difference = _difference(pairs, baseline)
    if difference[0] <= 0:
        return False, difference, "not better beyond doubt"
    if _loses_new_pairs(pairs, baseline):
        return False, difference, "better in all, but worse on new pairs beyond doubt"
    return True, difference, "better beyond doubt"


def _difference(challenger: ScoredPairs, champion: ScoredPairs) -> tuple[float, float, float]:
    generator = np.random.default_rng([challenger.seed, challenger.step])
    return paired_difference(challenger, champion, generator=generator)


def _loses_new_pairs(challenger: ScoredPairs, champion: ScoredPairs) -> bool:
    new, baseline = new_pairs(challenger), new_pairs(champion)
    return new is not None and baseline is not None and _difference(new, baseline)[2] < 0


def _take_seat(
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
