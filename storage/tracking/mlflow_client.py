"""One record -> calls to MLflow, each safe to repeat.

A run is found by its key, metrics carry their time and step, a file has one path, and a run registers one model. A
record whose response was lost can therefore be applied again without duplicates. MLflow refuses none of them twice, so
of two processes one searches and creates at a time: see `storage.tracking.turns`.
"""

import os
import socket
import sqlite3
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from storage import objects
from storage.disk import temporary_name
from storage.tracking.addresses import database_of, without_password
from storage.tracking.spool import Record, Refused
from storage.tracking.view import view_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient

RUN_KEY = "dyformer.run_key"
MODEL_PATH = "model"  # of the registered model among a run's files
PERMANENT = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE"}
CONNECT_SECONDS = 2.0
LOCKED_SECONDS = 3.0

ENVIRONMENT = {  # mlflow reads it when it is imported or called; a variable that the user has set stays
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # the spool retries; mlflow's own retries take minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # MLflow prints tracebacks of errors that are caught here
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


class NeedsServer(ValueError):
    """Files of an experiment that a server made, which are sent to it alone."""


def set_environment() -> None:
    """Set mlflow's environment, before its first import."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def connect(uri: str) -> "MlflowClient":
    """Open MLflow at an explicit address, because without one it writes into the working directory."""
    set_environment()
    path = database_of(uri)
    if path is not None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_database(path)
    probe(uri)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=os.environ.get("MLFLOW_REGISTRY_URI", uri))


def limit_s3_requests() -> None:
    """Let MLflow's requests to S3 end as early as those of the store, and fail without an S3 server's response.

    boto3 has no variables for that, and its own check of a response accepts any page for a file that was sent.
    """
    try:
        import boto3
        from botocore.config import Config
        from botocore.session import Session
    except ImportError:  # only the `server` extra installs it, and without it nothing writes to S3 here
        return
    limits = {"connect_timeout": objects.CONNECT_SECONDS, "read_timeout": objects.REQUEST_SECONDS}
    session = Session()
    session.set_default_client_config(Config(**limits, retries={"mode": "standard", "total_max_attempts": 3}))
    for call in ("PutObject", "UploadPart"):
        session.register(f"after-call.s3.{call}", _check_stored)
    boto3.setup_default_session(botocore_session=session)


def _check_stored(parsed: dict[str, Any], **_: object) -> None:
    if parsed["ResponseMetadata"]["HTTPStatusCode"] == HTTPStatus.OK and "ETag" not in parsed:
        raise OSError("the response to a file for MLflow is not from an S3 server")


def _make_database(path: Path) -> None:
    """Make a missing database under a hidden name: a process killed in that second would leave a part of the tables.

    The caller has the turn of `storage.tracking.turns`, so that no other process makes it.
    """
    from mlflow import MlflowClient

    for left in path.parent.glob(f".{path.name}.*"):
        left.unlink()
    temporary = path.with_name(temporary_name(path.name))
    MlflowClient(tracking_uri=f"sqlite:///{temporary}").search_experiments(max_results=1)
    temporary.replace(path)


def failures() -> tuple[type[Exception], ...]:
    """List the errors of an MLflow that is unreachable or refuses a call, whatever store it uses."""
    from alembic.util.exc import CommandError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError
    from urllib3.exceptions import HTTPError

    # OSError: requests, sockets and disks. ImportError: missing drivers of the `server` extra (S3, Postgres).
    mlflow = (MlflowException, SQLAlchemyError, CommandError)
    return (*mlflow, HTTPError, OSError, sqlite3.Error, ImportError, *_s3_failures())


def reason(error: Exception) -> str:
    """Describe an error, without a password; for a driver that is not installed, name the package to install."""
    text = f"{error}: pip install 'dyformer[server]'" if isinstance(error, ImportError) else str(error)
    return without_password(text)


def _s3_failures() -> tuple[type[Exception], ...]:
    try:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:  # only the `server` extra installs it, and without it nothing writes to S3 here
        return ()
    return (Boto3Error, BotoCoreError, ClientError)


def probe(uri: str) -> None:
    """Raise within a few seconds if MLflow is unreachable, because MLflow would retry for minutes.

    Raises:
        OSError: no server listens at the address.
        sqlite3.Error: the database file cannot be opened, is not a database, or is locked.
    """
    path = database_of(uri)
    if path is not None:
        _probe_sqlite(path)
        return
    parts = urlsplit(uri)
    proxied = parts.scheme in getproxies() and parts.hostname and not proxy_bypass(parts.hostname)
    if parts.hostname and not proxied:
        port = parts.port or {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306}.get(parts.scheme, 80)
        socket.create_connection((parts.hostname, port), timeout=CONNECT_SECONDS).close()


def _probe_sqlite(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=LOCKED_SECONDS, isolation_level=None)) as database:
        database.execute("begin immediate")
        database.execute("rollback")


def ensure_run(client: "MlflowClient", start: Record) -> str:
    """Find the run of a start record, or create its experiment and the run; returns the run's id."""
    experiment = _ensure_experiment(client, start["experiment"], start["artifact_root"])
    of_key = f"tags.`{RUN_KEY}` = '{start['run_key']}'"
    known = client.search_runs([experiment], filter_string=of_key, max_results=1)
    if known:
        return known[0].info.run_id
    tags = {**start["tags"], RUN_KEY: start["run_key"]}
    run = client.create_run(experiment, start_time=start["time"], tags=tags, run_name=start["name"])
    return run.info.run_id


def _ensure_experiment(client: "MlflowClient", name: str, artifact_root: str | None) -> str:
    from mlflow.exceptions import MlflowException

    known = client.get_experiment_by_name(name)
    if known is not None:
        return known.experiment_id
    try:
        location = artifact_root and f"{artifact_root}/{name}"
        return client.create_experiment(name, artifact_location=location, tags=view_tags())
    except MlflowException:
        known = client.get_experiment_by_name(name)  # another process may have made it
        if known is None:
            raise
        return known.experiment_id


def apply_record(client: "MlflowClient", run_id: str, record: Record, files: Path | None) -> Any:
    """Apply a record.

    Raises:
        Refused: MLflow will never accept it.
        NeedsServer: its files go through a server, and the client has none.
        Exception: one of `failures()`; the record can be applied again.
    """
    from mlflow.exceptions import MlflowException

    try:
        return APPLY[record["kind"]](client, run_id, record, files)
    except MlflowException as error:
        if error.error_code in PERMANENT:
            raise Refused(f"MLflow refused the {record['kind']} of run {run_id}: {reason(error)}") from error
        raise


def _start(client: "MlflowClient", run_id: str, record: Record, files: Path | None) -> None:
    """Do nothing, because `ensure_run` has created the run."""


def _params(client: "MlflowClient", run_id: str, record: Record, files: Path | None) -> None:
    from mlflow.entities import Param

    params = [Param(name, value) for name, value in record["params"].items()]
    for first in range(0, len(params), 100):  # MLflow accepts no more in one call
        client.log_batch(run_id, params=params[first : first + 100])


def _tags(client: "MlflowClient", run_id: str, record: Record, files: Path | None) -> None:
    for name, value in record["tags"].items():
        client.set_tag(run_id, name, value)


def _metrics(client: "MlflowClient", run_id: str, record: Record, files: Path | None) -> None:
    from mlflow.entities import Metric

    known = _known_points(client, run_id, record["metrics"]) if record["once"] else {}
    replaces = record.get("replaces", False)  # records of earlier versions do not say it
    points = [point for point in record["metrics"] if _is_wanted(point, known.get((point[0], point[3])), replaces)]
    metrics = [Metric(name, value, moment, step) for name, value, moment, step in points]
    for first in range(0, len(metrics), 1000):  # MLflow accepts no more in one call
        client.log_batch(run_id, metrics=metrics[first : first + 1000])


def _is_wanted(point: Any, known: tuple[int, float] | None, replaces: bool) -> bool:
    """Whether the run lacks a point, or has another and older value of one that replaces it.

    MLflow removes no point: of one name and step it shows the newest.
    """
    return known is None or (replaces and known[0] < point[2] and known[1] != point[1])


def _known_points(client: "MlflowClient", run_id: str, points: list[Any]) -> dict[tuple[str, int], tuple[int, float]]:
    """Newest time and value of each name and step that the run already has.

    An interrupted training may have sent other values for them.
    """
    # Each history is a request; a new run has no names, and needs none.
    names = sorted({point[0] for point in points} & client.get_run(run_id).data.metrics.keys())
    histories = [client.get_metric_history(run_id, name) for name in names]
    metrics = sorted((metric for history in histories for metric in history), key=lambda each: each.timestamp)
    return {(each.key, each.step): (each.timestamp, each.value) for each in metrics}


def _send_files(client: "MlflowClient", run_id: str, files: Path | None, path: str | None) -> None:
    address = str(client.get_run(run_id).info.artifact_uri)
    if address.startswith("mlflow-artifacts:") and not client.tracking_uri.startswith("http"):
        raise NeedsServer(
            f"the files of run {run_id} go through a server to {address}, and {without_password(client.tracking_uri)} "
            "is none: start `dyformer up`, which sends what waits"
        )
    client.log_artifacts(run_id, str(files), path)


def _artifact(client: "MlflowClient", run_id: str, record: Record, files: Path | None) -> None:
    _send_files(client, run_id, files, record["path"] or None)


def _dataset(client: "MlflowClient", run_id: str, record: Record, files: Path | None) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    context = InputTag("mlflow.data.context", record["context"])
    client.log_inputs(run_id, datasets=[DatasetInput(Dataset(**record["dataset"]), [context])])


def _finish(client: "MlflowClient", run_id: str, record: Record, files: Path | None) -> None:
    client.set_terminated(run_id, status=record["status"], end_time=record["time"])


def _register(client: "MlflowClient", run_id: str, record: Record, files: Path | None) -> str:
    name = record["model"]
    if files is not None:  # in records of earlier versions
        _send_files(client, run_id, files, MODEL_PATH)
    _ensure_model(client, name)
    known = client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'", max_results=1)
    source = f"{client.get_run(run_id).info.artifact_uri}/{MODEL_PATH}"
    version = known[0] if known else client.create_model_version(name, source, run_id, tags=record["tags"])
    for tag, value in record["tags"].items() if known else ():
        client.set_model_version_tag(name, version.version, tag, value)
    if record.get("description"):  # records of earlier versions have none
        client.update_model_version(name, version.version, record["description"])
    for alias in record["aliases"]:
        client.set_registered_model_alias(name, alias, version.version)
    return str(version.version)


def _ensure_model(client: "MlflowClient", name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


APPLY = {
    "start": _start,
    "params": _params,
    "tags": _tags,
    "metrics": _metrics,
    "artifact": _artifact,
    "dataset": _dataset,
    "finish": _finish,
    "register": _register,
}
