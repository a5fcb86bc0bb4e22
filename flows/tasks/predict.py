"""Weights and the newest snapshots -> node vectors and link forecasts, under the user's own ids."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.evaluation.fitting import FittedOnce
from dyformer.evaluation.forecasts.forecast import FORECAST_COLUMNS, Forecast, Links, fit_forecast
from dyformer.evaluation.forecasts.stored_forecast import forecast_of, forecast_record
from dyformer.evaluation.promotion import FORECASTER_WITHOUT
from dyformer.experiments.settings import Experiment, as_record
from dyformer.experiments.verdict import whose_forecasts
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.graphs.windows import Horizon, next_window
from dyformer.logs.time_windows import Window
from dyformer.sampling import limits
from dyformer.sampling.pairs import node_batches
from dyformer.scoring.candidate_pairs import candidate_pairs
from dyformer.scoring.forecaster import FittedForecaster
from dyformer.scoring.interfaces import Embed, Embedder, Scorer, rows_of
from dyformer.scoring.vector_spaces import align
from flows import parallel
from flows.console import ongoing
from flows.parallel import Shared, fixed_ranges, made_of_ranges, uses_cluster
from flows.tasks.made import made, plan
from flows.tasks.methods import record_of
from flows.tasks.models import (
    TRAINING,
    Contender,
    check_trained_before,
    device,
    method_code,
    method_of,
    naming,
    open_model,
    space_of,
)
from flows.tasks.snapshots import Snapshots, open_snapshots
from flows.tasks.spaces import aligned, unrotated_vectors
from storage.artifacts.artifact import digest, lineage_of, read_bytes, read_table
from storage.artifacts.made import Contents
from storage.champions import read_champion
from storage.events.rows import ids_are_integers
from storage.events.table import node_dictionary
from storage.layout import FORECAST

if TYPE_CHECKING:
    from dyformer.training.stages import NodeVectors

LARGER = (4, 64)  # at least and at most so many times as many nodes in a range of forecasts
BYTES_OF_NODE = 16_000  # in which a node of a range is ranked
NUM_LARGER = 4  # ranges between these: nodes that share a busy partner share the walks from it, which take most time


@dataclass(frozen=True, kw_only=True)
class StoredVectors:
    """Stored weights, and the vectors that they have already given as of one step."""

    method: FittedOnce
    until: int
    vector_ND: NDArray[np.float32]

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Return the stored vectors as of `until`; as of other steps the weights embed the graph."""
        if graph.until != self.until:
            return self.method.fit(graph, seed=seed)
        return rows_of(self.vector_ND)


def write_vectors(snapshots: str, model: str, step: int | None = None, seed: int = 0, onto: str | None = None) -> str:
    """Write for every node known at `step` (the newest by default) its vector; return the address.

    The columns are side, id, step, space_id, vector. Only vectors of the same `space_id` may be compared. With `onto`,
    the address of other vectors of no later step, these are rotated into their space where the two agree. Raises
    StepOutOfRange for weights that were trained on later steps.
    """
    opened = open_snapshots(snapshots)
    step = opened.num_steps if step is None else step
    check_trained_before(opened, [model], step)
    settings, inputs = {"model": space_of(model), "seed": seed}, (model,)
    if onto is not None:
        settings, inputs = {**settings, "onto": opened.layout.relative(onto)}, (model, onto)

    code = (*TRAINING, align)
    whole = plan(opened, "vectors", until=step, settings=settings, code=code, inputs=inputs)
    if whole.is_current:
        return whole.address
    on = "cpu" if uses_cluster() else device()
    values = {"snapshots": snapshots, "model": model, "step": step, "device": on}
    shared = Shared(layout=opened.layout, whole=whole, values=values)
    batches = node_batches(opened.num_nodes(step), open_model(model)[1].model.num_targets)
    ranges = fixed_ranges(len(batches), len(batches[0]))

    def named(vectors: pl.DataFrame) -> Contents:
        _node_vectors.cache_clear()
        nodes = user_ids(opened, opened.graph(step))
        table = nodes.with_columns(
            step=pl.lit(step, pl.Int64), space_id=pl.lit(space_of(model)), vector=vectors["vector"]
        )
        check_vectors(table["vector"], model)
        return {"vectors": table} if onto is None else aligned(table, space_of(model), onto)

    with ongoing(f"vectors of {opened.dataset} as of step {step}"):
        made_of_ranges(embed_range, ranges, shared, named)
    return whole.address


