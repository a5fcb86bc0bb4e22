"""Processes that share a training write what one process writes, whatever ends between."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from own_snapshots import own_snapshots
from torch import distributed

from dyformer.experiments.settings import Experiment
from dyformer.model.config import ModelConfig
from dyformer.training import ranks as messages
from dyformer.training.loop import TooManyRanks, TrainingDiverged
from dyformer.training.stages import id_bytes
from flows.tasks import ranks, train
from flows.tasks.ranks import RankLate, RankLost
from flows.tasks.train import EpochRow, ignore_epoch, train_model
from storage.artifacts.artifact import Lineage, read_bytes, read_table
from storage.artifacts.made import address_of
from storage.bytes import files
from storage.layout import WEIGHTS, Layout

UNTIL = 8
CHANGES = {
    **{
        f"{stage}.{name}": value
        for stage in ("pretrain", "finetune")
        for name, value in {
            "epochs": 4,
            "batches_per_epoch": 8,
            "batches_per_step": 4,
            "validation_batches": 3,
            "num_targets": 8,
            "num_negatives": 1,
        }.items()
    },
    "model.width": 16,
    "model.num_heads": 2,
    "model.num_context": 4,
    "pretrain.num_history_links": 2,
}
EXPERIMENT = Experiment().changed(CHANGES)


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYFORMER_STORAGE", str(folder / "store"))
        yield own_snapshots(folder)


@pytest.fixture(scope="module")
def alone(snapshots: str) -> tuple[bytes, list[EpochRow]]:
    """Train in one process."""
    return result(train_model(snapshots, UNTIL, EXPERIMENT))


def result(model: str) -> tuple[bytes, list[EpochRow]]:
    """Read the weights and the losses of a training, and remove it."""
    found = read_bytes(model, WEIGHTS), read_table(model, "losses").rows()
    files.remove_folder(model)
    return found


# The other process of a group: what it receives from the first one is printed.
RECEIVING = """
import sys
from pathlib import Path

import torch
from torch import distributed

from flows.tasks import ranks

ranks.SECONDS_TO_MEET = 5.0
print("ready", flush=True)
sys.stdin.readline()
with ranks.joined(1, 2, Path(sys.argv[1])):
    received = torch.zeros(1)
    distributed.broadcast(received, 0)
    print(received.item(), flush=True)
"""


def shared(num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYFORMER_RANKS", str(num))
    monkeypatch.setenv("PYTHONPATH", str(Path(ranks.__file__).parents[2]))  # the other processes run the same code
    monkeypatch.setattr(train, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)


FIRST = """
import os, sys, time
from contextlib import contextmanager
from pathlib import Path
from flows.tasks import ranks
joined = ranks.joined

@contextmanager
def stopped(index, num, folder):
    print(folder, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text(), flush=True)
    time.sleep(600)

@contextmanager
def met(index, num, folder):
    with joined(index, num, folder), stopped(index, num, folder):
        pass

ranks.joined, ranks.FOLLOWER = met if int(sys.argv[1]) else stopped, "waiting"
with ranks.shared_training({}, 2):
    pass
"""
WAITING = """
import torch
from flows.tasks import follow
follow.follow = lambda order, rank: rank.gathered(torch.zeros(1), 2)  # the other one comes from the first process
follow.main()
"""


# The other process is stopped when it awaits a large message, and killed; the message of another takes three seconds.
KILLED_WHILE_IT_RECEIVES = """
import os, time
from pathlib import Path
import torch
from dyformer.training import ranks as messages
from flows.tasks import ranks

codes = ranks._codes
def killed(others):
    others[0].kill()
    others[0].wait()
    return codes(others)

ranks.FOLLOWER, ranks._codes, messages.MOST_LOOKS = "stopping", killed, 1
try:
    with ranks.shared_training({"is_stopped": True}, 2) as rank:
        other = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().strip()
        while Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.05)
        rank.gathered(torch.zeros(1, 10_000_000), 2)
except ranks.RankLost as error:
    print(error, flush=True)
ranks._codes = codes
with ranks.shared_training({"is_stopped": False}, 2) as rank:
    print(rank.gathered(torch.full((1,), 7.0), 2).tolist(), flush=True)
"""
STOPPING = """
import os, signal, time
import torch
from torch import distributed
from flows.tasks import follow

