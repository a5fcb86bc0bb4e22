"""What a protocol is: a log and methods -> tables of results, rows of metrics, and the columns that are printed.

A protocol is one object in one file of this folder, with one line in PROTOCOLS. All that compares methods reads it:
the flow of benchmarks, experiments, retraining, the Python API, the tables and MLflow.
"""

import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import polars as pl

from dyformer import InvalidInput
from dyformer.evaluation.first_stage import CandidatesOf
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.interactions import NodeLabels
from dyformer.graphs.snapshots import FIRST_EVALUATED_STEP, DynamicGraph, StepOutOfRange
from dyformer.logs.datasets import DATASETS
from dyformer.logs.time_windows import TimeUnit, Window
from dyformer.scoring.interfaces import Embedder, NodeScorer, Ranker, Scorer, Stage

Unit = int | str
"""What is evaluated at a time: a step, a week, or the name of a split."""

Tables = Mapping[str, pl.DataFrame]

KINDS: dict[type, str] = {
    Embedder: "methods with vectors",
    Scorer: "methods that score pairs",
    NodeScorer: "methods that score nodes",
    Ranker: "methods that rank candidates as of a moment",
    Stage: "stages of a training",
}
"""Interfaces of methods, in words."""


class Log(typing.Protocol):
    """What protocols read of a log: snapshots of the store have it, and graphs in memory."""

    @property
    def dataset(self) -> str:
        """Name of the log."""
        ...

    @property
    def num_steps(self) -> int:
        """Number of snapshots."""
        ...

    @property
    def directed(self) -> bool:
        """Whether the order of source and target matters."""
        ...

    @property
    def window(self) -> str:
        """How the log is divided into snapshots."""
        ...

    @property
    def time_unit(self) -> TimeUnit:
        """Unit of the times of events."""
        ...

    def graph(self, until: int, *, interactions: bool = False) -> DynamicGraph:
        """Give the snapshots up to `until`, with their interactions where these are wanted."""
        ...

    def labels(self) -> NodeLabels:
        """Give the labels of the rows of all steps."""
        ...

    def events(self) -> pl.DataFrame:
        """Give all events as `build_snapshots` reads them, in log order."""
        ...

    def divided(self, window: Window) -> DynamicGraph:
        """Give the log in other snapshots, with their interactions."""
        ...


@dataclass(frozen=True, kw_only=True)
class Job:
    """Units of a log to evaluate with one seed: all methods get the same."""

    log: Log
    units: tuple[Any, ...]
    seed: int = 0
    config: GraphConfig = field(default_factory=GraphConfig)
    drawn: Tables = field(default_factory=dict)  # what `draw` gave
    settings: Mapping[str, str] = field(default_factory=dict)  # of the protocol
    candidates_of: CandidatesOf | None = None  # of graphs too large for all pairs

    @property
    def unit(self) -> Any:
        """The unit of a job that has one."""
        (unit,) = self.units
        return unit


class Result(NamedTuple):
    """Stored tables of a group of methods, on some units with one seed."""

    units: tuple[Any, ...]
    seed: int
    table: Callable[[str], pl.DataFrame]  # of `evaluate` and `shared`, by name
    drawn: Callable[[str], pl.DataFrame]  # of `draw`


