"""A history -> the labelled pairs of its newest steps, and methods fitted on them: their scores of any pairs.

N nodes known one step before    D width of a vector    P labelled pairs
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dyformer.evaluation.first_stage import fit_retrieval, linked_in, ordered, retrieved_pairs
from dyformer.evaluation.fitting import (
    FORECASTER_WITH,
    NUM_LABELLED_STEPS,
    OLDER_STEP_WEIGHT,
    fitted_vectors,
    older_vectors,
    rotated,
)
from dyformer.evaluation.seasons import MIN_LABELLED, alike_steps, have_links, period_before
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.pairs import (
    LinkExamples,
    NewPartners,
    TooFewLinks,
    first_half,
    is_among,
    ordered_keys,
    pair_keys,
    past_pair_keys,
)
from dyformer.sampling.ranking_queries import TRAINING_FAMILIES, RankingQueries, ranking_queries, step_pairs
from dyformer.scoring.decoder import LinkDecoder, fit_decoder, hadamard, score
from dyformer.scoring.forecaster import Forecaster
from dyformer.scoring.interfaces import Embedder, LabelledStep, Score, Scorer
from dyformer.scoring.labelled_tables import pair_features
from dyformer.scoring.pair_features import find_edges
from dyformer.scoring.retrieval import MAX_NODES, Retrieved, best_of_nodes

TRAINING_SEED = 1_000_003  # added to the seed, so that no query of an evaluation is trained on
TRAINING_PER_FAMILY = 5
TRAINING_QUERIES = 2_500
"""Links of a labelled step at most: 5,000 ranked no better in 1.6 times the time, and 1,250 a little worse."""
NUM_RETRIEVING, RETRIEVED_PER_NODE = 600, 6  # nodes of a labelled step, and pairs of its first stage for each
NUM_FINDING, NEW_PER_NODE = 600, 20  # nodes of a labelled step that got a new partner, and possible ones for each

ExamplesOf = Callable[..., LinkExamples]
"""A history, a step of it, and `seed` -> labelled pairs of the step."""


def labelled_steps(past: PreparedGraph, *, seed: int, period: int | None = None) -> tuple[LabelledStep, ...]:
    """Give the labelled pairs that methods learn from: those of `sampled_steps`, and those of `with_retrieved`."""
    return with_retrieved(past, sampled_steps(past, seed=seed, period=period), seed=seed)


def sampled_steps(
    past: PreparedGraph,
    *,
    seed: int,
    examples_of: ExamplesOf | None = None,
    num_steps: int | None = None,
    known: Sequence[LabelledStep] = (),
    as_large: bool = False,
    period: int | None = None,
) -> tuple[LabelledStep, ...]:
    """Give labelled pairs of some steps of a history, the newest first, with weights 1, 1/2, 1/4 and so on.

    By default these are up to NUM_LABELLED_STEPS. On a graph with more than MAX_NODES nodes, or `as_large`, it is the
    newest of them that has enough pairs, because each step needs a summary of its own of all steps before it
    (docs/experiments/ranking.md). They lie a `period` apart, by default that of `period_before`.
    Pairs are ordered. Positive: the links of a step between nodes known before. Negative: candidates of their sources
    from TRAINING_FAMILIES, drawn with other seeds than those of evaluations. `examples_of` may give others. A step with
    fewer than two of a kind is left out, because methods fit on half of the pairs and choose on the other. `known` are
    labelled steps of the same history and seed, whose graphs and pairs are taken: what is computed of them is computed
    once for all who read the same objects. Raises TooFewLinks where no step is left.
    """
    labelled, step_of, num_links = [], {step.before.until: step for step in known}, 0
    most = NUM_LABELLED_STEPS if num_steps is None else num_steps
    period = period or period_before(past.history, past.until + 1, num_steps=most)
    for age, step in enumerate(alike_steps(past.until + 1, period, most)):
        until = step - 1
        if until in step_of:
            before, examples = step_of[until].before, step_of[until].examples
        else:
            before = prepare_graph(past.history, until=until, config=past.config)
            examples = (examples_of or ranking_examples)(past.history, step, seed=seed)
        num_links = max(num_links, int(examples.positive_P.sum()))
        if min(examples.positive_P.sum(), (~examples.positive_P).sum()) >= MIN_LABELLED:
            description = {"weight": OLDER_STEP_WEIGHT**age, "directed": past.history.directed, "ranked": True}
            labelled.append(LabelledStep(before=before, examples=examples, **description))
            if num_steps is None and (as_large or len(past.history.node_N) > MAX_NODES):
                break
    if not labelled:
        raise TooFewLinks(_too_few(most, past.until, num_links))
    return tuple(labelled)


def _too_few(most: int, until: int, num_links: int) -> str:
    """Give the message for steps without labelled pairs of both kinds, the one with most links having so many."""
    steps = f"none of the newest {most} steps up to {until} has"
    if num_links < MIN_LABELLED:
        lacks, windows = f"{MIN_LABELLED} links between nodes known before it", "longer"
    else:
        lacks, windows = f"links, and {MIN_LABELLED} pairs without a link, between nodes known before it", "shorter"
    return f"{steps} {lacks}: too few labelled pairs to learn from; evaluate a later step, or choose {windows} windows"


def with_retrieved(
    past: PreparedGraph, sampled: Sequence[LabelledStep], *, seed: int, as_large: bool = False
) -> tuple[LabelledStep, ...]:
    """Add to the labelled pairs of each step some pairs of a first stage, among which published forecasts choose.

    The first stage is that of a forecast after `past.until`, fitted on all the labelled steps, and retrieves pairs by
    the graph before each of them: RETRIEVED_PER_NODE pairs for each of NUM_RETRIEVING nodes known before, all equally
    likely, and all further links of the step among the pairs of these nodes. Beside them, NEW_PER_NODE possible new
    partners for each of NUM_FINDING nodes that got one in the step, those that they got first. Nothing is added on a
    graph with more than MAX_NODES nodes, or `as_large`, where the first stage has no product of matrices.
    """
    if as_large or len(past.history.side_N) > MAX_NODES:
        return tuple(sampled)
    retrieval = fit_retrieval(sampled)
    return tuple(_with_retrieved(past.history, step, retrieval, seed) for step in sampled)


def _with_retrieved(history: DynamicGraph, labelled: LabelledStep, retrieval: LinkDecoder, seed: int) -> LabelledStep:
    before, step = labelled.before, labelled.before.until + 1
    generator = np.random.default_rng([seed + TRAINING_SEED, step])
    drawn_A = generator.permutation(before.history.snapshots[-1].num_nodes)[:NUM_RETRIEVING]
    other_generator = np.random.default_rng([seed + TRAINING_SEED, step, NUM_FINDING])
    finding_A = other_generator.permutation(_finding_nodes(history, before))[:NUM_FINDING]
    retrieved = retrieved_pairs(before, retrieval, np.union1d(drawn_A, finding_A))
    of_drawn, of_finding = (retrieved.rows(np.isin(retrieved.node_R, node_A)) for node_A in (drawn_A, finding_A))
    return replace(
        labelled,
        examples=_retrieved_examples(history, labelled, of_drawn, generator),
        new_partners=_new_partners(history, before, of_finding, other_generator),
    )


def _finding_nodes(history: DynamicGraph, before: PreparedGraph) -> NDArray[np.int64]:
    """Give the nodes that got a new partner in the step after `before`, both known by then."""
    source_R, target_R = step_pairs(history, before.until + 1)
    known_R = np.maximum(source_R, target_R) < before.history.snapshots[-1].num_nodes
    source_R, target_R = source_R[known_R], target_R[known_R]
    is_new_R = find_edges(pair_features(before).edges, source_R, target_R) < 0
    ends = [source_R[is_new_R]]
    if history.side_N.any() or not history.directed:  # both ends have the other one as a partner
        ends.append(target_R[is_new_R])
    return np.unique(np.concatenate(ends))


def _new_partners(
    history: DynamicGraph, before: PreparedGraph, retrieved: Retrieved, generator: np.random.Generator
) -> NewPartners:
    new = retrieved.rows(~retrieved.linked_R)
    source_R, target_R = ordered(before.history, new)
    positive_R = linked_in(history, before.until + 1, source_R, target_R)
    order_R = positive_R - generator.random(len(positive_R))  # the positive pairs come first
    best_R, _ = best_of_nodes(new.node_R, new.partner_R, order_R, NEW_PER_NODE)
    is_positive_N = np.zeros(before.history.snapshots[-1].num_nodes, dtype=np.bool_)
    is_positive_N[new.node_R[positive_R]] = True
    own_R = best_R[is_positive_N[new.node_R[best_R]]]  # a ranking learns nothing of a node without a positive pair
    return NewPartners(
        node_P=new.node_R[own_R], source_P=source_R[own_R], target_P=target_R[own_R], positive_P=positive_R[own_R]
    )


def _retrieved_examples(
    history: DynamicGraph, labelled: LabelledStep, retrieved: Retrieved, generator: np.random.Generator
) -> LinkExamples:
    before, examples = labelled.before, labelled.examples
    num_nodes, step = before.history.snapshots[-1].num_nodes, before.until + 1
    source_R, target_R = ordered(before.history, retrieved)
    positive_R = linked_in(history, step, source_R, target_R)
    number_R = generator.random(len(source_R))
    drawn_R, _ = best_of_nodes(retrieved.node_R, retrieved.partner_R, -number_R, RETRIEVED_PER_NODE)
    is_drawn_R = np.isin(np.arange(len(number_R)), drawn_R)
    keys = ordered_keys if history.directed else pair_keys  # without direction both orders are one pair
    key_R = keys(num_nodes, source_R, target_R)
    is_sampled_R = is_among(key_R, np.sort(keys(num_nodes, examples.source_P, examples.target_P)))
    added_R = np.flatnonzero((is_drawn_R | positive_R) & ~is_sampled_R)
    added_R = added_R[np.unique(key_R[added_R], return_index=True)[1]]  # both ends may have retrieved a pair
    values = {
        "source_P": source_R[added_R],
        "target_P": target_R[added_R],
        "positive_P": positive_R[added_R],
        "new_P": ~retrieved.linked_R[added_R],
    }
    together = {name: np.concatenate([getattr(examples, name), value_R]) for name, value_R in values.items()}
    order_P = generator.permutation(len(together["source_P"]))
    return LinkExamples(**{name: value_P[order_P] for name, value_P in together.items()})


def has_labelled_steps(graph: DynamicGraph, step: int, *, num_steps: int = NUM_LABELLED_STEPS) -> bool:
    """Check whether one of the steps that a forecast of `step` may learn from has enough links of known nodes."""
    period = period_before(graph, step, num_steps=num_steps)
    return have_links(graph, alike_steps(step, period, num_steps))


def ranking_examples(graph: DynamicGraph, step: int, *, seed: int) -> LinkExamples:
    """Give the distinct ordered pairs of a step's training queries, in random order."""
    queries = ranking_queries(
        graph,
        step,
        seed=seed + TRAINING_SEED,
        num_per_family=TRAINING_PER_FAMILY,
        families=TRAINING_FAMILIES,
        max_queries=TRAINING_QUERIES,
    )
    return distinct_examples(graph, queries, seed=seed)


