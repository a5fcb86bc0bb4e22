"""The address of a Ray cluster and jobs -> the jobs done by its workers, once every node has been checked.

A job is a function that any machine may repeat: what it makes lies in the store. Ray sends its name, its arguments and
a small result, and no graph.
"""

import logging
import os
import platform
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dyformer import InvalidInput
from dyformer.experiments.extras import need
from storage.artifacts.artifact import PENDING
from storage.artifacts.code import PACKAGES, bytes_digest
from storage.bytes import files
from storage.layout import Layout

LIBRARIES = ("numpy", "scipy", "numba", "torch", "polars", "scikit-learn", "lightgbm", "duckdb")
NUM_RETRIES = 3  # of a job whose worker died
SECONDS_TO_CONNECT = 5.0
SECONDS_TO_RESPOND = 30.0  # of a head on a busy machine; Ray itself tries for minutes
SECONDS_TO_CHECK = 120.0
SECONDS_BETWEEN_LOOKS = 5.0  # at the nodes, while no job ends
SECONDS_WITHOUT_WORKER = 60.0  # in which another node may be started
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
FREED_AT_ONCE = {"_RJEM_MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0"}  # polars keeps what it frees for ten seconds
WORKER_ENVIRONMENT = {**ONE_THREAD, **FREED_AT_ONCE, "CUDA_VISIBLE_DEVICES": "", "DYFORMER_NO_PROGRESS": "1"}
TOKEN_MODE, TOKENS = "RAY_AUTH_MODE", ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
HTTP2_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # a frame without settings, whose fourth byte is its kind
REMEDIES = {
    "code": "install the same version of this project on every node, and start Ray again there",
    "cpu": "start the command on a machine of the nodes' kind: another kind of CPU rounds differently",
    "niceness": "start Ray on that node with RAY_worker_niceness=0",
    "token": f"start Ray on every node with {TOKEN_MODE}=token, because others may use a cluster without one",
    "store": "every node needs the same store: a folder that all of them mount, or s3:// with its credentials",
}
SAME_VERSION = "install the same version on every node"


@cache
def machine_facts() -> dict[str, str]:
    """Give what must be equal on two machines whose parts are put together; GPUs are no part of it."""
    from llvmlite.binding import get_host_cpu_name  # by this name numba chooses the instructions

    return {
        "cpu": f"{platform.machine()} {get_host_cpu_name()}",
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }


class ClusterUnusable(InvalidInput):
    """What is wrong with a cluster, and what to do about it."""

    def __init__(self, problem: str, remedy: str):
        super().__init__(problem, remedy)  # both, so that a copy of the error can be made
        self.problem, self.remedy = problem, remedy

    def __str__(self) -> str:
        return f"{self.problem}: {self.remedy}"


class ClusterUnreachable(ClusterUnusable):
    """No Ray cluster can be reached under an address, or it has no worker."""


class TokenRefused(ClusterUnusable):
    """There is no token for a cluster, or the cluster has another one."""


class NodeDiffers(ClusterUnusable):
    """A node would compute something else, or write it elsewhere."""


class WorkersFailed(ClusterUnusable):
    """A job could not be finished, although it was tried again."""


def check_cluster(address: str, layout: Layout) -> None:
    """Connect to a cluster and check every node. Raises ClusterUnreachable, TokenRefused or NodeDiffers."""
    for _, check in node_checks(address, layout):
        check()


def node_checks(address: str, layout: Layout) -> Iterator[tuple[str, Callable[[], None]]]:
    """Connect to a cluster; yield the name of each node, and its check. Both raise as `check_cluster` does."""
    with _connected(address), _expected_of(layout) as expected:
        yield from _checks(address, expected)


def done_on(address: str, layout: Layout, jobs: Sequence[Callable[[], Any]]) -> Iterator[tuple[int, Any]]:
    """Check every node, then do the jobs on their workers, each on one CPU; yield the number and the result of each.

    The error of a job is raised. Raises ClusterUnreachable, TokenRefused, NodeDiffers and WorkersFailed, too.
    """
    with _connected(address), _expected_of(layout) as expected:
        for _, check in _checks(address, expected):
            check()
        import ray

        # By default up to ten short jobs at the end run on one node while others have nothing to do.
        remote = ray.remote(num_cpus=1, max_retries=NUM_RETRIES, scheduling_strategy="SPREAD")(_checked_job)
        numbers = {remote.remote(job, expected): number for number, job in enumerate(jobs)}
        for ended in _ended(address, list(numbers)):
            with _named_errors(f"the cluster at {address}"):
                result = ray.get(ended)
            yield numbers[ended], result


