import signal
from collections import Counter
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from ranked_logs import growing_log

from dyformer.evaluation.labelled_steps import TRAINING_SEED
from dyformer.evaluation.protocols.live_update import (
    NUM_NEGATIVES,
    PROTOCOL,
    TRAINING_NEGATIVES,
    HeldOutLinks,
    held_out_links,
    live_update_ranks,
    live_update_rows,
    ranks_to_table,
    weekly_examples,
    weekly_labels,
)
from dyformer.evaluation.protocols.protocol import Job, Result, evaluated
from dyformer.experiments.methods import METHODS
from dyformer.experiments.tables import printed_tables
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, StepOutOfRange, build_snapshots, prefix
from dyformer.logs.time_windows import Window
from dyformer.sampling.ranking_queries import ranking_queries, step_pairs

GRAPH, STEP = growing_log(num_rows=200), 4
LINKS = held_out_links(GRAPH, STEP, seed=0)
NUM_KNOWN = GRAPH.snapshots[STEP - 2].num_nodes


def test_a_tenth_of_the_interactions_is_held_out_repeats_included():
    source_R, target_R = step_pairs(GRAPH, STEP)
    rows, held_out = (
        list(zip(*ends, strict=True)) for ends in ((source_R, target_R), (LINKS.source_H, LINKS.target_H))
    )
    assert len(held_out) == round(0.1 * len(rows))
    assert all(held_out.count(pair) <= rows.count(pair) for pair in held_out)
    drawn = [held_out_links(GRAPH, STEP, seed=seed) for seed in range(60)]
    assert any(len(set(zip(d.source_H.tolist(), d.target_H.tolist(), strict=True))) < len(held_out) for d in drawn)
    assert LINKS.source_S.tolist() == sorted(set(LINKS.source_H.tolist()))


def test_negatives_are_uniform_over_the_whole_log_without_the_sources_own_links():
    for source, negative_K in zip(LINKS.source_S.tolist(), LINKS.negative_SK, strict=True):
        own = set(LINKS.target_H[LINKS.source_H == source].tolist()) | {source}
        possible = set(range(len(GRAPH.node_N))) - own
        assert len(negative_K) == NUM_NEGATIVES
        assert set(negative_K.tolist()) == possible
        counts = np.bincount(negative_K, minlength=len(GRAPH.node_N))[sorted(possible)]
        assert counts.max() < 3 * NUM_NEGATIVES / len(possible)
    assert LINKS.negative_SK.max() >= NUM_KNOWN  # nodes that come later are negatives as well


