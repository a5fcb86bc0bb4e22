"""A Postgres server of the tests, on a free port of this machine, with a password."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from free_ports import free_port

USER, PASSWORD = "dyformer", "canary-7f3a"
SECONDS_TO_START = 30.0


def programs() -> Path | None:
    """Folder of `initdb` and `postgres`, None where they are not installed."""
    found = [Path(path).parent for path in [shutil.which("initdb")] if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "postgres").exists()), None)


@contextmanager
def postgres_server(
    login: tuple[str, str] = (USER, PASSWORD),
    port: int = 0,
    database: str = "postgres",
    script: Path | None = None,
) -> Iterator[str]:
    """Start a server and give the address of its database, without the password, which is in PGPASSWORD.

    As the image of Postgres does, make the database and run a script in it.
    """
    folder = programs()
    assert folder is not None
    # Postgres refuses to run as root, so that its files belong to another user there.
    user = "nobody" if os.getuid() == 0 else None
    home = Path(tempfile.mkdtemp(prefix="dyformer-postgres-"))
    try:
        secret = home / "secret"
        secret.write_text(login[1])
        if user is not None:
            for path in (home, secret):
                shutil.chown(path, user)
        port = port or free_port()
        made = [
            folder / "initdb",
            "-D",
            home / "data",
            "-U",
            login[0],
            "--auth=scram-sha-256",
            f"--pwfile={secret}",
            "-N",
        ]
        subprocess.run(made, check=True, capture_output=True, user=user)
        settings = ("listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories=", "fsync=off")
        command = [folder / "postgres", "-D", home / "data", *(part for text in settings for part in ("-c", text))]
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, user=user)
        try:
            _wait(port, server, login)
            _prepare(port, login, database, script)
            yield f"postgresql://{login[0]}@127.0.0.1:{port}/{database}"
        finally:
            server.send_signal(signal.SIGINT)  # after SIGTERM it would wait for its clients
            server.wait()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _prepare(port: int, login: tuple[str, str], database: str, script: Path | None) -> None:
    import psycopg2

    steps = [] if database == "postgres" else [("postgres", f"create database {database}")]
    steps += [] if script is None else [(database, each) for each in script.read_text().split(";") if each.strip()]
    for name, statement in steps:
        connection = psycopg2.connect(host="127.0.0.1", port=port, user=login[0], password=login[1], dbname=name)
        connection.autocommit = True  # a database cannot be made in a transaction
        connection.cursor().execute(statement)
        connection.close()


def _wait(port: int, server: subprocess.Popen[bytes], login: tuple[str, str]) -> None:
    import psycopg2

    deadline = time.monotonic() + SECONDS_TO_START
    while True:
        assert server.poll() is None, "the server has ended"
        try:
            psycopg2.connect(host="127.0.0.1", port=port, user=login[0], password=login[1], dbname="postgres").close()
        except psycopg2.OperationalError:
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.1)
        else:
            return