def _ended(address: str, running: list[Any]) -> Iterator[Any]:
    """Yield each job at its end. Raises ClusterUnreachable where no node is left that could do the others."""
    import ray

    last_seen = time.monotonic()
    while running:
        ended, running = ray.wait(running, num_returns=1, timeout=SECONDS_BETWEEN_LOOKS)
        yield from ended
        if ended or _workers():
            last_seen = time.monotonic()
        elif time.monotonic() - last_seen > SECONDS_WITHOUT_WORKER:  # Ray itself waits for ever
            raise ClusterUnreachable(
                f"the Ray cluster at {address} has had no node with a CPU for {SECONDS_WITHOUT_WORKER:.0f} seconds",
                "start one there and give the same command again, which goes on from the finished parts",
            )


def _workers() -> list[dict[str, Any]]:
    """List the nodes that can do a job."""
    import ray

    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def facts(probe: str) -> dict[str, Any]:
    """Give what must be equal on all nodes; `probe` is the address of a file in the store."""
    try:
        content = files.read_bytes(probe).decode()
    except (OSError, ValueError) as error:
        content = f"nothing that can be read ({type(error).__name__})"
    return {"token": os.environ.get(TOKEN_MODE), "niceness": os.nice(0), "store": content, **_of_process()}


@cache
def _of_process() -> dict[str, str]:
    # Each process of a worker computes it. A node with another comment has another version, too.
    return {"code": bytes_digest(*PACKAGES), "ray": version("ray"), **machine_facts()}


def _checked_job(job: Callable[[], Any], expected: dict[str, Any]) -> Any:
    _check_here(tuple(expected.items()))  # a node may have joined after the check of all
    return job()


@cache
def _check_here(expected: tuple[tuple[str, Any], ...]) -> None:
    check_facts(socket.gethostname(), dict(expected), facts(dict(expected)["probe"]))


def check_facts(node: str, expected: dict[str, Any], found: dict[str, Any]) -> None:
    """Raise NodeDiffers, with all differences of a node and what to do about them."""
    wrong = [name for name in found if found[name] != expected[name]]
    if wrong:
        differences = "; ".join(f"{name} is {found[name]!r}, expected {expected[name]!r}" for name in wrong)
        remedies = dict.fromkeys(REMEDIES.get(name, SAME_VERSION) for name in wrong)  # each once
        raise NodeDiffers(f"the Ray node {node} cannot be used, because {differences}", "; ".join(remedies))


@contextmanager
def _expected_of(layout: Layout) -> Iterator[dict[str, Any]]:
    """Give the facts of this process, which the nodes must have, beside a file that only this store has."""
    probe = layout.absolute(f"{PENDING}/{uuid.uuid4().hex}")  # where an old file that is no note is removed
    files.write_bytes(probe, uuid.uuid4().hex.encode())
    try:
        yield {**facts(probe), "niceness": 0, "probe": probe}
    finally:
        files.remove(probe)


def _checks(address: str, expected: dict[str, Any]) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield name and check of each node in turn, so that an error names it; all start their process at once."""
    if not (nodes := _workers()):
        raise ClusterUnreachable(f"the Ray cluster at {address} has no node with a CPU", "start one there")
    results = [_facts_of(node["NodeID"], expected["probe"]) for node in nodes]
    for node, result in zip(nodes, results, strict=True):
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}:{node['NodeManagerPort']})"
        yield name, partial(_check_node, result, name, expected)


def _facts_of(number: str, probe: str) -> Any:
    """Start a process on a node that gives its facts; return the reference of the result."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(number, soft=False)
    return ray.remote(num_cpus=0, max_retries=NUM_RETRIES)(facts).options(scheduling_strategy=there).remote(probe)


