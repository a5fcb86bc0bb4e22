"""Published forecasts whose step is complete -> what came of them, written once: the ledger."""

from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from dyformer.evaluation.first_stage import linked_in, ordered
from dyformer.evaluation.forecasts.best_partners import NUM_PARTNERS
from dyformer.evaluation.forecasts.forecast_rows import outcome_rows
from dyformer.experiments.printed import markdown_rows
from dyformer.scoring.retrieval import Retrieved
from flows.tasks.made import made
from flows.tasks.predict import user_ids
from flows.tasks.snapshots import Snapshots, open_snapshots
from storage.artifacts.artifact import ArtifactMissing, lineage_of, read_table
from storage.artifacts.made import Contents
from storage.bytes.checksums import sha256
from storage.champions import OUTCOME_SCHEMA, OUTCOMES, complete_rows, ledger, outcomes, publications
from storage.events.table import first_arrival, newest_version
from storage.tracking.runs import Tracker

NUM_DESCRIBED = 10  # newest steps in the description of the run
TRACKED = ("precision_at_10", "precision_at_10_low", "precision_at_10_high", "calibration_error", "brier")


def write_outcomes(snapshots: str) -> list[str]:
    """Compare each published forecast with the links of its step, once the step is complete; return the new addresses.

    A forecast has one outcome, that of the first version of its step: rows that come late change none. One that read
    rows which were taken back since is made anew. A step is known by the time at which it starts; a forecast of windows
    that were moved, or replaced by others, has no outcome.
    """
    opened = open_snapshots(snapshots)
    numbers = set(outcomes(opened.layout, opened.dataset)["number"])
    addresses, version = [], newest_version(opened.layout, opened.dataset)
    for publication in publications(opened.layout, opened.dataset).iter_rows(named=True):
        steps = opened.steps.filter(start_time=publication["start_time"])["step"].to_list()
        if publication["number"] in numbers or not steps:
            continue
        forecasts = opened.layout.absolute(publication["forecasts"])
        with suppress(ArtifactMissing):  # forecasts that were removed from the store
            if lineage_of(forecasts).settings["window"] != opened.window:  # a step of theirs starts at the same time
                continue
            addresses.append(
                made(
                    opened,
                    OUTCOMES,
                    until=steps[0],
                    settings={"number": publication["number"], "table_version": version},
                    make=partial(_compared, opened, publication, steps[0], version),
                    code=(outcome_rows, linked_in),
                    inputs=(forecasts,),
                )
            )
    return addresses


def send_ledger(tracker: Tracker, address: str) -> dict[str, Any]:
    """Track the ledger of an outcome's dataset as one run: a curve over the forecast steps, and the table.

    The newest publication of a step, and of a number, counts. A point is replaced where its outcome was made anew.
    """
    outcome = lineage_of(address)
    dataset = outcome.dataset
    rows = complete_rows(ledger(tracker.layout, dataset))
    tags = {"stage": "ledger", "method": "all", "table_version": outcome.table_version}
    tags |= {"window": outcome.settings["window"]}
    key = sha256(f"ledger {dataset} {first_arrival(tracker.layout, dataset)}".encode())[:32]
    with tracker.run(dataset=dataset, name="ledger", tags=tags, key=key) as run:
        # Windows that were replaced have had steps of the same numbers.
        for row in rows.sort("number").unique("step", keep="last", maintain_order=True).iter_rows(named=True):
            values = {f"ledger/{name}": row[name] for name in TRACKED if row[name] is not None}
            run.metrics({**values, "ledger/num_came": row["num_came"]}, step=row["step"], replace=True)
        run.table("ledger.csv", rows)
        run.tags({"mlflow.note.content": _description(rows)})
    return run.where


def _description(rows: pl.DataFrame) -> str:
    """Write what came of the newest forecasts as Markdown, for the page of the run."""
    first = "What came of the published forecasts: the ten best partners of each node, against the links of the step."
    texts = rows.tail(NUM_DESCRIBED).select(
        pl.col("step").cast(pl.String),
        pl.col("valid_from").dt.strftime("%Y-%m-%d %H:%M").fill_null(""),
        "method",
        pl.format("{} of {}", "num_came", "num_pairs").alias("came"),
        pl.col("precision_at_10", "probability", "calibration_error").round(4).cast(pl.String).fill_null(""),
    )
    return "\n\n".join([first, "\n".join(markdown_rows(texts)), "All steps are in `ledger.csv`, and as curves."])


def _compared(opened: Snapshots, publication: dict[str, Any], step: int, version: int) -> Contents:
    address = opened.layout.absolute(publication["forecasts"])
    pairs = _with_outcome(opened, read_table(address, "forecasts"), step)
    rows = outcome_rows(pairs, opened.dataset, publication["method"], step)
    of_all = {"number": publication["number"], "table_version": version}
    return {OUTCOMES: pl.DataFrame([{**of_all, **row} for row in rows], schema=OUTCOME_SCHEMA)}


def _with_outcome(opened: Snapshots, forecasts: pl.DataFrame, step: int) -> pl.DataFrame:
    """Give the best partners of a forecast by node number, and whether each pair is linked in the step.

    A node without a number had links in rows alone that were taken back: none of its pairs came.
    """
    graph = opened.graph(step, interactions=True)
    text = pl.col("id").cast(pl.String)
    nodes = user_ids(opened, graph).with_columns(text).with_row_index("node").cast({"node": pl.Int64})
    partners = nodes.rename({"node": "partner", "side": "partner_side", "id": "partner_id"})
    best = forecasts.filter(pl.col("rank") <= NUM_PARTNERS).with_columns(text, pl.col("partner_id").cast(pl.String))
    best = best.join(nodes, on=["side", "id"], how="left", maintain_order="left")
    best = best.join(partners, on=["partner_side", "partner_id"], how="left", maintain_order="left")
    is_known_R = best.select(pl.all_horizontal(pl.col("node", "partner").is_not_null())).to_series().to_numpy()
    known_pairs = best.filter(is_known_R)
    pairs = Retrieved.of_table(known_pairs)
    came_R = np.zeros(best.height, dtype=bool)
    came_R[is_known_R] = linked_in(graph, step, *ordered(graph, pairs))
    return best.with_columns(came=came_R)