def embed_range(values: Mapping[str, Any], batches: range, num_threads: int) -> pl.DataFrame:
    """Give the vectors of some batches of nodes: the column `vector`, in the order of the nodes."""
    snapshots, model, step = values["snapshots"], values["model"], values["step"]
    from dyformer.training.ranks import one_thread

    with naming(model), one_thread():
        vectors = _node_vectors(snapshots, digest(snapshots), model, digest(model), step, values["device"])
        vector_BD = np.concatenate(list(vectors.of(vectors.batches[batches.start : batches.stop], num_threads)))
    return pl.DataFrame({"vector": pl.Series(vector_BD, dtype=pl.List(pl.Float32))})


@lru_cache(maxsize=1)  # the ranges of one artifact
def _node_vectors(snapshots: str, digest: str, model: str, model_digest: str, step: int, device: str) -> "NodeVectors":
    from dyformer.training.stages import node_vectors

    weights, experiment, _ = open_model(model)
    prepared = prepare_graph(open_snapshots(snapshots).graph(step), until=step, config=experiment.graph)
    return node_vectors(prepared, weights, experiment.model, device=device)


def write_forecasts(
    snapshots: str,
    contender: Contender,
    vectors: str | None = None,
    seed: int = 0,
    k: int = 10,
    links: Links = "all",
) -> str:
    """Rank the `k` best partners of every node for the step after that of the vectors (by default the newest).

    The method is fitted on all steps up to that one, as the prequential protocol evaluates it. The artifact has the
    table `forecasts`, and with `links` "all" also the table `new` of each node's best new partners alone. A row has the
    method, the step that is forecast, and the times in UTC from and until which it holds: `valid_to` is null where
    windows have equal numbers of rows, and both are null on a log with integer steps.

    Args:
        snapshots: address of the snapshots.
        contender: the method, with its models if it has some.
        vectors: address of the vectors of its newest model.
        seed: seed of the labelled pairs.
        k: partners of each node at most.
        links: "all", "new" (pairs never linked before) or "repeat".
    """
    opened = open_snapshots(snapshots)
    fitted = _FittedMethod.of(opened, contender, vectors, seed)
    step, address = fitted.until, fitted.address()
    settings = {**fitted.settings, "k": k, "links": links}
    code = (forecast_of, candidate_pairs, next_window, *method_code(fitted.method))
    inputs = (*fitted.inputs, address)
    whole = plan(opened, "forecasts", until=step, settings=settings, code=code, inputs=inputs)
    kinds: tuple[Links, ...] = ("all", "new") if links == "all" else (links,)
    own = {"snapshots": snapshots, "contender": contender, "vectors": vectors, "seed": seed, "fitted": address}
    ranges = forecast_ranges(opened.num_nodes(step))
    values = {**own, "k": k, "kinds": kinds}
    shared = Shared(layout=opened.layout, whole=whole, values=values, at_once=ranked_at_once(len(ranges[0])))

    def named(ranked: pl.DataFrame) -> Contents:
        _stored_forecast.cache_clear()  # the graph and its features take more memory than the rows
        nodes, validity = user_ids(opened, opened.graph(step)), _validity(opened, contender.title, step)
        contents: dict[str, pl.DataFrame | bytes] = {
            "forecasts" if kind == links else kind: _named(ranked.filter(links=kind).drop("links"), nodes, validity)
            for kind in kinds
        }
        record = read_bytes(address, FORECAST)
        if (heads := json.loads(record)["fitted"]) is not None:
            gains = FittedForecaster.from_record(heads).gains()
            contents["inputs"] = pl.DataFrame({"inputs": list(gains), "gain": list(gains.values())})
        return {**contents, FORECAST: record}

    with ongoing(f"forecasts of {opened.dataset} as of step {step}"):
        made_of_ranges(rank_range, ranges, shared, named)
    return whole.address


