"""A run's values -> calls to MLflow, each safe to repeat.

A run is found by its key, metrics carry their time and step, a file has one path, and a run registers one model. A call
whose response was lost can therefore be repeated without duplicates. MLflow refuses none of them twice, so of two
processes one searches and creates at a time: see `turn` of `storage.tracking.runs`.

MLflow records absolute addresses. Without `follow_store`, the runs of a copied store would write their files into the
store that it was copied from, and those of a moved store into a folder that nobody looks at.
"""

import os
import socket
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from dyformer import InvalidInput
from storage.bytes import objects
from storage.bytes.files import temporary_name
from storage.layout import Layout
from storage.tracking.addresses import database_of, without_password
from storage.tracking.view import view_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PREFIX = "dyformer-"  # of the experiments, see `experiment_name`
RUN_KEY = "dyformer.run_key"
MODEL_PATH = "model"  # of the registered model among a run's files
REGISTERED = """What each retraining published, a version each; its tag `method` is the method that forecasts.

Programs load `models:/{name}@champion`, the version that publishes now."""
SERVER_FAILED = 500  # the least status of a response by which a server says that it failed itself
MOST_TEXTS = 100  # settings or tags that MLflow accepts in one call
PERMANENT = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE"}
CONNECT_SECONDS = 2.0
LOCKED_SECONDS = 3.0

