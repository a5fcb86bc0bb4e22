"""PreparedGraph: everything that a method may know up to one step."""

from dataclasses import dataclass

from dyformer.snapshots import DynamicGraph, prefix
from dyformer.union_graph import TemporalUnionGraph, build_union_graph


@dataclass(frozen=True, kw_only=True)
class GraphConfig:
    """How the history of a graph is prepared."""

    history_window: int | None = 5  # newest steps that methods read; None: the whole history
    max_distance: int = 5  # D_max
    teleport: float = 0.15  # restart probability of Personalized PageRank

    def __post_init__(self) -> None:
        """Raise ValueError for settings out of range."""
        if self.history_window is not None and self.history_window < 1:
            raise ValueError(f"graph.history_window must be at least 1, or none; got {self.history_window}")
        if not 1 <= self.max_distance <= 255:
            raise ValueError(f"graph.max_distance must be 1 to 255; got {self.max_distance}")
        if not 0 < self.teleport < 1:
            raise ValueError(f"graph.teleport must lie between 0 and 1; got {self.teleport}")


@dataclass(frozen=True, kw_only=True)
class PreparedGraph:
    """A graph as of the step `until`: no later step, and no node that came later, is in it."""

    config: GraphConfig
    until: int
    history: DynamicGraph  # steps 1 .. until
    union: TemporalUnionGraph  # of the newest `history_window` steps


def prepare_graph(graph: DynamicGraph, *, until: int, config: GraphConfig) -> PreparedGraph:
    """Show a graph as it was at the step `until`. Raises ValueError where there is no such step."""
    history = prefix(graph, until)
    union = build_union_graph(history, until=until, window=config.history_window)
    return PreparedGraph(config=config, until=until, history=history, union=union)


def as_of(prepared: PreparedGraph, until: int) -> PreparedGraph:
    """Show a prepared graph as it was at an earlier step. Raises ValueError for a step that it does not hold."""
    return prepare_graph(prepared.history, until=until, config=prepared.config)
