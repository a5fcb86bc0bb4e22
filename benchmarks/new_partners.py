"""The ten best new partners of each node -> how many come: the forecaster beside formulas, for eight logs.

A new partner of a node is one that it had no interaction with before the step, in either direction. The forecaster
ranks the new pairs of its first stage. Each formula ranks all admissible new pairs: common neighbours, Adamic-Adar,
resource allocation or L3, alone and times the square root, the logarithm or the value of the partner's recent degree
(newest window) or activity (half-lives of 1 and 4 windows), or one of these alone. The best formula is the one with the
highest precision on these very steps and nodes, which is in its favour. Differences have 95 % intervals by resampling
nodes and their partners; steps are pooled.

    python benchmarks/new_partners.py uci --log out.opsahl-ucsocial.gz --steps 11-13
    python benchmarks/new_partners.py generated --steps 10-12      (also: once, hubs)

N nodes    A nodes of a block    P best new partners of all nodes    B resamples
"""

import argparse
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

import dyformer
from dyformer.baselines.recency import decayed_contacts
from dyformer.evaluation.bootstrap import NodeResamples, interval, node_resamples
from dyformer.evaluation.first_stage import fit_retrieval, linked_in, retrieved_pairs
from dyformer.evaluation.labelled_steps import sampled_steps, with_retrieved
from dyformer.evaluation.query_slices import num_partners
from dyformer.evaluation.rows import pair_weights
from dyformer.experiments.printed import markdown_rows
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.logs.datasets import dataset_named
from dyformer.logs.synthetic import generated_log
from dyformer.scoring.forecaster import Forecaster
from dyformer.scoring.labelled_tables import pair_features
from dyformer.scoring.pair_features import PairFeatures, adamic_adar_weight
from dyformer.scoring.retrieval import best_of_nodes

FORECASTER = "forecaster"
NUM_BEST, NUM_BUSIEST = 10, 100
BLOCK_NODES = 500
BLOCK_PAIRS = 50_000  # that are resampled at once
NUM_ROWS, NUM_PEOPLE, NUM_WEEKS = 20_000, 1_000, 12  # of the logs `once` and `hubs`
WEEK = 7 * 86_400

Best = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Nodes and their best new partners, [P] each."""


def once_log(seed: int = 0) -> pl.DataFrame:
    """Make a log in which no pair occurs twice: people of 20 groups, seven of ten rows within the source's group."""
    generator = np.random.default_rng(seed)
    group_N = generator.integers(0, 20, NUM_PEOPLE)
    activity_N = generator.pareto(2.0, NUM_PEOPLE) + 0.1
    source_R = generator.choice(NUM_PEOPLE, 2 * NUM_ROWS, p=activity_N / activity_N.sum())
    target_R = generator.choice(NUM_PEOPLE, 2 * NUM_ROWS, p=activity_N / activity_N.sum())
    for row in np.flatnonzero(generator.random(2 * NUM_ROWS) < 0.7):
        own_M = np.flatnonzero(group_N == group_N[source_R[row]])
        target_R[row] = generator.choice(own_M, p=activity_N[own_M] / activity_N[own_M].sum())
    key_R = np.minimum(source_R, target_R) * NUM_PEOPLE + np.maximum(source_R, target_R)
    first_R = np.sort(np.unique(key_R, return_index=True)[1])
    first_R = first_R[source_R[first_R] != target_R[first_R]][:NUM_ROWS]
    return _dated(source_R[first_R], target_R[first_R], generator)


def hubs_log(seed: int = 0) -> pl.DataFrame:
    """Make a log in which other people are popular each week: six of ten rows go to these, others to past partners."""
    generator = np.random.default_rng(seed)
    activity_N = generator.pareto(2.0, NUM_PEOPLE) + 0.1
    source_R = generator.choice(NUM_PEOPLE, NUM_ROWS, p=activity_N / activity_N.sum())
    target_R, partners = np.empty(NUM_ROWS, dtype=np.int64), [list[int]() for _ in range(NUM_PEOPLE)]
    for week_R in np.array_split(np.arange(NUM_ROWS), NUM_WEEKS):
        popular_N = generator.permutation(1.0 / np.arange(1, NUM_PEOPLE + 1))
        drawn_R = generator.choice(NUM_PEOPLE, len(week_R), p=popular_N / popular_N.sum())
        for row, drawn in zip(week_R, drawn_R, strict=True):
            past = partners[source_R[row]]
            target_R[row] = drawn if not past or generator.random() < 0.6 else past[generator.integers(len(past))]
            past.append(int(target_R[row]))
    return _dated(source_R, target_R, generator)


