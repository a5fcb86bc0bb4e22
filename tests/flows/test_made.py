"""An edit of a formula makes exactly that anew that depends on it; an edit of a comment makes nothing anew."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest
from own_snapshots import own_snapshots

from dyformer.evaluation.first_stage import linked_in
from dyformer.evaluation.fitting import FittedOnce
from dyformer.evaluation.forecasts.forecast_rows import outcome_rows
from dyformer.evaluation.protocols import protocol_of
from dyformer.evaluation.protocols.prequential import with_hits
from dyformer.experiments.methods import METHODS
from dyformer.experiments.settings import Experiment
from dyformer.experiments.tuning.search import macro_auc
from dyformer.training.stored_weights import TrainedDyFormer
from flows.tasks import train
from flows.tasks.drift import write_drift
from flows.tasks.evaluation.evaluate import code_behind
from flows.tasks.event_state import HORIZON_CODE, MODEL_CODE, STATE_CODE
from flows.tasks.finished import planned_report
from flows.tasks.made import made
from flows.tasks.models import Contender, StoredWeights
from flows.tasks.predict import write_forecasts, write_vectors
from flows.tasks.prepare import prepare_tables
from flows.tasks.snapshots import make_snapshots, open_snapshots
from storage.artifacts import code
from storage.artifacts.artifact import lineage_of, read_table
from storage.artifacts.code import project_modules
from storage.artifacts.made import Planned

STAGE = {"epochs": 1, "batches_per_epoch": 1, "validation_batches": 1, "num_targets": 16, "num_positives": 8}
EXPERIMENT = Experiment().changed(
    {
        **{f"{stage}.{name}": value for stage in ("pretrain", "finetune") for name, value in STAGE.items()},
        "model.width": 16,
        "model.num_heads": 2,
        "model.num_context": 16,
    }
)
UNTIL = 8
DYFORMER, BASELINE, FITTED = "forecasts", "forecasts of a baseline", "fitted"
ALL = {"snapshots", "pagerank", "distances", "model", "vectors", FITTED, DYFORMER, BASELINE, "drift", "report"}
WEIGHTS_AND_AFTER = {"model", "vectors", FITTED, DYFORMER, "report"}

# Of each module: its name, a text in it, the same with one character changed or more, and what is made anew.
EDITS = {
    "snapshots": ("graphs/snapshots.py", "np.minimum(source_R, target_R)", "np.maximum(source_R, target_R)", ALL),
    "snapshots on disk": (
        "graphs/disk_snapshots.py", "least(source, target)", "greatest(source, target)", {"snapshots"},
    ),
    "checks": ("graphs/disk_snapshots.py", "where source >= target", "where source > target", {"snapshots"}),
    "pagerank": (
        "graphs/pagerank.py", "TABLE_TOP_K = ", "TABLE_TOP_K = 1 + ", {"pagerank", BASELINE, *WEIGHTS_AND_AFTER},
    ),
    "distances": ("graphs/distances.py", "SWEPT_FROM = 6", "SWEPT_FROM = 7", {"distances", *WEIGHTS_AND_AFTER}),
    "losses": ("training/stages.py", "link + config.id_penalty", "link - config.id_penalty", WEIGHTS_AND_AFTER),
    "stored weights": ("training/stored_weights.py", "max((until", "min((until", {FITTED, DYFORMER, "report"}),
    "rotation": ("scoring/vector_spaces.py", "MIN_LIFT = ", "MIN_LIFT = 1 + ", {"vectors", "report"}),
    "candidates": (
        "scoring/kernels/candidates.py", "other >= degree if most_popular", "other <= degree if most_popular",
        {FITTED, DYFORMER, BASELINE, "report"},
    ),
    "forecasts": (
        "evaluation/forecasts/forecast.py", "NUM_CALIBRATED = 2", "NUM_CALIBRATED = 3",
        {FITTED, DYFORMER, BASELINE, "report"},
    ),
    "baseline": (
        "baselines/heuristics.py", "degree_N[source_P] * degree_N", "degree_N[source_P] + degree_N",
        {BASELINE, "report"},
    ),
    "another baseline": ("baselines/node2vec.py", "+= step * context_D", "-= step * context_D", {"report"}),
    "drift": ("evaluation/drift.py", "1 - cosine_N.mean()", "2 - cosine_N.mean()", {"drift", "report"}),
    "the ranking protocol": ("evaluation/protocols/prequential.py", "job.unit - 1", "job.unit - 2", {"report"}),
    "the paper's protocol": ("evaluation/protocols/paper.py", "self.step - 1", "self.step - 2", {"report"}),
    "the forecasts' protocol": ("evaluation/protocols/forecasts.py", "job.unit - 1", "job.unit - 2", {"report"}),
    "a reader of logs": ("logs/delimited.py", "most + 1", "most + 2", set()),
    "a known log": ("logs/datasets.py", "first_evaluated_step=86", "first_evaluated_step=85", {"report"}),
    "a table": ("experiments/tables.py", "(100 * ", "(1 * ", set()),
    "a comment": ("logs/datasets.py", "\n\n", "\n\n# of the known logs\n\n", set()),
    "a comment in the training": ("training/stages.py", "\n\n", "\n\n# of the stages\n\n", set()),
    "a docstring": ("training/stages.py", '"""', '"""As follows. ', set()),
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Make one artifact of each kind; give the addresses."""
    folder = tmp_path_factory.mktemp("made")
    with patch.dict(os.environ, {"DYFORMER_STORAGE": str(folder / "store")}):
        snapshots = own_snapshots(folder)
        model = train.train_model(snapshots, UNTIL, EXPERIMENT)
        vectors = write_vectors(snapshots, model)
        addresses = {"snapshots": snapshots, "model": model, "vectors": vectors}
        run_all(addresses)
        planned_report(snapshots, EXPERIMENT, 0).made(lambda: {"metrics": pl.DataFrame()})
        yield addresses


