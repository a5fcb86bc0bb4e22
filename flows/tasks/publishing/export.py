"""What a dataset's champion published last, and the ledger -> files of a folder or an S3 prefix, or a database."""

import io
import json
from pathlib import Path
from typing import Literal

import polars as pl

from storage import files
from storage.artifacts.artifact import read_table
from storage.database import Target, is_database, replace_rows
from storage.drop import check_dataset
from storage.layout import Layout
from storage.published import latest, ledger

Format = Literal["parquet", "csv"]

KEYS = {
    "forecasts": ("dataset", "step", "side", "id", "rank"),
    "vectors": ("dataset", "side", "id"),
    "ledger": ("dataset", "number"),
}
"""Tables of an export, and the columns that identify a row in a database."""

SCOPES = {"forecasts": ("dataset", "step"), "vectors": ("dataset",), "ledger": ("dataset",)}
"""Columns within which the rows of an export replace all earlier ones."""


class NothingPublished(ValueError):
    """A dataset without a publication."""


def export(dataset: str, to: str, kind: Format = "parquet") -> list[str]:
    """Write the forecasts and vectors that were published last, and the ledger; return the files or tables written.

    In a folder or under an `s3://` prefix these are `dataset=NAME/forecasts.parquet`, `vectors.parquet` and
    `ledger.parquet`, or CSV, in which a list is JSON. In a database they are the tables `dyformer_forecasts`,
    `dyformer_vectors` and `dyformer_ledger`, which hold all datasets: rows of the same key are replaced, forecasts of
    other steps stay, and all tables change in one transaction.

    Args:
        dataset: name of the log.
        to: a folder, `s3://bucket/prefix`, `postgresql://user@host/database` or `sqlite:///file`, without a password.
        kind: of the files.

    Raises:
        NothingPublished: there is no publication.
        DatabaseFailed: the database cannot be reached or refuses, or its address has a password.
    """
    layout = Layout.from_environment()
    check_dataset(layout, dataset)
    tables = {name: read_table(address, name) for name, address in latest(layout, dataset).items()}
    if not tables:
        raise NothingPublished(f"{dataset} has published nothing yet: run `dyformer run {dataset}` first")
    tables["ledger"] = ledger(layout, dataset)
    if is_database(to):
        rows = {name: _for_database(table, dataset) for name, table in tables.items()}
        targets = [
            Target(table=f"dyformer_{name}", key=KEYS[name], scope=SCOPES[name], rows=table)
            for name, table in rows.items()
        ]
        replace_rows(to, targets)
        return [target.table for target in targets]
    folder = to.rstrip("/") if files.is_remote(to) else str(Path(to).absolute())
    written = []
    for name, table in tables.items():
        written.append(f"{folder}/dataset={dataset}/{name}.{kind}")
        files.write_bytes(written[-1], _encoded(table, kind))
    return written


def _for_database(table: pl.DataFrame, dataset: str) -> pl.DataFrame:
    """Give ids as texts, because the table of a database holds those of all datasets."""
    ids = [name for name in ("id", "partner_id") if name in table.columns]
    named = pl.lit(dataset).alias("dataset")
    return table.select(named, pl.exclude("dataset")).with_columns(pl.col(ids).cast(pl.String))


def _encoded(table: pl.DataFrame, kind: Format) -> bytes:
    if kind == "csv":
        lists = [name for name, dtype in table.schema.items() if isinstance(dtype, pl.List)]
        texts = [pl.Series(name, [json.dumps(value) for value in table[name].to_list()]) for name in lists]
        return table.with_columns(*texts).write_csv().encode()
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()
