"""The protocol of labels as published (appendix): a balanced sample of nodes, whose labels hold until they change.

Most positive nodes are trained on, so this is a comparison with the paper and no forecast.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from dyformer.evaluation.node_classification import PUBLISHED_PROTOCOL as NAME
from dyformer.evaluation.protocols.labels import PROTOCOL as LABELS
from dyformer.evaluation.protocols.labels import rows_of, table_of
from dyformer.evaluation.protocols.protocol import Log, Result, Tables

SAMPLED = "balanced samples of users, most of whom were trained on, labels carried forward (as published, no forecast)"


def _rows(results: Sequence[Result], log: Log, baselines: Collection[str]) -> Tables:
    return {"metrics": rows_of(results, log, NAME, baselines)}


# What is evaluated is shared with the protocol `labels`, because both read the same vectors.
PROTOCOL = replace(
    LABELS,
    name=NAME,
    sentence="labels as the paper samples them, no forecast",
    heading="Labels as the paper samples them",
    rows=_rows,
    tables=(table_of(NAME, "published", SAMPLED, "auc", "AUC"),),
    evaluated_as=LABELS.name,
)
