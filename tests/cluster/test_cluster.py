"""Ranges on a Ray cluster: the digests of one process, and a named error for each kind of node that cannot be used."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import polars as pl
import pytest
import torch
from cluster_ranges import NODE, RANGES, bytes_not_freed, numbers, shared_in, with_pid
from own_log import own_log
from own_snapshots import ingest_own

from dyformer.experiments.settings import Experiment
from dyformer.experiments.studies.studies import STUDIES, Study
from flows import cluster as cluster_module
from flows.cli import main
from flows.cluster import (
    ClusterUnreachable,
    NodeDiffers,
    TokenRefused,
    WorkersFailed,
    _check_token,
    _named_errors,
    check_cluster,
    done_on,
)
from flows.parallel import CLUSTER, Shared, map_ranges, remove_parts
from flows.service import doctor
from flows.tasks.models import DYFORMER, Contender
from flows.tasks.predict import write_forecasts, write_vectors
from flows.tasks.prepare import prepare_tables
from flows.tasks.snapshots import make_snapshots
from flows.tasks.train import train_model
from storage.artifacts.artifact import MANIFEST, digest
from storage.bytes import files
from storage.layout import Layout

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
TOKEN = "a" * 32
FEW = ("--include-log-monitor=false", "--no-monitor")  # processes of a node that nothing here reads
SECONDS = 60.0
TINY = {"batches_per_epoch": 1, "epochs": 1}
SETTINGS = {f"{stage}.{name}": value for stage in ("pretrain", "finetune") for name, value in TINY.items()}


def settings_of_ray(**changes: str) -> dict[str, str]:
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_worker_niceness": "0", "PYTHONPATH": paths}
    own["RAY_memory_monitor_refresh_ms"] = "0"
    own["RAY_prestart_worker_first_driver"] = "0"  # it has not our environment, so that no job uses it
    own["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "1"  # of a node whose job goes on; Ray's own default is 30
    return {**os.environ, **own, **changes}


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {SECONDS} s"
        time.sleep(0.05)


@contextmanager
def node(*options: str, **changes: str) -> Iterator[Path]:
    """Start one node of a cluster, whose files lie in a folder of a short name; stop it."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    command += ["--disable-usage-stats", f"--temp-dir={folder}", "--object-store-memory=80000000", *FEW, *options]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, env=settings_of_ray(**changes), stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
    try:
        wait_for(lambda: "runtime started" in (folder / "log").read_text(), "a node starts")
        yield folder
    finally:
        process.terminate()
        try:
            process.wait(SECONDS)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def one_worker() -> Iterator[str]:
    """Start a head with a worker, to which tests add nodes; give its address."""
    with node("--head", "--port=0", "--num-cpus=1", "--include-dashboard=false") as folder:
        named = folder / "ray_current_cluster"
        wait_for(lambda: named.exists() and bool(named.read_text().strip()), "the head names its address")
        yield named.read_text().strip()


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def starts(shared: Shared) -> list[int]:
    return [int(line.split()[0]) for line in Path(shared.values["log"]).read_text().splitlines()]


def pids(shared: Shared, start: int) -> list[int]:
    lines = [line.split() for line in Path(shared.values["log"]).read_text().splitlines()]
    return [int(pid) for first, pid in lines if int(first) == start]


def rows_of(shared: Shared) -> list[int]:
    """Make the ranges, or read those that are made, and give their rows."""
    return pl.concat(map_ranges(numbers, RANGES, shared))["number"].to_list()


def digests_of(folder: Path, monkeypatch: pytest.MonkeyPatch, address: str | None) -> dict[str, str]:
    """Make what is made of ranges in a store, which is the same every time, with a cluster or without."""
    monkeypatch.setattr("flows.parallel.RANGE_NODES", 8)
    monkeypatch.setenv("DYFORMER_STORAGE", str(folder / "store"))
    monkeypatch.setenv(CLUSTER, "") if address is None else monkeypatch.setenv(CLUSTER, address)
    if not (folder / "store").exists():
        ingest_own(folder)
    snapshots = make_snapshots("mylog")
    model = train_model(snapshots, 8, Experiment().changed({**SETTINGS, "model.width": 16, "model.num_context": 20}))
    vectors = write_vectors(snapshots, model)
    made = {
        "pagerank": prepare_tables(snapshots, 8, Experiment())["pagerank"],
        "vectors": vectors,
        "forecasts": write_forecasts(snapshots, Contender(title=DYFORMER, models=(model,)), vectors, k=3),
    }
    digests = {kind: digest(address) for kind, address in made.items()}
    assert not files.find(Layout.from_environment().artifacts("part", "mylog"))
    for address in made.values():
        files.remove_folder(address)
    return digests


