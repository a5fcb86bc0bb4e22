"""A store before each command of a retraining, what it holds after it, and the effects of the command on files.

The store is a folder, or lies in S3 (`remote_store`); then the folder is its state, and the effects are requests.
"""

import atexit
import gc
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from children import Ended, run
from contents import age, contents, differences
from ingests import DATASET, write_logs
from side_effects import Act, Effects, ignore

import storage.bytes.files
from flows.tasks.ingest import ingest_log
from flows.tasks.tracking.projection import project
from storage.layout import Layout

if TYPE_CHECKING:
    from remote_store import RemoteStore

TWO_DAYS = 172_800.0
END = "end"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Undisturbed runs of all commands, each on the store that the earlier ones left."""

    folder: Path
    stages: Mapping[str, Callable[[], object]]
    remote: "RemoteStore | None" = None
    after: dict[str, dict[str, Any]] = field(default_factory=dict)
    effects: dict[str, list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)  # of commands that a sweep compares with others

    @property
    def store(self) -> Path:
        """Folder of the store, or of its state, of every try, because a store has its own address inside."""
        return self.disk / "store"

    @property
    def disk(self) -> Path:
        """Folder of the store and of the raw files."""
        return self.folder / "disk"

    def restore(self, stage: str) -> None:
        """Make the store as it was before a command."""
        shutil.rmtree(self.store, ignore_errors=True)
        shutil.copytree(self.folder / "before" / stage, self.store, symlinks=True)
        if self.remote is not None:
            self.remote.restore(stage)

    def save(self, stage: str) -> None:
        """Copy the store as it is before a command."""
        shutil.copytree(self.store, self.folder / "before" / stage)
        if self.remote is not None:
            self.remote.save(stage)

    def run(self, function: Callable[[], Any], act: Act | None = None, *, kill_after: float | None = None) -> Ended:
        """Run a function on the store in a child, whose effects are numbered where `act` is given."""

        def command() -> list[str] | None:
            if act is None:
                return function() and None
            effects = Effects(self.store, act).install()
            function()
            return effects.names

        return self.read(command, kill_after=kill_after)

    def read(self, function: Callable[[], Any], *, kill_after: float | None = None) -> Ended:
        """Run a function in a child, and give its result."""
        return run(function, kill_after=kill_after, **self.environment)

    def names(self, end: Ended) -> list[str]:
        """Names of the effects of a command that has ended, or of its requests."""
        return end.value if self.remote is None else self.remote.proxy.requests()

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a command."""
        own = {"DYFORMER_STORAGE": str(self.store), "TMPDIR": str(self.folder / "tmp")}
        return own if self.remote is None else own | {"DYFORMER_STATE": str(self.store)} | self.remote.environment

    def wrong_after(self, stage: str, last: str | None = None) -> list[str]:
        """Do a command and those up to `last`, and list what an undisturbed run has not.

        The next ingest removes what killed ones left.
        """
        names = list(self.stages)
        last = stage if last is None else last

        def again() -> dict[str, Any]:
            for name in names[names.index(stage) : names.index(last) + 1]:
                self.stages[name]()
            return self.sent_and_cleaned()

        end = self.read(again)
        if end.code:
            return [f"the same command again ended with {end.code}: {end.output[-1500:]}"]
        wrong = differences(end.value, self.after[last])
        if last == "train" and wrong and all(line.startswith("run ") for line in wrong):
            return self.wrong_after(stage, "track")  # it sends to MLflow what a training could not in its last instant
        return wrong

    def sent_and_cleaned(self) -> dict[str, Any]:
        """Send first what a run could not send to MLflow, as the next run does: a database may be locked for long."""
        project(Layout.from_environment())
        return self.cleaned()

    def cleaned(self) -> dict[str, Any]:
        age(self.store, TWO_DAYS)
        if self.remote is not None:
            storage.bytes.files.LEFTOVER_SECONDS = -TWO_DAYS  # of objects, whose times the server sets
        ingest_log(DATASET, {}, lambda text: None)
        return contents()


def prepared(folder: Path, stages: Mapping[str, Callable[[], object]], remote: "RemoteStore | None" = None) -> Prepared:
    """Run every command once, undisturbed, each after the earlier ones."""
    gc.collect()
    gc.freeze()  # so that the children share the memory
    atexit.register(gc.unfreeze)  # or DuckDB would report leaks at the end
    made = Prepared(folder=folder, stages=stages, remote=remote)
    (folder / "before").mkdir()
    (folder / "tmp").mkdir()
    made.disk.mkdir(exist_ok=True)  # it may be mounted already
    made.store.mkdir()
    write_logs(made.disk)
    for stage, command in stages.items():
        made.save(stage)
        end = made.run(command, ignore)
        assert end.code == 0, f"{stage}: {end.output}"
        made.effects[stage], made.seconds[stage] = made.names(end), end.seconds
        read = made.read(made.cleaned)
        assert read.code == 0, f"{stage}: {read.output}"
        assert not read.value["damage"] + read.value["files of no command"], f"{stage}: {read.value}"
        made.after[stage] = read.value
    made.save(END)
    return made
