"""The Python API: frames and files with any ids, fitted models that read no later row, and tables of methods."""

import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from polars.testing import assert_frame_equal
from toy_protocol import PROTOCOL as TOY

import dyformer
from dyformer import Graph, Model
from dyformer.evaluation.forecasts.forecast import FORECAST_COLUMNS
from dyformer.evaluation.scored_queries import RankingTrial, evaluate_queries
from dyformer.experiments import api
from dyformer.experiments.arguments import id_texts, pair_frame
from dyformer.experiments.methods import METHODS, VARIATIONS
from dyformer.graphs.prepared_graph import GraphConfig, PreparedGraph, prepare_graph
from dyformer.logs.raw_file import ColumnNotFound, LogError, TooManyBadRows, UnreadableTime
from dyformer.logs.synthetic import generated_log
from dyformer.sampling.ranking_queries import FAMILIES, ranking_queries
from dyformer.scoring.interfaces import Embed, LabelledStep, Score

pytestmark = pytest.mark.usefixtures("few_trees", "short_generated_log")

SMALL = {"model.num_layers": 1, "model.width": 16, "model.num_heads": 2, "pretrain": None, "finetune.epochs": 1}


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """A method of the user's own: leading eigenvectors of the newest snapshots' adjacency."""

    width: int = 4

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        num_nodes = len(graph.history.node_N)
        adjacency_NN = np.zeros((num_nodes, num_nodes))
        for snapshot in graph.history.snapshots:
            adjacency_NN[snapshot.source_E, snapshot.target_E] += 1
        values, vector_NN = np.linalg.eigh(adjacency_NN + adjacency_NN.T)
        vector_ND = vector_NN[:, -self.width :] * np.sqrt(np.abs(values[-self.width :]))
        return lambda node_N: vector_ND[node_N]


class Constant:
    """A scorer of the user's own."""

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        return lambda source_P, target_P: np.zeros(len(source_P))


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    return pl.read_csv(io.BytesIO(generated_log()))


@pytest.fixture(scope="module")
def graph(frame: pl.DataFrame) -> Graph:
    return dyformer.read_log(frame).snapshots("7d")


@pytest.fixture(scope="module")
def model(graph: Graph) -> Model:
    return dyformer.fit(graph, Spectrum())


def test_a_protocol_of_ones_own_evaluates_methods_in_memory(graph: Graph):
    table = dyformer.evaluate(graph, ["L3", "Contact recency"], steps=[11, 12], protocol=TOY)
    assert set(table["method"]) == {"L3", "Contact recency"}
    assert table["above"].is_between(0.5, 1, closed="none").all()
    with pytest.raises(ValueError, match="Spectrum: the protocol 'toy' does not evaluate methods of this kind"):
        dyformer.evaluate(graph, [Spectrum(), "L3"], protocol=TOY)


def edges(graph: Graph) -> list[NDArray[np.int64]]:
    return [end for snapshot in graph.dynamic.snapshots for end in (snapshot.source_E, snapshot.target_E)]


def test_ten_lines_give_vectors_scores_and_top_links_by_the_users_ids(graph: Graph) -> None:
    model = dyformer.fit(graph, settings=SMALL)
    vectors = model.vectors()
    assert vectors.columns == ["id", "vector"]
    assert len(vectors) == 293
    assert vectors["vector"][0].len() == 16
    top = model.top(3, ids=["u0007", "u0002"])
    assert top.columns == ["id", "rank", "partner", *FORECAST_COLUMNS, "method", "valid_from", "valid_to"]
    assert set(top["id"]) == {"u0007", "u0002"}
    again = model.scores(top.select(source="id", target="partner"))
    np.testing.assert_allclose(again["probability"], top["probability"], rtol=1e-12)
    assert again["source"].to_list() == top["id"].to_list()


def test_file_polars_frame_and_pandas_frame_give_one_graph(frame: pl.DataFrame, graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress(frame.write_csv().encode()))
    for log in (
        path,
        str(path),
        [path],
        frame.to_pandas(),
        frame.to_pandas().set_axis(range(frame.width), axis=1),
        frame.with_columns(pl.col("time").str.to_datetime(time_zone="UTC")),
    ):
        other = dyformer.read_log(log).snapshots("7d")
        assert_frame_equal(other.nodes, graph.nodes)
        assert all(np.array_equal(one, two) for one, two in zip(edges(other), edges(graph), strict=True))