def receive(order, rank):
    if order["is_stopped"]:
        received = distributed.broadcast(torch.zeros(1, 10_000_000), 0, async_op=True)
        time.sleep(1)  # until the first process knows that it is awaited
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3)
    rank.gathered(torch.full((1,), 8.0), 2)

follow.follow = receive
follow.main()
"""


class Ended(Exception):
    """Ends a training between two epochs."""


def ended_after(stage: str, epoch: int):
    def on_epoch(lineage: Lineage, rows: list[EpochRow]) -> None:
        if rows and rows[-1][:2] == (stage, epoch):
            raise Ended

    return on_epoch


def test_several_processes_write_the_bytes_of_one(
    snapshots: str, alone: tuple[bytes, list[EpochRow]], monkeypatch: pytest.MonkeyPatch
):
    shared(3, monkeypatch)  # two do so below, after a checkpoint
    assert result(train_model(snapshots, UNTIL, EXPERIMENT)) == alone


@pytest.mark.parametrize(("stage", "before", "after"), [("pretrain", 2, 1), ("finetune", 1, 2), ("finetune", 2, 3)])
def test_a_checkpoint_of_another_number_of_processes_is_resumed_to_the_same_bytes(
    snapshots: str,
    alone: tuple[bytes, list[EpochRow]],
    stage: str,
    before: int,
    after: int,
    monkeypatch: pytest.MonkeyPatch,
):
    shared(before, monkeypatch)
    with pytest.raises(Ended):
        train_model(snapshots, UNTIL, EXPERIMENT, 0, ended_after(stage, 3))
    shared(after, monkeypatch)
    epochs: list[tuple[str, int]] = []

    def on_epoch(lineage: Lineage, rows: list[EpochRow]) -> None:
        epochs.extend(row[:2] for row in rows[-1:])

    assert result(train_model(snapshots, UNTIL, EXPERIMENT, 0, on_epoch)) == alone
    assert next(epoch for name, epoch in epochs if name == stage) >= 2


def test_a_killed_process_is_named_and_the_same_command_goes_on_to_the_same_bytes(
    snapshots: str, alone: tuple[bytes, list[EpochRow]], monkeypatch: pytest.MonkeyPatch
):
    """A process is killed in the first stage, and one of those that go on with it in the second."""
    shared(2, monkeypatch)
    started = []

    class Popen(ranks.subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self.pid)

    for number, stage in enumerate(("pretrain", "finetune"), start=1):

        def on_epoch(lineage: Lineage, rows: list[EpochRow], stage: str = stage) -> None:
            if rows and rows[-1][:2] == (stage, 2):
                os.kill(started[-1], signal.SIGKILL)

        with monkeypatch.context() as patch:
            patch.setattr(ranks.subprocess, "Popen", Popen)
            with pytest.raises(RankLost, match=r"process 2 of the 2 .* \(killed by signal 9\): give the same command"):
                train_model(snapshots, UNTIL, EXPERIMENT, 0, on_epoch)
        assert len(started) == number
        with pytest.raises(ProcessLookupError):
            os.kill(started[-1], 0)
    assert result(train_model(snapshots, UNTIL, EXPERIMENT, 0, ignore_epoch)) == alone


@pytest.mark.parametrize("num", [1, 2])
def test_a_training_that_diverges_is_named_in_each_process_and_writes_nothing(
    snapshots: str, num: int, monkeypatch: pytest.MonkeyPatch
):
    shared(num, monkeypatch)
    experiment, seen, ended = EXPERIMENT.changed({"pretrain.id_learning_rate": 1e30}), [], []

    class Popen(ranks.subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.log = Path(options["stderr"].name)

        def kill(self):
            self.wait(timeout=60)  # by itself
            ended.append((self.returncode, self.log.read_text().splitlines()[-1]))
            super().kill()

    monkeypatch.setattr(ranks.subprocess, "Popen", Popen)
    with pytest.raises(TrainingDiverged, match="pretrain: the validation loss of epoch 1 is nan") as caught:
        train_model(snapshots, UNTIL, experiment, 0, lambda lineage, rows: seen.append((lineage, rows)))
    assert [rows for _, rows in seen] == [[]]
    assert not files.find(address_of(Layout.from_environment(), seen[0][0]))
    assert [code for code, _ in ended] == [1] * (num - 1)
    assert all(line.endswith(str(caught.value)) for _, line in ended)


def test_a_process_that_does_not_start_is_named_with_its_error(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    shared(2, monkeypatch)
    monkeypatch.setattr(ranks, "FOLLOWER", "flows.tasks.no_such_module")
    with pytest.raises(RankLost, match=r"No module named .*no_such_module"):
        train_model(snapshots, UNTIL, EXPERIMENT)


def test_what_a_process_that_is_killed_leaves_in_its_temporary_folder_is_removed(
    snapshots: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Copies of files in S3 would stay, because every process besides the first is killed at the end."""
    shared(2, monkeypatch)
    (tmp_path / "leaving.py").write_text("import sys, tempfile; print(tempfile.mkdtemp(), file=sys.stderr)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(ranks, "FOLLOWER", "leaving")
    with pytest.raises(RankLost) as caught:
        train_model(snapshots, UNTIL, EXPERIMENT)
    left = str(caught.value).partition("(")[2].partition(")")[0]
    assert Path(left).is_absolute()
    assert not Path(left).exists()


def test_a_process_that_ends_before_all_have_met_is_named(
    snapshots: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shared(2, monkeypatch)
    (tmp_path / "deserter.py").write_text("import os; os.write(1, b'ready\\n'); os.kill(os.getpid(), 9)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(ranks, "FOLLOWER", "deserter")
    monkeypatch.setattr(ranks, "SECONDS_TO_MEET", 2.0)
    started = time.monotonic()
    with pytest.raises(RankLost, match=r"process 2 of the 2 .* \(killed by signal 9\)"):
        train_model(snapshots, UNTIL, EXPERIMENT)
    assert time.monotonic() - started < 60


def test_a_process_that_is_killed_in_the_middle_of_a_message_is_named_soon_and_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Gloo does not notice the end of a connection while it sends or receives a message (its version of torch 2.13)."""
    shared(2, monkeypatch)
    (tmp_path / "stopping.py").write_text(STOPPING)
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{tmp_path}")
    command = [sys.executable, "-c", KILLED_WHILE_IT_RECEIVES]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    lost, received = ended.stdout.splitlines()
    assert lost.startswith("process 2 of the 2 that share a training has ended (killed by signal 9)")
    assert received == "[7.0, 8.0]"


def test_a_message_that_comes_at_the_end_of_a_wait_is_no_error():
    too_short, closed = RuntimeError("Operation timed out!"), RuntimeError("Connection closed by peer")
    late = Mock(wait=Mock(side_effect=[too_short, True]), is_completed=Mock(return_value=True))
    assert messages._is_done(late)
    awaited = Mock(wait=Mock(side_effect=[too_short]), is_completed=Mock(return_value=False))
    assert not messages._is_done(awaited)
    failed = Mock(wait=Mock(side_effect=[closed, closed]), is_completed=Mock(return_value=True))
    with pytest.raises(RuntimeError, match="closed by peer"):
        messages._is_done(failed)


SLEEPING = "import time; time.sleep(600)"
STOPPED = "import sys, time; sys.stdout.write('ready\\n'); sys.stdout.flush(); time.sleep(600)"
SILENT = """
import time
from flows.tasks import follow
follow.follow = lambda order, rank: time.sleep(600)
follow.main()
"""


@pytest.mark.parametrize(
    ("program", "limit", "awaited"),
    [
        (SLEEPING, "SECONDS_TO_START", "process 2, which runs and has not started its work"),
        (STOPPED, "SECONDS_TO_MEET", "processes 2 and 3 to come to their meeting"),
        (SILENT, "SECONDS_TO_WAIT", "a message of processes 2 and 3"),
    ],
)
def test_processes_that_run_and_do_not_come_are_named_with_who_waits_how_long_and_a_remedy(
    program: str, limit: str, awaited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in (ranks.GLOO_INTERFACE, ranks.NCCL_INTERFACE):
        monkeypatch.setenv(name, "")
    shared(3, monkeypatch)
    (tmp_path / "late.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{tmp_path}")
    monkeypatch.setattr(ranks, "FOLLOWER", "late")
    monkeypatch.setattr(ranks, "SECONDS_TO_END", 0.5)
    monkeypatch.setattr(ranks, limit, 2.0)
    message = f"process 1 of the 3 that share a training has waited 2 s for {awaited}: see whether this machine is busy"
    with pytest.raises(RankLate, match=message) as caught, ranks.shared_training({}, 3) as rank:
        rank.gathered(torch.zeros(1), 3)
    assert "DYFORMER_RANKS" in str(caught.value)


def test_after_a_meeting_that_failed_the_same_process_can_meet_again_and_a_message_has_longer_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in (ranks.GLOO_INTERFACE, ranks.NCCL_INTERFACE):
        monkeypatch.setenv(name, "")  # is set below, and removed after the test
    command = [sys.executable, "-c", RECEIVING, tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        (tmp_path / "alone").mkdir()
        monkeypatch.setattr(ranks, "SECONDS_TO_MEET", 1.0)
        with pytest.raises(RuntimeError, match=r"[Tt]imeout"), ranks.joined(0, 2, tmp_path / "alone"):
            pass
        monkeypatch.setattr(ranks, "SECONDS_TO_MEET", 5.0)
        other.stdin.write("\n")
        other.stdin.flush()
        with ranks.joined(0, 2, tmp_path):
            time.sleep(7)  # longer than the other process waits for a meeting
            distributed.broadcast(torch.full((1,), 7.0), 0)
            assert other.stdout.readline() == "7.0\n"


def test_another_error_of_the_first_process_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shared(2, monkeypatch)
    (tmp_path / "late.py").write_text(STOPPED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(ranks, "FOLLOWER", "late")
    monkeypatch.setattr(ranks, "SECONDS_TO_END", 0.5)
    monkeypatch.setattr(distributed, "init_process_group", Mock(side_effect=RuntimeError("CUDA error: out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"), ranks.shared_training({}, 2):
        pass


@pytest.mark.parametrize("has_met", [False, True])
def test_another_process_ends_with_the_first_and_leaves_no_folder(
    has_met: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shared(2, monkeypatch)
    (tmp_path / "waiting.py").write_text(WAITING)
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{tmp_path}")
    command = [sys.executable, "-c", FIRST, str(int(has_met))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        folder, other = first.stdout.readline().split()
        has_folder, was_running = Path(folder).is_dir(), is_running(other)
        first.kill()
    assert has_folder
    assert was_running
    until = time.monotonic() + 30
    while is_running(other) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(other)
    assert not Path(folder).exists()


def is_running(pid: str) -> bool:
    """Check for a process; one that has ended may still be listed."""
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"


def test_more_processes_than_batches_of_a_step_are_refused(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    shared(2, monkeypatch)
    for stage in ("pretrain", "finetune"):
        trained: list[list[EpochRow]] = []
        experiment = EXPERIMENT.changed({f"{stage}.batches_per_step": 1})
        with pytest.raises(TooManyRanks, match=rf"set {stage}\.batches_per_step to 2 or more"):
            train_model(snapshots, UNTIL, experiment, 0, lambda _, rows, trained=trained: trained.append(rows))
        assert not trained  # not even the stage before


def test_of_several_processes_that_end_the_killed_one_is_named(tmp_path: Path):
    ended = [subprocess.Popen(command, text=True) for command in (["false"], ["sh", "-c", "kill -9 $$"])]
    for number, process in enumerate(ended, start=1):
        process.wait()
        (tmp_path / f"{number}.log").write_text("Connection reset by peer")
    assert "process 3 of the 3" in str(ranks._lost(ended, tmp_path, 3))


@pytest.mark.parametrize("number", ["0", "two", "-1"])
def test_another_number_of_processes_is_refused(number: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DYFORMER_RANKS", number)
    with pytest.raises(ValueError, match="expected a number of processes"):
        ranks.num_ranks()


def test_the_size_of_large_id_embeddings_is_printed_before_the_training(
    snapshots: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("DYFORMER_NO_PROGRESS", raising=False)
    monkeypatch.setattr(train, "LARGE", 0)

    def on_epoch(lineage: Lineage, rows: list[EpochRow]) -> None:
        raise Ended

    with pytest.raises(Ended):
        train_model(snapshots, UNTIL, EXPERIMENT, 9, on_epoch)
    assert "id embeddings: 0.00 GB with their best copy and their moments; `model.inputs=" in capsys.readouterr().err


def test_id_embeddings_are_four_tables_of_float32():
    assert id_bytes(1_000_000, ModelConfig()) == 1_000_000 * 32 * 4 * 4
    assert id_bytes(1_000_000, ModelConfig(inputs="structure")) == 0
