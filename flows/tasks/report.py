"""Scores and a summary of a finished run -> its report, which a rerun on the same data reads instead."""

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import polars as pl

from dyformer.evaluation.config import METRIC_TITLES
from dyformer.evaluation.protocols.forecasts import PROTOCOL as FORECASTS
from dyformer.evaluation.protocols.paper import PROTOCOL as PAPER
from dyformer.evaluation.protocols.prequential import PROTOCOL as PREQUENTIAL
from dyformer.evaluation.rows import METRICS_SCHEMA
from dyformer.evaluation.seasons import NO_SEASON
from dyformer.experiments.settings import Experiment
from dyformer.experiments.tables import OF_A_UNIT
from dyformer.experiments.verdict import Verdict, uneven_windows, verdict, whose_forecasts
from dyformer.logs.counts import counted
from flows.tasks.drift import drift_line, read_drift
from flows.tasks.evaluation.measure import measure, read_beside, read_metrics
from flows.tasks.finished import SUMMARY, planned_report
from flows.tasks.snapshots import Snapshots, open_snapshots
from storage.artifacts.artifact import (
    MANIFEST,
    ArtifactMissing,
    find_artifact,
    is_complete,
    open_artifact,
    read_bytes,
    read_table,
)
from storage.artifacts.code import code_version
from storage.bytes import files
from storage.champions import complete_rows, ledger
from storage.events.table import check_dataset
from storage.layout import FORECAST, Layout
from storage.tracking.marks import has_mark, unmark
from storage.tracking.runs import tracking_of

OF_PUBLISHED = ("precision_at_10", "calibration_error", "probability_sum", "brier", "confident")
LINK_COLUMNS = ("probability", "score", "linked_before", "reasons")
NUM_LINKS = 15  # most probable links of each kind on the page
ROW_COUNTS = ("read", "accepted", "quarantined", "dropped")
ARTIFACT = re.compile(r"\d_[a-z]+/\w+/dataset=[^/\s]+/\S+")  # an address below the root
LINK_TITLES = {"forecasts": "all links", "new": "new links alone"}


def write_report(
    snapshots: str, rows: pl.DataFrame, summary: dict[str, Any], experiment: Experiment, seed: int = 0
) -> str:
    """Write the metrics and the summary of a run and return the report's address.

    Addresses of the summary are stored relative to the root, so that the report of a store that was moved is right.
    `code` is the version that made the numbers, because the page may be drawn, and the run sent, by a later one. A
    report that MLflow could not get, because a part of it was missing, is due again. One of the same settings whose
    parts were made anew since, as after a repair, is replaced.
    """
    root = f"{Layout.from_environment().root}/"
    stored = _replaced(summary, lambda text: text.removeprefix(root))
    contents = {"metrics": rows, SUMMARY: json.dumps({**stored, "code": code_version()}, indent=1).encode()}
    planned = planned_report(snapshots, experiment, seed)
    if planned.is_current and not _is_of_parts(planned.address, rows, stored["addresses"]):
        files.remove_folder(planned.address)
    address = planned.made(lambda: contents)
    if has_mark(address) and tracking_of(address)["problem"]:
        unmark(address)
    return address


def _is_of_parts(report: str, rows: pl.DataFrame, addresses: dict[str, Any]) -> bool:
    """Whether a report has these metrics and these addresses, which are relative."""
    own = json.loads(read_bytes(report, SUMMARY))["addresses"]
    return own == json.loads(json.dumps(addresses)) and read_table(report, "metrics").equals(rows)


def run_metrics(snapshots: str, rankings: list[str], scores: list[str], published: str | None = None) -> pl.DataFrame:
    """Return the metrics of both protocols as rows of METRICS_SCHEMA; none of a protocol without addresses.

    `published` is the address of the backtest of the method that is published: how many of its forecasts came, and its
    probabilities.
    """
    parts = [pl.DataFrame(schema=METRICS_SCHEMA)]
    for protocol, addresses in ((PREQUENTIAL, rankings), (PAPER, scores)):
        parts += [read_metrics(measure(snapshots, protocol, addresses))] if addresses else []
    if published is not None:
        rows = read_metrics(measure(snapshots, FORECASTS, [published]))
        parts.append(rows.filter(OF_A_UNIT, pl.col("metric").is_in(OF_PUBLISHED)))
    return pl.concat(parts)


