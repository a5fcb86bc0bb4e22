"""`dyformer serve` under load -> latencies of rankings beside events, from the moment at which each request was due.

The server is a process of its own, and so is this load generator. Arrivals are open: a request is due at its time
whether or not earlier ones have a response, so that a server that stands still is charged for all who wait. The load
generator collects no garbage while it sends: a collection held it for up to 0.2 s, which the server was charged for.

    python benchmarks/serving.py [--seconds 30] [--ranks 200] [--events 1000] [--a-post 50] [--store FOLDER]
"""

import argparse
import asyncio
import base64
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

NAME = "load"
NUM_SOURCES, NUM_TARGETS, NUM_STORED = 5_000, 10_000, 60_000
START = 1_700_000_000_000_000
TARGET_MILLISECONDS = 20.0
WARM_UP = 5.0  # seconds that are not measured
SECONDS_IDLE = 3.0  # of a connection that is used again; the server closes it after 5


def log_text(seed: int = 0) -> str:
    """Make events of a month: most go to a few usual targets of their source, and every target occurs."""
    generator = np.random.default_rng(seed)
    source_E = (generator.random(NUM_STORED) ** 2 * NUM_SOURCES).astype(int)
    usual_E = (source_E * 7 + generator.integers(0, 3, NUM_STORED)) % NUM_TARGETS
    target_E = np.where(generator.random(NUM_STORED) < 0.7, usual_E, generator.integers(0, NUM_TARGETS, NUM_STORED))
    target_E[:NUM_TARGETS] = generator.permutation(NUM_TARGETS)
    time_E = START + np.sort(generator.integers(0, 30 * 86_400, NUM_STORED)) * 1_000_000
    rows = zip(source_E.tolist(), target_E.tolist(), time_E.tolist(), strict=True)
    return "user,page,time\n" + "".join(f"u{source},p{target},{moment}\n" for source, target, moment in rows)


def prepare(store: Path) -> None:
    """Ingest the log and fit the forecaster, unless the store has them."""
    from flows.tasks.event_state import make_model, newest_model
    from flows.tasks.ingest import ingest_log
    from storage.layout import Layout

    layout, file = Layout(str(store)), store.with_name("load.csv")
    file.write_text(log_text())
    reading = {"log": str(file), "bipartite": True, "time_unit": "us", "window": "1d"}
    ingest_log(NAME, reading, lambda text: None, layout=layout)
    if newest_model(layout, NAME) is None:
        make_model(NAME, layout=layout)


class Connections:
    """Connections to one server that are used again, as many as there are requests at a time."""

    def __init__(self, address: str, login: str) -> None:
        """Remember the server and its login."""
        parts = urlsplit(address)
        self.host, self.port = parts.hostname, parts.port
        token = base64.b64encode(login.encode()).decode()
        self.headers = f"Host: {parts.netloc}\r\nAuthorization: Basic {token}\r\n"
        # Those without a request, each with the time since when; the newest last.
        self._free: list[tuple[float, tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = []

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        since, streams = self._free.pop() if self._free else (0.0, None)
        if streams is None or time.monotonic() - since > SECONDS_IDLE:
            streams = await asyncio.open_connection(self.host, self.port)
        yield streams
        self._free.append((time.monotonic(), streams))

    async def send(self, method: str, path: str, body: bytes = b"") -> int:
        """Send a request and read its response; give the status."""
        async with self._connection() as (reader, writer):
            length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
            writer.write(f"{method} {path} HTTP/1.1\r\n{self.headers}{length}\r\n".encode() + body)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.partition("content-length:")[2].partition("\r\n")[0]))
            return int(head.split(maxsplit=2)[1])


