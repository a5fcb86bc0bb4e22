"""Scores of labelled pairs -> metrics and the comparison of two methods."""
