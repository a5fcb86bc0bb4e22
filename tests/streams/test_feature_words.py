"""Claims about reasons in words: every feature has its words, half-lives are named, and values have their units."""

import pytest

from dyformer.streams.event_state import FEATURES
from dyformer.streams.feature_words import STEMS, WORDS, duration, in_words, stem_of


def test_every_feature_has_words_of_its_own():
    sentences = [in_words(feature, 2.0) for feature in FEATURES]
    assert len(set(sentences)) == len(FEATURES)
    assert set(STEMS) == set(WORDS), "words of a feature that does not exist"
    assert not any("{" in sentence for sentence in sentences)


def test_a_feature_without_words_is_an_error():
    with pytest.raises(KeyError, match="daily_h"):
        in_words("daily_0", 1.0)


def test_a_half_life_is_named_and_its_four_have_the_same_words():
    assert in_words("contacts_1", 2.34) == "contacts with the source lately (2 hours): 2.3"
    assert in_words("contacts_0", 12.4, (90.0, 1.0, 1.0, 1.0)) == "contacts with the source lately (2 minutes): 12"
    assert stem_of("contacts_0") == stem_of("contacts_3") != stem_of("contacts")


@pytest.mark.parametrize(
    ("feature", "value", "words"),
    [
        ("since", 7_260.0, "their newest contact was 2 hours ago"),
        ("is_last", 1.0, "the last partner of the source: yes"),
        ("is_last", 0.0, "the last partner of the source: no"),
        (
            "reply_after",
            7_260.0,
            "the target's newest contact with the source came 2 hours later than the source's with it",
        ),
        (
            "reply_after",
            -60.0,
            "the target's newest contact with the source came 1 minute earlier than the source's with it",
        ),
        ("move_fraction_2", 0.256, "of all moves from the last partner lately (1 day) to the target: 26%"),
        ("contacts_3", 5.2e-06, "contacts with the source lately (7 days): nearly 0"),
        ("contacts_3", 0.0, "contacts with the source lately (7 days): 0"),
        ("contacts", 1_234.0, "contacts with the source so far: 1,234"),
        ("cosine_max", 0.0421, "greatest likeness of the target's sources to those of a newest partner, 0 to 1: 0.042"),
    ],
)
def test_values_have_their_units(feature, value, words):
    assert in_words(feature, value) == words


def test_a_log_with_steps_has_no_seconds():
    assert in_words("since", 1.0, has_steps=True) == "their newest contact was 1 step ago"
    assert in_words("target_h".replace("_h", "_0"), 1.0, has_steps=True).startswith(
        "events at the target lately (600 s"
    )


def test_durations_have_the_largest_unit_that_says_enough():
    written = {0.4: "less than a second", 1: "1 second", 59: "59 seconds", 60: "1 minute", 90: "2 minutes"}
    written |= {86_400: "1 day", 604_800: "7 days", 31_557_600: "1 year", 1e9: "32 years"}
    assert {seconds: duration(seconds) for seconds in written} == written
