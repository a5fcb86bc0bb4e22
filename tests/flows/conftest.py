"""Fixtures that several tests of whole runs share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def few_trees() -> Iterator[None]:
    """Evaluate a small classifier of trees, because its default chooses among several and each evaluation fits it."""
    from dyformer.baselines.classifiers import BoostedTrees
    from dyformer.experiments.methods import METHODS

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "Boosted trees on pair features", BoostedTrees(num_rounds=20, max_leaves=(4,)))
        yield
