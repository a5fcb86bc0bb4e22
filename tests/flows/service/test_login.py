"""The login of a stack: another one for each start, in a file that only its owner can read."""

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from flows.cli import main
from flows.service.running import (
    ADDRESSES,
    LOCK,
    LOGIN,
    MLFLOW,
    PREFECT,
    RECORD,
    close_folder,
    new_logins,
    read_variables,
    use_running_stack,
    write_variables,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_open_umask")
def test_the_file_is_its_owners_from_its_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, modes = tmp_path / "up.env", []
    opened = os.fdopen

    def watched(descriptor: int, *given: str, **options: str) -> object:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return opened(descriptor, *given, **options)  # pyright: ignore[reportCallIssue, reportArgumentType]

    monkeypatch.setattr(os, "fdopen", watched)
    file.write_text("left by a stack that was killed")
    file.chmod(0o644)
    (tmp_path / ".up.env").symlink_to(tmp_path / "elsewhere")
    write_variables(file, {"A": "b"})
    assert modes == [0o600]
    assert mode(file) == 0o600
    assert not (tmp_path / "elsewhere").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["up.env"]


@pytest.mark.parametrize("content", [b"export A='open\n", b"\xff\n"])
def test_a_damaged_file_has_no_login(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert read_variables(tmp_path / "file") == {}


@pytest.mark.parametrize("record", ['{"prefect": 5, "mlflow": null}', "[]", "{", '{"prefect": "http://x/api"}'])
def test_a_damaged_record_of_a_stack_is_no_running_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path))
    for name in ADDRESSES.values():
        monkeypatch.delenv(name, raising=False)
    service = tmp_path / "service"
    service.mkdir()
    (service / RECORD).write_text(record)
    with FileLock(service / LOCK):
        use_running_stack()
    assert not set(ADDRESSES.values()) & os.environ.keys()


def test_a_shell_and_a_command_read_the_same_values(tmp_path: Path) -> None:
    variables = {"A": 'it\'s $HOME & `x` "y"', "B": "http://127.0.0.1:1/api?a=b"}
    write_variables(tmp_path / "file", variables)
    assert read_variables(tmp_path / "file") == variables
    shell = subprocess.run(
        ["sh", "-c", '. "$1"; printf "%s\n%s" "$A" "$B"', "-", tmp_path / "file"],
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shell.stdout.splitlines() == list(variables.values())
    assert read_variables(tmp_path / "none") == {}


def test_a_folder_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    close_folder(tmp_path)
    assert mode(tmp_path) == 0o700


def test_each_start_has_a_login_of_its_own_that_nobody_guesses() -> None:
    passwords = {new_logins()["mlflow"][MLFLOW[1]] for _ in range(20)}
    assert len(passwords) == 20
    assert min(map(len, passwords)) >= 40
    logins = new_logins()
    assert logins["prefect"] == {PREFECT: ":".join(logins["mlflow"][name] for name in MLFLOW)}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path))
    monkeypatch.delenv("DYFORMER_STATE", raising=False)
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", PREFECT, *MLFLOW):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    folder = tmp_path / "service"
    folder.mkdir()
    addresses = {"prefect": "http://127.0.0.1:1/api", "mlflow": "http://127.0.0.1:2"}
    (folder / RECORD).write_text(json.dumps(addresses))
    login = {PREFECT: "dyformer:secret", MLFLOW[0]: "dyformer", MLFLOW[1]: "secret"}
    write_variables(folder / LOGIN, {**{ADDRESSES[name]: address for name, address in addresses.items()}, **login})
    return folder


def test_a_command_takes_the_login_of_the_running_stack(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_running_stack()
    assert PREFECT not in os.environ  # it does not run
    with FileLock(service / LOCK):
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")  # as an earlier command printed it
        use_running_stack()
    assert [os.environ[name] for name in (PREFECT, *MLFLOW)] == ["dyformer:secret", "dyformer", "secret"]


def test_the_login_goes_to_no_other_server(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "https://prefect.example/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    with FileLock(service / LOCK):
        use_running_stack()
    assert not {PREFECT, *MLFLOW} & os.environ.keys()


def run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as ending:
        main(list(arguments))
    return ending.value.code


def test_a_user_gets_the_login(service: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("login") == 1
    assert "neither `dyformer up` nor `dyformer ui` runs" in capsys.readouterr().err
    with FileLock(service / LOCK):
        assert run("login") == 0
    assert capsys.readouterr().out.splitlines() == [
        "Prefect  http://127.0.0.1:1  dyformer:secret",
        "MLflow   http://127.0.0.1:2  user dyformer, password secret",
    ]
