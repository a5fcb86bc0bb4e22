"""Experiment: every setting of a run, and the one way to change them."""

import json
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from dyformer.graphs.config import GraphConfig
from dyformer.model.config import ModelConfig
from dyformer.training.config import FinetuneConfig, PretrainConfig


class UnknownSetting(ValueError):
    """A setting of this name does not exist."""


class BadSetting(ValueError):
    """A setting exists, but its value does not fit."""


class OldSettings(ValueError):
    """Stored settings that this version does not have."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is done to one dataset: five parts, all of them plain values."""

    graph: GraphConfig = field(default_factory=GraphConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    pretrain: PretrainConfig | None = field(default_factory=PretrainConfig)  # None: no pre-training (paper, Fig. 4)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    decoder: Literal["paper", "features"] = "features"  # "paper": logistic regression on the Hadamard product alone

    def changed(self, changes: Mapping[str, object]) -> "Experiment":
        """Give the experiment with some settings changed, such as `{"graph.max_distance": 3, "pretrain": None}`.

        Text is read as the setting's own type ("3", "true", "none", "0.1"), so values from a command line and from
        JSON mean the same. Changes of one part are applied together; those of a part that the same call sets to none
        have no effect.

        Raises:
            UnknownSetting: a name that no setting has.
            BadSetting: a value of another type, a value that is not allowed, or a change in a part that is none.
            ValueError: from the part itself, for a value out of its range.
        """
        whole = {name: _parsed(name, Experiment, value) for name, value in changes.items() if "." not in name}
        fresh = replace(self, **whole)
        for part in sorted({name.partition(".")[0] for name in changes if "." in name}):
            inner = {name: value for name, value in changes.items() if name.startswith(f"{part}.")}
            values = _parsed_part(part, inner)
            if part not in whole or whole[part] is not None:
                fresh = replace(fresh, **{part: _changed_part(fresh, part, values)})
        return fresh


def _parsed_part(part: str, changes: Mapping[str, object]) -> dict[str, object]:
    kind = _part_kinds().get(part)
    if kind is None:
        raise _unknown(next(iter(changes)))
    return {name.partition(".")[2]: _parsed(name, kind, value) for name, value in changes.items()}


def _changed_part(experiment: Experiment, part: str, values: dict[str, Any]) -> object:
    before = getattr(experiment, part)
    if before is None:
        raise BadSetting(
            f"{', '.join(values)}: the part `{part}` is none here; set {part}=default first, or leave it out"
        )
    try:
        return replace(before, **values)
    except ValidationError as error:
        raise _refused(part, error) from None


def _refused(part: str, error: ValidationError) -> BadSetting:
    """Name the first setting beyond its limits, or give the rule that several settings break together."""
    found = error.errors()[0]
    context = found.get("ctx", {})
    if not found["loc"]:
        return BadSetting(str(context["error"]))
    limit = f"at least {context['ge']}" if "ge" in context else f"at most {context['le']}"
    return BadSetting(f"{part}.{found['loc'][0]}: expected {limit}, got {found['input']}")


def _part_kinds() -> dict[str, type]:
    """Map each part that has settings of its own to its dataclass."""
    hints = get_type_hints(Experiment)
    kinds = {
        name: [kind for kind in _alternatives(hint) if isinstance(kind, type) and is_dataclass(kind)]
        for name, hint in hints.items()
    }
    return {name: found[0] for name, found in kinds.items() if found}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)


def allowed_settings() -> dict[str, str]:
    """Map every setting's name to the kind of value it takes, in the order of the experiment."""
    return dict(_settings())


def _settings() -> Iterator[tuple[str, str]]:
    parts = _part_kinds()
    for name, hint in get_type_hints(Experiment).items():
        if name not in parts or type(None) in _alternatives(hint):
            yield name, _kind_name(hint)
        if name in parts:
            yield from ((f"{name}.{inner}", _kind_name(kind)) for inner, kind in get_type_hints(parts[name]).items())


RENAMED_SETTINGS = {
    "pretrain.num_linked": "pretrain.num_positives",
    "pretrain.own_learning_rate": "pretrain.id_learning_rate",
    "pretrain.own_penalty": "pretrain.id_penalty",
    "pretrain.own_weight": "pretrain.id_weight",
    "pretrain.validation_share": "pretrain.validation_fraction",
    "finetune.num_linked": "finetune.num_positives",
    "finetune.own_learning_rate": "finetune.id_learning_rate",
    "finetune.validation_share": "finetune.validation_fraction",
}
REMOVED_SETTINGS = {
    f"{stage}.patience": "training runs all its epochs and takes the weights of the best one: set "
    f"{stage}.epochs instead"
    for stage in ("pretrain", "finetune")
}