def read_report(address: str) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the metrics and the summary of a report, and in the summary where in MLflow it is."""
    layout, summary = Layout.from_environment(), json.loads(read_bytes(address, SUMMARY))
    full = _replaced(summary, lambda text: layout.absolute(text) if ARTIFACT.fullmatch(text) else text)
    return read_table(address, "metrics"), {**full, "tracking": tracking_of(address)}


def _replaced(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with each of its texts changed."""
    if isinstance(value, dict):
        return {name: _replaced(each, change) for name, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, change) for each in value]
    return change(value) if isinstance(value, str) else value


def newest_report(dataset: str) -> str:
    """Return the address of the report on the newest rows of a dataset that was made last.

    A run that is repeated on the same rows makes no report, so that one of other settings may be the last.
    Raises DatasetNotIngested for an unknown dataset, ArtifactMissing for one without a report.
    """
    layout = Layout.from_environment()
    check_dataset(layout, dataset)
    found = files.find(layout.artifacts("report", dataset), MANIFEST)
    if not found:
        raise ArtifactMissing(f"{dataset} has no report in {layout.root}: run `dyformer run {dataset}` first")
    versions = {name: int(layout.describe(name.removesuffix(f"/{MANIFEST}"))[1]["version"]) for name in found}
    newest = [name for name, version in versions.items() if version == max(versions.values())]
    return max(newest, key=files.modified).removesuffix(f"/{MANIFEST}")  # in S3 a request for each


def earlier_metrics(opened: Snapshots, summary: dict[str, Any]) -> list[pl.DataFrame]:
    """Read the metrics of earlier steps, for curves; those of results that were removed since are left out."""
    results, compared = summary["addresses"]["earlier"], summary["baselines"]
    return [read_metrics(measure(opened.address, PAPER, [each], compared)) for each in results if is_complete(each)]


def report_page(rows: pl.DataFrame, summary: dict[str, Any]) -> str:
    """Make the HTML page of a run from its metrics and its summary: counts, addresses and promotion."""
    from dyformer.experiments.html_report import html_report  # late, because a run without new rows draws nothing

    counts, addresses = summary["counts"], summary["addresses"]
    opened = open_snapshots(addresses["snapshots"])
    texts = {
        "event table version": str(opened.version),
        "code": summary["code"],
        "rows": ", ".join(f"{counts[f'num_{name}']:,} {name}" for name in ROW_COUNTS),
        "snapshots": f"{opened.num_steps}, window {opened.window}",
        "nodes": f"{opened.steps['num_nodes'].max():,}",
        "interactions": f"{opened.steps['num_interactions'].sum():,}",
    }
    earlier = earlier_metrics(opened, summary)
    forecasts = open_artifact(addresses["forecasts"])
    return html_report(
        rows,
        opened.dataset,
        counts=texts,
        title=opened.title,
        verdict=verdict_of(rows, summary),
        details=[
            drift_line(summary["drift"]),
            promotion_line(summary["promotion"]),
            f"challenger: {summary['training']}",
            reliability_line(rows),
        ],
        links=titled_links(opened, forecasts.address),
        inputs=forecasts.table("inputs") if "inputs.parquet" in forecasts.entries else None,
        earlier=pl.concat(earlier) if earlier else None,
        reliability=_reliability(opened, summary),
        ledger=complete_rows(ledger(opened.layout, opened.dataset)),
        drift=read_drift(addresses["drift"])[0],
        starts=step_starts(opened),
    )


def promotion_line(outcome: dict[str, Any]) -> str:
    """Write the outcome of a promotion as one sentence: who is champion, why, the difference, its interval and n."""
    champion, previous = outcome["champion"], outcome["previous"]
    if champion is None:
        return f"champion: none, because {outcome['reason']}"
    change = "as before" if champion == previous else "promoted" if outcome["promoted"] else "new"
    before = f" instead of {previous['title']}" if previous and champion != previous else ""
    line = f"champion: {champion['title']} ({change}{before}), because {outcome['reason']}"
    if outcome["difference"] is not None:
        low, mean, high = outcome["difference"]
        first, second = outcome["compared"]
        line += (
            f"; {METRIC_TITLES[outcome['metric']]} of {first} less that of {second}: {mean:+.4f}, "
            f"{100 * outcome['level']:.4g} % interval {low:+.4f} to {high:+.4f}, "
            f"{counted(outcome['num_queries'], 'query')}"
        )
    return f"{line}; {outcome['note']}" if outcome.get("note") else line


