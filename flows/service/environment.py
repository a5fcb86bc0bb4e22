"""Environment variables for Prefect, MLflow and torch, set before they are imported."""

import gc
import os
import sys
import threading

from dyformer.sampling.limits import usable_cpus, visible_cpus

DEFAULTS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # The temporary server takes 14-20 s to start; the default limit is exactly 20 s.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    # The in-memory default loses a concurrency slot permanently when the server restarts.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    # No page of another server may call a server that is started here; the default allows all of them.
    "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "none",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    # A call is repeated after 2, 4, 8, ... seconds, with a random part; five times is one minute, seven are four.
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    # Threads that wait by spinning made two trainings on the same cores 25 times slower.
    "OMP_WAIT_POLICY": "PASSIVE",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
}

SECONDS_TO_END = 5.0  # of a background loop
# Of Python's garbage collector. Its usual ones, 700, 10 and 10, go 13 times through all that is imported here.
THRESHOLDS = (10_000, 10, 10)


def settle_environment() -> None:
    """Set the variables that the user has not set."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    if (num := usable_cpus()) < visible_cpus():  # else a library has a thread for each CPU of a container's machine
        os.environ.setdefault("OMP_NUM_THREADS", str(num))


_codes: list[int] = []  # of the command of this process, once it has ended


def end_with_code(code: int) -> None:
    """Let this process end with an exit code and without Python's own end, which frees all memory in two seconds."""
    _codes.append(code)


def collect_seldom() -> None:
    """Let the garbage collector look less often through the objects of all imported libraries."""
    gc.set_threshold(*THRESHOLDS)


def end_process() -> None:
    """End Prefect's background loops and, `end_with_code`, this process: the last of its exit functions."""
    end_background_threads()
    if not _codes:
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (AttributeError, OSError, ValueError):  # there is none, or nobody reads it: Python's own end reports it
        return
    os._exit(_codes[-1])


def end_background_threads() -> None:
    """End Prefect's background loops, if they run, because their objects outlive the interpreter.

    Otherwise DuckDB's binding reports these objects as leaked at the end of the output.
    """
    if "prefect" not in sys.modules:
        return
    from prefect._internal.concurrency.threads import get_global_loop, get_run_sync_loop  # there is no public function

    running = {thread.name for thread in threading.enumerate()}
    loops = {"RunSyncEventLoopThread": get_run_sync_loop, "GlobalEventLoopThread": get_global_loop}
    for name, get_loop in loops.items():
        if name in running:  # because get_loop would start it
            loop = get_loop()
            loop.shutdown()
            loop.thread.join(SECONDS_TO_END)
