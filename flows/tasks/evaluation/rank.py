"""Snapshots and a step -> its ranking queries, stored once, and the methods' scores of them (prequential protocol)."""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import polars as pl

from dyformer.evaluation.forecasts.best_partners import (
    NUM_PARTNERS,
    best_partners,
    merged,
    partner_metrics,
    retrieved_links,
    retrieved_of,
    retrieved_table,
)
from dyformer.evaluation.prequential import (
    PROTOCOL,
    RankingTrial,
    ScoredQueries,
    fitted_scores,
    from_table,
    has_labelled_steps,
    scored_queries,
    to_table,
)
from dyformer.evaluation.protocols import NUM_OLDER_STEPS
from dyformer.evaluation.ranking_rows import metric_rows, query_log_rows, query_resamples, step_metrics
from dyformer.experiments.methods import BASELINES, Method
from dyformer.experiments.settings import Experiment, as_record, experiment_for
from dyformer.graphs.snapshots import prefix
from dyformer.sampling.pairs import known_edges, nodes_known_before
from dyformer.sampling.ranking_queries import (
    FAMILIES,
    MAX_QUERIES,
    NUM_PER_FAMILY,
    RankingQueries,
    queries_from_tables,
    queries_to_tables,
    ranking_queries,
)
from dyformer.scoring.candidate_pairs import candidate_pairs
from flows.console import ongoing
from flows.tasks.evaluation.evaluate import chosen_steps
from flows.tasks.methods import chosen_methods, fitted_once, own_errors, record_of, title_of
from flows.tasks.models import space_of, stored_method
from flows.tasks.snapshots import FIRST_EVALUATED_STEP, Snapshots, StepOutOfRange, open_snapshots
from storage.artifacts.artifact import digest, is_current, lineage_of, read_table, write_artifact

TABLES = ("queries", "links")


def write_queries(snapshots: str, step: int, seed: int = 0) -> str:
    """Draw the queries and candidates of a step, unless they exist; return their address.

    All methods are evaluated on this artifact, whose checksums are in the lineage of their scores.
    """
    opened = open_snapshots(snapshots)
    opened.check(step)
    drawn = {"num_per_family": NUM_PER_FAMILY, "max_queries": MAX_QUERIES, "families": FAMILIES}
    settings = {"protocol": PROTOCOL, "seed": seed, "step": step, "directed": opened.directed, **drawn}
    # The last step is recorded, because `inductive` candidates are links of later steps.
    lineage = opened.lineage("queries", until=opened.num_steps, settings=settings)
    keys = {"version": lineage.table_version, "until": step - 1, "settings": lineage.settings_hash, "seed": seed}
    address = opened.layout.queries(opened.dataset, **keys)
    if is_current(address, lineage):
        return address
    queries = ranking_queries(opened.graph(opened.num_steps, interactions=True), step, seed=seed, **drawn)
    return write_artifact(address, queries_to_tables(queries), lineage)


def read_queries(address: str) -> RankingQueries:
    """Read the queries of an artifact."""
    return queries_from_tables({name: read_table(address, name) for name in TABLES})


def rank_methods(
    snapshots: str,
    queries: str,
    names: list[str],
    experiment: Experiment | None = None,
    seed: int = 0,
    searched: str | None = None,
) -> str:
    """Fit methods on the steps before the queries'; return the address of their scores.

    `names` as in chosen_methods; they have the settings that a search chose for the dataset `searched`.
    """
    opened = open_snapshots(snapshots)
    experiment = experiment_for(opened.dataset) if experiment is None else experiment
    methods = {
        title_of(name): method for name, method in chosen_methods(names, experiment.max_epochs, searched).items()
    }
    records = {title: record_of(method) for title, method in methods.items()}
    settings = {"methods": records, **as_record(experiment, "graph")}
    once = fitted_once(methods, snapshots, experiment.graph)
    return _ranked(opened, queries, once, {"seed": seed, "config": experiment.graph}, settings)


def rank_model(
    snapshots: str, queries: str, model: str, method: str = "DyFormer", seed: int = 0, older: tuple[str, ...] = ()
) -> str:
    """Score queries by stored weights, under the title `method`; return the address of the scores.

    `older` and errors as in stored_method.
    """
    opened, step = open_snapshots(snapshots), lineage_of(queries).settings["step"]
    stored, experiment = stored_method(opened, model, older, step)
    settings = {"method": method, "models": list(map(space_of, (*older, model)))}
    return _ranked(
        opened, queries, {method: stored}, {"seed": seed, "config": experiment.graph}, settings, (model, *older)
    )


def steps_to_rank(snapshots: str, wanted: str | None = None) -> list[int]:
    """List the steps that are evaluated: from the dataset's first evaluated step on, or `wanted` such as "3-13".

    Raises:
        StepOutOfRange: a step without links between known nodes, or without a labelled step before it.
    """
    need = (
        f"a step needs two earlier steps, and links between known nodes in itself and in one of the {NUM_OLDER_STEPS} "
        f"before"
    )
    return chosen_steps(snapshots, rankable_steps(snapshots), wanted, need)


