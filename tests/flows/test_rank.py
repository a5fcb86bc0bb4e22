"""Queries and scores of the prequential protocol as artifacts: made once, checked, and the same for every method."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from own_snapshots import own_snapshots
from polars.testing import assert_frame_equal
from posed import evaluate_model, metrics_of, rank_methods, rank_model, write_queries

from dyformer.evaluation.forecasts.forecast import fit_forecast
from dyformer.evaluation.protocols.prequential import PROTOCOL as PREQUENTIAL
from dyformer.experiments.methods import METHODS
from dyformer.experiments.settings import Experiment
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.sampling.ranking_queries import ranking_queries
from dyformer.training.stages import node_vectors
from dyformer.training.stored_weights import TrainedDyFormer
from flows.tasks.evaluation.evaluate import backtest_published, units_of
from flows.tasks.evaluation.measure import read_queries
from flows.tasks.models import DYFORMER, Contender, StoredWeights, method_of, space_of, stored_method
from flows.tasks.predict import write_forecasts, write_vectors
from flows.tasks.report import reliability_line, run_metrics
from flows.tasks.snapshots import StepOutOfRange, open_snapshots
from flows.tasks.train import train_model
from storage.artifacts.artifact import ArtifactDamaged, digest, lineage_of, read_table

pytestmark = pytest.mark.usefixtures("few_trees")

FITS = "dyformer.evaluation.forecasts.forecast.published_score"


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("rank")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DYFORMER_STORAGE", str(folder / "store"))
        yield own_snapshots(folder)


def test_stored_queries_are_those_of_the_graph_and_are_made_once(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    address, opened = write_queries(snapshots, 5), open_snapshots(snapshots)
    expected = ranking_queries(opened.graph(opened.num_steps, interactions=True), 5, seed=0)
    for name, value in vars(read_queries(address)).items():
        np.testing.assert_array_equal(value, vars(expected)[name], err_msg=name)
    monkeypatch.setattr(
        "dyformer.evaluation.protocols.prequential.ranking_queries", lambda *args, **kwargs: pytest.fail("drawn again")
    )
    assert write_queries(snapshots, 5) == address
    assert lineage_of(address).settings["units"] == [5]


def test_scores_record_their_queries_and_are_reused(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    queries = write_queries(snapshots, 6)
    scores = rank_methods(snapshots, queries, ["L3", "Contact recency"])
    assert digest(queries) in lineage_of(scores).inputs.values()
    monkeypatch.setattr(
        "dyformer.evaluation.protocols.prequential.fitted_scores", lambda *args: pytest.fail("evaluated again")
    )
    assert rank_methods(snapshots, queries, ["L3", "Contact recency"]) == scores


def test_nodes_too_many_for_all_pairs_have_partners_among_candidates(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    names = ("scoring.retrieval", "evaluation.first_stage", "evaluation.labelled_steps")
    for module in (f"dyformer.{name}" for name in names):
        monkeypatch.setattr(f"{module}.MAX_NODES", 5)
    partners = read_table(rank_methods(snapshots, write_queries(snapshots, 6), ["L3"]), "partners")
    assert partners["node"].n_unique() > 5
    assert partners["rank"].max() == 10
    forecasts = read_table(write_forecasts(snapshots, Contender(title="L3"), k=2), "forecasts")
    assert forecasts["rank"].max() == 2


@pytest.mark.parametrize("title", ["Forecaster without vectors", "Event forecaster by pair"])
def test_a_forecaster_is_fitted_once_whatever_links_are_wanted_of_it(
    title: str, snapshots: str, monkeypatch: pytest.MonkeyPatch
):
    opened, contender = open_snapshots(snapshots), Contender(title=title)
    first = read_table(write_forecasts(snapshots, contender, seed=3), "forecasts")
    graph = opened.graph(opened.num_steps, interactions=True)
    past = prepare_graph(graph, until=opened.num_steps, config=Experiment().graph)
    expected = fit_forecast(contender.title, METHODS[contender.title], past, seed=3).tables(4, ("all", "new"))
    monkeypatch.setattr(FITS, lambda *args: pytest.fail("fitted again"))
    address = write_forecasts(snapshots, contender, seed=3, k=4)
    for kind, table in expected.items():
        stored = read_table(address, "forecasts" if kind == "all" else kind)
        columns = ["rank", "probability", "score", "linked_before"]
        assert stored.select(columns).equals(table.select(columns))
    assert first.filter(pl.col("rank") <= 4).equals(read_table(address, "forecasts"))
    repeated = read_table(write_forecasts(snapshots, contender, seed=3, links="repeat"), "forecasts")
    assert repeated["linked_before"].all()


def test_a_baseline_of_the_same_title_and_other_settings_is_fitted_again(
    snapshots: str, monkeypatch: pytest.MonkeyPatch
):
    contender = Contender(title="EdgeBank (ever)")
    first = write_forecasts(snapshots, contender, k=3)
    assert write_forecasts(snapshots, contender, k=3) == first
    monkeypatch.setitem(METHODS, contender.title, METHODS["EdgeBank (decayed)"])
    changed = write_forecasts(snapshots, contender, k=3)
    assert changed != first
    scores, expected = (
        read_table(address, "forecasts")["score"]
        for address in (changed, write_forecasts(snapshots, Contender(title="EdgeBank (decayed)"), k=3))
    )
    assert scores.equals(expected)
    assert not scores.equals(read_table(first, "forecasts")["score"])


def test_a_method_that_reads_vectors_is_fitted_once(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    tiny = {"model.width": 8, "model.num_heads": 2, "model.num_layers": 1, "model.num_context": 16, "pretrain": None}
    tiny |= {"finetune.epochs": 1, "finetune.batches_per_epoch": 1}
    models = tuple(train_model(snapshots, until, Experiment().changed(tiny)) for until in (6, 7))
    contender, vectors = Contender(title=DYFORMER, models=models), write_vectors(snapshots, models[-1])
    first = read_table(write_forecasts(snapshots, contender, vectors), "forecasts")
    opened = open_snapshots(snapshots)
    method, experiment = method_of(opened, contender)
    graph = opened.graph(opened.num_steps, interactions=True)
    past = prepare_graph(graph, until=opened.num_steps, config=experiment.graph)
    expected = fit_forecast(contender.title, method, past, seed=0).top(10)
    assert first["score"].equals(expected["score"])
    monkeypatch.setattr(FITS, lambda *args: pytest.fail("fitted again"))
    assert first.filter(pl.col("rank") <= 3).equals(
        read_table(write_forecasts(snapshots, contender, vectors, k=3), "forecasts")
    )


def test_methods_get_a_graph_that_ends_before_the_step(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    given = []

    class Watcher:
        def fit_pairs(self, graph, labelled):
            given.append((graph, labelled))
            return lambda source_P, target_P: np.zeros(len(source_P))

    monkeypatch.setitem(METHODS, "L3", Watcher())  # pyright: ignore[reportArgumentType]
    rank_methods(snapshots, write_queries(snapshots, 7), ["L3"])
    ((graph, labelled),) = given
    assert graph.until == graph.history.num_steps == 6
    assert [step.before.until for step in labelled] == [5, 4, 3]


def test_each_model_embeds_with_the_lags_it_was_trained_with(snapshots: str):
    """With a window of the whole history an older training has fewer lags than a newer one."""
    tiny = {"model.width": 8, "model.num_heads": 2, "model.num_layers": 1, "model.num_context": 16, "pretrain": None}
    tiny |= {"finetune.epochs": 1, "finetune.batches_per_epoch": 1, "graph.history_window": None}
    older, newer = (train_model(snapshots, until, Experiment().changed(tiny)) for until in (4, 5))
    queries, opened = write_queries(snapshots, 6), open_snapshots(snapshots)
    stored, _ = stored_method(opened, newer, (older,), 6)
    assert isinstance(stored.method, StoredWeights)
    assert isinstance(stored.method.method, TrainedDyFormer)
    assert stored.method.method.windows == {4: 4, 5: 5}
    table = read_table(rank_model(snapshots, queries, newer, older=(older,)), "rankings")
    assert table["method"].to_list() == ["DyFormer", "Forecaster with DyFormer"]


def test_a_run_embeds_the_nodes_once_as_of_a_step(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    """Ranking, the paper's protocol, the vectors and the forecasts with their calibration read the same vectors."""
    tiny = {"model.width": 8, "model.num_heads": 2, "model.num_layers": 1, "model.num_context": 16, "pretrain": None}
    tiny |= {"finetune.epochs": 1, "finetune.batches_per_epoch": 1}
    models = tuple(train_model(snapshots, until, Experiment().changed(tiny)) for until in (4, 5))
    newest = open_snapshots(snapshots).num_steps
    embedded: list[int] = []
    monkeypatch.setattr(
        "dyformer.training.stages.node_vectors",
        lambda graph, *given, **how: (embedded.append(graph.until), node_vectors(graph, *given, **how))[1],
    )
    rank_model(snapshots, write_queries(snapshots, newest), models[1], older=models[:1])
    evaluate_model(snapshots, models[1], newest, older=models[:1])
    write_forecasts(snapshots, Contender(title=DYFORMER, models=models), write_vectors(snapshots, models[1]), k=2)
    assert sorted(embedded) == [newest - 2, newest - 1, newest]


