"""Scored pairs that tests write down literally, and random ones."""

from dataclasses import replace

import numpy as np

from dyformer.evaluation.scored_pairs import ScoredPairs


def pairs_at(step: int, positive: list[int], new: list[int], score: list[float], **changes) -> ScoredPairs:
    pairs = ScoredPairs(
        method="mine",
        seed=0,
        step=step,
        family="random",
        source_P=np.arange(len(positive)),
        target_P=np.arange(len(positive)) + 1,
        positive_P=np.array(positive, dtype=bool),
        new_P=np.array(new, dtype=bool),
        score_P=np.array(score),
    )
    return replace(pairs, **changes)


def evaluated_pairs() -> list[ScoredPairs]:
    """Random scores of two methods, for two steps and two seeds."""
    generator = np.random.default_rng(0)
    columns = generator.integers(2, size=(4, 2, 30)).tolist()
    keys = [(step, seed) for step in (3, 4) for seed in (0, 1)]
    return [
        pairs_at(step, positive, new, generator.normal(size=30).tolist(), seed=seed, method=method)
        for (step, seed), (positive, new) in zip(keys, columns, strict=True)
        for method in ("one", "two")
    ]
