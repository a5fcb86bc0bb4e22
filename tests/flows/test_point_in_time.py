"""Later rows change no byte of any result as of a step; earlier rows do change results."""

import gzip
import io
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from poisons import POISONS, SplitLog, poisoned, split_generated, split_uci
from posed import baselines_on, evaluate_model

from dyformer.experiments.settings import Experiment
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, to_tables
from dyformer.logs.synthetic import generated_log
from dyformer.sampling.link_batches import PairSizes, PairSource, forecast_tasks, reconstruction_tasks
from dyformer.sampling.pairs import evaluated_steps, paper_examples
from flows.tasks.ingest import ingest_log
from flows.tasks.models import DYFORMER, Contender
from flows.tasks.predict import write_forecasts, write_vectors
from flows.tasks.prepare import prepare_tables
from flows.tasks.snapshots import make_snapshots, open_snapshots
from flows.tasks.train import train_model
from storage.artifacts.artifact import Lineage, manifest, open_artifact, read_bytes
from storage.events.table import node_dictionary

pytestmark = pytest.mark.usefixtures("few_trees", "short_generated_log")

DAY = 86_400
UNTIL = 3
VECTORS = "vectors/vectors.parquet"
TINY = {
    "model.width": 16,
    "model.num_heads": 2,
    "model.num_layers": 1,
    "model.feed_forward_width": 16,
    "model.num_context": 64,
} | {
    f"{stage}.{name}": value
    for stage in ("pretrain", "finetune")
    for name, value in {
        "epochs": 1,
        "batches_per_epoch": 4,
        "validation_batches": 1,
        "num_targets": 64,
        "num_positives": 32,
    }.items()
}
EXPERIMENT = Experiment().changed(TINY)

Known = dict[str, bytes]
"""Name of a result made as of UNTIL -> its bytes."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A log, its windows, and all results made of the unchanged log as of UNTIL.

    The windows of uci lack the published rule's trim at the end. That trim is measured from the newest row, so a
    log that ends at UNTIL would lose its last 60 days.
    """

    dataset: str
    window: str
    log: SplitLog
    known: Known


def ndjson(frame: pl.DataFrame) -> bytes:
    return frame.write_ndjson().encode()


def files_of(name: str, address: str) -> Known:
    return {f"{name}/{file}": read_bytes(address, file) for file in sorted(open_artifact(address).entries)}


def splits_of(graph: DynamicGraph) -> Known:
    """The evaluated pairs, negatives among them, of every step that can be evaluated."""
    found = {}
    for step in evaluated_steps(graph, first_step=2):
        split = paper_examples(graph, step, seed=0)
        columns = [column for part in (split.train, split.validation, split.test) for column in vars(part).values()]
        found[f"split of step {step}"] = b"".join(column.tobytes() for column in columns)
    return found


def training_pairs(graph: DynamicGraph, until: int) -> bytes:
    """One batch of every task of both stages: targets, context, features, positive and negative pairs."""
    prepared = prepare_graph(graph, until=until, config=EXPERIMENT.graph)
    sizes = PairSizes(num_positives=32, num_negatives=5, num_targets=64, num_context=32, num_history_links=50)
    source = PairSource(prepared, sizes, validation_fraction=0.1, seed=0)
    tasks = forecast_tasks(until) + reconstruction_tasks(until, 5, hidden=True)
    batches = source.batches(tasks, np.random.default_rng(0), held_out=False, two_views=True)
    parts = []
    for batch in batches:
        for subgraph in (batch.subgraph, batch.second_view):
            assert subgraph is not None
            parts += [tensor.numpy().tobytes() for tensor in subgraph.tensors()]
        assert batch.history is not None
        for pairs in (batch.pairs, batch.history):
            parts += [end_P.numpy().tobytes() for end_P in vars(pairs).values()]
    return b"".join(parts)


def known_at(snapshots: str, until: int = UNTIL) -> Known:
    """All results that the tasks make of the snapshots up to `until`."""
    opened = open_snapshots(snapshots)
    graph = opened.graph(until)
    younger = train_model(snapshots, until - 1, EXPERIMENT)
    model = train_model(snapshots, until, EXPERIMENT, start=younger)
    dictionary = node_dictionary(opened.layout, opened.dataset, opened.version)
    vectors = write_vectors(snapshots, model, until)
    made = prepare_tables(snapshots, until, EXPERIMENT) | {
        "model": model,
        "the model that it starts from": younger,
        "vectors": vectors,
        "forecasts": write_forecasts(snapshots, Contender(title=DYFORMER, models=(younger, model)), vectors, k=3),
        "scores of the model": evaluate_model(snapshots, younger, until),
        "scores of the baselines": baselines_on(snapshots, until),
    }
    return {
        **{f"snapshots/{name}": ndjson(table) for name, table in to_tables(graph).items()},
        "dictionary": ndjson(dictionary.filter(pl.col("node").is_in(graph.node_N.tolist()))),
        **splits_of(graph),
        "training pairs": training_pairs(graph, until),
        **{key: content for name, address in made.items() for key, content in files_of(name, address).items()},
        "times read": repr({name: lineage_of(address).max_event_time for name, address in made.items()}).encode(),
    }