def test_the_published_method_forecasts_the_newest_step_without_reading_it(
    snapshots: str, monkeypatch: pytest.MonkeyPatch
):
    given = []

    class Watcher:
        def fit_pairs(self, graph, labelled):
            given.append((graph, labelled))
            return lambda source_P, target_P: (source_P + target_P) % 7

    opened = open_snapshots(snapshots)
    newest = opened.num_steps
    monkeypatch.setitem(METHODS, "L3", Watcher())  # pyright: ignore[reportArgumentType]
    address = backtest_published(snapshots, Contender(title="L3"))
    assert address is not None
    assert sorted(graph.until for graph, _ in given) == [
        newest - 2,
        newest - 1,
    ]  # of the calibration and of the forecast
    for graph, labelled in given:
        assert graph.history.num_steps == graph.until
        assert max(step.before.history.num_steps for step in labelled) == graph.until - 1
    pairs = read_table(address, "backtest")
    assert set(pairs["step"]) == {newest}
    last = opened.graph(newest).snapshots[-1]
    links = {frozenset(pair) for pair in zip(last.source_E.tolist(), last.target_E.tolist(), strict=True)}
    own = [frozenset(pair) for pair in pairs.select("node", "partner").iter_rows()]
    assert pairs["came"].to_list() == [pair in links for pair in own]