def test_digests_are_equal_for_no_one_and_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: str):
    alone = digests_of(tmp_path, monkeypatch, None)
    made, sizes = [], []

    def noted(address: str, layout: Layout, jobs: Sequence[Callable[[], None]]) -> Iterator[object]:
        made.append(len(jobs))
        sizes.extend(len(cloudpickle.dumps(job)) for job in jobs)
        return done_on(address, layout, jobs)

    monkeypatch.setattr("flows.cluster.done_on", noted)
    assert digests_of(tmp_path, monkeypatch, one_worker) == alone
    with node(f"--address={one_worker}", "--num-cpus=1"):
        assert digests_of(tmp_path, monkeypatch, one_worker) == alone
    half = len(made) // 2
    assert half == len(alone)
    assert made[:half] == made[half:]
    assert min(made) > 1
    assert max(sizes) < 5_000  # bytes: addresses and settings, no graph


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, plain_functions: None) -> tuple[str, ...]:
    """Define an experiment of two methods, whose runs no server and no MLflow has; give their titles."""
    titles = ("Adamic-Adar", "DyFormer")
    study = Study(sentence="two methods", rows=dict.fromkeys(titles), datasets=("mylog",), paper={"all": {}})
    monkeypatch.setitem(STUDIES, "toy", study)
    monkeypatch.setattr("flows.commands.benchmark.announced", nullcontext)
    monkeypatch.setattr("flows.benchmark.record_task", lambda *given: "no record")
    for module in ("flows.benchmark", "flows.commands.studies"):
        monkeypatch.setattr(f"{module}.track_task", lambda *given: None)
    return titles


def run_toy(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, bytes]:
    """Run the experiment by the command, in a store of its own; give the contents of its files by name."""
    folder.mkdir()
    monkeypatch.setenv("DYFORMER_STORAGE", str(folder / "store"))
    monkeypatch.setenv(CLUSTER, "")  # the option sets it
    ingest_own(folder)
    changes = {**SETTINGS, "model.width": 16, "model.num_context": 20}
    sets = [part for name, value in changes.items() for part in ("--set", f"{name}={value}")]
    which = ("--experiment", "toy", "--datasets", "mylog", "--steps", "4", "--out", str(folder / "out"))
    with pytest.raises(SystemExit) as ending:
        main(["benchmark", *which, *sets, *options])
    assert ending.value.code == 0
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir()}


def digests_of_trials() -> dict[str, str]:
    """Give the digests of all results and models by their address in the store."""
    layout, digests = Layout.from_environment(), {}
    for kind in ("scores", "model"):
        for manifest in files.find(layout.artifacts(kind, "mylog"), MANIFEST):
            address = manifest.removesuffix(f"/{MANIFEST}")
            digests[layout.relative(address)] = digest(address)
    return digests


def without_progress(text: str) -> str:
    """Leave out the lines that come on a busy machine alone, one each quarter of a minute."""
    return re.sub(r"^.*\d s (left|so far)\n", "", text, flags=re.MULTILINE)


