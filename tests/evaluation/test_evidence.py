"""Numbers of past partners against sets, and their levels."""

import numpy as np
import polars as pl
from ranked_logs import growing_log
from toy_graphs import toy_graph

from dyformer.evaluation.audit.poisons import graph_of, rows_of
from dyformer.evaluation.evidence import evidence, num_partners
from dyformer.evaluation.forecasts.forecast import fit_forecast
from dyformer.experiments.methods import METHODS
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.snapshots import interactions_of


def test_partners_are_counted_once_over_all_steps():
    graph = toy_graph([(0, 1), (1, 2)], [(1, 0), (1, 3)], [(0, 1)])
    assert num_partners(graph.snapshots).tolist() == [1, 3, 1, 1]
    assert num_partners(graph.snapshots[:1]).tolist() == [1, 2, 1]


def test_levels_begin_at_their_numbers():
    found = evidence(np.array([0, 1, 2, 4, 5, 100]))
    assert found.tolist() == ["none", "one", "few", "few", "many", "many"]


def test_every_known_node_has_forecasts_with_its_level():
    log = growing_log(num_nodes=150, num_steps=7, num_rows=40)
    rows = rows_of(log)
    alone = (
        rows.filter(pl.col("step") == 3).head(1).with_columns(pl.lit(10_000).alias(end) for end in ("source", "target"))
    )
    graph = graph_of(pl.concat([rows, alone.select(rows.columns).cast(rows.schema)]), log)
    past = prepare_graph(graph, until=6, config=GraphConfig())
    known = interactions_of(past.history)
    partners: list[set[int]] = [set() for _ in range(past.history.snapshots[-1].num_nodes)]
    for source, target in zip(known.source_R.tolist(), known.target_R.tolist(), strict=True):
        if source != target:
            partners[source].add(target)
            partners[target].add(source)
    best = fit_forecast("L3", METHODS["L3"], past, seed=0).top(3)
    assert set(best["node"]) == set(range(len(partners)))
    assert (past.history.node_N == 10_000).sum() == 1
    levels = {0: "none", 1: "one", 2: "few", 3: "few", 4: "few"}
    expected = [levels.get(len(partners[node]), "many") for node in best["node"]]
    assert best["evidence"].to_list() == expected
    assert set(expected) == {"none", "one", "few", "many"}
