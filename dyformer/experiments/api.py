"""A file or a data frame -> checked log -> snapshots -> fitted model, and a table of methods: no store, no server.

N nodes    D width of a vector    P pairs    A nodes to rank partners for
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.evaluation.fitting import FORECASTER_WITH, FittedOnce, fitted_vectors, model_steps
from dyformer.evaluation.forecasts.forecast import FORECAST_COLUMNS, Forecast, Links, check_distinct, fit_forecast
from dyformer.evaluation.forecasts.stored_forecast import (
    can_store,
    forecast_from,
    forecast_record,
    history_from,
    history_tables,
)
from dyformer.evaluation.labelled_steps import sampled_steps
from dyformer.evaluation.protocols import prequential, protocol_of
from dyformer.evaluation.protocols.protocol import Job, Protocol, Result, chosen_units, evaluated
from dyformer.evaluation.seasons import period_before
from dyformer.experiments.arguments import (
    ENDS,
    as_path,
    check_device,
    check_process,
    has_text_ids,
    id_texts,
    one_of,
    pair_frame,
    paths_of,
    reported,
    settings_of,
    several,
    typed_ids,
    whole,
)
from dyformer.experiments.methods import BASELINES, Method, Variation, capped, named_methods, own_errors
from dyformer.experiments.saved_models import Parts, read_model, write_model
from dyformer.experiments.settings import Experiment
from dyformer.experiments.tables import column_table, score_table
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, build_snapshots, prefix, summary
from dyformer.graphs.windows import next_window
from dyformer.logs.compression import local_file
from dyformer.logs.counts import counted
from dyformer.logs.datasets import OWN_LOG_WINDOW
from dyformer.logs.events import check_bad_rows, read_events
from dyformer.logs.plan import Declared, ReadPlan
from dyformer.logs.records import as_frame, frame_file
from dyformer.logs.sniffing import sniff_plan
from dyformer.logs.time_windows import TimeUnit, Window
from dyformer.scoring.interfaces import Embed, Embedder
from dyformer.scoring.retrieval import MAX_NODES
from dyformer.training.checkpoint import Progress

if TYPE_CHECKING:
    import pandas as pd

    from dyformer.training.stored_weights import TrainedDyFormer

IN_MEMORY = ("paper", "prequential", "forecasts")  # protocols that read no more than the snapshots of a log
VALIDITY = ("valid_from", "valid_to")  # of a forecast
NUM_NAMED = 5  # at most so many unknown ids are named in a message


@dataclass(frozen=True, kw_only=True, repr=False)
class Model:
    """A method fitted as of one step: vectors of the known nodes, and the forecast of the next step."""

    graph: "Graph"  # the graph as of the step on which the model was fitted
    forecast: Forecast
    method: str  # whose forecast it is
    vector_ND: NDArray[np.floating] | None = None  # None for a method that scores pairs without vectors
    record: Mapping[str, Any] | None = None  # fitted values as JSON; None for a user's own scorer
    scorer: Method | None = None  # what scores pairs, where vectors do not

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what `save` stores, because fitted functions cannot be pickled. Raises ValueError."""
        return _model_of, _parts_of(self)

    def save(self, folder: str | Path) -> None:
        """Store the model in a folder: JSON, Parquet and safetensors, no pickle; `dyformer.load` reads it.

        A model that is there is replaced. Raises ValueError for a user's own scorer and for a folder of other files.
        """
        check_process()
        write_model(as_path("folder", folder), "steps", _parts_of(self))

    def __repr__(self) -> str:
        width = "" if self.vector_ND is None else f", width {self.vector_ND.shape[1]}"
        return f"Model of {self.graph}{width}"

    def vectors(self) -> pl.DataFrame:
        """Give every node's vector: id, vector; on a log with two id spaces also side. Raises ValueError."""
        check_process()
        if self.vector_ND is None:
            raise InvalidInput("this method scores pairs without vectors: fit one that has them, such as DyFormer")
        vector = pl.Series("vector", self.vector_ND.astype(np.float32))
        return _with_sides(self.graph, self.graph.nodes.with_columns(vector))

    def scores(self, pairs: "pl.DataFrame | pd.DataFrame | Sequence[tuple[Any, Any]]") -> pl.DataFrame:
        """Score pairs for the next step: source, target, probability, in the order given.

        A probability is that of a link in the next step, calibrated on the pairs that `top` chooses from.

        Args:
            pairs: a frame with the columns source and target, or a sequence of pairs of ids.

        Raises:
            ValueError: a missing column, ids that the log did not have by the model's step, a pair of a node with
                itself, or an error of your own method.
        """
        check_process()
        frame = pair_frame(pairs)
        target_side = len(set(self.graph.dynamic.side_N.tolist())) - 1
        source_P = self.graph.numbers_of(frame["source"], side=0)
        target_P = self.graph.numbers_of(frame["target"], side=target_side)
        check_distinct(self.graph.nodes["id"], source_P, target_P)
        with self._scoring():
            probability_P = self.forecast.probability(source_P, target_P)
        ids = self.graph.nodes["id"]
        return pl.DataFrame(
            {"source": ids.gather(source_P), "target": ids.gather(target_P), "probability": probability_P}
        )

    def top(self, k: int = 10, ids: Iterable[Any] | None = None, *, links: Links = "all") -> pl.DataFrame:
        """Rank each node's best partners: id, rank (from 1), partner, FORECAST_COLUMNS, method, valid_from, valid_to.

        `probability` is that of a link in the next step, and `score` orders pairs of equal probability. `evidence` is
        "none", "one", "few" (2 to 4) or "many" past partners of the node. `reasons` are the inputs that raise the score
        of a pair most, in words (docs/forecasts.md). `method` made the forecast, which holds from `valid_from` until
        `valid_to`: the end is null where windows have equal counts of rows, and both are where the log has integer
        steps. On a log with two id spaces, a partner is of the other side, and a column `side` is added.

        Args:
            k: partners of each node at most.
            ids: the nodes to rank partners for, by default all; with two id spaces, ids of the sources.
            links: "all", "new" (only pairs never linked before), or "repeat".

        Raises:
            ValueError: an unknown id, k below 1, other `links`, more than 50,000 nodes, or an error of your own method.
        """
        check_process()
        k = whole("k", k, least=1)
        one_of("links", links, get_args(Links))
        if len(self.graph.nodes) > MAX_NODES:
            raise InvalidInput(
                f"{len(self.graph.nodes):,} nodes are too many to compare all pairs (up to {MAX_NODES:,}): use "
                f"model.scores(pairs), or the command `dyformer run`, which chooses candidates"
            )
        texts = None if ids is None else id_texts(ids)
        query_A = None if texts is None else np.unique(self.graph.numbers_of(texts, side=0))
        with self._scoring():
            best = self.forecast.top(k, links=links, query_A=query_A)
        named = self.graph.nodes[best["node"]].with_columns(
            best["rank"],
            *(best[name] for name in FORECAST_COLUMNS),
            partner=self.graph.nodes["id"].gather(best["partner"]),
            method=pl.lit(self.method),
            **self.graph.next_window(),
        )
        order = [*self.graph.nodes.columns, "rank", "partner", *FORECAST_COLUMNS, "method", *VALIDITY]
        return _with_sides(self.graph, named.select(order))

    def _scoring(self) -> AbstractContextManager[None]:
        if self.scorer is None:
            return nullcontext()
        return own_errors(self.method, self.scorer, f"step {self.graph.num_steps + 1}")