def test_an_experiment_of_the_program_has_its_trials_on_the_cluster(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    one_worker: str,
    toy: tuple[str, ...],
):
    workers, after_trials = [], []

    def noted(address: str, layout: Layout, jobs: Sequence[Callable[[], Any]]) -> Iterator[tuple[int, Any]]:
        for number, (pid, result) in done_on(address, layout, [partial(with_pid, job) for job in jobs]):
            workers.append(pid)
            yield number, result
        after_trials.append(digests_of_trials())

    monkeypatch.setattr("flows.cluster.done_on", noted)
    written = run_toy(tmp_path / "on", monkeypatch, "--on", one_worker)
    output, digests = capsys.readouterr().out, digests_of_trials()
    assert f"trials of toy: 2, on the cluster at {one_worker}\n" in output
    assert len(workers) == 2
    assert os.getpid() not in workers
    assert len(digests) == 4  # two results, and two models
    assert after_trials == [digests]  # so that the command itself has made none of them
    assert run_toy(tmp_path / "no", monkeypatch) == written
    outputs = output, capsys.readouterr().out.replace(str(tmp_path / "no"), str(tmp_path / "on"))
    tables, expected = (text.partition("all ended, 0 of them in an earlier run\n")[2] for text in outputs)
    assert without_progress(tables) == without_progress(expected) != ""
    assert all(title in tables for title in toy)
    assert digests_of_trials() == digests
    assert len(workers) == 2


def test_a_run_of_the_program_uses_the_cluster(tmp_path: Path, one_worker: str):
    log = own_log(tmp_path / "mylog.csv")
    text = f"""
from flows import cluster, parallel
from flows.cli import main
parallel.RANGE_NODES, done_on = 8, cluster.done_on
def noted(address, layout, jobs):
    with open({str(tmp_path / "done")!r}, "a") as file:
        file.write("".join(f"{{job.args[2].whole.lineage.kind}}\\n" for job in jobs))
    return done_on(address, layout, jobs)
cluster.done_on = noted
columns = ["--source", "user", "--target", "item", "--time", "created_at", "--max-bad", "5%"]
changes = [part for name, value in {SETTINGS!r}.items() for part in ("--set", f"{{name}}={{value}}")]
changes += ["--set", "model.width=16"]
main(["run", "mylog", "--log", {str(log)!r}, *columns, *changes, "--on", {one_worker!r}])
"""
    settings = settings_of_ray(DYFORMER_STORAGE=str(tmp_path / "store"), PREFECT_HOME=str(tmp_path / "prefect"))
    with (tmp_path / "output").open("w") as output:
        command = [sys.executable, "-c", text]
        done = subprocess.run(command, env=settings, stdout=output, stderr=output, cwd=tmp_path, check=False)
    assert done.returncode == 0, (tmp_path / "output").read_text()
    assert "forecasts" in (tmp_path / "done").read_text().split()


def test_rows_are_in_order_and_parts_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: str):
    monkeypatch.setenv(CLUSTER, one_worker)
    shared = shared_in(tmp_path)
    assert rows_of(shared) == list(range(20))
    assert os.getpid() not in {pid for rows in RANGES for pid in pids(shared, rows.start)}
    assert all(shared.part(rows).is_current for rows in RANGES)
    remove_parts(RANGES, shared)
    assert not files.find(shared.layout.root)


def test_a_worker_has_one_thread_and_frees_memory_at_once(tmp_path: Path, one_worker: str):
    jobs = [pl.thread_pool_size, torch.get_num_threads, bytes_not_freed]
    results = dict(done_on(one_worker, Layout(str(tmp_path)), jobs))
    assert (results[0], results[1]) == (1, 1)
    assert results[2] < 20_000_000


def test_a_killed_worker_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: str):
    monkeypatch.setenv(CLUSTER, one_worker)
    shared = shared_in(tmp_path, stay=10)
    Path(shared.values["gate"]).touch()
    driver = driver_of(tmp_path, one_worker)
    wait_for(lambda: 10 in starts(shared), "the third range begins")
    os.kill(pids(shared, 10)[0], signal.SIGKILL)
    Path(shared.values["gate"]).unlink()
    assert driver.wait(SECONDS) == 0, (tmp_path / "driver").read_text()
    assert all(shared.part(rows).is_current for rows in RANGES)
    assert rows_of(shared) == list(range(20))
    assert starts(shared).count(10) >= 2
    assert starts(shared).count(0) == 1