def forecast_ranges(num_nodes: int) -> list[range]:
    """Split the nodes of a forecast: the ranges of a graph of more nodes are larger, up to LARGER."""
    return fixed_ranges(num_nodes, times=int(np.clip(-(-num_nodes // (NUM_LARGER * parallel.RANGE_NODES)), *LARGER)))


def ranked_at_once(num_nodes: int) -> int:
    """Give the number of ranges of so many nodes that are ranked at the same time: together in half of the memory."""
    return min(limits.usable_cpus(), limits.usable_memory() // 2 // (BYTES_OF_NODE * max(num_nodes, 1)))


def rank_range(values: Mapping[str, Any], nodes: range, num_threads: int) -> pl.DataFrame:
    """Rank the best partners of some nodes: the columns of FORECAST_SCHEMA, and `links`, the kind of the pairs."""
    inputs = (values["snapshots"], values["fitted"], *([] if values["vectors"] is None else [values["vectors"]]))
    own = (values[name] for name in ("snapshots", "contender", "vectors", "seed", "fitted"))
    forecast = _stored_forecast(*own, tuple(map(digest, inputs)))
    tables = forecast.tables(values["k"], values["kinds"], query_A=np.arange(nodes.start, nodes.stop))
    return pl.concat([table.with_columns(links=pl.lit(kind)) for kind, table in tables.items()])


@lru_cache(maxsize=1)  # the ranges of one artifact
def _stored_forecast(
    snapshots: str, contender: Contender, vectors: str | None, seed: int, fitted: str, digests: tuple[str, ...]
) -> Forecast:
    return _FittedMethod.of(open_snapshots(snapshots), contender, vectors, seed).forecast(fitted)


class _FittedMethod(NamedTuple):
    """A method for a forecast, fitted and calibrated once, whatever number and kind of links are wanted of it."""

    opened: Snapshots
    contender: Contender
    method: Embedder | Scorer
    experiment: Experiment
    vectors: str | None
    seed: int

    @classmethod
    def of(cls, opened: Snapshots, contender: Contender, vectors: str | None, seed: int) -> "_FittedMethod":
        """Open the method of a contender. Raises StepOutOfRange if it was trained on later steps."""
        check_trained_before(opened, contender.models, _until(opened, vectors))
        return cls(opened, contender, *method_of(opened, contender), vectors, seed)

    @property
    def until(self) -> int:
        """The newest step that it reads, that of the vectors."""
        return _until(self.opened, self.vectors)

    @property
    def settings(self) -> dict[str, Any]:
        """What it depends on."""
        models = list(map(space_of, self.contender.models))
        own = {"method": self.contender.title, "models": models, "seed": self.seed, "directed": self.opened.directed}
        # Weights stand for a method that has some; another one may have other settings under its title.
        record = {} if models else {"record": record_of(self.method)}
        return {**own, **record, **as_record(self.experiment, "graph")}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Addresses that it is made of."""
        return *self.contender.models, *([] if self.vectors is None else [self.vectors])

    def address(self) -> str:
        """Fit it, unless it is stored; return its address."""

        def fit() -> Contents:
            past, method = self._past(), self._with_vectors()
            with ongoing(f"fit {self.contender.title} to {self.opened.dataset} as of step {self.until}"):
                forecast = fit_forecast(
                    self.contender.title, method, past, seed=self.seed, candidates_of=candidate_pairs
                )
            return {FORECAST: json.dumps(forecast_record(forecast, method, seed=self.seed)).encode()}

        code = (fit_forecast, forecast_record, candidate_pairs, *method_code(self.method))
        return made(
            self.opened,
            "fitted",
            until=self.until,
            settings=self.settings,
            make=fit,
            code=code,
            inputs=self.inputs,
        )

    def forecast(self, address: str) -> Forecast:
        """Read it."""
        record, past, method = json.loads(read_bytes(address, FORECAST)), self._past(), self._with_vectors()
        vectors_ND = None
        if record["reads_vectors"] and isinstance(method, Embedder):
            vectors_ND = method.fit(past, seed=self.seed)(np.arange(len(past.history.node_N)))
        return forecast_of(record, past, vectors_ND, candidate_pairs)

    def _past(self) -> PreparedGraph:
        graph = self.opened.graph(self.until, interactions=True)
        return prepare_graph(graph, until=self.until, config=self.experiment.graph)

    def _with_vectors(self) -> Embedder | Scorer:
        if not isinstance(self.method, FittedOnce) or self.vectors is None:
            return self.method
        return StoredVectors(method=self.method, until=self.until, vector_ND=read_vectors(self.vectors))


def _until(opened: Snapshots, vectors: str | None) -> int:
    """Give the step of vectors, by default the newest."""
    step = opened.num_steps if vectors is None else lineage_of(vectors).until
    assert step is not None
    return step


def read_vectors(address: str) -> NDArray[np.float32]:
    """Return the vectors `[N, D]` of an artifact of write_vectors, in the model's own space."""
    vectors = unrotated_vectors(address)
    check_vectors(vectors, address)
    return vectors.explode().to_numpy().reshape(len(vectors), -1)


def check_vectors(vectors: pl.Series, origin: str) -> None:
    """Raise ValueError unless all vectors are of finite 32-bit numbers and of one width."""
    widths = vectors.list.len().unique() if isinstance(vectors.dtype, pl.List) else pl.Series([])
    if vectors.dtype != pl.List(pl.Float32) or vectors.null_count() or len(widths) != 1 or widths[0] == 0:
        raise InvalidInput(f"{origin}: expected vectors of 32-bit numbers and of one width; train or write them again")
    if not vectors.explode().is_finite().fill_null(False).all():
        raise InvalidInput(f"the vectors of {origin} are not finite: its weights cannot be used, train again")


def user_ids(opened: Snapshots, graph: DynamicGraph) -> pl.DataFrame:
    """Return side and id, as the user writes them, of the graph's nodes in their order."""
    dictionary = node_dictionary(opened.layout, opened.dataset, opened.version)
    nodes = pl.DataFrame({"node": graph.node_N}).join(dictionary, on="node", how="left", maintain_order="left")
    # Only this graph's nodes decide, so that nodes which come later change no earlier export.
    kind = pl.Int64 if ids_are_integers(nodes) else pl.String
    return nodes.select("side", pl.col("id").cast(kind))


def horizon_after(opened: Snapshots, step: int) -> Horizon:
    """Give the window after a step, in the unit of the log's times."""
    first, end = opened.time("start_time", 1), opened.time("end_time", step)
    return next_window(first, end, step, Window.parse(opened.window), opened.time_unit)


def _validity(opened: Snapshots, method: str, step: int) -> dict[str, pl.Expr]:
    """Give the columns of a forecast as of a step that say whose it is and when it holds."""
    horizon = horizon_after(opened, step)
    times = {"valid_from": horizon.start, "valid_to": horizon.end}
    if opened.time_unit == "step":
        times = dict.fromkeys(times)
    return {
        "method": pl.lit(method),
        "step": pl.lit(step + 1, pl.Int64),
        **{name: pl.lit(time, pl.Int64).cast(pl.Datetime("us")) for name, time in times.items()},
    }


def _named(links: pl.DataFrame, nodes: pl.DataFrame, validity: Mapping[str, pl.Expr]) -> pl.DataFrame:
    own = nodes.with_row_index("node").with_columns(pl.col("node").cast(pl.Int64))
    partner = own.rename({"node": "partner", "side": "partner_side", "id": "partner_id"})
    return (
        links.join(own, on="node", how="left", maintain_order="left")
        .join(partner, on="partner", how="left", maintain_order="left")
        .select("side", "id", "rank", "partner_side", "partner_id", *FORECAST_COLUMNS)
        .with_columns(**validity)
    )


NUM_SHOWN = 10
SHOWN = ("id", "partner_id", "probability", "score", "linked_before")  # a score divides equal probabilities


def write_first_forecasts(snapshots: str, seed: int = 0) -> str | None:
    """Write the forecasts of the forecaster without vectors, or return None for a dataset that has a champion.

    They are not published: only what has been compared with the baselines is. Where this method becomes champion, they
    are the ones that it publishes, and are not made again.
    """
    opened = open_snapshots(snapshots)
    champion, _ = read_champion(opened.layout, opened.dataset)
    if champion is not None:
        return None
    return write_forecasts(snapshots, Contender(title=FORECASTER_WITHOUT), seed=seed)


def first_rows(forecasts: str) -> tuple[str, pl.DataFrame]:
    """Return a title and the NUM_SHOWN pairs of the highest scores, each once.

    The title has the method, the dates and what the forecasts are not yet. In a log with two sides the source is `id`.
    """
    table = read_table(forecasts, "forecasts")
    ends = (pl.concat_str("side", pl.lit(" "), "id"), pl.concat_str("partner_side", pl.lit(" "), "partner_id"))
    # A pair is a forecast of each of its ends, with one score.
    pairs = table.unique([pl.min_horizontal(ends), pl.max_horizontal(ends), "score"], keep="first", maintain_order=True)
    is_swapped = pl.col("side") > pl.col("partner_side")
    source = {
        "id": pl.when(is_swapped).then("partner_id").otherwise("id"),
        "partner_id": pl.when(is_swapped).then("id").otherwise("partner_id"),
    }
    rows = (
        pairs.sort("score", descending=True, maintain_order=True).head(NUM_SHOWN).with_columns(**source).select(SHOWN)
    )
    not_yet = "before any training: not yet compared with other methods, so not published"
    return ", ".join(filter(None, ("first forecasts", whose_forecasts(table), not_yet))), rows
