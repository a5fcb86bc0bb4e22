"""Another page in the browser, another user of the machine and a forged name reach nothing of `dyformer up`."""

import json
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, browser
from stack_processes import Up, running, wait_until

from flows.service.login import MLFLOW, PREFECT
from flows.service.running import LOGIN

pytestmark = pytest.mark.stack

# Each attempt of the page, by every way in which a page may call a server. A Blob without a type is sent without a
# question to the server whether the page may, and Prefect reads it as JSON. A response that a page may not read is
# "opaque"; whether the request had an effect is seen at the server.
PAGE = """<!doctype html><title>a page</title><body>working<script>
const PREFECT = %(prefect)s, MLFLOW = %(mlflow)s, DEPLOYMENT = %(deployment)s, FILE = %(file)s;
const hostile = {name: "hostile", parameters: {dataset: "hostile"}, job_variables: {command: "touch " + FILE}};
const silent = (url, body) => fetch(url, {method: "POST", mode: "no-cors", credentials: "include",
                                          body: new Blob([JSON.stringify(body)])});
// Prefect's login is in no cookie, and where all origins are allowed, only requests without credentials are.
const open = (url, body) => fetch(url, {method: body ? "POST" : "GET",
    credentials: url.startsWith(PREFECT) ? "omit" : "include",
    headers: body ? {"content-type": "application/json"} : {}, body: body && JSON.stringify(body)});
const socket = (url) => new Promise((done, failed) => {
    const opened = new WebSocket(url, "prefect");
    opened.onopen = () => done({type: "socket", status: 101});
    opened.onerror = () => failed(new Error("refused"));
});
const form = (url) => new Promise(done => {
    const frame = document.createElement("iframe"); frame.name = "frame" + Math.random();
    document.body.append(frame);
    const sent = document.createElement("form");
    sent.action = url; sent.method = "post"; sent.target = frame.name; sent.enctype = "text/plain";
    const field = document.createElement("input"); field.name = '{"name":"hostile-form","x":"'; field.value = '"}';
    sent.append(field); document.body.append(sent);
    frame.onload = () => done({type: "opaque", status: 0}); sent.submit();
});
const attempts = {
    "create a run": () => open(`${PREFECT}/deployments/${DEPLOYMENT}/create_flow_run`, hostile),
    "create a run silently": () => silent(`${PREFECT}/deployments/${DEPLOYMENT}/create_flow_run`, hostile),
    "read runs": () => open(`${PREFECT}/flow_runs/filter`, {}),
    "read the version": () => open(`${PREFECT}/admin/version`),
    "listen to events": () => socket(PREFECT.replace("http", "ws") + "/events/out"),
    "send events": () => socket(PREFECT.replace("http", "ws") + "/events/in"),
    "create an experiment": () => open(`${MLFLOW}/api/2.0/mlflow/experiments/create`, {name: "hostile"}),
    "create an experiment silently": () => silent(`${MLFLOW}/api/2.0/mlflow/experiments/create`, {name: "hostile"}),
    "create an experiment by a form": () => form(`${MLFLOW}/api/2.0/mlflow/experiments/create`),
    "read experiments": () => open(`${MLFLOW}/api/2.0/mlflow/experiments/search?max_results=9`),
};
(async () => {
    const outcomes = {};
    for (const [name, attempt] of Object.entries(attempts))
        try { const found = await attempt(); outcomes[name] = `${found.type} ${found.status}`; }
        catch (error) { outcomes[name] = "refused"; }
    document.title = JSON.stringify(outcomes); document.body.innerText = "finished";
})();
</script>"""
SILENT = {"create a run silently", "create an experiment silently", "create an experiment by a form"}


@dataclass(kw_only=True)
class Target:
    """A running stack, a browser that is logged in at both servers, and a file that no attack may make."""

    up: Up
    tab: Browser
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "hostile"

    def runs(self) -> list[str]:
        return [run["name"] for run in self.up.request("/flow_runs/filter", {}) if not run["auto_scheduled"]]

    def experiments(self) -> list[str]:
        return [each["name"] for each in self.up.tracked("experiments/search?max_results=99")["experiments"]]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("attacks")
    with browser(folder / "profile") as tab, running(folder / "store") as up:
        tab.logins[up.record["mlflow"]] = (up.login[MLFLOW[0]], up.login[MLFLOW[1]])
        tab.open(up.record["prefect"].removesuffix("/api"), "Login")
        tab.write(up.login[PREFECT])
        tab.wait("Dashboard")
        tab.open(f"{up.record['mlflow']}/#/experiments", "Experiments")
        yield Target(up=up, tab=tab, folder=folder)


