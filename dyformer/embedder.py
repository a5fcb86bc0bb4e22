"""The two interfaces of methods: an Embedder gives vectors of nodes, a Scorer gives scores of pairs."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.sampling.pairs import LinkExamples

Embed = Callable[[NDArray[np.int64]], NDArray[np.floating]]
"""Nodes `[n]` of the fitted graph -> their vectors `[n, width]`; a vector does not depend on the other nodes."""

Score = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
"""Sources `[P]` and targets `[P]` -> scores `[P]`; a higher score means a more probable link."""


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

    def fit_pairs(self, graph: PreparedGraph, labelled: LinkExamples) -> Score:
        """Return the function from pairs to scores; `labelled` are pairs of the step after `graph.until`."""
        ...
