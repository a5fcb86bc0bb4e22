"""Weights and the newest snapshots -> node vectors and link forecasts, under the user's own ids."""

import json
from dataclasses import asdict

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.evaluation.protocols import forecast_decoder
from dyformer.experiments.settings import Experiment
from dyformer.graphs.pagerank import TABLE_TOP_K, pagerank_table
from dyformer.graphs.prepared_graph import PreparedGraph, one_step_on, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, to_tables
from dyformer.sampling.pairs import Pairs
from dyformer.scoring.decoder import LinkDecoder
from dyformer.scoring.top_links import MAX_NODES, decoder_nodes, last_active, top_links
from dyformer.training.checkpoint import Weights
from dyformer.training.stages import embed
from flows.tasks.models import device, open_model, space_of
from flows.tasks.snapshots import Snapshots, open_snapshots
from storage.artifacts.artifact import is_current, lineage_of, read_table, write_artifact
from storage.events.rows import ids_are_integers
from storage.events.table import node_dictionary
from storage.layout import DECODER
from storage.queries import candidates


def write_vectors(snapshots: str, model: str, step: int | None = None, seed: int = 0) -> str:
    """Return every node known at `step` (the newest by default) its vector: side, id, step, space_id, vector.

    Only vectors of the same `space_id` may be compared.
    """
    opened = open_snapshots(snapshots)
    step = opened.num_steps if step is None else step
    weights, experiment, trained = open_model(model)
    settings = {"model": trained.settings_hash, "trained_until": trained.until}
    lineage = opened.lineage("vectors", until=step, settings=settings, inputs=(model,))
    keys = {"version": opened.version, "until": step, "settings": lineage.settings_hash, "seed": seed}
    address = opened.layout.vectors(opened.dataset, **keys)
    if is_current(address, lineage):
        return address
    graph = opened.graph(step)
    nodes = user_ids(opened, graph)
    table = nodes.with_columns(
        step=pl.lit(step, pl.Int64),
        space_id=pl.lit(space_of(model)),
        vector=pl.Series(_vectors(graph, weights, experiment), dtype=pl.List(pl.Float32)),
    )
    return write_artifact(address, {"vectors": table}, lineage)


def write_forecasts(
    snapshots: str, model: str, vectors: str, seed: int = 0, k: int = 10, num_nodes: int | None = None
) -> str:
    """Rank the `k` most probable new partners of every node for the step after that of the vectors.

    The decoder is fitted to the links of the vectors' step, from vectors as of the step before, and applied to
    `vectors`. Pairs that were linked before are left out. With `num_nodes`, only the nodes linked last get some.
    """
    opened = open_snapshots(snapshots)
    given = lineage_of(vectors)
    step = given.until
    assert step is not None
    assert opened.layout.relative(model) in given.inputs, f"{vectors} holds vectors of another model than {model}"
    weights, experiment, trained = open_model(model)
    settings = {"model": trained.settings_hash, "decoder": experiment.decoder, "k": k, "seed": seed}
    settings |= {} if num_nodes is None else {"num_nodes": num_nodes}
    lineage = opened.lineage("forecasts", until=step, settings=settings, inputs=(model, vectors))
    keys = {"version": opened.version, "until": step, "settings": lineage.settings_hash, "seed": seed}
    address = opened.layout.forecasts(opened.dataset, **keys)
    if is_current(address, lineage):
        return address
    graph = opened.graph(step)
    before = prepare_graph(graph, until=step - 1, config=experiment.graph)
    decoders = _decoders(graph, before, weights, experiment, seed)
    vectors_ND = read_vectors(vectors)
    query_A = None if num_nodes is None else last_active(graph, num_nodes)
    is_large = graph.snapshots[-1].num_nodes > MAX_NODES
    pairs = candidate_pairs(one_step_on(before, graph), query_A) if is_large else None
    links = top_links(vectors_ND, decoders[experiment.decoder], graph, k=k, candidates=pairs, query_A=query_A)
    contents = {"forecasts": _named(links, user_ids(opened, graph), step + 1), DECODER: to_json(decoders["paper"])}
    return write_artifact(address, contents, lineage)


def read_vectors(address: str) -> NDArray[np.float32]:
    """Return the vectors `[N, D]` of an artifact of write_vectors."""
    vectors = read_table(address, "vectors")["vector"]
    return vectors.explode().to_numpy().reshape(len(vectors), -1)


def candidate_pairs(prepared: PreparedGraph, query_A: NDArray[np.int64] | None = None) -> Pairs:
    """Return the pairs to score on a graph too large for all pairs: near by PageRank, or popular two hops away."""
    graph, union = prepared.history, prepared.union
    table = pagerank_table(union, top_k=TABLE_TOP_K, teleport=prepared.config.teleport, nodes=query_A)
    found = candidates(
        to_tables(graph)["edges"],
        table,
        bipartite=len(np.unique(graph.side_N)) > 1,
        nodes=None if query_A is None else pl.Series(query_A),
    )
    return found["node"].to_numpy(), found["partner"].to_numpy()


def user_ids(opened: Snapshots, graph: DynamicGraph) -> pl.DataFrame:
    """Return side and id, as the user writes them, of the graph's nodes in their order."""
    dictionary = node_dictionary(opened.layout, opened.dataset, opened.version)
    nodes = pl.DataFrame({"node": graph.node_N}).join(dictionary, on="node", how="left", maintain_order="left")
    # Only this graph's nodes decide, so that nodes which come later change no earlier export.
    kind = pl.Int64 if ids_are_integers(nodes) else pl.String
    return nodes.select("side", pl.col("id").cast(kind))


def to_json(decoder: LinkDecoder) -> bytes:
    """Write a decoder as JSON."""
    plain = {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in asdict(decoder).items()
    }
    return json.dumps(plain).encode()


def _decoders(
    graph: DynamicGraph, before: PreparedGraph, weights: Weights, experiment: Experiment, seed: int
) -> dict[str, LinkDecoder]:
    """Fit the paper's decoder and the experiment's; a large step uses only the links between a part of the nodes."""
    step = graph.num_steps
    node_B = decoder_nodes(graph, step, num_targets=experiment.model.num_targets, seed=seed)
    before_ND = embed(before, weights, experiment.model, device=device(), node_B=node_B)
    return {
        kind: forecast_decoder(before_ND, graph, step, seed, kind, node_B) for kind in ("paper", experiment.decoder)
    }


def _vectors(graph: DynamicGraph, weights: Weights, experiment: Experiment) -> NDArray[np.float32]:
    prepared = prepare_graph(graph, until=graph.num_steps, config=experiment.graph)
    return embed(prepared, weights, experiment.model, device=device())


def _named(links: pl.DataFrame, nodes: pl.DataFrame, step: int) -> pl.DataFrame:
    own = nodes.with_row_index("node").with_columns(pl.col("node").cast(pl.Int64))
    partner = own.rename({"node": "partner", "side": "partner_side", "id": "partner_id"})
    return (
        links.join(own, on="node", how="left", maintain_order="left")
        .join(partner, on="partner", how="left", maintain_order="left")
        .select("side", "id", "rank", "partner_side", "partner_id", "score", step=pl.lit(step, pl.Int64))
    )