def distinct_examples(graph: DynamicGraph, queries: RankingQueries, *, seed: int) -> LinkExamples:
    """Give the distinct ordered pairs of queries, in random order."""
    pairs, step = queries.pairs, queries.step
    num_nodes = graph.snapshots[step - 2].num_nodes
    positive_P = np.zeros(len(pairs.source_S), dtype=np.bool_)
    positive_P[pairs.position_Q] = True
    past_K = past_pair_keys(graph.snapshots[: step - 1], num_nodes)
    # Methods choose settings on half of the pairs by their order, and the distinct pairs are sorted by source.
    order_P = np.random.default_rng([seed, step]).permutation(len(positive_P))
    source_P, target_P = pairs.source_S[order_P], pairs.target_S[order_P]
    return LinkExamples(
        source_P=source_P,
        target_P=target_P,
        positive_P=positive_P[order_P],
        new_P=~is_among(pair_keys(num_nodes, source_P, target_P), past_K),
    )


def fitted_scores(
    name: str, method: Embedder | Scorer, past: PreparedGraph, labelled: Sequence[LabelledStep], seed: int
) -> dict[str, Score]:
    """Fit a method and return its scores of pairs, by the title of the row. Raises like `evaluate_queries`."""
    if isinstance(method, Scorer):
        return {name: method.fit_pairs(past, labelled)}
    vectors_of = _vectors_by_graph(name, method, past, labelled, seed)
    return {
        name: _decoded(vectors_of, past, labelled[0]),
        FORECASTER_WITH + name: Forecaster(vectors_of=vectors_of.get, seed=seed).fit_pairs(past, labelled),
    }


