"""Seconds of an earlier run's stages, or of the first forecasts -> a line that says about how long the others take."""

from collections.abc import Mapping

from dyformer.experiments.settings import Experiment
from flows.tasks.report import newest_report, read_report
from storage.artifacts.artifact import ArtifactMissing
from storage.bytes.checksums import Damaged

STAGES = {"train": "training", "rank": "ranking", "evaluate": "evaluation", "predict": "forecasts"}
"""The long stages of a run after its first forecasts, in their order."""

TO_FIRST = {"rank": 1.2, "evaluate": 1.0, "predict": 1.0}
"""Seconds of a stage by those of the first forecasts: rough, as in runs of three logs they were .4 to 2.4."""

SECONDS_A_BATCH = 0.1
"""Of a training on two cores; `pretrain` and `finetune` say how many batches there are at most."""

NUM_TRAININGS = 2  # until the newest step and until the one before
SHORTEST = 1.0  # seconds of a stage that was really made: one that is stored already takes less
MINUTE = 60


def plan_line(dataset: str, first_seconds: float, experiment: Experiment, *, trains: bool) -> str | None:
    """Say about how long the stages to come take; None without an earlier run and first forecasts."""
    stages = [stage for stage in STAGES if trains or stage != "train"]
    seconds, origin = _earlier(dataset), "as in the run before"
    if any(stage not in seconds for stage in stages) or (trains and seconds["train"] < SHORTEST):
        seconds = {}  # it was paused, or went on after a crash
    if not seconds and first_seconds >= SHORTEST:
        parts = [part for part in (experiment.capped.pretrain, experiment.capped.finetune) if part is not None]
        batches = sum(part.epochs * part.batches_per_epoch for part in parts)
        seconds = {"train": NUM_TRAININGS * batches * SECONDS_A_BATCH}
        seconds |= {stage: ratio * first_seconds for stage, ratio in TO_FIRST.items()}
        origin = f"estimated from the {first_seconds:.0f} s of the first forecasts"
    if not seconds:
        return None
    listed = ", ".join(f"{STAGES[stage]} {_about(seconds[stage])}" for stage in stages)
    return f"{dataset}: about {_about(sum(seconds[stage] for stage in stages))} to go, {origin}: {listed}"


def _earlier(dataset: str) -> Mapping[str, float]:
    try:
        return read_report(newest_report(dataset))[1].get("seconds", {})
    except (ArtifactMissing, Damaged):  # the run needs no earlier report
        return {}


def _about(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * MINUTE else f"{seconds / MINUTE:.0f} min"
