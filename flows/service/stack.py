"""A store -> Prefect, MLflow and workers on this machine, without containers, until a signal stops them."""

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from filelock import FileLock, Timeout

from flows.service.processes import MARK, Service, ServiceFailed, end_marked, marked, wait_for_end
from flows.service.running import ADDRESSES, LOCK, RECORD, last_stack
from flows.service.stopping import Stopping
from flows.service.worker import SECONDS_FOR_RUNS
from storage.disk import make_folder
from storage.layout import Layout

HOST = "127.0.0.1"
USUAL_PORTS = {"prefect": 4200, "mlflow": 5000}
POOL = "dyformer-cpu"
SECONDS_TO_START = 180.0
SECONDS_FOR_SERVERS = 10.0
MOST_STARTS = 5  # of one service in QUIET_SECONDS, before the stack gives up
QUIET_SECONDS = 600.0


class StackRuns(ValueError):
    """The stack of this store runs already."""


class PortTaken(ValueError):
    """Another program listens at a port."""


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Ports of the servers; None takes the usual one, or a free one if that is taken."""

    prefect: int | None = None
    mlflow: int | None = None

    def chosen(self) -> dict[str, int]:
        """Return the port of each server; raises PortTaken for a given one that is taken."""
        return {name: _port(name, getattr(self, name)) for name in USUAL_PORTS}


def run_stack(layout: Layout, ports: Ports, num_workers: int, show: Callable[[str], None]) -> None:
    """Start the servers, deploy, start the workers, say where they are, and stop them all at a signal.

    A service that ends is started again.

    Raises:
        StackRuns: the stack of this store runs already.
        PortTaken: another program listens at a given port.
        ServiceFailed: a service did not start, or ended again and again.
    """
    folder, stopping, started = Path(layout.service), Stopping(), time.monotonic()
    make_folder(folder)
    with ExitStack() as ending:
        ending.enter_context(_alone(layout))
        ending.enter_context(stopping.listening())
        mark = uuid.uuid4().hex
        addresses = _addresses(ports.chosen())
        os.environ.update({ADDRESSES[name]: address for name, address in addresses.items()})
        os.environ["PREFECT_HOME"] = str(folder / "prefect")
        _write(folder, {"mark": mark, "process": os.getpid()})
        servers = _servers(layout, folder, addresses, mark)
        workers = [_worker(folder, mark, number) for number in range(1, num_workers + 1)]
        ending.callback(_stop, mark, workers, stopping)
        _start(layout, servers, workers, stopping, show)
        if not stopping():
            _write(folder, {"mark": mark, "process": os.getpid(), **addresses})
            _show(addresses, time.monotonic() - started, show)
            _watch([*servers, *workers], stopping, show)
        show("stopping")


@contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """Lock the stack of a store, and end what a killed one left."""
    folder = Path(layout.service)
    try:
        lock = FileLock(folder / LOCK).acquire(timeout=1)  # a command that looks for the stack holds it for a moment
    except Timeout as error:
        record = last_stack(layout) or {}
        raise StackRuns(
            f"`dyformer up` runs already for {layout.root}: process {record.get('process', '?')}, Prefect at"
            f" {record.get('prefect', 'an address that is being chosen')}; stop it first with Ctrl-C or SIGTERM"
        ) from error
    with lock:
        left = (last_stack(layout) or {}).get("mark")
        if isinstance(left, str) and left:
            end_marked(left, SECONDS_FOR_SERVERS)
        try:
            yield
        finally:
            (folder / RECORD).unlink(missing_ok=True)


def _port(name: str, given: int | None) -> int:
    for port in (given,) if given is not None else (USUAL_PORTS[name], 0):
        with socket.socket() as one, suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((HOST, port))
            return one.getsockname()[1]
    raise PortTaken(f"port {given} for {name} is taken by another program: give a free one with --{name}-port")


def _addresses(ports: dict[str, int]) -> dict[str, str]:
    return {"prefect": f"http://{HOST}:{ports['prefect']}/api", "mlflow": f"http://{HOST}:{ports['mlflow']}"}


def _write(folder: Path, record: dict[str, object]) -> None:
    part = folder / f".{RECORD}"
    part.write_text(json.dumps(record), encoding="utf-8")
    part.replace(folder / RECORD)


def _servers(layout: Layout, folder: Path, addresses: dict[str, str], mark: str) -> list[Service]:
    """Describe Prefect's server and MLflow's."""
    ports = {name: address.split(":")[2].partition("/")[0] for name, address in addresses.items()}
    common = {"DYFORMER_STORAGE": layout.root, "DYFORMER_STATE": layout.state}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    s3 = {"MLFLOW_S3_ENDPOINT_URL": endpoint} if endpoint else {}
    return [
        Service(
            name="prefect-server",
            arguments=["flows.temporary_server", ports["prefect"], str(os.getpid())],
            environment={
                **common,
                MARK: f"{mark}-server-prefect",
                "PREFECT_UI_API_URL": addresses["prefect"],
                "PREFECT_SERVER_UI_ENABLED": "true",
            },
            folder=folder,
            is_ready=lambda: _responds(f"{addresses['prefect']}/health"),
        ),
        Service(
            name="mlflow-server",
            arguments=[
                *("mlflow", "server", f"--host={HOST}", f"--port={ports['mlflow']}", "--workers=1"),
                f"--backend-store-uri={layout.tracking_database}",
                f"--default-artifact-root={layout.tracking_artifacts}",  # as without a server, so that both can go on
                f"--artifacts-destination={layout.tracking_artifacts}",  # of experiments with files at a server
            ],
            environment={**common, **s3, MARK: f"{mark}-server-mlflow", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            folder=folder,
            is_ready=lambda: _responds(f"{addresses['mlflow']}/health"),
        ),
    ]


def _worker(folder: Path, mark: str, number: int) -> Service:
    name, since = f"worker-{number}", datetime.now(UTC)
    return Service(
        name=name,
        arguments=["flows.service.worker", "--name", name],
        environment={MARK: f"{mark}-worker-{number:02}"},
        folder=folder,
        is_ready=lambda: _is_online(name, since),
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
        reports = [each.last_heartbeat_time for each in client.read_workers_for_work_pool(POOL) if each.name == name]
    return any(each is not None and each > since for each in reports)


def _start(
    layout: Layout, servers: list[Service], workers: list[Service], stopping: Stopping, show: Callable[[str], None]
) -> None:
    """Start everything; what needs no server is prepared while the servers start."""
    from storage.tracking.pages import make_database

    show(f"starting Prefect and MLflow for {layout.root}; their logs are in {layout.service}")
    servers[0].start()
    make_database(layout)
    servers[1].start()
    from flows.service.deployments import deploy, file_of_deployments, read_deployments

    deployments = read_deployments(file_of_deployments())
    for server in servers:
        server.wait_until_ready(SECONDS_TO_START, stopping)
    if not stopping():
        deploy(deployments)
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_until_ready(SECONDS_TO_START, stopping)


def _show(addresses: dict[str, str], seconds: float, show: Callable[[str], None]) -> None:
    from storage.tracking.pages import runs_page

    show(f"ready after {seconds:.0f} s")
    show(f"Prefect: {addresses['prefect'].removesuffix('/api')}/v2/deployments")
    show(f"MLflow:  {(page := runs_page(addresses['mlflow']))}")
    if page.endswith("/experiments"):
        show("         There are no runs yet. Choose Model training at the top left, and later an experiment.")
    show("Every dyformer command on this store uses them. For other programs:")
    show("  " + " ".join(f"{ADDRESSES[name]}={address}" for name, address in addresses.items()))
    show("Ctrl-C stops them all.")


def _watch(services: list[Service], stopping: Stopping, show: Callable[[str], None]) -> None:
    """Start every service again that ends; raises ServiceFailed for one that ends again and again."""
    starts: dict[str, list[float]] = {service.name: [] for service in services}
    while not stopping.wait(1.0):
        for service in services:
            try:
                service.check()
            except ServiceFailed as error:
                recent = [each for each in starts[service.name] if time.monotonic() - each < QUIET_SECONDS]
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
    wait_for_end(f"{mark}-worker", SECONDS_FOR_RUNS + SECONDS_FOR_SERVERS, stopping.is_hurried)
    for part in ("worker", "server"):
        end_marked(f"{mark}-{part}", SECONDS_FOR_SERVERS, stopping.is_hurried)
    assert not marked(mark)
