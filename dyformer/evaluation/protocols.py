"""Forecasts against the next snapshot -> scored pairs -> metrics (paper, section 5.1).

N nodes known one step before    D width of a vector    P pairs    F features    B nodes that pairs are taken among
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.baselines.heuristics import CLASSIFIERS, SCORERS, Scorer
from dyformer.embedder import Embedder
from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, prefix
from dyformer.sampling.pairs import (
    LinkExamples,
    known_edges,
    nodes_known_before,
    pair_keys,
    paper_examples,
    past_pair_keys,
)
from dyformer.scoring.decoder import DecoderKind, LinkDecoder, decoder_inputs, fit_decoder, hadamard, score
from dyformer.scoring.metrics import auc, average_precision
from dyformer.scoring.pair_features import PairFeatures, prepare_pair_features

METRICS = {"auc": auc, "average_precision": average_precision}

PAIRS_SCHEMA = pl.Schema(
    {
        "method": pl.String(),
        "seed": pl.Int64(),
        "step": pl.Int64(),
        "family": pl.String(),
        "source": pl.Int64(),
        "target": pl.Int64(),
        "positive": pl.Boolean(),
        "new": pl.Boolean(),
        "score": pl.Float64(),
    }
)

METRICS_SCHEMA = pl.Schema(
    {
        "dataset": pl.String(),
        "protocol": pl.String(),
        "method": pl.String(),
        "seed": pl.Int64(),
        "step": pl.String(),
        "metric": pl.String(),
        "family": pl.String(),
        "slice": pl.String(),
        "value": pl.Float64(),
    }
)


@dataclass(frozen=True, kw_only=True)
class ScoredPairs:
    """What one method forecasts for the test pairs of one step, beside what came true."""

    method: str
    seed: int
    step: int
    family: str  # of the unlinked pairs: "random" in the paper's protocol
    source_P: NDArray[np.int64]
    target_P: NDArray[np.int64]
    positive_P: NDArray[np.bool_]
    new_P: NDArray[np.bool_]
    score_P: NDArray[np.float64]


def evaluate_embedding(
    method: str,
    vectors_ND: NDArray[np.floating],
    graph: DynamicGraph,
    step: int,
    seed: int,
    decoder: DecoderKind = "paper",
) -> ScoredPairs:
    """Judge vectors made from the steps before `step`: fit the decoder on 20 % of its pairs, score the 60 %.

    `vectors_ND` has one row per node known at `step - 1`. Raises ValueError for another number of rows or for vectors
    that are not finite, and TooFewLinks for a step without enough pairs.
    """
    _check_vectors(method, vectors_ND, nodes_known_before(graph, step), step)
    split = paper_examples(graph, step, seed=seed)
    inputs_of = _inputs_before(vectors_ND, graph, step, decoder)
    fitted = fit_decoder(
        inputs_of(split.train),
        split.train.positive_P,
        (inputs_of(split.validation), split.validation.positive_P),
        kind=decoder,
        num_products=_num_products(vectors_ND, decoder),
    )
    return _scored(method, step, seed, split.test, score(fitted, inputs_of(split.test)))


def forecast_decoder(
    vectors_ND: NDArray[np.floating],
    graph: DynamicGraph,
    step: int,
    seed: int,
    decoder: DecoderKind,
    among_B: NDArray[np.int64] | None = None,
) -> LinkDecoder:
    """Fit the decoder that forecasts what follows `step`: on all of its pairs that the protocol evaluates otherwise.

    As in evaluate_embedding the vectors are made from the steps before `step`, and 20 % of the pairs choose the
    regularisation. With `among_B`, only pairs of these nodes count, and no other vector is read. Raises what
    evaluate_embedding raises.
    """
    _check_vectors("the forecast", vectors_ND, nodes_known_before(graph, step), step)
    split = paper_examples(graph, step, seed=seed)
    train, validation, test = (_among(part, among_B) for part in (split.train, split.validation, split.test))
    inputs_of = _inputs_before(vectors_ND, graph, step, decoder)
    return fit_decoder(
        np.concatenate([inputs_of(train), inputs_of(test)]),
        np.concatenate([train.positive_P, test.positive_P]),
        (inputs_of(validation), validation.positive_P),
        kind=decoder,
        num_products=_num_products(vectors_ND, decoder),
    )


def _num_products(vectors_ND: NDArray[np.floating], decoder: DecoderKind) -> int:
    """Give how many inputs have to share one prior: none where the decoder reads nothing else."""
    return vectors_ND.shape[1] if decoder == "features" else 0


def _among(examples: LinkExamples, node_B: NDArray[np.int64] | None) -> LinkExamples:
    if node_B is None:
        return examples
    kept_P = np.isin(examples.source_P, node_B) & np.isin(examples.target_P, node_B)
    return LinkExamples(**{name: values_P[kept_P] for name, values_P in vars(examples).items()})


def _inputs_before(
    vectors_ND: NDArray[np.floating], graph: DynamicGraph, step: int, decoder: DecoderKind
) -> Callable[[LinkExamples], NDArray[np.float64]]:
    """Give what a decoder reads of pairs, nothing of it from `step` or later."""
    features = _features_before(graph, step) if decoder == "features" else None

    def inputs_of(examples: LinkExamples) -> NDArray[np.float64]:
        product_PD = hadamard(vectors_ND, examples.source_P, examples.target_P)
        return decoder_inputs(product_PD, features and features.table(examples.source_P, examples.target_P))

    return inputs_of


def evaluate_method(
    method: str,
    embedder: Embedder,
    graph: DynamicGraph,
    step: int,
    seed: int,
    config: GraphConfig,
) -> ScoredPairs:
    """Train a method on the steps before `step` and nothing else; evaluate its vectors with the paper's decoder."""
    prepared = prepare_graph(graph, until=step - 1, config=config)
    embed = embedder.fit(prepared, seed=seed)
    return evaluate_embedding(method, embed(np.arange(nodes_known_before(graph, step))), graph, step, seed)