def reliability_line(metrics: pl.DataFrame) -> str:
    """Write how reliable the probabilities of the published method were on the newest step, before it came."""
    rows = metrics.filter(protocol="forecasts", slice="all").to_dicts()
    of_metric = {row["metric"]: row for row in rows}
    if not rows:
        return (
            "reliability of the probabilities: not known, because the newest step could not be forecast before it came"
        )
    error, ratio = of_metric["calibration_error"], of_metric["probability_sum"]
    line = (
        f"reliability of the probabilities on step {error['step']}, which this forecast had not read: "
        f"{error['method']}, {counted(error['num_pairs'], 'pair')}, expected calibration error {error['value']:.4f}; "
    )
    if ratio["value"] is None:
        return f"{line}none of these pairs came"
    interval = f" [{ratio['low']:.2f}, {ratio['high']:.2f}]" if ratio["low"] is not None else ""
    return f"{line}sum of probabilities / links {ratio['value']:.2f}{interval}, {counted(ratio['num_pairs'], 'link')}"


def step_starts(opened: Snapshots) -> dict[int, datetime] | None:
    """Give the time at which each step starts; None where times are no dates."""
    if opened.time_unit == "step":
        return None
    starts = opened.steps.select("step", pl.col("start_time").cast(pl.Datetime("us")))
    return dict(starts.iter_rows())


def _reliability(opened: Snapshots, summary: dict[str, Any]) -> pl.DataFrame | None:
    """Return the probabilities of the published method by bin, beside the links that came; None without a backtest."""
    backtest = summary["addresses"]["backtest"]
    if backtest is None:
        return None
    return read_beside(measure(opened.address, FORECASTS, [backtest], summary["baselines"])).get("reliability")


def verdict_of(rows: pl.DataFrame, summary: dict[str, Any]) -> Verdict:
    """Give the verdict of a run from its metrics and its summary: promotion and addresses."""
    addresses = summary["addresses"]
    return verdict(summary["promotion"], rows, forecast_facts(addresses["forecasts"], addresses["snapshots"]))


def forecast_facts(forecasts: str, snapshots: str) -> dict[str, Any] | None:
    """Give what a verdict says of stored forecasts; None where there are none.

    These are step, valid_from, valid_to, the fraction of repeats, the step that calibrates the probabilities, the
    period of the log, and how many of the newest windows differ from the one a period before.
    """
    artifact, windows = find_artifact(forecasts), find_artifact(snapshots)
    if artifact is None or windows is None:  # pruned
        return None
    if (rows := artifact.table("forecasts")).is_empty():
        return None
    fitted = json.loads(artifact.content(FORECAST))
    facts = {"repeats": rows["linked_before"].mean(), "calibration_step": fitted["calibration_step"]}
    facts["period"] = fitted.get("period", NO_SEASON)  # not in forecasts of earlier versions
    before = windows.table("steps").filter(pl.col("step") < rows["step"].first()).sort("step")  # read by the forecasts
    facts["uneven"] = uneven_windows(before["num_interactions"].to_list(), facts["period"])
    return {name: rows[name].first() for name in ("step", "valid_from", "valid_to")} | facts


def titled_links(opened: Snapshots, forecasts: str) -> dict[str, pl.DataFrame]:
    """Give the most probable links of all forecasts, and of the new pairs, by titles with their method and dates."""
    artifact = open_artifact(forecasts)
    tables = {name: artifact.table(name) for name in LINK_TITLES}
    whose = whose_forecasts(tables["forecasts"])
    named = f"Forecasts {whose}" if whose else "Forecasts"
    return {f"{named}, {LINK_TITLES[name]}": most_probable(opened, table) for name, table in tables.items()}


def most_probable(opened: Snapshots, forecasts: pl.DataFrame) -> pl.DataFrame:
    """Return the NUM_LINKS forecasts of the highest probability, each pair once: source, target, probability, ...

    In a log with two sides, and in an undirected log, a pair may be among the best of both its ends.
    """
    is_swapped = pl.col("side") > pl.col("partner_side")
    if not opened.directed:
        is_swapped = is_swapped | ((pl.col("side") == pl.col("partner_side")) & (pl.col("id") > pl.col("partner_id")))
    ends = {
        "source": pl.when(is_swapped).then("partner_id").otherwise("id"),
        "target": pl.when(is_swapped).then("id").otherwise("partner_id"),
    }
    pairs = forecasts.select(**ends, **{name: pl.col(name) for name in LINK_COLUMNS})
    pairs = pairs.unique(["source", "target"], maintain_order=True)
    return pairs.sort("score", descending=True, maintain_order=True).head(NUM_LINKS)