@pytest.fixture
def ends_in_time():
    """Fail where a draw goes on without an end."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def log_of(*rows: str) -> DynamicGraph:
    """A step for each text, such as "ab ac": links from a to b and from a to c, 30 times."""
    pairs = [(step, *map(ord, pair)) for step, text in enumerate(rows) for pair in text.split() * 30]
    time, source, target = np.array(pairs).T
    events = pl.DataFrame({"source": source - ord("a"), "target": target - ord("a"), "time": time})
    return build_snapshots(events, Window(rule="equal_time", length="1"), "step")


@pytest.mark.usefixtures("ends_in_time")
def test_a_source_whose_held_out_links_leave_no_node_is_not_ranked():
    star = held_out_links(log_of("ab bc ca", "ab ac"), 2, seed=0)
    assert [len(end_X) for end_X in (star.source_H, star.target_H, star.source_S, star.negative_SK)] == [0] * 4
    both = held_out_links(log_of("ab bc ca", "ab ac bc"), 2, seed=0)
    assert (both.source_S.tolist(), set(both.source_H.tolist()), set(both.target_H.tolist())) == ([1], {1}, {2})
    assert set(both.negative_SK.ravel().tolist()) == {0}
    assert live_update_ranks(lambda source_P, target_P: target_P == 2, both, 3).tolist() == [1]
    with_another = held_out_links(log_of("ab bc cd", "ab ac"), 2, seed=0)
    assert with_another.source_S.tolist() == [0]
    assert set(with_another.negative_SK.ravel().tolist()) == {3}


@pytest.mark.usefixtures("ends_in_time")
def test_a_log_without_a_source_that_can_be_ranked_is_refused():
    graph = log_of("ab bc ca", "ab bc ca", "ab ac")
    log = Mock(dataset="star", divided=lambda window: graph, time_unit="step", window="1")
    job = Job(log=log, units=(3,), seed=0, config=GraphConfig())
    tables = evaluated(PROTOCOL, job, {"L3": METHODS["L3"]})
    result = Result((3,), 0, tables.__getitem__, {}.__getitem__)
    with pytest.raises(StepOutOfRange, match="star: no week has a held-out link of a source with a node left"):
        PROTOCOL.rows([result], log, ())


def plain_ranks(links: HeldOutLinks, score_NN: NDArray[np.float64]) -> list[int]:
    ranks = []
    for source, negative_K in zip(links.source_S, links.negative_SK, strict=True):
        best = max(score_NN[source, target] for target in links.target_H[links.source_H == source])
        ranks.append(1 + sum(score_NN[source, other] >= best for other in negative_K))
    return ranks


def test_ranks_are_those_of_the_definition():
    num_nodes = len(GRAPH.node_N)
    score_NN = np.random.default_rng(0).integers(5, size=(num_nodes, num_nodes)).astype(float)
    unknown = np.arange(num_nodes) >= NUM_KNOWN
    score_NN[unknown] = score_NN[:, unknown] = -np.inf
    calls = []

    def score_pairs(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
        calls.append((source_P, target_P))
        return score_NN[source_P, target_P]

    assert live_update_ranks(score_pairs, LINKS, NUM_KNOWN).tolist() == plain_ranks(LINKS, score_NN)
    ((source_P, target_P),) = calls
    assert max(source_P.max(), target_P.max()) < NUM_KNOWN
    assert len(set(zip(source_P.tolist(), target_P.tolist(), strict=True))) == len(source_P)


@pytest.mark.parametrize("directed", [True, False])
def test_labelled_pairs_of_a_week_are_its_interactions_and_random_negatives(directed: bool):
    graph = replace(GRAPH, directed=directed)
    examples = weekly_examples(graph, STEP, seed=0)
    order = tuple if directed else lambda pair: tuple(sorted(pair))
    rows = [order(pair) for pair in zip(*(end_R.tolist() for end_R in step_pairs(graph, STEP)), strict=True)]
    pairs = list(zip(examples.source_P.tolist(), examples.target_P.tolist(), strict=True))
    positive = [order(pair) for pair, is_positive in zip(pairs, examples.positive_P, strict=True) if is_positive]
    assert Counter(positive) == Counter(pair for pair in rows if max(pair) < NUM_KNOWN)
    assert max(Counter(positive).values()) > 1
    negative = [pair for pair, is_positive in zip(pairs, examples.positive_P, strict=True) if not is_positive]
    assert not {order(pair) for pair in negative} & set(rows)
    assert {target for _, target in negative} == set(range(NUM_KNOWN))
    sources = {source for source, _ in negative}
    assert sources == {
        source for (source, _), is_positive in zip(pairs, examples.positive_P, strict=True) if is_positive
    }
    other_seed = {"seed": TRAINING_SEED, "num_per_family": TRAINING_NEGATIVES}  # than that of any evaluation
    drawn = ranking_queries(graph, STEP, **other_seed, families=("random",)).pairs
    assert set(pairs) == set(zip(drawn.source_S.tolist(), drawn.target_S.tolist(), strict=True))
    for source in sources:
        possible = {order((source, target)) for target in set(range(NUM_KNOWN)) - {source}} - set(rows)
        assert sum(source == one for one, _ in negative) >= min(TRAINING_NEGATIVES, len(possible))
    assert 0 < np.flatnonzero(examples.positive_P).mean() / len(pairs) < 0.7  # in random order


def test_labels_are_of_past_weeks_alone_and_not_of_what_is_ranked():
    past = prepare_graph(GRAPH, until=STEP, config=GraphConfig())
    labelled = weekly_labels(past, seed=0)
    assert [(step.before.until, step.weight) for step in labelled] == [(3, 1.0), (2, 0.5), (1, 0.25)]
    later = weekly_labels(prepare_graph(GRAPH, until=STEP + 1, config=GraphConfig()), seed=0)
    assert [step.before.until for step in later] == [4, 3, 2, 1]  # one more than where methods rank
    shorter = weekly_examples(prefix(GRAPH, STEP), STEP, seed=0)
    for name, value_P in vars(weekly_examples(GRAPH, STEP, seed=0)).items():
        np.testing.assert_array_equal(value_P, getattr(labelled[0].examples, name))
        np.testing.assert_array_equal(value_P, getattr(shorter, name))


def test_ties_count_against_the_method_and_an_oracle_is_first():
    zeros = live_update_ranks(lambda source_P, target_P: np.zeros(len(source_P)), LINKS, len(GRAPH.node_N))
    assert set(zeros.tolist()) == {NUM_NEGATIVES + 1}
    held_out = set(zip(LINKS.source_H.tolist(), LINKS.target_H.tolist(), strict=True))

    def oracle(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.array([float(pair in held_out) for pair in zip(source_P.tolist(), target_P.tolist(), strict=True)])

    assert set(live_update_ranks(oracle, LINKS, len(GRAPH.node_N)).tolist()) == {1}


def test_a_week_is_not_ranked_by_scores_that_are_not_finite():
    week = Mock(past=Mock(history=prefix(GRAPH, STEP - 1)), links=LINKS)
    scores = Mock(fit_pairs=lambda past, labelled: lambda source_P, target_P: np.full(len(source_P), np.nan))
    with pytest.raises(ValueError, match=r"own: (\d+) of \1 scores of step 4 are not finite"):
        PROTOCOL.evaluate("own", scores, week)


def ranked_table() -> pl.DataFrame:
    first, second = held_out_links(GRAPH, 3, seed=0), LINKS
    return pl.concat(
        ranks_to_table(method, 0, links, np.full(len(links.source_S), rank * links.step))
        for method, rank in (("ours", 1), ("theirs", 4))
        for links in (first, second)
    )


def test_the_mean_is_taken_over_sources_and_then_over_steps():
    rows = live_update_rows(ranked_table(), "uci", baselines=("theirs",))
    own = {(row["method"], row["step"]): row for row in rows.to_dicts()}
    assert own["ours", "3"]["value"] == pytest.approx(1 / 3)
    assert own["ours", "macro"]["value"] == pytest.approx((1 / 3 + 1 / 4) / 2)
    assert [own["ours", "3"][end] for end in ("low", "high")] == pytest.approx([1 / 3] * 2)
    assert own["theirs", "macro"]["is_baseline"]
    assert own["ours", "macro"]["num_pairs"] == own["ours", "3"]["num_pairs"] + own["ours", "4"]["num_pairs"]


def test_the_published_value_stands_in_the_table():
    (table,) = printed_tables(PROTOCOL, live_update_rows(ranked_table(), "uci"), "uci").values()
    assert table.frame["method"].to_list() == ["ours", "ROLAND-GRU (paper)", "theirs"]
    assert [text.partition(" ")[0] for text in table.frame["MRR"]] == ["0.292", "0.112", "0.073"]
    (table,) = printed_tables(PROTOCOL, live_update_rows(ranked_table(), "mine"), "mine").values()
    assert table.frame["method"].to_list() == ["ours", "theirs"]
