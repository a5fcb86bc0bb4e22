"""The printed table of the protocol tgb: visibility with every value, the leaderboard beside ours."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from dyformer.evaluation.protocols.protocol import Result
from dyformer.evaluation.protocols.tgb import LEADERBOARDS, PROTOCOL, RANKS_SCHEMA
from dyformer.experiments.printed import PrintedTable
from dyformer.experiments.tables import printed_tables


def printed(dataset: str, visible: str = "strict", seeds: int = 1) -> PrintedTable:
    generator, parts = np.random.default_rng(0), []
    for method, most in (("Good", 2), ("Bad", 9)):
        for split in ("validation", "test"):
            for seed in range(seeds):
                ranks = {"rank": generator.integers(1, most, size=60).astype(float), "event": np.arange(60)}
                about = {"method": method, "seed": seed, "split": split, "visible": visible, "candidates": "all 9"}
                frame = pl.DataFrame({**ranks, "source": np.arange(60) // 3, "cpu_seconds": 1.5})
                parts.append(frame.with_columns(**{name: pl.lit(value) for name, value in about.items()}))
    ranks = pl.concat(part.select(pl.col(name).cast(kind) for name, kind in RANKS_SCHEMA.items()) for part in parts)
    log: Any = SimpleNamespace(dataset=dataset)
    tables = PROTOCOL.rows([Result((), 0, {"ranks": ranks}.__getitem__, {}.__getitem__)], log, ["Bad"])
    [table] = printed_tables(PROTOCOL.changed({"visible": visible}), tables["metrics"], dataset).values()
    return table


@pytest.mark.parametrize("visible", ["strict", "batch:200", "window:1h"])
def test_the_title_has_visibility_candidates_and_seeds(visible: str):
    title = printed("mylog", visible, seeds=2).title
    for text in (f"visible: {visible} (all events before", "all 9", "2 seeds", "60 test events", "best baseline, Bad"):
        assert text in title


def test_methods_stand_in_order_of_test_mrr_with_intervals_and_differences():
    frame = printed("mylog", seeds=2).frame
    assert frame["method"].to_list() == ["Good", "Bad"]
    assert frame["test MRR"][0] == "1.000 ± 0.0000 [1.000, 1.000]"
    assert frame["difference"][0].startswith("+0.")
    assert (frame["difference"][1], frame["validation MRR"][0]) == ("", "1.000")


def test_the_leaderboard_stands_among_the_methods_of_its_log_alone():
    table = printed("snap-wikipedia")
    _, published = LEADERBOARDS["snap-wikipedia"]
    methods = table.frame["method"].to_list()
    assert methods[:2] == ["Good", "TPNet (leaderboard)"]
    assert len(methods) == 2 + len(published)
    assert table.frame.filter(method="TPNet (leaderboard)")["validation MRR"][0] == "0.842"
    both = {"EdgeBank (unlimited)": ("0.495", "0.527"), "EdgeBank (time window)": ("0.571", "0.600")}
    for name, values in both.items():
        [row] = table.frame.filter(method=f"{name} (leaderboard)").iter_rows(named=True)
        assert (row["test MRR"], row["validation MRR"]) == values
    assert "22 January 2026" in table.sentences[0]
    assert printed("mylog").sentences == []
