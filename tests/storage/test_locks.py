import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.bytes.files import WriteFailed
from storage.layout import Layout
from storage.locks import alone

HOLDER = """
import sys, time
from storage.layout import Layout
from storage.locks import alone

with alone(Layout(sys.argv[1]), "train"):
    print("locked", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def holder(layout: Layout, seconds: float) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, layout.root, str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "locked\n"
    return process


def test_the_second_process_waits_for_the_first(tmp_path: Path):
    layout = Layout(str(tmp_path))
    first = holder(layout, 0.5)
    with alone(layout, "train"):
        assert first.wait(5) == 0
    with alone(layout, "train"), alone(layout, "other"):
        pass


def test_a_lock_of_another_name_does_not_wait(tmp_path: Path):
    layout = Layout(str(tmp_path))
    first = holder(layout, 600)
    with alone(layout, "promote"):
        assert first.poll() is None
    first.kill()
    first.wait()


def test_a_killed_process_releases_its_lock(tmp_path: Path):
    layout = Layout(str(tmp_path))
    first = holder(layout, 600)
    first.kill()
    first.wait()
    started = time.monotonic()
    with alone(layout, "train"):
        assert time.monotonic() - started < 5


def test_a_folder_of_locks_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "state").write_text("a file in place of the folder")
    with pytest.raises(WriteFailed, match="locks"):
        alone(Layout(str(tmp_path / "store"), state=str(tmp_path / "state")), "chat")


def test_a_file_with_the_name_of_the_state_folder_is_no_fault_of_the_disk(tmp_path: Path):
    (tmp_path / "state").touch()
    layout = Layout("s3://bucket/store", str(tmp_path / "state"))
    message = r"lock cannot be written \(Not a directory\): a file has the name of one of its folders: rename it"
    with pytest.raises(WriteFailed, match=message), alone(layout, "train"):
        pass