def run_all(store: dict[str, str]) -> None:
    """Run each task; all read the same inputs, so that each is made anew for its own code alone."""
    snapshots, model, vectors = store["snapshots"], store["model"], store["vectors"]
    make_snapshots("mylog")
    prepare_tables(snapshots, UNTIL, EXPERIMENT)
    train.train_model(snapshots, UNTIL, EXPERIMENT)
    write_vectors(snapshots, model)
    write_forecasts(snapshots, Contender(title="Forecaster with DyFormer", models=(model,)), vectors, k=2)
    write_forecasts(snapshots, Contender(title="L3"), k=2)
    write_drift(snapshots, EXPERIMENT)


def not_current(store: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Name the artifacts that would be made anew; nothing is made."""
    kinds: set[str] = set()

    def record(artifact: Planned, make: Callable[[], Any] | None = None) -> str:
        if not artifact.is_current:
            is_baseline = artifact.lineage.settings.get("method") == "L3"
            kinds.add(BASELINE if is_baseline else artifact.lineage.kind)
        return artifact.address

    monkeypatch.setattr(Planned, "made", record)
    monkeypatch.setattr(train, "_train", lambda layout, graph, experiment, model, *others: record(model))
    run_all(store)
    record(planned_report(store["snapshots"], EXPERIMENT, 0))
    return kinds


def edited(monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    """Let the source of a module have an edit at the first place of a text; others are parsed once for all tests."""

    def read(path: Path) -> bytes:
        source = path.read_bytes().decode()
        if not path.as_posix().endswith(f"dyformer/{name}"):
            return source.encode()
        assert old in source, f"{name} has no {old!r}"
        return source.replace(old, new, 1).encode()

    monkeypatch.setattr(code, "source_of", read)
    parsed, module = code._parsed, f"dyformer/{name}".removesuffix(".py").replace("/", ".")
    parsed_anew = cache(parsed.__wrapped__)
    monkeypatch.setattr(code, "_parsed", lambda name: (parsed_anew if name == module else parsed)(name))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    code.code_version.cache_clear()
    yield
    code.code_version.cache_clear()


def test_nothing_is_made_twice(store: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    assert not_current(store, monkeypatch) == set()


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_makes_exactly_that_anew_that_depends_on_it(
    name: str, store: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    module, old, new, kinds = EDITS[name]
    edited(monkeypatch, module, old, new)
    assert not_current(store, monkeypatch) == kinds


# Of each kind of what is drawn, scored, measured or fitted: the code that it depends on, and a formula of that.
OF_EVENTS = {
    "event_state": (STATE_CODE, "streams/kernels/updates.py", "record.count += 1", "record.count += 2"),
    "event_model": (MODEL_CODE, "scoring/kernels/trees.py", "+= ", "-= "),
    "horizon_model": (HORIZON_CODE, "scoring/event_horizon.py", "start + length", "start - length"),
    "tuning": (project_modules(macro_auc), "experiments/tuning/search.py", "append(auc(", "append(1 - auc("),
    "outcomes": (project_modules(outcome_rows, linked_in), "evaluation/first_stage.py", "> MAX_NODES", "< MAX_NODES"),
}
OF_PROTOCOLS = {
    "queries": ("prequential", "sampling/ranking_queries.py", "2 * num + 10", "3 * num + 10"),
    "rankings": ("prequential", "evaluation/forecasts/best_partners.py", "NUM_PARTNERS = 10", "NUM_PARTNERS = 9"),
    "scores": ("paper", "evaluation/protocols/paper.py", "self.step - 1", "self.step - 2"),
    "negatives": ("tgb", "evaluation/event_splits.py", "RandomState(seed)", "RandomState(seed + 1)"),
    "ranks": ("tgb", "evaluation/event_splits.py", "QUANTILES = (", "QUANTILES = (0.5, "),
    "backtests": ("forecasts", "evaluation/forecasts/forecast.py", "NUM_CALIBRATED = 2", "NUM_CALIBRATED = 3"),
    "costs": ("cost", "evaluation/protocols/cost.py", "peak_gigabytes())", "1 + peak_gigabytes())"),
    "metrics": ("prequential", "scoring/metrics.py", "return 1 / rank_Q", "return 2 / rank_Q"),
}


def digests() -> dict[str, str]:
    protocols = {kind: protocol_of(name) for kind, (name, *_) in OF_PROTOCOLS.items()}
    codes = {kind: modules for kind, (modules, *_) in OF_EVENTS.items()}
    for kind, protocol in protocols.items():
        codes[kind] = code_behind(protocol, [])
        if kind in ("queries", "negatives"):
            assert protocol.draw is not None
            codes[kind] = project_modules(protocol.draw)
    codes["metrics"] = project_modules(with_hits([3]).rows)
    return {kind: code.code_digest(*modules) for kind, modules in codes.items()}


@pytest.mark.parametrize("kind", [*OF_EVENTS, *OF_PROTOCOLS])
def test_an_edit_of_a_formula_makes_that_kind_anew(kind: str, monkeypatch: pytest.MonkeyPatch):
    _, module, old, new = {**OF_EVENTS, **OF_PROTOCOLS}[kind]
    before = digests()
    assert len(set(before.values())) > len(before) / 2, "a code without modules has one digest"
    edited(monkeypatch, module, old, new)
    assert digests()[kind] != before[kind]


def test_an_edit_of_a_table_makes_none_of_them_anew(monkeypatch: pytest.MonkeyPatch):
    before = digests()
    edited(monkeypatch, "experiments/tables.py", "(100 * ", "(1 * ")
    assert digests() == before


def test_vectors_are_made_anew_of_weights_that_are(store: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    """What an artifact was made of is a part of its lineage, with the code of that."""
    before = lineage_of(store["vectors"])
    edited(monkeypatch, "graphs/distances.py", "SWEPT_FROM = 6", "SWEPT_FROM = 7")
    model = train.train_model(store["snapshots"], UNTIL, EXPERIMENT)
    assert model != store["model"]
    after = lineage_of(write_vectors(store["snapshots"], model))
    assert after.settings == before.settings  # the weights are equal
    assert after.inputs != before.inputs
    assert read_table(store["model"], "losses").height  # the older weights stay


def test_without_other_code_it_is_that_of_the_function(store: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    opened = open_snapshots(store["snapshots"])
    numbers: list[int] = []

    def make() -> dict[str, pl.DataFrame]:
        numbers.append(len(numbers))
        return {"drift": pl.DataFrame({"number": numbers[-1:]})}

    make.__module__ = "dyformer.evaluation.drift"
    keys = {"until": 3, "settings": {"window": "one"}, "make": make}
    assert made(opened, "drift", **keys) == made(opened, "drift", **keys)
    assert numbers == [0]
    edited(monkeypatch, "evaluation/drift.py", "1 - cosine_N", "2 - cosine_N")
    assert read_table(made(opened, "drift", **keys), "drift")["number"].to_list() == [1]


def behind(methods: list[object]) -> set[str]:
    return {module for name in code_behind(protocol_of("paper"), methods) for module in code.modules_behind(name)}


@pytest.mark.parametrize("title", METHODS)
def test_scores_depend_on_the_code_of_a_method_that_is_fitted_once(title: str):
    method: Any = METHODS[title]
    assert type(method).__module__ in behind([method])
    assert type(method).__module__ in behind([FittedOnce(method=method)])


def test_scores_of_stored_weights_depend_on_the_code_of_the_model():
    trained = TrainedDyFormer(weights={}, windows={}, model=Experiment().model, device="cpu")
    stored = FittedOnce(method=StoredWeights(addresses=(), method=trained))
    assert "dyformer.model.transformer" in behind([stored])
    assert "dyformer.model.transformer" not in behind([])
