"""Events -> weekly snapshots, and methods' ranks of the held-out links of each week (ROLAND's live-update protocol)."""

from dataclasses import replace
from functools import lru_cache

import polars as pl

from dyformer.embedder import Scorer
from dyformer.evaluation.live_update import (
    PROTOCOL,
    TRAINING_NEGATIVES,
    WEEKS,
    held_out_links,
    live_update_ranks,
    live_update_rows,
    ranks_to_table,
    weekly_labels,
)
from dyformer.evaluation.prequential import has_labelled_steps
from dyformer.experiments.methods import BASELINES, UnknownMethod
from dyformer.experiments.settings import Experiment, as_record, experiment_for
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, build_snapshots
from dyformer.logs.time_windows import Window
from flows.tasks.methods import chosen_methods, own_errors, record_of, title_of
from flows.tasks.snapshots import FIRST_EVALUATED_STEP, Snapshots, StepOutOfRange, open_snapshots
from storage.artifacts.artifact import is_current, read_table, write_artifact
from storage.events.declarations import declaration
from storage.events.table import read_events


def weeks_to_rank(snapshots: str) -> list[int]:
    """List the weeks with labelled weeks before them. Raises StepOutOfRange where there is none."""
    opened = open_snapshots(snapshots)
    graph = _weekly_graph(opened)
    weeks = [week for week in range(FIRST_EVALUATED_STEP, graph.num_steps + 1) if has_labelled_steps(graph, week)]
    if not weeks:
        raise StepOutOfRange(
            f"{opened.dataset} has {graph.num_steps} weeks, and none has links between known nodes in a week before it "
            f"to learn from: choose another protocol, or a longer log"
        )
    return weeks


def rank_week(snapshots: str, week: int, names: list[str], experiment: Experiment | None = None, seed: int = 0) -> str:
    """Rank a week's held-out links by methods fitted on the weeks before; return the address of the ranks.

    Raises UnknownMethod for a method with vectors.
    """
    opened = open_snapshots(snapshots)
    experiment = experiment_for(opened.dataset) if experiment is None else experiment
    methods = {title_of(name): method for name, method in chosen_methods(names, experiment.max_epochs).items()}
    vectors = [title for title, method in methods.items() if not isinstance(method, Scorer)]
    if vectors:
        raise UnknownMethod(f"{', '.join(vectors)}: the live-update protocol evaluates methods that score pairs")
    settings = {"protocol": PROTOCOL, "seed": seed, "weeks": str(_window(opened)), "week": week}
    records = {title: record_of(method) for title, method in methods.items()}
    settings |= {"trained_on": {"families": ["random"], "num_negatives": TRAINING_NEGATIVES}}
    settings |= {"directed": opened.directed, "methods": records, **as_record(experiment, "graph")}
    # The last step is recorded, because negatives are drawn from the nodes of the whole log.
    lineage = opened.lineage("ranks", until=opened.num_steps, settings=settings)
    keys = {
        "version": lineage.table_version,
        "until": opened.num_steps,
        "settings": lineage.settings_hash,
        "seed": seed,
    }
    address = opened.layout.ranks(opened.dataset, **keys)
    if is_current(address, lineage):
        return address
    graph = _weekly_graph(opened)
    links, past = held_out_links(graph, week, seed=seed), prepare_graph(graph, until=week - 1, config=experiment.graph)
    labelled, ranked = weekly_labels(past, seed=seed), []
    for title, method in methods.items():
        assert isinstance(method, Scorer)
        with own_errors(title, method):
            score_pairs = method.fit_pairs(past, labelled)
            ranked.append((title, seed, links, live_update_ranks(score_pairs, links, len(past.history.node_N))))
    return write_artifact(address, {"ranks": ranks_to_table(ranked)}, lineage)


def live_update_metrics(ranks: list[str], snapshots: str) -> pl.DataFrame:
    """Return the mean reciprocal ranks of ranks artifacts as rows of METRICS_SCHEMA."""
    table = pl.concat([read_table(address, "ranks") for address in ranks])
    return live_update_rows(table, open_snapshots(snapshots).dataset, baselines=BASELINES)


def _window(opened: Snapshots) -> Window:
    """Give a week; a log with integer steps has none, so its own windows serve."""
    unit = (declaration(opened.layout, opened.dataset) or {})["time_unit"]
    return Window.parse(opened.window if unit == "step" else WEEKS)


def _weekly_graph(opened: Snapshots) -> DynamicGraph:
    return replace(_weeks(opened.address, _window(opened)), directed=opened.directed)


@lru_cache(maxsize=1)  # a flow ranks one week after the other
def _weeks(snapshots: str, window: Window) -> DynamicGraph:
    opened = open_snapshots(snapshots)
    unit = (declaration(opened.layout, opened.dataset) or {})["time_unit"]
    return build_snapshots(read_events(opened.layout, opened.dataset, opened.version), window, unit)