class Cell(NamedTuple):
    """A metric among the negatives of a family, over a slice of what is evaluated."""

    metric: str
    family: str
    slice: str


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a printed table: a metric over all units, and how a value of it is written.

    `form` is a format of the value, with the number of pairs as `num`. `single` is the title where one unit was
    evaluated; None leaves the column out there, because micro and macro are then the same.
    """

    title: str
    metric: str
    family: str
    over: Literal["macro", "micro"] = "macro"
    value: Literal["value", "difference"] = "value"
    form: str = "{:.3f}"
    scale: float = 1.0
    digits: int | None = None  # to which a value is rounded before it is written
    interval: bool = True
    deviation: str | None = None  # format of the standard deviation over seeds, which is beside the value
    missing: str | None = ""
    single: str | None = ""  # "": the title itself

    def title_of(self, *, is_single: bool) -> str:
        """Give the title."""
        return (self.single or self.title) if is_single else self.title


class Setting(NamedTuple):
    """A setting of a protocol."""

    usual: str
    read: Callable[[str], str]  # a text -> the value; raises ValueError, which says what it expected


def one_of(*values: str) -> Setting:
    """Give a setting with these values, of which the first is the usual one."""

    def read(text: str) -> str:
        if text not in values:
            raise InvalidInput(f"expected one of {', '.join(values)}, got {text!r}")
        return text

    return Setting(values[0], read)


def no_words(settings: Mapping[str, str], metrics: pl.DataFrame) -> dict[str, str]:
    """Give no word."""
    return {}


def no_sentences(rows: pl.DataFrame, metrics: pl.DataFrame) -> list[str]:
    """Give no sentence."""
    return []


@dataclass(frozen=True, kw_only=True)
class TableOf:
    """The columns and texts of one printed table of a protocol. Its first column of `metric` orders the methods.

    `title` is a format with dataset, num (pairs or queries), number (of units), where ("step 5", "3 steps"), steps
    ("1 step"), seeds, best, which names the best baseline where there is one, and the words that `words` gives.
    """

    name: str  # in the names of files
    key: str  # of the table on Prefect's pages
    slice: str
    columns: tuple[Column, ...]
    title: str
    words: Callable[[Mapping[str, str], pl.DataFrame], Mapping[str, str]] = no_words  # of settings and all metrics
    contents: str = ""  # in the caption of an experiment: "all links"
    measure: str = ""
    counted: str = "test pairs"
    caption: str = "{name}, {dataset}, {contents}: {measure}, {protocol} protocol, {over}, {steps}{counted}"
    note: str | None = None  # below the table of an experiment, in place of the lengths of trainings
    paper_note: str = ""  # where the paper's values stand beside ours
    metrics: tuple[str, ...] = ()  # of an experiment's columns; (): the main one alone
    sentences: Callable[[pl.DataFrame, pl.DataFrame], list[str]] = no_sentences  # rows of the slice, and all metrics
    published: Mapping[str, Mapping[str, Mapping[str, float | None]]] = field(default_factory=dict)
    """By dataset and row: values of columns that others have published."""
    published_below: bool = True  # below ours, not among them
    reference: str | None = None  # with what an experiment compares its rows, where it names no row

    @property
    def main(self) -> Column:
        """The column that orders the methods."""
        macro = [column for column in self.columns if column.over == "macro" and column.value == "value"]
        return macro[0]

    @property
    def values(self) -> tuple[Column, ...]:
        """The columns that an experiment prints."""
        metrics = self.metrics or (self.main.metric,)
        return tuple(column for column in self.columns if column.metric in metrics and column.value == "value")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How methods are compared."""

    name: str
    sentence: str  # in the help of the command
    heading: str  # of its part of a report
    methods: tuple[type, ...]  # those of dyformer.scoring.interfaces that it evaluates
    units: Callable[[Log], Sequence[Unit]]  # that can be evaluated; raises ValueError where a log has none
    need: str  # of a unit, for the message where one cannot be evaluated
    trial: Callable[[Job], Any]  # what all methods of a job get
    evaluate: Callable[[str, Any, Any], Tables]  # title, method and trial -> its tables
    rows: Callable[[Sequence[Result], Log, Collection[str]], Tables]
    """Results, log and titles of baselines -> `metrics`, with the columns of METRICS_SCHEMA, and tables beside them.

    A mapping gives the row with which each is compared, as `metric_rows` reads it.

    Metrics of a method without a seed are those of all seeds together; tables average over the seeds without them.
    """

    tables: tuple[TableOf, ...]
    draw: Callable[[Job], Tables] | None = None  # candidates of a job that are stored, because all methods share them
    same_draw: bool = False  # whether all seeds share them, too
    shared: Callable[[Any], Tables] | None = None  # tables of a trial, beside those of its methods
    trained_until: Callable[[Log, Sequence[Any]], list[int]] | None = None
    """A log and units of it -> the steps until which DyFormer's models are trained."""

    compared_with: tuple[type, ...] = ()  # interfaces of the baselines; (): those of `methods`
    evaluated_as: str | None = None  # another protocol, whose results hold those of this one
    kind: str = "scores"  # of artifacts
    unit: str = "step"
    whole_log: bool = False  # whether an evaluation of a unit reads what comes after it, as negatives of later steps
    together: bool = False  # whether all units are one job, because the fits of one serve the others
    last_only: bool = False  # whether the last unit alone is evaluated
    own_process: bool = False  # whether each method is evaluated in a process of its own, and none beside it
    reads_interactions: bool = True
    settings: Mapping[str, Setting] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)  # settings that are not the usual ones
    main: Cell | None = None  # the metric that decides; None: all are tracked alike
    usual_slice: str = "all"  # families and slice that the name of a tracked metric leaves out
    usual_families: tuple[str, ...] = ()  # (): no family is named
    is_tracked: pl.Expr | None = None  # of rows of metrics; None: all of known metrics and slices
    plots: tuple[str, ...] = ()  # of dyformer.experiments.plots
    written: str = "metrics"  # the table of `rows` that --json writes

    @property
    def chosen(self) -> dict[str, str]:
        """All settings."""
        return {name: self.given.get(name, setting.usual) for name, setting in self.settings.items()}

    def changed(self, changes: Mapping[str, str]) -> "Protocol":
        """Give the protocol with other settings. Raises ValueError."""
        settings = dict(self.given)
        for name, value in changes.items():
            if name not in self.settings:
                has = ", ".join(self.settings) or "none"
                raise InvalidInput(f"the protocol {self.name} has no setting {name!r}; it has {has}")
            try:
                settings[name] = self.settings[name].read(value)
            except ValueError as error:
                raise InvalidInput(f"{self.name}.{name}: {error}") from error
        return replace(self, given=settings)

    def evaluates(self, method: object) -> bool:
        """Whether a method has one of the interfaces that the protocol evaluates."""
        return isinstance(method, self.methods)

    def jobs(self, units: Sequence[Unit]) -> list[tuple[Unit, ...]]:
        """Divide units into those that are evaluated together."""
        return [tuple(units)] if self.together else [(unit,) for unit in units]


