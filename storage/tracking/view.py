"""The page of an experiment in MLflow -> its columns, charts and description, as tags of the experiment.

MLflow keeps a view that a user shares in a tag, and opens it at an address with the tag's key. Without one it lists no
metric at all, and its charts begin with the first metric of the alphabet.
"""

import json

VIEW = "dyformer"  # the key of the view, in the address
COLUMNS = {
    "tags.`promoted`": 95,
    "metrics.`test/macro_mrr`": 130,
    "tags.`difference`": 190,
    "tags.`best_baseline`": 230,
    "tags.`champion`": 200,
    "metrics.`test/macro_auc`": 130,
}
"""What is looked for first, with the widths in pixels: was it promoted, how good is it, and who is champion."""

SECTIONS = (
    "promotion",
    "test",
    "published",
    "ledger",
    "finetune",
    "pretrain",
    "drift",
    "ours/mrr",
    "ours/auc",
    "baseline/mrr",
    "baseline/auc",
)
"""Groups of charts, those of our methods first."""

DESCRIPTION = """A run for each retraining, named by dataset, version and step, and one for each method of a benchmark.

- `promoted`: whether the retraining made its method champion; `promotion_reason` says why.
- `test/macro_mrr`: the mean reciprocal rank of the run's method, on the steps in the run's name.
- `difference`: that less the one of `best_baseline`, with its 95 % interval; one above 0 is a significant gain.
- `test/macro_auc`: AUC in the paper's protocol; of a retraining, that of DyFormer's vectors alone.

Open a run for its description, and its artifact `report.html` for the whole report."""


def view_tags() -> dict[str, str]:
    """Give the tags of an experiment: its view and its description."""
    sections = [
        {
            "uuid": name,
            "name": name,
            "display": not name.startswith("baseline/"),
            "isReordered": False,
            "isGenerated": True,
        }
        for name in SECTIONS
    ]
    state = {
        "selectedColumns": list(COLUMNS),
        "columnOrder": list(COLUMNS),
        "columnWidths": COLUMNS,
        "compareRunSections": sections,
        "compareRunCharts": [],  # MLflow adds one for each metric, in its section
        "isAccordionReordered": True,  # the sections stay in this order
    }
    return {f"mlflow.sharedViewState.{VIEW}": json.dumps(state), "mlflow.note.content": DESCRIPTION}