def test_weights_are_read_by_the_forecaster_and_by_no_baseline_of_counts(frame: pl.DataFrame, graph: Graph) -> None:
    amounts = frame.with_columns(amount=pl.int_range(pl.len()) % 7 * 10.0)
    log = dyformer.read_log(amounts, weight="amount")
    assert log.events["weight"].to_list() == amounts["amount"].to_list()
    assert set(dyformer.read_log(amounts).events["weight"]) == {1.0}
    weighted = log.snapshots("7d")
    assert all(np.array_equal(one, two) for one, two in zip(edges(weighted), edges(graph), strict=True))
    pairs = [("u0007", "u0002"), ("u0001", "u0003"), ("u0005", "u0010")]
    for method, is_equal in (("L3", True), ("Forecaster without vectors", False)):
        one, two = (dyformer.fit(each, method).scores(pairs) for each in (weighted, graph))
        assert one.equals(two) == is_equal, method


def test_a_log_that_is_declared_undirected_gives_each_pair_to_both_of_its_ends(frame: pl.DataFrame) -> None:
    graph = dyformer.read_log(frame, directed=False).snapshots("7d")
    assert (graph.dynamic.directed, graph.until(5).dynamic.directed) == (False, False)
    assert dyformer.read_log(frame).snapshots("7d").dynamic.directed
    pairs = [("u0007", "u0002"), ("u0002", "u0007")]
    one, other = dyformer.fit(graph, "Forecaster without vectors").scores(pairs)["probability"]
    assert one == other


def test_integer_ids_stay_integers_and_texts_of_digits_stay_texts(frame: pl.DataFrame) -> None:
    numbers = frame.with_columns(pl.col("source", "target").str.slice(1).cast(pl.Int64))
    texts = numbers.with_columns(pl.col("source", "target").cast(pl.String))
    for log, dtype in ((numbers, pl.Int64), (texts, pl.String), (texts.to_pandas(), pl.String)):
        model = dyformer.fit(dyformer.read_log(log).snapshots("7d"), Spectrum(), until=3)
        assert model.vectors()["id"].dtype == dtype
        assert model.scores([(7, "2")])["source"].to_list() == pl.Series([7]).cast(dtype).to_list()


@pytest.mark.parametrize(
    ("first", "kind"),
    [(-1, pl.Int64), (10**18, pl.Int64), (2**63 - 1, pl.Int64), (2**63, pl.String), (10**25, pl.String)],
)
def test_integer_ids_are_integers_whatever_sign_and_length_they_have(
    first: int, kind: type[pl.DataType], tmp_path: Path
) -> None:
    rows = [(one, other, step) for step in range(4) for one, other in ((first, 2), (2, 3), (3, first))]
    file = tmp_path / "log.csv"
    file.write_text("source,target,time\n" + "".join(f"{one},{other},{step}\n" for one, other, step in rows))
    for log in (rows, file):
        read = dyformer.read_log(log, time_unit="step")
        expected = [first, 2, 3] if kind == pl.Int64 else [str(first), "2", "3"]
        assert read.events["source"].to_list() == expected * 4
        assert read.snapshots("1").nodes.schema["id"] == kind
    file.write_text(file.read_text().replace(f",{first},", ",007,"))
    assert dyformer.read_log(file, time_unit="step").events["target"].to_list() == ["2", "3", "007"] * 4


def test_a_pair_of_a_node_with_itself_has_no_probability(frame: pl.DataFrame) -> None:
    model = dyformer.fit(dyformer.read_log(frame).snapshots("7d"), "L3", until=3)
    with pytest.raises(
        ValueError, match=r"expected pairs of two nodes.* found 1 of a node with itself, such as 'u0007'"
    ):
        model.scores([("u0007", "u0002"), ("u0007", "u0007")])


