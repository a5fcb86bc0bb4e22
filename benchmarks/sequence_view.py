"""Towers over the last contacts of source and candidate, beside the counted features of the event forecaster.

A net changes the order of a query's new candidates: the probability that the NUM_BEST of them by the counted logits
have together is divided again, by a softmax of a x logit + b x score. The net has the paper's two towers (Cong et al.,
2023, sections 3.3 and 3.4) over a node and its newest contacts, whose outputs go with the counted features through one
more layer, or these features alone. It is trained on training events alone; validation chooses a and b; test is read
once. Past partners are left as they are.

    python benchmarks/sequence_view.py uci --log out.opsahl-ucsocial.gz
    python benchmarks/sequence_view.py ml-10m --log ia-movielens-user2tags-10m.edges.gz --seeds 3

The first table has the events whose new target is retrieved, ranked among the new candidates of its source; on
validation a and b are from the other half of the sources. The second one has all events by the protocol `tgb`, strict.
Differences have 95 % intervals, resampling sources; of several seeds it is the mean of each event.

Q queries    G groups: the new candidates of a query    R rows of candidates    K the best of them    F features
T rows of a tower: a node, then its newest contacts    D width    H heads    C codes of connections    N nodes
E events    M methods
"""

import argparse
import copy
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn import functional

import dyformer
from dyformer.evaluation.bootstrap import interval, node_resamples
from dyformer.evaluation.event_splits import (
    SPLITS,
    EventTrial,
    Split,
    Visibility,
    sampled_negatives,
    samples_negatives,
    split_events,
)
from dyformer.evaluation.rows import Measured, means
from dyformer.experiments.printed import markdown_rows
from dyformer.logs.datasets import dataset_named
from dyformer.scoring.event_forecaster import EventForecaster, FittedEventForecaster
from dyformer.scoring.event_heads import GroupHead, Groups, ranks, softmax
from dyformer.scoring.event_ranks import event_ranks
from dyformer.streams.event_log import EventLog, EventQueries, event_log_of
from dyformer.streams.event_state import CandidateRows, candidate_rows
from dyformer.streams.kernels.tables import SLOT, find, table_of, touch, with_room

COUNTED, FEATURES_ALONE, WITH_TOWERS = "counted", "features alone", "towers with features"
METHODS = (COUNTED, FEATURES_ALONE, WITH_TOWERS)
COMPARED = ((FEATURES_ALONE, COUNTED), (WITH_TOWERS, COUNTED), (WITH_TOWERS, FEATURES_ALONE))

NUM_CONTACTS = 8
NUM_BEST = 32  # candidates of a query that are scored: those with the greatest counted logits
MIN_EVENTS = 30  # a node with fewer training events has no embedding of its own
ITERATIONS, BATCH_GROUPS, NUM_NEGATIVES = 120, 64, 23
LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 2e-3, 1e-2, 1.0
HELD_OUT, NUM_CHECKS = 0.1, 6  # fraction of the training groups, the latest ones, whose loss chooses the weights
SCORED_GROUPS = 128  # at once

WIDTH, NUM_HEADS, NUM_LAYERS, DROPOUT = 32, 4, 2, 0.1
MAX_DEVIATIONS = 5.0  # a feature further from its mean is moved to this many standard deviations
NUM_PARTS = 4  # of the connections: source and candidate, each with the other's contacts, and contacts with contacts

SELF = 32  # code of age of a node itself; those of contacts are below
NUM_AGES = SELF + 1
NUM_KINDS = 7  # of a contact: 3 numbers of events x 2 directions of the newest one; the last kind is the node itself
NO_NODE = -1
APART, SAME, MET = 0, 1, 2  # connections: two nodes that never met, one node, and the first code of those that met
NUM_CONNECTIONS = MET + SELF // 4
_NO_RATES = np.zeros(4)


class Towers(NamedTuple):
    """Rows of towers [N, T]: node, code of age and kind of each; NO_NODE where a node has fewer contacts."""

    node_NT: NDArray[np.int32]
    age_NT: NDArray[np.uint8]
    kind_NT: NDArray[np.uint8]


@njit
def age_code(seconds):
    """Give the code of an age: 0 below 35 seconds, then a step for each factor of 1.6 in one minute plus the age."""
    return min(SELF - 1, int(1.5 * math.log2(1 + seconds / 60)))


@njit
def _connection(table, node, other, time, seconds):
    if node == other:
        return SAME
    slot = find(table, node, other)
    return APART if slot < 0 else MET + age_code((time - table.slot_S[slot].latest) * seconds) // 4


@njit
def _count_meeting(table, node, other, time, is_received):
    slot = touch(table, node, other, time, _NO_RATES)
    table.slot_S[slot].number = is_received