def _dated(source_R: NDArray[np.int64], target_R: NDArray[np.int64], generator: np.random.Generator) -> pl.DataFrame:
    time_R = 1_704_067_200 + np.sort(generator.integers(0, NUM_WEEKS * WEEK, len(source_R)))
    return pl.DataFrame({"source": source_R, "target": target_R, "time": time_R})


def graph_of(name: str, file: str | None) -> DynamicGraph:
    """Read a known log, or make one of the generated ones."""
    if name == "generated":
        return dyformer.read_log(pl.read_csv(io.BytesIO(generated_log()))).snapshots("7d").dynamic
    if name in ("once", "hubs"):
        frame = once_log() if name == "once" else hubs_log()
        return dyformer.read_log(frame, time_unit="s", bipartite=False).snapshots("7d").dynamic
    dataset = dataset_named(name)
    columns = {end: getattr(dataset.columns, end) for end in ("source", "target", "time")}
    about = {"time_unit": dataset.time_unit, "separator": dataset.separator, "bipartite": dataset.bipartite}
    return dyformer.read_log(file, **columns, **about, directed=dataset.directed).snapshots(dataset.window).dynamic


@dataclass(frozen=True, kw_only=True)
class Step:
    """The past of a step, and what its formulas read."""

    past: PreparedGraph
    features: PairFeatures = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", pair_features(self.past))

    @property
    def recent(self) -> dict[str, NDArray[np.float64]]:
        """Numbers [N] that say how active a node is today."""
        one, four = (decayed_contacts(self.past, half_life).activity_N for half_life in (1.0, 4.0))
        return {"recent degree": self.features.last_degree_N, "activity (1)": one, "activity (4)": four}

    def paths(self, node_A: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.float64]]]:
        """Give the path scores of some nodes with all nodes, [A, N]."""
        union, degree_N = self.features.union, self.features.degree_N
        own_AN = union[node_A]
        weights = {"common neighbours": np.ones(len(degree_N)), "Adamic-Adar": adamic_adar_weight(degree_N)}
        weights["resource allocation"] = 1 / np.maximum(degree_N, 1)
        for title, weight_N in weights.items():
            yield title, (own_AN.multiply(weight_N).tocsr() @ union).toarray()
        walk = self.features.walk
        yield "L3", (walk[node_A] @ walk @ walk).toarray()

    def formulas(self, node_A: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.float64]]]:
        """Give the scores of all formulas for some nodes with all nodes, [A, N]."""
        factors = {"": np.ones(len(self.features.degree_N))}
        for title, value_N in self.recent.items():
            changed = {"root of ": np.sqrt(value_N), "log of ": np.log1p(value_N), "": value_N}
            factors |= {f"{change}{title}": factor_N for change, factor_N in changed.items()}
            yield title, np.tile(value_N, (len(node_A), 1))
        for title, path_AN in self.paths(node_A):
            for factor, factor_N in factors.items():
                yield (f"{title} x {factor}" if factor else title), path_AN * factor_N

    def best_by_formulas(self) -> dict[str, Best]:
        """Give the best new partners of all nodes with a past by each formula."""
        side_N, parts = self.past.history.side_N, dict[str, list[Best]]()
        node_N = np.flatnonzero(self.features.degree_N)
        two_sides = len(np.unique(side_N)) > 1
        for first in range(0, len(node_N), BLOCK_NODES):
            node_A = node_N[first : first + BLOCK_NODES]
            excluded_AN = self.features.union[node_A].toarray() > 0
            excluded_AN[np.arange(len(node_A)), node_A] = True
            if two_sides:
                excluded_AN |= side_N[node_A][:, None] == side_N
            for title, score_AN in self.formulas(node_A):
                score_AN[excluded_AN] = -np.inf
                best_AK = np.argpartition(-score_AN, NUM_BEST, axis=1)[:, :NUM_BEST]
                row_P, column_P = np.nonzero(np.take_along_axis(score_AN, best_AK, 1) > -np.inf)
                parts.setdefault(title, []).append((node_A[row_P], best_AK[row_P, column_P]))
        return {title: _joined(own) for title, own in parts.items()}

    def best_by_forecaster(self, seed: int) -> Best:
        """Give the best new partners of the first stage's pairs by the forecaster."""
        sampled = sampled_steps(self.past, seed=seed)
        retrieved = retrieved_pairs(self.past, fit_retrieval(sampled))
        new = retrieved.rows(~retrieved.linked_R & (self.features.degree_N[retrieved.node_R] > 0))
        score = Forecaster(seed=seed).fit_pairs(self.past, with_retrieved(self.past, sampled, seed=seed))
        best_R, _ = best_of_nodes(new.node_R, new.partner_R, score(*self.directed(*new[:2])), NUM_BEST)
        return new.node_R[best_R], new.partner_R[best_R]

    def directed(self, node_P: NDArray[np.int64], partner_P: NDArray[np.int64]) -> Best:
        """Give pairs as source and target: a node is the source, unless it is of the second side."""
        is_target_P = self.past.history.side_N[node_P] == 1
        return np.where(is_target_P, partner_P, node_P), np.where(is_target_P, node_P, partner_P)


