"""A page of a server on another port of this machine, which tries to read and to change what our servers hold."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from browser import Browser

# Each attempt of the page, by every way in which a page may call a server. A Blob without a type is sent without a
# question to the server whether the page may, and Prefect reads it as JSON. A response that a page may not read is
# "opaque"; whether the request had an effect is seen at the server.
PAGE = """<!doctype html><title>a page</title><body>working<script>
const {prefect: PREFECT = "", mlflow: MLFLOW = "", serve: SERVE = ""} = %(servers)s;
const DEPLOYMENT = %(deployment)s, FILE = %(file)s;
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
const form = (url, name) => new Promise(done => {
    const frame = document.createElement("iframe"); frame.name = "frame" + Math.random();
    document.body.append(frame);
    const sent = document.createElement("form");
    sent.action = url; sent.method = "post"; sent.target = frame.name; sent.enctype = "text/plain";
    const field = document.createElement("input"); field.name = name; field.value = '"}';
    sent.append(field); document.body.append(sent);
    frame.onload = () => done({type: "opaque", status: 0}); sent.submit();
});
const named = {name: "hostile"}, byForm = '{"name":"hostile","x":"';
const events = {events: [{source: "hostile", target: "p1", time: "2026-01-01T00:00:00Z"}]};
const attempts = {
    ...(PREFECT && {
        "create a flow": () => open(`${PREFECT}/flows/`, named),
        "create a flow silently": () => silent(`${PREFECT}/flows/`, named),
        "create a flow by a form": () => form(`${PREFECT}/flows/`, byForm),
        "create a run": () => open(`${PREFECT}/deployments/${DEPLOYMENT}/create_flow_run`, hostile),
        "create a run silently": () => silent(`${PREFECT}/deployments/${DEPLOYMENT}/create_flow_run`, hostile),
        "read runs": () => open(`${PREFECT}/flow_runs/filter`, {}),
        "read the version": () => open(`${PREFECT}/admin/version`),
        "listen to events": () => socket(PREFECT.replace("http", "ws") + "/events/out"),
        "send events": () => socket(PREFECT.replace("http", "ws") + "/events/in"),
    }),
    ...(MLFLOW && {
        "create an experiment": () => open(`${MLFLOW}/api/2.0/mlflow/experiments/create`, named),
        "create an experiment silently": () => silent(`${MLFLOW}/api/2.0/mlflow/experiments/create`, named),
        "create an experiment by a form": () => form(`${MLFLOW}/api/2.0/mlflow/experiments/create`, byForm),
        "read experiments": () => open(`${MLFLOW}/api/2.0/mlflow/experiments/search?max_results=9`),
    }),
    ...(SERVE && {
        "add an event": () => open(`${SERVE}/events`, events),
        "add an event silently": () => silent(`${SERVE}/events`, events),
        "add an event by a form": () => form(`${SERVE}/events`, JSON.stringify(events).slice(0, -1) + ',"x":"'),
        "read a ranking": () => open(`${SERVE}/rank/u3`),
        "read the metrics": () => open(`${SERVE}/metrics`),
        "open the page": () => open(`${SERVE}/?source=u3`),
    }),
};
(async () => {
    const outcomes = {};
    for (const [name, attempt] of Object.entries(attempts))
        try { const found = await attempt(); outcomes[name] = `${found.type} ${found.status}`; }
        catch (error) { outcomes[name] = "refused"; }
    document.title = JSON.stringify(outcomes); document.body.innerText = "finished";
})();
</script>"""


@contextmanager
def other_page(folder: Path, text: str) -> Iterator[str]:
    """Serve a page on another port of this machine."""
    folder.mkdir()
    (folder / "index.html").write_text(text)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def opened(tab: Browser, folder: Path, servers: Mapping[str, str], *, deployment: str = "", file: str = "") -> set[str]:
    """Let the page make its attempts at `prefect`, `mlflow` or `serve`; assert that it reads nothing; give their names.

    Whether what it sent without reading the response had an effect is seen at the server.
    """
    values = {"servers": dict(servers), "deployment": deployment, "file": file}
    with other_page(folder, PAGE % {name: json.dumps(value) for name, value in values.items()}) as address:
        tab.open(address, "finished")
        outcomes = json.loads(tab.run("document.title"))
    is_silent = {name: name.endswith((" silently", " by a form")) for name in outcomes}
    assert {name: outcome for name, outcome in outcomes.items() if not is_silent[name]} == dict.fromkeys(
        [name for name in outcomes if not is_silent[name]], "refused"
    )
    assert {outcome for name, outcome in outcomes.items() if is_silent[name]} <= {"opaque 0", "refused"}
    return set(outcomes)
