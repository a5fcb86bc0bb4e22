"""Arguments of the wrong kind in the Python API: an error of ours says what was expected and what was found."""

import multiprocessing
import os
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import dyformer
from dyformer.baselines.heuristics import EdgeBank
from dyformer.experiments import arguments
from dyformer.experiments.arguments import ForkedProcess

pytestmark = pytest.mark.usefixtures("few_trees")

START = datetime(2024, 1, 1, tzinfo=UTC).timestamp()
ROWS = [(f"u{row % 17}", f"v{row % 13}", int(START) + row * 40_000, float(row % 3)) for row in range(240)]
FRAME = pl.DataFrame(ROWS, schema=["source", "target", "time", "weight"], orient="row")


class NeedsAnArgument:
    def __init__(self, width: int) -> None:
        self.width = width


@pytest.fixture(scope="module")
def log() -> dyformer.Log:
    return dyformer.read_log(FRAME)


@pytest.fixture(scope="module")
def graph(log: dyformer.Log) -> dyformer.Graph:
    return log.snapshots("7d")


@pytest.fixture(scope="module")
def model(graph: dyformer.Graph) -> dyformer.Model:
    return dyformer.fit(graph, "Common neighbours")


READ: dict[str, tuple[Any, dict[str, Any], str]] = {
    "nothing": (None, {}, "found NoneType"),
    "a number": (7, {}, "found int"),
    "an object": (object(), {}, "found object"),
    "bytes": (b"a,b,1", {}, "found bytes"),
    "a dictionary": ({"source": [1]}, {}, "found dict"),
    "a function": (print, {}, "found builtin_function_or_method"),
    "an array": (np.zeros((3, 3)), {}, "found ndarray"),
    "a column of pandas": (pd.Series([1, 2, 3]), {}, "found Series"),
    "a column of pyarrow": (FRAME.to_arrow()["time"], {}, "found ChunkedArray"),
    "no path": ([], {}, "the log has no file"),
    "a missing path": ("none.csv", {}, "none.csv cannot be opened"),
    "an empty path": ("", {}, "'' is a folder"),
    "paths and numbers": (["a.csv", 7], {}, "row 1 is 'a.csv': expected tuples"),
    "pairs": ([("a", "b")], {}, r"row 1 is \('a', 'b'\): expected tuples \(source, target, time\)"),
    "five values": ([(1, 2, 3, 4, 5)], {}, "row 1 is"),
    "rows of two lengths": ([(1, 2, 3), (1, 2, 3, 4)], {}, r"row 2 is \(1, 2, 3, 4\)"),
    "a list of numbers": ([1, 2, 3], {}, "row 1 is 1"),
    "no column source": (FRAME, {"source": "who"}, "no column 'who'; found: source, target, time, weight"),
    "no such position": (FRAME, {"time": 9}, "no column 9"),
    "one column twice": (FRAME, {"source": "target", "target": "target"}, "cannot be both source and target"),
    "a unit": (FRAME, {"time_unit": "hours"}, "`time_unit`: 'hours' is not one of s, ms, us"),
    "a unit of typed times": (
        FRAME.with_columns(pl.from_epoch("time")),
        {"time_unit": "hours"},
        "`time_unit`: 'hours' is not one of",
    ),
    "a folder": (Path(), {}, r"'\.' is a folder: name its files"),
    "a pattern": ("none/*.csv", {}, r"there is no file none/\*\.csv: name the files of a pattern"),
    "a path with a zero": ("a\0b", {}, "expected a path"),
    "a path that is no text": ("a\ud800", {}, "expected a path"),
    "frames": ([FRAME, FRAME], {}, "row 1 is a DataFrame: expected tuples"),
    "half a character": ([("\ud800", "b", 1)], {}, "is not UTF-8 text"),
    "a lazy frame without a column": (FRAME.lazy().select("who"), {}, 'cannot be collected: .*"who"'),
    "a lazy frame without a file": (pl.scan_parquet("none.parquet"), {}, "cannot be collected: .*none.parquet"),
    "columns of one name": (pd.DataFrame([[1, 2, 2]], columns=["a", "b", "b"]), {}, "cannot be read: .*[Dd]uplicate"),
    "complex numbers": (FRAME.to_pandas().assign(weight=1j), {}, "cannot be read: "),
    "comment marks": (FRAME, {"comment_marks": None}, 'comment_marks = None: expected a text such as "%#"'),
    "a text for a truth": (FRAME, {"bipartite": "yes"}, "bipartite = 'yes': expected True, False or None"),
    "a fraction in a text": (FRAME, {"max_bad": "1%"}, "from 0 to 1 .*, got '1%'"),
    "a fraction": (FRAME, {"max_bad": 7}, "from 0 to 1"),
    "no rows": (FRAME.head(0), {}, "no row"),
}


