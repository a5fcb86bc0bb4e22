"""A store -> Prefect, MLflow and workers on this machine, without containers, until a signal stops them."""

import json
import os
import shlex
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from filelock import FileLock, Timeout

from dyformer import InvalidInput
from flows.service.deployments import POOL
from flows.service.listening import listening, port_of
from flows.service.mlflow_server import DATABASE
from flows.service.processes import MARK, Service, ServiceFailed, Stopping, end_marked, end_with, marked, wait_for_end
from flows.service.running import (
    ADDRESSES,
    LOCK,
    LOCK_OF_PAGES,
    LOGIN,
    LOGIN_OF_PAGES,
    PREFECT,
    RECORD,
    SERVER_LOGIN,
    close_folder,
    last_stack,
    new_logins,
    running_stack,
    write_variables,
)
from flows.service.worker import SECONDS_FOR_RUNS
from storage.bytes.files import make_folder
from storage.layout import Layout
from storage.tracking.addresses import without_password

HOST = "127.0.0.1"
USUAL_PORTS = {"prefect": 4200, "mlflow": 5000}
SECONDS_TO_START = 180.0
SECONDS_FOR_SERVERS = 10.0
MOST_STARTS = 5  # of one service in QUIET_SECONDS, before the stack gives up
QUIET_SECONDS = 600.0


