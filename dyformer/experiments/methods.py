"""METHODS: every method that a benchmark compares, with its hyper-parameters, under its title in the table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dyformer.baselines.heuristics import (
    BoostedTrees,
    EdgeBank,
    LogisticRegression,
    NeighbourPaths,
    PreferentialAttachment,
)
from dyformer.embedder import Embed, Embedder, Scorer
from dyformer.experiments.settings import Experiment
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.model.config import ModelConfig
from dyformer.training.checkpoint import Weights
from dyformer.training.stages import DyFormerEmbedder, embed

Method = Embedder | Scorer


@dataclass(frozen=True, kw_only=True)
class Variation:
    """DyFormer with the settings of an experiment, some of them changed (paper, Fig. 4)."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    experiment: Experiment = field(default_factory=Experiment)

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train from scratch; the flows train the same with checkpoints and evaluate a TrainedDyFormer."""
        changed = self.experiment.changed(self.changes)
        parts = {"model": changed.model, "pretrain": changed.pretrain, "finetune": changed.finetune}
        return DyFormerEmbedder(**parts).fit(graph, seed=seed)


@dataclass(frozen=True, kw_only=True)
class TrainedDyFormer:
    """DyFormer with stored weights: the graph is embedded, and nothing is trained."""

    weights: Weights
    model: ModelConfig
    device: str = "cpu"

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Embed all nodes known at `graph.until`; the seed has no effect."""
        vector_ND = embed(graph, self.weights, self.model, device=self.device)
        return lambda node_N: vector_ND[node_N]


METHODS: dict[str, Method] = {
    "EdgeBank (ever)": EdgeBank(memory="ever"),
    "EdgeBank (last)": EdgeBank(memory="last"),
    "EdgeBank (decayed)": EdgeBank(memory="decayed"),
    "Preferential attachment": PreferentialAttachment(memory="ever"),
    "Preferential attachment (last)": PreferentialAttachment(memory="last"),
    "Popularity (decayed)": PreferentialAttachment(memory="decayed"),
    "Common neighbours": NeighbourPaths(kind="common_neighbors"),
    "Adamic-Adar": NeighbourPaths(kind="adamic_adar"),
    "L3": NeighbourPaths(kind="l3"),
    "Logistic regression on pair features": LogisticRegression(),
    "Boosted trees on pair features": BoostedTrees(),
    "DyFormer": Variation(),
    "DyFormer without pre-training": Variation(changes={"pretrain": None}),
}
