"""Frames -> tables of a database, Postgres or SQLite: a row with the key of a stored one replaces it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql, sqlite

from dyformer import InvalidInput

SCHEMES = ("postgresql", "sqlite")
INSERTS = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
SECRETS = ("password", "sslpassword")
REMEDY = (
    "lists of processes and logs would show it: leave it out, and set PGPASSWORD or write it to ~/.pgpass; change the"
    " password if others may have seen this command"
)


class DatabaseFailed(InvalidInput):
    """An address of a database that cannot be used, or a database that refuses."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Rows that replace those of the same scope in a table: the ones with their key, and those they leave over.

    Without rows the scope is emptied; a missing table is not created then.
    """

    table: str
    key: Sequence[str]
    scope: Mapping[str, str | int]  # columns with the value that all rows have
    since: Mapping[str, int] = field(default_factory=dict)  # columns with the least value that the scope has
    rows: pl.DataFrame


def is_database(address: str) -> bool:
    """Whether an address is that of a database."""
    return address.partition("://")[0].partition("+")[0] in SCHEMES


def check_address(address: str) -> None:
    """Raise DatabaseFailed for an address that cannot be read or holds a password."""
    url = _url(address)
    if url.password is not None or set(SECRETS) & set(url.query):
        raise DatabaseFailed(f"{url.render_as_string().partition('?')[0]} has a password, and {REMEDY}")


def replace_rows(address: str, targets: Sequence[Target]) -> None:
    """Write all tables in one transaction, and create those that are missing.

    Lists become arrays, in SQLite JSON.

    Raises:
        DatabaseFailed: the database cannot be reached or refuses; the message has no password.
    """
    check_address(address)
    with _connected(address) as connection:
        for target in targets:
            if target.scope and sa.inspect(connection).has_table(target.table):
                _empty(connection, target)
            if not target.rows.is_empty():
                table = _table(target)
                table.create(connection, checkfirst=True)
                _insert(connection, table, target)


def _empty(connection: sa.Connection, target: Target) -> None:
    table = sa.table(target.table, *map(sa.column, [*target.scope, *target.since]))
    same = [table.c[name] == value for name, value in target.scope.items()]
    later = [table.c[name] >= value for name, value in target.since.items()]
    connection.execute(table.delete().where(*same, *later))


def _insert(connection: sa.Connection, table: sa.Table, target: Target) -> None:
    insert = INSERTS[connection.dialect.name](table)
    values = {name: insert.excluded[name] for name in target.rows.columns if name not in target.key}
    connection.execute(
        insert.on_conflict_do_update(index_elements=list(target.key), set_=values), target.rows.to_dicts()
    )


@contextmanager
def _connected(address: str) -> Iterator[sa.Connection]:
    url = _url(address)
    try:
        engine = sa.create_engine(url, hide_parameters=True, poolclass=sa.NullPool)
        with engine.begin() as connection:
            yield connection
    except ModuleNotFoundError as error:
        raise DatabaseFailed(f"{error.name} is missing: pip install 'dyformer[server]'") from error
    except exc.SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        raise DatabaseFailed(f"{url.render_as_string()}: {reason}") from error


def _url(address: str) -> sa.URL:
    try:
        return sa.make_url(address)
    except (exc.ArgumentError, ValueError):  # such as a port that is no number
        raise DatabaseFailed(
            "the address of the database cannot be read: write postgresql://USER@HOST:PORT/DATABASE"
        ) from None


def _table(target: Target) -> sa.Table:
    columns = [
        sa.Column(name, _type(dtype), primary_key=name in target.key, autoincrement=False)
        for name, dtype in target.rows.schema.items()
    ]
    return sa.Table(target.table, sa.MetaData(), *columns)


def _type(dtype: Any) -> Any:
    if isinstance(dtype, pl.List):
        return postgresql.ARRAY(_type(dtype.inner)).with_variant(sa.JSON(), "sqlite")
    if dtype == pl.Boolean:
        return sa.Boolean()
    if dtype == pl.Datetime:
        return sa.DateTime()
    if dtype.is_integer():
        return sa.BigInteger()
    return sa.Double() if dtype.is_float() else sa.Text()
