"""Every kind of hostile input has its expected outcome: rows are counted with reasons, or one error names the file."""

import re
from collections import Counter

import pytest
from hostile_inputs import CASES

from dyformer.logs import compression
from dyformer.logs.compression import local_file
from dyformer.logs.events import read_events
from dyformer.logs.plan import Declared
from dyformer.logs.raw_file import LogError, ReadLimits
from dyformer.logs.sniffing import sniff_plan

CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")


@pytest.mark.parametrize("name", CASES)
def test_hostile_input_has_its_expected_outcome(name, tmp_path, monkeypatch):
    monkeypatch.setattr(compression, "FREE_BYTES", 1_000_000)
    case = CASES[name]
    (tmp_path / "hostile.log").write_bytes(case.content)
    files = [local_file(tmp_path / "hostile.log", limits=ReadLimits(**case.limits))]
    if case.error is not None:
        with pytest.raises(LogError) as caught:
            read_events(files, sniff_plan(files, Declared(**case.declared)))
        message = str(caught.value)
        assert caught.type is case.error, message
        assert [part for part in case.says if part not in message] == [], message
        assert "hostile.log" in message or case.error.__name__ == "WrongSeparator"
        assert not CONTROL.search(message)
        assert len(message) < 1000
        return
    result = read_events(files, sniff_plan(files, Declared(**case.declared)))
    assert Counter(result.quarantine["reason"]) == case.rejected
    assert (result.num_accepted, result.num_comments) == (case.accepted, case.comments)
    assert result.num_read == result.num_accepted + result.num_quarantined


def test_there_are_a_hundred_kinds_of_hostile_input():
    assert len(CASES) >= 100