def test_two_id_spaces_have_nodes_of_their_own() -> None:
    generator = np.random.default_rng(0)
    rows = {"user": generator.integers(40, size=3000), "item": generator.integers(40, size=3000), "t": np.arange(3000)}
    log = dyformer.read_log(
        pl.DataFrame(rows), source="user", target="item", time="t", time_unit="step", bipartite=True
    )
    model = dyformer.fit(log.snapshots("500"), Spectrum())
    assert model.vectors()["side"].value_counts().sort("side").rows() == [("source", 40), ("target", 40)]
    for top in (model.top(2), model.top(2, ids=[3]).filter(side="source"), model.top(1, ids=[])):
        assert top.columns[:3] == model.top(2).columns[:3] == ["side", "id", "rank"], "whatever rows there are"
    by_scores = model.scores([(3, 3), (3, 4)])
    assert by_scores["source"].to_list() == [3, 3]
    assert by_scores["target"].to_list() == [3, 4]


class Raises:
    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        raise RuntimeError("no convergence")


class NoScore:
    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Any:
        return None


def test_an_error_of_an_own_method_names_it_and_the_step(graph: Graph) -> None:
    with pytest.raises(ValueError, match=r"^Raises, step 12: RuntimeError: no convergence \(.*test_api.py") as failed:
        dyformer.evaluate(graph, [Raises()], steps=[12])
    assert isinstance(failed.value.__cause__, RuntimeError)
    with pytest.raises(ValueError, match=f"^Raises, step {graph.num_steps + 1}: RuntimeError: no convergence"):
        dyformer.fit(graph, Raises())
    for protocol in ("paper", "prequential"):
        with pytest.raises(ValueError, match=r"^NoScore, step 12: TypeError: .*, from what the method gave"):
            dyformer.evaluate(graph, [NoScore()], steps=[12], protocol=protocol)


class Fickle:
    is_broken = False

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        return self.score

    def score(self, source_P: np.ndarray, target_P: np.ndarray) -> np.ndarray:
        return {False: np.cos(source_P + target_P)}[self.is_broken]


def test_a_model_whose_own_scorer_fails_names_it_and_the_step(graph: Graph) -> None:
    fickle = Fickle()
    model = dyformer.fit(graph, fickle)
    pair = [tuple(graph.nodes["id"].head(2))]
    assert len(model.scores(pair)) == 1
    fickle.is_broken = True
    message = rf"^Fickle, step {graph.num_steps + 1}: KeyError: True \(.*test_api.py, line \d+\)$"
    with pytest.raises(ValueError, match=message):
        model.scores(pair)
    with pytest.raises(ValueError, match=message):
        model.top(3)
    with pytest.raises(ValueError, match=r"^k = 0"):  # which is no error of the method
        model.top(0)


def test_own_method_is_compared_with_the_baselines_on_the_same_pairs(graph: Graph) -> None:
    table = dyformer.evaluate(graph, [Spectrum(), Constant(), "L3", "Logistic regression on pair features"], steps=[12])
    assert set(table["method"]) == {
        "Spectrum",
        "Forecaster with Spectrum",
        "Constant",
        "L3",
        "Logistic regression on pair features",
    }
    macro = dict(zip(table["method"], table["macro"], strict=True))
    assert macro["Constant"] == 50
    assert macro["Spectrum"] > 60
    named = dyformer.evaluate(graph, {"4": Spectrum(), "8": Spectrum(width=8)}, steps=[12])
    assert {"4", "8"} <= set(named["method"])


def test_settings_change_dyformer_and_seeds_are_averaged(graph: Graph) -> None:
    table = dyformer.evaluate(graph, ["dyformer"], steps=[4], seeds=(0, 1), settings=SMALL)
    assert table["num_seeds"].to_list() == [2, 2]


