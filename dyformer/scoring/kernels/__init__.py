"""Compiled loops behind scores of pairs; each of them has a plain yardstick in the tests."""
