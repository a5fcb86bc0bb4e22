"""STUDIES: the experiments of `dyformer benchmark --experiment`, each row with its row of the paper's tables.

The paper's values are Micro and Macro AUC in percent, by dataset and row, and its times and memory (appendix).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dyformer import InvalidInput
from dyformer.evaluation.fitting import FORECASTER_WITH
from dyformer.evaluation.node_classification import COUNTS_AND
from dyformer.evaluation.protocols import protocol_of
from dyformer.evaluation.protocols.paper import PAPER_METRICS
from dyformer.experiments.methods import (
    METHODS,
    NODE_METHODS,
    PUBLISHED_TITLE,
    NoEffect,
    Variation,
    check_effect,
    method_of,
)
from dyformer.experiments.tuning.grids import tuned
from dyformer.logs.planted import PLANTED
from dyformer.scoring.interfaces import Scorer

PaperTable = Mapping[str, Mapping[str, tuple[float | None, ...]]]
"""Values of the columns by dataset, then by row: Micro and Macro AUC, or what a training took."""
COST_SETS = ("max_epochs", "warm_start")  # settings that a measured training has of its own, beside numbers of epochs


def _by_dataset(rows: Mapping[str, tuple[tuple[float, float], ...]], datasets: tuple[str, ...]) -> PaperTable:
    return {
        dataset: {row: values[number] for row, values in rows.items() if number < len(values)}
        for number, dataset in enumerate(datasets)
    }


LAST_STEPS = {"uci": 13, "yelp": 16, "ml-10m": 13, "rds": 100, "snap-wikipedia": 11}
"""The last step of each log, up to which the paper's values go."""

THREE_LOGS = ("uci", "yelp", "ml-10m")

LINKS: PaperTable = {log: {row: metrics[:2] for row, metrics in rows.items()} for log, rows in PAPER_METRICS.items()}
NEW_LINKS: PaperTable = {
    log: {row: metrics[2:] for row, metrics in rows.items()} for log, rows in PAPER_METRICS.items()
}

# Three of the four rows of 4 and 6 layers are called Micro-AUC there; the second of each two is taken as Macro.
LAYERS = _by_dataset(
    {
        "2 layers": ((87.89, 88.31), (74.30, 74.29), (94.99, 96.08)),
        "4 layers": ((87.42, 88.35), (73.39, 74.31), (95.30, 96.16)),
        "6 layers": ((87.91, 88.49), (74.30, 74.28), (95.35, 96.11)),
    },
    THREE_LOGS,
)

ENCODINGS = _by_dataset(
    {
        "Both encoding": ((87.91, 88.49), (73.39, 74.31), (95.30, 96.16)),
        "Without encoding": ((83.27, 83.87), (72.82, 73.80), (91.81, 92.59)),
        "Only TC encoding": ((84.78, 84.60), (73.36, 74.31), (94.51, 95.43)),
        "Only SD encoding": ((87.01, 87.99), (72.98, 73.90), (92.34, 93.13)),
    },
    THREE_LOGS,
)

TOWERS = _by_dataset(
    {
        "Single-tower": ((87.86, 88.27), (72.95, 73.81), (94.80, 95.49)),
        "Two-tower": ((87.91, 88.49), (73.39, 74.31), (95.30, 96.16)),
    },
    THREE_LOGS,
)

HOPS = _by_dataset(
    {
        "Full attention": ((87.86, 88.27), (72.95, 73.81), (94.80, 95.49)),
        "1-hop neighbor": ((84.62, 85.10), (71.33, 71.45), (91.88, 92.18)),
        "3-hop neighbor": ((87.01, 87.48), (71.19, 72.31), (91.83, 92.33)),
    },
    THREE_LOGS,
)

NOISE = _by_dataset(
    {
        "1-hop attention, 10%": ((82.97, 83.01), (70.00, 69.94)),
        "1-hop attention, 20%": ((81.23, 82.10), (68.55, 68.45)),
        "1-hop attention, 50%": ((77.85, 78.43), (65.32, 65.61)),
        "Full attention, 10%": ((86.98, 86.12), (70.99, 71.64)),
        "Full attention, 20%": ((86.10, 85.93), (71.74, 71.67)),
        "Full attention, 50%": ((84.36, 85.51), (70.93, 69.93)),
    },
    ("uci", "yelp"),
)