def _unknown(name: str) -> UnknownSetting:
    if name in RENAMED_SETTINGS:
        return UnknownSetting(f"the setting {name} is now called {RENAMED_SETTINGS[name]}")
    if name in REMOVED_SETTINGS:
        return UnknownSetting(f"there is no setting {name} any more: {REMOVED_SETTINGS[name]}")
    allowed = list(allowed_settings())
    near = get_close_matches(name, allowed, n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]}?" if near else ""
    return UnknownSetting(f"there is no setting {name!r}.{hint} Allowed: {', '.join(allowed)}")


_UNFIT = object()
_WORDS = {bool: {"true": True, "false": False}, types.NoneType: {"none": None, "null": None}}
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def _parsed(name: str, owner: type, value: object) -> Any:
    """Read a value as the annotated kind of the field that `name` ends with."""
    if name not in allowed_settings():
        raise _unknown(name)
    hint = get_type_hints(owner)[name.rpartition(".")[2]]
    for kind in sorted(_alternatives(hint), key=lambda kind: kind is str):
        read = _read(value, kind)
        if read is not _UNFIT:
            return read
    raise BadSetting(f"{name}: expected {_kind_name(hint)}, got {value!r} ({type(value).__name__})")


def _read(value: object, kind: Any) -> object:
    if get_origin(kind) is Literal:
        return next((option for option in get_args(kind) if _same_word(value, option)), _UNFIT)
    if get_origin(kind) is tuple:
        return _read_tuple(value, get_args(kind)[0])
    if isinstance(kind, type) and is_dataclass(kind):
        return value if type(value) is kind else _read_default(value, kind)
    if isinstance(value, str) and kind is not str:
        return _read_text(value.strip(), kind)
    return _read_plain(value, kind)


def _same_word(value: object, option: object) -> bool:
    return (type(value) is type(option) and value == option) or (
        isinstance(value, str) and value.strip() == str(option)
    )


def _read_tuple(value: object, kind: Any) -> object:
    items = [item for item in value.split(",") if item.strip()] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        return _UNFIT
    read = tuple(_read(item, kind) for item in items)
    return _UNFIT if _UNFIT in read else read


def _read_default(value: object, kind: Callable[[], Any]) -> object:
    return kind() if value == "default" else _UNFIT


def _read_text(text: str, kind: type) -> object:
    if kind in _WORDS:
        return _WORDS[kind].get(text.lower(), _UNFIT)
    if kind is int and re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if kind is float and _NUMBER.fullmatch(text):
        return _read_plain(float(text), float)
    return _UNFIT


def _read_plain(value: object, kind: type) -> object:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) else _UNFIT
    return value if type(value) is kind else _UNFIT


def _kind_name(hint: Any) -> str:
    return " or ".join(_one_kind_name(kind) for kind in _alternatives(hint))


def _one_kind_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is tuple:
        return f"a list of {_one_kind_name(get_args(kind)[0])}"
    if is_dataclass(kind):
        return "default"
    return "none" if kind is types.NoneType else getattr(kind, "__name__", str(kind))


def as_record(experiment: Experiment, part: str | tuple[str, ...] | None = None) -> dict[str, Any]:
    """Give an experiment, or only some of its parts, as plain JSON values: nested, ready to log and to hash.

    Raises:
        UnknownSetting: a part that an experiment does not have.
    """
    names = [field.name for field in fields(Experiment)]
    wanted = names if part is None else [part] if isinstance(part, str) else list(part)
    for name in wanted:
        if name not in names:
            raise UnknownSetting(f"an experiment has no part {name!r}; it has {', '.join(names)}")
    record = asdict(experiment)
    return json.loads(json.dumps({name: record[name] for name in names if name in wanted}))


def from_record(record: Mapping[str, Any]) -> Experiment:
    """Give the experiment that `as_record` wrote down; parts that the record leaves out have their defaults.

    Raises:
        OldSettings: settings that this version does not have, or values that it does not allow.
    """
    parts: dict[str, Any] = dict(record)
    for name, kind in _part_kinds().items():
        if parts.get(name) is not None:
            try:
                parts[name] = kind(**parts[name])
            except ValidationError as error:
                wrong = ", ".join(f"{name}.{found['loc'][0]}" for found in error.errors() if found["loc"])
                raise OldSettings(f"another version of dyformer stored these settings ({wrong}): train again") from None
    return Experiment(**parts)


# What a dataset needs that the defaults do not give it.
EXPERIMENTS: dict[str, Experiment] = {}


def experiment_for(dataset_name: str) -> Experiment:
    """Give the experiment of a dataset: its own, or the defaults (every log of a user's own has the defaults)."""
    return EXPERIMENTS.get(dataset_name, Experiment())
