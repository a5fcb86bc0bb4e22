"""Titles of methods, known before any method is imported."""

from dyformer.experiments.methods import METHODS
from dyformer.experiments.titles import known_titles


def test_the_titles_read_from_the_source_are_those_of_the_methods():
    assert known_titles() == list(METHODS)
