"""Every command ends in one line and a documented exit code, whatever happens in it."""

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, temporary_settings

from dyformer import InvalidInput
from flows import ending
from flows.commands import temporary_server
from flows.console import print_frame, printable
from flows.ending import SECONDS_TO_STOP, STOPPED_LINE, exit_code
from flows.service.environment import THRESHOLDS
from flows.service.listening import listening

COMMAND = (sys.executable, "-c", "from flows.cli import main; main()")


class Panic(BaseException):
    """Like the panic of a library in Rust, which is no Exception."""


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.delenv("DYFORMER_STATE", raising=False)
    return tmp_path / "store"


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        ZeroDivisionError("by\nzero"),
        Panic("in Rust"),
        ValueError("of a test, not of ours"),
    ],
)
def test_unexpected_error_is_one_line_and_its_traceback_is_in_the_log(
    error: BaseException, store: Path, capsys: pytest.CaptureFixture[str]
):
    assert exit_code(raising(error)) == 1
    line = capsys.readouterr().err
    assert re.fullmatch(rf"dyformer: unexpected error \({type(error).__name__}: .*\); its log is (.*)\n", line)
    log = Path(line.rstrip("\n").rpartition(" ")[2])
    assert log.parent == store / "faults"
    assert "Traceback" in log.read_text()
    assert "in command" in log.read_text()


def test_log_goes_to_the_temporary_folder_where_the_store_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert exit_code(raising(KeyError("x"))) == 1
    assert f"its log is {tmp_path}/dyformer-faults/" in capsys.readouterr().err
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    assert exit_code(raising(KeyError("x"))) == 1
    assert "its log could not be written" in capsys.readouterr().err


def test_fault_of_a_file_is_named_with_the_file(capsys: pytest.CaptureFixture[str]):
    assert exit_code(raising(OSError(28, "No space left on device", "/disk/file"))) == 1
    assert re.fullmatch(r"dyformer: /disk/file: No space left on device; check .*space.*\n", capsys.readouterr().err)


def test_lack_of_memory_is_no_unexpected_error(store: Path, capsys: pytest.CaptureFixture[str]):
    assert exit_code(raising(MemoryError())) == 1
    assert re.fullmatch(r"dyformer: not enough memory: .*run the same command again\n", capsys.readouterr().err)
    assert not store.exists()


def test_error_of_this_program_is_written_as_it_is(store: Path, capsys: pytest.CaptureFixture[str]):
    from storage.raw.log_files import find_logs

    assert exit_code(lambda: find_logs([""], "mylog", "").clear()) == 1
    assert capsys.readouterr().err.startswith("dyformer: --log is an empty text: name a file, a folder or a pattern")
    assert not store.exists()


@pytest.mark.parametrize(("error", "is_named"), [(InvalidInput("ours"), True), (ValueError("ours"), False)])
def test_only_errors_of_this_program_are_named_ones(
    error: ValueError, is_named: bool, capsys: pytest.CaptureFixture[str]
):
    assert exit_code(raising(error)) == 1
    assert (capsys.readouterr().err == "dyformer: ours\n") is is_named