def rankable_steps(snapshots: str) -> list[int]:
    """List the steps with links between known nodes and with labelled steps before them."""
    opened = open_snapshots(snapshots)
    graph = opened.graph(opened.num_steps)
    return [
        step
        for step in range(FIRST_EVALUATED_STEP, graph.num_steps + 1)
        if len(known_edges(graph.snapshots[step - 1], nodes_known_before(graph, step))[0])
        and has_labelled_steps(graph, step)
    ]


def check_forecast(snapshots: str) -> None:
    """Raise StepOutOfRange if no step is recent enough to calibrate a forecast as of the newest one."""
    opened = open_snapshots(snapshots)
    if not any(step > opened.num_steps - NUM_OLDER_STEPS for step in rankable_steps(snapshots)):
        raise StepOutOfRange(
            f"{opened.dataset}: none of the last {NUM_OLDER_STEPS} of {opened.num_steps} steps has links between known"
            " nodes and a step with some before it, so that no forecast can be calibrated: choose longer windows"
            " (`window`), or wait for rows"
        )


def ranking_metrics(scores: list[str], snapshots: str, baselines: Collection[str] = BASELINES) -> pl.DataFrame:
    """Return the metrics of rankings artifacts as rows of METRICS_SCHEMA: per step, micro and macro.

    All methods are compared with those of `baselines`.
    """
    return _metrics(tuple((address, digest(address)) for address in scores), snapshots, frozenset(baselines))


@lru_cache(maxsize=16)  # a flow shows, tracks and prints the same metrics, and resampling takes seconds
def _metrics(scores: tuple[tuple[str, str], ...], snapshots: str, baselines: frozenset[str]) -> pl.DataFrame:
    opened, addresses = open_snapshots(snapshots), [address for address, _ in scores]
    queries_of = {address: opened.layout.absolute(lineage_of(address).settings["queries"]) for address in addresses}
    queries = {address: read_queries(address) for address in dict.fromkeys(queries_of.values())}
    seed_of = {address: lineage_of(address).settings["seed"] for address in queries}
    partners = {address: read_table(address, "partners") for address in addresses}
    resamples = {
        seed: query_resamples(
            [queries[address] for address in queries if seed_of[address] == seed],
            seed=seed,
            others=[table[end].to_numpy() for table in partners.values() for end in ("node", "partner")],
        )
        for seed in set(seed_of.values())
    }
    steps: dict[int, dict] = {}
    retrieved: dict[int, tuple[int, int]] = {}
    for own, drawn in sorted(queries.items(), key=lambda item: item[1].step):
        # One step is in memory at a time, because its scores are many.
        evaluated = [address for address in addresses if queries_of[address] == own]
        scored = [each for address in evaluated for each in from_table(read_table(address, "rankings"), drawn)]
        graph = opened.graph(drawn.step, interactions=True)
        past, seed = prefix(graph, drawn.step - 1), seed_of[own]
        measured = step_metrics(scored, past, resamples[seed])
        best = partner_metrics(pl.concat([partners[address] for address in evaluated]), graph, resamples[seed])
        steps.setdefault(drawn.step, {}).update(merged(measured, best))
        retrieved[drawn.step] = retrieved_links(read_table(evaluated[0], "retrieved"), graph, seed=seed)
    log = query_log_rows(queries.values(), opened.dataset, retrieved=retrieved)
    return pl.concat([metric_rows(steps, opened.dataset, baselines=baselines), log])


def _ranked(
    opened: Snapshots,
    queries: str,
    methods: Mapping[str, Method],
    trial: dict[str, Any],
    settings: dict[str, Any],
    inputs: tuple[str, ...] = (),
) -> str:
    """Evaluate methods, by title, on the queries of a step, unless their scores exist already."""
    step, seed = lineage_of(queries).settings["step"], trial["seed"]
    drawn = opened.layout.relative(queries)
    about = {"protocol": PROTOCOL, "seed": seed, "step": step, "queries": drawn, "num_partners": NUM_PARTNERS}
    settings = {**about, **settings}
    lineage = opened.lineage("rankings", until=step, settings=settings, inputs=(queries, *inputs))
    keys = {"version": lineage.table_version, "until": step - 1, "settings": lineage.settings_hash, "seed": seed}
    address = opened.layout.rankings(opened.dataset, **keys)
    if is_current(address, lineage):
        return address
    # The graph ends before the step, so no method can read it.
    posed = RankingTrial(graph=opened.graph(step - 1, interactions=True), queries=read_queries(queries), **trial)
    scored: list[ScoredQueries] = []
    partners: list[pl.DataFrame] = []
    with ongoing(f"rank {opened.dataset} step {step}"):
        retrieved = retrieved_of(posed, candidate_pairs)
        for title, method in methods.items():
            with own_errors(title, method):
                for name, score_pairs in fitted_scores(title, method, posed.past, posed.labelled, seed).items():
                    scored.append(scored_queries(name, posed, score_pairs))
                    partners.append(best_partners(name, posed, retrieved, score_pairs))
    tables = {"rankings": to_table(scored), "partners": pl.concat(partners), "retrieved": retrieved_table(retrieved)}
    return write_artifact(address, tables, lineage)