@contextmanager
def other_page(folder: Path, text: str) -> Iterator[str]:
    """Serve a page on another port of this machine."""
    folder.mkdir()
    (folder / "index.html").write_text(text)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_page_on_another_port_reads_and_does_nothing(target: Target) -> None:
    before = (target.runs(), target.experiments())
    deployment = target.up.request("/deployments/name/retrain/any")["id"]
    values = {"deployment": deployment, "file": str(target.file)}
    addresses = {name: target.up.record[name] for name in ("prefect", "mlflow")}
    text = PAGE % {name: json.dumps(value) for name, value in {**values, **addresses}.items()}
    with other_page(target.folder / "page", text) as address:
        target.tab.open(address, "finished")
        outcomes = json.loads(target.tab.run("document.title"))
    assert outcomes.keys() > SILENT
    assert {name: outcome for name, outcome in outcomes.items() if name not in SILENT} == dict.fromkeys(
        outcomes.keys() - SILENT, "refused"
    )
    assert {outcomes[name] for name in SILENT} <= {"opaque 0", "refused"}  # what was sent had no effect:
    assert (target.runs(), target.experiments()) == before
    assert not target.file.exists()


def curl(*arguments: str) -> list[str]:
    return ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", *arguments]


def requests_of(up: Up) -> list[tuple[str, ...]]:
    """Arguments of curl that read or change something at each server."""
    json_body = ("--header", "content-type: application/json", "--data", "{}")
    mlflow = f"{up.record['mlflow']}/api/2.0/mlflow"
    return [
        (f"{up.record['prefect']}/admin/version",),
        (*json_body, f"{up.record['prefect']}/flow_runs/filter"),
        (f"{mlflow}/experiments/search?max_results=9",),
        (*json_body, f"{mlflow}/experiments/create"),
        (f"{up.record['mlflow']}/",),
        (f"{up.record['mlflow']}/version",),
    ]


def test_another_user_is_refused_and_cannot_read_the_login(target: Target) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]

    def as_nobody(command: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*nobody, *command], capture_output=True, text=True, check=False, cwd="/")

    for arguments in requests_of(target.up):
        is_change = "--data" in arguments  # which Prefect refuses before the login, for want of a token
        assert as_nobody(curl(*arguments)).stdout in ("401", "403" if is_change else "401"), arguments
    service = target.folder / "store" / "service"
    for path in (target.folder, *target.folder.parents):  # pytest closes its folders, which a store's may not be
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    assert as_nobody(["ls", str(target.folder / "store")]).returncode == 0
    for path in (service, service / LOGIN, service / "prefect-server.log", service / "prefect" / "prefect.db"):
        assert path.exists()
        assert "Permission denied" in as_nobody(["ls" if path.is_dir() else "cat", str(path)]).stderr
    password = target.up.login[MLFLOW[1]]
    processes = as_nobody(
        ["sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' ' '"]
    ).stdout
    assert "flows.service.prefect_server" in processes
    assert password not in processes


def test_a_forged_name_is_refused_with_the_login(target: Target) -> None:
    assert shutil.which("curl")
    for login, arguments in zip((PREFECT,) * 2 + (None,) * 4, requests_of(target.up), strict=True):
        own = target.up.login[login] if login else ":".join(target.up.login[name] for name in MLFLOW)
        forged = curl("--user", own, "--header", "host: evil.example", *arguments)
        assert subprocess.run(forged, capture_output=True, text=True, check=True).stdout == "403", arguments
        foreign = curl("--user", own, "--header", "origin: http://127.0.0.1:1", *arguments)
        assert subprocess.run(foreign, capture_output=True, text=True, check=True).stdout == "403", arguments
    version = curl("--user", target.up.login[PREFECT], f"{target.up.record['prefect']}/admin/version")
    assert subprocess.run(version, capture_output=True, text=True, check=True).stdout == "200"


def test_a_run_chooses_no_command_with_the_login(target: Target) -> None:
    """The worker runs what is deployed, and nothing that a run brings, though the server took it."""
    deployment = target.up.request("/deployments/name/retrain/any")["id"]
    values: dict[str, Any] = {"command": f"touch {target.file}", "env": {"DYFORMER_STORAGE": "/hostile"}}
    body = {"parameters": {"dataset": "none"}, "job_variables": values}
    with pytest.raises(AssertionError, match="422"):
        target.up.request(f"/deployments/{deployment}/create_flow_run", body)
    given = {"flow_id": target.up.request("/flows/name/reconcile")["id"], "work_pool_name": "dyformer-cpu"}
    deployment = target.up.request("/deployments/name/reconcile/any")["id"]
    state = {"type": "SCHEDULED", "name": "Scheduled"}
    hostile = {**given, "deployment_id": deployment, "job_variables": values, "state": state, "name": "hostile"}
    run = target.up.request("/flow_runs/", {**hostile, "work_queue_name": "default"})["id"]
    try:
        final = ("COMPLETED", "FAILED", "CRASHED")
        wait_until(lambda: target.up.request(f"/flow_runs/{run}")["state_type"] in final, 120, "no end")
    finally:
        assert not target.file.exists()


def test_the_login_is_in_no_log_and_in_no_output(target: Target) -> None:
    password = target.up.login[MLFLOW[1]]
    assert password not in "\n".join(target.up.lines)
    for path in (target.folder / "store").rglob("*"):
        if path.is_file() and path.name != LOGIN:
            assert password.encode() not in path.read_bytes(), path
