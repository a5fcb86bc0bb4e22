"""Labelled pairs of the forecast step and of older ones -> scores of pairs: two classifiers on the pair features.

P pairs
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass
from scipy.special import expit

from dyformer.graphs.config import OR_LIST, STRICT
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.decoder import fit_decoder, score, strength_scores
from dyformer.scoring.heads import TreesHead, fit_trees
from dyformer.scoring.interfaces import LabelledStep, Score
from dyformer.scoring.labelled_tables import LabelledTable, labelled_tables, pair_features, stacked
from dyformer.scoring.metrics import auc


@dataclass(frozen=True, kw_only=True)
class LogisticRegression:
    """Score a pair by a logistic regression on its standardised pair features."""

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Fit on all labelled pairs.

        The AUC on half of the forecast step's pairs chooses C among STRENGTHS, and whether the older steps are used.
        """
        train, validation, older = labelled_tables(labelled)
        chosen_by = validation.inputs_PF, validation.positive_P
        choices = [
            (value, index, strength)
            for index, table in enumerate(_with_and_without(train, older))
            for strength, value in strength_scores(
                table.inputs_PF, table.positive_P, chosen_by, weight_P=table.weight_P
            ).items()
        ]
        _, index, strength = max(choices, key=lambda choice: choice[0])
        table = _with_and_without(stacked(train, validation), older)[index]
        decoder = fit_decoder(table.inputs_PF, table.positive_P, weight_P=table.weight_P, strength=strength)
        features = pair_features(graph)
        return lambda source_P, target_P: score(decoder, features.table(source_P, target_P))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BoostedTrees:
    """Score a pair by gradient-boosted trees on its pair features."""

    num_rounds: PositiveInt = 80
    max_leaves: Annotated[tuple[PositiveInt, ...], OR_LIST] = (4, 8)

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Fit on all labelled pairs.

        The AUC on half of the forecast step's pairs chooses among `max_leaves`, and whether the older steps are used.
        """
        train, validation, older = labelled_tables(labelled)
        choices = [
            (auc(validation.positive_P, trees.logits(validation.inputs_PF)), index, max_leaves)
            for index, table in enumerate(_with_and_without(train, older))
            for max_leaves in self.max_leaves
            for trees in [self._fitted(table, max_leaves)]
        ]
        _, index, max_leaves = max(choices, key=lambda choice: choice[0])
        trees = self._fitted(_with_and_without(stacked(train, validation), older)[index], max_leaves)
        features = pair_features(graph)
        return lambda source_P, target_P: expit(trees.logits(features.table(source_P, target_P)))

    def _fitted(self, table: LabelledTable, max_leaves: int) -> TreesHead:
        # With 20 pairs in a leaf, the usual number, trees of 40 pairs cannot split and give a constant.
        min_in_leaf = min(20, max(1, len(table.positive_P) // 20))
        settings = {"learning_rate": 0.1, "num_leaves": max_leaves, "min_data_in_leaf": min_in_leaf}
        return fit_trees(table, settings, self.num_rounds)


def _with_and_without(own: LabelledTable, older: LabelledTable | None) -> list[LabelledTable]:
    """Give the tables to choose from: with the older steps first, because they win ties."""
    return [own] if older is None else [stacked(own, older), own]
