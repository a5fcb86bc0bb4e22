"""A method's title -> the settings that a search tries (paper, appendix on the setup of its models), or has chosen.

The files in the folder `chosen`, one for each dataset, are those that `dyformer tune NAME --json FILE` writes.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dyformer import InvalidInput
from dyformer.experiments.methods import METHODS, Method, TrainingStage, Variation, method_of
from dyformer.experiments.settings import Experiment

Settings = Mapping[str, Any]
"""Names of settings and their values: fields of the method's class, or, of DyFormer, settings of an experiment."""

_DYFORMER = {
    "finetune.negative_weight": (0.01, 0.1, 1.0),
    "model.num_heads": (8, 16),
    "model.width": (128, 256),
    "model.num_layers": (2, 4, 6),
    "graph.max_distance": (2, 3, 5),
}
# The paper takes EvolveGCN's own defaults, of which it names none. These two are ours: the weights that it searches for
# DySAT and DyFormer, and a faster learning rate.
_EVOLVEGCN = {"negative_weight": (0.01, 0.1, 1.0), "learning_rate": (1e-3, 1e-2)}

GRIDS: Mapping[str, Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "node2vec": {
            "return_parameter": (0.25, 0.5, 1.0, 2.0, 5.0),
            "in_out_parameter": (0.25, 0.5, 1.0, 2.0, 5.0),
        },
        "GraphSAGE": {"aggregator": ("gcn", "mean", "max-pool", "lstm")},
        "DynGEM": {
            "first_order": (1e-6, 1e-5),
            "edge_factor": (0.1, 1.0, 2.0, 5.0),
            "l1": (1e-6, 1e-4),
            "l2": (1e-6, 1e-4),
        },
        "DynAERNN": {"edge_factor": (0.1, 1.0, 2.0, 5.0)},
        "DySAT": {
            "negative_weight": (0.01, 0.1, 1.0),
            "structural_heads": (8, 16),
            "temporal_heads": (8, 16),
            "width": (128, 256),
        },
        "EvolveGCN-O": _EVOLVEGCN,
        "EvolveGCN-H": _EVOLVEGCN,
        "DyFormer": _DYFORMER,
        "DyFormer (as published)": _DYFORMER,
    }
)
"""The values of each setting by the title in METHODS; every combination of them is a point of the grid."""


def grid_of(title: str) -> Mapping[str, tuple[Any, ...]]:
    """Return the grid of a method. Raises ValueError, with the titles that have one."""
    if title not in GRIDS:
        raise InvalidInput(f"{title!r} has no settings to search: expected one of {', '.join(GRIDS)}")
    return GRIDS[title]


def num_points(title: str) -> int:
    """Count the points of a method's grid; none without one."""
    return prod(map(len, GRIDS[title].values())) if title in GRIDS else 0


def with_settings(method: Method, settings: Settings) -> Method:
    """Return a method with some settings changed. Raises ValueError for a name that it lacks."""
    if isinstance(method, Variation):
        changed = replace(method, chosen=settings)
        changed.changed(changed.experiment)  # so that a wrong name or value is refused here
        return changed
    return replace(method, **settings)  # pyright: ignore[reportArgumentType]


def usual_point(title: str, experiment: Experiment) -> dict[str, Any]:
    """Return the values that a method has for the settings of its grid where nothing is chosen."""
    method, names = METHODS[title], grid_of(title)
    if not isinstance(method, Variation):
        return {name: getattr(method, name) for name in names}
    changed = method.changed(experiment)
    parts = {name: name.partition(".") for name in names}
    return {name: getattr(getattr(changed, part), inner) for name, (part, _, inner) in parts.items()}


FOLDER = Path(__file__).with_name("chosen")


def chosen_settings(dataset: str | None) -> dict[str, dict[str, Any]]:
    """Return the chosen settings of a dataset by the method's title in METHODS; none for a log without a search."""
    file = FOLDER / f"{dataset}.json"
    if dataset is None or not file.exists():
        return {}
    return {title: record["settings"] for title, record in json.loads(file.read_text(encoding="utf-8")).items()}


def tuned(title: str, method: Any, dataset: str | None) -> Any:
    """Return a method with the settings chosen for a dataset; without any, it stays the same.

    `title` is that in METHODS or VARIATIONS: a user's own method of the same name is another one and stays the same.
    """
    if isinstance(method, TrainingStage):
        variation = tuned(title.partition(", ")[0], method.variation, dataset)
        assert isinstance(variation, Variation)
        return replace(method, variation=variation)
    settings = chosen_settings(dataset).get(_searched_title(title))
    return method if settings is None or method is not method_of(title) else with_settings(method, settings)


def tuned_sentence(titles: Iterable[str], dataset: str | None) -> str | None:
    """Name the methods among `titles` with chosen settings, as in "DySAT (width=256)"; None if none has any."""
    named = []
    for title in titles:
        method = method_of(title)
        changes = method.changes if isinstance(method, Variation) else {}
        settings = chosen_settings(dataset).get(_searched_title(title), {})
        listed = [f"{name}={value}" for name, value in settings.items() if name not in changes]
        named += [f"{title} ({', '.join(listed)})"] if listed else []
    return f"settings chosen on earlier steps: {', '.join(named)}" if named else None


def _searched_title(title: str) -> str:
    """Give the title in METHODS whose settings were searched: of a variation of DyFormer, that of its base."""
    method = method_of(title)
    return method.base_title if isinstance(method, Variation) else title