@pytest.mark.parametrize("method", ["DyFormer", Spectrum()])
def test_later_rows_change_nothing_of_a_model(frame: pl.DataFrame, method: str | Spectrum) -> None:
    frame = frame.with_columns(pl.col("time").str.to_datetime(time_zone="UTC"))
    border = frame["time"][0] + pl.Series([4 * 7 * 86_400_000_000]).cast(pl.Duration("us"))[0]
    past, later = frame.filter(pl.col("time") < border), frame.filter(pl.col("time") >= border)
    poison = later.with_columns(source=pl.lit("u0007"), target=pl.concat_str(pl.lit("new"), pl.col("target")))
    settings = SMALL if method == "DyFormer" else {}

    def results(log: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        model = dyformer.fit(dyformer.read_log(log).snapshots("7d"), method, until=4, settings=settings)
        return model.vectors(), model.top(5)

    honest = results(frame)
    for other in (past, pl.concat([past, poison]), pl.concat([past, later.reverse(), poison])):
        for expected, found in zip(honest, results(other), strict=True):
            assert_frame_equal(expected, found, check_exact=True)
    changed = past.with_columns(
        target=pl.when(pl.int_range(pl.len()) == 1000).then(pl.lit("u0099")).otherwise("target")
    )
    assert not honest[0].equals(results(changed)[0])


def test_unknown_ids_are_named(model: Model) -> None:
    with pytest.raises(ValueError, match="unknown ids: nobody, noone; the log has 293 nodes by step 12"):
        model.scores([("u0001", "nobody"), ("u0001", "noone"), ("u0001", "nobody")])
    with pytest.raises(ValueError, match="unknown ids: u9999"):
        model.top(3, ids=["u0001", "u9999"])
    with pytest.raises(ValueError, match=r"no column target among \['source', 'goal'\]"):
        model.scores(pl.DataFrame({"source": ["u0001"], "goal": ["u0002"]}))


def test_blanks_at_the_ends_of_an_id_are_no_part_of_it_in_any_column_or_argument(frame: pl.DataFrame, model: Model):
    padded = {"source": " " + pl.col("source"), "target": pl.col("target") + "\u00a0"}
    for given in (frame.with_columns(**padded), frame.with_columns(**padded).cast({"source": pl.Categorical})):
        assert dyformer.read_log(given).events.equals(dyformer.read_log(frame).events)
    pairs = frame.select("source", "target").filter(pl.col("source") != pl.col("target")).head(5)
    tuples = [(f" {source}", f"{target} ") for source, target in pairs.rows()]
    for given in (pairs.with_columns(**padded), tuples):
        assert model.scores(given).equals(model.scores(pairs))
    assert model.top(3, ids=[" u0001"]).equals(model.top(3, ids=["u0001"]))


def test_a_whole_float_is_an_integer_in_any_argument_as_in_a_log() -> None:
    pairs = pl.DataFrame({"source": [7.0, 12.0], "target": ["8.50", "b"]})  # a column of integers with gaps in pandas
    for given in (pairs, pairs.rows()):
        assert pair_frame(given).rows() == [("7", "8.50"), ("12", "b")]
    assert id_texts(np.array([7.0, 0.5])).to_list() == ["7", "0.5"]


def test_wrong_columns_and_files_are_named(frame: pl.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(ColumnNotFound, match="sender"):
        dyformer.read_log(frame, source="sender")
    with pytest.raises(LogError, match=r"nothing\.csv"):
        dyformer.read_log(tmp_path / "nothing.csv")


def test_unusable_rows_are_listed_or_refused(frame: pl.DataFrame) -> None:
    broken = frame.with_columns(time=pl.when(pl.int_range(pl.len()) % 50 == 1).then(pl.lit("?")).otherwise("time"))
    with pytest.raises(TooManyBadRows, match=r"2\.00%.*\(as in the data frame, row 2\)"):
        dyformer.read_log(broken)
    with pytest.raises(UnreadableTime, match=r"as in the data frame, row 1\)"):
        dyformer.read_log(frame.with_columns(time=pl.lit("?")), time_unit="iso")
    log = dyformer.read_log(broken, max_bad=0.05)
    assert len(log.quarantine) == 80
    assert len(log.events) == 3_920


def test_wrong_methods_settings_and_steps_are_refused(graph: Graph) -> None:
    with pytest.raises(ValueError, match="L3"):
        dyformer.evaluate(graph, ["nonsense"], steps=[12])
    with pytest.raises(ValueError, match="this method scores pairs without vectors"):
        dyformer.fit(graph, "L3").vectors()
    with pytest.raises(ValueError, match=r"the nearest are model\.num_layers"):
        dyformer.fit(graph, settings={"model.num_layer": 3})
    with pytest.raises(ValueError, match="expected at least 3"):
        dyformer.fit(graph, until=2)
    with pytest.raises(ValueError, match="13 cannot be evaluated; steps 3 to 12 can"):
        dyformer.evaluate(graph, ["L3"], steps=[13])
    with pytest.raises(ValueError, match="title 'Constant'"):
        dyformer.evaluate(graph, [Constant(), Constant()], steps=[12])


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ("paper", r"^log: no step can be evaluated \(a step needs"),
        ("prequential", "has links, and 2 pairs without a link, between nodes known before it"),
    ],
)
def test_a_log_of_nodes_that_are_all_linked_is_refused_by_its_cause(protocol: str, message: str) -> None:
    rows = [(one, other, step) for step in range(5) for one in "abcde" for other in "abcde" if one != other]
    with pytest.raises(ValueError, match=message):
        dyformer.evaluate(dyformer.read_log(rows, time_unit="step").snapshots("1"), ["L3"], protocol=protocol)