@dataclass(frozen=True, kw_only=True, repr=False)
class Graph:
    """The snapshots of a log, and the user's ids of its nodes."""

    dynamic: DynamicGraph
    nodes: pl.DataFrame  # side, id; row n is node n of `dynamic`
    time_unit: TimeUnit
    window: Window  # by which the log was divided

    def __repr__(self) -> str:
        return f"Graph of {counted(self.num_steps, 'step')} and {counted(len(self.nodes), 'node')}"

    @property
    def num_steps(self) -> int:
        """The number of snapshots."""
        return self.dynamic.num_steps

    def summary(self) -> pl.DataFrame:
        """Count each snapshot's interactions, edges, nodes and new edges, one row a step."""
        check_process()
        return summary(self.dynamic).with_columns(pl.col("start", "end").cast(_type_of_times(self.time_unit)))

    def until(self, step: int) -> "Graph":
        """Give the graph as of a step: no later snapshot, and no node that came later. Raises ValueError."""
        check_process()
        dynamic = prefix(self.dynamic, whole("step", step, least=1))
        return replace(self, dynamic=dynamic, nodes=self.nodes.head(len(dynamic.node_N)))

    def next_window(self) -> dict[str, pl.Expr]:
        """Give the times from and until which a forecast of the next step holds, by the names of VALIDITY."""
        snapshots, times = self.dynamic.snapshots, (None, None)
        if self.time_unit != "step":
            first, end = snapshots[0].start_time, snapshots[-1].end_time
            times = next_window(first, end, len(snapshots), self.window, self.time_unit)
        type_of_times = pl.Datetime("us", "UTC")
        return {name: pl.lit(time, pl.Int64).cast(type_of_times) for name, time in zip(VALIDITY, times, strict=True)}

    def numbers_of(self, ids: pl.Series, *, side: int) -> NDArray[np.int64]:
        """Give the node numbers of ids, which may be integers or texts. Raises ValueError that names unknown ids."""
        side_nodes = self.nodes.with_row_index("number").filter(pl.col("side") == ENDS[side])
        numbers = dict(zip(side_nodes["id"].cast(pl.String), side_nodes["number"], strict=True))
        texts = ids.cast(pl.String).to_list()
        unknown = list(dict.fromkeys(str(text) for text in texts if text not in numbers))
        if unknown:
            rest = f" and {len(unknown) - NUM_NAMED} more" if len(unknown) > NUM_NAMED else ""
            raise InvalidInput(
                f"unknown ids: {', '.join(unknown[:NUM_NAMED])}{rest}; the log has {len(side_nodes)} "
                f"{'nodes' if len(side_nodes) == len(self.nodes) else ENDS[side] + 's'} by step {self.num_steps}"
            )
        return np.array([numbers[text] for text in texts], dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class GraphLog:
    """A graph in memory, as protocols read a log."""

    of: Graph
    dataset: str = "log"

    @property
    def num_steps(self) -> int:
        """Number of snapshots."""
        return self.of.num_steps

    @property
    def directed(self) -> bool:
        """Whether the order of source and target matters."""
        return self.of.dynamic.directed

    def graph(self, until: int, *, interactions: bool = False) -> DynamicGraph:
        """Give the snapshots up to `until`; those in memory have their interactions."""
        return prefix(self.of.dynamic, until)


@dataclass(frozen=True, kw_only=True, repr=False)
class Log:
    """The usable rows of an interaction log, and those that were refused."""

    events: pl.DataFrame  # source, target (the user's ids), time, weight, in the order of the log
    quarantine: pl.DataFrame  # file, line, reason, raw
    plan: ReadPlan  # how the rows were read

    def __repr__(self) -> str:
        return f"Log of {counted(len(self.events), 'row')}, {len(self.quarantine):,} more in quarantine"

    def snapshots(self, window: str | Window = OWN_LOG_WINDOW) -> Graph:
        """Divide the log into snapshots: "7d", "12 equal" (equal counts), "calendar 1mo in Europe/Berlin".

        Raises WindowError (a ValueError) for a window that does not fit the log.
        """
        check_process()
        target_side = int(self.plan.bipartite)
        nodes = pl.concat(
            self.events.select(side=pl.lit(ENDS[side]), id=end)
            for end, side in zip(ENDS, (0, target_side), strict=True)
        ).unique(maintain_order=True)
        numbers = nodes.with_row_index("number")
        columns: dict[str, Any] = {"time": self.events["time"].to_physical(), "weight": self.events["weight"]}
        for end, side in zip(ENDS, (0, target_side), strict=True):
            side_numbers = numbers.filter(pl.col("side") == ENDS[side])
            joined = self.events.select(id=end).join(side_numbers, on="id", how="left", maintain_order="left")
            columns |= {end: joined["number"].cast(pl.Int64)}
            columns |= {f"{end}_side": pl.repeat(side, len(joined), dtype=pl.Int8, eager=True)} if target_side else {}
        parsed = window if isinstance(window, Window) else Window.parse(str(window))
        built = build_snapshots(pl.DataFrame(columns), parsed, self.plan.time_unit)
        dynamic = replace(built, directed=self.plan.directed)
        return Graph(dynamic=dynamic, nodes=nodes[dynamic.node_N], time_unit=self.plan.time_unit, window=parsed)


def read_log(  # noqa: PLR0913 - the declarations that a log may need
    log: Any,
    *,
    source: str | int | None = None,
    target: str | int | None = None,
    time: str | int | None = None,
    weight: str | int | None = None,
    time_unit: TimeUnit | None = None,
    separator: str | None = None,
    comment_marks: str = "%#",
    bipartite: bool | None = None,
    directed: bool | None = None,
    max_bad: float = 0.01,
) -> Log:
    """Read an interaction log: files of this machine, a data frame, an Arrow stream, or a list of tuples.

    Files are CSV and other delimited text, JSON lines or Parquet, plain or compressed. Columns and units that are not
    given are guessed; `log.plan` holds them. Ids may be integers or texts: integers of 64 bits stay integers.

    Args:
        log: a path, several paths with rows of one form, a polars (also lazy) or pandas frame, any object with
            `__arrow_c_stream__` (a pyarrow table, a DuckDB relation), or tuples (source, target, time[, weight]).
        source: column of the source, by name or position from 0; likewise target, time and weight.
        target: column of the target.
        time: column of the time.
        weight: column of the weight; without one it is 1. Snapshots count rows, and the forecasters alone read it.
        time_unit: "s", "ms", "us", "ns" (since the epoch), "iso", "day-first", "month-first" or "step".
        separator: the character between the fields of delimited text; " " stands for any number of spaces and tabs.
        comment_marks: characters that begin a comment line above the rows, or anywhere in a log without a header.
        bipartite: two id spaces: source 7 and target 7 are different nodes.
        directed: whether the order of source and target matters, as it does by default.
        max_bad: fraction of unusable rows that is accepted; they are in `log.quarantine`.

    Raises:
        LogError: (a ValueError) no such file or column, no usable row, or too many bad rows.
    """
    check_process()
    paths = paths_of(log)
    frame = as_frame(log) if paths is None else None
    files = [local_file(path) for path in paths or ()] if frame is None else [frame_file(frame)]
    declared = Declared(
        source=source,
        target=target,
        time=time,
        weight=weight,
        time_unit=time_unit,
        separator=separator,
        comment_marks=comment_marks,
        bipartite=bipartite,
        directed=directed,
    )
    plan = sniff_plan(files, declared)
    result = read_events(files, plan)
    check_bad_rows(result.quarantine, result.num_read, max_bad, plan.row_name)
    are_texts = frame is not None and has_text_ids(frame, plan)
    columns = [*typed_ids(result.events, are_texts=are_texts), pl.col("time").cast(_type_of_times(plan.time_unit))]
    return Log(events=result.events.select(*columns, "weight"), quarantine=result.quarantine, plan=plan)


def fit(
    graph: Graph,
    method: str | Method = "DyFormer",
    *,
    until: int | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[str], None] | None = None,
) -> Model:
    """Fit a method on the steps up to `until`, for the forecast of the step after it.

    A method with vectors is read by the forecaster, whose heads are fitted on the links of the newest steps, from
    vectors as of the step before (where days of a week recur, of one a week before). DyFormer is trained up to the step
    `until` - 1, and up to one or two steps before that, as `dyformer run` does; any other method with vectors is fitted
    as of each of these steps.

    Args:
        graph: snapshots of a log.
        method: a title of METHODS, such as "DyFormer", or an object with `fit(graph, *, seed)` or
            `fit_pairs(graph, labelled)`.
        until: the newest step to read; by default the newest of the graph.
        settings: changes such as `{"model.num_layers": 4, "pretrain": None}`.
        seed: seed of training and of negative sampling.
        device: where DyFormer is trained: "cpu", "cuda" or "cuda:1".
        progress: called with a sentence after each epoch of DyFormer and before the forecaster is fitted, as in
            `progress=print`.

    Raises:
        ValueError: an unknown setting, method or device, too short a history, or an error of your own method.
    """
    check_process()
    _check_graph(graph)
    seed = whole("seed", seed, least=0)
    say = reported(progress)
    check_device(device)
    known = graph if until is None else graph.until(until)
    step, dynamic = known.num_steps, known.dynamic
    experiment = Experiment().changed(settings_of(settings))
    [(title, named)] = named_methods([method]).items()
    chosen = _with_settings(title, named, experiment, device, say)
    if step < 3:
        raise InvalidInput(
            f"the graph has {counted(step, 'step')}: expected at least 3 to fit a method on, or choose short windows"
        )
    past = prepare_graph(dynamic, until=step, config=experiment.graph)
    sampled_steps(past, seed=seed)  # too few links are refused before any training
    if isinstance(chosen, _Training):
        trained = [
            chosen.trained(prepare_graph(dynamic, until=end, config=past.config), seed=seed)
            for end in model_steps(step - 1, period_before(dynamic, step + 1))
        ]
        weights = {end: model_weights for model in trained for end, model_weights in model.weights.items()}
        chosen = replace(trained[-1], weights=weights)
    if isinstance(chosen, Embedder):
        chosen = FittedOnce(method=chosen)
    with own_errors(title, named, f"step {step + 1}"):
        vector_ND = fitted_vectors(title, chosen, past, seed) if isinstance(chosen, FittedOnce) else None
        say(f"{title}: fitting the forecast of step {step + 1}")
        forecast = fit_forecast(title, chosen, past, seed=seed)
    # The same title as in tables: the decoder of the vectors alone publishes nothing.
    forecaster = title if vector_ND is None else FORECASTER_WITH + title
    record = None
    if can_store(forecast, named):
        description = {"method": forecaster, "time_unit": graph.time_unit, "window": str(graph.window)}
        record = forecast_record(forecast, named, seed=seed) | description
    return Model(
        graph=known,
        vector_ND=vector_ND,
        forecast=forecast,
        method=forecaster,
        record=record,
        scorer=named if vector_ND is None else None,
    )


