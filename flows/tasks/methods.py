"""Names on a command line -> methods: entries of METHODS, or a user's own class `package.module:Class`."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dyformer.embedder import Embedder, NodeScorer, Ranker
from dyformer.evaluation.protocols import FittedOnce
from dyformer.experiments.methods import (
    EVENT_METHODS,
    METHODS,
    NODE_METHODS,
    TRAINED_BASELINES,
    VARIATIONS,
    Method,
    capped,
    checked_method,
    checked_ranker,
    default_methods,
)
from dyformer.experiments.titles import UnknownMethod, full_title, split_names
from dyformer.experiments.tuning.chosen import tuned
from dyformer.graphs.config import GraphConfig
from dyformer.logs.datasets import DATASETS
from flows.tasks.snapshots import Snapshots
from storage.artifacts.artifact import digest
from storage.artifacts.code import source_digest


class MethodFailed(ValueError):
    """A user's own method raised an error."""


def chosen_methods(
    names: Sequence[str] | None = None, max_epochs: int | None = None, dataset: str | None = None
) -> dict[str, Method]:
    """Return the methods of these names, of METHODS and VARIATIONS, else default_methods.

    They have the settings that a search chose for `dataset`, which is that of searched_dataset, and train for at most
    `max_epochs` epochs, as in `capped`. The keys are titles, or `package.module:Class`.

    Letters of a title may be in any case, and other characters may be underscores. A title may be shortened if only one
    entry begins so. Raises UnknownMethod.
    """
    names = list(default_methods()) if names is None else names
    known = {**METHODS, **VARIATIONS}
    chosen = [name if ":" in name else full_title(name, known) for name in names]
    titles = [title_of(name) for name in dict.fromkeys(chosen)]
    twice = sorted({title for title in titles if titles.count(title) > 1})
    if twice:
        raise UnknownMethod(f"two methods have the title {twice[0]!r}: rename one class, or remove one")
    methods = {name: own_method(name) if ":" in name else known[name] for name in chosen}
    if dataset is not None:
        methods = {name: tuned(name, method, dataset) for name, method in methods.items()}
    return {name: capped(method, max_epochs) for name, method in methods.items()}


def searched_dataset(opened: Snapshots, step: int) -> str | None:
    """Return the dataset whose chosen settings a forecast of `step` may use, or None.

    A search reads the steps before the first one that tables report, in the dataset's usual windows. With other
    windows, or for an earlier step, what it read may lie after the forecast.
    """
    known = DATASETS.get(opened.dataset)
    is_later = known is not None and opened.window == str(known.window) and step >= known.first_evaluated_step
    return opened.dataset if is_later else None


def event_methods(names: Sequence[str] | None = None) -> dict[str, Ranker]:
    """Return the methods of these names by title, of EVENT_METHODS or a user's own classes; by default EVENT_METHODS.

    Without any title, the result includes all of EVENT_METHODS. Raises UnknownMethod.
    """
    given = split_names(names)
    titles = [] if any(":" not in name for name in given) else list(EVENT_METHODS)
    titles += [name if ":" in name else full_title(name, EVENT_METHODS) for name in given]
    return {
        title_of(name): checked_ranker(name, own_object(name)) if ":" in name else EVENT_METHODS[name]
        for name in titles
    }


def label_methods(
    titles: Sequence[str], max_epochs: int | None = None, dataset: str | None = None
) -> dict[str, Method | NodeScorer]:
    """Return the methods of these titles, of NODE_METHODS or as in chosen_methods."""
    return {title: NODE_METHODS.get(title) or chosen_methods([title], max_epochs, dataset)[title] for title in titles}


def benchmark_methods(given: Sequence[str] | None) -> list[str]:
    """Split texts such as "dyformer,l3" and "package.module:Class" into the names of a benchmark's methods.

    Without any title, the result includes those of default_methods. Raises UnknownMethod.
    """
    names = split_names(given)
    built_in = [] if any(":" not in name for name in names) else list(default_methods())
    return list(chosen_methods([*built_in, *names]))


def fitted_once(methods: Mapping[str, Method], snapshots: str, config: GraphConfig) -> dict[str, Method]:
    """Return methods for steps of one log, of which a process fits trained baselines once as of each step.

    A task reads their vectors as of the step before the forecast one, and as of the step before that, which the task
    of that step has fitted.
    """
    trained = {
        title: method
        for title, method in methods.items()
        if title in TRAINED_BASELINES and isinstance(method, Embedder) and isinstance(method, Hashable)
    }
    return {**methods, **{title: _once(method, digest(snapshots), config) for title, method in trained.items()}}


@lru_cache(maxsize=16)
def _once(method: Embedder, snapshots_digest: str, config: GraphConfig) -> FittedOnce:
    return FittedOnce(method=method)


def title_of(name: str) -> str:
    """Return the title for the table of scores: that in METHODS, or the name of a user's own class."""
    return name.rpartition(":")[2]


def own_method(address: str) -> Method:
    """Import `package.module:Class` and create its object without arguments.

    Raises UnknownMethod for a module that cannot be imported, a name that it lacks, and an object of another kind.
    """
    return checked_method(address, own_object(address))


def own_object(address: str) -> Any:
    """Import `package.module:Class`, also from the working directory. Raises UnknownMethod as own_method does."""
    module_name, _, name = address.partition(":")
    if not (module_name and name):
        raise UnknownMethod(f"{address!r} is not the address of a method: expected package.module:Class")
    if str(Path.cwd()) not in sys.path:  # an installed command does not search the working directory
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        raise UnknownMethod(f"{address}: the module {module_name} cannot be imported: {error}") from error
    if not hasattr(module, name):
        defined = [key for key, value in vars(module).items() if inspect.isclass(value)]
        raise UnknownMethod(f"{address}: the module {module_name} has no {name!r}; its classes: {', '.join(defined)}")
    return getattr(module, name)


@contextmanager
def own_errors(title: str, method: Method | NodeScorer | Ranker) -> Iterator[None]:
    """Turn any error raised by a user's own method into MethodFailed, with the line of the user's file."""
    try:
        yield
    except Exception as error:
        file = inspect.getfile(type(method))
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        if is_built_in(method) or not lines:
            raise
        raise MethodFailed(f"{title}: {type(error).__name__}: {error} ({file}, line {lines[-1]})") from error


def is_built_in(method: Method | NodeScorer | Ranker) -> bool:
    """Whether a method is one of this package."""
    return type(method).__module__.startswith("dyformer.")


def record_of(method: Method | NodeScorer | Ranker) -> str:
    """Describe a method for the lineage of its scores: hyper-parameters, and a digest of a user's own module."""
    kind = type(method)
    text = repr(method) if is_dataclass(method) else kind.__qualname__
    if is_built_in(method):
        return text
    return f"{text} {source_digest(kind)}"
