"""The published logs as events, read plainly, for tests that need real graphs."""

import gzip
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

SEPARATED = {"yelp": ",", "snap-wikipedia": ","}
TIME_POSITION = {"rds": 2, "uci": 3, "yelp": 2, "ml-10m": 3, "snap-wikipedia": 2}
BIPARTITE = ("ml-10m", "snap-wikipedia")


@cache
def published_events(name: str, path: Path) -> tuple[pl.DataFrame, list[str]]:
    """Events in log order with permanent numbers 0, 1, ... by first appearance in the file, and the id behind each.

    On a bipartite log an id is preceded by its side, because the two sides may share ids.
    """
    source, target, times = [], [], []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            row = line.strip().split(SEPARATED.get(name))
            if not row or line.startswith("%") or not row[0].isdigit():
                continue
            source.append(row[0])
            target.append(row[1])
            times.append(int(row[TIME_POSITION[name]]))
    if name in BIPARTITE:
        source, target = [f"0 {node}" for node in source], [f"1 {node}" for node in target]
    ends = [end for pair in zip(source, target, strict=True) for end in pair]
    ids = list(dict.fromkeys(ends))
    number = {node: index for index, node in enumerate(ids)}
    node_S = np.array([number[end] for end in ends])
    unit = 1 if name == "yelp" else 1_000_000
    events = {"source": node_S[0::2], "target": node_S[1::2], "time": np.array(times) * unit}
    if name in BIPARTITE:
        sides = np.zeros(len(times), dtype=np.int8)
        events |= {"source_side": sides, "target_side": sides + np.int8(1)}
    return pl.DataFrame(events), ids
