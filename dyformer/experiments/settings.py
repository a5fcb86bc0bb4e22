"""Experiment: every setting of a run, and the one way to change them."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from dyformer import InvalidInput
from dyformer.evaluation.config import DriftConfig, PromotionConfig
from dyformer.graphs.config import STRICT, GraphConfig
from dyformer.model.config import ModelConfig
from dyformer.training.config import FinetuneConfig, PretrainConfig, RetrainConfig

PARTS: dict[str, type] = {
    "graph": GraphConfig,
    "model": ModelConfig,
    "pretrain": PretrainConfig,
    "finetune": FinetuneConfig,
    "promotion": PromotionConfig,
    "drift": DriftConfig,
    "retrain": RetrainConfig,
}

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
Part = TypeVar("Part")
_WORDS = {"none": None, "null": None, "true": True, "false": False}
_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
NUM_NEAR = 3  # names of settings in the error of a misspelt one


class UnknownSetting(InvalidInput):
    """A setting of this name does not exist."""


class OldSettings(InvalidInput):
    """Stored settings that this version does not have."""


class Setting(NamedTuple):
    """One row of the table of settings, all as text; the default is written as on a command line."""

    name: str
    default: str
    kind: str
    meaning: str


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Experiment:
    """All settings for one dataset."""

    graph: GraphConfig = Field(default_factory=GraphConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    pretrain: PretrainConfig | None = Field(
        default_factory=PretrainConfig, description="none: no pre-training, fine-tuning from random weights"
    )
    finetune: FinetuneConfig = Field(default_factory=FinetuneConfig)
    promotion: PromotionConfig = Field(default_factory=PromotionConfig)
    drift: DriftConfig = Field(default_factory=DriftConfig)
    retrain: RetrainConfig = Field(default_factory=RetrainConfig)
    warm_start: Annotated[float, Field(ge=0.01, le=1)] | None = Field(
        default=None,
        description="fraction of the epochs of a model that starts from the weights of the step before, as do all but "
        "the first of a benchmark; none: every model is trained from scratch",
    )
    max_epochs: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="epochs that no method trains more of, baselines included; a method that has fewer is not changed; "
        "none: each has its own number",
    )

    @property
    def capped(self) -> "Experiment":
        """The experiment with both stages cut down to `max_epochs` epochs."""
        fresh = self
        for stage in ("pretrain", "finetune"):
            config = getattr(fresh, stage)
            if config is not None and self.max_epochs is not None:
                fresh = replace(fresh, **{stage: replace(config, epochs=min(config.epochs, self.max_epochs))})
        return fresh

    @model_validator(mode="after")
    def check_lags(self) -> "Experiment":
        """Raise ValueError for a warm start of models with different numbers of lags."""
        if self.warm_start is not None and self.graph.history_window is None:
            raise InvalidInput(
                f"warm_start={self.warm_start} needs models of equal shape, but with graph.history_window=none each "
                f"step adds a lag: set graph.history_window to a number, or warm_start=none"
            )
        return self

    @model_validator(mode="after")
    def check_hops(self) -> "Experiment":
        """Raise ValueError for a limit of the attention among distances that count as equal."""
        if self.model.max_hops is not None and self.model.max_hops >= self.graph.max_distance:
            raise InvalidInput(
                f"model.max_hops={self.model.max_hops} is not less than graph.max_distance={self.graph.max_distance}, "
                f"from which on all distances count as equal: set a larger graph.max_distance, or model.max_hops=none"
            )
        return self

    def check_interactions(self) -> "Experiment":
        """Give the experiment, for what reads interactions. Raises ValueError with noise, which leaves none."""
        if self.graph.noise > 0:
            raise InvalidInput(
                f"graph.noise={self.graph.noise} changes the edges of snapshots, which then have no interactions, and "
                "only the benchmark of the paper's protocol does without: leave graph.noise out"
            )
        return self

    def of_seed(self, seed: int) -> "Experiment":
        """Give the experiment with the noise of a seed, that of `noise_seed` plus the seed; without noise, itself."""
        graph = self.graph
        return self if graph.noise == 0 else replace(self, graph=replace(graph, noise_seed=graph.noise_seed + seed))

    def changed(self, changes: Mapping[str, object]) -> "Experiment":
        """Give the experiment with some settings changed, such as `{"graph.max_distance": 3, "pretrain": None}`.

        Text such as "3", "true", "none" and "0.1" is read as the value, so that a command line and JSON mean the
        same. Changes of one part are applied together; those of a part that the same call sets to none have no effect.

        Raises:
            UnknownSetting: a name that no setting has.
            ValueError: a value of another type or beyond its limits, or a change in a part that is none.
        """
        for name in changes:
            if name not in _names():
                raise _unknown(name)
        values = {name: _value(name, text) for name, text in changes.items()}
        whole = {name: value for name, value in values.items() if "." not in name}
        fresh = _replaced(self, "", whole)
        for part, kind in PARTS.items():
            inner = {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{part}.")}
            before = getattr(fresh, part)
            after = _replaced(kind() if before is None else before, f"{part}.", inner)
            if before is not None:
                fresh = _replaced(fresh, "", {part: after})
            elif inner and part not in whole:
                names = ", ".join(f"{part}.{name}" for name in inner)
                raise InvalidInput(
                    f"{names}: this experiment has no {part}, so that it would have no effect; set {part}=default"
                    " first, or leave it out"
                )
        return fresh


def settings_table() -> list[Setting]:
    """Give name, default, kind with limits, and meaning of every setting, in the order of the experiment."""
    rows = []
    for name, field in _fields(Experiment).items():
        if field.description:
            default = "default" if name in PARTS else _text(field.default)
            rows.append(Setting(name, default, _kind(field), field.description))
        for inner, setting in _fields(PARTS[name]).items() if name in PARTS else ():
            limits = _limits(setting)
            kind = _kind(setting) + (f", {limits}" if limits else "")
            rows.append(Setting(f"{name}.{inner}", _text(setting.default), kind, setting.description or ""))
    return rows


def as_record(experiment: Experiment, part: str | tuple[str, ...] | None = None) -> dict[str, Any]:
    """Give an experiment, or only some of its parts, as plain JSON values: nested, ready to log and to hash.

    Raises:
        UnknownSetting: a part that an experiment does not have.
    """
    names = [field.name for field in fields(Experiment)]
    parts = names if part is None else [part] if isinstance(part, str) else list(part)
    for name in parts:
        if name not in names:
            raise UnknownSetting(f"an experiment has no part {name!r}; it has {', '.join(names)}")
    record = asdict(experiment)
    return json.loads(json.dumps({name: record[name] for name in names if name in parts}))


def from_record(record: Mapping[str, Any]) -> Experiment:
    """Give the experiment of a record of `as_record`; parts that it leaves out have their defaults.

    Raises:
        OldSettings: settings that this version does not have, or values that it does not allow.
    """
    parts = dict(record)
    for name in parts.keys() & PARTS.keys():
        if parts[name] is not None:
            try:
                parts[name] = PARTS[name](**parts[name])
            except ValidationError as error:
                wrong = ", ".join(f"{name}.{fault['loc'][0]}" for fault in error.errors() if fault["loc"])
                raise OldSettings(f"another version of dyformer stored these settings ({wrong}): train again") from None
    return Experiment(**parts)


@cache  # the table is made of all fields, which takes milliseconds
def _names() -> tuple[str, ...]:
    return tuple(setting.name for setting in settings_table())


def _fields(owner: type) -> dict[str, FieldInfo]:
    return owner.__pydantic_fields__  # pyright: ignore[reportAttributeAccessIssue]


def _value(name: str, given: object) -> object:
    """Convert text to its value: a number, true, false, none, or a part's default."""
    if not isinstance(given, str):
        return given
    text = given.strip()
    if name in PARTS and text == "default":
        return PARTS[name]()
    if _NUMBER.fullmatch(text):
        return int(text) if _INTEGER.fullmatch(text) else float(text)
    return _WORDS.get(text.lower(), text)


