"""A method and the next week's links -> ranks of sources, in ROLAND's live-update protocol (You et al., KDD 2022).

H held-out links    S their distinct sources    K negatives of a source, or distinct links    N nodes of the whole log
P labelled pairs    B resamples
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.evaluation.bootstrap import node_resamples
from dyformer.evaluation.fitting import NUM_OLDER_STEPS, checked_scores
from dyformer.evaluation.labelled_steps import TRAINING_SEED, distinct_examples, has_labelled_steps, sampled_steps
from dyformer.evaluation.protocols.protocol import Column, Job, Log, Protocol, Result, TableOf, Tables
from dyformer.evaluation.rows import Cell, Measured, Run, means, metric_rows
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import FIRST_EVALUATED_STEP, DynamicGraph, StepOutOfRange
from dyformer.logs.counts import counted
from dyformer.logs.time_windows import Window
from dyformer.sampling.pairs import LinkExamples, distinct, is_among, ordered_keys, pair_keys
from dyformer.sampling.ranking_queries import ranking_queries, step_pairs
from dyformer.scoring.interfaces import LabelledStep, Score, Scorer

WEEKS = "calendar 1w"  # from Monday on, as ROLAND divides the log
HELD_OUT_FRACTION = 0.1
NUM_NEGATIVES = 1_000
TRAINING_NEGATIVES = 20  # of each distinct link
PUBLISHED = {"uci": {"ROLAND-GRU (paper)": {"MRR": 0.112}}}
"""Mean reciprocal ranks of ROLAND's table of live-update results, per dataset and method."""

RANKS_SCHEMA = pl.Schema(
    {"method": pl.String(), "seed": pl.Int64(), "step": pl.Int64(), "source": pl.Int64(), "rank": pl.Int64()}
)


@dataclass(frozen=True, kw_only=True)
class HeldOutLinks:
    """A tenth of a step's interactions, and negatives of their sources."""

    step: int
    source_H: NDArray[np.int64]
    target_H: NDArray[np.int64]
    source_S: NDArray[np.int64]  # sorted, distinct
    negative_SK: NDArray[np.int64]


