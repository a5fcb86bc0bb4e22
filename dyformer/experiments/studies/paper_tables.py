"""The paper's tables: Micro and Macro AUC in percent, by dataset and row, and its times and memory (appendix)."""

from collections.abc import Mapping
from typing import NamedTuple

from dyformer.evaluation.protocols.paper import PAPER_METRICS

PaperTable = Mapping[str, Mapping[str, tuple[float | None, ...]]]
"""Values of the columns by dataset, then by row: Micro and Macro AUC, or what a training took."""


def _by_dataset(rows: Mapping[str, tuple[tuple[float, float], ...]], datasets: tuple[str, ...]) -> PaperTable:
    return {
        dataset: {row: values[number] for row, values in rows.items() if number < len(values)}
        for number, dataset in enumerate(datasets)
    }


LAST_STEPS = {"uci": 13, "yelp": 16, "ml-10m": 13, "rds": 100, "snap-wikipedia": 11}
"""The last step of each log, up to which the paper's values go."""

THREE_LOGS = ("uci", "yelp", "ml-10m")

LINKS: PaperTable = {log: {row: own[:2] for row, own in rows.items()} for log, rows in PAPER_METRICS.items()}
NEW_LINKS: PaperTable = {log: {row: own[2:] for row, own in rows.items()} for log, rows in PAPER_METRICS.items()}

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
    log: {row: (own.epoch_seconds, None, own.gigabytes) for row, own in rows.items()} for log, rows in COSTS.items()
}
"""Those of the columns of the protocol `cost`."""