def _joined(parts: Sequence[Best]) -> Best:
    return np.concatenate([node_P for node_P, _ in parts]), np.concatenate([partner_P for _, partner_P in parts])


@dataclass(frozen=True, kw_only=True)
class Found:
    """The best new partners of a step by method, and which of them came."""

    best: Mapping[str, Best]
    came: Mapping[str, NDArray[np.bool_]]
    busiest_A: NDArray[np.int64]

    def rows(self, title: str, *, busiest: bool) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Give nodes, partners and what came, of all nodes or of the busiest."""
        (node_P, partner_P), came_P = self.best[title], self.came[title]
        own_P = np.isin(node_P, self.busiest_A) if busiest else np.ones(len(node_P), dtype=np.bool_)
        return node_P[own_P], partner_P[own_P], came_P[own_P]


def found_of(graph: DynamicGraph, step: int, seed: int) -> Found:
    """Rank the new partners of a step by all methods."""
    past = Step(past=prepare_graph(graph, until=step - 1, config=GraphConfig()))
    best = {FORECASTER: past.best_by_forecaster(seed), **past.best_by_formulas()}
    came = {title: linked_in(graph, step, *past.directed(*own)).astype(np.bool_) for title, own in best.items()}
    degree_N = num_partners(past.past.history.snapshots)
    return Found(best=best, came=came, busiest_A=np.argsort(-degree_N, kind="stable")[:NUM_BUSIEST])


def precision(steps: Sequence[Found], title: str, *, busiest: bool) -> float:
    """Give the fraction of all steps' best new partners that came."""
    return float(np.concatenate([found.rows(title, busiest=busiest)[2] for found in steps]).mean())


def resampled(steps: Sequence[Found], title: str, resamples: NodeResamples, *, busiest: bool) -> NDArray[np.float64]:
    """Give the precision of each resample, [B]."""
    total_B, count_B = np.zeros((2, len(resamples.weight_BS)))
    for found in steps:
        node_P, partner_P, came_P = found.rows(title, busiest=busiest)
        for first in range(0, len(node_P), BLOCK_PAIRS):
            part = slice(first, first + BLOCK_PAIRS)
            weight_BP = pair_weights(resamples, node_P[part], partner_P[part]).astype(np.float64)
            total_B += weight_BP @ came_P[part]
            count_B += weight_BP.sum(axis=1)
    return total_B / count_B


def main() -> None:
    """Print the rows of a log: all nodes, and the busiest."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", help="generated, once, hubs, or a known log, such as uci or ml-10m")
    parser.add_argument("--log", help="its file")
    parser.add_argument("--steps", required=True, help="first and last one, such as 11-13")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    graph, (first, last) = graph_of(given.dataset, given.log), map(int, given.steps.split("-"))
    steps = [found_of(graph, step, given.seed) for step in range(first, last + 1)]
    ends = [end for found in steps for own in found.best.values() for end in own]
    resamples = node_resamples(ends, num_resamples=1_000, generator=np.random.default_rng(given.seed))
    rows = []
    for busiest in (False, True):
        value = {title: precision(steps, title, busiest=busiest) for title in steps[0].best}
        ours = value.pop(FORECASTER)
        best = max(value, key=lambda title: value[title])
        own, other = (resampled(steps, title, resamples, busiest=busiest) for title in (FORECASTER, best))
        low, high = interval(own - other)
        num_came = sum(int(found.rows(FORECASTER, busiest=busiest)[2].sum()) for found in steps)
        row = {"": f"{given.dataset} {given.steps}, {'busiest hundred' if busiest else 'all nodes'}"}
        row |= {"forecaster": f"{100 * ours:.3f}", "came": f"{num_came:,}", "best formula": f"{100 * value[best]:.3f}"}
        row |= {"which": best, "ratio": f"{ours / value[best]:.2f}"}
        rows.append(row | {"difference": f"{100 * (ours - value[best]):+.3f} [{100 * low:+.3f}, {100 * high:+.3f}]"})
    print("\n".join(markdown_rows(pl.DataFrame(rows))))


if __name__ == "__main__":
    main()
