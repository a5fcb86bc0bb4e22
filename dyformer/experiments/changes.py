"""Changed settings -> the methods that read them; and the settings of each method, as its tracked run lists them."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from dyformer.embedder import EPOCHS, Ranker
from dyformer.experiments.methods import TrainingStage, Variation
from dyformer.experiments.settings import Experiment, as_record, experiment_for

READ = ("graph", "model", "pretrain", "finetune", "warm_start", "max_epochs")
"""Parts of the settings that a benchmark reads; the others are of retrainings."""


class NoEffect(ValueError):
    """A changed setting that changes no score."""


def check_effect(names: Iterable[str], methods: Iterable[Any]) -> None:
    """Raise NoEffect for a changed setting that no method reads, or that each which reads it sets itself.

    Args:
        names: of settings, such as "model.width".
        methods: with the settings that a search chose.
    """
    compared = list(methods)
    for name in names:
        if not any(_reads(method, name) for method in compared):
            raise NoEffect(f"{name} has no effect here: the methods do not read it, or set it themselves")


def changes_of(experiment: Experiment, dataset: str) -> dict[str, Any]:
    """Give the settings, of those that benchmarks read, in which an experiment differs from a dataset's own."""
    usual = _flat(as_record(experiment_for(dataset), READ))
    return {name: value for name, value in _flat(as_record(experiment, READ)).items() if usual.get(name, ()) != value}


def settings_of(method: Any, experiment: Experiment) -> dict[str, Any]:
    """Give the settings with which a method is trained and evaluated, those of a part nested, as in as_record.

    DyFormer's are those of the experiment with its own changes; another method's are its fields, and the experiment's
    `graph.*`, which a ranker of events does not read. Numbers of epochs are those after the cap of `max_epochs`, for
    which `method` is one of `capped`.
    """
    if isinstance(method, Variation | TrainingStage):
        return as_record(method.changed(experiment).capped, READ[:-1])
    own = (
        {each.name: getattr(method, each.name) for each in fields(method) if each.init} if is_dataclass(method) else {}
    )
    return own if isinstance(method, Ranker) else {**as_record(experiment, "graph"), **own}


def _reads(method: Any, name: str) -> bool:
    part = name.partition(".")[0]
    method = method.variation if isinstance(method, TrainingStage) else method
    if isinstance(method, Variation):
        return part in READ and not method.sets(name)
    if part == "max_epochs":
        return is_dataclass(method) and any(each.name in EPOCHS for each in fields(method) if each.init)
    return part == "graph" and not isinstance(method, Ranker)


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Give a record with dotted names, in its order; a part that is none stays under its own name."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        flat |= {f"{name}.{inner}": own for inner, own in value.items()} if isinstance(value, dict) else {name: value}
    return flat