class WithoutFit:
    """Neither kind of method."""


class WithoutSeed:
    """A method whose `fit` takes no seed."""

    def fit(self, graph: PreparedGraph) -> Embed:
        raise AssertionError("it is refused before it is fitted")


class OfArrays:
    """A method whose `fit` returns the vectors and not a function."""

    def fit(self, graph: PreparedGraph, *, seed: int) -> NDArray[np.float64]:
        return np.zeros((len(graph.history.node_N), 2))


@pytest.mark.parametrize("use", ["evaluate", "fit"])
@pytest.mark.parametrize(
    ("method", "message"),
    [
        (WithoutFit(), "WithoutFit: expected a class .* found WithoutFit without either"),
        (WithoutSeed(), "WithoutSeed: expected a class .* its arguments differ: .*seed"),
        (OfArrays(), "OfArrays: fit must return a function from nodes to vectors; found ndarray"),
    ],
)
def test_own_method_of_another_shape_is_refused_by_name(graph: Graph, use: str, method: Any, message: str) -> None:
    uses = {"fit": lambda: dyformer.fit(graph, method), "evaluate": lambda: dyformer.evaluate(graph, [method], steps=5)}
    with pytest.raises(ValueError, match=message):
        uses[use]()


def test_class_and_single_values_serve_as_method_step_and_id(graph: Graph, model: Model) -> None:
    by_class = dyformer.evaluate(graph, [Spectrum], steps=5)  # pyright: ignore[reportArgumentType]
    assert_frame_equal(by_class, dyformer.evaluate(graph, [Spectrum()], steps=[5]))
    assert dyformer.evaluate(graph, "L3", steps=5)["method"].to_list() == ["L3"]
    first = graph.nodes["id"][0]
    assert model.top(2, ids=first)["id"].unique().to_list() == [first]


def test_arguments_of_another_kind_are_refused_with_the_expected_one(frame: pl.DataFrame, model: Model) -> None:
    with pytest.raises(
        LogError, match=r"expected a path, paths, a list of tuples .*, or an Arrow stream; found object"
    ):
        dyformer.read_log(object())
    with pytest.raises(ValueError, match="the duration '7' does not fit"):
        dyformer.read_log(frame).snapshots(7)  # pyright: ignore[reportArgumentType]
    for use in (dyformer.fit, dyformer.evaluate):
        with pytest.raises(ValueError, match=r"expected a Graph, such as log\.snapshots\(\"7d\"\); found Log"):
            use(dyformer.read_log(frame))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"expected pairs such as \[\(source, target\)\]; found 'u001'"):
        model.scores(["u001", "u002"])  # pyright: ignore[reportArgumentType]


