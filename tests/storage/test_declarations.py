from pathlib import Path

import pytest

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
