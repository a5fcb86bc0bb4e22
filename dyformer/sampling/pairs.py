"""DynamicGraph -> positive and negative pairs of one step, and their split.

E edges    P pairs    N nodes known one step before
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.graphs.snapshots import DynamicGraph, Snapshot

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Two ends of undirected pairs: `source_P`, `target_P`."""

TRAIN_FRACTION = 0.2
VALIDATION_FRACTION = 0.2


class TooFewLinks(InvalidInput):
    """A step has too few pairs to fit a decoder on some and evaluate it on the others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkExamples:
    """Pairs of nodes; the positive ones are linked in the predicted step.

    In the paper's protocol `source < target`; in the prequential protocol pairs are ordered.
    """

    source_P: NDArray[np.int64]
    target_P: NDArray[np.int64]
    positive_P: NDArray[np.bool_]
    new_P: NDArray[np.bool_]  # in no earlier snapshot


@dataclass(frozen=True, kw_only=True, eq=False)
class NewPartners:
    """Possible new partners of nodes that got one in the predicted step: pairs of a group are those of one node."""

    node_P: NDArray[np.int64]  # the end whose partners they are
    source_P: NDArray[np.int64]
    target_P: NDArray[np.int64]
    positive_P: NDArray[np.bool_]


NO_NODES = np.empty(0, dtype=np.int64)
NO_NEW_PARTNERS = NewPartners(
    node_P=NO_NODES, source_P=NO_NODES, target_P=NO_NODES, positive_P=np.empty(0, dtype=np.bool_)
)


@dataclass(frozen=True, kw_only=True)
class LinkSplit:
    """The examples of one step.

    A method is fitted on `train`, chooses its settings on `validation`, is refitted on both, and evaluated on `test`.
    """

    train: LinkExamples
    validation: LinkExamples
    test: LinkExamples


def joined(*parts: LinkExamples) -> LinkExamples:
    """Put examples in one, the positive ones first; within a kind they keep their order."""
    values = {name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])}
    order_P = np.argsort(~values["positive_P"], kind="stable")
    return LinkExamples(**{name: values_P[order_P] for name, values_P in values.items()})


def first_half(positive_P: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the first half of the positive and the first half of the negative pairs.

    Methods fit on this half of the forecast step's labelled pairs and choose a setting on the other one: in the paper's
    protocol the halves are `train` and `validation` of LinkSplit.
    """
    return _rank_in_kind(positive_P) <= np.where(positive_P, positive_P.sum() // 2, (~positive_P).sum() // 2)


def first_of_each_kind(examples: LinkExamples, num: int) -> LinkExamples:
    """Give the first `num` positive and the first `num` negative pairs at most, in their order."""
    first_P = _rank_in_kind(examples.positive_P) <= num
    return LinkExamples(**{name: value_P[first_P] for name, value_P in vars(examples).items()})


def _rank_in_kind(positive_P: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Number the positive pairs, and the negative ones, from 1."""
    return np.where(positive_P, np.cumsum(positive_P), np.cumsum(~positive_P))


def pair_keys(num_nodes: int, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number undirected pairs of nodes below `num_nodes`: the key is the same in both directions."""
    return np.minimum(source_P, target_P) * num_nodes + np.maximum(source_P, target_P)


def ordered_keys(num_nodes: int, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number ordered pairs of nodes below `num_nodes`."""
    return source_P * num_nodes + target_P


def distinct(key_P: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort keys and drop repeats: on millions of keys ten times as fast as np.unique, which hashes."""
    key_P = np.sort(key_P)
    return key_P[np.diff(key_P, prepend=-1) != 0]


def is_among(key_P: NDArray[np.int64], sorted_K: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the keys that are among the sorted keys."""
    if not len(sorted_K):
        return np.zeros(len(key_P), dtype=np.bool_)
    return sorted_K[np.minimum(np.searchsorted(sorted_K, key_P), len(sorted_K) - 1)] == key_P


def known_edges(snapshot: Snapshot, num_nodes: int) -> Pairs:
    """Give the edges of a snapshot with both ends among the first `num_nodes` nodes."""
    is_known_E = np.maximum(snapshot.source_E, snapshot.target_E) < num_nodes
    return snapshot.source_E[is_known_E], snapshot.target_E[is_known_E]


def nodes_known_before(graph: DynamicGraph, step: int) -> int:
    """Count the nodes of the steps before `step`. Raises ValueError unless 2 <= step <= T."""
    if not 2 <= step <= graph.num_steps:
        raise InvalidInput(
            f"step {step} cannot be predicted: expected a step from 2 to {graph.num_steps}, the last of the graph"
        )
    return graph.snapshots[step - 2].num_nodes


def sample_negatives(num_nodes: int, positives: Pairs, num: int, generator: np.random.Generator) -> Pairs:
    """Draw `num` distinct pairs of different nodes below `num_nodes`, uniform over those not in `positives`.

    `positives` may hold a pair twice or in either direction. The drawn pairs have `source < target` and come in random
    order. Raises ValueError where fewer negative pairs exist.
    """
    positive_key_E = distinct(pair_keys(num_nodes, *positives))
    num_pairs = num_nodes * (num_nodes - 1) // 2
    num_negatives = num_pairs - len(positive_key_E)
    if num > num_negatives:
        raise InvalidInput(
            f"{num} negative pairs wanted, but {num_nodes} nodes have only {num_negatives}: choose fewer"
        )
    # Rejection is slow where most pairs are positive or wanted; a list of all negatives is short enough there.
    if 2 * num > num_negatives or 4 * num_negatives < num_pairs:
        key_P = generator.permutation(_negative_keys(num_nodes, positive_key_E))[:num]
    else:
        key_P = _rejection_sample(num_nodes, positive_key_E, num, generator)
    return key_P // num_nodes, key_P % num_nodes


def crossed(positives: Pairs, side_N: NDArray[np.int8], num: int, generator: np.random.Generator) -> Pairs:
    """Draw `num` pairs of nodes, each an end of a positive pair; both may be ends of the same one.

    Each node is drawn as often as positive pairs have it, so that the popularity of its ends cannot distinguish such a
    pair from a positive one. On a bipartite log (`side_N` not all equal) the ends lie on different sides. A drawn pair
    may be positive, and both ends may be one node.
    """
    source_P, target_P = positives
    row_M, other_M = generator.integers(len(source_P), size=(2, num))
    swapped_M, other_swapped_M = generator.integers(2, size=(2, num)).astype(np.bool_)
    if side_N.any():
        swapped_M = side_N[source_P[row_M]] != 0
        other_swapped_M = side_N[source_P[other_M]] != 0
    first_M = np.where(swapped_M, target_P[row_M], source_P[row_M])
    return first_M, np.where(other_swapped_M, source_P[other_M], target_P[other_M])


def paper_examples(graph: DynamicGraph, step: int, *, seed: int) -> LinkSplit:
    """Give the pairs on which a forecast of `step` is evaluated in the paper's protocol (section 5.1).

    Positive: the edges of `step` with both ends known one step before. Negative: as many uniform pairs of such nodes
    without an edge in `step`, or all of them if there are fewer. Both are split at random: 20 % for training, 20 % for
    validation, 60 % for the test. The split depends only on the graph up to `step`, the step and the seed, so every
    method is evaluated on the same pairs. Raises ValueError for a step out of range, and TooFewLinks if a part would
    have no positive or no negative pair.
    """
    num_nodes = nodes_known_before(graph, step)
    positives = known_edges(graph.snapshots[step - 1], num_nodes)
    generator = np.random.default_rng([seed, step])
    num_negatives = min(len(positives[0]), num_nodes * (num_nodes - 1) // 2 - len(positives[0]))
    if not (can_be_split(len(positives[0])) and can_be_split(num_negatives)):
        raise TooFewLinks(
            f"step {step} has {len(positives[0])} positive and {num_negatives} negative pairs of known nodes: expected "
            f"at least 5 of each to fit on 20 % and evaluate on 60 %; choose longer windows"
        )
    negatives = sample_negatives(num_nodes, positives, num_negatives, generator)
    positive_parts = _split(positives, generator)
    negative_parts = _split(negatives, generator)
    known_key_K = past_pair_keys(graph.snapshots[: step - 1], num_nodes)
    train, validation, test = (
        _examples(num_nodes, known_key_K, *parts) for parts in zip(positive_parts, negative_parts, strict=True)
    )
    return LinkSplit(train=train, validation=validation, test=test)


def evaluated_steps(graph: DynamicGraph, *, first_step: int = 3) -> list[int]:
    """Give the steps from `first_step` on that have enough pairs to be evaluated in the paper's protocol."""
    steps = []
    for step in range(max(2, first_step), graph.num_steps + 1):
        num_nodes = nodes_known_before(graph, step)
        num_positives = len(known_edges(graph.snapshots[step - 1], num_nodes)[0])
        if can_be_split(min(num_positives, num_nodes * (num_nodes - 1) // 2 - num_positives)):
            steps.append(step)
    return steps


def can_be_split(num_pairs: int) -> bool:
    """Check whether 20 % of so many pairs are at least one pair."""
    return int(TRAIN_FRACTION * num_pairs) >= 1


def past_pair_keys(snapshots: Sequence[Snapshot], num_nodes: int) -> NDArray[np.int64]:
    """Give the sorted keys of all pairs with an edge in `snapshots`, whose nodes are all below `num_nodes`."""
    keys = [pair_keys(num_nodes, snapshot.source_E, snapshot.target_E) for snapshot in snapshots]
    return distinct(np.concatenate([*keys, np.empty(0, dtype=np.int64)]))


def _split(pairs: Pairs, generator: np.random.Generator) -> tuple[Pairs, Pairs, Pairs]:
    source_P, target_P = pairs
    order_P = generator.permutation(len(source_P))
    num_train, num_validation = int(TRAIN_FRACTION * len(order_P)), int(VALIDATION_FRACTION * len(order_P))
    train, validation, test = np.split(order_P, [num_train, num_train + num_validation])
    return (
        (source_P[train], target_P[train]),
        (source_P[validation], target_P[validation]),
        (source_P[test], target_P[test]),
    )


def _examples(num_nodes: int, known_key_K: NDArray[np.int64], positives: Pairs, negatives: Pairs) -> LinkExamples:
    source_P = np.concatenate([positives[0], negatives[0]])
    target_P = np.concatenate([positives[1], negatives[1]])
    return LinkExamples(
        source_P=source_P,
        target_P=target_P,
        positive_P=np.arange(len(source_P)) < len(positives[0]),
        new_P=~is_among(pair_keys(num_nodes, source_P, target_P), known_key_K),
    )


def _negative_keys(num_nodes: int, positive_key_E: NDArray[np.int64]) -> NDArray[np.int64]:
    source_P, target_P = np.triu_indices(num_nodes, k=1)
    return np.setdiff1d(source_P * num_nodes + target_P, positive_key_E, assume_unique=True)


def _rejection_sample(
    num_nodes: int, positive_key_E: NDArray[np.int64], num: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    key_P = np.empty(0, dtype=np.int64)
    while len(key_P) < num:
        source_P, target_P = generator.integers(num_nodes, size=(2, 2 * num))
        drawn_P = pair_keys(num_nodes, source_P, target_P)[source_P != target_P]
        key_P = np.concatenate([key_P, drawn_P[~is_among(drawn_P, positive_key_E)]])
        _, first = np.unique(key_P, return_index=True)
        key_P = key_P[np.sort(first)]
    return key_P[:num]


def node_batches(num_nodes: int, num_targets: int) -> list[NDArray[np.int64]]:
    """Split nodes 0 .. num_nodes - 1 into batches that depend on the two sizes alone.

    A target attends to no other target, so a batch has at most an eighth of the nodes.
    """
    size = max(1, min(num_targets, -(-num_nodes // 8)))
    return [np.arange(start, min(start + size, num_nodes)) for start in range(0, num_nodes, size)]