def _replaced(owner: Part, prefix: str, values: dict[str, Any]) -> Part:
    """Change fields of a dataclass; pydantic checks types and limits."""
    try:
        return replace(owner, **values)  # pyright: ignore[reportArgumentType, reportCallIssue]
    except ValidationError as error:
        fault = error.errors()[0]
    if not fault["loc"]:  # a rule over several fields
        raise InvalidInput(str(fault.get("ctx", {}).get("error", fault["msg"])))
    name, value = str(fault["loc"][0]), fault["input"]
    field = _fields(type(owner))[name]
    if fault["type"] in ("greater_than_equal", "less_than_equal"):
        raise InvalidInput(f"{prefix}{name}: expected {_limits(field)}, got {value}")
    raise InvalidInput(f"{prefix}{name}: expected {_kind(field)}, got {value!r} ({type(value).__name__})")


def _unknown(name: str) -> UnknownSetting:
    if name in RENAMED_SETTINGS:
        return UnknownSetting(f"the setting {name} is now called {RENAMED_SETTINGS[name]}")
    near = ", ".join(get_close_matches(name, _names(), n=NUM_NEAR, cutoff=0))
    return UnknownSetting(f"there is no setting {name!r}; the nearest are {near}; `dyformer settings` lists all")


def _kind(field: FieldInfo) -> str:
    """Name the values of a setting: "int or none", "one of a, b", "default or none"."""
    if get_origin(field.annotation) is Literal:
        return f"one of {', '.join(get_args(field.annotation))}"
    kinds = [get_args(kind)[0] if get_origin(kind) else kind for kind in _alternatives(field)]
    words = {NoneType: "none"} | dict.fromkeys(PARTS.values(), "default")
    return " or ".join(words.get(kind) or kind.__name__ for kind in kinds)


def _limits(field: FieldInfo) -> str:
    """Name the limits of a setting, "" where it has none."""
    marks = [*field.metadata, *(mark for kind in _alternatives(field) for mark in _marks(kind))]
    low, high = ([getattr(mark, key) for mark in marks if hasattr(mark, key)] for key in ("ge", "le"))
    return " and ".join([*(f"at least {value}" for value in low), *(f"at most {value}" for value in high)])


def _alternatives(field: FieldInfo) -> tuple[Any, ...]:
    """Give the types of a union, or the only type."""
    return get_args(field.annotation) or (field.annotation,)


def _marks(kind: Any) -> list[Any]:
    return [inner for mark in getattr(kind, "__metadata__", ()) for inner in getattr(mark, "metadata", [mark])]


def _text(default: object) -> str:
    return str(default).lower() if default is None or isinstance(default, bool) else str(default)