def published_score(
    name: str, method: Embedder | Scorer, past: PreparedGraph, labelled: Sequence[LabelledStep], seed: int
) -> Score:
    """Fit a method as `fitted_scores` does, without the paper's decoder: a published forecast reads vectors only so."""
    if isinstance(method, Scorer):
        return method.fit_pairs(past, labelled)
    vectors_of = _vectors_by_graph(name, method, past, labelled, seed)
    return Forecaster(vectors_of=vectors_of.get, seed=seed).fit_pairs(past, labelled)


def _vectors_by_graph(
    name: str, method: Embedder, past: PreparedGraph, labelled: Sequence[LabelledStep], seed: int
) -> dict[PreparedGraph, NDArray[np.floating]]:
    newest_ND = fitted_vectors(name, method, past, seed)
    return {past: newest_ND, **older_vectors(name, method, labelled, seed)}


def _decoded(vectors_of: dict[PreparedGraph, NDArray[np.floating]], past: PreparedGraph, newest: LabelledStep) -> Score:
    """Fit the paper's decoder on the newest labelled step, half of whose pairs chooses the regularisation.

    Its vectors are those before that step, because vectors that were trained on the labelled links fit them better
    than links to come. Where there are none, the newest ones serve, and are then trusted too much.
    """
    before, examples = newest.before, newest.examples
    newest_ND = vectors_of[past]
    before_ND = vectors_of.get(before, newest_ND)
    products_PD = hadamard(before_ND, examples.source_P, examples.target_P)
    is_first_P = first_half(examples.positive_P)
    decoder = fit_decoder(
        products_PD[is_first_P],
        examples.positive_P[is_first_P],
        (products_PD[~is_first_P], examples.positive_P[~is_first_P]),
    )
    rotated_ND = newest_ND if before not in vectors_of else rotated(newest_ND, before_ND)
    return lambda source_P, target_P: score(decoder, hadamard(rotated_ND, source_P, target_P))