def load(folder: str | Path) -> Model:
    """Read a model that `save` stored. Raises ValueError for a folder without one, or of another version."""
    check_process()
    return _model_of(*read_model(as_path("folder", folder), "steps"))


def evaluate(  # noqa: PLR0913 - what a comparison may vary
    graph: Graph,
    methods: "Sequence[str | Method] | Mapping[str, Method] | None" = None,
    *,
    steps: Iterable[int] | int | None = None,
    seeds: Iterable[int] = (0,),
    settings: Mapping[str, Any] | None = None,
    protocol: str | Protocol = "paper",
    ks: Iterable[int] | int | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] | None = None,
) -> pl.DataFrame:
    """Compare methods on the same pairs, as `dyformer benchmark` does, the best first.

    Every method is fitted on the steps before a forecast one. A method with vectors has two rows: the paper's decoder,
    and the forecaster that reads them; "forecasts" has the second alone.

    The columns of the protocol "paper", AUC in percent: method; micro (null for one step) and macro; num_pairs; low and
    high, the 95 % interval of macro; difference, difference_low and difference_high, macro less that of the best of the
    built-in baselines in the table, with its interval; the same on new pairs as new_...; num_seeds.

    Those of the others: method; num_seeds; for each column of the protocol's table its value, such as mrr and
    precision_at_10, with the ends of its 95 % interval as mrr_low and mrr_high, and mrr_num, the pairs or queries.
    mrr_difference is that to the best built-in baseline in the table.

    Args:
        graph: snapshots of a log.
        methods: titles of METHODS, objects with `fit` or `fit_pairs`, or a mapping from titles to such objects; by
            default those of a benchmark, which trains DyFormer for each step and takes minutes.
        steps: the steps to forecast; by default all from 3 on with enough links.
        seeds: seeds of training and of the pairs that are drawn.
        settings: changes of DyFormer's settings.
        protocol: "paper" (links against random pairs), "prequential" (ranks among hard candidates) or "forecasts" (each
            node's most probable partners, against the links that came), or a `Protocol` of your own that reads no more
            than snapshots.
        ks: numbers of places; for each one a column hits_at_k, the fraction of links among the first k. Of the
            prequential protocol alone.
        device: where DyFormer is trained: "cpu", "cuda" or "cuda:1".
        progress: called with a sentence after each epoch of DyFormer and before each method is evaluated on a step, as
            in `progress=print`.

    Raises:
        ValueError: an unknown setting, method, protocol or device, a step out of range, no step with enough links, or
            an error of your own method.
    """
    check_process()
    _check_graph(graph)
    say = reported(progress)
    check_device(device)
    chosen = _protocol(protocol, None if ks is None else several("ks", ks, least=1))
    experiment = Experiment().changed(settings_of(settings))
    named = {
        title: _with_settings(title, method, experiment, device, say)
        for title, method in named_methods(methods).items()
    }
    wrong = [title for title, method in named.items() if not chosen.evaluates(method)]
    if wrong:
        raise InvalidInput(f"{', '.join(wrong)}: the protocol {chosen.name!r} does not evaluate methods of this kind")
    log: Any = GraphLog(of=graph)  # it has all that the protocols IN_MEMORY read
    steps_text = None if steps is None else ",".join(map(str, several("steps", steps, least=0)))
    units = chosen_units(chosen, log, steps_text)
    jobs = [
        Job(log=log, units=job, seed=seed, config=experiment.of_seed(seed).graph, settings=chosen.chosen)
        for seed in several("seeds", seeds, least=0)
        for job in chosen.jobs(units)
    ]
    results = [
        _result(chosen, job, named, f"seed {job.seed} ({number} of {len(jobs)})", say)
        for number, job in enumerate(jobs, start=1)
    ]
    say("computing the table")
    metrics = chosen.rows(results, log, BASELINES)["metrics"]
    return score_table(metrics, log.dataset) if protocol == "paper" else column_table(chosen, metrics)


