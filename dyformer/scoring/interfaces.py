"""The interfaces of methods: an Embedder gives vectors of nodes, a Scorer scores of pairs, a NodeScorer of nodes.

A Ranker scores a source's candidates as of any moment. A Stage is a part of a training, whose cost is measured.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.sampling.pairs import NO_NEW_PARTNERS, LinkExamples, NewPartners
from dyformer.streams.event_log import EventLog, EventQueries

Embed = Callable[[NDArray[np.int64]], NDArray[np.floating]]
"""Nodes `[n]` of the fitted graph -> their vectors `[n, width]`; a vector does not depend on the other nodes."""

Score = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
"""Sources `[P]` and targets `[P]` -> scores `[P]`; a higher score means a more probable link."""


NodeScore = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""Nodes `[P]` of the fitted graph -> scores `[P]`; a higher score means a more probable positive label."""

EPOCHS = ("first_epochs", "epochs")
"""Fields of a method with a number of epochs; none: as many as its other settings give."""


class NotFinite(InvalidInput):
    """What a training or a method gave is NaN or infinite."""


class NoVectors(InvalidInput):
    """A method with stored weights has none that were trained on the steps of a graph alone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledStep:
    """Labelled pairs of the step after `before.until`: a method is fitted on features of `before` and these labels."""

    before: PreparedGraph  # the steps before the one with the labels
    examples: LinkExamples
    weight: float  # of each pair in a fit: 1 for the forecast step, less for older ones
    directed: bool = False  # whether a pair means source -> target; otherwise both orders are the same pair
    ranked: bool = False  # whether the negative pairs are candidates of the positive pairs' sources
    new_partners: NewPartners = NO_NEW_PARTNERS  # further pairs, on which a ranker of new partners is fitted


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledNodes:
    """Labelled nodes of the step after `before.until`: a method is fitted on features of `before` and these labels."""

    before: PreparedGraph
    node_P: NDArray[np.int64]
    positive_P: NDArray[np.bool_]


@runtime_checkable
class Embedder(Protocol):
    """A method that gives vectors: a frozen dataclass of its hyper-parameters.

    It cannot read the future, because `graph` holds no step after `graph.until`.
    """

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train on the steps up to `graph.until` and return the function from nodes to vectors."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """A method that scores pairs without vectors: a frozen dataclass of its hyper-parameters."""

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Return the function from pairs to scores of the step after `graph.until`.

        `labelled` has the newest step first, and features of its pairs are read from its `before`. In the paper's
        protocol the first one is the forecast step itself, of which a part of the pairs is labelled, and its `before`
        is `graph`. In the other protocols all labelled steps are past. Every method gets the same ones.
        """
        ...


@runtime_checkable
class NodeScorer(Protocol):
    """A method that scores nodes without vectors: a frozen dataclass of its hyper-parameters."""

    def fit_nodes(self, graph: PreparedGraph, labelled: Sequence[LabelledNodes]) -> NodeScore:
        """Return the function from nodes to scores of the step after `graph.until`; all labelled steps are past."""
        ...


RankEvents = Callable[[EventLog, EventQueries], Iterator[NDArray[np.floating]]]
"""A log and Q queries -> scores `[n, C]` of consecutive queries, together Q rows; a higher score ranks first.

For a query only the log's first `num_visible_Q` events are read, so that equal prefixes give equal scores.
"""


@runtime_checkable
class Ranker(Protocol):
    """A method that ranks a source's candidates as of a moment: a frozen dataclass of its hyper-parameters."""

    def fit_events(self, log: EventLog, training: EventQueries, validation: EventQueries, *, seed: int) -> RankEvents:
        """Fit on the events of the training queries, choose settings on those of the validation ones.

        The log ends with the last validation event. Query k of `training` is about event k of the log; the validation
        queries are about the events that follow these. Their `num_visible_Q` says what is visible in the evaluation
        too. `candidate_QC` is None in both.
        """
        ...


@runtime_checkable
class Stage(Protocol):
    """A stage of a training that is measured alone."""

    def train_epochs(self, graph: PreparedGraph, num_epochs: int, *, seed: int) -> None:
        """Train for so many epochs."""
        ...


def rows_of(vector_ND: NDArray[np.floating]) -> Embed:
    """Give the function from nodes to their rows of an array; for all nodes in order it gives the array, not a copy.

    Who reads the vectors of all nodes again finds the same object, and what is computed of it is computed once; so
    nobody may write into it.
    """

    def embed(node_B: NDArray[np.int64]) -> NDArray[np.floating]:
        is_all = len(node_B) == len(vector_ND) and np.array_equal(node_B, np.arange(len(vector_ND)))
        return vector_ND if is_all else vector_ND[node_B]

    return embed