ENVIRONMENT = {  # mlflow reads it when it is imported or called; a variable that the user has set stays
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # the next projection retries; mlflow's own retries take minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # MLflow prints tracebacks of errors that are caught here
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Where MLflow records the addresses of files, as table and column."""


class NeedsServer(InvalidInput):
    """Files of an experiment that a server made, which are sent to it alone."""


class Point(NamedTuple):
    """One value of a curve."""

    name: str
    value: float
    moment: int  # milliseconds
    step: int
    replaces: bool  # an older value of the step, or stays away where there is one


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

    The caller has the turn of `storage.tracking.runs`, so that no other process makes it.
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


def is_of_one_run(error: Exception) -> bool:
    """Whether MLflow refuses a run for good, or a file of it, or needs a server for it: others can be sent."""
    from mlflow.exceptions import MlflowException
    from requests import HTTPError

    if isinstance(error, HTTPError):  # such as a file that is too large for a proxy
        return error.response is not None and error.response.status_code < SERVER_FAILED
    return isinstance(error, NeedsServer) or (isinstance(error, MlflowException) and error.error_code in PERMANENT)


def ensure_run(
    client: "MlflowClient", experiment: str, artifact_root: str | None, name: str, tags: Mapping[str, str]
) -> tuple[str, str]:
    """Find the run with the key among these tags, or create its experiment and the run; returns the ids of both.

    Of several runs with the key, which machines without a common lock may create, the oldest one stays.
    """
    experiment_id = _ensure_experiment(client, experiment, artifact_root)
    earlier_runs = runs_of_key(client, experiment, tags[RUN_KEY])
    for run in earlier_runs[1:]:
        _remove_run(client, experiment, run.info.run_id)
    if earlier_runs:
        return experiment_id, earlier_runs[0].info.run_id
    return experiment_id, client.create_run(experiment_id, tags=dict(tags), run_name=name).info.run_id


def runs_of_key(client: "MlflowClient", experiment: str, key: str) -> "list[Run]":
    """List the runs with a key, the oldest first."""
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return []
    runs = client.search_runs([found.experiment_id], filter_string=f"tags.`{RUN_KEY}` = '{key}'")
    return sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))


def _remove_run(client: "MlflowClient", model: str, run_id: str) -> None:
    for version in client.search_model_versions(f"run_id = '{run_id}'"):
        client.delete_model_version(model, version.version)
    client.delete_run(run_id)


def _ensure_experiment(client: "MlflowClient", name: str, artifact_root: str | None) -> str:
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return experiment.experiment_id
    try:
        location = artifact_root and f"{artifact_root}/{name}"
        return client.create_experiment(name, artifact_location=location, tags=view_tags())
    except MlflowException:
        experiment = client.get_experiment_by_name(name)  # another process may have made it
        if experiment is None:
            raise
        return experiment.experiment_id


def send_params(client: "MlflowClient", run_id: str, texts: Mapping[str, str]) -> None:
    """Set the settings of a run."""
    from mlflow.entities import Param

    params = [Param(name, value) for name, value in texts.items()]
    for first in range(0, len(params), MOST_TEXTS):
        client.log_batch(run_id, params=params[first : first + MOST_TEXTS])


def send_tags(client: "MlflowClient", run_id: str, texts: Mapping[str, str]) -> None:
    """Set tags of a run; the newest value of each is kept."""
    from mlflow.entities import RunTag

    tags = [RunTag(name, value) for name, value in texts.items()]
    for first in range(0, len(tags), MOST_TEXTS):
        client.log_batch(run_id, tags=tags[first : first + MOST_TEXTS])


def send_points(client: "MlflowClient", run_id: str, points: Sequence[Point]) -> None:
    """Send the points that a run lacks, and those that replace another and older value.

    MLflow removes no point: of one name and step it shows the newest.
    """
    from mlflow.entities import Metric

    sent = _known_points(client, run_id, points)
    metrics = [
        Metric(point.name, point.value, point.moment, point.step)
        for point in points
        if _is_wanted(point, sent.get((point.name, point.step)))
    ]
    for first in range(0, len(metrics), 1000):  # MLflow accepts no more in one call
        client.log_batch(run_id, metrics=metrics[first : first + 1000])


def _is_wanted(point: Point, known: tuple[int, float] | None) -> bool:
    return known is None or (point.replaces and known[0] < point.moment and known[1] != point.value)


def _known_points(
    client: "MlflowClient", run_id: str, points: Sequence[Point]
) -> dict[tuple[str, int], tuple[int, float]]:
    """Newest time and value of each name and step that the run already has.

    An interrupted training may have sent other values for them.
    """
    # Each history is a request; a new run has no names, and needs none.
    names = sorted({point.name for point in points} & client.get_run(run_id).data.metrics.keys())
    histories = [client.get_metric_history(run_id, name) for name in names]
    metrics = sorted((metric for history in histories for metric in history), key=lambda each: each.timestamp)
    return {(metric.key, metric.step): (metric.timestamp, metric.value) for metric in metrics}


def send_files(client: "MlflowClient", run_id: str, files: Path, path: str | None) -> None:
    """Upload a folder into a folder of the run. Raises NeedsServer, if the files go through one and there is none."""
    check_server(client, run_id, str(client.get_run(run_id).info.artifact_uri))
    client.log_artifacts(run_id, str(files), path)


def check_server(client: "MlflowClient", run_id: str, address: str) -> None:
    """Raise NeedsServer if the files of a run go through a server, and there is none."""
    if address.startswith("mlflow-artifacts:") and not client.tracking_uri.startswith("http"):
        raise NeedsServer(
            f"the files of run {run_id} go through a server to {address}, and {without_password(client.tracking_uri)} "
            "is none: start `dyformer up`, which sends what waits"
        )


def send_dataset(client: "MlflowClient", run_id: str, described: Mapping[str, Any]) -> None:
    """Name the data that a run read."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    context = InputTag("mlflow.data.context", "training")
    client.log_inputs(run_id, datasets=[DatasetInput(Dataset(**described), [context])])


def register(
    client: "MlflowClient",
    run_id: str,
    name: str,
    tags: Mapping[str, str],
    aliases: Sequence[str],
    description: str,
) -> str:
    """Register the uploaded model of a run, once, with these tags, aliases and description; returns the version."""
    _ensure_model(client, name)
    versions = client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'", max_results=1)
    source = f"{client.get_run(run_id).info.artifact_uri}/{MODEL_PATH}"
    version = versions[0] if versions else client.create_model_version(name, source, run_id, tags=dict(tags))
    for tag, value in tags.items() if versions else ():
        client.set_model_version_tag(name, version.version, tag, value)
    client.update_model_version(name, version.version, description)
    for alias in aliases:
        client.set_registered_model_alias(name, alias, version.version)
    return str(version.version)


def _ensure_model(client: "MlflowClient", name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name, description=REGISTERED.format(name=name))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def follow_store(layout: Layout) -> None:
    """Replace the folder of files that the experiments of the store's own database have by the one of this store.

    Experiments of others stay as they are, and so do ours whose files do not lie in a folder of this machine named as
    ours, such as those that a server alone can read. A database beside the store (DYFORMER_STATE) may be of several.
    """
    database, artifact_root = database_of(layout.tracking_database), layout.tracking_artifacts
    if layout.state != layout.root or database is None or not database.exists():
        return
    with closing(sqlite3.connect(database, timeout=LOCKED_SECONDS, isolation_level=None)) as connection:
        for left in _other_roots(connection, artifact_root):
            connection.execute("begin immediate")
            for table, column in COLUMNS:
                connection.execute(
                    f"update {table} set {column} = ? || substr({column}, ?) where substr({column}, 1, ?) = ?",  # noqa: S608
                    (artifact_root, len(left) + 1, len(left) + 1, f"{left}/"),
                )
            connection.execute("commit")


def _other_roots(connection: sqlite3.Connection, artifact_root: str) -> set[str]:
    """Find the folders of files of a store that this one is a copy of: a server names an experiment's by its number."""
    rows = connection.execute("select name, experiment_id, artifact_location from experiments").fetchall()
    ending = f"/{Path(artifact_root).name}"
    folders = [
        (folder, location) for name, number, location in rows if name.startswith(PREFIX) for folder in (name, number)
    ]
    roots = {where.removesuffix(f"/{folder}") for folder, where in folders if where.endswith(f"{ending}/{folder}")}
    return {root for root in roots if root.startswith("/") and root.endswith(ending)} - {artifact_root}