def held_out_links(graph: DynamicGraph, step: int, *, seed: int) -> HeldOutLinks:
    """Hold out a tenth of a step's interactions, repeats included, and draw 1,000 negatives for each of their sources.

    As in ROLAND's program, negatives are drawn with replacement from all nodes of the log, also from those that come
    later, and only the held-out links of the source are no negatives. Unlike there, neither is the source itself. A
    source without any node left is not ranked: its held-out links are left out.
    """
    generator, num_nodes = np.random.default_rng([seed, step]), len(graph.node_N)
    source_R, target_R = step_pairs(graph, step)
    num_held_out = max(1, round(HELD_OUT_FRACTION * len(source_R))) if len(source_R) else 0
    row_H = np.sort(generator.permutation(len(source_R))[:num_held_out])
    source_H, target_H = source_R[row_H], target_R[row_H]
    source_S = distinct(source_H)
    refused_K = distinct(np.concatenate([source_H * num_nodes + target_H, source_S * num_nodes + source_S]))
    source_S = source_S[np.bincount(refused_K // num_nodes, minlength=num_nodes)[source_S] < num_nodes]
    has_negatives_H = is_among(source_H, source_S)
    source_H, target_H = source_H[has_negatives_H], target_H[has_negatives_H]
    negative_SK = np.empty((len(source_S), NUM_NEGATIVES), dtype=np.int64)
    open_SK = np.ones(negative_SK.shape, dtype=np.bool_)
    while open_SK.any():
        negative_SK[open_SK] = generator.integers(num_nodes, size=int(open_SK.sum()))
        key_SK = source_S[:, None] * num_nodes + negative_SK
        open_SK = is_among(key_SK.ravel(), refused_K).reshape(key_SK.shape)
    return HeldOutLinks(step=step, source_H=source_H, target_H=target_H, source_S=source_S, negative_SK=negative_SK)


def weekly_labels(past: PreparedGraph, *, seed: int) -> tuple[LabelledStep, ...]:
    """Give the labelled pairs of up to four newest weeks of a history, on which every fitted method learns.

    They are like what is ranked, as chosen on early weeks (docs/experiments/live_update.md). Raises TooFewLinks.
    """
    return sampled_steps(past, seed=seed, examples_of=weekly_examples, num_steps=NUM_OLDER_STEPS)


def weekly_examples(graph: DynamicGraph, step: int, *, seed: int) -> LinkExamples:
    """Give a week's links between known nodes and random negatives of their sources, in random order.

    A link stands in the examples as often as the week has interactions of it, because a frequent one is held out more
    often. Its source has TRAINING_NEGATIVES uniform known nodes as negatives, none of which it links to in this week.
    """
    drawn = {"num_per_family": TRAINING_NEGATIVES, "families": ("random",)}
    examples = distinct_examples(graph, ranking_queries(graph, step, seed=seed + TRAINING_SEED, **drawn), seed=seed)
    keys, num_nodes = ordered_keys if graph.directed else pair_keys, graph.snapshots[step - 1].num_nodes
    key_K, count_K = np.unique(keys(num_nodes, *step_pairs(graph, step)), return_counts=True)
    index_K = np.searchsorted(key_K, keys(num_nodes, examples.source_P, examples.target_P)[examples.positive_P])
    count_P = np.ones(len(examples.positive_P), dtype=np.int64)
    count_P[examples.positive_P] = count_K[index_K]
    row_P = np.random.default_rng([seed, step]).permutation(np.repeat(np.arange(len(count_P)), count_P))
    return LinkExamples(**{name: value_P[row_P] for name, value_P in vars(examples).items()})


def live_update_ranks(score_pairs: Score, links: HeldOutLinks, num_known: int) -> NDArray[np.int64]:
    """Rank the best held-out link of each source among its negatives, [S]; equal scores count against the method.

    A pair with an end that is not among the `num_known` nodes known before has the lowest score.
    """
    source_P = np.concatenate([links.source_H, np.repeat(links.source_S, NUM_NEGATIVES)])
    target_P = np.concatenate([links.target_H, links.negative_SK.ravel()])
    known_P = np.maximum(source_P, target_P) < num_known
    key_U, position_P = np.unique(source_P[known_P] * num_known + target_P[known_P], return_inverse=True)
    score_P = np.full(len(source_P), -np.inf)
    score_P[known_P] = score_pairs(key_U // num_known, key_U % num_known)[position_P]
    best_S = np.full(len(links.source_S), -np.inf)
    np.maximum.at(best_S, np.searchsorted(links.source_S, links.source_H), score_P[: len(links.source_H)])
    negative_SK = score_P[len(links.source_H) :].reshape(links.negative_SK.shape)
    return 1 + (negative_SK >= best_S[:, None]).sum(axis=1)


def live_update_rows(ranks: pl.DataFrame, dataset: str, *, baselines: Collection[str] = ()) -> pl.DataFrame:
    """Give the MRR of ranks (RANKS_SCHEMA) as rows of METRICS_SCHEMA: per step, and `macro`, the mean over steps.

    A step's value is the mean over its sources; intervals resample the sources, each alike in all steps.
    """
    resamples = node_resamples([ranks["source"].to_numpy()] * 2, num_resamples=1000, generator=np.random.default_rng(0))
    steps: dict[int, dict[Run, dict[Cell, Measured]]] = {}
    for row, of_run in ranks.group_by("step", "method", "seed", maintain_order=True):
        step, method, seed = int(str(row[0])), str(row[1]), int(str(row[2]))
        position_S = np.searchsorted(resamples.node_S, of_run["source"].to_numpy())
        weight_BS = resamples.weight_BS[:, position_S].astype(np.float64)
        [mrr] = means(1 / of_run["rank"].to_numpy()[:, None], weight_BS)
        steps.setdefault(step, {})[method, seed] = {("mrr", "random", "all"): mrr}
    ordered = {step: steps[step] for step in sorted(steps)}
    rows = metric_rows(ordered, dataset, protocol="live-update", baselines=baselines)
    return rows.filter(pl.col("step") != "micro")  # ROLAND averages over weeks


def ranks_to_table(method: str, seed: int, links: HeldOutLinks, rank_S: NDArray[np.int64]) -> pl.DataFrame:
    """Put the ranks of a method in a table with the columns of RANKS_SCHEMA."""
    columns = {"method": method, "seed": seed, "step": links.step, "source": links.source_S, "rank": rank_S}
    return pl.DataFrame(columns, schema=RANKS_SCHEMA)


class Week(NamedTuple):
    """The held-out links of a week, and what all methods learn from."""

    seed: int
    past: PreparedGraph
    labelled: tuple[LabelledStep, ...]
    links: HeldOutLinks


def weekly_graph(log: Log) -> DynamicGraph:
    """Give the log in weeks; a log with integer steps has none, so its own windows serve."""
    return log.divided(Window.parse(log.window if log.time_unit == "step" else WEEKS))


def weeks_to_rank(log: Log) -> list[int]:
    """List the weeks with labelled weeks before them. Raises StepOutOfRange where there is none."""
    graph = weekly_graph(log)
    possible = range(FIRST_EVALUATED_STEP, graph.num_steps + 1)
    weeks = [week for week in possible if has_labelled_steps(graph, week, num_steps=NUM_OLDER_STEPS)]
    if not weeks:
        raise StepOutOfRange(
            f"{log.dataset} has {counted(graph.num_steps, 'week')}, and none has links between known nodes in a week "
            "before it to learn from: choose another protocol, or a longer log"
        )
    return weeks


def _trial(job: Job) -> Week:
    graph = weekly_graph(job.log)
    past = prepare_graph(graph, until=job.unit - 1, config=job.config)
    return Week(job.seed, past, weekly_labels(past, seed=job.seed), held_out_links(graph, job.unit, seed=job.seed))


def _evaluate(title: str, method: Scorer, week: Week) -> Tables:
    score = method.fit_pairs(week.past, week.labelled)

    def score_pairs(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
        return checked_scores(title, score(source_P, target_P), len(source_P), week.links.step)

    rank_S = live_update_ranks(score_pairs, week.links, len(week.past.history.node_N))
    return {"ranks": ranks_to_table(title, week.seed, week.links, rank_S)}


def _rows(results: Sequence[Result], log: Log, baselines: Collection[str]) -> Tables:
    """Give the metrics. Raises StepOutOfRange where no week has a source that can be ranked."""
    ranks = pl.concat(result.table("ranks") for result in results)
    if ranks.is_empty():
        raise StepOutOfRange(
            f"{log.dataset}: no week has a held-out link of a source with a node left that can be its negative: choose"
            " another protocol, or a longer log"
        )
    return {"metrics": live_update_rows(ranks, log.dataset, baselines=baselines)}


PROTOCOL = Protocol(
    name="live-update",
    sentence="ROLAND's weekly ranks",
    heading="ROLAND's live-update protocol",
    methods=(Scorer,),
    units=weeks_to_rank,
    need="a week needs labelled weeks before it",
    trial=_trial,
    evaluate=_evaluate,
    rows=_rows,
    tables=(
        TableOf(
            name="all",
            key="live-update",
            slice="all",
            columns=(Column(title="MRR", metric="mrr", family="random", digits=3),),
            title="{dataset}, ROLAND's live-update protocol: MRR among 1,000 random nodes [95 % interval]; mean over"
            " {steps}, {num} ranked sources",
            contents="held-out links",
            measure="MRR [95 % interval]",
            counted="ranked sources",
            published=PUBLISHED,
            published_below=False,
        ),
    ),
    kind="ranks",
    unit="week",
    whole_log=True,  # negatives are drawn from the nodes of the whole log
)
