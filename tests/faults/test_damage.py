"""A sample of the sweep over damaged files: `make test-faults` runs all of it."""

import os
from pathlib import Path

import pytest
from damage import failures, opened, prepared_store, results, trials

NUM_TRIES = 40


def test_damage_is_named_or_without_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("DYFORMER_STORAGE", "DYFORMER_STATE"):
        monkeypatch.setenv(name, "")  # restored at the end, because the sweep sets it
    seed = int.from_bytes(os.urandom(4))
    (tmp_path / "made").mkdir()
    made = opened(str(tmp_path / "made" / "store"))
    prepared_store(tmp_path / "made", made)
    expected = results(made)
    assert not any(isinstance(value, Exception) for value in expected.values()), expected
    for number, trial in enumerate(trials(made, NUM_TRIES, seed)):
        wrong = failures(Path(made.root), expected, trial, tmp_path)
        repeat = f"python tests/faults/damage.py --tries {NUM_TRIES} --seed {seed} --only {number}"
        assert not wrong, f"{trial}: {wrong}; repeat it: {repeat}"
