"""Events and their candidates -> the rows that the heads of the event forecaster are fitted on.

R rows of candidates    F features    Q queries    G groups    K some rows of a block
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dyformer.scoring.event_heads import Groups, LabelledRows
from dyformer.streams.event_log import EventLog, EventQueries
from dyformer.streams.event_state import FEATURES, CandidateRows, StateSettings, candidate_rows

NO_TARGET = -1  # of an event that is not ranked
NUM_NEGATIVES = 60  # new candidates of a fitted query, beside its target


@dataclass(frozen=True, kw_only=True, eq=False)
class FitTables:
    """The rows that the three heads are fitted on, of some consecutive events."""

    gate: LabelledRows  # the row of the last partner; positive where the target is new
    past: Groups  # of events with a past partner as target and at least two to choose from
    new: Groups  # of events with a new target that is among the candidates
    num_new: int  # events with a new target

    @property
    def retrieved(self) -> float:
        """The fraction of new targets that are among the candidates, smoothed."""
        return (len(self.new) + 1) / (self.num_new + 2)


def _chosen(rows: CandidateRows, target_Q: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    # The query of each row, and the row of each query's target or -1.
    query_R = np.repeat(np.arange(len(target_Q)), rows.num_past_Q + rows.num_new_Q)
    row_K = np.flatnonzero(rows.target_R == target_Q[query_R])
    chosen_Q = np.full(len(target_Q), -1)
    chosen_Q[query_R[row_K]] = row_K
    return query_R, chosen_Q


def _groups(rows: CandidateRows, row_K: NDArray[np.int64], query_R: NDArray[np.int64], chosen_Q: NDArray) -> Groups:
    # The groups of the ascending rows `row_K`, which hold all rows of their query or a part with the chosen one.
    query_G, first_G, size_G = np.unique(query_R[row_K], return_index=True, return_counts=True)
    chosen_G = np.searchsorted(row_K, chosen_Q[query_G]) - first_G
    return Groups(row_RF=rows.row_RF[row_K], size_G=size_G, chosen_G=chosen_G)


def _with_negatives(
    row_K: NDArray[np.int64], query_R: NDArray[np.int64], chosen_Q: NDArray, generator: np.random.Generator
) -> NDArray[np.int64]:
    # The chosen row of each query and at most NUM_NEGATIVES of its others, uniformly.
    draw_K = generator.random(len(row_K))
    draw_K[row_K == chosen_Q[query_R[row_K]]] = -1
    order_K = np.lexsort((draw_K, query_R[row_K]))
    first_K = np.searchsorted(query_R[row_K], query_R[row_K])  # the order keeps queries together
    return np.sort(row_K[order_K[np.arange(len(row_K)) - first_K <= NUM_NEGATIVES]])


def _tables_of_block(
    rows: CandidateRows, target_Q: NDArray[np.int64], max_past: int, generator: np.random.Generator | None
) -> FitTables:
    query_R, chosen_Q = _chosen(rows, target_Q)
    first_Q = np.concatenate([[0], np.cumsum(rows.num_past_Q + rows.num_new_Q)])[:-1]
    is_ranked_Q, is_retrieved_Q = target_Q != NO_TARGET, chosen_Q >= 0
    # A new target may have no row, nor any other new one: then the rows hold all past partners, and not the target.
    has_all_past_Q = rows.num_past_Q < max_past
    is_new_Q = is_ranked_Q & ((rows.num_new_Q > 0) | (~is_retrieved_Q & has_all_past_Q))
    has_past_Q = is_ranked_Q & (rows.num_past_Q > 0)
    past_K = np.flatnonzero((is_retrieved_Q & ~is_new_Q & (rows.num_past_Q > 1))[query_R])
    is_new_row_R = np.arange(len(query_R)) >= (first_Q + rows.num_past_Q)[query_R]
    new_K = np.flatnonzero((is_retrieved_Q & is_new_Q)[query_R] & is_new_row_R)
    if generator is not None:
        new_K = _with_negatives(new_K, query_R, chosen_Q, generator)
    return FitTables(
        gate=LabelledRows(row_RF=rows.row_RF[first_Q[has_past_Q]], positive_R=is_new_Q[has_past_Q]),
        past=_groups(rows, past_K, query_R, chosen_Q),
        new=_groups(rows, new_K, query_R, chosen_Q),
        num_new=int(is_new_Q.sum()),
    )


def _joined_groups(groups: Sequence[Groups]) -> Groups:
    columns = ("row_RF", "size_G", "chosen_G")
    return Groups(**{name: np.concatenate([getattr(part, name) for part in groups]) for name in columns})


def _joined(blocks: Sequence[FitTables]) -> FitTables:
    gates = [block.gate for block in blocks]
    return FitTables(
        gate=LabelledRows(
            row_RF=np.concatenate([gate.row_RF for gate in gates]),
            positive_R=np.concatenate([gate.positive_R for gate in gates]),
        ),
        past=_joined_groups([block.past for block in blocks]),
        new=_joined_groups([block.new for block in blocks]),
        num_new=sum(block.num_new for block in blocks),
    )


_NO_GROUPS = Groups(
    row_RF=np.zeros((0, len(FEATURES)), dtype=np.float32),
    size_G=np.zeros(0, dtype=np.int64),
    chosen_G=np.zeros(0, dtype=np.int64),
)
_NO_TABLES = FitTables(
    gate=LabelledRows(row_RF=_NO_GROUPS.row_RF, positive_R=np.zeros(0, dtype=np.bool_)),
    past=_NO_GROUPS,
    new=_NO_GROUPS,
    num_new=0,
)


def fit_tables(
    log: EventLog, queries: EventQueries, settings: StateSettings, num_training: int, generator: np.random.Generator
) -> tuple[FitTables, FitTables]:
    """Give the rows of the training queries and of the validation queries that follow them, in one pass.

    The last query is about the last event of the log. New candidates of training queries are drawn.
    """
    target_Q = log.target_E[len(log) - len(queries) :]
    # With one side a source never ranks itself.
    ranked_Q = target_Q if log.two_sides else np.where(target_Q == queries.source_Q, NO_TARGET, target_Q)
    parts: tuple[list[FitTables], list[FitTables]] = ([_NO_TABLES], [_NO_TABLES])
    first = 0
    for rows in candidate_rows(log, queries, settings, target_Q):
        end = first + len(rows.num_past_Q)
        border = min(max(num_training, first), end)
        if border > first:
            part = _part(rows, 0, border - first)
            parts[0].append(_tables_of_block(part, ranked_Q[first:border], settings.max_past, generator))
        if end > border:
            part = _part(rows, border - first, end - first)
            parts[1].append(_tables_of_block(part, ranked_Q[border:end], settings.max_past, None))
        first = end
    return _joined(parts[0]), _joined(parts[1])


def _part(rows: CandidateRows, first: int, end: int) -> CandidateRows:
    start_Q1 = np.concatenate([[0], np.cumsum(rows.num_past_Q + rows.num_new_Q)])
    queries, part = slice(first, end), slice(start_Q1[first], start_Q1[end])
    return CandidateRows(
        row_RF=rows.row_RF[part],
        target_R=rows.target_R[part],
        num_past_Q=rows.num_past_Q[queries],
        num_new_Q=rows.num_new_Q[queries],
        rest_QC=rows.rest_QC[queries],
    )
