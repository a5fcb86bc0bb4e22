"""Each input of the forecaster has words, and the page of the documentation has all of them."""

from pathlib import Path

import pytest

from dyformer.scoring import vector_scores
from dyformer.scoring.link_features import names
from dyformer.scoring.reasons import reason

PAGE = Path(__file__).resolve().parents[2] / "docs" / "forecasts.md"
INPUTS = {name for directed in (True, False) for name in (*names(directed), *vector_scores.names(directed))}
REASONS = [(name, reason(name, is_large=True), reason(name, is_large=False)) for name in sorted(INPUTS)]


def test_no_reason_is_missing_on_the_page():
    rows = set(PAGE.read_text().splitlines())
    assert [row for row in REASONS if "| `{}` | {} | {} |".format(*row) not in rows] == []


def test_each_reason_is_words_of_its_own():
    texts = [text for _, large, small in REASONS for text in (large, small)]
    assert len(texts) == len(set(texts))
    assert not [text for text in texts if "_" in text or "{" in text or "  " in text]


def test_ends_stand_as_the_direction_of_the_input_has_them():
    assert (
        reason("log_contacts_1", is_large=True) == "many contacts from the source to the target within about one window"
    )
    assert reason("log_contacts_1_back", is_large=False) == (
        "few contacts from the target to the source within about one window"
    )
    assert reason("log_since_sent_back", is_large=False) == "a short time since the target sent something"
    assert reason("mean_log_contacts_4", is_large=True).endswith("within about four windows, in both directions")


def test_what_is_no_input_has_no_reason():
    with pytest.raises(KeyError):
        reason("log_of_everything", is_large=True)
