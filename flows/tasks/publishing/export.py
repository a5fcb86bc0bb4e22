"""What a dataset's champion published last, and the ledger -> files of a folder or an S3 prefix, or a database."""

import io
import json
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from dyformer import InvalidInput
from storage.bytes import files
from storage.champions import PUBLISHED_KINDS, check_one_space, latest_tables, ledger
from storage.database import DatabaseFailed, Target, is_database, replace_rows
from storage.events.table import check_dataset
from storage.layout import Layout
from storage.queries import with_timestamps

Format = Literal["parquet", "csv"]

KEYS = {
    "forecasts": ("dataset", "step", "side", "id", "rank"),
    "vectors": ("dataset", "side", "id"),
    "ledger": ("dataset", "number"),
}
"""Tables of an export, and the columns that identify a row in a database."""


def export(dataset: str, to: str, kind: Format | None = None) -> list[str]:
    """Write the forecasts and vectors that were published last, and the ledger; return the files or tables written.

    Each row has `published_at`, and a forecast has `valid_from`, `valid_to` and `method`; all times are in UTC.

    In a folder or under an `s3://` prefix these are `dataset=NAME/forecasts.parquet`, `vectors.parquet` and
    `ledger.parquet`, or CSV, in which a list is JSON. In a database they are the tables `dyformer_forecasts`,
    `dyformer_vectors` and `dyformer_ledger`, which hold all datasets, and all change in one transaction. Forecasts of
    earlier steps stay there. What the newest publication lacks goes: vectors, and after a rollback later forecasts.
    In a folder, so do the files of an export in the other format.

    Args:
        dataset: name of the log.
        to: a folder, `s3://bucket/prefix`, `postgresql://user@host/database` or `sqlite:///file`, without a password.
        kind: of the files, by default "parquet".

    Raises:
        ValueError: there is no publication, or a database is to have a kind of files.
        MixedSpaces: the vectors are of several spaces.
        DatabaseFailed: the database cannot be reached or refuses, or its address has a password or is of another kind.
    """
    _check(to)
    if is_database(to) and kind is not None:
        raise InvalidInput(f"a database has no files of a format: leave out --format {kind}, or name a folder")
    kind = kind or "parquet"
    layout = Layout.from_environment()
    check_dataset(layout, dataset)
    newest_tables = latest_tables(layout, dataset)
    tables = {name: newest_tables[name][1].collect() for name in PUBLISHED_KINDS if name in newest_tables}
    if not tables:
        raise InvalidInput(f"{dataset} has published nothing yet: run `dyformer run {dataset}` first")
    if "vectors" in tables:
        check_one_space(tables["vectors"], f"vectors of {dataset}")
    tables["ledger"] = with_timestamps(layout, dataset, ledger(layout, dataset).lazy()).collect()
    if is_database(to):
        replace_rows(to, [_target(name, tables.get(name, pl.DataFrame()), dataset, tables["ledger"]) for name in KEYS])
        return [f"dyformer_{name}" for name in tables]
    folder = to.rstrip("/") if files.is_remote(to) else str(Path(to).absolute())
    contents = {f"{folder}/dataset={dataset}/{name}.{kind}": _encoded(table, kind) for name, table in tables.items()}
    files.write_all(contents)  # forecasts, vectors and ledger are of one publication; the ledger comes last
    for name, earlier in product(KEYS, get_args(Format)):  # of an earlier publication, or in the other format
        if (address := f"{folder}/dataset={dataset}/{name}.{earlier}") not in contents:
            files.remove(address)
    return list(contents)


def _check(to: str) -> None:
    """Refuse an address of another kind, which would be taken for a folder and printed, with any password in it."""
    if not to.strip():
        raise DatabaseFailed("--to is empty: expected a folder, such as ./exports, or an address")
    if "://" in to and not files.is_remote(to) and not is_database(to):
        raise DatabaseFailed(
            "--to is an address of another kind: expected a folder, s3://bucket/prefix, postgresql://USER@HOST/DATABASE"
            " or sqlite:///FILE; if it has a password that others may have seen, change that"
        )
    if not is_database(to) and to.rstrip("/").endswith((".csv", ".parquet")):
        raise DatabaseFailed(
            f"--to {to} is the name of a file: expected a folder, which gets a file each of forecasts, vectors and"
            " ledger; --format chooses their kind"
        )


def _target(name: str, table: pl.DataFrame, dataset: str, published: pl.DataFrame) -> Target:
    """Rows of one table, which replace all of the dataset; forecasts only those since the step published last."""
    since = {"step": published["step"][-1]} if name == "forecasts" else {}
    rows = table if table.is_empty() else _for_database(table, dataset)
    return Target(table=f"dyformer_{name}", key=KEYS[name], scope={"dataset": dataset}, since=since, rows=rows)


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