def test_log_graph_and_model_are_one_line_each(frame: pl.DataFrame, graph: Graph, model: Model) -> None:
    assert repr(dyformer.read_log(frame)) == f"Log of {len(frame):,} rows, 0 more in quarantine"
    assert repr(graph) == f"Graph of {graph.num_steps} steps and {len(graph.nodes):,} nodes"
    assert repr(model) == f"Model of {graph!r}, width 4"
    row = dyformer.read_log([("anna", "bert", "2024-01-01")])
    assert (repr(row), repr(row.snapshots("1d"))) == (
        "Log of 1 row, 0 more in quarantine",
        "Graph of 1 step and 2 nodes",
    )
    with pytest.raises(ValueError, match="the graph has 1 step: expected at least 3"):
        dyformer.fit(row.snapshots("1d"))


@pytest.mark.parametrize(
    ("columns", "reading", "says"),
    [
        ({"a": [1, 2], "b": [2, 3], "t": [5, 6]}, {"time_unit": "iso"}, "else name their column with `time`"),
        ({"a": [1, 2], "b": [2, 3], "t": [5, 6]}, {"source": "c"}, "found: a, b, t. Name one of these with `source`"),
        ({"a": [1], "b": [2], "c": [3], "t": [5]}, {"time": "t"}, "choose with `source` and `target`"),
        ({"a": ["x"], "b": ["y"], "t": ["1/2/2024"]}, {}, 'choose with `time_unit="day-first"`'),
        ({"a": ["x"], "b": ["y"], "t": [None]}, {"time": "t"}, "`time`"),
        ({"a": [1, 2], "b": [2, 3], "t": [5, 6]}, {"source": "a", "target": "a"}, "cannot be both source and target"),
        ({"a": [], "b": [], "t": []}, {}, "no row"),
    ],
)
def test_messages_name_arguments_and_the_frame(columns: dict[str, list[Any]], reading: dict[str, Any], says: str):
    with pytest.raises(LogError) as error:
        dyformer.read_log(pl.DataFrame(columns, strict=False), **reading)
    assert says in str(error.value)
    assert "--" not in str(error.value)
    assert "Parquet" not in str(error.value)


def test_a_separator_can_be_declared(tmp_path: Path):
    (tmp_path / "log.txt").write_text("a;b,1;5\nc;d,2;6\n")
    log = dyformer.read_log(tmp_path / "log.txt", separator=";", time_unit="step")
    assert log.events["target"].to_list() == ["b,1", "d,2"]


def test_a_method_is_fitted_once_as_of_a_step(graph: Graph):
    fitted: list[int] = []

    class Counted:
        def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
            fitted.append(graph.until)
            return Spectrum().fit(graph, seed=seed)

    model, newest = dyformer.fit(graph, Counted()), graph.num_steps
    assert sorted(fitted) == [newest - 2, newest - 1, newest]
    vectors = model.vectors()["vector"].to_list()
    past = prepare_graph(graph.dynamic, until=newest, config=GraphConfig())
    np.testing.assert_allclose(vectors, Spectrum().fit(past, seed=0)(np.arange(len(vectors))))


def test_other_protocols_give_the_numbers_of_their_printed_table(graph: Graph) -> None:
    methods = ["L3", Constant(), Spectrum()]
    ranked = dyformer.evaluate(graph, methods, steps=[11, 12], seeds=(0, 1), protocol="prequential", ks=(1, 3, 500))
    assert set(ranked["method"]) == {"Forecaster with Spectrum", "L3", "Spectrum", "Constant"}
    assert ranked["mrr"].is_sorted(descending=True)
    assert ranked["num_seeds"].to_list() == [2] * 4
    best = ranked.row(by_predicate=pl.col("method") == "L3", named=True)
    assert best["mrr_low"] < best["mrr"] < best["mrr_high"]
    assert 0 < best["hits_at_1"] < best["hits_at_3"] < best["hits_at_500"] == 1
    assert best["hits_at_1"] < best["mrr"]
    constant = ranked.row(by_predicate=pl.col("method") == "Constant", named=True)
    assert (constant["hits_at_1"], constant["auc_random"]) == (0, 0.5)
    published = dyformer.evaluate(graph, methods, steps=12, protocol="forecasts")
    assert set(published["method"]) == {"L3", "Forecaster with Spectrum", "Constant"}
    assert published["precision_at_10"].is_sorted(descending=True)
    assert published["sum_of_probabilities_links"].is_between(0.1, 10).all()