async def load(address: str, login: str, given: argparse.Namespace) -> dict[str, list[float]]:
    """Send rankings and events at random times; give the milliseconds of each kind of request."""
    generator = np.random.default_rng(1)
    connections, lasting = Connections(address, login), given.seconds + WARM_UP
    due: list[tuple[float, str]] = []
    for kind, rate in (("/rank", given.ranks), ("/events", given.events / given.a_post)):
        times = np.cumsum(generator.exponential(1 / rate, int(2 * rate * lasting) + 10)) if rate else np.zeros(0)
        due += [(float(moment), kind) for moment in times[times < lasting]]
    spent: dict[str, list[float]] = defaultdict(list)
    started, moment_of_log = time.perf_counter() + 0.5, START + 31 * 86_400 * 1_000_000

    async def request(moment: float, kind: str, number: int) -> None:
        sources = (generator.random(given.a_post) ** 2 * NUM_SOURCES).astype(int)
        if kind == "/rank":
            status = await connections.send("GET", f"/rank/u{sources[0]}?k=10{given.query}")
        else:
            at = moment_of_log + int(1e6 * moment)
            targets = generator.integers(0, NUM_TARGETS, given.a_post)
            events = [
                {"source": f"u{source}", "target": f"p{target}", "time": at}
                for source, target in zip(sources.tolist(), targets.tolist(), strict=True)
            ]
            status = await connections.send("POST", "/events", json.dumps({"events": events}).encode())
        assert status == 200, (kind, status)
        if moment >= WARM_UP:
            spent[kind].append(1e3 * (time.perf_counter() - started - moment))

    requests = []
    for number, (moment, kind) in enumerate(sorted(due)):
        await asyncio.sleep(max(0.0, started + moment - time.perf_counter()))
        requests.append(asyncio.create_task(request(moment, kind, number)))
    await asyncio.gather(*requests)
    return spent


def main() -> None:
    """Start the server on a store with the log, send the load, print the latencies, and stop it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--ranks", type=float, default=200.0, help="rankings a second")
    parser.add_argument("--events", type=float, default=1_000.0, help="events a second")
    parser.add_argument("--a-post", type=int, default=50, help="events of a request")
    parser.add_argument("--query", default="", help="more of a ranking's address, such as &reasons=false")
    parser.add_argument("--store", type=Path, help="a store that is made once; each load has a copy")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store, served = given.store or Path(folder) / "store", Path(folder) / "served"
        prepare(store)
        shutil.copytree(store, served)  # events of an earlier load would make those of this one late
        measure(served, given)


def measure(store: Path, given: argparse.Namespace) -> None:
    """Serve a store in a process of its own, and print what the load gave."""
    from flows.live.running import ADDRESS, LOGIN, login_file
    from flows.service.running import read_variables
    from storage.layout import Layout

    file = login_file(Layout(str(store)), NAME)
    file.unlink(missing_ok=True)
    command = [sys.executable, "-c", "from flows.cli import main; main()", "--storage", str(store), "serve", NAME]
    server = subprocess.Popen(command)
    try:
        while not read_variables(file):
            assert server.poll() is None, "the server did not start"
            time.sleep(0.1)
        found = read_variables(file)
        before, own, started = _cpu_seconds(server.pid), time.process_time(), time.monotonic()
        gc.collect()
        gc.disable()
        spent = asyncio.run(load(found[ADDRESS], found[LOGIN], given))
        gc.enable()
        seconds = time.monotonic() - started  # longer than the load where the server does not follow it
        busy, generator = _cpu_seconds(server.pid) - before, time.process_time() - own
        print(
            f"load: {given.ranks:.0f} rankings of 10 among {NUM_TARGETS:,} targets and {given.events:.0f} events"
            f" a second ({given.a_post} a request) for {given.seconds:.0f} s after {WARM_UP:.0f} s"
        )
        for kind, milliseconds in spent.items():
            p50, p90, p99 = np.percentile(milliseconds, [50, 90, 99])
            print(
                f"{kind} requests {len(milliseconds):,} p50 {p50:.1f} ms p90 {p90:.1f} ms p99 {p99:.1f} ms"
                f" greatest {max(milliseconds):.1f} ms"
            )
        met = np.percentile(spent["/rank"], 99) <= TARGET_MILLISECONDS
        print(f"p99 of rankings at most {TARGET_MILLISECONDS:.0f} ms: {'met' if met else 'missed'}")
        print(
            f"CPU: server {busy / seconds:.2f} cores, load generator {generator / seconds:.2f} cores;"
            f" load average {' '.join(f'{each:.1f}' for each in os.getloadavg())} on {os.cpu_count()} cores"
        )
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