LABELS_PUBLISHED = _by_dataset(
    {
        "DySAT": ((94.69, 94.74), (87.35, 87.36)),
        "EvolveGCN": ((92.31, 92.36), (84.72, 84.79)),
        "DyFormer (without pre-training)": ((92.90, 92.94), (82.37, 84.41)),
        "DyFormer (with pre-training)": ((95.49, 95.55), (85.48, 85.50)),
    },
    ("snap-wikipedia", "snap-reddit"),
)


class PaperCost(NamedTuple):
    """Memory, the seconds of an epoch and of a whole training on the last step, on the authors' GPU."""

    gigabytes: float
    epoch_seconds: float
    seconds: float
    num_epochs: int


COSTS: Mapping[str, Mapping[str, PaperCost]] = {
    "ml-10m": {
        "DySAT": PaperCost(9.2, 97.2, 4276.8, 45),
        "EvolveGCN": PaperCost(13.6, 6.9, 821.1, 120),
        "DyFormer (Pretrain)": PaperCost(6.5, 38.9, 986.5, 89),
        "DyFormer (Finetune)": PaperCost(10.1, 2.98, 62.2, 22),
    },
    "yelp": {
        "DySAT": PaperCost(5.4, 29.4, 4706.4, 160),
        "EvolveGCN": PaperCost(7.5, 19.14, 1091.2, 57),
        "DyFormer (Pretrain)": PaperCost(21.3, 11.8, 413.5, 34),
        "DyFormer (Finetune)": PaperCost(21.3, 21.41, 521.6, 23),
    },
}

COST_VALUES: PaperTable = {
    log: {row: (cost.epoch_seconds, None, cost.gigabytes) for row, cost in rows.items()} for log, rows in COSTS.items()
}
"""Those of the columns of the protocol `cost`."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One experiment: the rows of its table, by the method that each is, and the row of the paper beside it.

    A method is a title of METHODS or VARIATIONS; with FORECASTER_WITH before it, the row is the forecaster that reads
    the method's vectors. In the protocol of labels it may be one of NODE_METHODS; with COUNTS_AND before it, the row is
    the regression on counts and the method's vectors. A row without one in the paper has None.
    """

    sentence: str
    rows: Mapping[str, str | None]
    datasets: tuple[str, ...]
    protocols: tuple[str, ...] = ("paper",)  # whose tables it has; the first one evaluates
    paper: Mapping[str, PaperTable]  # by name of the table
    plot: str | None = None  # "steps" or "comparison"
    compared: Mapping[str, str] = field(default_factory=dict)  # row -> the row beside it; {}: the best baseline

    @property
    def methods(self) -> list[str]:
        """Titles of the methods to run, each once."""
        titles = [
            row if row in METHODS else row.removeprefix(FORECASTER_WITH).removeprefix(COUNTS_AND) for row in self.rows
        ]
        return list(dict.fromkeys(titles))

    @property
    def measures_process(self) -> bool:
        """Whether the time and the memory of trainings are measured, one at a time."""
        return protocol_of(self.protocols[0]).own_process

    @property
    def reads_interactions(self) -> bool:
        """Whether a method reads interactions, which steps with noise do not have."""
        scorers = [title for title in self.methods if isinstance(METHODS.get(title), Scorer)]
        return protocol_of(self.protocols[0]).reads_interactions or bool(scorers)

    def paper_values(self, part: str, dataset: str) -> dict[str, tuple[float | None, ...]]:
        """Give the paper's values of each row that has some, by row, one for each column of a table."""
        theirs = self.paper.get(part, {}).get(dataset, {})
        return {row: theirs[published] for row, published in self.rows.items() if published and published in theirs}

    def check_changes(self, names: Iterable[str], searched: str | None = None) -> None:
        """Raise NoEffect for a setting that changes no row of the table, as check_effect does, or in which rows differ.

        `searched` is the dataset whose chosen settings the methods have; None without any.
        """
        titles = list(names)
        for name in titles if self.measures_process else ():
            if name in COST_SETS or name.endswith((".epochs", ".patience")):
                raise NoEffect(f"{name} has no effect here: the time of an epoch is measured, whatever their number")
        method_by_title = {title: method_of(title) for title in self.methods}
        varied = {
            name for method in method_by_title.values() if isinstance(method, Variation) for name in method.changes
        }
        for name in titles:
            if name in varied:  # a row such as that without noise would have another one than its title
                raise NoEffect(f"{name} is not changed for a whole experiment whose rows differ in it")
        check_effect(
            titles,
            [
                tuned(title, method, searched) if isinstance(method, Variation) else method
                for title, method in method_by_title.items()
            ],
        )