def test_hits_at_k_are_those_of_the_ranks(graph: Graph) -> None:
    table = dyformer.evaluate(graph, "L3", steps=12, protocol="prequential", ks=(2, 7))
    queries = ranking_queries(graph.dynamic, 12, seed=0)
    trial = RankingTrial(graph=graph.dynamic, queries=queries, seed=0)
    [scored] = evaluate_queries("L3", METHODS["L3"], trial)
    is_candidate_QC = (queries.family_QC >= 0) & (queries.family_QC != FAMILIES.index("inductive"))
    above_Q = ((scored.score_QC > scored.score_Q[:, None]) & is_candidate_QC).sum(axis=1)
    tied_Q = ((scored.score_QC == scored.score_Q[:, None]) & is_candidate_QC).sum(axis=1)
    rank_Q = 1 + above_Q + tied_Q / 2
    for k in (2, 7):
        assert table[f"hits_at_{k}"].item() == pytest.approx(np.mean(rank_Q <= k))


def test_protocols_that_need_more_than_snapshots_are_refused(graph: Graph) -> None:
    with pytest.raises(ValueError, match="expected one of paper, prequential, forecasts"):
        dyformer.evaluate(graph, "L3", steps=12, protocol="tgb")
    with pytest.raises(ValueError, match='expected protocol="prequential"'):
        dyformer.evaluate(graph, "L3", steps=12, ks=5)
    with pytest.raises(ValueError, match="ks = 0: expected an integer from 1"):
        dyformer.evaluate(graph, "L3", steps=12, protocol="prequential", ks=0)
    with pytest.raises(ValueError, match="steps 4 to 12 can"):
        dyformer.evaluate(graph, "L3", steps=3, protocol="forecasts")


def test_top_links_say_whose_they_are_and_for_which_dates_they_hold(frame: pl.DataFrame, model: Model) -> None:
    top = model.top(2)
    assert top["method"].unique().to_list() == ["Forecaster with Spectrum"]
    start, end = top["valid_from"].unique().item(), top["valid_to"].unique().item()
    assert start == model.graph.summary()["end"][-1]
    assert end - start == timedelta(days=7)
    counts = dyformer.read_log(frame).snapshots("8 equal")
    by_counts = dyformer.fit(counts, "L3").top(1)
    assert by_counts["method"].unique().to_list() == ["L3"]
    assert by_counts["valid_from"].null_count() == 0
    assert by_counts["valid_to"].null_count() == len(by_counts)
    divided = dyformer.read_log(frame).snapshots("12 equal time")
    earlier = dyformer.fit(divided, "L3", until=6).top(1)  # the whole log is in twelve parts, that of the model in six
    known = divided.summary()["end"][6]
    assert abs(earlier["valid_to"].unique().item() - known) < timedelta(minutes=1)
    steps = frame.with_columns(time=pl.int_range(pl.len()))
    by_steps = dyformer.fit(dyformer.read_log(steps, time_unit="step").snapshots("800"), "L3").top(1)
    assert by_steps.select(pl.col("valid_from", "valid_to").null_count()).row(0) == (len(by_steps), len(by_steps))


def test_a_variation_whose_graph_has_other_settings_is_refused(graph: Graph) -> None:
    """Its settings of the graph had no effect, because all methods of a table read one graph."""
    noisy = {"noisy": VARIATIONS["Published DyFormer, 1 hop, 10 % noise"]}
    with pytest.raises(ValueError, match=r"noisy: its graph\.noise=0\.1 would hold for all methods"):
        dyformer.evaluate(graph, noisy, steps=[5])


def test_each_seed_has_its_own_noise(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    configs, result = [], api._result

    def recorded(chosen: Any, job: Any, *given: Any) -> Any:
        configs.append(job.config)
        return result(chosen, job, *given)

    monkeypatch.setattr(api, "_result", recorded)
    dyformer.evaluate(graph, ["L3"], protocol="paper", steps=[5], seeds=(0, 2), settings={"graph.noise": 0.3})
    assert [(config.noise, config.noise_seed) for config in configs] == [(0.3, 0), (0.3, 2)]
