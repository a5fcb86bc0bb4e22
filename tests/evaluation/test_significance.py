"""The interval of a difference, on pairs that share sources and targets, as in a log."""

from dataclasses import replace

import numpy as np

from dyformer.evaluation.scored_pairs import ScoredPairs
from dyformer.evaluation.significance import paired_difference


def two_methods(seed: int, num_pairs: int = 300, num_nodes: int = 60) -> tuple[ScoredPairs, ScoredPairs]:
    """Equally good scores; each method ranks the pairs of some sources better than those of others."""
    generator = np.random.default_rng(seed)
    source_P, target_P = generator.integers(num_nodes, size=(2, num_pairs))
    positive_P = generator.random(num_pairs) < 0.5
    popularity_P = generator.normal(size=num_nodes)[target_P]  # effects in the scores of both methods

    def scores() -> np.ndarray:
        skill_P = 1 + generator.normal(size=num_nodes)[source_P]
        return popularity_P + generator.normal(size=num_pairs) + skill_P * positive_P

    first = ScoredPairs(
        method="one",
        seed=0,
        step=4,
        family="random",
        source_P=source_P,
        target_P=target_P,
        positive_P=positive_P,
        new_P=positive_P,
        score_P=scores(),
    )
    return first, replace(first, method="other", score_P=scores())


def test_the_interval_covers_the_true_difference_where_pairs_have_common_ends():
    inside, inside_of_pairs = 0, 0
    for seed in range(200):
        first, second = two_methods(seed)
        low, _, high = paired_difference(first, second, num_resamples=200, generator=np.random.default_rng(seed))
        inside += low <= 0 <= high
        one, other = (replace(pairs, source_P=np.arange(300)) for pairs in (first, second))  # independent
        low, _, high = paired_difference(one, other, num_resamples=200, generator=np.random.default_rng(seed))
        inside_of_pairs += low <= 0 <= high
    assert 180 <= inside <= 199
    assert inside_of_pairs < inside - 10
