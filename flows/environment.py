"""The environment that Prefect and MLflow need, settled before either is imported."""

import os

DEFAULTS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # The temporary server takes 14-20 s to start; the default limit is exactly 20 s.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    # The in-memory default loses a concurrency slot for good when the server restarts.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
}


def settle_environment() -> None:
    """Set what the user has not set."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)


def server_in_use() -> str:
    """Say which Prefect server a flow started here will run on."""
    from prefect.settings import PREFECT_API_URL

    address = PREFECT_API_URL.value()
    return f"the Prefect server at {address}" if address else "a temporary Prefect server"