def test_a_driver_that_was_killed_reuses_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: str):
    monkeypatch.setenv(CLUSTER, one_worker)
    shared = shared_in(tmp_path, stay=10)
    Path(shared.values["gate"]).touch()
    driver = driver_of(tmp_path, one_worker)
    wait_for(lambda: 10 in starts(shared), "the third range begins")
    driver.kill()
    driver.wait(SECONDS)
    made = [rows.start for rows in RANGES if shared.part(rows).is_current]
    assert made
    Path(shared.values["gate"]).unlink()
    assert rows_of(shared) == list(range(20))
    assert all(starts(shared).count(start) == 1 for start in made)


def test_the_part_of_a_node_that_is_removed_is_made_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: str
):
    monkeypatch.setenv(CLUSTER, one_worker)
    shared = shared_in(tmp_path, stay=10)
    Path(shared.values["gate"]).touch()
    with node(f"--address={one_worker}", "--num-cpus=1", **{NODE: "removed"}):
        driver = driver_of(tmp_path, one_worker, only="removed")
        # It begins there, as the other worker stays in its first range.
        wait_for(lambda: 10 in starts(shared), "the third range begins")
    Path(shared.values["gate"]).unlink()
    assert driver.wait(SECONDS) == 0, (tmp_path / "driver").read_text()
    assert rows_of(shared) == list(range(20))
    assert all(shared.part(rows).is_current for rows in RANGES)
    assert [starts(shared).count(rows.start) for rows in RANGES] == [1, 1, 2, 1]
    removed, other = pids(shared, 10)
    assert removed != other
    assert removed in [*pids(shared, 0), *pids(shared, 5)]  # whose part is there, and is not made again


def test_no_node_that_is_left_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: str):
    monkeypatch.setenv(CLUSTER, one_worker)
    monkeypatch.setattr("flows.cluster.SECONDS_BETWEEN_LOOKS", 0.5)
    monkeypatch.setattr("flows.cluster.SECONDS_WITHOUT_WORKER", 2.0)
    shared, nodes = shared_in(tmp_path, stay=10), cluster_module._workers
    Path(shared.values["gate"]).touch()

    def gone() -> list[dict[str, Any]]:
        return [] if 10 in starts(shared) else nodes()

    monkeypatch.setattr("flows.cluster._workers", gone)
    with pytest.raises(ClusterUnreachable, match="has had no node with a CPU for 2 seconds: start one there"):
        rows_of(shared)
    monkeypatch.setattr("flows.cluster._workers", nodes)
    Path(shared.values["gate"]).unlink()
    assert rows_of(shared) == list(range(20))


@pytest.mark.parametrize("url", [None, "127.0.0.1:8265"])
def test_the_dashboard_of_the_cluster_is_named_once(
    url: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    one_worker: str,
):
    _check_token()
    import ray

    honest = ray.init
    cluster_module._name_dashboard.cache_clear()

    def connected(**options: Any) -> SimpleNamespace:
        honest(**options)
        return SimpleNamespace(dashboard_url=url)

    monkeypatch.setattr(ray, "init", connected)
    for _ in range(2):
        with cluster_module._connected(one_worker):  # as each use of a cluster begins
            pass
    assert capsys.readouterr().err.splitlines() == ([f"Ray's dashboard: http://{url}"] if url else [])


def test_workers_without_memory_are_an_error_after_some_retries():
    _check_token()
    from ray.exceptions import OutOfMemoryError  # not before: Ray reads its settings once

    assert dict(os.environ)["RAY_task_oom_retries"] == "3"  # Ray's own default is to try for ever
    remedy = r"low on memory\): start Ray with fewer CPUs there .* then give the same command"
    with pytest.raises(WorkersFailed, match=remedy), _named_errors("the cluster"):
        raise OutOfMemoryError("1 worker(s) were killed due to the node running low on memory")


