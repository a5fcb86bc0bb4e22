"""The whole stack, and `dyformer up`, for the tests of this folder: started once by each process that runs some.

The files of a group run one after another in one process, so that what they need is started once, and the processes
begin with the groups that take the longest. By itself pytest-xdist begins with the files of the most tests, which are
short.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compose_stack import Stack, compose_stack, ends, missing_programs
from filelock import FileLock
from logged_in import LoggedIn, logged_in_browser
from retrainings import published, started
from stack_processes import wait_until
from weekly_log import rows_of
from xdist.scheduler import LoadScopeScheduling

from storage.layout import Layout

FOLDER = Path(__file__).parent
GROUPS = (
    ("test_servers_away.py",),  # the stack of the compose file runs for three of the groups
    ("test_old_runs.py", "test_killed_runs.py", "test_prefect_away.py", "test_secrets.py"),
    ("test_chain.py", "test_started_runs.py"),
    # One group, because a process that has two tests left gets the next group, and these two may be long.
    ("test_pages.py", "test_attacks.py", "test_up.py", "test_serve_page.py", "test_report_layout.py"),
)
GROUP_OF = {name: names[0] for names in GROUPS for name in names}  # in this order


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the files of this folder into the order of the groups; a new file is the last."""
    order = {name: number for number, name in enumerate(GROUP_OF)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)) if item.path.parent == FOLDER else -1)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Give a whole group to a process, in place of a file; `--dist loadgroup` does not, under pytest 9.2."""
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group_of
    return scheduler


def group_of(nodeid: str) -> str:
    """Name the group of a test by its first file."""
    name = nodeid.partition("::")[0].rpartition("/")[2]
    return GROUP_OF.get(name, name)


@pytest.fixture(scope="session")
def logged_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggedIn]:
    """`dyformer up` on a new store, and a browser that is logged in."""
    with logged_in_browser(tmp_path_factory.mktemp("up")) as one:
        yield one


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    missing = missing_programs()
    if missing:
        reason = f"missing: {', '.join(missing)}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with compose_stack(tmp_path_factory.mktemp("stack")) as one:
        yield one


@pytest.fixture(scope="session")
def store(stack: Stack) -> Iterator[Layout]:
    """The store of the stack, as this process reads it."""
    own = stack.environment("worker-cpu")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            if name.startswith("AWS_"):
                patch.setenv(name, value)
        yield Layout(own["DYFORMER_STORAGE"], own["DYFORMER_STATE"])


@pytest.fixture(scope="session")
def log(stack: Stack) -> Path:
    """A log in the folder that the workers see."""
    path = Path(stack.environment("worker-cpu")["DYFORMER_LOGS"]) / "faults.csv"
    path.write_bytes(rows_of(range(28)))
    return path


@pytest.fixture(scope="session")
def undisturbed(stack: Stack, store: Layout, log: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Champion and forecasts of a retraining that nothing disturbs.

    The first process that needs them makes them for all, because every stack has to give the same.
    """
    folder = tmp_path_factory.getbasetemp()
    made = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "undisturbed.json"
    with FileLock(made.with_suffix(".lock")):
        if not made.exists():
            begun = time.monotonic()
            ends(stack, started(stack, log, "undisturbed"))
            print(f"undisturbed: {time.monotonic() - begun:.0f} s")
            made.write_text(json.dumps(published(store, "undisturbed")))
    return json.loads(made.read_text())


@pytest.fixture
def idle(stack: Stack) -> None:
    """Wait for a run that a failed test has left, so that the next test does not fail for it."""
    others = {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING", "SCHEDULED"]}}}}

    def is_idle() -> bool:
        return all(run["auto_scheduled"] for run in stack.request("/flow_runs/filter", others))

    wait_until(is_idle, 400, "a run of an earlier test goes on")