@njit
def _fill_tower(towers, index, table, node, time, seconds):
    node_T, age_T, kind_T = towers.node_NT[index], towers.age_NT[index], towers.kind_NT[index]
    node_T[0], age_T[0], kind_T[0] = node, SELF, NUM_KINDS - 1
    slot = table.newest_R[node]
    for position in range(1, len(node_T)):
        if slot < 0:
            break
        record = table.slot_S[slot]
        node_T[position] = record.column
        age_T[position] = age_code((time - record.latest) * seconds)
        kind_T[position] = 3 * record.number + min(2, record.count // 2)
        slot = record.older


@njit(nogil=True, cache=True)
def fill_towers(table, events, num_read, queries, candidates, seconds, out):
    """Go through queries in order of time: count the events that they may read, then write their rows' towers.

    `events` are source, target and time, `queries` source, time and number of visible events, `candidates` the number
    of rows of each query and the rows' targets, all with one number a node. `out` are the sources' towers, the
    targets', and connections [R, T, T]. The table needs two free slots an event. Gives the number of events read.
    """
    (num_rows_Q, target_R), (sources, targets, connection_RTT) = candidates, out
    source_E, target_E, time_E = events
    source_Q, time_Q, num_visible_Q = queries
    row = 0
    for query in range(len(source_Q)):
        for event in range(num_read, num_visible_Q[query]):
            if source_E[event] != target_E[event]:
                _count_meeting(table, source_E[event], target_E[event], time_E[event], 0)
                _count_meeting(table, target_E[event], source_E[event], time_E[event], 1)
        num_read = max(num_read, num_visible_Q[query])
        time = time_Q[query]
        _fill_tower(sources, query, table, source_Q[query], time, seconds)
        for _ in range(num_rows_Q[query]):
            _fill_tower(targets, row, table, target_R[row], time, seconds)
            for i, node in enumerate(sources.node_NT[query]):
                for j, other in enumerate(targets.node_NT[row]):
                    if node != NO_NODE and other != NO_NODE:
                        connection_RTT[row, i, j] = _connection(table, node, other, time, seconds)
            row += 1
    return num_read


class Tower(NamedTuple):
    """Integers [N, T] of each row: its node's embedding (0 for all rare nodes), age, kind, and whether it is there."""

    id_NT: Tensor
    age_NT: Tensor
    kind_NT: Tensor
    is_there_NT: Tensor


class Batch(NamedTuple):
    """Candidates of some queries: both towers, the connections of their rows, and the counted features."""

    source: Tower  # [Q, T]
    target: Tower  # [R, T]
    query_R: Tensor
    connection_RTT: Tensor
    feature_RF: Tensor


class Candidates(NamedTuple):
    """Candidates of consecutive queries: counted features [R, F], targets [R], and how many each query has."""

    row_RF: NDArray[np.float32]
    target_R: NDArray[np.int64]
    size_G: NDArray[np.int64]

    def at(self, row_K: NDArray[np.int64]) -> "Candidates":
        """Give some of the rows, ascending."""
        group_R = np.repeat(np.arange(len(self.size_G)), self.size_G)
        size_G = np.bincount(group_R[row_K], minlength=len(self.size_G))
        return Candidates(self.row_RF[row_K], self.target_R[row_K], size_G)


def queries_at(queries: EventQueries, query_G: NDArray[np.int64] | slice) -> EventQueries:
    """Give some of the queries."""
    return EventQueries(
        source_Q=queries.source_Q[query_G],
        time_Q=queries.time_Q[query_G],
        num_visible_Q=queries.num_visible_Q[query_G],
        candidate_QC=None if queries.candidate_QC is None else queries.candidate_QC[query_G],
    )


class ContactPass:
    """One pass over a log in which queries in order of time get their towers from the events that they may read.

    Nodes have one number each: with two sides, targets follow the sources. Contacts are distinct partners in either
    direction, the newest first. A connection is 0 for nodes that never met, 1 for a node and itself, else 2 and more by
    the time since they met.
    """

    def __init__(self, log: EventLog, training: EventLog) -> None:
        """Take the log and its training events, of which nodes with MIN_EVENTS have an embedding of their own."""
        self._log, self._num_read = log, 0
        self._first_target = log.num_sources * log.two_sides
        num_nodes = log.num_sources + log.num_targets * log.two_sides
        self._meetings = table_of(np.empty(0, dtype=SLOT), np.full(num_nodes, -1, dtype=np.int32))
        ends = np.concatenate([training.source_E, training.target_E + self._first_target])
        is_frequent_N = np.bincount(ends, minlength=num_nodes) >= MIN_EVENTS
        self._id_N = np.cumsum(is_frequent_N) * is_frequent_N
        self.num_ids = 1 + int(is_frequent_N.sum())

    def batch(self, queries: EventQueries, candidates: Candidates) -> Batch:
        """Give the towers of the next queries and their candidates, with the counted features."""
        assert len(queries) == 0 or queries.num_visible_Q[0] >= self._num_read, "a pass cannot forget events"
        log, num_rows, width = self._log, len(candidates.target_R), 1 + NUM_CONTACTS
        source, target = (
            Towers(np.full((num, width), NO_NODE, dtype=np.int32), *np.zeros((2, num, width), dtype=np.uint8))
            for num in (len(queries), num_rows)
        )
        connection_RTT = np.zeros((num_rows, width, width), dtype=np.uint8)
        num_visible = int(queries.num_visible_Q[-1]) if len(queries) else 0
        self._meetings = with_room(self._meetings, 2 * max(0, num_visible - self._num_read))
        self._num_read = fill_towers(
            self._meetings,
            (log.source_E, log.target_E + self._first_target, log.time_E),
            self._num_read,
            (queries.source_Q, queries.time_Q, queries.num_visible_Q),
            (candidates.size_G, candidates.target_R + self._first_target),
            log.seconds,
            (source, target, connection_RTT),
        )
        return Batch(
            source=self._tower(source),
            target=self._tower(target),
            query_R=torch.from_numpy(np.repeat(np.arange(len(queries)), candidates.size_G)),
            connection_RTT=torch.from_numpy(connection_RTT),
            feature_RF=torch.from_numpy(candidates.row_RF),
        )

    def _tower(self, towers: Towers) -> Tower:
        is_there_NT = towers.node_NT != NO_NODE
        id_NT = np.where(is_there_NT, self._id_N[towers.node_NT], 0)
        return Tower(*map(torch.from_numpy, (id_NT, towers.age_NT, towers.kind_NT, is_there_NT)))


def part_of(batch: Batch, size_G: NDArray[np.int64], group_B: NDArray[np.int64]) -> Batch:
    """Give the part of a batch that has some of its queries, ascending."""
    size_B = size_G[group_B]
    first_B = np.cumsum(size_B) - size_B
    row_R = torch.from_numpy(
        np.repeat((np.cumsum(size_G) - size_G)[group_B] - first_B, size_B) + np.arange(size_B.sum())
    )
    return Batch(
        source=Tower(*(column[torch.from_numpy(group_B)] for column in batch.source)),
        target=Tower(*(column[row_R] for column in batch.target)),
        query_R=torch.from_numpy(np.repeat(np.arange(len(group_B)), size_B)),
        connection_RTT=batch.connection_RTT[row_R],
        feature_RF=batch.feature_RF[row_R],
    )


class TowerLayer(nn.Module):
    """One tower attends to the other; both directions have the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, query_RTD: Tensor, key_RTD: Tensor, bias_RHTT: Tensor) -> Tensor:
        """Update the rows of one tower from those of the other; bias: rows of this one x rows of the other."""
        normed_RTD, other_RTD = self.attention_norm(query_RTD), self.attention_norm(key_RTD)
        rows = (self.query(normed_RTD), self.key(other_RTD), self.value(other_RTD))
        heads = (row_RTD.unflatten(2, (NUM_HEADS, -1)).transpose(1, 2) for row_RTD in rows)
        message_RHTD = functional.scaled_dot_product_attention(*heads, attn_mask=bias_RHTT)
        row_RTD = query_RTD + self.dropout(self.out(message_RHTD.transpose(1, 2).flatten(2)))
        return row_RTD + self.dropout(self.feed_forward(self.feed_forward_norm(row_RTD)))


class EventTowers(nn.Module):
    """The vectors of source and candidate after attention between their towers, and counts of their connections."""

    num_outputs = 3 * WIDTH + NUM_PARTS * NUM_CONNECTIONS

    def __init__(self, num_ids: int) -> None:
        super().__init__()
        sizes = (num_ids, NUM_AGES, NUM_KINDS, 2)
        self.id, self.age, self.kind, self.side = (nn.Embedding(size, WIDTH) for size in sizes)
        for embedding in (self.id, self.age, self.kind, self.side):
            nn.init.normal_(embedding.weight, std=0.1)
        self.bias = nn.Embedding(NUM_CONNECTIONS, NUM_HEADS)
        nn.init.zeros_(self.bias.weight)
        self.layers = nn.ModuleList(TowerLayer() for _ in range(NUM_LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, batch: Batch) -> Tensor:
        """Give the outputs [R, num_outputs]; each depends on its own candidate and query alone."""
        connection_RTT = batch.connection_RTT.long()
        source_RTD, target_RTD = self._rows(batch.source, 0)[batch.query_R], self._rows(batch.target, 1)
        bias_RHTT = self.bias(connection_RTT).permute(0, 3, 1, 2)
        absent = torch.tensor(-torch.inf)
        to_target = bias_RHTT.where(batch.target.is_there_NT[:, None, None, :], absent)
        to_source = bias_RHTT.transpose(2, 3).where(batch.source.is_there_NT[batch.query_R][:, None, None, :], absent)
        for layer in self.layers[:-1]:
            source_RTD, target_RTD = layer(source_RTD, target_RTD, to_target), layer(target_RTD, source_RTD, to_source)
        last = self.layers[-1]  # only the rows of the two ends are read after it
        source_RD = self.norm(last(source_RTD[:, :1], target_RTD, to_target[:, :, :1])[:, 0])
        target_RD = self.norm(last(target_RTD[:, :1], source_RTD, to_source[:, :, :1])[:, 0])
        return torch.cat([source_RD, target_RD, source_RD * target_RD, connection_counts(connection_RTT)], dim=1)

    def _rows(self, tower: Tower, side: int) -> Tensor:
        contact_NTD = self.age(tower.age_NT.long()) + self.kind(tower.kind_NT.long())
        return self.id(tower.id_NT) + contact_NTD + self.side.weight[side]


def connection_counts(connection_RTT: Tensor) -> Tensor:
    """Give log(1 + number) [R, 4C] of the connections of each code, in each of NUM_PARTS: attention cannot count."""
    num_rows, num_tower, _ = connection_RTT.shape
    is_contact_T = (torch.arange(num_tower) > 0).long()
    part_TT = 2 * is_contact_T[:, None] + is_contact_T
    width = NUM_PARTS * NUM_CONNECTIONS
    column_RTT = part_TT * NUM_CONNECTIONS + connection_RTT + width * torch.arange(num_rows)[:, None, None]
    return torch.bincount(column_RTT.flatten(), minlength=num_rows * width).view(num_rows, width).float().log1p()


def logarithm(value: Tensor) -> Tensor:
    """Give sign(x) log(1 + |x|)."""
    return value.sign() * value.abs().log1p()


class Net(nn.Module):
    """A score of each candidate from its counted features, with the outputs of towers or without."""

    def __init__(self, feature_RF: Tensor, towers: EventTowers | None) -> None:
        """Take the counted features of the training rows, which are scaled to mean 0 and deviation 1."""
        super().__init__()
        self.towers = towers
        num_inputs = feature_RF.shape[1] + (0 if towers is None else towers.num_outputs)
        hidden = nn.Linear(num_inputs, 2 * WIDTH)
        self.score = nn.Sequential(hidden, nn.GELU(), nn.Dropout(DROPOUT), nn.Linear(2 * WIDTH, 1))
        value_RF = logarithm(feature_RF)
        count_F = (~value_RF.isnan()).sum(0).clamp(min=1)
        self.mean_F = value_RF.nan_to_num(0.0).sum(0) / count_F
        square_RF = ((value_RF - self.mean_F) ** 2).nan_to_num(0.0)
        self.deviation_F = (square_RF.sum(0) / count_F).sqrt() + 1e-3

    def forward(self, batch: Batch) -> Tensor:
        """Give the scores [R]; a missing feature is 0."""
        scaled_RF = ((logarithm(batch.feature_RF) - self.mean_F) / self.deviation_F).nan_to_num(0.0)
        scaled_RF = scaled_RF.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)
        parts = (scaled_RF,) if self.towers is None else (self.towers(batch), scaled_RF)
        return self.score(torch.cat(parts, dim=1))[:, 0]


def scores_of(net: Net, batch: Batch, size_G: NDArray[np.int64]) -> NDArray[np.float64]:
    """Give the scores [R] of all candidates of a batch."""
    parts = [
        np.arange(first, min(first + SCORED_GROUPS, len(size_G))) for first in range(0, len(size_G), SCORED_GROUPS)
    ]
    net.eval()
    with torch.inference_mode():
        scores = [net(part_of(batch, size_G, group_B)).double().numpy() for group_B in parts]
    return np.concatenate([np.empty(0), *scores])


def softmax_loss(score_R: Tensor, query_R: Tensor, is_chosen_R: Tensor) -> Tensor:
    """Give the mean of -log(softmax within the query) of the chosen rows, one a query."""
    num_queries = int(is_chosen_R.sum())
    most_B = torch.full((num_queries,), -torch.inf).scatter_reduce(0, query_R, score_R.detach(), "amax")
    total_B = torch.zeros(num_queries).index_add(0, query_R, (score_R - most_B[query_R]).exp())
    return (total_B.log() + most_B - score_R[is_chosen_R]).mean()


@dataclass(frozen=True, kw_only=True, eq=False)
class Labelled:
    """Groups in which the query's target is a candidate."""

    query_G: NDArray[np.int64]  # number of the query, ascending
    candidates: Candidates
    is_chosen_R: NDArray[np.bool_]  # one row a group


def is_new_row(rows: CandidateRows) -> NDArray[np.bool_]:
    """Mark the rows [R] of new candidates: a query's new ones follow its past ones."""
    part_Q2 = np.column_stack([rows.num_past_Q, rows.num_new_Q])
    return np.repeat(np.tile([False, True], len(part_Q2)), part_Q2.ravel())


def labelled_blocks(
    log: EventLog, queries: EventQueries, target_Q: NDArray[np.int64], counted: FittedEventForecaster
) -> Iterator[Labelled]:
    """Yield the new candidates of the queries whose target is one of them, block by block."""
    first = 0
    for rows in candidate_rows(log, queries, counted.settings, target_Q):
        num_queries, is_new_R = len(rows.num_past_Q), is_new_row(rows)
        query_R = np.repeat(np.arange(num_queries), rows.num_past_Q + rows.num_new_Q)
        is_chosen_R = is_new_R & (rows.target_R == target_Q[first + query_R])
        query_G = query_R[is_chosen_R]
        row_K = np.flatnonzero(is_new_R & np.isin(query_R, query_G))
        candidates = Candidates(rows.row_RF[row_K], rows.target_R[row_K], rows.num_new_Q[query_G])
        yield Labelled(query_G=first + query_G, candidates=candidates, is_chosen_R=is_chosen_R[row_K])
        first += num_queries


def best_rows(value_R: NDArray[np.floating], size_G: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """Give the rows of the `number` greatest values of each group, ascending; of equal ones the first."""
    group_R = np.repeat(np.arange(len(size_G)), size_G)
    order_R = np.lexsort((-value_R, group_R))
    position_R = np.arange(len(group_R)) - np.repeat(np.cumsum(size_G) - size_G, size_G)
    return np.sort(order_R[position_R < number])


def joined(blocks: list[Labelled]) -> Labelled:
    """Put blocks together."""
    return Labelled(
        query_G=np.concatenate([block.query_G for block in blocks]),
        candidates=Candidates(*map(np.concatenate, zip(*(block.candidates for block in blocks), strict=True))),
        is_chosen_R=np.concatenate([block.is_chosen_R for block in blocks]),
    )


def training_groups(trial: EventTrial, counted: FittedEventForecaster, generator: np.random.Generator) -> Labelled:
    """Give the groups of training events, each with its target and at most NUM_NEGATIVES others, drawn uniformly.

    The earliest events are left out, as they are by the forecaster.
    """
    num_training = trial.splits.first_validation
    event_Q = np.arange(int(EventForecaster.left_out * num_training), num_training)
    blocks = []
    for block in labelled_blocks(
        trial.log.head(num_training), trial.queries(event_Q), trial.log.target_E[event_Q], counted
    ):
        draw_R = np.where(block.is_chosen_R, 2.0, generator.random(len(block.is_chosen_R)))
        row_K = best_rows(draw_R, block.candidates.size_G, 1 + NUM_NEGATIVES)
        candidates = block.candidates.at(row_K)
        blocks.append(
            Labelled(query_G=event_Q[block.query_G], candidates=candidates, is_chosen_R=block.is_chosen_R[row_K])
        )
    return joined(blocks)


def trained_nets(trial: EventTrial, groups: Labelled, seed: int) -> dict[str, tuple[Net, float]]:
    """Train the nets on groups of training events; give each with the CPU seconds that it took."""
    training = trial.log.head(trial.splits.first_validation)
    contacts = ContactPass(training, training)
    batch = contacts.batch(trial.queries(groups.query_G), groups.candidates)
    nets = {}
    for method in (FEATURES_ALONE, WITH_TOWERS):
        started = time.process_time()
        torch.manual_seed(seed)
        towers = EventTowers(contacts.num_ids) if method == WITH_TOWERS else None
        net = train(Net(batch.feature_RF, towers), batch, groups, np.random.default_rng(seed))
        nets[method] = net, time.process_time() - started
    return nets


def train(net: Net, batch: Batch, groups: Labelled, generator: np.random.Generator) -> Net:
    """Train by AdamW with a learning rate that rises once and falls (Smith and Topin, 2019).

    The latest groups choose among the weights of NUM_CHECKS moments.
    """
    size_G, is_chosen_R = groups.candidates.size_G, torch.from_numpy(groups.is_chosen_R)
    chosen_G = list(is_chosen_R.split(size_G.tolist()))
    num_fitted = int((1 - HELD_OUT) * len(size_G))
    optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=ITERATIONS, pct_start=0.1)
    held_out = np.arange(num_fitted, len(size_G))
    held_out_part = part_of(batch, size_G, held_out)
    held_out_chosen = torch.cat([chosen_G[group] for group in held_out])
    best, weights = np.inf, copy.deepcopy(net.state_dict())
    for iteration in range(1, ITERATIONS + 1):
        group_B = np.sort(generator.choice(num_fitted, min(BATCH_GROUPS, num_fitted), replace=False))
        part = part_of(batch, size_G, group_B)
        net.train()
        optimizer.zero_grad()
        softmax_loss(net(part), part.query_R, torch.cat([chosen_G[group] for group in group_B])).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP_NORM)
        optimizer.step()
        rates.step()
        if iteration % (ITERATIONS // NUM_CHECKS) == 0:
            score_R = torch.from_numpy(scores_of(net, held_out_part, size_G[held_out])).float()
            loss = float(softmax_loss(score_R, held_out_part.query_R, held_out_chosen))
            if loss < best:
                best, weights = loss, copy.deepcopy(net.state_dict())
    net.load_state_dict(weights)
    return net.eval()


def log_totals(logit_R: NDArray[np.float64], size_G: NDArray[np.int64]) -> NDArray[np.float64]:
    """Give the logarithm of the sum of the exponentials within each row's group, [R]."""
    size_G = size_G[size_G > 0]
    if not len(size_G):
        return logit_R
    return np.repeat(np.logaddexp.reduceat(logit_R, np.cumsum(size_G) - size_G), size_G)


Factors = tuple[float, float]
"""Of the counted logit, and of the net's score."""


def corrected(
    logit_R: NDArray[np.float64],
    best_K: NDArray[np.int64],
    size_G: NDArray[np.int64],  # of the best rows
    score_K: NDArray[np.float64],
    factors: Factors,
) -> NDArray[np.float64]:
    """Divide the probability of the best rows of each group again; the others keep theirs."""
    again_K = factors[0] * logit_R[best_K] + factors[1] * score_K
    corrected_R = logit_R.copy()
    corrected_R[best_K] = again_K + log_totals(logit_R[best_K], size_G) - log_totals(again_K, size_G)
    return corrected_R


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """Groups of a split with the counted logits of all rows, and the scores of the best ones by each net."""

    source_G: NDArray[np.int64]
    groups: Groups  # without features
    logit_R: NDArray[np.float64]
    best_K: NDArray[np.int64]
    best_size_G: NDArray[np.int64]
    score_of: Mapping[str, NDArray[np.float64]]  # [K]

    def factors(self, method: str, is_read_G: NDArray[np.bool_]) -> Factors:
        """Choose the factors with the least log loss on the groups that are read, where the target is a best row."""
        chosen_G = self.groups.start_G1[:-1] + self.groups.chosen_G
        is_read_G = is_read_G & np.isin(chosen_G, self.best_K)
        is_read_K = np.repeat(is_read_G, self.best_size_G)
        best_K = self.best_K[is_read_K]
        start_G1 = np.concatenate([[0], np.cumsum(self.best_size_G[is_read_G])])
        output_2K = np.stack([self.logit_R[best_K], self.score_of[method][is_read_K]])
        position_G = np.searchsorted(best_K, chosen_G[is_read_G])

        def loss(factor_2: NDArray[np.float64]) -> float:
            return float(-np.log(softmax(factor_2 @ output_2K, start_G1)[position_G]).mean())

        first, second = minimize(loss, np.array([1.0, 0.0]), bounds=[(0.0, 10.0)] * 2).x
        return float(first), float(second)

    def values(self, method: str, factors: Factors) -> NDArray[np.float64]:
        """Give 1 / rank and the log loss of each group, [G, 2]."""
        logit_R = self.logit_R
        if method != COUNTED:
            logit_R = corrected(logit_R, self.best_K, self.best_size_G, self.score_of[method], factors)
        chosen_G = self.groups.start_G1[:-1] + self.groups.chosen_G
        loss_G = -np.log(softmax(logit_R, self.groups.start_G1)[chosen_G])
        return np.column_stack([1 / ranks(logit_R, self.groups), loss_G])


def scored(trial: EventTrial, split: Split, counted: FittedEventForecaster, nets: Mapping[str, Net]) -> Scored:
    """Give the groups of a split, whose new candidates are those that the state's lists hold."""
    part = trial.splits.events(split)
    event_Q, blocks, logits, bests = np.arange(part.start, part.stop), [], [], []
    for block in labelled_blocks(trial.log.head(part.stop), trial.queries(event_Q), trial.log.target_E[part], counted):
        logits.append(counted.new.logits(block.candidates.row_RF))
        best_K = best_rows(logits[-1], block.candidates.size_G, NUM_BEST)
        no_rows = block.candidates._replace(row_RF=np.empty((len(logits[-1]), 0), dtype=np.float32))
        blocks.append(replace(block, candidates=no_rows))
        bests.append((block.candidates.at(best_K), sum(map(len, logits[:-1])) + best_K))
    every = joined(blocks)
    best = Candidates(*map(np.concatenate, zip(*(candidates for candidates, _ in bests), strict=True)))
    contacts = ContactPass(trial.log.head(part.stop), trial.log.head(trial.splits.first_validation))
    batch = contacts.batch(trial.queries(event_Q[every.query_G]), best)
    size_G = every.candidates.size_G
    chosen_G = np.flatnonzero(every.is_chosen_R) - np.cumsum(size_G) + size_G
    return Scored(
        source_G=trial.log.source_E[event_Q[every.query_G]],
        groups=Groups(row_RF=every.candidates.row_RF, size_G=size_G, chosen_G=chosen_G),
        logit_R=np.concatenate(logits),
        best_K=np.concatenate([best_K for _, best_K in bests]),
        best_size_G=best.size_G,
        score_of={method: scores_of(net, batch, best.size_G) for method, net in nets.items()},
    )


@dataclass(frozen=True, kw_only=True)
class _Given(GroupHead):
    """Logits that were computed before."""

    logit_R: NDArray[np.float64]

    def logits(self, row_RF: NDArray[np.float32]) -> NDArray[np.float64]:
        assert len(row_RF) == len(self.logit_R)
        return self.logit_R


def _with_logits(
    counted: FittedEventForecaster, past_R: NDArray[np.float64], new_R: NDArray[np.float64]
) -> FittedEventForecaster:
    past, new = (_Given(trees=(), factors=(), logit_R=logit_R) for logit_R in (past_R, new_R))
    return replace(counted, past=past, new=new)


def protocol_ranks(
    trial: EventTrial,
    split: Split,
    counted: FittedEventForecaster,
    nets: Mapping[str, Net],
    factors: Mapping[str, Factors],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Give the ranked events [E] of a split and their ranks [E, M] by the protocol `tgb`."""
    training = trial.log.head(trial.splits.first_validation)
    events, found = [], []
    for event_Q in trial.ranked(split):
        queries, contacts = trial.ranked_queries(split, event_Q), ContactPass(trial.log, training)
        scores: dict[str, list[NDArray[np.float64]]] = {method: [] for method in METHODS}
        first = 0
        for rows in candidate_rows(trial.log, queries, counted.settings):
            block = queries_at(queries, slice(first, first + len(rows.num_past_Q)))
            first += len(block)
            is_new_R = is_new_row(rows)
            past_R, new_R = counted.past.logits(rows.row_RF[~is_new_R]), counted.new.logits(rows.row_RF[is_new_R])
            best_K = best_rows(new_R, rows.num_new_Q, NUM_BEST)
            new = Candidates(rows.row_RF[is_new_R], rows.target_R[is_new_R], rows.num_new_Q).at(best_K)
            batch = contacts.batch(block, new)
            every = np.zeros((len(block), 0), dtype=np.int64)
            candidate_QC = every if block.candidate_QC is None else block.candidate_QC
            for method in METHODS:
                logit_R = new_R
                if method != COUNTED:
                    score_K = scores_of(nets[method], batch, new.size_G)
                    logit_R = corrected(new_R, best_K, new.size_G, score_K, factors[method])
                forecaster = _with_logits(counted, past_R, logit_R)
                scores[method].append(forecaster.scores(rows, candidate_QC, trial.log.num_targets))
        chosen = trial.chosen(event_Q)
        found.append(np.column_stack([event_ranks(own, trial.log, queries, chosen) for own in scores.values()]))
        events.append(event_Q)
    return np.concatenate(events), np.concatenate(found)


def is_new_partner(log: EventLog) -> NDArray[np.bool_]:
    """Mark the events [E] before whose time their source and target had none: with one side, in neither direction."""
    first, second = log.source_E, log.target_E
    if not log.two_sides:
        first, second = np.minimum(first, second), np.maximum(first, second)
    _, first_P, pair_E = np.unique(first * log.num_targets + second, return_index=True, return_inverse=True)
    return log.time_E[first_P][pair_E] == log.time_E


class Values(NamedTuple):
    """Values of some events by each method, which the mean of several seeds has too."""

    source_E: NDArray[np.int64]
    value_EM: NDArray[np.float64]

    def row(self, name: str) -> dict[str, str]:
        """Give means, and their differences with 95 % intervals."""
        source_S, source_E = np.unique(self.source_E, return_inverse=True)
        count_S = np.bincount(source_E)
        total_SM = np.stack([np.bincount(source_E, value_E) for value_E in self.value_EM.T], axis=1, dtype=np.float64)
        draw = np.random.default_rng(0)
        weight_BS = node_resamples([source_S] * 2, num_resamples=None, generator=draw).weight_BS
        mean_of: dict[str, Measured] = dict(zip(METHODS, means(total_SM, weight_BS, count_S), strict=True))
        row = {"": name, "events": f"{len(source_E):,}"}
        row |= {method: f"{mean.value:.4f}" for method, mean in mean_of.items()}
        for method, other in COMPARED:
            ends = interval(mean_of[method].value_B - mean_of[other].value_B)
            text = f"{mean_of[method].value - mean_of[other].value:+.4f} [{ends[0]:+.4f}, {ends[1]:+.4f}]"
            row[f"{method} - {other}"] = text
        return row


def measured(trial: EventTrial, seed: int) -> dict[str, Values]:
    """Give the values of one seed by the names of their rows; print factors and CPU seconds."""
    started = time.process_time()
    counted = EventForecaster(rank=0).fit_events(*trial.fitting, seed=seed)
    seconds = {"heads": time.process_time() - started}
    groups = training_groups(trial, counted, np.random.default_rng(seed))
    trained = trained_nets(trial, groups, seed)
    seconds |= {method: own for method, (_, own) in trained.items()}
    nets = {method: net for method, (net, _) in trained.items()}
    values, factors = dict[str, Values](), dict[str, Factors]()
    for split in SPLITS:
        own = scored(trial, split, counted, nets)
        every_G = np.ones(len(own.groups), dtype=np.bool_)
        if split == "validation":
            factors = {method: own.factors(method, every_G) for method in nets}
            source_S = np.random.default_rng(seed).permutation(np.unique(own.source_G))
            is_first_G = np.isin(own.source_G, source_S[: len(source_S) // 2])
            parts = [
                (half_G, {method: own.factors(method, ~half_G) for method in nets})
                for half_G in (is_first_G, ~is_first_G)
            ]
        else:
            parts = [(every_G, factors)]
        value_GM2 = np.empty((len(every_G), len(METHODS), 2))
        for part_G, of_part in parts:
            for index, method in enumerate(METHODS):
                value_GM2[part_G, index] = own.values(method, of_part.get(method, (1.0, 0.0)))[part_G]
        for index, name in enumerate(("MRR", "log loss")):
            values[f"new among retrieved, {split}, {name}"] = Values(own.source_G, value_GM2[:, :, index])
    is_new_E = is_new_partner(trial.log)
    for split in SPLITS:
        event_E, rank_EM = protocol_ranks(trial, split, counted, nets, factors)
        source_E, is_new = trial.log.source_E[event_E], is_new_E[event_E]
        for name, part_E in (("", np.ones_like(is_new)), (", new partner", is_new), (", past partner", ~is_new)):
            values[f"tgb, {split}{name}"] = Values(source_E[part_E], 1 / rank_EM[part_E])
    seconds["all"] = time.process_time() - started
    chosen = {method: tuple(round(factor, 3) for factor in own) for method, own in factors.items()}
    print(f"seed {seed}: {len(groups.query_G):,} training groups; factors {chosen}; ", end="")
    print("CPU seconds", ", ".join(f"{name} {value:.0f}" for name, value in seconds.items()))
    return values


def trial_of(name: str, file: str) -> EventTrial:
    """Read the file of a known log as the protocol `tgb` does, strict; nodes are numbered by their first event."""
    dataset = dataset_named(name)
    columns = {end: getattr(dataset.columns, end) for end in ("source", "target", "time")}
    about = {"time_unit": dataset.time_unit, "separator": dataset.separator, "bipartite": dataset.bipartite}
    events = dyformer.read_log(file, **columns, **about).events.sort("time", maintain_order=True)
    id_R2 = events.select(pl.col("source", "target").cast(pl.Int64)).to_numpy() * 2 + [0, dataset.bipartite]
    _, first_N, number_R = np.unique(id_R2.ravel(), return_index=True, return_inverse=True)
    source_R, target_R = np.argsort(np.argsort(first_N))[number_R].reshape(-1, 2).T
    numbered = pl.DataFrame(
        {"source": source_R, "target": target_R, "target_side": np.full(len(source_R), int(dataset.bipartite))}
    )
    numbered = numbered.with_columns(events["time"].to_physical(), events["weight"])
    log = event_log_of(numbered, has_steps=dataset.time_unit == "step").log
    splits = split_events(log)
    negatives = sampled_negatives(log, splits) if samples_negatives(log) else None
    return EventTrial(log=log, splits=splits, visibility=Visibility(), negatives=negatives)


def main() -> None:
    """Print the tables of each seed, and those of all seeds together."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", help="a known log, such as uci or ml-10m")
    parser.add_argument("--log", required=True, help="its file")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from 0")
    given = parser.parse_args()
    torch.set_num_threads(1)
    trial = trial_of(given.dataset, given.log)
    sizes = [
        trial.splits.first_validation,
        *(len(range(len(trial.log))[trial.splits.events(split)]) for split in SPLITS),
    ]
    print(f"{given.dataset}: {sizes} training, validation and test events, candidates: {trial.candidates}", flush=True)
    runs: list[dict[str, Values]] = []
    for seed in range(given.seeds):
        runs.append(measured(trial, seed))
        print("\n".join(markdown_rows(pl.DataFrame([own.row(name) for name, own in runs[-1].items()]))), flush=True)
    if len(runs) > 1:
        together = [
            Values(own.source_E, np.mean([run[name].value_EM for run in runs], axis=0)).row(name)
            for name, own in runs[0].items()
        ]
        print(f"mean of {len(runs)} seeds")
        print("\n".join(markdown_rows(pl.DataFrame(together))))


if __name__ == "__main__":
    main()