@pytest.mark.parametrize("case", READ)
def test_what_is_no_log_is_named(case: str) -> None:
    log, declared, says = READ[case]
    with pytest.raises(dyformer.InvalidInput, match=says):
        dyformer.read_log(log, **declared)


WINDOWS: dict[str, tuple[Any, str]] = {
    "a number": (7, "duration '7'"),
    "nothing": (None, "'None' is not"),
    "a word": ("weekly", "weekly"),
    "a list": (["7d"], "is not"),
    "no time": ("0d", "0"),
    "a million windows": ("1s", "windows"),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_what_is_no_window_is_named(case: str, log: dyformer.Log) -> None:
    window, says = WINDOWS[case]
    with pytest.raises(dyformer.InvalidInput, match=says):
        log.snapshots(window)


FIT: dict[str, tuple[dict[str, Any], str]] = {
    "seed None": ({"seed": None}, "seed = None: expected an integer from 0, found NoneType"),
    "seed text": ({"seed": "a"}, "seed = 'a': expected an integer from 0, found str"),
    "seed float": ({"seed": 1.5}, "seed = 1.5: expected an integer"),
    "seed below 0": ({"seed": -1}, "seed = -1: expected an integer from 0"),
    "seed truth": ({"seed": True}, "seed = True: expected an integer"),
    "until text": ({"until": "3"}, "step = '3': expected an integer from 1, found str"),
    "until 0": ({"until": 0}, "step = 0"),
    "until late": ({"until": 999}, "999"),
    "until float": ({"until": 2.5}, "step = 2.5"),
    "settings list": ({"settings": ["model.width"]}, "settings: expected a dictionary .*found list"),
    "settings text": ({"settings": "model.width=4"}, "settings: expected a dictionary .*found str"),
    "settings of numbers": ({"settings": {1: 2}}, "settings: expected a dictionary"),
    "settings unknown": ({"settings": {"model.widht": 4}}, "model.width"),
    "settings wrong": ({"settings": {"model.width": "wide"}}, "model.width"),
    "device": ({"device": "tpu9"}, "device = 'tpu9': expected \"cpu\""),
    "device none": ({"device": None}, "device = None"),
    "device missing": ({"device": "cuda:99"}, "this machine has"),
    "progress": ({"progress": True}, "progress = True: expected a function"),
    "method none": ({"method": None}, "found NoneType without either"),
    "method number": ({"method": 3}, "found int without either"),
    "method unknown": ({"method": "L4"}, "L3"),
    "method interface": ({"method": dyformer.Embedder}, "found the interface itself"),
    "method class": ({"method": NeedsAnArgument}, "called without arguments, but missing .*'width'"),
    "method class of C": ({"method": int}, "called without arguments, but no signature|found int without either"),
    "method function": ({"method": print}, "without either"),
}


@pytest.mark.parametrize("case", FIT)
def test_wrong_arguments_of_a_fit_are_named(case: str, graph: dyformer.Graph) -> None:
    given, says = FIT[case]
    with pytest.raises(dyformer.InvalidInput, match=says):
        dyformer.fit(graph, **{"method": "L3", **given})


def test_what_is_no_graph_is_named(log: dyformer.Log) -> None:
    for wrong in (None, log, "graph", FRAME):
        with pytest.raises(dyformer.InvalidInput, match=f"expected a Graph, .*; found {type(wrong).__name__}"):
            dyformer.fit(wrong)  # pyright: ignore[reportArgumentType]


EVALUATE: dict[str, tuple[dict[str, Any], str]] = {
    "steps text": ({"steps": "3"}, "steps = '3': expected an integer"),
    "steps none left": ({"steps": []}, "expected one integer at least"),
    "steps floats": ({"steps": [3.5]}, "steps = 3.5: expected an integer"),
    "steps late": ({"steps": 99}, "99 cannot be evaluated; steps 3 to"),
    "seeds text": ({"seeds": "0"}, "seeds = '0': expected an integer"),
    "seeds none": ({"seeds": []}, "expected one integer at least"),
    "seeds None": ({"seeds": None}, "seeds = None"),
    "methods number": ({"methods": 3}, "found int without either"),
    "methods of numbers": ({"methods": [3]}, "found int without either"),
    "methods none": ({"methods": []}, "expected one method at least"),
    "methods none named": ({"methods": {}}, "expected one method at least"),
    "methods twice": ({"methods": ["L3", "L3"]}, "two methods have the title 'L3'"),
    "settings": ({"settings": 3}, "settings: expected a dictionary"),
    "device": ({"device": "tpu9"}, "device = 'tpu9': expected \"cpu\""),
    "device missing": ({"device": "cuda:99"}, "this machine has"),
    "progress": ({"progress": True}, "progress = True: expected a function"),
}


@pytest.mark.parametrize("case", EVALUATE)
def test_wrong_arguments_of_an_evaluation_are_named(case: str, graph: dyformer.Graph) -> None:
    given, says = EVALUATE[case]
    with pytest.raises(dyformer.InvalidInput, match=says):
        dyformer.evaluate(graph, **{"methods": ["L3"], "steps": 5, **given})


MODEL: dict[str, tuple[Callable[[Any], Any], str]] = {
    "top text": (lambda model: model.top("x"), "k = 'x': expected an integer from 1, found str"),
    "top float": (lambda model: model.top(2.5), "k = 2.5: expected an integer from 1, found float"),
    "top none": (lambda model: model.top(None), "k = None"),
    "top zero": (lambda model: model.top(0), "k = 0: expected an integer from 1"),
    "top links": (lambda model: model.top(links="old"), "links = 'old': expected one of all, new, repeat"),
    "top links none": (lambda model: model.top(links=None), "links = None"),
    "top ids float": (lambda model: model.top(ids=2.5), "ids = 2.5: expected an id or several"),
    "top ids unknown": (lambda model: model.top(ids=["nobody"]), "unknown ids: nobody"),
    "top ids mapping": (lambda model: model.top(ids={"u1": 1}), "expected an id or several of them, found dict"),
    "scores none": (lambda model: model.scores(None), "expected pairs .*found NoneType"),
    "scores number": (lambda model: model.scores(3), "expected pairs .*found int"),
    "scores text": (lambda model: model.scores("u1"), "expected pairs .*found str"),
    "scores of texts": (lambda model: model.scores(["u1", "v1"]), "expected pairs .*found 'u1'"),
    "scores of three": (lambda model: model.scores([("u1", "v1", 3)]), "expected pairs"),
    "scores of a frame": (lambda model: model.scores(pl.DataFrame({"a": [1]})), "no column source and target"),
    "scores of lists": (
        lambda model: model.scores(pl.DataFrame({"source": [["u1"]], "target": ["v1"]})),
        "ids of the type List",
    ),
    "scores of bytes": (
        lambda model: model.scores(pl.DataFrame({"source": [b"\xff"], "target": ["v1"]})),
        "ids of the type Binary",
    ),
    "scores of a lazy frame": (lambda model: model.scores(FRAME.lazy()), "expected pairs .*found LazyFrame"),
    "scores of half a character": (lambda model: model.scores([("\ud800", "v1")]), "is not UTF-8 text"),
    "top ids half a character": (lambda model: model.top(ids="\ud800"), "is not UTF-8 text"),
    "save none": (lambda model: model.save(None), "folder = None: expected a path"),
    "save zero": (lambda model: model.save("a\0b"), "expected a path"),
    "load none": (lambda model: dyformer.load(cast(Any, None)), "folder = None: expected a path"),
    "load events": (lambda model: dyformer.EventModel.load(cast(Any, 3)), "folder = 3: expected a path"),
    "scores unknown": (lambda model: model.scores([("u1", "nobody")]), "unknown ids: nobody"),
    "vectors": (lambda model: model.vectors(), "scores pairs without vectors"),
    "until": (lambda model: model.graph.until("x"), "step = 'x'"),
    "load": (lambda model: dyformer.load("nowhere"), "nowhere has no readable model.json"),
}


@pytest.mark.parametrize("case", MODEL)
def test_wrong_arguments_of_a_model_are_named(case: str, model: dyformer.Model) -> None:
    use, says = MODEL[case]
    with pytest.raises(dyformer.InvalidInput, match=says):
        use(model)


def test_a_folder_that_cannot_be_written_is_named(model: dyformer.Model, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(dyformer.DyformerError, match=r"file.* cannot be written") as error:
            model.save(folder)
        assert isinstance(error.value, OSError)


class Arrow:
    """Any object with a stream of Arrow."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return FRAME.to_arrow().__arrow_c_stream__(requested_schema)


def test_rows_in_memory_of_every_kind_give_one_log(log: dyformer.Log) -> None:
    table = FRAME.to_arrow()
    kinds: dict[str, Any] = {
        "lazy frame": FRAME.lazy(),
        "pandas": pd.DataFrame(ROWS, columns=["source", "target", "time", "weight"]),
        "pyarrow": table,
        "record batches": pa.RecordBatchReader.from_batches(table.schema, table.to_batches()),
        "duckdb": duckdb.connect().from_arrow(table),
        "stream": Arrow(),
        "tuples": ROWS,
        "lists": [list(row) for row in ROWS],
    }
    for rows in kinds.values():
        assert_frame_equal(dyformer.read_log(rows).events, log.events)


def test_tuples_may_mix_ids_and_have_times_of_any_kind() -> None:
    times = [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    mixed = dyformer.read_log([(1, "a", times[0]), ("x", 2, times[1]), (3, 4, times[2])])
    assert mixed.events["source"].to_list() == ["1", "x", "3"]
    assert mixed.events["time"].to_list() == times
    assert dyformer.read_log([(1, 2, 5), (2, 3, 6)]).events["source"].dtype == pl.Int64


FORKED: dict[str, Callable[[dyformer.Log, dyformer.Model, bytes], object]] = {
    "read_log": lambda log, model, pickled: dyformer.read_log(FRAME),
    "snapshots": lambda log, model, pickled: log.snapshots("7d"),
    "fit": lambda log, model, pickled: dyformer.fit(model.graph, "L3"),
    "fit_events": lambda log, model, pickled: dyformer.fit_events(log),
    "evaluate": lambda log, model, pickled: dyformer.evaluate(model.graph, ["L3"], steps=5),
    "top": lambda log, model, pickled: model.top(3),
    "scores": lambda log, model, pickled: model.scores([("u1", "v1")]),
    "save": lambda log, model, pickled: model.save("none"),
    "load": lambda log, model, pickled: dyformer.load("none"),
    "unpickle": lambda log, model, pickled: pickle.loads(pickled),
}


def _in_child(queue: Any, use: Callable[[], object]) -> None:
    try:
        use()
        queue.put("no error")
    except ForkedProcess as error:
        queue.put(str(error))


@pytest.mark.parametrize("use", FORKED)
def test_a_child_made_by_fork_after_a_use_is_refused_by_name(
    use: str, log: dyformer.Log, model: dyformer.Model
) -> None:
    assert arguments._used_in == os.getpid()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(queue, partial(FORKED[use], log, model, pickle.dumps(model))))
    child.start()
    child.join(60)
    is_hanging = child.is_alive()
    child.kill()
    assert not is_hanging
    assert child.exitcode == 0
    assert 'multiprocessing.get_context("spawn")' in queue.get()


def test_a_folder_with_other_files_takes_no_model(model: dyformer.Model, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"has other files \(mine.txt\)"):
        model.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert isinstance(dyformer.METHODS["EdgeBank (ever)"], EdgeBank)
