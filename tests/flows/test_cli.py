"""The `dyformer` command from a user's view: output, exit codes, and one message for every error."""

import gzip
import io
import json
import os
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from filelock import FileLock
from own_log import own_log

import flows.cli
import flows.commands.benchmark
import flows.commands.runs
import flows.commands.tune
import flows.console
from dyformer.experiments.methods import EVENT_METHODS, METHODS, NODE_METHODS
from dyformer.experiments.settings import settings_table
from dyformer.experiments.titles import full_title
from flows.tasks.methods import resolved
from flows.tasks.report import promotion_line
from storage.bytes.files import make_folder

COMMANDS = (
    "datasets",
    "settings",
    "ingest",
    "snapshots",
    "prepare",
    "predict",
    "sql",
    "drop",
    "run",
    "retrain",
    "benchmark",
    "audit",
)
COMMAND = (sys.executable, "-c", "from flows.cli import main; main()")
COLUMNS = ("--source", "user", "--target", "item", "--time", "created_at")
Outcome = tuple[int, str, str]
"""Exit code, output, errors."""


@pytest.fixture
def dyformer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Outcome]]:
    """Run a command in this process, in an empty folder with an empty store; no server may start."""

    def started() -> None:
        pytest.fail("a server would have been started")

    def run(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as ending:
            flows.cli.main(list(arguments))
        output = capsys.readouterr()
        return int(ending.value.code or 0), output.out, output.err

    for module in (flows.commands.runs, flows.commands.benchmark, flows.commands.tune):  # each has the name of its own
        monkeypatch.setattr(module, "announced", started)
    monkeypatch.chdir(tmp_path)
    with pytest.MonkeyPatch.context() as environment:
        for name in ("DYFORMER_LOGS", "DYFORMER_STATE", "COLUMNS"):
            environment.delenv(name, raising=False)
        environment.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
        with patch.dict(os.environ):
            yield run


def contents(store: Path) -> dict[str, bytes | None]:
    """Content of every file below a folder, by name; folders are included."""
    return {str(path.relative_to(store)): path.read_bytes() if path.is_file() else None for path in store.rglob("*")}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--help",), 0, "Usage: dyformer"),
        (("--version",), 0, f"dyformer {version('dyformer')}"),
        (("run", "uci", "--set", "model.num_layer=3"), 1, "the nearest are model.num_layers,"),
        (("run", "uci", "--set", "model.width=none"), 1, "model.width: expected int"),
        (("benchmark", "uci", "--methods", "l3,adamic-ader"), 1, "Did you mean Adamic-Adar?"),
    ],
    ids=["help", "version", "misspelt setting", "mistyped setting", "misspelt method"],
)
def test_an_output_that_needs_no_data_takes_less_than_a_second(arguments: tuple[str, ...], code: int, text: str):
    def cpu_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [COMMAND[0], "-X", "importtime", *COMMAND[1:], *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert text in done.stdout + done.stderr
        assert not re.search(r"\b(torch|prefect|mlflow|duckdb|polars|numba|scipy)\n", done.stderr)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert any(cpu_seconds() < 1 for _ in range(3))


def test_an_unknown_dataset_is_refused_before_a_method_is_imported(tmp_path: Path):
    code = """
import sys
from flows.cli import main
for command in ("predict", "report", "drift", "rollback"):
    try:
        main([command, "nosuch"])
    except SystemExit as ending:
        assert ending.code == 1
    assert not {"torch", "numba", "scipy", "sklearn", "matplotlib"} & set(sys.modules), command
"""
    environment = {**os.environ, "DYFORMER_STORAGE": str(tmp_path)}
    done = subprocess.run([COMMAND[0], "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no events of 'nosuch'") == 4


def test_shells_complete_the_names_of_commands():
    words = {"_DYFORMER_COMPLETE": "complete_bash", "COMP_WORDS": "dyformer bench", "COMP_CWORD": "1"}
    done = subprocess.run(COMMAND, env={**os.environ, **words}, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["benchmark"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_is_readable(command: str, dyformer: Callable[..., Outcome]):
    code, output, errors = dyformer(command, "--help")
    assert (code, errors) == (0, "")
    assert f"dyformer {command}" in output or f"{command} [OPTIONS]" in output
    assert "..." not in output.replace("[ARGS]...", "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ingest",), "Missing argument"),
        (("ingest", "mylog", "extra"), "extra"),
        (("snapshot", "uci"), "No such command"),
        (("run", "uci", "--sed", "1"), "--sed"),
        (("run", "uci", "--seed", "-1"), "--seed"),
        (("run", "uci", "--seed", str(2**32)), "--seed"),
        (("run", "uci", "--set", "model.width"), "--set model.width"),
        (("run", "uci", "--json", "."), "--json"),
        (("prepare", "uci", "--until", "last"), "--until"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_how(arguments: tuple[str, ...], says: str, dyformer: Callable[..., Outcome]):
    code, _, errors = dyformer(*arguments)
    assert code == 2
    assert "Usage" in errors or "Invalid value" in errors
    assert says in errors
    assert "Traceback" not in errors


def _rows(*rows: str) -> bytes:
    return "\n".join(("user,item,created_at", *rows)).encode()


GOOD = [f"u{number % 7},i{number % 5},2024-01-{number % 28 + 1:02}T00:00:00Z" for number in range(60)]
FILES = {
    "good.csv": _rows(*GOOD),
    "empty.csv": b"",
    "header.csv": b"user,item,created_at\n",
    "one.csv": b"user\nann\nbob\ncid\n",
    "words.csv": _rows(*(f"u{number},i{number},some day" for number in range(9))),
    "bad.csv": _rows(*(f",i{number},2024-01-01T00:00:00Z" for number in range(9))),
    "half.csv": _rows(*GOOD, *(",i1,2024-01-01T00:00:00Z" for _ in range(60))),
    "cut.csv.gz": gzip.compress(_rows(*GOOD) * 50, mtime=0)[:-20],
    "not.csv.gz": b"\x1f\x8b this only begins like gzip",
}
OWN = ("other", *COLUMNS, "--log")

NOISE = ("--set", "graph.noise=0.1")
# The command, and texts that its one message contains: the value, the place, the remedy.
BAD_INPUT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "missing file": (("ingest", *OWN, "god.csv"), ("'god.csv'", "good.csv", "--log")),
    "empty file": (("ingest", *OWN, "empty.csv"), ("empty.csv", "no row")),
    "header alone": (("ingest", *OWN, "header.csv"), ("header.csv", "only a header")),
    "one column": (("ingest", "other", "--log", "one.csv"), ("one.csv", "column", "--separator")),
    "unreadable time": (("ingest", *OWN, "words.csv"), ("words.csv", "some day", "--time")),
    "all rows bad": (("ingest", *OWN, "bad.csv"), ("bad.csv", "line 2", "empty source id")),
    "too many bad rows": (("ingest", *OWN, "half.csv"), ("half.csv", "50", "--max-bad")),
    "wrong separator": (("ingest", *OWN, "good.csv", "--separator", "tab"), ("good.csv", "separator", "comma")),
    "unknown column": (
        ("ingest", "other", "--log", "good.csv", "--source", "usr", *COLUMNS[2:]),
        ("'usr'", "good.csv", "user"),
    ),
    "truncated gzip": (("ingest", *OWN, "cut.csv.gz"), ("cut.csv.gz", "again")),
    "no gzip": (("ingest", *OWN, "not.csv.gz"), ("not.csv.gz",)),
    "unknown dataset": (("run", "ucy"), ("'ucy'", "uci", "--log")),
    "no such log to predict": (("predict", "ucy"), ("'ucy'", "dyformer ingest")),
    "name that is not allowed": (("ingest", "../up", *OWN[1:], "good.csv"), ("'../up'", "letters")),
    "unknown setting": (
        ("run", *OWN, "good.csv", "--set", "model.nope=1"),
        ("'model.nope'", "the nearest are model.", "dyformer settings"),
    ),
    "mistyped setting": (("run", *OWN, "good.csv", "--set", "model.width=abc"), ("model.width", "int", "'abc'")),
    "setting that does not fit another": (
        ("run", *OWN, "good.csv", "--set", "model.width=30", "--set", "model.num_heads=4"),
        ("30", "4", "heads"),
    ),
    "step to evaluate": (("benchmark", *OWN, "good.csv", "--steps", "99"), ("99", "other", "3 to 12")),
    "step that is not a number": (("benchmark", *OWN, "good.csv", "--steps", "x"), ("'x'", '"3-13"')),
    "steps backwards": (("benchmark", *OWN, "good.csv", "--steps", "9-5"), ("'9-5'", "5-9")),
    "step to prepare": (("prepare", *OWN, "good.csv", "--until", "99"), ("99", "other", "1 to 12")),
    "step zero": (("prepare", *OWN, "good.csv", "--until", "0"), ("0", "1 to 12")),
    "too few steps": (("run", *OWN, "good.csv", "--window", "2 equal"), ("other", "2 snapshots", "--window")),
    "window": (("ingest", *OWN, "good.csv", "--window", "fortnight"), ("'fortnight'", "7d")),
    "window too short": (("ingest", *OWN, "good.csv", "--window", "1s"), ("1s", "longer")),
    "window of steps": (("ingest", *OWN, "good.csv", "--window", "5"), ("'5'", '"10d"')),
    "window of more than the rows": (("ingest", *OWN, "good.csv", "--window", "99 equal"), ("60", "99", "fewer")),
    "share": (("ingest", *OWN, "good.csv", "--max-bad", "lots"), ("--max-bad", "'lots'", "5%")),
    "share over all": (("ingest", *OWN, "good.csv", "--max-bad", "101%"), ("--max-bad", "'101%'")),
    "time unit": (("ingest", *OWN, "good.csv", "--time-unit", "h"), ("--time-unit", "'h'", "iso")),
    "storage": (("--storage", "ftp://host/x", "datasets"), ("ftp", "s3://bucket")),
    "empty storage": (("--storage", " ", "datasets"), ("--storage is an empty text", "s3://")),
    "unknown dataset to drop": (("drop", "ucy", "--yes"), ("'ucy'", "it has: ")),
    "statement": (("sql", "select * from nothing"), ("no view 'nothing'", "views: ", "dyformer run")),
    "misspelt method": (("benchmark", *OWN, "good.csv", "--methods", "l4"), ("'l4'", "L3")),
    "noise in a retraining": (("run", *OWN, "good.csv", *NOISE), ("graph.noise=0.1", "leave graph.noise out")),
    "noise before forecasts": (("predict", "other", *NOISE), ("graph.noise=0.1", "leave graph.noise out")),
    "noise in an audit": (("audit", *OWN, "good.csv", *NOISE), ("graph.noise=0.1", "leave graph.noise out")),
    "noise among ranks": (
        ("benchmark", *OWN, "good.csv", "--protocol", "prequential", *NOISE),
        ("graph.noise=0.1", "the paper's protocol"),
    ),
    "noise of a variation among ranks": (
        (
            "benchmark",
            *OWN,
            "good.csv",
            "--protocol",
            "prequential",
            "--methods",
            "published_dyformer_1_hop_10_noise",
        ),
        ("graph.noise=0.1",),
    ),
    "noise in an experiment": (
        ("benchmark", "--experiment", "forecaster", "--datasets", "uci", *NOISE),
        ("graph.noise=0.1", "leave graph.noise out"),
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
@pytest.mark.parametrize("store", ["fresh", "used"])
def test_bad_input_ends_in_one_message_and_leaves_the_store(
    case: str, store: str, dyformer: Callable[..., Outcome], tmp_path: Path, used_store: Path
):
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    folder = used_store if store == "used" else tmp_path / "fresh"
    os.environ["DYFORMER_STORAGE"] = str(folder)
    before = contents(folder)
    arguments, words = BAD_INPUT[case]
    code, _, errors = dyformer(*arguments)
    assert code == 1
    assert errors.startswith("dyformer: ")
    assert "Traceback" not in errors
    assert [word for word in words if word not in errors] == [], errors
    assert contents(folder) == before


@pytest.fixture(scope="module")
def used_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds one log."""
    folder = tmp_path_factory.mktemp("used")
    (folder / "good.csv").write_bytes(FILES["good.csv"])
    arguments = ["--storage", str(folder / "store"), "snapshots", "mylog", *COLUMNS, "--log", str(folder / "good.csv")]
    with patch.dict(os.environ), pytest.raises(SystemExit) as ending:
        flows.cli.main(arguments)
    assert not ending.value.code
    return folder / "store"


def test_a_text_that_no_ingest_reads_as_an_id_is_not_ranked(dyformer: Callable[..., Outcome], used_store: Path):
    os.environ["DYFORMER_STORAGE"] = str(used_store)
    for source in ("", " u1", "7.0"):
        code, _, errors = dyformer("rank", "mylog", source)
        assert (code, errors.startswith(f"dyformer: the source {source!r}: expected an id as the log")) == (1, True)


def test_window_that_does_not_fit_is_not_remembered(dyformer: Callable[..., Outcome], used_store: Path):
    os.environ["DYFORMER_STORAGE"] = str(used_store)
    before = contents(used_store)
    code, _, errors = dyformer("snapshots", "mylog", "--window", "1s")
    assert (code, contents(used_store)) == (1, before)
    assert "longer" in errors
    assert dyformer("snapshots", "mylog")[0] == 0


@pytest.mark.parametrize(
    "arguments", [("run", "ucy"), ("ingest", "mylog", "--log", "missing.csv"), ("run", "uci", "--set", "model.nope=1")]
)
def test_bad_input_of_a_real_process(arguments: tuple[str, ...], tmp_path: Path):
    command = [sys.executable, "-c", "from flows.cli import main; main()", "--storage", str(tmp_path / "s"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("dyformer: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "s").exists()


def test_every_row_of_a_users_own_log_is_counted(dyformer: Callable[..., Outcome], tmp_path: Path):
    log = own_log(tmp_path / "mylog.csv")
    reading = ("--log", str(log), *COLUMNS)
    code, _, errors = dyformer("ingest", "mylog", *reading)
    assert code == 1  # 2 % of the rows are broken, but 1 % is allowed
    assert "--max-bad" in errors
    code, output, _ = dyformer("ingest", "mylog", *reading, "--max-bad", "5%")
    assert code == 0
    assert "1,530 rows read = 1,500 accepted + 30 quarantined + 0 dropped (0 exact duplicates)" in output
    code, output, _ = dyformer("sql", "select reason, line, raw from quarantine order by line", "--json")
    broken = json.loads(output)
    assert [row["line"] for row in broken] == [2 + 50 * (number + 1) for number in range(30)]
    assert len({row["raw"] for row in broken}) == 10
    code, output, _ = dyformer("ingest", "mylog", *reading, "--max-bad", "5%")
    assert code == 0
    assert "no new rows" in output


def test_a_users_own_log_gets_twelve_snapshots_of_equal_count(dyformer: Callable[..., Outcome], tmp_path: Path):
    log = own_log(tmp_path / "mylog.csv")
    code, output, _ = dyformer("snapshots", "mylog", "--log", str(log), *COLUMNS, "--max-bad", "5%", "--json")
    assert code == 0
    assert [row["interactions"] for row in json.loads(output)] == [125] * 12
    again = dyformer("snapshots", "mylog", "--json")  # the store has the declaration under this name
    assert again == (0, output, "")


def test_snapshots_of_uci_are_the_published_ones(dyformer: Callable[..., Outcome], shared_log: Callable[[str], Path]):
    published = {
        "interactions": "interactions",
        "edges": "unique_undirected_edges",
        "active_nodes": "active_nodes",
        "nodes_seen": "nodes_seen_so_far",
        "new_edges": "edges_never_seen_before",
    }
    reference = json.loads(shared_log("reference").read_text())["uci"]["snapshots"]
    code, output, _ = dyformer("snapshots", "uci", "--log", str(shared_log("uci")), "--json")
    assert code == 0
    assert json.loads(output) == [
        {"step": row["t"] + 1, **{name: row[theirs] for name, theirs in published.items()}} for row in reference
    ]


def test_piped_table_is_not_cut(dyformer: Callable[..., Outcome]):
    code, output, _ = dyformer("sql", f"select '{'x' * 300}' as long, 1 as a, 2 as b, 3 as c, 4 as d, 5 as e")
    assert code == 0
    assert "x" * 300 in output


def test_settings_have_value_allowed_values_and_meaning(dyformer: Callable[..., Outcome]):
    rows = json.loads(dyformer("settings", "--json")[1])
    assert [row["setting"] for row in rows] == [setting.name for setting in settings_table()]
    assert all(row["value"] and row["allowed"] and row["meaning"] for row in rows)
    assert [row["value"] for row in rows if row["setting"] == "model.num_layers"] == ["2"]
    assert "model.num_layers" in dyformer("settings")[1]


def test_a_benchmark_lists_each_method_by_a_name_that_is_accepted(dyformer: Callable[..., Outcome]):
    code, output, _ = dyformer("benchmark", "--list")
    assert code == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines()]
    names = {(title, kind): name for name, title, kind in (row for row in rows if len(row) == 3)}
    assert len(names) == len(METHODS) + len(EVENT_METHODS) + len(NODE_METHODS)
    for (title, kind), name in names.items():
        titles = {"links of steps": METHODS, "events (tgb)": EVENT_METHODS, "labels of nodes": NODE_METHODS}[kind]
        assert full_title(name, titles) == title
        assert list(resolved([name])) == [title]


def test_long_lists_are_short_in_a_table_and_whole_in_json(dyformer: Callable[..., Outcome]):
    statement = "select [0.123, -0.05, 1, 2, 3]::double[] as vector, [1.5, 2]::double[] as pair"
    code, output, _ = dyformer("sql", statement)
    assert code == 0
    assert "[0.1230, -0.0500, ... 5 values]" in output
    assert "[1.5, 2.0]" in output
    assert "│ once a week; once, a day │" in dyformer("sql", "select ['once a week', 'once, a day'] as reasons")[1]
    assert json.loads(dyformer("sql", statement, "--json")[1])[0]["vector"] == [0.123, -0.05, 1.0, 2.0, 3.0]


def test_drift_prints_the_newest_step_and_all_steps_where_the_table_is_wanted(
    dyformer: Callable[..., Outcome], tmp_path: Path
):
    log = own_log(tmp_path / "mylog.csv")
    assert dyformer("snapshots", "mylog", "--log", str(log), *COLUMNS, "--max-bad", "5%", "--finished")[0] == 0
    code, output, _ = dyformer("drift", "mylog")
    assert code == 0
    assert (output.count("│   12 │"), output.count("│   11 │")) == (5, 0)
    assert "and 55 rows of earlier steps: --table prints all\n" in output
    _, output, _ = dyformer("drift", "mylog", "--table")
    assert (output.count("│   12 │"), output.count("│   11 │")) == (5, 5)
    assert "--table" not in output


STEPS = b"source,target,time\n" + b"".join(b"%d,%d,%d\n" % (n % 7, n % 5 + 7, 9000 * n) for n in range(60))


def test_a_dropped_dataset_can_be_ingested_with_another_time_unit(dyformer: Callable[..., Outcome], tmp_path: Path):
    (tmp_path / "steps.csv").write_bytes(STEPS)
    log = ("relative", "--log", "steps.csv")
    assert dyformer("ingest", *log)[0] == 0
    assert dyformer("ingest", "other", "--log", "steps.csv")[0] == 0
    for option in (("--window", "7d"), ("--time-unit", "s")):
        code, _, errors = dyformer("ingest", *log, *option)
        assert code == 1
        assert "--time-unit" in errors
        assert "dyformer drop" in errors
    code, output, errors = dyformer("drop", "relative", "--yes")
    assert (code, errors) == (0, "")
    assert "MLflow" in output
    assert "`dyformer schedule relative --remove`" in output
    assert [path.parts[-2:] for path in (tmp_path / "store").rglob("dataset=*")] == [("2_events", "dataset=other")]
    assert dyformer("ingest", *log, "--window", "1d", "--time-unit", "s")[0] == 0


@pytest.mark.parametrize(("options", "names"), [((), False), (("--everything",), True)])
def test_drop_needs_a_confirmation(
    options: tuple[str, ...],
    names: bool,
    dyformer: Callable[..., Outcome],
    used_store: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    os.environ["DYFORMER_STORAGE"] = str(used_store)
    before = contents(used_store)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, output, errors = dyformer("drop", "mylog", *options)
    assert code == 1
    assert "mylog" in output
    assert ("MLflow" in output) == names
    assert "Aborted" in errors
    assert contents(used_store) == before


def test_a_dataset_that_is_served_is_not_dropped_with_everything(dyformer: Callable[..., Outcome], used_store: Path):
    os.environ["DYFORMER_STORAGE"] = str(used_store)
    make_folder(used_store / "service")
    with FileLock(used_store / "service" / "serve-mylog.lock"):
        before = contents(used_store)
        code, _, errors = dyformer("drop", "mylog", "--everything", "--yes")
        assert contents(used_store) == before
    assert code == 1
    assert "`dyformer serve mylog` runs already" in errors


def test_interrupt_leaves_no_traceback(dyformer: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch):
    def interrupted(on_damage: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flows.tasks.ingest.known_and_ingested", interrupted)
    code, _, errors = dyformer("datasets")
    assert code == 130
    assert "Traceback" not in errors


def test_server_that_cannot_be_reached_is_named():
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows.service.server import ServerUnreachable, server_in_use

    silent = temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"})
    with silent, pytest.raises(ServerUnreachable, match=r"http://127\.0\.0\.1:9/api.*PREFECT_API_URL"):
        server_in_use()


def test_a_server_that_refuses_the_login_is_named():
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from flows.service.server import ServerUnreachable, server_in_use

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.headers["authorization"] == "Basic dXNlcjpwYXNzd29yZA==" else 401)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/api"
        with temporary_settings({PREFECT_API_URL: address}, restore_defaults={PREFECT_API_AUTH_STRING}):
            with pytest.raises(ServerUnreachable, match=rf"{address} refuses this login, .*PREFECT_API_AUTH_STRING"):
                server_in_use()
            with temporary_settings({PREFECT_API_AUTH_STRING: "user:password"}):
                assert server_in_use() == f"the Prefect server at {address}"
        server.shutdown()


OURS, OTHER = {"title": "Forecaster with DyFormer", "models": ["b"]}, {"title": "L3", "models": []}
TESTED = {
    "difference": [0.01, 0.02, 0.03],
    "compared": ["Forecaster with DyFormer", "L3"],
    "metric": "mrr",
    "num_queries": 1234,
    "level": 1 - 0.05 / 6,
}
NUMBERS = (
    "; MRR of Forecaster with DyFormer less that of L3: +0.0200, 99.17 % interval +0.0100 to +0.0300, 1,234 queries"
)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"champion": OURS}, "champion: Forecaster with DyFormer (promoted), because it is so"),
        (
            {"champion": OURS, "previous": OTHER},
            "champion: Forecaster with DyFormer (promoted instead of L3), because it is so",
        ),
        ({"champion": OTHER, "previous": OTHER, "promoted": False}, "champion: L3 (as before), because it is so"),
        (
            {"champion": OTHER, "previous": OURS, "promoted": False, "note": "no weights"},
            "champion: L3 (new instead of Forecaster with DyFormer), because it is so; no weights",
        ),
        ({"champion": None, "promoted": False}, "champion: none, because it is so"),
        (
            {"champion": OURS, "previous": OTHER, **TESTED},
            f"champion: Forecaster with DyFormer (promoted instead of L3), because it is so{NUMBERS}",
        ),
    ],
)
def test_outcome_of_a_promotion_is_one_sentence(changes: dict[str, Any], line: str):
    outcome = {"promoted": True, "previous": None, "difference": None, "reason": "it is so", **changes}
    assert promotion_line(outcome) == line


def test_rule_of_the_promotion_is_set_on_the_command_line(dyformer: Callable[..., Outcome]):
    rows = {row["setting"]: row for row in json.loads(dyformer("settings", "--json")[1])}
    assert {name: rows[f"promotion.{name}"]["value"] for name in ("metric", "level", "slices")} == {
        "metric": "mrr",
        "level": "0.95",
        "slices": "new,repeat",
    }
    for setting, says in (("slices=nwe", "no slice 'nwe'"), ("metric=auc", "mrr, hits_at_10"), ("level=1", "at most")):
        code, _, errors = dyformer("run", "generated", "--set", f"promotion.{setting}")
        assert code == 1
        assert says in errors


def test_values_of_every_type_are_json(dyformer: Callable[..., Outcome]):
    statement = (
        "select sum(n) as whole, 0.5 * 3 as part, 'nan'::double as nan, date '2024-01-02' as day,"
        " '\\x01'::blob as blob, [timestamp '2024-01-02 03:04:05'] as times, {'a': 1.5::decimal(3, 1)} as record"
        " from range(4) as r(n)"
    )
    code, output, _ = dyformer("sql", statement, "--json")
    assert code == 0
    assert json.loads(output, parse_constant=pytest.fail) == [
        {
            "whole": 6,
            "part": 1.5,
            "nan": None,
            "day": "2024-01-02",
            "blob": "01",
            "times": ["2024-01-02 03:04:05"],
            "record": {"a": 1.5},
        }
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1e-9, "1.0e-09"), (0.0004, "4.0e-04"), (0.0005, "0.0005"), (1.0, "1.0000")]
)
def test_a_probability_is_printed_with_its_first_digit(value: float, text: str):
    assert flows.console.printed_probability(value) == text