_BASELINES = {
    "node2vec": "node2vec",
    "GraphSAGE": "GraphSAGE",
    "DynAERNN": "DynAERNN",
    "DynGEM": "DynGEM",
    "DySAT": "DySAT",
    "EvolveGCN-O": "EvolveGCN",
    "EvolveGCN-H": "EvolveGCN",
}
_SIMPLE = dict.fromkeys(
    [
        "EdgeBank (ever)",
        "EdgeBank (decayed)",
        "Preferential attachment",
        "Adamic-Adar",
        "L3",
        "Contact recency",
        "Logistic regression on pair features",
        "Boosted trees on pair features",
    ]
)
_OURS = {PUBLISHED_TITLE: "DyFormer", "DyFormer": "DyFormer"}
_FORECASTERS = ("Forecaster without vectors", *(FORECASTER_WITH + title for title in (*_BASELINES, *_OURS)))
_ON_PLANTED = (
    "Popularity (decayed)",
    "Preferential attachment",
    "Contact recency",
    "Adamic-Adar",
    "L3",
    "Personalized PageRank",
    "Logistic regression on pair features",
    "Boosted trees on pair features",
    "Forecaster without vectors",
    FORECASTER_WITH + "DyFormer",
    FORECASTER_WITH + "node2vec",
    "DyFormer",
    "node2vec",
)
_WITH_LABELS = {
    "DySAT": "DySAT",
    "EvolveGCN-O": "EvolveGCN",
    PUBLISHED_TITLE: "DyFormer (with pre-training)",
    "Published DyFormer without pre-training": "DyFormer (without pre-training)",
    "DyFormer": "DyFormer (with pre-training)",
    "DyFormer without pre-training": "DyFormer (without pre-training)",
}


def _study_of_parts(sentence: str, parts: Mapping[str, str | None], **described: Any) -> Study:
    """Give a study of DyFormer's parts, as published and by default; the part "" is the whole model.

    A part such as "1 hop, 10 % noise" is compared with "1 hop", each other one with the first.
    """
    forms = {"Published DyFormer": PUBLISHED_TITLE, "DyFormer": "DyFormer"}
    rows, compared = {}, {}
    for form, whole in forms.items():
        titles = {part: f"{form}, {part}" if part else whole for part in parts}
        rows |= {titles[part]: published for part, published in parts.items()}
        compared |= {
            titles[part]: titles[part.partition(", ")[0] if ", " in part else next(iter(parts))] for part in parts
        }
    return Study(sentence=sentence, rows=rows, compared=compared, **described)


_ALL_METHODS = {
    **_BASELINES,
    **_OURS,
    **_SIMPLE,
    **dict.fromkeys(("Forecaster without vectors", FORECASTER_WITH + "DyFormer")),
}
_ALL_LINKS = {"all": LINKS, "new": NEW_LINKS}

