"""Claims about the command as a process: its login, its lock, and no acknowledged event lost or doubled by SIGKILL."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
from free_ports import free_port
from live_logs import NAME, rows_of

from flows.live.running import ADDRESS, LOGIN, login_file
from flows.service.running import read_variables
from flows.tasks.event_state import make_model
from flows.tasks.ingest import ingest_log
from storage.events.table import scan_events

NEXT = rows_of()[-1][2] + 10
SECONDS = 120.0
NUM_KILLS = 10
COMMAND = [  # where tests run in the background, it would ignore Ctrl-C
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from flows.cli import main; main()",
]


def started(store, *options):
    """Start the server as a process of its own and wait until it serves; give it, its address and its login."""
    environment = {**os.environ, "DYFORMER_STORAGE": store.root}
    login_file(store, NAME).unlink(missing_ok=True)
    process = subprocess.Popen([*COMMAND, "serve", NAME, *options], env=environment, stderr=subprocess.PIPE)
    until = time.monotonic() + SECONDS
    while True:
        found = read_variables(login_file(store, NAME))
        try:
            if found and httpx.get(f"{found[ADDRESS]}/health").status_code == 200:
                user, _, password = found[LOGIN].partition(":")
                return process, found[ADDRESS], (user, password)
        except httpx.TransportError:
            pass
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)


def ended(process, sent):
    process.send_signal(sent)
    _, error = process.communicate(timeout=SECONDS)
    return process.returncode, error.decode()


@pytest.fixture
def modelled(store):
    """Give the store with a forecaster, which the process would fit with all its trees."""
    make_model(NAME, layout=store)
    return store


def post_until_it_ends(address, login, thread, acknowledged):
    with httpx.Client(base_url=address, auth=login, timeout=10.0) as client:
        for number in range(100_000):
            name = f"sender-{thread}-{number}"
            events = [{"source": name, "target": "p1", "time": NEXT + number // 10}]
            try:
                answer = client.post("/events", json={"events": events * 2})
            except httpx.TransportError:
                return
            assert answer.status_code == 200, answer.text
            acknowledged.append(name)


def test_no_acknowledged_event_is_lost_or_doubled_by_kills(modelled):
    acknowledged: list[str] = []
    for kill in range(NUM_KILLS):
        process, address, login = started(modelled, "--port", str(free_port()))
        senders = [
            threading.Thread(target=post_until_it_ends, args=(address, login, f"{10 * kill + each}", acknowledged))
            for each in range(3)
        ]
        for sender in senders:
            sender.start()
        time.sleep(0.3 + 0.1 * kill)
        if kill == 1:  # an ingest at the same time takes what there is
            ingest_log(NAME, {}, lambda text: None, layout=modelled)
        code, _ = ended(process, signal.SIGKILL)
        assert code == -signal.SIGKILL
        for sender in senders:
            sender.join()
    for _ in range(2):
        ingest_log(NAME, {}, lambda text: None, layout=modelled)
    sources = scan_events(modelled, NAME).collect()["source"].to_list()
    counts = Counter(name for name in sources if name.startswith("sender-"))
    assert len(acknowledged) > 30
    assert {counts[name] for name in acknowledged} == {2}
    assert set(counts.values()) == {2}, "a request is committed as a whole"
    assert len(counts) - len(acknowledged) <= 3 * NUM_KILLS, (
        "one that a sender had on its way at each kill may be there, too"
    )


def test_a_server_has_a_login_that_only_its_user_reads_and_is_alone(modelled):
    process, address, login = started(modelled)
    file = login_file(modelled, NAME)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert httpx.get(f"{address}/rank/u3").status_code == 401
    assert httpx.get(f"{address}/rank/u3", auth=login).status_code == 200
    assert httpx.get(f"{address}/rank/u3", auth=login, headers={"host": "evil.example"}).status_code == 403
    second = subprocess.run(
        [*COMMAND, "serve", NAME],
        env={**os.environ, "DYFORMER_STORAGE": modelled.root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode != 0
    assert "runs already" in second.stderr
    code, _ = ended(process, signal.SIGINT)
    assert code == 0
    assert not Path(file).exists()
