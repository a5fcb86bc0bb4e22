"""Addresses of MLflow leave the program without user and password."""

import pytest

from storage.database import DatabaseFailed, check_address
from storage.tracking.addresses import without_password
from storage.tracking.mlflow_client import reason
from storage.tracking.pages import runs_page


@pytest.mark.parametrize(
    ("address", "left"),
    [
        ("http://me:canary@mlflow:5000", "http://mlflow:5000"),
        ("https://canary@mlflow/a/b", "https://mlflow/a/b"),
        ("http://me:can@ry@mlflow", "http://mlflow"),
        ("postgresql+psycopg2://me:canary@host:5432/db", "postgresql+psycopg2://host:5432/db"),
        ("postgresql://me:can/ary@host/db", "postgresql://host/db"),
        ("postgresql://host/db?password=canary&sslmode=require", "postgresql://host/db?password=***&sslmode=require"),
        ("http://127.0.0.1:5000/user@home", "http://127.0.0.1:5000/user@home"),
        ("http://mlflow/user@home", "http://mlflow/user@home"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
    ],
)
def test_address_has_no_user_and_password(address: str, left: str) -> None:
    assert without_password(address) == left
    text = f"API request to {address} failed, by help@example.org"
    assert without_password(text) == f"API request to {left} failed, by help@example.org"


def test_a_hint_keeps_its_placeholder() -> None:
    hint = "write postgresql://USER@HOST:PORT/DATABASE"
    assert without_password(hint) == hint
    assert "canary" not in without_password("postgresql://USER:canary@HOST/DATABASE")
    with pytest.raises(DatabaseFailed) as refused:
        check_address("postgresql://host:no-number/db")
    assert "postgresql://USER@HOST:PORT/DATABASE" in without_password(str(refused.value))


def test_errors_have_no_password() -> None:
    assert (
        reason(OSError("API request to http://me:canary@mlflow/api failed"))
        == "API request to http://mlflow/api failed"
    )
    missing = reason(ImportError("no driver for postgresql://me:canary@host/db"))
    assert "canary" not in missing


class NoRuns:
    def search_experiments(self, **_: object) -> list[object]:
        return []


def test_page_of_the_runs_has_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.tracking.pages.connect", lambda uri: NoRuns())
    assert runs_page("http://me:canary@mlflow:5000") == "http://mlflow:5000/#/experiments"