def evaluate_scorer(method: str, scorer: Scorer, graph: DynamicGraph, step: int, seed: int) -> ScoredPairs:
    """Judge a formula that is given the steps before `step` and nothing else."""
    test = paper_examples(graph, step, seed=seed).test
    return _scored(method, step, seed, test, scorer(prefix(graph, step - 1), test.source_P, test.target_P))


def evaluate_classifiers(graph: DynamicGraph, step: int, seed: int) -> list[ScoredPairs]:
    """Judge the classifiers on pair features, fitted on the 20 % of the pairs that decoders are fitted on."""
    split = paper_examples(graph, step, seed=seed)
    features = _features_before(graph, step)
    train_PF = features.table(split.train.source_P, split.train.target_P)
    test_PF = features.table(split.test.source_P, split.test.target_P)
    return [
        _scored(method, step, seed, split.test, fit(train_PF, split.train.positive_P)(test_PF))
        for method, fit in CLASSIFIERS.items()
    ]


def baseline_scores(graph: DynamicGraph, step: int, seed: int) -> list[ScoredPairs]:
    """Judge every simple baseline on the split of `step` and `seed`."""
    formulas = [evaluate_scorer(method, scorer, graph, step, seed) for method, scorer in SCORERS.items()]
    return formulas + evaluate_classifiers(graph, step, seed)


def metrics_of(scored: Sequence[ScoredPairs], dataset: str, protocol: str = "paper") -> pl.DataFrame:
    """Sum up scored pairs as rows of METRICS_SCHEMA, values 0..1: per step, `micro` and `macro`.

    Micro pools the pairs of all steps, macro is the mean of the steps' metrics. The slice `new` keeps the test pairs
    linked in no earlier snapshot, scored by the same decoder. A step without a linked and an unlinked pair of a slice
    has no figure there and does not count in macro. Raises ValueError for a step evaluated twice, and where methods
    were not evaluated on the same steps.
    """
    runs = _by_method_and_seed(scored)
    rows = [
        (dataset, protocol, method, seed, step, metric, pairs[0].family, part, value)
        for (method, seed), pairs in runs.items()
        for metric in METRICS
        for part in ("all", "new")
        for step, value in _step_metrics(pairs, metric, part)
    ]
    return pl.DataFrame(rows, schema=METRICS_SCHEMA, orient="row")


def log_metrics(graph: DynamicGraph, steps: Iterable[int], dataset: str, protocol: str = "paper") -> pl.DataFrame:
    """Give what the log itself allows, as rows of METRICS_SCHEMA of the method `-` without a seed.

    `coverage`: the share of a step's edges whose ends are both known before, so that they could be scored;
    `repeat_rate`: the share of its edges that were linked before. Micro pools the edges, macro averages the steps.
    """
    counts = {step: _edge_counts(graph, step) for step in steps}
    rows = []
    for position, metric in enumerate(("coverage", "repeat_rate")):
        shares = {str(step): count[position] / count[2] for step, count in counts.items() if count[2]}
        if shares:
            total = sum(count[2] for count in counts.values())
            micro = sum(count[position] for count in counts.values()) / total
            shares |= {"micro": micro, "macro": float(np.mean(list(shares.values())))}
        rows += [(dataset, protocol, "-", None, step, metric, "-", "all", value) for step, value in shares.items()]
    return pl.DataFrame(rows, schema=METRICS_SCHEMA, orient="row")


