"""Each input of the forecaster has words, and the page of the documentation has all of them."""

from pathlib import Path

import pytest

from dyformer.scoring import vector_scores
from dyformer.scoring.link_features import names
from dyformer.scoring.reasons import kind_of, reason

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


def test_inputs_that_differ_in_a_half_life_a_length_or_a_rank_are_of_one_kind_and_others_are_not():
    assert {kind_of(f"log_contacts_{name}") for name in ("025", "1", "4")} == {"log_contacts"}
    assert {kind_of(f"log_contacts_{name}_back") for name in ("025", "1", "4")} == {"log_contacts_back"}
    assert kind_of("smooth_walk_1_16") == kind_of("smooth_walk_3_32") == kind_of("smooth_cosine_16")
    assert kind_of("log_walks_2") == kind_of("log_walks_3")
    kinds = ("seen", "log_sent", "mean_log_sent", "log_l3", "log_common_neighbors", "target_cosine", "target_id_cosine")
    assert len({kind_of(f"{name}_1") for name in kinds}) == len(kinds)
    assert {name for name in INPUTS if not any(each.isdigit() for each in name)} <= {kind_of(name) for name in INPUTS}


def test_what_is_no_input_has_no_reason():
    with pytest.raises(KeyError):
        reason("log_of_everything", is_large=True)
