"""Labels of nodes by step equal those of a loop over the rows, and never depend on later rows."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dyformer.graphs.node_labels import NodeLabels, first_positives, newest_labels, positive_coverage


def labels_of(rows: list[tuple[int, int, int]]) -> NodeLabels:
    """Labels of rows (node, step, label) in order of time."""
    node_R, step_R, label_R = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return NodeLabels(node_R=node_R, step_R=step_R, label_R=label_R.astype(np.int8))


def random_rows(seed: int) -> list[tuple[int, int, int]]:
    generator = np.random.default_rng(seed)
    steps = np.sort(generator.integers(1, 6, 80))
    return [(int(generator.integers(12)), int(step), int(generator.random() < 0.2)) for step in steps]


@pytest.mark.parametrize("seed", range(3))
def test_labels_equal_those_of_a_plain_loop(seed: int):
    rows = random_rows(seed)
    labels = labels_of(rows)
    for step in range(1, 7):
        known: dict[int, list[int]] = {}
        now: dict[int, list[int]] = {}
        for node, row_step, label in rows:
            for found in [known] * (row_step < step) + [now] * (row_step == step):
                found.setdefault(node, []).append(label)
        expected = {node: 1 in now.get(node, []) for node in sorted(known) if 1 not in known[node]}
        node_P, positive_P = first_positives(labels, step)
        assert dict(zip(node_P.tolist(), positive_P.tolist(), strict=True)) == expected
        node_P, positive_P = newest_labels(labels, step - 1)
        newest = dict(zip(node_P.tolist(), positive_P.tolist(), strict=True))
        assert newest == {node: known[node][-1] == 1 for node in sorted(known)}
        first_now = [node for node in now if 1 in now[node] and 1 not in known.get(node, [])]
        assert positive_coverage(labels, step) == (len(first_now), sum(node in known for node in first_now))


def test_later_labels_change_nothing_before():
    rows = random_rows(0)
    changed = [(node, step, 1 - label if step > 3 else label) for node, step, label in rows]
    for step in (2, 3):
        for found, other in zip(
            first_positives(labels_of(rows), step), first_positives(labels_of(changed), step), strict=True
        ):
            assert_array_equal(found, other)
    assert not np.array_equal(first_positives(labels_of(rows), 4)[1], first_positives(labels_of(changed), 4)[1])


def test_a_negative_label_is_not_positive_and_no_labels_give_no_nodes():
    labels = labels_of([(3, 1, 0), (4, 1, 0), (3, 2, -1), (4, 2, 1)])
    assert newest_labels(labels, 2)[1].tolist() == first_positives(labels, 2)[1].tolist() == [False, True]
    assert len(first_positives(labels_of([]), 3)[0]) == 0
