"""Names on a command line -> methods: entries of METHODS, or a user's own class `package.module:Class`."""

import importlib
import inspect
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dyformer.evaluation.fitting import FittedOnce
from dyformer.evaluation.protocols import PROTOCOLS, UnknownProtocol, protocol_of
from dyformer.evaluation.protocols.protocol import KINDS, Protocol
from dyformer.experiments.methods import (
    EVENT_METHODS,
    METHODS,
    NODE_METHODS,
    STAGES,
    TRAINED_BASELINES,
    USUAL_KINDS,
    VARIATIONS,
    Method,
    capped,
    checked_method,
    default_methods,
    is_built_in,
)
from dyformer.experiments.titles import UnknownMethod, full_title, short_name, split_names
from dyformer.experiments.tuning.grids import tuned
from dyformer.graphs.config import GraphConfig
from dyformer.logs.datasets import DATASETS
from dyformer.scoring.interfaces import Embedder, NodeScorer, Ranker
from flows.tasks.snapshots import Snapshots
from storage.artifacts.artifact import digest
from storage.artifacts.code import source_digest


def resolved(names: Sequence[str], kinds: tuple[type, ...] = USUAL_KINDS) -> dict[str, Any]:
    """Return the methods of these names by their title: known ones, and users' own classes `package.module:Class`.

    Letters of a title may be in any case, and other characters may be underscores. A title may be shortened if only one
    entry begins so. A user's class has one of the interfaces `kinds`. Raises UnknownMethod.
    """
    all_methods = {**METHODS, **VARIATIONS, **EVENT_METHODS}
    rows = {**all_methods, **NODE_METHODS, **STAGES}  # those that `all_methods` lacks are not shortened
    whole = {short_name(title): title for title in reversed(rows)} | {title: title for title in rows}
    chosen = dict.fromkeys(
        name if ":" in name else whole.get(name) or whole.get(short_name(name)) or full_title(name, all_methods)
        for name in names
    )
    titles = [title_of(name) for name in chosen]
    twice = sorted({title for title in titles if titles.count(title) > 1})
    if twice:
        raise UnknownMethod(f"two methods have the title {twice[0]!r}: rename one class, or remove one")
    return {title_of(name): own_method(name, kinds) if ":" in name else rows[name] for name in chosen}


def configured(methods: Mapping[str, Any], max_epochs: int | None = None, dataset: str | None = None) -> dict[str, Any]:
    """Return methods with the settings that a search chose for `dataset`, which is that of searched_dataset.

    They train for at most `max_epochs` epochs, as in `capped`.
    """
    with_settings = {title: tuned(title, method, dataset) for title, method in methods.items()}
    return {title: capped(method, max_epochs) for title, method in with_settings.items()}


def check_kinds(methods: Mapping[str, Any], protocol: Protocol) -> dict[str, Any]:
    """Return methods that a protocol evaluates. Raises UnknownMethod for another one."""
    wrong = [title for title, method in methods.items() if not protocol.evaluates(method)]
    if wrong:
        kinds = " and ".join(KINDS.get(kind, kind.__name__) for kind in protocol.methods)
        raise UnknownMethod(f"{', '.join(wrong)}: the {protocol.name} protocol evaluates {kinds}")
    return dict(methods)


def benchmark_methods(given: Sequence[str] | None, protocol: Protocol) -> dict[str, Any]:
    """Return the methods of texts such as "dyformer,l3" and "package.module:Class", for a benchmark of a protocol.

    Without any, these are the usual ones of the protocol. Raises UnknownMethod.
    """
    names = split_names(given) or list(default_methods(protocol.methods))
    return check_kinds(resolved(names, protocol.methods), protocol)


def searched_dataset(opened: Snapshots, step: int) -> str | None:
    """Return the dataset whose chosen settings a forecast of `step` may use, or None.

    A search reads the steps before the first one that tables report, in the dataset's usual windows. With other
    windows, or for an earlier step, what it read may lie after the forecast.
    """
    dataset_entry = DATASETS.get(opened.dataset)
    is_later = (
        dataset_entry is not None
        and opened.window == str(dataset_entry.window)
        and step >= dataset_entry.first_evaluated_step
    )
    return opened.dataset if is_later else None


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


def own_method(address: str, kinds: tuple[type, ...] = USUAL_KINDS) -> Any:
    """Import `package.module:Class`, also from the working directory, and create its object without arguments.

    Raises UnknownMethod for a module that cannot be imported, a name that it lacks, and an object of none of the kinds.
    """
    return checked_method(address, _own(address, "a method", "package.module:Class", UnknownMethod), kinds)


def own_protocol(address: str) -> str:
    """Import the protocol `package.module:OBJECT`, also from the working directory, and add it to PROTOCOLS.

    Returns its name. Raises UnknownProtocol for a module that cannot be imported, a name that it lacks, what is no
    Protocol, and one with the name of another.
    """
    protocol = _own(address, "a protocol", "package.module:OBJECT", UnknownProtocol)
    if not isinstance(protocol, Protocol):
        raise UnknownProtocol(f"{address}: expected an object of the class Protocol, found {type(protocol).__name__}")
    if protocol.name in PROTOCOLS and protocol_of(protocol.name) is not protocol:
        raise UnknownProtocol(f"{address}: another protocol has the name {protocol.name!r}: give it one of its own")
    PROTOCOLS.setdefault(protocol.name, address)
    return protocol.name


def _own(address: str, what: str, form: str, unknown: type[ValueError]) -> Any:
    """Import an object of a user by its address; raises an error of the type `unknown`."""
    module_name, _, name = address.partition(":")
    if not (module_name and name):
        raise unknown(f"{address!r} is not the address of {what}: expected {form}")
    if str(Path.cwd()) not in sys.path:  # an installed command does not search the working directory
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        reason = str(error) if isinstance(error, ImportError | SyntaxError) else f"{type(error).__name__}: {error}"
        raise unknown(f"{address}: the module {module_name} cannot be imported: {reason}") from error
    if not hasattr(module, name):
        defined = [key for key, value in vars(module).items() if inspect.isclass(value)]
        raise unknown(f"{address}: the module {module_name} has no {name!r}; its classes: {', '.join(defined)}")
    return getattr(module, name)


def record_of(method: Method | NodeScorer | Ranker) -> str:
    """Describe a method for the lineage of its scores: hyper-parameters, and a digest of a user's own module."""
    kind = type(method)
    text = repr(method) if is_dataclass(method) else kind.__qualname__
    if is_built_in(method):
        return text
    return f"{text} {source_digest(kind)}"
