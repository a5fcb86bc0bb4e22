"""SQL over the store: a view for every artifact, checks of snapshot tables, candidate pairs for forecasts.

DuckDB reads only Polars frames, so an S3 store needs no DuckDB extension. Its own access to files is switched off,
so a statement can read only the views and write nothing.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import duckdb
import polars as pl

from storage import files
from storage.artifacts.artifact import MANIFEST, names, scan_table
from storage.artifacts.unfinished import without_manifest
from storage.checksums import Damaged, link_in
from storage.events.table import ingested_datasets, node_dictionary, scan_events, scan_quarantine
from storage.layout import Layout
from storage.published import PUBLISHED_KINDS, check_one_space, latest, ledger

KEY_TYPES = {"dataset": pl.String, "version": pl.Int64, "until": pl.Int64, "settings": pl.String, "seed": pl.Int64}

UNREAD = "create view {name} as select error('write the name of the view {name} in the statement') as unread"


class QueryFailed(ValueError):
    """A statement is wrong, or names a view that does not exist."""


OnDamage = Callable[[Damaged], None]
"""Called for each damaged part of the store, which the views then lack."""


def stop(damage: Damaged) -> None:
    """Raise the error."""
    raise damage


def query(layout: Layout, statement: str, on_damage: OnDamage = stop) -> pl.DataFrame:
    """Rows of one statement over the store's views; QueryFailed lists the views.

    The checksums of all files behind the views that the statement names are verified first.
    """
    with open_views(layout, statement, on_damage) as connection:
        views = ", ".join(view_names(connection)) or "none yet: run `dyformer ingest` first"
        try:
            result = connection.sql(statement)
            rows = result.pl() if result is not None else None
        except duckdb.CatalogException as error:
            missing = re.search(r"Table with name (\S+) does not exist", str(error))
            if missing is None:
                raise QueryFailed(f"{error}\nviews: {views}") from error
            raise QueryFailed(
                f"there is no view {missing[1]!r}\nviews: {views}\n"
                "`dyformer run DATASET` adds views such as forecasts and vectors"
            ) from error
        except duckdb.Error as error:
            raise QueryFailed(f"{error}\nviews: {views}") from error
    if rows is None:
        raise QueryFailed(f"{statement!r} returns no rows: write a select\nviews: {views}")
    return rows


def view_names(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Names of the views of a connection, sorted."""
    rows = connection.execute("select view_name from duckdb_views() where not internal order by 1").fetchall()
    return [name for (name,) in rows]


def open_views(layout: Layout, statement: str | None = None, on_damage: OnDamage = stop) -> duckdb.DuckDBPyConnection:
    """A connection with a view for each kind of table.

    `events`, `quarantine` and `nodes` have the column `dataset`. A table of an artifact has the keys of its address
    (dataset, version, until, settings, seed). Its view is named by its kind, or by kind and name where they differ:
    `pagerank`, `vectors`, `forecasts`, `snapshots_edges`, `snapshots_steps`, `snapshots_nodes`. Of what the champions
    of all datasets have published, `latest_forecasts` and `latest_vectors` have the newest, and `ledger` has a row for
    each publication with what came of it (`precision_at_10`, `calibration_error`, ...), null as long as its step is not
    complete.

    With a statement, only the views whose names it contains can be read, because every file that is read is verified.
    """
    connection = duckdb.connect()
    connection.execute("set enable_external_access = false")  # DuckDB refuses to switch it on again
    for name, frame in _frames(layout, statement, on_damage).items():
        if frame is None:
            connection.execute(UNREAD.format(name=name))
        else:
            connection.register(name, frame)
    return connection


def _frames(layout: Layout, statement: str | None, on_damage: OnDamage) -> dict[str, pl.LazyFrame | None]:
    """Give the rows of each view, None for a view that the statement does not name."""
    parts: dict[str, list[pl.LazyFrame]] = {}

    def wanted(view: str) -> bool:
        parts.setdefault(view, [])
        return statement is None or re.search(rf"\b{view}\b", statement, re.IGNORECASE) is not None

    for name in ingested_datasets(layout):
        with _damage_reported(on_damage):
            _add_events(layout, name, parts, wanted)
            _add_published(layout, name, parts, wanted)
    for folder in layout.artifact_folders:
        found = files.find(folder)
        for link in files.links(folder):
            on_damage(Damaged(link, str(link_in(link)), "remove it, and the next run makes the artifact again"))
        for address in without_manifest(found):
            on_damage(Damaged(address, f"has files but no {MANIFEST}", "`dyformer verify --repair` removes it"))
        for location in found:
            if location.endswith(f"/{MANIFEST}"):
                with _damage_reported(on_damage):
                    _add_artifact(layout, location.removesuffix(f"/{MANIFEST}"), parts, wanted)
    return {name: pl.concat(frames, how="diagonal_relaxed") if frames else None for name, frames in parts.items()}