STUDIES: dict[str, Study] = {
    "links": Study(
        sentence="all methods, on all links of the next step and on the new ones (tables of section 5.2)",
        rows=_ALL_METHODS,
        datasets=("rds", *THREE_LOGS),
        paper=_ALL_LINKS,
        plot="comparison",
    ),
    "steps": Study(
        sentence="the same methods step by step (plot of section 5.2)",
        rows=_ALL_METHODS,
        datasets=("rds", *THREE_LOGS),
        paper=_ALL_LINKS,
        plot="steps",
    ),
    "pretraining": Study(
        sentence="DyFormer with and without pre-training, as published and by default (plot of section 5.2)",
        rows={
            **_OURS,
            "Published DyFormer without pre-training": None,
            "DyFormer without pre-training": None,
        },
        compared={
            "Published DyFormer without pre-training": PUBLISHED_TITLE,
            "DyFormer without pre-training": "DyFormer",
        },
        datasets=("rds", *THREE_LOGS),
        paper=_ALL_LINKS,
        plot="comparison",
    ),
    "layers": _study_of_parts(
        "DyFormer, as published and by default, with 2, 4 and 6 layers",
        {"": "2 layers", "4 layers": "4 layers", "6 layers": "6 layers"},
        datasets=THREE_LOGS,
        paper={"all": LAYERS},
    ),
    "encodings": _study_of_parts(
        "DyFormer, as published and by default, with both encodings, without, and with one",
        {
            "": "Both encoding",
            "no encoding": "Without encoding",
            "connections only": "Only TC encoding",
            "distances only": "Only SD encoding",
        },
        datasets=THREE_LOGS,
        paper={"all": ENCODINGS},
    ),
    "towers": _study_of_parts(
        "DyFormer, as published and by default, with two towers and with one",
        {"": "Two-tower", "one tower": "Single-tower"},
        datasets=THREE_LOGS,
        paper={"all": TOWERS},
    ),
    "hops": _study_of_parts(
        "DyFormer, as published and by default, with one tower: full attention, and within 1 and 3 hops",
        {"one tower": "Full attention", "1 hop": "1-hop neighbor", "3 hops": "3-hop neighbor"},
        datasets=THREE_LOGS,
        paper={"all": HOPS},
    ),
    "noise": _study_of_parts(
        "DyFormer, as published and by default, with one tower and up to 50 % noise: full attention, and within 1 hop",
        {
            f"{attention}{noise and f', {noise} % noise'}": f"{name}, {noise}%" if noise else None
            for attention, name in (("one tower", "Full attention"), ("1 hop", "1-hop attention"))
            for noise in ("", "10", "20", "50")
        },
        datasets=("uci", "yelp"),
        paper={"all": NOISE},
    ),
    "cost": Study(
        sentence="CPU seconds of an epoch and peak memory of each method's training, one at a time (appendix)",
        rows={
            **_BASELINES,
            **{
                f"{title}, {stage}": f"{published} ({kind})"
                for title, published in _OURS.items()
                for stage, kind in (("pre-training", "Pretrain"), ("fine-tuning", "Finetune"))
            },
        },
        datasets=("yelp", "ml-10m"),
        protocols=("cost",),
        paper={"cost": COST_VALUES},
    ),
    "forecaster": Study(
        sentence="what the vectors of each method add to the forecaster, among hard candidates",
        rows=dict.fromkeys(_FORECASTERS),
        datasets=("uci", "yelp"),
        protocols=("prequential",),
        compared=dict.fromkeys(_FORECASTERS, "Forecaster without vectors"),
        paper={},
    ),
    "planted": Study(
        sentence="what vectors add where the structure is known: generated logs with a planted rule",
        rows=dict.fromkeys(_ON_PLANTED),
        datasets=tuple(PLANTED),
        protocols=("prequential",),
        compared=dict.fromkeys(_ON_PLANTED, "Forecaster without vectors"),
        paper={},
    ),
    "labels": Study(
        sentence="which users get a label next, by vectors and by counts of their activity (table of the appendix)",
        rows={
            **dict.fromkeys(NODE_METHODS),
            **_WITH_LABELS,
            **dict.fromkeys(COUNTS_AND + title for title in _WITH_LABELS),
        },
        datasets=("snap-wikipedia",),
        protocols=("labels", "labels-published"),
        paper={"published": LABELS_PUBLISHED},
    ),
}


def study_of(name: str) -> Study:
    """Return the study of a name. Raises ValueError, with the allowed names."""
    if name not in STUDIES:
        raise InvalidInput(f"there is no experiment {name!r}: expected one of {', '.join(STUDIES)}")
    return STUDIES[name]
