"""Claims about event reasons: those of a row are what a stable sort gives, and the page lists all that may be one."""

from pathlib import Path

import numpy as np

from dyformer.scoring.event_reasons import COMMON, NUM_REASONS, STEM_F, VALUE_F, strongest
from dyformer.streams.event_state import FEATURES, INDEX
from dyformer.streams.feature_words import STEMS, WORDS

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


def test_each_feature_that_may_be_a_reason_is_on_the_page():
    lines = PAGE.read_text().splitlines()
    listed = lines[lines.index("## The reasons") :]
    for name in {stem for number, stem in enumerate(STEMS) if number not in COMMON}:
        words = WORDS[name][1].format("...", half_life="half-life")
        assert f"| `{name}` | {words} |" in listed
    assert sum(line.startswith("| `") for line in listed) == len(set(STEMS)) - len({STEMS[f] for f in COMMON})


def sorted_features(raised_F, row_F):
    """Name one feature of each stem by a stable sort, the one that raises the row most."""
    chosen = {}
    for feature in np.argsort(-raised_F, kind="stable").tolist():
        has_value = not np.isnan(row_F[INDEX[FEATURES[feature].removeprefix("rank_")]])
        if raised_F[feature] > 0 and has_value and feature not in COMMON:
            chosen.setdefault(STEMS[feature], feature)
    return (list(chosen.values()) + [-1] * NUM_REASONS)[:NUM_REASONS]


def test_the_strongest_features_are_those_of_a_stable_sort():
    generator = np.random.default_rng(0)
    raised_RF = generator.integers(-9, 4, size=(60, len(STEMS))).astype(float)  # many equal ones
    raised_RF[20:40] = np.where(generator.random((20, len(STEMS))) < 0.02, raised_RF[20:40], 0)  # few or none above 0
    row_RF = np.where(generator.random(raised_RF.shape) < 0.2, np.nan, 1).astype(np.float32)
    rank_F = [feature for feature, name in enumerate(FEATURES) if name.startswith("rank_")]
    row_RF[:, rank_F] = 0  # a rank is a number where all candidates are equal, because none has a value
    raised_RF[50:, rank_F] = generator.integers(1, 9, size=(10, len(rank_F)))
    row_RF[50:, [INDEX[FEATURES[feature].removeprefix("rank_")] for feature in rank_F[::2]]] = np.nan
    expected_RK = [sorted_features(*both) for both in zip(raised_RF, row_RF, strict=True)]
    assert strongest(raised_RF, row_RF, STEM_F, VALUE_F).tolist() == expected_RK
    assert any(-1 in features for features in expected_RK)