@pytest.mark.parametrize(("ending", "code"), [(SystemExit(3), 3), (SystemExit(2), 2), (SystemExit("text"), 1)])
def test_exit_code_of_a_command_is_the_exit_code_of_the_program(ending: SystemExit, code: int):
    assert exit_code(raising(ending)) == code
    assert exit_code(lambda: None) == 0


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), SystemExit(130)])
def test_stopped_command_says_how_to_go_on(ending: BaseException, capfd: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setattr("flows.ending._has_ended", threading.Event())
    assert exit_code(raising(ending)) == 130
    assert capfd.readouterr().err == f"{STOPPED_LINE}\n"


def test_the_process_ends_after_its_line_is_written_whichever_thread_ends_it(monkeypatch: pytest.MonkeyPatch):
    """Seen once: the time limit ended the process between the mark of the main thread and its line."""
    written: list[bytes] = []
    write = os.write

    def slow(descriptor: int, content: bytes) -> int:
        if descriptor != 2:
            return write(descriptor, content)
        time.sleep(0.3)
        written.append(content)
        return len(content)

    monkeypatch.setattr(ending, "_has_ended", threading.Event())
    monkeypatch.setattr(os, "write", slow)
    first = threading.Thread(target=ending._print_stopped)
    first.start()
    time.sleep(0.1)
    ending._print_stopped()
    assert written == [f"{STOPPED_LINE}\n".encode()]
    first.join()


def test_control_characters_and_markup_of_ids_stay_text(capsys: pytest.CaptureFixture[str]):
    ids = ["\x1b[31mred", "[bold]b[/bold]", "[/]", "a\nb", "\u202eab", "\x9b1m", "é"]
    print_frame(pl.DataFrame({"[red]id\x07": ids}))
    output = capsys.readouterr().out
    for text in (r"\x1b[31mred", "[bold]b[/bold]", "[/]", r"a\nb", r"\u202eab", r"\x9b1m", "é", r"[red]id\x07"):
        assert text in output
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", output)
    assert printable("file\x1b]0;title\x07 \udcff") == r"file\x1b]0;title\x07 \udcff"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.8934, "0.8934"),
        (0.8931, "0.8931"),
        (0.0012, "0.0012"),
        (-0.0312, "-0.0312"),
        (1e-9, "1.0e-09"),
        (-1e-9, "-1.0e-09"),
        (0.0, "0"),
        (1.0, "1.00"),
        (-2.5, "-2.50"),
        (123_456.789, "123456.79"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_numbers_below_one_are_printed_so_that_small_and_near_ones_differ(capsys, value, text):
    print_frame(pl.DataFrame({"number": [value]}))
    assert f" {text} " in capsys.readouterr().out


def test_a_title_longer_than_its_table_is_one_line_of_text(capsys: pytest.CaptureFixture[str]):
    title = "mylog, prequential protocol: mean over 1 step [95 % interval]; 1,076 queries, [bold]1 seed[/bold], the end"
    print_frame(pl.DataFrame({"a": [1]}), title)
    assert capsys.readouterr().out.splitlines()[0] == title


def test_a_terminal_too_narrow_for_the_words_of_a_row_has_a_line_for_each_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the output for a terminal
    frame = pl.DataFrame({f"name_of_column_{index}": ["a-word", f"of row {index}"] for index in range(9)})
    printed = {}
    for width in ("80", "120"):
        monkeypatch.setenv("COLUMNS", width)
        print_frame(frame)
        printed[width] = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["│", "name_of_column_8", "│", "a-word", "│"] in printed["80"]
    assert ["│", "name_of_column_0", "│", "of", "row", "0", "│"] in printed["80"]
    assert ["│", *(["a-word", "│"] * 9)] in printed["120"]


def test_a_terminal_too_narrow_for_a_long_text_has_a_line_for_each_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    frame = pl.DataFrame({"rank": [1, 2], "linked_before": ["yes", "no"], "reasons": ["a word and more " * 4, "few"]})
    printed = {}
    for width in ("50", "51"):  # 4 + 13 + 24 characters, 4 borders and 6 blanks are 51
        monkeypatch.setenv("COLUMNS", width)
        print_frame(frame)
        printed[width] = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["│", "reasons", "│", "few", "│"] in printed["50"]
    assert ["│", "2", "│", "no", "│", "few", "│"] in printed["51"]


@pytest.mark.parametrize("width", range(46, 90))
def test_no_word_and_no_number_of_a_narrow_table_is_divided(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    cells = {"method": "Preferential attachment", "MRR": "0.315 [0.272, 0.363]", "MRR difference": "+0.029 [-0.1, 0.2]"}
    print_frame(pl.DataFrame({**cells, "precision@10": "0.142"}))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()  # without the bold names of columns
    assert max(map(len, lines)) <= width
    words = {word for text in cells.values() for word in text.split()}
    assert words <= {word for line in lines for word in line.split()}


def test_name_of_a_file_with_control_characters_is_written_in_escapes(tmp_path: Path, store: Path):
    (tmp_path / "log\x1b[31m.csv").write_text("a\nb\nc\n")
    arguments = ("ingest", "mine", "--log", str(tmp_path / "log\x1b[31m.csv"))
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert r"log\x1b[31m.csv, line 1 does not split" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


HEEDING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
"""What a terminal's job begins with; tests that run in the background would pass on that they ignore Ctrl-C."""

LONG_CALL = HEEDING + (
    "import sys, hashlib; from flows.ending import exit_code; print('started', flush=True);"
    "sys.exit(exit_code(lambda: hashlib.pbkdf2_hmac('sha256', b'', b'', 2 * 10**9)))"
)


def test_ctrl_c_ends_a_command_that_is_inside_a_library():
    """The library's call lasts an hour, and Python's own handler would wait for it."""
    process = subprocess.Popen(
        [sys.executable, "-c", LONG_CALL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    time.sleep(0.3)
    sent = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, f"{STOPPED_LINE}\n")
    assert time.monotonic() - sent < SECONDS_TO_STOP + 1


SERVING = HEEDING + (
    "import signal, sys, time; from flows.ending import SECONDS_TO_STOP, ended_by_itself, exit_code;"
    "print('started', flush=True)\n"
    "def serve():\n"
    "    try:\n"
    "        with ended_by_itself():\n"
    "            stopped = []\n"
    "            before = signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))\n"
    "            while not stopped: time.sleep(0.01)\n"
    "            time.sleep(SECONDS_TO_STOP + 1)\n"
    "            print('requests finished', flush=True)\n"
    "            signal.signal(signal.SIGINT, before)\n"
    "            signal.raise_signal(signal.SIGINT)\n"
    "    except KeyboardInterrupt:\n"
    "        print('cleared', end='')\n"
    "sys.exit(exit_code(serve))"
)


def test_server_that_ctrl_c_stops_finishes_and_ends_as_usual():
    process = subprocess.Popen(
        [sys.executable, "-c", SERVING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (0, "requests finished\ncleared", "")


IGNORING = (
    "import os, signal, sys; from flows.ending import exit_code; signal.signal(signal.SIGINT, signal.SIG_IGN);"
    "sys.exit(exit_code(lambda: os.kill(os.getpid(), signal.SIGINT)))"
)


def test_command_in_the_background_ignores_ctrl_c_of_the_foreground():
    done = subprocess.run([sys.executable, "-c", IGNORING], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def servers_of(process: int) -> list[int]:
    children = map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
    return [
        child for child in children if b"flows.service.prefect_server" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def ended_within(process: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


FLOW = (
    HEEDING
    + """
import sys, time
import flows.commands.runs
from flows.ending import exit_code

def run():
    with flows.commands.runs.announced():
        from prefect import flow
        flow(lambda: time.sleep(600), name="waiting")()

sys.exit(exit_code(run))
"""
)


def test_ctrl_c_in_a_run_ends_it_and_its_server_in_time(tmp_path: Path):
    """A terminal sends the signal to the whole process group of the command."""
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect")}
    environment.pop("PREFECT_API_URL", None)
    process = subprocess.Popen(
        [sys.executable, "-c", FLOW],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 120
    while not (servers := servers_of(process.pid)) and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(1)
    sent = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - sent < 3
    assert (process.returncode, errors) == (130, f"{STOPPED_LINE}\n")
    assert servers
    assert all(ended_within(server, 10) for server in servers)


IN_FINALIZER = (
    HEEDING
    + """
import os, signal, sys, time
from flows.ending import exit_code

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

class Broken:
    def __del__(self):
        raise ValueError("of a finalizer")

def run():
    Broken()
    Finalized()
    time.sleep(600)

sys.exit(exit_code(run))
"""
)


def test_ctrl_c_in_a_finalizer_whose_errors_are_lost_ends_the_process_without_a_traceback():
    ended = subprocess.run(
        [sys.executable, "-c", IN_FINALIZER], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 130
    assert "ValueError: of a finalizer" in ended.stderr  # as Python prints it
    assert "KeyboardInterrupt" not in ended.stderr
    assert ended.stderr.endswith(f"{STOPPED_LINE}\n")


IMPORTING = (
    HEEDING
    + """
import sys, time
from flows.ending import exit_code

def run():
    try:
        import imported_by_a_command
        print("imported", flush=True)
        time.sleep(600)
    finally:
        print("ended", flush=True)

sys.exit(exit_code(run))
"""
)
IMPORTED = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
for _ in range(50):
    time.sleep(0.01)
"""


def test_ctrl_c_while_a_library_is_imported_ends_the_command_after_the_import(tmp_path: Path):
    """Seen once: Ctrl-C in the import of a library in C++ aborted the process, with the library's message."""
    (tmp_path / "imported_by_a_command.py").write_text(IMPORTED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])}
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTING], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stdout, ended.stderr) == ("imported\nended\n", f"{STOPPED_LINE}\n")
    assert ended.returncode == 130


COPYING = (
    HEEDING
    + """
import hashlib, os, signal, sys, threading, time
from pathlib import Path
from flows.ending import exit_code
from storage.bytes.checksums import _folder

def run():
    copy = Path(_folder().name, "copy.parquet")
    copy.write_bytes(b"rows")
    print(copy, flush=True)
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    CALL

sys.exit(exit_code(run))
"""
)


@pytest.mark.parametrize("call", ["time.sleep(600)", "hashlib.pbkdf2_hmac('sha256', b'', b'', 2 * 10**9)"])
def test_ctrl_c_leaves_no_copies_of_files_in_s3(call: str):
    """Python's own end would remove them, which a stopped process does not wait for."""
    ended = subprocess.run(
        [sys.executable, "-c", COPYING.replace("CALL", call)], capture_output=True, text=True, timeout=60, check=False
    )
    copy = Path(ended.stdout.strip())
    assert (ended.returncode, copy.name) == (130, "copy.parquet")
    assert not copy.parent.exists()


WAITING = "import sys, time; from flows.service.processes import end_with; end_with(int(sys.argv[1])); time.sleep(600)"
KILLED = (
    "import os, subprocess, sys;"
    f"child = subprocess.Popen([sys.executable, '-c', {WAITING!r}, str(os.getpid())], start_new_session=True);"
    "print(child.pid, flush=True); sys.stdin.read()"
)


def test_server_of_a_killed_run_ends():
    run = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert run.stdout is not None
    server = int(run.stdout.readline())
    time.sleep(1)
    assert not ended_within(server, 0.2)
    run.kill()
    run.communicate()
    assert ended_within(server, 10)


def test_the_temporary_server_imports_nothing_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    commands: list[list[str]] = []
    monkeypatch.setattr(temporary_server.subprocess, "Popen", lambda command, **options: commands.append(command))
    with temporary_settings({PREFECT_API_AUTH_STRING: "user:password"}), listening("127.0.0.1", 0) as listener:
        temporary_server._started(listener)
    monkeypatch.undo()
    ((*flags, module, _, _, _, _, _, _, _),) = commands  # without the module and its arguments
    assert module == "-m"
    (tmp_path / "mine.py").write_text("raise SystemExit(7)")
    done = subprocess.run([*flags, "-m", "mine"], cwd=tmp_path, capture_output=True, check=False)
    assert b"No module named mine" in done.stderr


ENDING = """
import atexit, gc, sys
from flows.cli import main
class Freed:
    def __del__(self): print("freed")
kept = Freed()
atexit.register(lambda: print("exit function", gc.get_threshold()))
main()
"""


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("nosuch", 2)])
def test_a_command_ends_after_its_exit_functions_and_frees_nothing(argument: str, code: int):
    done = subprocess.run([sys.executable, "-c", ENDING, argument], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout.splitlines()[-1] == f"exit function {THRESHOLDS}"


@pytest.mark.parametrize("is_buffered", [False, True])
@pytest.mark.parametrize("arguments", [["--version"], ["settings"], ["settings", "--json"]])
def test_a_full_disk_under_the_output_is_one_line(arguments: list[str], is_buffered: bool, store: Path):
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if is_buffered else "1"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, env=environment, text=True, check=False
        )
    assert done.returncode == 1
    problem = r"the output, or a file that has no name here, cannot be written \(No space left on device\)"
    assert re.fullmatch(rf"dyformer: {problem}: free space on its disk, .*\n", done.stderr)
    assert not store.exists()  # no log of an unexpected error


@pytest.mark.parametrize("is_buffered", [False, True])
@pytest.mark.parametrize("arguments", [["--version"], ["settings"], ["settings", "--json"]])
def test_a_closed_pipe_ends_a_command_without_a_word(arguments: list[str], is_buffered: bool):
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if is_buffered else "1"}
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run([*COMMAND, *arguments], stdout=pipe, stderr=subprocess.PIPE, env=environment, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


def test_output_that_cannot_be_written_is_an_error():
    command = [sys.executable, "-c", "print(1); from flows.service.environment import end_with_code; end_with_code(0)"]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=buffered, check=False)
    assert done.returncode == 120
    assert b"No space left" in done.stderr
