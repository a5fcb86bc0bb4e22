"""A sample of the sweep over damaged files: `make test-faults` runs all of it."""

import os
from pathlib import Path

import pytest
from damage import failures, prepared_store, results, trials

NUM_TRIES = 40


def test_damage_is_named_or_without_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DYFORMER_STORAGE", "")  # restored at the end, because the sweep sets it
    seed = int.from_bytes(os.urandom(4))
    (tmp_path / "made").mkdir()
    store = prepared_store(tmp_path / "made")
    expected = results(store)
    assert not any(isinstance(value, Exception) for value in expected.values()), expected
    for number, trial in enumerate(trials(store, NUM_TRIES, seed)):
        wrong = failures(store, expected, trial, tmp_path)
        repeat = f"python tests/faults/damage.py --tries {NUM_TRIES} --seed {seed} --only {number}"
        assert not wrong, f"{trial}: {wrong}; repeat it: {repeat}"
