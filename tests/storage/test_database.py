"""Tables of a database: equal keys replace each other, a transaction is all or nothing, no password is given away."""

import os
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import sqlalchemy as sa
from postgres_server import PASSWORD, postgres_server, programs

from storage.database import DatabaseFailed, Target, check_address, is_database, replace_rows

TABLES = ("links", "others")
ROWS = pl.DataFrame(
    {
        "dataset": ["chat", "chat"],
        "step": [7, 7],
        "id": ["a", "b'; drop table links; --"],
        "probability": [0.5, None],
        "linked_before": [True, False],
        "reasons": [["recency", "näher"], []],
    }
)


def target(rows: pl.DataFrame = ROWS, table: str = "links") -> Target:
    scope = {name: rows[name][0] for name in ("dataset", "step")}
    return Target(table=table, key=("dataset", "step", "id"), scope=scope, rows=rows)


def rows_in(address: str, table: str = "links") -> list[tuple]:
    engine = sa.create_engine(address)
    with engine.connect() as connection:
        found = connection.execute(sa.text(f"select * from {table} order by dataset, step, id"))
        rows = [tuple(row) for row in found]
    engine.dispose()
    return rows


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    if programs() is None:
        reason = "the programs of Postgres are missing: apt-get install postgresql"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with postgres_server() as address, pytest.MonkeyPatch.context() as environment:
        environment.setenv("PGPASSWORD", PASSWORD)
        yield address


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'out.db'}"
        return
    found = request.getfixturevalue("postgres")
    yield found
    engine = sa.create_engine(found)
    with engine.begin() as connection:
        connection.execute(sa.text("drop table if exists links, others"))
    engine.dispose()


def test_rows_come_back_as_they_are(address: str):
    replace_rows(address, [target()])
    lists = [["recency", "näher"], []] if address.startswith("postgresql") else ['["recency", "n\\u00e4her"]', "[]"]
    flags = [True, False] if address.startswith("postgresql") else [1, 0]
    assert rows_in(address) == [
        (*row[:4], flag, reasons) for row, flag, reasons in zip(ROWS.rows(), flags, lists, strict=True)
    ]


def test_an_export_replaces_the_rows_of_its_scope_and_no_others(address: str):
    replace_rows(address, [target(), target(ROWS.with_columns(step=pl.lit(6)))])
    replace_rows(address, [target(ROWS.with_columns(dataset=pl.lit("mail")))])
    newer = ROWS.head(1).with_columns(probability=pl.lit(0.75))  # the other pair is not forecast any more
    for _ in range(2):
        replace_rows(address, [target(newer)])
        found = rows_in(address)
        assert [row[:2] for row in found] == [("chat", 6)] * 2 + [("chat", 7)] + [("mail", 7)] * 2
        assert found[2][2:4] == ("a", 0.75)


def test_rows_since_a_value_go_and_without_rows_the_whole_scope(address: str):
    replace_rows(address, [target(ROWS.with_columns(step=pl.lit(step, pl.Int64))) for step in (6, 7, 8)])
    replace_rows(address, [target(ROWS.with_columns(dataset=pl.lit("mail"), step=pl.lit(9, pl.Int64)))])
    older = ROWS.head(1)
    since = Target(
        table="links", key=("dataset", "step", "id"), scope={"dataset": "chat"}, since={"step": 7}, rows=older
    )
    replace_rows(address, [since])
    assert [row[:2] for row in rows_in(address)] == [("chat", 6)] * 2 + [("chat", 7)] + [("mail", 9)] * 2
    nothing = pl.DataFrame()
    replace_rows(address, [Target(table=name, key=(), scope={"dataset": "chat"}, rows=nothing) for name in TABLES])
    assert [row[:2] for row in rows_in(address)] == [("mail", 9)] * 2


def test_rows_of_another_writer_with_the_same_key_are_replaced(address: str):
    """Without the removal of the scope, as for a writer that began before the other one had ended."""
    replace_rows(address, [target()])
    other = Target(
        table="links", key=("dataset", "step", "id"), scope={}, rows=ROWS.with_columns(probability=pl.lit(0.9))
    )
    replace_rows(address, [other])
    assert [row[3] for row in rows_in(address)] == [0.9, 0.9]


def test_all_tables_change_or_none(address: str):
    replace_rows(address, [target()])
    before = rows_in(address)
    broken = ROWS.with_columns(id=pl.lit(None, pl.String))
    with pytest.raises(DatabaseFailed):
        replace_rows(address, [target(ROWS.with_columns(probability=pl.lit(0.1))), target(broken, "others")])
    assert rows_in(address) == before


def test_a_wrong_password_is_named_without_it(postgres: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PGPASSWORD", "canary-of-a-typo")
    with pytest.raises(DatabaseFailed, match="password authentication failed") as error:
        replace_rows(postgres, [target()])
    assert "canary" not in str(error.value)
    assert "canary" not in repr(error.value.__cause__)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://user:canary@host/database",
        "postgresql+psycopg2://user:can%40ary@host:5432/database",
        "postgresql://user@host/database?password=canary",
    ],
)
def test_an_address_with_a_password_is_refused_and_not_repeated(address: str):
    with pytest.raises(DatabaseFailed, match="PGPASSWORD") as error:
        check_address(address)
    assert "can" not in str(error.value).replace("can be", "")
    with pytest.raises(DatabaseFailed, match="PGPASSWORD"):
        replace_rows(address, [])


def test_addresses_of_databases_are_known():
    assert all(map(is_database, ("postgresql://h/d", "postgresql+psycopg2://h/d", "sqlite:///file")))
    assert not any(map(is_database, ("s3://bucket", "folder", "/postgresql/x", "mysql://h/d")))


def test_a_server_that_cannot_be_reached_is_named():
    with pytest.raises(DatabaseFailed, match=r"postgresql://user@127\.0\.0\.1:9/database: .*refused"):
        replace_rows("postgresql://user@127.0.0.1:9/database", [target()])
    with pytest.raises(DatabaseFailed, match="cannot be read"):
        replace_rows("postgresql://:port:word@x:y/", [target()])
