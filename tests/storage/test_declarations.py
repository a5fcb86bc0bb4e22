from pathlib import Path

import pytest

from storage import files
from storage.checksums import RecordDamaged, write_record
from storage.events.declarations import DeclarationConflict, declaration, declare
from storage.layout import Layout

RECORD = {"separator": "\t", "columns": {"source": 0, "target": "item"}, "bipartite": True, "window": "7d"}
FIXED = ("bipartite", "time_unit")


def test_a_log_is_known_by_its_name_later(tmp_path: Path):
    layout = Layout(str(tmp_path))
    assert declaration(layout, "mylog") is None
    declare(layout, "mylog", RECORD, fixed=FIXED)
    assert declaration(Layout(str(tmp_path)), "mylog") == RECORD
    assert declaration(layout, "other") is None


def test_options_without_effect_on_stored_rows_may_change(tmp_path: Path):
    layout = Layout(str(tmp_path))
    declare(layout, "mylog", RECORD, fixed=FIXED)
    declare(layout, "mylog", RECORD | {"window": "1mo"}, fixed=FIXED)
    found = declaration(layout, "mylog")
    assert found == RECORD | {"window": "1mo"}


def test_options_that_stored_rows_depend_on_may_not_change(tmp_path: Path):
    layout = Layout(str(tmp_path))
    declare(layout, "mylog", RECORD, fixed=FIXED)
    with pytest.raises(DeclarationConflict, match=r"with bipartite = True, but now .*with --bipartite or --one-space"):
        declare(layout, "mylog", RECORD | {"bipartite": False}, fixed=FIXED)
    assert declaration(layout, "mylog") == RECORD


def test_the_declaration_of_another_dataset_is_named(tmp_path: Path):
    layout = Layout(str(tmp_path))
    declare(layout, "mylog", RECORD)
    declare(layout, "other", RECORD | {"window": "1d"})
    files.write_bytes(layout.declaration("mylog"), files.read_bytes(layout.declaration("other")))
    with pytest.raises(RecordDamaged, match=r"is the record of dataset 'other'.*dyformer drop mylog"):
        declaration(layout, "mylog")
    assert (declaration(layout, "other") or {})["window"] == "1d"


def test_a_sound_record_of_another_kind_is_named(tmp_path: Path):
    layout = Layout(str(tmp_path))
    write_record(layout.declaration("mylog"), {"number": 1, "method": "L3"})
    with pytest.raises(RecordDamaged, match=r"is a record of another kind \(method, number\)"):
        declaration(layout, "mylog")


def test_a_declaration_of_an_earlier_version_has_no_name(tmp_path: Path):
    layout = Layout(str(tmp_path))
    write_record(layout.declaration("mylog"), RECORD)
    assert declaration(layout, "mylog") == RECORD
    declare(layout, "mylog", RECORD | {"window": "1d"})
    assert declaration(layout, "mylog") == RECORD | {"window": "1d"}
