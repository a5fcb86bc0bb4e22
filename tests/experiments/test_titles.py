"""Titles of methods, known before any method is imported."""

import pytest

from dyformer.experiments.methods import EVENT_METHODS, METHODS, VARIATIONS
from dyformer.experiments.titles import known_titles, split_names, written_titles


def test_the_titles_read_from_the_source_are_those_of_the_methods():
    assert written_titles() == [*METHODS, *VARIATIONS, *EVENT_METHODS]


def test_a_title_that_a_program_adds_is_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(METHODS, "Toy", METHODS["L3"])
    assert known_titles() == [*METHODS, *VARIATIONS, *EVENT_METHODS]
    assert "Toy" in known_titles()


def test_a_title_with_commas_stays_whole_in_a_list():
    given = ["Published DyFormer, 1 hop, 10 % noise,l3,published dyformer, 4 layers", "dysat,Published DyFormer, 1 hop"]
    assert split_names(given) == [
        "Published DyFormer, 1 hop, 10 % noise",
        "l3",
        "published dyformer, 4 layers",
        "dysat",
        "Published DyFormer, 1 hop",
    ]
