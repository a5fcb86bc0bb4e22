"""A dataset and a method -> the method with the settings that a search chose, and the sentence that names them.

The files in the folder `chosen`, one for each dataset, are those that `dyformer tune NAME --json FILE` writes.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dyformer.experiments.methods import TrainingStage, Variation, method_of
from dyformer.experiments.tuning.grids import with_settings

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
        own = method.changes if isinstance(method, Variation) else {}
        settings = chosen_settings(dataset).get(_searched_title(title), {})
        listed = [f"{name}={value}" for name, value in settings.items() if name not in own]
        named += [f"{title} ({', '.join(listed)})"] if listed else []
    return f"settings chosen on earlier steps: {', '.join(named)}" if named else None


def _searched_title(title: str) -> str:
    """Give the title in METHODS whose settings were searched: of a variation of DyFormer, that of its base."""
    method = method_of(title)
    return method.base_title if isinstance(method, Variation) else title
