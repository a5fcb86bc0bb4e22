"""Claims about the page of event reasons: it lists each feature that may be one."""

from pathlib import Path

from dyformer.scoring.event_reasons import COMMON
from dyformer.streams.feature_words import STEMS, WORDS

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


def test_each_feature_that_may_be_a_reason_is_on_the_page():
    lines = PAGE.read_text().splitlines()
    listed = lines[lines.index("## The reasons") :]
    for name in {stem for number, stem in enumerate(STEMS) if number not in COMMON}:
        words = WORDS[name][1].format("...", half_life="half-life")
        assert f"| `{name}` | {words} |" in listed
    assert sum(line.startswith("| `") for line in listed) == len(set(STEMS)) - len({STEMS[f] for f in COMMON})