def _protocol(protocol: str | Protocol, ks: Sequence[int] | None) -> Protocol:
    if not isinstance(protocol, Protocol):
        one_of("protocol", protocol, IN_MEMORY)
    if ks is None:
        return protocol if isinstance(protocol, Protocol) else protocol_of(protocol)
    if protocol != prequential.PROTOCOL.name:
        raise InvalidInput(
            f'ks = {ks}: expected protocol="prequential", which alone ranks each link, found {protocol!r}'
        )
    return prequential.with_hits(ks)


def _result(
    protocol: Protocol, job: Job, methods: Mapping[str, Method], part: str, say: Callable[[str], None]
) -> Result:
    """Draw what all methods of a job get, and evaluate them; `part` is the end of each sentence of the progress."""
    first, last = job.units[0], job.units[-1]
    where = f"{protocol.unit} {first}{'' if first == last else f' to {last}'}"

    def evaluating(title: str, method: Method) -> AbstractContextManager[None]:
        say(f"{title}: evaluating {where}, {part}")
        return own_errors(title, method, where)

    say(f"drawing the pairs of {where}, {part}")
    drawn = {} if protocol.draw is None else protocol.draw(job)
    tables = evaluated(protocol, replace(job, drawn=drawn), methods, evaluating)
    return Result(job.units, job.seed, tables.__getitem__, {**tables, **drawn}.__getitem__)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Training:
    """DyFormer, trained on a device whenever it is fitted; its epochs are reported."""

    title: str
    variation: Variation
    device: str
    say: Callable[[str], None]

    def trained(self, graph: PreparedGraph, *, seed: int) -> "TrainedDyFormer":
        """Train from scratch."""
        return self.variation.trained(
            graph,
            seed=seed,
            device=self.device,
            report=lambda epoch: self.say(_written(self.title, epoch, graph.until)),
        )

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train from scratch, and give the vectors of this training."""
        return self.trained(graph, seed=seed).fit(graph, seed=seed)


def _with_settings(
    title: str, method: Method, experiment: Experiment, device: str, say: Callable[[str], None]
) -> Method:
    if isinstance(method, Variation):
        of_graph = [f"{name}={value}" for name, value in method.all_changes.items() if name.startswith("graph.")]
        if of_graph and method.changed(experiment).graph != experiment.graph:
            raise InvalidInput(f"{title}: its {', '.join(of_graph)} would hold for all methods: write it in `settings`")
        variation = replace(method, experiment=experiment)
        return _Training(title=title, variation=variation, device=device, say=say)
    return capped(method, experiment.max_epochs)


def _check_graph(graph: object) -> None:
    if not isinstance(graph, Graph):
        raise InvalidInput(f'expected a Graph, such as log.snapshots("7d"); found {type(graph).__name__}')


def _written(title: str, epoch: Progress, until: int) -> str:
    losses = ", ".join(f"{name} {value:.4f}" for name, value in epoch.losses.items())
    return f"{title} until step {until}, {epoch.stage}, epoch {epoch.epoch}: {losses} ({epoch.seconds:.1f} s)"


def _parts_of(model: Model) -> Parts:
    """Give what `_model_of` makes an equal model of. Raises ValueError for a user's own scorer."""
    if model.record is None:
        raise InvalidInput(
            "a scorer of your own cannot be stored, because its code is not part of dyformer: expected a method of"
            " METHODS, or one with vectors (fit); store what it needs, and fit it again"
        )
    tables = history_tables(model.forecast.past.history) | {"ids": model.graph.nodes}
    return model.record, tables, {} if model.vector_ND is None else {"vectors": model.vector_ND}


def _model_of(record: Mapping[str, Any], tables: dict[str, pl.DataFrame], arrays: Mapping[str, NDArray]) -> Model:
    """Give the model of its stored values."""
    check_process()  # pickle calls this function alone
    vector_ND = arrays.get("vectors")
    history = history_from(tables, directed=record["directed"])
    window = Window.parse(record["window"])
    graph = Graph(dynamic=history, nodes=tables["ids"], time_unit=record["time_unit"], window=window)
    forecast = forecast_from(record, history, vector_ND)
    return Model(graph=graph, forecast=forecast, method=record["method"], vector_ND=vector_ND, record=record)


def _type_of_times(unit: TimeUnit) -> pl.DataType:
    return pl.Int64() if unit == "step" else pl.Datetime("us", "UTC")


def _with_sides(graph: "Graph", frame: pl.DataFrame) -> pl.DataFrame:
    """Leave the column `side` to a log with two id spaces, whatever rows of it these are."""
    return frame if graph.nodes["side"].n_unique() > 1 else frame.drop("side")