def test_parts_are_made_while_the_objects_of_another_program_are_spilled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: str
):
    monkeypatch.setenv(CLUSTER, one_worker)
    text = f"""
from pathlib import Path
import numpy, ray
ray.init(address={one_worker!r}, log_to_driver=False)
held = [ray.put(numpy.full(30_000_000, number, dtype="u1")) for number in range(4)]  # the store has 80 million bytes
print("full", flush=True)
input()
print(all((ray.get(each) == number).all() for number, each in enumerate(held)))
session = Path(ray.nodes()[0]["ObjectStoreSocketName"]).parents[1]
print(sum(path.stat().st_size for path in session.glob("ray_spilled_objects*/*")))
"""
    other = subprocess.Popen(
        [sys.executable, "-c", text], env=settings_of_ray(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "full\n"
    shared = shared_in(tmp_path)
    assert rows_of(shared) == list(range(20))
    output, _ = other.communicate("\n", timeout=SECONDS)
    assert other.returncode == 0
    are_equal, num_bytes = output.split()
    assert are_equal == "True"
    assert int(num_bytes) > 30_000_000


def driver_of(folder: Path, address: str, **values: str) -> "subprocess.Popen[bytes]":
    """Start a process that maps the ranges of `shared_in` and stays in the third one."""
    text = f"""
from pathlib import Path
from cluster_ranges import RANGES, numbers, shared_in
from flows.parallel import map_ranges
map_ranges(numbers, RANGES, shared_in(Path({str(folder)!r}), stay=10, **{values!r}))
"""
    with (folder / "driver").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-c", text], env=settings_of_ray(**{CLUSTER: address}), stdout=log, stderr=log, cwd=folder
        )


@pytest.mark.parametrize("address", ["ray://host:10001", "auto", "localhost", "127.0.0.1:1", "a..b:6379"])
def test_what_is_no_head_is_refused(address: str, tmp_path: Path):
    with pytest.raises(ClusterUnreachable, match=r"HOST:PORT|can be reached"):
        check_cluster(address, Layout(str(tmp_path)))
    [finding] = doctor._cluster(address, Layout(str(tmp_path)))
    assert finding.outcome == "wrong"


@pytest.mark.parametrize(
    ("response", "reason"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "another program"), (b"", "timed")]
)
def test_the_port_of_another_program_is_refused_within_seconds(
    response: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("flows.cluster.SECONDS_TO_RESPOND", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def respond() -> socket.socket:
            connection, _ = listener.accept()
            connection.sendall(response)
            return connection

        accepted = pool.submit(respond)
        with pytest.raises(ClusterUnreachable, match=f"can be reached at .*{reason}"):
            check_cluster(f"127.0.0.1:{listener.getsockname()[1]}", Layout(str(tmp_path)))
        accepted.result().close()


def test_a_cluster_needs_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: str):
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(TokenRefused, match="there is no token"):
        check_cluster(one_worker, Layout(str(tmp_path)))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(TokenRefused, match="whoever reaches a cluster without a token runs code"):
        check_cluster(one_worker, Layout(str(tmp_path)))


def test_another_token_is_refused(tmp_path: Path, one_worker: str):
    text = f"from flows.cluster import *\ncheck_cluster({one_worker!r}, Layout({str(tmp_path)!r}))"
    settings = settings_of_ray(RAY_AUTH_TOKEN="b" * 32)
    ended = subprocess.run(
        [sys.executable, "-c", text], env=settings, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert "TokenRefused" in ended.stderr
    assert "its token is another one" in ended.stderr


def test_a_node_with_other_code_whose_workers_yield_to_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: str
):
    for package in ("dyformer", "storage", "flows"):
        shutil.copytree(ROOT / package, tmp_path / "other" / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "other" / "dyformer" / "experiments" / "extras.py").open("a") as stream:
        stream.write("\nCHANGED = True\n")
    monkeypatch.chdir(tmp_path)  # Ray's workers search the driver's working directory first
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "driver.py")])  # and that of its script
    changes = {"PYTHONPATH": str(tmp_path / "other"), "RAY_worker_niceness": "15"}
    problem = r"niceness is 15, expected 0; code is '\w+', expected '\w+'"
    remedy = "start Ray on that node with RAY_worker_niceness=0; install the same version"
    layout = Layout(str(tmp_path / "store"))
    with node(f"--address={one_worker}", "--num-cpus=1", **changes):
        with pytest.raises(NodeDiffers, match=f"{problem}: {remedy}"):
            check_cluster(one_worker, layout)
        found = list(doctor._cluster(one_worker, layout))
    assert sorted(finding.outcome for finding in found) == ["ok", "wrong"]
    [wrong] = [finding for finding in found if finding.outcome == "wrong"]
    assert wrong.remedy.startswith(remedy)
