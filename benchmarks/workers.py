"""Vectors, PageRank rows and forecasts of s1m: two workers beside one, in two networks of this machine, with a token.

    python benchmarks/workers.py [STORE] [s10k|s100k|s1m]

Each node of the Ray cluster has a network namespace of its own, one CPU and one worker; a pair of virtual devices joins
them. It needs root, the extra `ray`, and a machine whose two cores do nothing else. Every measurement is a process of
its own beside the head; its parts are made by fresh workers, whose start and whose reading of the graph count. The two
clusters are measured in turn. What is kept in STORE (by default a temporary folder) is not made again.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import measure

NETWORKS = {"dyformer-a": "10.250.0.1", "dyformer-b": "10.250.0.2"}
DEVICES = ("dyformer-veth-a", "dyformer-veth-b")
HEAD = f"{NETWORKS['dyformer-a']}:6379"
ROUNDS = 3
LEAST_RATIO, MOST_GB = 1.6, 0.45
KINDS = ("vectors", "pagerank", "forecasts")  # forecasts have no target of speed, and must be equal
CHANGES = {"pretrain": "none", "finetune.epochs": 1, "finetune.batches_per_epoch": 10}
SECONDS_TO_START = 60.0


def make(kind: str) -> dict[str, Any]:
    """Make an artifact anew; give its seconds and its digest."""
    from dyformer.experiments.settings import Experiment
    from flows.tasks.models import DYFORMER, Contender
    from flows.tasks.predict import write_forecasts, write_vectors
    from flows.tasks.prepare import prepare_tables
    from flows.tasks.snapshots import make_snapshots, newest_until
    from flows.tasks.train import train_model
    from storage.artifacts.artifact import digest
    from storage.bytes import files

    snapshots = make_snapshots("scale")
    until, experiment = newest_until(snapshots), Experiment().changed(CHANGES)
    model = train_model(snapshots, until, experiment)
    vectors = write_vectors(snapshots, model) if kind == "forecasts" else ""
    if kind == "model":
        return {}
    started = time.monotonic()
    if kind == "vectors":
        address = write_vectors(snapshots, model)
    elif kind == "pagerank":
        address = prepare_tables(snapshots, until, experiment)["pagerank"]
    else:
        address = write_forecasts(snapshots, Contender(title=DYFORMER, models=(model,)), vectors)
    made = {"seconds": time.monotonic() - started, "digest": digest(address)}
    for folder in filter(None, (address, vectors)):  # nothing is left for the next measurement
        files.remove_folder(folder)
    return made


def settings_of(token: str, **own: str) -> dict[str, str]:
    """Give the environment of a node and of a driver."""
    ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_worker_niceness": "0"}
    return {**os.environ, **ray, "PYTHONPATH": str(Path(__file__).resolve().parents[1]), **own}


def ip(*words: str) -> None:
    """Call the program `ip`."""
    subprocess.run(["ip", *words], check=True)


@contextmanager
def networks() -> Iterator[None]:
    """Make two network namespaces that reach each other and nothing else."""
    with ExitStack() as made:
        for name in NETWORKS:
            ip("netns", "add", name)
            made.callback(ip, "netns", "delete", name)
        ip("link", "add", DEVICES[0], "type", "veth", "peer", "name", DEVICES[1])
        for device, (name, address) in zip(DEVICES, NETWORKS.items(), strict=True):
            ip("link", "set", device, "netns", name)
            ip("-n", name, "address", "add", f"{address}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield


@contextmanager
def node(name: str, token: str) -> Iterator[None]:
    """Start the head, or the other node, in its network; stop it at the end."""
    is_head = NETWORKS[name] in HEAD
    role = ["--head", "--port=6379", "--include-dashboard=false"] if is_head else [f"--address={HEAD}"]
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # a short name: it holds sockets
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *role]
        command += [f"--node-ip-address={NETWORKS[name]}", "--num-cpus=1", "--disable-usage-stats"]
        command += [f"--temp-dir={folder}"] if is_head else []
        log = Path(folder) / "log"
        with log.open("w") as output:
            process = subprocess.Popen(command, env=settings_of(token), stdout=output, stderr=output, cwd=folder)
        end = time.monotonic() + SECONDS_TO_START
        while "runtime started" not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{name} did not start:\n{log.read_text()}")
            time.sleep(0.1)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


class Memory(threading.Thread):
    """The largest memory of its own that a worker of Ray had, in GB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.gigabytes, self.ended = 0.0, threading.Event()

    def run(self) -> None:
        """Look at all processes twice a second until `ended` is set."""
        import psutil

        while not self.ended.wait(0.5):
            for process in psutil.process_iter(["name"]):
                if process.info["name"].startswith("ray::"):
                    try:
                        self.gigabytes = max(self.gigabytes, process.memory_full_info().uss / 1e9)
                    except psutil.Error:  # it has ended
                        continue


def measured(kind: str, token: str, address: str = HEAD) -> dict[str, Any]:
    """Make an artifact in a process beside the head, by the workers of the cluster; give `make`, and their memory."""
    memory = Memory()
    memory.start()
    command = ["ip", "netns", "exec", "dyformer-a", sys.executable, __file__, "make", kind]
    own = settings_of(token, DYFORMER_RAY_ADDRESS=address, DYFORMER_NO_PROGRESS="1")
    output = subprocess.run(command, env=own, check=True, stdout=subprocess.PIPE, text=True).stdout
    memory.ended.set()
    memory.join()
    return {**json.loads(output.splitlines()[-1]), "gigabytes": memory.gigabytes}


def fill(store: Path, size: str) -> None:
    """Make the log's snapshots and a model, unless they exist."""
    import scale

    for stage in ("generate", "ingest", "snapshots"):
        if not (store / f"{stage}.done").exists():
            print(f"{stage}: {scale.STAGES[stage](size, store)}", flush=True)
            (store / f"{stage}.done").touch()
    make("model")


def main(store: Path, size: str) -> None:
    """Measure clusters of one and of two nodes in turn, and print the verdicts."""
    os.environ["DYFORMER_STORAGE"] = str(store / "store")
    fill(store, size)
    token, found = secrets.token_hex(16), {(kind, num): [] for kind in KINDS for num in (1, 2)}
    with networks():
        for round_number in range(ROUNDS):
            for num in (1, 2):
                with ExitStack() as nodes:
                    for name in list(NETWORKS)[:num]:
                        nodes.enter_context(node(name, token))
                    for kind in KINDS if round_number == 0 else KINDS[:2]:
                        found[kind, num].append(measured(kind, token))
                        row = found[kind, num][-1]
                        print(f"{kind}, workers {num}: {row['seconds']:.1f} s, {row['gigabytes']:.2f} GB", flush=True)
    for kind in KINDS:
        rows = [*found[kind, 1], *found[kind, 2]]
        assert len({row["digest"] for row in rows}) == 1, f"{kind} differ"
        if kind != "forecasts":
            seconds = [[row["seconds"] for row in found[kind, num]] for num in (1, 2)]
            measure.verdict(f"{size}-{kind}-two-workers", measure.ratios(*seconds), LEAST_RATIO)
            measure.verdict(
                f"{size}-{kind}-worker", max(row["gigabytes"] for row in rows), MOST_GB, at_most=True, unit="GB"
            )
    print("equal digests of one and two workers: " + ", ".join(KINDS))


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        print(json.dumps(make(sys.argv[2])))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
            folder.mkdir(parents=True, exist_ok=True)
            main(folder, sys.argv[2] if len(sys.argv) > 2 else "s1m")
