"""Labelled steps -> inputs, labels and weights to fit a classifier of pairs on.

P pairs    F inputs
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.sampling.pairs import LinkExamples, NewPartners, first_half
from dyformer.scoring.interfaces import LabelledStep
from dyformer.scoring.pair_features import PairFeatures, prepare_pair_features

PairTable = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.floating]]
"""Sources `[P]` and targets `[P]` -> inputs `[P, F]`."""

Inputs = WeakKeyDictionary[PreparedGraph, WeakKeyDictionary[LinkExamples | NewPartners, NDArray[np.floating]]]
"""Tables of inputs [P, F] by the graph that they are read from and the pairs."""

# All methods of a trial read the same graphs and pairs; an entry goes when its graph or its pairs go.
_FEATURES: WeakKeyDictionary[PreparedGraph, PairFeatures] = WeakKeyDictionary()
_INPUTS: Inputs = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class LabelledTable:
    """Pairs to fit on; a pair of weight 0.5 counts half."""

    inputs_PF: NDArray[np.floating]
    positive_P: NDArray[np.bool_]
    weight_P: NDArray[np.float64]
    group_P: NDArray[np.int64]  # equal for the pairs of one source in one step, or for the new partners of one node


def pair_features(graph: PreparedGraph) -> PairFeatures:
    """Give the pair features of a graph's history, summarised once for all methods that read this graph."""
    if graph not in _FEATURES:
        _FEATURES[graph] = prepare_pair_features(graph.history)
    return _FEATURES[graph]


def check_labelled(labelled: Sequence[LabelledStep]) -> None:
    """Raise ValueError where a method that learns from labelled steps has none."""
    if not labelled:
        raise InvalidInput("found no labelled step: expected at least one labelled step with pairs to fit on")


def labelled_tables(labelled: Sequence[LabelledStep]) -> tuple[LabelledTable, LabelledTable, LabelledTable | None]:
    """Give three tables of pair features: to fit on, to choose a setting on, and of the older steps.

    The first two are the halves of the newest step's pairs. There is no third one without older steps. Features of
    a step's pairs are read from the steps before it. Raises ValueError without a step.
    """
    check_labelled(labelled)
    newest, *older = map(labelled_pair_features, labelled)
    is_first_P = first_half(newest.positive_P)
    return _rows(newest, is_first_P), _rows(newest, ~is_first_P), stacked(*older) if older else None


def stacked(*tables: LabelledTable) -> LabelledTable:
    """Put the rows of tables in one."""
    columns = zip(*(vars(table).values() for table in tables), strict=True)
    return LabelledTable(**dict(zip(vars(tables[0]), map(np.concatenate, columns), strict=True)))


def digest_of(table: LabelledTable) -> str:
    """Give a number that only tables with the same values have."""
    digest = hashlib.sha256()
    for values in vars(table).values():
        digest.update(f"{values.dtype} {values.shape} ".encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def labelled_table(step: LabelledStep, inputs_PF: NDArray[np.floating]) -> LabelledTable:
    """Put the pairs of a step in a table with these inputs."""
    return _table(step, inputs_PF, step.examples.positive_P, step.examples.source_P)


def new_partner_table(step: LabelledStep, inputs_PF: NDArray[np.floating]) -> LabelledTable:
    """Put the possible new partners of a step in a table with these inputs."""
    return _table(step, inputs_PF, step.new_partners.positive_P, step.new_partners.node_P)


def labelled_pair_features(step: LabelledStep) -> LabelledTable:
    """Put the pairs of a step in a table with their pair features, which are read from the steps before it."""
    table_PF = known_inputs(_INPUTS, step.before, step.examples, lambda graph: pair_features(graph).table)
    return labelled_table(step, table_PF)


def known_inputs(
    known: Inputs,
    graph: PreparedGraph,
    pairs: LinkExamples | NewPartners,
    table_of: Callable[[PreparedGraph], PairTable],
) -> NDArray[np.floating]:
    """Give the inputs [P, F] of pairs as of a graph, made once for all who read the same objects."""
    of_graph = known.setdefault(graph, WeakKeyDictionary())
    if (table_PF := of_graph.get(pairs)) is None:
        table_PF = of_graph[pairs] = table_of(graph)(pairs.source_P, pairs.target_P)
    return table_PF


def _table(
    step: LabelledStep, inputs_PF: NDArray[np.floating], positive_P: NDArray[np.bool_], node_P: NDArray[np.int64]
) -> LabelledTable:
    group_P = node_P + step.before.until * len(step.before.history.node_N)
    weight_P = np.full(len(positive_P), step.weight)
    return LabelledTable(inputs_PF=inputs_PF, positive_P=positive_P, weight_P=weight_P, group_P=group_P)


def _rows(table: LabelledTable, is_wanted_P: NDArray[np.bool_]) -> LabelledTable:
    return LabelledTable(**{name: values[is_wanted_P] for name, values in vars(table).items()})