def to_table(scored: Iterable[ScoredPairs]) -> pl.DataFrame:
    """Put scored pairs in one table with the columns of PAIRS_SCHEMA."""
    frames = [
        pl.DataFrame(
            {
                "method": pairs.method,
                "seed": pairs.seed,
                "step": pairs.step,
                "family": pairs.family,
                "source": pairs.source_P,
                "target": pairs.target_P,
                "positive": pairs.positive_P,
                "new": pairs.new_P,
                "score": pairs.score_P,
            },
            schema=PAIRS_SCHEMA,
        )
        for pairs in scored
    ]
    return pl.concat([pl.DataFrame(schema=PAIRS_SCHEMA), *frames])


def from_table(table: pl.DataFrame) -> list[ScoredPairs]:
    """Take a table of to_table apart again, in its own order."""
    groups = table.partition_by("method", "seed", "step", "family", maintain_order=True)
    return [
        ScoredPairs(
            method=group["method"][0],
            seed=group["seed"][0],
            step=group["step"][0],
            family=group["family"][0],
            source_P=group["source"].to_numpy(),
            target_P=group["target"].to_numpy(),
            positive_P=group["positive"].to_numpy(),
            new_P=group["new"].to_numpy(),
            score_P=group["score"].to_numpy(),
        )
        for group in groups
    ]


def _features_before(graph: DynamicGraph, step: int) -> PairFeatures:
    return prepare_pair_features(prefix(graph, step - 1))


def _check_vectors(method: str, vectors_ND: NDArray[np.floating], num_nodes: int, step: int) -> None:
    if vectors_ND.ndim != 2 or len(vectors_ND) != num_nodes:
        raise ValueError(
            f"{method}: found vectors of shape {vectors_ND.shape}: expected one row for each of the {num_nodes} nodes "
            f"known before step {step}"
        )
    if not np.isfinite(vectors_ND).all():
        num_broken = int((~np.isfinite(vectors_ND).all(axis=1)).sum())
        raise ValueError(f"{method}: {num_broken} of {num_nodes} vectors for step {step} are not finite; train again")


def _scored(method: str, step: int, seed: int, test: LinkExamples, score_P: NDArray[np.float64]) -> ScoredPairs:
    return ScoredPairs(
        method=method,
        seed=seed,
        step=step,
        family="random",
        source_P=test.source_P,
        target_P=test.target_P,
        positive_P=test.positive_P,
        new_P=test.new_P,
        score_P=score_P,
    )


def _by_method_and_seed(scored: Sequence[ScoredPairs]) -> dict[tuple[str, int], list[ScoredPairs]]:
    runs: dict[tuple[str, int], list[ScoredPairs]] = {}
    for pairs in sorted(scored, key=lambda pairs: pairs.step):
        runs.setdefault((pairs.method, pairs.seed), []).append(pairs)
    steps = {run: [pairs.step for pairs in evaluated] for run, evaluated in runs.items()}
    for (method, seed), evaluated in steps.items():
        if len(set(evaluated)) < len(evaluated):
            raise ValueError(f"{method}, seed {seed}: a step is evaluated twice in {evaluated}; give each step once")
        expected = next(iter(steps.values()))
        if evaluated != expected:
            raise ValueError(
                f"{method}, seed {seed}: evaluated on steps {evaluated}, others on {expected}; only metrics "
                f"over the same steps can be compared"
            )
    return runs


def _step_metrics(evaluated: list[ScoredPairs], metric: str, part: str) -> list[tuple[str, float]]:
    kept = [
        (pairs.step, pairs.new_P if part == "new" else np.ones_like(pairs.positive_P), pairs) for pairs in evaluated
    ]
    parts = [(str(step), pairs.positive_P[kept_P], pairs.score_P[kept_P]) for step, kept_P, pairs in kept]
    metrics = [
        (step, METRICS[metric](positive_P, score_P))
        for step, positive_P, score_P in parts
        if positive_P.any() and not positive_P.all()
    ]
    if not metrics:
        return []
    pooled = [np.concatenate(columns) for columns in list(zip(*parts, strict=True))[1:]]
    return [
        *metrics,
        ("micro", METRICS[metric](pooled[0], pooled[1])),
        ("macro", float(np.mean([value for _, value in metrics]))),
    ]


def _edge_counts(graph: DynamicGraph, step: int) -> tuple[int, int, int]:
    num_nodes = nodes_known_before(graph, step)
    snapshot = graph.snapshots[step - 1]
    known = known_edges(snapshot, num_nodes)
    past_K = past_pair_keys(graph.snapshots[: step - 1], num_nodes)
    return len(known[0]), int(np.isin(pair_keys(num_nodes, *known), past_K).sum()), len(snapshot.source_E)