def lineage_of(address: str) -> Lineage:
    lineage = manifest(address)
    assert lineage is not None
    return lineage


def ingested(dataset: str, window: str, folder: Path, lines: list[bytes], name: str = "log") -> str:
    """Ingest lines as one more source of the dataset, and cut the newest version into snapshots."""
    path = folder / f"{name}.txt"
    path.write_bytes(b"\n".join([*lines, b""]))
    reading = {"log": [str(path)], "max_bad": "100%", "window": window}
    ingest_log(dataset, reading, lambda text: None)
    return make_snapshots(dataset)


def differing(found: Known, expected: Known) -> set[str]:
    return {name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store for each test."""
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    return tmp_path


def open_case(dataset: str, window: str, log: SplitLog, folder: Path) -> Case:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYFORMER_STORAGE", str(folder / "store"))
        snapshots = ingested(dataset, window, folder, [*log.header, *log.past, *log.future])
        return Case(dataset=dataset, window=window, log=log, known=known_at(snapshots))


def among_first(content: bytes, num_nodes: int) -> bytes:
    """The rows of the published log between its first nodes, which it numbers in the order of their first row."""
    lines = content.splitlines()
    return b"\n".join(line for line in lines if line.startswith(b"%") or max(map(int, line.split()[:2])) <= num_nodes)


@pytest.fixture(scope="module")
def uci(shared_log: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Case:
    content = among_first(gzip.decompress(shared_log("uci").read_bytes()), num_nodes=300)
    moment = 1082008561 + (5 + 10 * UNTIL) * DAY  # the first row of the log, the trim, and the steps
    return open_case("uci", "10d trim 5d 0", split_uci(content, moment), tmp_path_factory.mktemp("uci"))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Case:
    content = generated_log()
    first = split_generated(content, 0).rows[0][2]
    log = split_generated(content, first + 7 * UNTIL * DAY)
    return open_case("generated", "7d", log, tmp_path_factory.mktemp("generated"))


@pytest.fixture(params=["uci", "generated"])
def case(request: pytest.FixtureRequest) -> Case:
    return request.getfixturevalue(request.param)


def check_poison(case: Case, lines: list[bytes], store: Path) -> str:
    snapshots = ingested(case.dataset, case.window, store, lines)
    assert differing(known_at(snapshots), case.known) == set()
    return snapshots


@pytest.mark.parametrize(
    ("case", "poison"),
    [("uci", poison) for poison in POISONS] + [("generated", poison) for poison in ("shuffled", "malformed")],
    indirect=["case"],
)
def test_no_later_row_reaches_an_earlier_step(case: Case, poison: str, store: Path):
    check_poison(case, poisoned(case.log, poison), store)


@pytest.mark.parametrize(("case", "poison"), [("uci", "malformed"), ("generated", "newcomers")], indirect=["case"])
def test_later_rows_may_stand_first_in_the_file(case: Case, poison: str, store: Path):
    check_poison(case, poisoned(case.log, poison, first=True), store)


def test_rows_that_arrive_later_and_are_later_reach_no_earlier_step(uci: Case, store: Path):
    first = ingested(uci.dataset, uci.window, store, [*uci.log.header, *uci.log.past])
    later = POISONS["newcomers"](uci.log, np.random.default_rng(0))
    second = ingested(uci.dataset, uci.window, store, later, "later")
    assert open_snapshots(second).num_steps > open_snapshots(first).num_steps == UNTIL
    assert differing(known_at(second), uci.known) == set()


def test_rows_that_are_later_and_arrived_before_change_nothing_but_permanent_numbers(uci: Case, store: Path):
    ingested(uci.dataset, uci.window, store, uci.log.future, "future")
    found = known_at(ingested(uci.dataset, uci.window, store, uci.log.past, "past"))
    models = {f"{name}/weights.safetensors" for name in ("model", "the model that it starts from")}
    named = {"dictionary", "snapshots/nodes", *models}  # weights hold the number of each row
    assert differing(found, uci.known) == {*named, VECTORS}
    vectors, expected = (pl.read_parquet(io.BytesIO(known[VECTORS])) for known in (found, uci.known))
    assert vectors.drop("space_id").equals(expected.drop("space_id"))  # the space id is a hash of the weights


def test_rows_that_arrive_late_do_not_rewrite_an_earlier_version(uci: Case, store: Path):
    first = ingested(uci.dataset, uci.window, store, [*uci.log.header, *uci.log.past, *uci.log.future])
    late = uci.log.written([("1", "1899", uci.log.parse(uci.log.past[-1])[2]), ("ghost", "1", 1082008561 + 6 * DAY)])
    second = ingested(uci.dataset, uci.window, store, late, "late")
    assert make_snapshots(uci.dataset, version=1) == first != second
    assert differing(known_at(first), uci.known) == set()
    assert {"snapshots/edges", "model/weights.safetensors"} <= differing(known_at(second), uci.known)


def test_one_earlier_row_changes_tables_weights_vectors_and_scores(case: Case, store: Path):
    lines = list(case.log.past)
    index = lonely_row(case.log, before=case.log.moment - step_length(case))
    source, _, time = case.log.parse(lines[index])
    lines[index] = case.log.written([(source, stranger_of(case.log, source), time)])[0]
    snapshots = ingested(case.dataset, case.window, store, [*case.log.header, *lines, *case.log.future])
    changed = differing(known_at(snapshots), case.known)
    made = {"snapshots/edges", "pagerank/pagerank.parquet", "distances/distances.parquet", "model/weights.safetensors"}
    made |= {
        VECTORS,
        "forecasts/forecasts.parquet",
        "forecasts/new.parquet",
        "forecasts/forecast.json",
        "training pairs",
        "scores of the model/pairs.parquet",
    }
    made |= {"scores of the baselines/pairs.parquet"}
    assert made <= changed
    assert "times read" not in changed


def step_length(case: Case) -> int:
    """Seconds of one window."""
    return int(case.window.partition("d")[0]) * DAY


def lonely_row(log: SplitLog, before: int) -> int:
    """The last row before a time whose pair interacted once and whose nodes often interacted with others."""
    rows = [log.parse(line) for line in log.past]
    pairs = Counter(frozenset(row[:2]) for row in rows)
    ends = Counter(end for row in rows for end in row[:2])
    lonely = [
        pairs[frozenset(row[:2])] == 1 and row[2] < before and min(ends[end] for end in row[:2]) > 9 for row in rows
    ]
    return len(lonely) - 1 - lonely[::-1].index(True)


def stranger_of(log: SplitLog, node: str) -> str:
    """A node of many interactions, none of them with this one."""
    rows = [log.parse(line)[:2] for line in log.past]
    met = {end for row in rows if node in row for end in row}
    return next(end for end, _ in Counter(end for row in rows for end in row).most_common() if end not in met)


def test_a_poison_changes_the_step_after_until(uci: Case, store: Path, monkeypatch: pytest.MonkeyPatch):
    poison = ingested(uci.dataset, uci.window, store, poisoned(uci.log, "shuffled"))
    found = splits_of(open_snapshots(poison).graph(UNTIL + 1))
    monkeypatch.setenv("DYFORMER_STORAGE", str(store / "other"))
    original = ingested(uci.dataset, uci.window, store, [*uci.log.header, *uci.log.past, *uci.log.future])
    expected = splits_of(open_snapshots(original).graph(UNTIL + 1))
    assert differing(found, expected) == {f"split of step {UNTIL + 1}"}


def test_windows_trimmed_at_the_end_keep_earlier_steps_when_the_newest_row_stays(uci: Case, store: Path):
    """The published rule cuts off the 60 days before the newest row, so a poison must keep that row."""
    newest = max(uci.log.future, key=lambda line: uci.log.parse(line)[2])
    window = "10d trim 5d 60d"
    snapshots = ingested(uci.dataset, window, store, [*poisoned(uci.log, "random_edges"), newest])
    tables = to_tables(open_snapshots(snapshots).graph(UNTIL))
    assert open_snapshots(snapshots).num_steps == 13
    for name, table in tables.items():
        assert ndjson(table) == uci.known[f"snapshots/{name}"]


def test_windows_of_equal_count_move_with_later_rows_but_never_in_an_earlier_version(generated: Case, store: Path):
    log = generated.log
    first = ingested("generated", "12 equal", store, [*log.header, *log.past], "first")
    before = {name: ndjson(table) for name, table in to_tables(open_snapshots(first).graph(12)).items()}
    second = ingested("generated", "12 equal", store, [*log.header, *log.future], "second")
    moved = open_snapshots(second).graph(3).snapshots[-1].end_time
    assert moved > open_snapshots(first).graph(3).snapshots[-1].end_time
    shutil.rmtree(first)
    again = make_snapshots("generated", version=1)
    assert again == first
    assert {name: ndjson(table) for name, table in to_tables(open_snapshots(again).graph(12)).items()} == before
