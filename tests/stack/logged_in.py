"""`dyformer up` with a browser that is logged in at both servers, with what `dyformer login` prints."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from browser import Browser, browser
from stack_processes import Up, command, running


@dataclass(frozen=True, kw_only=True)
class LoggedIn:
    """A running stack, a tab of a browser that is logged in, and the folder of both."""

    up: Up
    tab: Browser
    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"


@contextmanager
def logged_in_browser(folder: Path) -> Iterator[LoggedIn]:
    """Start a stack and a browser, log in, and end both at the end."""
    with browser(folder / "profile") as tab, running(folder / "store") as up:
        log_in(tab, up)
        yield LoggedIn(up=up, tab=tab, folder=folder)


def log_in(tab: Browser, up: Up) -> None:
    """Log in where the pages require it once."""
    pages = [line.split()[1] for line in up.lines if re.match(r"(Prefect|MLflow):", line)]
    printed = command(Path(up.environment["DYFORMER_STORAGE"]), "login").stdout
    [(prefect, user, password)] = re.findall(r"Prefect +\S+  (\S+)\nMLflow +\S+  user (\S+), password (\S+)\n", printed)
    tab.logins[up.record["mlflow"]] = (user, password)
    tab.open(pages[0], "Login")
    tab.write(prefect)
    tab.wait("Deployments", "reconcile")
    tab.open(pages[1], "Experiments")
    tab.open(pages[1], "Experiments")
    assert tab.requested == [up.record["mlflow"]]  # once