def test_models_that_know_the_step_of_the_calibration_are_left_out(snapshots: str):
    tiny = {"model.width": 8, "model.num_heads": 2, "model.num_layers": 1, "model.num_context": 16, "pretrain": None}
    tiny |= {"finetune.epochs": 1, "finetune.batches_per_epoch": 1}
    newest = open_snapshots(snapshots).num_steps
    older, newer = (train_model(snapshots, until, Experiment().changed(tiny)) for until in (newest - 2, newest - 1))
    address = backtest_published(snapshots, Contender(title=DYFORMER, models=(older, newer)))
    assert address is not None
    assert lineage_of(address).settings["models"] == [space_of(older)]
    assert set(read_table(address, "backtest")["method"]) == {DYFORMER}
    assert backtest_published(snapshots, Contender(title=DYFORMER, models=(newer,))) is None


def test_a_newest_step_that_cannot_be_forecast_has_no_reliability(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dyformer.evaluation.protocols.forecasts.rankable_steps", lambda log: [11])
    assert backtest_published(snapshots, Contender(title="L3")) is None
    assert "not known" in reliability_line(run_metrics(snapshots, [], []))


def test_metrics_of_two_artifacts_are_those_of_one(snapshots: str):
    queries = [write_queries(snapshots, step) for step in (8, 9)]
    names = ["L3", "Contact recency"]
    together = metrics_of([rank_methods(snapshots, each, names) for each in queries], snapshots, protocol="prequential")
    apart = [rank_methods(snapshots, each, [name]) for name in names for each in queries]
    keys = ["method", "step", "metric", "family", "slice"]
    assert_frame_equal(metrics_of(apart, snapshots, protocol="prequential").sort(keys), together.sort(keys))
    assert set(together["best_baseline"].drop_nulls()) <= set(names)


def test_changed_bytes_of_queries_are_found(snapshots: str):
    address = Path(write_queries(snapshots, 10))
    file = address / "queries.parquet"
    content = file.read_bytes()
    file.write_bytes(content[:-20] + bytes(20))
    try:
        with pytest.raises(ArtifactDamaged):
            read_queries(str(address))
    finally:
        file.write_bytes(content)
    assert json.loads((address / "manifest.json").read_text())["files"]["queries.parquet"]


def test_steps_that_cannot_be_ranked_are_named(snapshots: str):
    assert units_of(snapshots, PREQUENTIAL) == list(range(3, 13))
    assert units_of(snapshots, PREQUENTIAL, "4,6-7") == [4, 6, 7]
    with pytest.raises(StepOutOfRange, match="mylog: 2, 99 cannot be evaluated"):
        units_of(snapshots, PREQUENTIAL, "2,5,99")
