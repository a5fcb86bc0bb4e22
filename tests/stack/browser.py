"""Chromium without a window -> the texts, requests and pictures of pages, by its DevTools protocol."""

import base64
import io
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from websockets.sync.client import connect
from websockets.sync.connection import Connection

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # a container's root has none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
# MLflow opens an assistant beside a page of a local server, the first time.
NO_ASSISTANT = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
SCROLL = """[...document.querySelectorAll('*')].filter(each => each.innerText && each.innerText.includes(TEXT))
    .pop().scrollIntoView({block: 'center'})"""
# A file is shown while it is read, and its first lines may name what the last ones have.
SHOWN = """document.body && (document.readyState == 'complete' || location.protocol != 'file:')
    ? document.body.innerText : ''"""
SECONDS = 60.0
COLORS = 128  # of a picture, which is a third as large then


@dataclass(kw_only=True)
class Browser:
    """A tab."""

    socket: Connection
    session: str = ""
    requests: list[str] = field(default_factory=list)
    """Addresses that the tab requested, since it opened its page."""
    logins: dict[str, tuple[str, str]] = field(default_factory=dict)
    """User and password for each server that requires them in a window of the browser, by its address."""
    requested: list[str] = field(default_factory=list)
    """Servers that required a login."""
    _number: int = 0

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        number = self._send(method, parameters)
        while True:
            received = json.loads(self.socket.recv(timeout=SECONDS))
            self._take(received.get("method"), received.get("params"))
            if received.get("id") == number:
                assert "error" not in received, f"{method}: {received['error']}"
                return received["result"]

    def _send(self, method: str, parameters: dict[str, Any]) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self.socket.send(json.dumps(message | ({"sessionId": self.session} if self.session else {})))
        return self._number

    def _take(self, method: str | None, event: Any) -> None:
        """Remember a request of the page, and do what a user does in the login window."""
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Fetch.requestPaused":
            self._send("Fetch.continueRequest", {"requestId": event["requestId"]})
        elif method == "Fetch.authRequired":
            server = event["authChallenge"]["origin"]
            self.requested.append(server)
            given = {"response": "CancelAuth"}
            if server in self.logins and self.requested.count(server) == 1:
                user, password = self.logins[server]
                given = {"response": "ProvideCredentials", "username": user, "password": password}
            self._send("Fetch.continueWithAuth", {"requestId": event["requestId"], "authChallengeResponse": given})

    def open(self, url: str, *texts: str) -> str:
        """Open a page, wait until it shows all texts, and return all that it shows."""
        self.call("Page.navigate", url="about:blank")  # because an address that differs in its #part alone opens none
        self.requests.clear()
        self.call("Page.navigate", url=url)
        return self.wait(*texts)

    def wait(self, *texts: str) -> str:
        """Wait until the page shows all texts, in any case of letters; return all that it shows."""
        until = time.monotonic() + SECONDS
        while True:
            text = self.run(SHOWN)
            missing = [each for each in texts if each.lower() not in text.lower()]
            if not missing:
                return text
            assert time.monotonic() < until, f"the page does not show {missing}, but:\n{text[:6000]}"
            time.sleep(0.5)

    def run(self, script: str) -> Any:
        """Evaluate an expression of JavaScript on the page; its value has to be plain."""
        evaluated = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in evaluated, evaluated["exceptionDetails"]
        return evaluated["result"].get("value")

    def write(self, text: str) -> None:
        """Write a text where the page waits for one, and press Enter."""
        self.run("document.querySelector('input').focus()")
        self.call("Input.insertText", text=text)
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
            )

    def picture(self, file: Path, *, width: int = 1280, height: int = 800, around: str = "") -> None:
        """Write what the tab shows as a PNG of few colors; with `around` the part of the page with this text."""
        self.size(width, height)
        time.sleep(1.5)  # until animations end
        if around:
            self.run(SCROLL.replace("TEXT", json.dumps(around)))
            time.sleep(1.5)
        taken = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.open(io.BytesIO(taken)).convert("RGB").quantize(COLORS).save(file, optimize=True)

    def size(self, width: int, height: int) -> None:
        """Set the size of the tab, in pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)


def program() -> str:
    """Path of Chromium; skips the test where there is none, and fails it on CI."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        reason = "Chromium is missing: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile in a folder, and end it."""
    command = [program(), *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
    with (folder.parent / "chromium.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        # Without pings, because a browser that nobody looks at for minutes may respond late; each call has its time.
        address = _address(folder / "DevToolsActivePort", process)
        with connect(address, max_size=None, ping_interval=None, open_timeout=SECONDS) as socket:
            tab = Browser(socket=socket)
            target = tab.call("Target.createTarget", url="about:blank")["targetId"]
            tab.session = tab.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for part in ("Page", "Runtime", "Network"):
                tab.call(f"{part}.enable")
            tab.call("Fetch.enable", handleAuthRequests=True)
            tab.call("Page.addScriptToEvaluateOnNewDocument", source=NO_ASSISTANT)
            tab.size(1280, 800)
            yield tab
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def _address(file: Path, process: "subprocess.Popen[bytes]") -> str:
    """Wait for the file with the port that Chromium chose."""
    until = time.monotonic() + SECONDS
    while not (file.exists() and len(file.read_text().splitlines()) == 2):
        assert process.poll() is None, "Chromium ended"
        assert time.monotonic() < until, "Chromium did not start"
        time.sleep(0.2)
    port, path = file.read_text().splitlines()
    return f"ws://127.0.0.1:{port}{path}"