def evaluated(
    protocol: Protocol,
    job: Job,
    methods: Mapping[str, Any],
    guard: Callable[[str, Any], AbstractContextManager[None]] = lambda title, method: nullcontext(),
) -> dict[str, pl.DataFrame]:
    """Evaluate methods, by title, on the same trial, and put their tables together. `guard` is entered for each."""
    trial, parts = protocol.trial(job), []
    for title, method in methods.items():
        with guard(title, method):
            parts.append(protocol.evaluate(title, method, trial))
    tables = {name: pl.concat([part[name] for part in parts]) for name in parts[0]}
    return tables if protocol.shared is None else {**tables, **protocol.shared(trial)}


def chosen_units(protocol: Protocol, log: Log, wanted: str | None = None) -> list[Any]:
    """List the units that are evaluated: those of `wanted` such as "3-13" or "5,7", else all that tables report.

    Raises:
        StepOutOfRange: a step that cannot be evaluated; the message has the possible ones and what a step needs.
    """
    check_has_steps(protocol, wanted)
    if protocol.unit != "step":
        return list(protocol.units(log))
    possible: Sequence[Any] = protocol.units(log)
    first = first_evaluated_step(log.dataset)
    steps = [step for step in possible if step >= first] if wanted is None else wanted_steps(wanted)
    wrong = [step for step in steps if step not in possible]
    if wrong or not steps:
        can = f"; steps {_in_ranges(possible)} can" if possible else "; no step can" if wrong else ""
        all_wrong = f"no step from {first} on can" if possible else "no step can"
        what = f"{', '.join(map(str, wrong))} cannot" if wrong else all_wrong
        raise StepOutOfRange(f"{log.dataset}: {what} be evaluated{can} ({protocol.need})")
    return steps[-1:] if protocol.last_only else steps


def _in_ranges(steps: Sequence[int]) -> str:
    """Write ascending steps as `wanted_steps` reads them, "3-13,15", and those of one range as "3 to 13"."""
    starts = [step for step in steps if step - 1 not in steps]
    ends = [step for step in steps if step + 1 not in steps]
    if len(starts) == 1 and starts != ends:
        return f"{starts[0]} to {ends[0]}"
    ranges = zip(starts, ends, strict=True)
    return ",".join(f"{start}" if start == end else f"{start}-{end}" for start, end in ranges)


def check_has_steps(protocol: Protocol, wanted: str | None) -> None:
    """Raise StepOutOfRange for steps of a protocol that evaluates other units."""
    if wanted is not None and protocol.unit != "step":
        raise StepOutOfRange(f"the protocol {protocol.name} evaluates every {protocol.unit}: leave `steps` out")


def first_evaluated_step(dataset: str) -> int:
    """Return the first step whose forecasts are evaluated: the paper's for its datasets, else step 3."""
    return DATASETS[dataset].first_evaluated_step if dataset in DATASETS else FIRST_EVALUATED_STEP


def wanted_steps(text: str) -> list[int]:
    """Read "5", "3-13" or "3,5,7" as ascending steps, each once; raises StepOutOfRange for anything else."""
    return sorted({step for part in text.split(",") for step in _range(part)})


def _range(text: str) -> list[int]:
    first, dash, last = text.strip().partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise StepOutOfRange(f'{text!r} is not a list of steps: write "5", "3-13" or "3,5,7"')
    if int(last or first) < int(first):
        raise StepOutOfRange(f"the range {text!r} is descending: write {last}-{first}")
    return list(range(int(first), int(last or first) + 1))