def _check_node(result: Any, name: str, expected: dict[str, Any]) -> None:
    import ray

    with _named_errors(f"the Ray node {name}"):
        try:
            found: Any = ray.get(result, timeout=SECONDS_TO_CHECK)
        except (ImportError, RuntimeError) as error:
            raise NodeDiffers(f"the Ray node {name} cannot be used ({_first_line(error)})", SAME_VERSION) from error
    check_facts(name, expected, found)


@contextmanager
def _named_errors(where: str) -> Iterator[None]:
    """Raise the error of a job itself, and those of Ray as ours."""
    from ray import exceptions

    try:
        yield
    except exceptions.RayTaskError as error:
        raise error.cause from None
    except exceptions.GetTimeoutError as error:
        raise ClusterUnreachable(
            f"{where} does not respond within {SECONDS_TO_CHECK:.0f} seconds",
            "wait until its processes have started, or look whether its CPUs and its memory are in use",
        ) from error
    except exceptions.RayError as error:
        has_memory = not isinstance(error, exceptions.OutOfMemoryError)
        remedy = "" if has_memory else "start Ray with fewer CPUs there (--num-cpus), each of which has a worker; then "
        raise WorkersFailed(
            f"{where} could not finish a part, after {NUM_RETRIES} retries ({_first_line(error)})",
            f"{remedy}give the same command again, which goes on from the finished parts",
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connect this process as a driver, for as long as it needs the workers."""
    need("ray")
    _check_address(address)
    _check_token()
    import ray

    try:
        context = ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": WORKER_ENVIRONMENT},
        )
    except ConnectionError as error:  # Ray gives no other reason; the port could be reached
        raise TokenRefused(
            f"the Ray cluster at {address} does not accept this process, because its token is another one, or the"
            " port is not that of Ray's head",
            f"set {' or '.join(TOKENS)} to the token of that head, and look at the port",
        ) from error
    except RuntimeError as error:  # of several lines: two versions of Ray or of Python
        reason = " ".join(str(error).split())
        raise NodeDiffers(f"the Ray cluster at {address} cannot be used ({reason})", SAME_VERSION) from error
    try:
        _name_dashboard(context.dashboard_url)
        yield
    finally:
        ray.shutdown()


@cache  # once a process
def _name_dashboard(url: str | None) -> None:
    """Print where Ray shows its nodes and jobs, unless the head was started without that."""
    if url:
        print(f"Ray's dashboard: http://{url}", file=sys.stderr, flush=True)


def _check_address(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not host or not colon or not port.isdecimal() or "/" in host:
        raise ClusterUnreachable(
            f"{address!r} is no address of a Ray cluster", "write HOST:PORT of its head (not ray://)"
        )
    try:
        with socket.create_connection((host, int(port)), timeout=SECONDS_TO_CONNECT) as connection:
            is_head = _begins_http2(connection)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ClusterUnreachable(
            f"no Ray cluster can be reached at {address} ({error})", "start its head first, and look at the address"
        ) from error
    if not is_head:
        raise ClusterUnreachable(
            f"no Ray cluster can be reached at {address}, because another program listens there",
            "look at the port: that of `ray start --head` is 6379 unless --port names another",
        )


def _begins_http2(connection: socket.socket) -> bool:
    """Whether the other end begins as a server of HTTP/2 does, such as Ray's head; with TLS that cannot be seen."""
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return True
    connection.settimeout(SECONDS_TO_RESPOND)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HTTP2_SETTINGS)
    return connection.recv(len(HTTP2_SETTINGS), socket.MSG_WAITALL)[3:4] == HTTP2_SETTINGS[3:4]


def _check_token() -> None:
    """Have Ray use a token, before it is imported."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a change to come
    os.environ.setdefault("RAY_task_oom_retries", str(NUM_RETRIES))  # of a job without memory; else it never ends
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "5")  # tries, a second each, until another token is refused
    if os.environ.setdefault(TOKEN_MODE, "token") == "disabled":
        raise TokenRefused(
            f"{TOKEN_MODE}=disabled: whoever reaches a cluster without a token runs code there",
            "set it to token, here and on every node",
        )
    if not any(os.environ.get(name) for name in TOKENS) and not Path("~/.ray/auth_token").expanduser().exists():
        raise TokenRefused(
            "there is no token for the Ray cluster",
            f"set {' or '.join(TOKENS)} to that of its head, or make one with `ray get-auth-token --generate` and copy"
            " ~/.ray/auth_token to every node",
        )
