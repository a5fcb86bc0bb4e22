"""Name of a dataset -> what its champions have published, and what came of it."""

from collections.abc import Mapping

import polars as pl

from storage import files
from storage.artifacts.artifact import MANIFEST, names, read_table, scan_table
from storage.layout import Layout

PUBLICATIONS, OUTCOMES = "publications", "outcomes"
PUBLISHED_KINDS = ("forecasts", "vectors")
PUBLISHED_TABLES = {
    "forecasts": ("forecasts", "forecasts"),
    "forecasts_new": ("forecasts", "new"),
    "vectors": ("vectors", "vectors"),
}
"""Tables of a publication: the kind of artifact, and the name of the table in it."""

PUBLICATION_SCHEMA = {
    "number": pl.Int64,  # counts the publications of a dataset
    "champion": pl.Int64,  # number of the champion
    "method": pl.String,
    "step": pl.Int64,  # that is forecast
    "start_time": pl.Int64,  # at which this step begins
    "forecasts": pl.String,  # addresses below the root of the store
    "vectors": pl.String,
    "space_id": pl.String,  # of the vectors
    "agreement_before": pl.Float64,  # mean cosine of a node with itself in the publication before
    "agreement": pl.Float64,  # the same of vectors that were rotated into one space
    "agreement_of_others": pl.Float64,  # mean cosine of these with the other nodes
    "published_at": pl.Datetime("us"),  # in UTC
    "valid_from": pl.Datetime("us"),  # the forecasts hold from this time
    "valid_to": pl.Datetime("us"),  # until this one; null where the windows have no end in time
}
OUTCOME_SCHEMA = {
    "number": pl.Int64,  # of the publication
    "slice": pl.String,  # all, new, repeat
    "num_pairs": pl.Int64,
    "num_came": pl.Int64,
    "precision_at_1": pl.Float64,
    "precision_at_2": pl.Float64,
    "precision_at_5": pl.Float64,
    "precision_at_10": pl.Float64,
    "precision_at_10_low": pl.Float64,
    "precision_at_10_high": pl.Float64,
    "probability": pl.Float64,  # mean of the forecast pairs
    "calibration_error": pl.Float64,
    "brier": pl.Float64,
}


class MixedSpaces(ValueError):
    """Vectors of several spaces, whose products and cosines mean nothing."""


def check_one_space(vectors: pl.DataFrame, origin: str) -> str:
    """Return the id of the space of a table of vectors; raises MixedSpaces if they are of several, or of none."""
    ids = vectors["space_id"].unique().to_list() if "space_id" in vectors.columns else []
    if len(ids) != 1 or ids[0] is None:
        found = ", ".join(sorted(map(str, ids))) or "none"
        raise MixedSpaces(
            f"{origin}: expected vectors of one space, found {found}: compare those of one space_id alone"
        )
    return ids[0]


def publications(layout: Layout, dataset: str) -> pl.DataFrame:
    """All publications of a dataset in their order, with the columns of PUBLICATION_SCHEMA."""
    return _read(layout.artifacts("publications", dataset), PUBLICATIONS, PUBLICATION_SCHEMA)


def outcomes(layout: Layout, dataset: str) -> pl.DataFrame:
    """All outcomes of a dataset, at most one row a publication and slice, with the columns of OUTCOME_SCHEMA."""
    return _read(layout.artifacts("outcomes", dataset), OUTCOMES, OUTCOME_SCHEMA)


def ledger(layout: Layout, dataset: str) -> pl.DataFrame:
    """Every publication with its outcome over all pairs, which is null where its step is not complete."""
    found = outcomes(layout, dataset).filter(slice="all").drop("slice")
    return publications(layout, dataset).join(found, on="number", how="left", maintain_order="left")


def complete_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of a ledger whose step is complete: of each step the newest publication, in the order of the steps."""
    return rows.filter(pl.col("num_pairs").is_not_null()).unique("start_time", keep="last").sort("start_time")


def latest(layout: Layout, dataset: str) -> dict[str, str]:
    """Addresses of the forecasts and of the vectors that were published last; those that there are."""
    newest = publications(layout, dataset).tail(1).to_dicts()
    return {kind: layout.absolute(row[kind]) for row in newest for kind in PUBLISHED_KINDS if row[kind] is not None}


def latest_tables(layout: Layout, dataset: str) -> dict[str, tuple[str, pl.LazyFrame]]:
    """Address and rows of each of PUBLISHED_TABLES of the newest publication, with `published_at`.

    A table that the publication lacks is left out.
    """
    found = {}
    for row in publications(layout, dataset).tail(1).iter_rows(named=True):
        at = pl.lit(row["published_at"], pl.Datetime("us")).alias("published_at")
        for name, (kind, table) in PUBLISHED_TABLES.items():
            address = None if row[kind] is None else layout.absolute(row[kind])
            if address is not None and f"{table}.parquet" in names(address):
                found[name] = address, scan_table(address, table).with_columns(at)
    return found


def _read(folder: str, name: str, schema: Mapping[str, type[pl.DataType] | pl.DataType]) -> pl.DataFrame:
    addresses = [location.removesuffix(f"/{MANIFEST}") for location in files.find(folder, MANIFEST)]
    tables = files.read_each(lambda address: read_table(address, name), addresses)
    # Of an earlier version some columns are missing.
    return pl.concat([pl.DataFrame(schema=schema), *tables], how="diagonal").sort("number", maintain_order=True)