Call = Callable[..., Any]  # a function and its arguments -> its result


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Ports of the servers; None takes the usual one, or a free one if that is taken."""

    prefect: int | None = None
    mlflow: int | None = None

    @contextmanager
    def listening(self) -> Iterator[dict[str, socket.socket]]:
        """Listen at the port of each server; raises ValueError for a given one that is taken."""
        with ExitStack() as sockets:
            yield {name: sockets.enter_context(_listener(name, getattr(self, name))) for name in USUAL_PORTS}


def run_stack(layout: Layout, ports: Ports, num_workers: int, show: Callable[[str], None]) -> None:
    """Start the servers, deploy, start the workers, say where they are, and stop them all at a signal.

    A service that ends is started again.

    Raises:
        ValueError: the stack of this store runs already.
        ValueError: another program listens at a given port.
        ServiceFailed: a service did not start, or ended again and again.
    """
    folder, stopping, started = Path(layout.service), Stopping(), time.monotonic()
    make_folder(folder)
    close_folder(folder)
    with ExitStack() as ending:
        ending.enter_context(_alone(layout))
        ending.enter_context(stopping.listening())
        mark = uuid.uuid4().hex
        listeners = ending.enter_context(ports.listening())
        addresses = _addresses({name: port_of(listener) for name, listener in listeners.items()})
        clients = _variables_of_clients(addresses)
        os.environ.update({**clients, "PREFECT_HOME": str(folder / "prefect")})
        write_variables(folder / LOGIN, clients)
        _write(folder, {"mark": mark, "process": os.getpid()})
        servers = _servers(layout, folder, addresses, listeners, mark)
        workers: list[Service] = []
        ending.callback(_stop, mark, workers, stopping)
        with _beside() as call:
            workers += [_worker(folder, mark, number, call) for number in range(1, num_workers + 1)]
            _start(layout, servers, workers, call, stopping, show)
            if not stopping():
                _write(folder, {"mark": mark, "process": os.getpid(), **addresses})
                _show(layout, addresses, time.monotonic() - started, call, show)
        if not stopping():
            _watch([*servers, *workers], stopping, show)
        show("stopping")


def run_pages(layout: Layout, port: int | None, show: Callable[[str], None]) -> None:
    """Start MLflow's server alone on the store's runs, say where it is, and stop it at a signal.

    Where one runs already, nothing is started.

    Raises:
        ValueError: the pages of this store run already.
        ValueError: another program listens at the given port.
        ServiceFailed: the server did not start, or ended.
    """
    running = running_stack(layout)
    if running is not None:
        _show_pages(layout, _runs_page(running["mlflow"]), show)
        return
    if urlsplit(layout.tracking_uri).scheme in ("http", "https"):
        raise InvalidInput(f"the runs are at a server of your own: {without_password(layout.tracking_uri)}")
    folder, stopping = Path(layout.service), Stopping()
    make_folder(folder)
    close_folder(folder)
    with ExitStack() as ending:
        try:
            ending.enter_context(FileLock(folder / LOCK_OF_PAGES).acquire(timeout=1))
        except Timeout as error:
            raise InvalidInput(
                f"`dyformer ui` runs already for {layout.root}: `dyformer login` has its address"
            ) from error
        ending.enter_context(stopping.listening())
        ending.callback((folder / LOGIN_OF_PAGES).unlink, missing_ok=True)
        _serve_pages(layout, ending.enter_context(_listener("mlflow", port)), stopping, show)


def _serve_pages(layout: Layout, listener: socket.socket, stopping: Stopping, show: Callable[[str], None]) -> None:
    address = f"http://{HOST}:{port_of(listener)}"

    show(f"starting MLflow for {layout.root}; its log is in {layout.service}")
    if layout.tracking_uri == layout.tracking_database:
        _make_database(layout)
    mark = uuid.uuid4().hex
    server = _mlflow_server(layout, listener, layout.tracking_uri, mark)
    clients = {ADDRESSES["mlflow"]: address, **new_logins()["mlflow"]}
    os.environ.update(clients)
    write_variables(Path(layout.service) / LOGIN_OF_PAGES, clients)
    try:
        server.start()
        server.wait_until_ready(SECONDS_TO_START, stopping)
        if not stopping():
            _show_pages(layout, _runs_page(address), show)
            show("Ctrl-C stops it.")
        while not stopping.wait(1.0):
            server.check()
    finally:
        end_marked(mark, SECONDS_FOR_SERVERS, stopping.is_hurried)


def _show_pages(layout: Layout, page: str, show: Callable[[str], None]) -> None:
    show(f"MLflow:  {page}")
    if page.endswith("/experiments"):
        show("         There are no runs yet. Choose Model training at the top left, and later an experiment.")
    show(f"A browser requires a login once: dyformer --storage {shlex.quote(layout.root)} login")


@contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """Lock the stack of a store, and end what a killed one left."""
    folder = Path(layout.service)
    try:
        lock = FileLock(folder / LOCK).acquire(timeout=1)  # a command that looks for the stack holds it for a moment
    except Timeout as error:
        record = last_stack(layout) or {}
        raise InvalidInput(
            f"`dyformer up` runs already for {layout.root}: process {record.get('process', '?')}, Prefect at"
            f" {record.get('prefect', 'an address that is being chosen')}; stop it first with Ctrl-C or SIGTERM"
        ) from error
    with lock:
        record = last_stack(layout) or {}
        left = record.get("mark")
        if isinstance(left, str) and left and record.get("folder") == _identity(folder):
            end_marked(left, SECONDS_FOR_SERVERS)
        try:
            yield
        finally:
            for name in (RECORD, LOGIN):
                (folder / name).unlink(missing_ok=True)


def _listener(name: str, given: int | None) -> socket.socket:
    for port in (given,) if given is not None else (USUAL_PORTS[name], 0):
        with suppress(OSError):
            return listening(HOST, port)
    raise InvalidInput(f"port {given} for {name} is taken by another program: give a free one with --{name}-port")


def _addresses(ports: dict[str, int]) -> dict[str, str]:
    return {"prefect": f"http://{HOST}:{ports['prefect']}/api", "mlflow": f"http://{HOST}:{ports['mlflow']}"}


def _variables_of_clients(addresses: dict[str, str]) -> dict[str, str]:
    """Give addresses and logins of the servers, which are made for this start, by the names that their clients read."""
    logins = new_logins()
    return {
        name: value
        for server, address in addresses.items()
        for name, value in {ADDRESSES[server]: address, **logins[server]}.items()
    }


def _identity(folder: Path) -> list[int]:
    """Numbers by which the file system knows a folder: a copy of a store has others, and its record is of the original.

    Without them a stack on the copy would end the processes of the original's.
    """
    status = folder.stat()
    return [status.st_dev, status.st_ino]


def _write(folder: Path, record: dict[str, object]) -> None:
    part = folder / f".{RECORD}"
    part.write_text(json.dumps({**record, "folder": _identity(folder)}), encoding="utf-8")
    part.replace(folder / RECORD)


def _servers(
    layout: Layout, folder: Path, addresses: dict[str, str], listeners: dict[str, socket.socket], mark: str
) -> list[Service]:
    """Describe Prefect's server and MLflow's."""
    common = {"DYFORMER_STORAGE": layout.root, "DYFORMER_STATE": layout.state}
    port = port_of(listeners["prefect"])
    pages = ",".join(f"http://{host}:{port}" for host in (HOST, "localhost"))
    prefect = Service(
        name="prefect-server",
        arguments=["flows.service.prefect_server", f"--port={port}", f"--parent={os.getpid()}"],
        environment={
            **common,
            MARK: f"{mark}-server-prefect",
            SERVER_LOGIN: os.environ[PREFECT],
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": pages,
            "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
            "PREFECT_UI_API_URL": addresses["prefect"],
            "PREFECT_SERVER_UI_ENABLED": "true",
        },
        folder=folder,
        is_ready=lambda: _responds(f"{addresses['prefect']}/health"),
        listener=listeners["prefect"],
    )
    mlflow = _mlflow_server(layout, listeners["mlflow"], layout.tracking_database, mark)
    return [prefect, replace(mlflow, environment={**mlflow.environment, **common})]


def _mlflow_server(layout: Layout, listener: socket.socket, database: str, mark: str) -> Service:
    port = port_of(listener)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return Service(
        name="mlflow-server",
        arguments=[
            *("flows.service.mlflow_server", f"--port={port}", f"--parent={os.getpid()}"),
            f"--default-artifact-root={layout.tracking_artifacts}",  # as without a server, so that both can go on
            f"--artifacts-destination={layout.tracking_artifacts}",  # of experiments with files at a server
        ],
        environment={
            MARK: f"{mark}-server-mlflow",
            DATABASE: database,  # which may have a password, and is no argument for that reason
            **({"MLFLOW_S3_ENDPOINT_URL": endpoint} if endpoint else {}),
        },
        folder=Path(layout.service),
        is_ready=lambda: _responds(f"http://{HOST}:{port}/health"),
        listener=listener,
    )


def _worker(folder: Path, mark: str, number: int, call: Call) -> Service:
    name, since = f"worker-{number}", datetime.now(UTC)
    return Service(
        name=name,
        arguments=["flows.service.worker", "--name", name, "--parent", str(os.getpid())],
        environment={MARK: f"{mark}-worker-{number:02}"},
        folder=folder,
        is_ready=lambda: call(_is_online, name, since),
    )


def _responds(url: str) -> bool:
    try:
        with urlopen(url, timeout=2) as response:  # noqa: S310, an address of this machine
            return response.status == 200
    except (URLError, OSError):
        return False


def _is_online(name: str, since: datetime) -> bool:
    """Whether a worker has reported since a time; the last one of its name counts as online for a minute and a half."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        reports = [
            worker.last_heartbeat_time for worker in client.read_workers_for_work_pool(POOL) if worker.name == name
        ]
    return any(beat is not None and beat > since for beat in reports)


