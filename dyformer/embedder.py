"""The one interface of every method that gives nodes vectors."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.prepared_graph import PreparedGraph

Embed = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Node ids `[n]` of the fitted graph -> vectors `[n, width]`, the same whoever is asked together."""


class Embedder(Protocol):
    """A method: a frozen dataclass of its hyper-parameters.

    It cannot leak the future, because no step after `graph.until` is in the object it is given.
    """

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train on what is known up to `graph.until` and return the vectors' look-up."""
        ...