@contextmanager
def _damage_reported(on_damage: OnDamage) -> Iterator[None]:
    try:
        yield
    except Damaged as error:
        on_damage(error)


def _add_events(
    layout: Layout, dataset: str, parts: dict[str, list[pl.LazyFrame]], wanted: Callable[[str], bool]
) -> None:
    key = pl.lit(dataset).alias("dataset")
    views = {
        "events": lambda: scan_events(layout, dataset),
        "quarantine": lambda: scan_quarantine(layout, dataset),
        "nodes": lambda: node_dictionary(layout, dataset).lazy(),
    }
    for view, rows in views.items():
        if wanted(view):
            parts[view].append(rows().with_columns(key))


def _add_artifact(
    layout: Layout, address: str, parts: dict[str, list[pl.LazyFrame]], wanted: Callable[[str], bool]
) -> None:
    kind, _ = layout.describe(address)
    for file in names(address):
        name = file.removesuffix(".parquet")
        view = kind if name == kind else f"{kind}_{name}"
        if name != file and wanted(view):
            parts[view].append(_with_keys(layout, address, name))


def _add_published(
    layout: Layout, dataset: str, parts: dict[str, list[pl.LazyFrame]], wanted: Callable[[str], bool]
) -> None:
    """Add what the champions of a dataset publish, if they have published something."""
    if not files.children(layout.publications(dataset)):
        return
    if wanted("ledger"):
        parts["ledger"].append(ledger(layout, dataset).lazy().with_columns(pl.lit(dataset).alias("dataset")))
    for kind in PUBLISHED_KINDS:
        if wanted(f"latest_{kind}"):
            addresses = [address for name, address in latest(layout, dataset).items() if name == kind]
            if kind == "vectors":
                for address in addresses:
                    check_one_space(scan_table(address, kind).select("space_id").collect(), address)
            parts[f"latest_{kind}"] += [_with_keys(layout, address, kind) for address in addresses]


def _with_keys(layout: Layout, address: str, name: str) -> pl.LazyFrame:
    """Give a table of an artifact with the keys of its address."""
    _, keys = layout.describe(address)
    return scan_table(address, name).with_columns(
        pl.lit(value).cast(KEY_TYPES[key]).alias(key) for key, value in keys.items()
    )


SNAPSHOT_CHECKS = {
    "an edge has source < target": "select count(*) from edges where source >= target",
    "an edge is listed once in a step": (
        "select count(*) from (select 1 from edges group by step, source, target having count(*) > 1)"
    ),
    "a weight is at least 1 and finite": "select count(*) from edges where not (weight >= 1 and isfinite(weight))",
    "an edge's nodes are known at its step": (
        "select count(*) from edges left join steps using (step) "
        "where steps.step is null or source < 0 or target >= num_nodes"
    ),
    "steps count from 1 without a gap": (
        "select count(*) from (select step, row_number() over (order by step) as n from steps) where step <> n"
    ),
    # Neighbouring windows of equal count may share a time, so only their order is checked.
    "windows follow each other": (
        "select count(*) from steps a left join steps b on b.step = a.step + 1 "
        "where b.start_time < a.start_time or b.end_time < a.end_time or a.start_time > a.end_time"
    ),
    "nodes never become fewer": (
        "select count(*) from steps a join steps b on b.step = a.step + 1 where b.num_nodes < a.num_nodes"
    ),
    "interactions are the edges' weights and the self-loops": (
        "select count(*) from steps "
        "left join (select step, sum(weight) as weight from edges group by step) using (step) "
        "where num_interactions <> coalesce(weight, 0) + num_self_loops"
    ),
    "the nodes are those known at the last step": (
        "select abs(count(*) - (select max(num_nodes) from steps)) from nodes"
    ),
}