@contextmanager
def _beside() -> Iterator[Call]:
    """Call functions in a process that ends with the `with` block, and with this one.

    They load MLflow and all that trains, half a GiB, which this process, that then waits for weeks, does not need.
    """
    with ProcessPoolExecutor(1, get_context("fork"), initializer=end_with, initargs=(os.getpid(),)) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def _make_database(layout: Layout) -> None:
    from storage.tracking.pages import make_database

    make_database(layout)


def _runs_page(address: str) -> str:
    from storage.tracking.pages import runs_page

    return runs_page(address)


def _deploy() -> None:
    from flows.service.deployments import deploy, file_of_deployments, read_deployments

    deploy(read_deployments(file_of_deployments()))


def _start(
    layout: Layout,
    servers: list[Service],
    workers: list[Service],
    call: Call,
    stopping: Stopping,
    show: Callable[[str], None],
) -> None:
    """Start everything; what needs no server is prepared while the servers start."""
    show(f"starting Prefect and MLflow for {layout.root}; their logs are in {layout.service}")
    servers[0].start()
    call(_make_database, layout)
    servers[1].start()
    for server in servers:
        server.wait_until_ready(SECONDS_TO_START, stopping)
    if not stopping():
        call(_deploy)
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_until_ready(SECONDS_TO_START, stopping)


def _show(layout: Layout, addresses: dict[str, str], seconds: float, call: Call, show: Callable[[str], None]) -> None:
    show(f"ready after {seconds:.0f} s")
    show(f"Prefect: {addresses['prefect'].removesuffix('/api')}/v2/deployments")
    _show_pages(layout, call(_runs_page, addresses["mlflow"]), show)
    show("Every dyformer command on this store uses them. For other programs in a shell:")
    show(f"  . {shlex.quote(str(Path(layout.service) / LOGIN))}")
    show("Ctrl-C stops them all.")


def _watch(services: list[Service], stopping: Stopping, show: Callable[[str], None]) -> None:
    """Start every service again that ends; raises ServiceFailed for one that ends again and again."""
    starts: dict[str, list[float]] = {service.name: [] for service in services}
    while not stopping.wait(1.0):
        for service in services:
            try:
                service.check()
            except ServiceFailed as error:
                recent = [
                    started_at for started_at in starts[service.name] if time.monotonic() - started_at < QUIET_SECONDS
                ]
                if len(recent) >= MOST_STARTS:
                    raise ServiceFailed(
                        f"{error}; it ended {MOST_STARTS + 1} times in {QUIET_SECONDS:.0f} s"
                    ) from error
                starts[service.name] = [*recent, time.monotonic()]
                show(f"{error}; it is started again")
                end_marked(service.environment[MARK], SECONDS_FOR_RUNS, stopping.is_hurried)  # what it left behind
                service.start()


def _stop(mark: str, workers: list[Service], stopping: Stopping) -> None:
    """End the workers and their runs first, because a run hands itself back to the server; then the servers."""
    for worker in workers:
        worker.terminate()
    wait_for_end(lambda: marked(f"{mark}-worker"), SECONDS_FOR_RUNS + SECONDS_FOR_SERVERS, stopping.is_hurried)
    for part in ("worker", "server"):
        end_marked(f"{mark}-{part}", SECONDS_FOR_SERVERS, stopping.is_hurried)
    assert not marked(mark)
