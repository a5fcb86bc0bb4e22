"""Past interactions and pairs, as Parquet files -> the scores that a method of tgm-lib gives the pairs.

It runs in an environment that has tgm-lib, and imports nothing of this project. Methods of tgm-lib are trained as its
own examples train them: batches of 200 interactions in order of time, one random target for each, default settings.

E interactions    P pairs    B pairs of a batch    K neighbours    N nodes    D width
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from tgm.nn import ROLAND, DyGFormer, LinkPredictor, Time2Vec, TPNet
from tgm.nn.encoder.tpnet import RandomProjectionModule
from tgm.nn.modules import EdgeBankPredictor, PopTrackPredictor
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as log_loss
from torch.nn.functional import mse_loss

BATCH = 200
NODE_WIDTH, TIME_WIDTH, WIDTH = 128, 100, 172
ROLAND_WIDTH = 256
EPOCHS = {"dygformer": 3, "tpnet": 100, "roland": 30}  # of the examples


@dataclass(frozen=True, kw_only=True)
class Past:
    """Interactions in order of time; a node is known if it has one."""

    source_E: Tensor
    target_E: Tensor
    time_E: Tensor  # whole seconds since the first one
    step_E: Tensor

    @property
    def num_nodes(self) -> int:
        """Number of known nodes: they are numbered in the order of their first interactions."""
        return 1 + int(torch.maximum(self.source_E, self.target_E).max())

    @property
    def now(self) -> int:
        """The first second after the past."""
        return int(self.time_E[-1]) + 1

    def batches(self) -> Iterator[slice]:
        """Give the rows of each batch."""
        return (slice(start, min(start + BATCH, len(self.time_E))) for start in range(0, len(self.time_E), BATCH))

    @cached_property
    def _by_node(self) -> tuple[NDArray[np.int64], ...]:
        node_X, partner_X = torch.cat([self.source_E, self.target_E]), torch.cat([self.target_E, self.source_E])
        row_X = np.tile(np.arange(len(self.time_E)), 2)
        key_X = node_X.numpy() * (len(self.time_E) + 1) + row_X
        order_X = np.argsort(key_X, kind="stable")
        return key_X[order_X], partner_X.numpy()[order_X], self.time_E.numpy()[row_X[order_X]]

    def neighbours(self, node_B: Tensor, before: int, num: int) -> tuple[Tensor, Tensor]:
        """Give the newest partners of nodes before the row `before`, oldest first, and their times; -1 is padding."""
        key_X, partner_X, time_X = self._by_node
        first_key_B = node_B.numpy() * (len(self.time_E) + 1)
        start_B, end_B = np.searchsorted(key_X, first_key_B), np.searchsorted(key_X, first_key_B + before)
        index_BK = end_B[:, None] - np.arange(num, 0, -1)
        known_BK = index_BK >= start_B[:, None]
        index_BK = np.where(known_BK, index_BK, 0)
        partner_BK, time_BK = np.where(known_BK, partner_X[index_BK], -1), np.where(known_BK, time_X[index_BK], 0)
        return torch.from_numpy(partner_BK), torch.from_numpy(time_BK)


Score = Callable[[Tensor, Tensor], Tensor]


def edgebank(past: Past, arguments: argparse.Namespace) -> Score:
    """EdgeBank with unlimited memory: a pair is remembered in the direction of its interactions."""
    return EdgeBankPredictor(past.source_E, past.target_E, past.time_E)


def edgebank_both(past: Past, arguments: argparse.Namespace) -> Score:
    """EdgeBank that gets each interaction in both directions, as ours reads it."""
    source_E, target_E = torch.cat([past.source_E, past.target_E]), torch.cat([past.target_E, past.source_E])
    order_E = torch.argsort(past.time_E.repeat(2), stable=True)
    return EdgeBankPredictor(source_E[order_E], target_E[order_E], past.time_E.repeat(2)[order_E])


def poptrack(past: Past, arguments: argparse.Namespace) -> Score:
    """PopTrack: the decayed number of interactions that a target received."""
    batches = [(past.source_E[rows], past.target_E[rows], past.time_E[rows]) for rows in past.batches()]
    model = PopTrackPredictor(*batches[0], past.num_nodes, k=min(50, past.num_nodes))
    for batch in batches[1:]:
        model.update(*batch)
    return model


def roland(past: Past, arguments: argparse.Namespace) -> Score:
    """ROLAND: vectors of each step, updated from those of the step before, score the pairs of the next step."""
    steps = [past.step_E == step for step in past.step_E.unique()]
    feature_ND = torch.randn(past.num_nodes, ROLAND_WIDTH)
    encoder = ROLAND(ROLAND_WIDTH, ROLAND_WIDTH, past.num_nodes)
    decoder = LinkPredictor(ROLAND_WIDTH)
    optimizer = torch.optim.Adam({*encoder.parameters(), *decoder.parameters()}, lr=1e-3)

    def updated(vectors: list[Tensor], rows_E: Tensor) -> list[Tensor]:
        edges_2E = torch.stack([past.source_E[rows_E], past.target_E[rows_E]])
        return [vector_ND.detach() for vector_ND in encoder(feature_ND, edges_2E, vectors)]

    def run(optimize: bool) -> Tensor:
        vectors = [torch.zeros(past.num_nodes, ROLAND_WIDTH)] * 2
        for rows_E, next_rows_E in zip(steps, [*steps[1:], None], strict=True):
            vectors = updated(vectors, rows_E)
            for row_B in next_rows_E.nonzero()[:, 0].split(BATCH) if optimize and next_rows_E is not None else ():
                source_BD = vectors[-1][past.source_E[row_B]]
                positive_B = decoder(source_BD, vectors[-1][past.target_E[row_B]])
                negative_B = decoder(source_BD, vectors[-1][random_targets(past, len(row_B))])
                loss = mse_loss(positive_B, torch.ones_like(positive_B)) + (negative_B**2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return vectors[-1]

    for _ in epochs("roland", arguments):
        run(optimize=True)
    vector_ND = run(optimize=False)
    return lambda source_B, target_B: decoder(vector_ND[source_B], vector_ND[target_B])


class PairModel(nn.Module):
    """An encoder of tgm-lib that reads the newest neighbours of both ends, and its decoder."""

    def __init__(self, encoder: nn.Module, num_neighbours: int, past: Past, feature_ND: Tensor) -> None:
        super().__init__()
        self.encoder, self.num_neighbours, self.past, self.feature_ND = encoder, num_neighbours, past, feature_ND
        self.decoder = LinkPredictor(WIDTH, hidden_dim=WIDTH)

    def forward(self, source_B: Tensor, target_B: Tensor, time_B: Tensor, before: int) -> Tensor:
        """Score pairs at a time, from the interactions before a row."""
        ends_2B = torch.cat([source_B, target_B])
        partner_BK, time_BK = self.past.neighbours(ends_2B, before, self.num_neighbours)
        no_edge_feature_BK1 = torch.zeros(*partner_BK.shape, 1)
        pairs_2B = torch.stack([source_B, target_B])
        ends = self.encoder(self.feature_ND, pairs_2B, time_B, partner_BK, time_BK, no_edge_feature_BK1)
        return self.decoder(*ends)


def dygformer(past: Past, arguments: argparse.Namespace) -> Score:
    """DyGFormer: a transformer over the newest 31 neighbours of both ends."""
    widths = {"node_feat_dim": NODE_WIDTH, "edge_feat_dim": 1, "time_feat_dim": TIME_WIDTH, "output_dim": WIDTH}
    encoder = DyGFormer(**widths, channel_embedding_dim=50, max_input_sequence_length=32, time_encoder=Time2Vec)
    model = PairModel(encoder, 31, past, torch.randn(past.num_nodes, NODE_WIDTH))
    return trained("dygformer", model, arguments)


def tpnet(past: Past, arguments: argparse.Namespace) -> Score:
    """TPNet with random projections of temporal walks; without the exact N x N matrix, as advised for larger logs."""
    projections = RandomProjectionModule(
        past.num_nodes, 2, 1e-6, 0.0, use_matrix=False, num_edges=len(past.time_E), dim_factor=10
    )
    widths = {"node_feat_dim": NODE_WIDTH, "edge_feat_dim": 1, "time_feat_dim": TIME_WIDTH, "output_dim": WIDTH}
    encoder = TPNet(**widths, num_neighbors=32, random_projections=projections, time_encoder=Time2Vec)
    model = PairModel(encoder, 32, past, torch.randn(past.num_nodes, NODE_WIDTH))

    def observe(rows: slice) -> None:
        projections.update(past.source_E[rows], past.target_E[rows], past.time_E[rows].float())

    def forget() -> None:
        projections.reset_random_projections(reset_zero=False)

    return trained("tpnet", model, arguments, observe, forget)


def trained(
    name: str,
    model: PairModel,
    arguments: argparse.Namespace,
    observe: Callable[[slice], None] = lambda rows: None,
    forget: Callable[[], None] = lambda: None,
) -> Score:
    """Train on every batch before the model observes it; the returned scores are as of the end of the past."""
    past, optimizer = model.past, torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in epochs(name, arguments):
        forget()
        for rows in past.batches():
            source_B, target_B, time_B = past.source_E[rows], past.target_E[rows], past.time_E[rows]
            positive_B = model(source_B, target_B, time_B, rows.start)
            negative_B = model(source_B, random_targets(past, len(source_B)), time_B, rows.start)
            loss = log_loss(positive_B, torch.ones_like(positive_B))
            loss = loss + log_loss(negative_B, torch.zeros_like(negative_B))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            observe(rows)
    model.eval()
    return lambda source_B, target_B: model(source_B, target_B, torch.full_like(source_B, past.now), len(past.time_E))


def epochs(name: str, arguments: argparse.Namespace) -> Iterator[int]:
    """Count the epochs of the example; none but the first starts after `seconds` (of wall-clock time)."""
    started = time.perf_counter()
    for epoch in range(1, EPOCHS[name] + 1):
        if epoch > 1 and time.perf_counter() - started > arguments.seconds:
            return
        arguments.epochs = epoch
        yield epoch


def random_targets(past: Past, num: int) -> Tensor:
    """Draw nodes uniformly between the lowest and the highest number of a target."""
    return torch.randint(int(past.target_E.min()), int(past.target_E.max()) + 1, (num,))


PEERS = {
    "edgebank": edgebank,
    "edgebank-both": edgebank_both,
    "poptrack": poptrack,
    "roland": roland,
    "tpnet": tpnet,
    "dygformer": dygformer,
}


def main() -> None:
    """Read the files, train, write the scores; print CPU seconds, peak memory in MiB and epochs as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("past")
    parser.add_argument("pairs")
    parser.add_argument("scores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    arguments.epochs = None
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    started = time.process_time()
    past = Past(**{f"{end}_E": values.to_torch() for end, values in pl.read_parquet(arguments.past).to_dict().items()})
    pairs = pl.read_parquet(arguments.pairs)
    score = PEERS[arguments.peer](past, arguments)
    batches = zip(*(pairs[end].to_torch().split(BATCH) for end in ("source", "target")), strict=True)
    with torch.no_grad():
        score_P = torch.cat([score(*batch).double() for batch in batches])
    pairs.with_columns(score=score_P.numpy()).write_parquet(arguments.scores)
    spent = {"seconds": time.process_time() - started, "epochs": arguments.epochs}
    # The peak that getrusage gives is at least that of the process which started this one.
    peak_kib = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    print(json.dumps(spent | {"peak_mib": peak_kib / 1024}))


if __name__ == "__main__":
    main()