def snapshot_faults(snapshot_tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """Violated checks of the tables `edges`, `steps` and `nodes`, with the number of rows; empty for sound tables."""
    with duckdb.connect() as connection:
        for name in ("edges", "steps", "nodes"):
            connection.register(name, snapshot_tables[name])
        return faults_in(connection)


def faults_in(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Check the tables of a connection as `snapshot_faults` does."""
    found = {claim: _number(connection, query) for claim, query in SNAPSHOT_CHECKS.items()}
    return [f"violated: {claim} ({num_rows} rows)" for claim, num_rows in found.items() if num_rows]


CANDIDATE_PARTS = """
create table neighbors as
select source as node, target as neighbor from edges union select target, source from edges;

create table popularity as select neighbor as node, count(*) as degree from neighbors group by 1;

create table bridges as
select n.node, n.neighbor from neighbors n join popularity p on p.node = n.neighbor
qualify row_number() over (partition by n.node order by p.degree, n.neighbor) <= {num_bridges};

create table popular as
select n.node, n.neighbor, p.degree from neighbors n join popularity p on p.node = n.neighbor
qualify row_number() over (partition by n.node order by p.degree desc, n.neighbor) <= {num_popular};
"""
LONGER_BRIDGES = """
create or replace table bridges as
with longer as (
    select a.node, b.neighbor, count(*) as num_ways from bridges a join bridges b on b.node = a.neighbor
    where a.node <> b.neighbor group by a.node, b.neighbor
)
select node, neighbor from longer
qualify row_number() over (partition by node order by num_ways desc, neighbor) <= {num_bridges};
"""
CANDIDATES = """
with pairs as (
    select node, neighbor as partner, score, 0 as degree from pagerank semi join queries using (node)
    union all
    select bridges.node, popular.neighbor, 0, popular.degree
    from bridges semi join queries using (node) join popular on popular.node = bridges.neighbor
),
fresh as (
    select node, partner, max(score) as score, max(degree) as degree
    from pairs anti join neighbors known on known.node = pairs.node and known.neighbor = pairs.partner
    where node <> partner
    group by all
)
select node, partner from fresh
qualify row_number() over (partition by node order by score desc, degree desc, partner) <= $num_candidates
order by node, partner
"""
BLOCK_NODES = 20_000  # the joined pairs of this many nodes take some hundred megabytes


def candidates(
    edges: pl.DataFrame,
    pagerank: pl.DataFrame,
    *,
    num_candidates: int = 100,
    num_bridges: int = 10,
    num_popular: int = 20,
    bipartite: bool = False,
    nodes: pl.Series | None = None,
) -> pl.DataFrame:
    """Pairs to score on a graph too large to score all pairs: rows node, partner, sorted.

    A partner comes from the node's PageRank table, or is one of the `num_popular` most popular neighbours of one of
    its `num_bridges` least popular neighbours (the Adamic-Adar index weighs these most). Pairs with an
    edge are left out. A node has at most `num_candidates` partners, the best by score, then by popularity.

    Args:
        edges: all edges as of a step: source, target (either order; repeats allowed).
        pagerank: rows node, neighbor, score.
        num_candidates: partners for each node.
        num_bridges: neighbours of each node through which partners two edges away are found.
        num_popular: partners for each bridge.
        bipartite: find partners three edges away, which are on the other side.
        nodes: nodes whose partners are wanted; all by default.
    """
    with duckdb.connect() as connection:
        connection.register("edges", edges)
        connection.register("pagerank", pagerank)
        connection.execute(CANDIDATE_PARTS.format(num_bridges=int(num_bridges), num_popular=int(num_popular)))
        if bipartite:
            connection.execute(LONGER_BRIDGES.format(num_bridges=int(num_bridges)))
        everyone = "select node from bridges union select node from pagerank"
        wanted = (connection.sql(everyone).pl()["node"] if nodes is None else nodes.unique()).sort().to_frame("node")
        blocks = []
        for first in range(0, max(wanted.height, 1), BLOCK_NODES):
            connection.register("queries", wanted.slice(first, BLOCK_NODES))
            blocks.append(connection.sql(CANDIDATES, params={"num_candidates": num_candidates}).pl())
    return pl.concat(blocks)


def _number(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    (row,) = connection.execute(query).fetchall()
    return int(row[0] or 0)
