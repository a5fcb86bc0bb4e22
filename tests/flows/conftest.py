"""Fixtures that several tests of whole runs share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def few_trees() -> Iterator[None]:
    """Fit few trees, because each evaluation of the tests fits the classifier and the forecaster again."""
    from dyformer.baselines.classifiers import BoostedTrees
    from dyformer.experiments.methods import METHODS
    from dyformer.scoring import heads

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "Boosted trees on pair features", BoostedTrees(num_rounds=20, max_leaves=(4,)))
        patch.setattr(heads, "NUM_ROUNDS", 30)
        yield
