"""Metrics of a run and its most probable links -> one HTML page that opens offline: tables, sentences, plots.

All texts are escaped, because names and ids come from logs. The page has no script, and its plots are inside it.
"""

import base64
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape, unescape
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from dyformer.evaluation.drift import drift_texts
from dyformer.evaluation.forecasts.best_partners import BUSIEST, PUBLISHED
from dyformer.evaluation.protocols import protocol_of
from dyformer.evaluation.query_slices import KNOWN
from dyformer.evaluation.scored_pairs import SLICES
from dyformer.evaluation.scored_queries import MIXED
from dyformer.experiments.plots import (
    Starts,
    comparison_chart,
    drift_curve,
    family_heat_map,
    ledger_curve,
    precision_curve,
    reliability_diagram,
    step_curve,
)
from dyformer.experiments.printed import PrintedTable
from dyformer.experiments.tables import order_in_report, printed_tables, units_of
from dyformer.experiments.verdict import Verdict

PLOT_DPI = 110
LEAST_WHOLE = 1_000  # numbers from here on are written without decimals
PLOT = re.compile('<img alt="([^"]+)" src="data:image/png;base64,([^"]+)">')
HEADING = re.compile('<h2 id="([a-z-]+)">(.*)</h2>')
INPUTS_TITLE = "Fraction of the gain of the published method's trees, by group of inputs"
LEDGER = (
    "step",
    "valid_from",
    "method",
    "num_pairs",
    "num_came",
    "precision_at_10",
    "precision_at_10_low",
    "precision_at_10_high",
    "probability",
    "calibration_error",
)
ROW_KEYS = ["method", "seed", "step", "metric", "slice"]  # of one protocol with one family of negatives

# The policy forbids a browser every request and every script, whatever a text of the page may be.
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }}
h2 {{ font-size: 1.15rem; margin-top: 2.5rem; border-bottom: 1px solid #ccc; }}
.first {{ font-size: 1.2rem; font-weight: 600; }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .8rem; margin: 1rem 0; }}
.tiles div {{ border: 1px solid #ccc; border-radius: .4rem; padding: .6rem .8rem; color: #555; }}
.beside {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0 2rem; }}
.beside h2 {{ margin-top: 1rem; }}
.tiles b {{ display: block; font-size: 1.7rem; line-height: 1.3; color: #1b1b1b; }}
details {{ margin: .8rem 0; }}
summary {{ cursor: pointer; color: #225; }}
p, summary, h1 {{ overflow-wrap: anywhere; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }}
nav a {{ display: inline-block; margin: .2rem 1.2rem .2rem 0; }}
th, td {{ padding: .2rem .8rem .2rem 0; text-align: left; white-space: nowrap; border-bottom: 1px solid #eee; }}
img {{ max-width: 100%; height: auto; display: block; margin: 1.5rem 0; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def html_report(  # noqa: PLR0913, because each part of the page is an argument
    metrics: pl.DataFrame,
    dataset: str,
    *,
    counts: Mapping[str, str],
    title: str | None = None,
    verdict: Verdict | None = None,
    details: Sequence[str] = (),
    links: Mapping[str, pl.DataFrame] | None = None,
    inputs: pl.DataFrame | None = None,
    earlier: pl.DataFrame | None = None,
    reliability: pl.DataFrame | None = None,
    ledger: pl.DataFrame | None = None,
    drift: pl.DataFrame | None = None,
    starts: Starts | None = None,
) -> str:
    """Give the page of a run.

    Args:
        metrics: rows of METRICS_SCHEMA, of one protocol or of several, each of which has its part.
        dataset: its name.
        counts: the texts below the outcome, by their name.
        title: name of the page, by default that of the dataset.
        verdict: of the run, which stands first.
        details: sentences on the decision, which are folded.
        links: tables of forecasts, by title.
        inputs: what each group of inputs gives to the published method.
        earlier: rows of the paper's protocol of more steps, for the curves.
        reliability: rows of RELIABILITY_SCHEMA, of the published method.
        ledger: what came of the published forecasts, one row a step: step, valid_from, method, num_pairs, num_came,
            precision_at_10 with _low and _high, probability, calibration_error.
        drift: rows of DRIFT_SCHEMA, of which the newest step's are in a table and all in a plot.
        starts: the time at which each step starts, for the plots over steps; without it they have the steps' numbers.
    """
    numbers = PrintedTable(
        "Rows, snapshots and code", pl.DataFrame({"": list(counts), "value": list(counts.values())}), []
    )
    forecasts = [PrintedTable(title, frame, []) for title, frame in (links or {}).items()]
    course = metrics if earlier is None else pl.concat([metrics, earlier])
    course = course.unique(["protocol", "family", *ROW_KEYS], maintain_order=True)
    beside = [
        [*_section("How far the probabilities can be trusted", [], _calibration(reliability))],
        [*_section("The newest steps", [], _course(course, starts, None if verdict is None else verdict.published))],
    ]
    parts = [
        *_section("What came of the published forecasts", *_ledger(ledger)),
        *_section("Drift of the log", *_drift(drift, starts)),
        *_protocols(metrics, dataset, course, starts),
        *_section("Most probable links", forecasts),
        *_section("What the inputs give", [] if inputs is None else [PrintedTable(INPUTS_TITLE, inputs, [])]),
        *_section("The data", [numbers]),
    ]
    first = [
        *_verdict(verdict),
        *_beside(beside),
        *([] if verdict is None else (f"<p>{_with_code(sentence)}</p>" for sentence in verdict.sentences[1:])),
        *_folded("How it was decided", (f"<p>{escape(text)}</p>" for text in details)),
    ]
    contents = _contents([*(part for own in beside for part in own), *parts])
    return PAGE.format(title=escape(f"{title or dataset}: report"), body="\n".join([*first, *contents, *parts]))


def plots_of(page: str) -> dict[str, bytes]:
    """Give the plots of a page as PNG files, by their title, so that nothing is drawn a second time."""
    return {unescape(title): base64.b64decode(image) for title, image in PLOT.findall(page)}


def _contents(parts: Iterable[str]) -> Iterator[str]:
    """Give a list of links to the headings of the page."""
    headings = [heading for part in parts if (heading := HEADING.fullmatch(part))]
    links = "".join(f'<a href="#{heading[1]}">{heading[2]}</a>' for heading in headings)
    yield f"<nav>{links}</nav>"


def _calibration(rows: pl.DataFrame | None) -> Iterator[tuple[str, Figure]]:
    if rows is not None and (rows["fraction"] > 0).any():
        yield "Probabilities against the links that came", reliability_diagram(rows)


def _with_code(sentence: str) -> str:
    """Escape a sentence and set what stands between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(sentence))


def _verdict(verdict: Verdict | None) -> Iterator[str]:
    """Give the verdict: its first sentence large, and the numbers as tiles."""
    if verdict is None:
        return
    yield f'<p class="first">{escape(verdict.sentences[0])}</p>'
    tiles = (f"<div><b>{escape(text)}</b> {escape(name)}</div>" for name, text in verdict.numbers.items())
    yield f'<div class="tiles">{"".join(tiles)}</div>'


def _beside(sections: Iterable[Sequence[str]]) -> Iterator[str]:
    """Give sections beside each other where the page is wide enough; nothing for those without a part."""
    own = [["<section>", *parts, "</section>"] for parts in sections if parts]
    if own:
        yield '<div class="beside">'
        yield from (line for lines in own for line in lines)
        yield "</div>"


def _folded(title: str, parts: Iterable[str]) -> Iterator[str]:
    """Give elements that are shown once their title is clicked; nothing without an element."""
    body = "\n".join(parts)
    if body:
        yield f"<details><summary>{escape(title)}</summary>{body}</details>"


def _course(course: pl.DataFrame, starts: Starts | None, published: str | None) -> Iterator[tuple[str, Figure]]:
    """Draw the curve over the newest steps: the MRR where several are ranked, and the AUC of the paper's protocol."""
    given: dict[str, Any] = {"starts": starts, "published": published}
    ranked = course.filter(protocol="prequential", slice=KNOWN, family=MIXED, metric="mrr")
    if len(units_of(ranked)) > 1:
        yield "MRR of each step", step_curve(ranked, metric="mrr", slice_name=KNOWN, family=MIXED, **given)
    pairs = course.filter(protocol="paper", slice="all", metric="auc")
    if len(units_of(pairs)) > 1:
        yield "AUC of each step, all links", step_curve(pairs, **given)


def _protocols(metrics: pl.DataFrame, dataset: str, course: pl.DataFrame, starts: Starts | None) -> Iterator[str]:
    """Give the part of each protocol whose tables have rows: heading, tables and plots."""
    for name in sorted(metrics["protocol"].unique(), key=order_in_report):
        protocol, rows = protocol_of(name), metrics.filter(protocol=name)
        plots: Iterator[tuple[str, Figure]] = iter(())
        if "families" in protocol.plots:
            plots = _ranking_plots(rows)
        elif "comparison" in protocol.plots:
            plots = _pair_plots(rows, course.filter(protocol=name), starts)
        tables = list(printed_tables(protocol, rows, dataset).values())
        if tables:
            yield from _section(protocol.heading, tables, plots)


def _ranking_plots(rows: pl.DataFrame) -> Iterator[tuple[str, Figure]]:
    """Draw the plots that the rows of the prequential protocol allow, each with its title."""
    mean = rows.filter(slice=KNOWN, family=MIXED, metric="mrr")
    if not mean.is_empty():
        yield "MRR with intervals", comparison_chart(mean, metric="mrr", slice_name=KNOWN, family=MIXED)
    if not rows.filter(metric="auc", slice=KNOWN).is_empty():
        yield "AUC of each method by family of negatives", family_heat_map(rows)
    best_of = {part: rows.filter(slice=part, family=PUBLISHED, metric="precision_at_10") for part in (KNOWN, BUSIEST)}
    if best_of[KNOWN].drop("slice").equals(best_of[BUSIEST].drop("slice")):  # all nodes are the busiest ones
        del best_of[BUSIEST]
    for part, best in best_of.items():
        if not best.is_empty():
            chart = comparison_chart(best, metric="precision_at_10", slice_name=part, family=PUBLISHED)
            yield f"Precision of the ten best partners, {part} nodes", chart
    if not rows.filter(slice=KNOWN, family=PUBLISHED, metric="precision_at_1").is_empty():
        yield "Precision of the k best partners", precision_curve(rows)


def _pair_plots(rows: pl.DataFrame, course: pl.DataFrame, starts: Starts | None) -> Iterator[tuple[str, Figure]]:
    """Draw the plots of the paper's protocol: a comparison on the same steps, and the curve of the new links."""
    for part in SLICES:
        if not rows.filter(slice=part, metric="auc").is_empty():
            yield f"AUC with intervals, {part} links", comparison_chart(rows, slice_name=part)
    if len(units_of(course.filter(slice="new", metric="auc"))) > 1:
        yield "AUC of each step, new links", step_curve(course, slice_name="new", starts=starts)


def _ledger(rows: pl.DataFrame | None) -> tuple[list[PrintedTable], list[tuple[str, Figure]]]:
    """Give the table of the published forecasts whose step is complete, and their curve; nothing without such rows."""
    if rows is None or rows.is_empty():
        return [], []
    table = PrintedTable("The ten best partners of each node, against the links of the step", rows.select(LEDGER), [])
    return [table], [("Precision and calibration of the published forecasts", ledger_curve(rows))]


def _drift(rows: pl.DataFrame | None, starts: Starts | None) -> tuple[list[PrintedTable], list[tuple[str, Figure]]]:
    """Give the drift of the newest step as a table, and that of all steps as a plot, once a step has a deviation."""
    if rows is None or rows.is_empty():
        return [], []
    newest = rows.filter(pl.col("step") == rows["step"].max())
    title = "The newest step against the median of the earlier ones, in robust standard deviations"
    measured = rows["deviation"].is_not_null().any()
    plots = [("Drift of each step", drift_curve(rows, starts))] if measured else []
    return [PrintedTable(title, drift_texts(newest), [])], plots


def _section(title: str, tables: Sequence[PrintedTable], plots: Iterable[tuple[str, Figure]] = ()) -> Iterator[str]:
    """Give a heading, plots, the sentences of the tables, and the tables, folded; nothing where there is neither."""
    drawn = list(plots)
    if tables or drawn:
        yield f'<h2 id="{re.sub(r"[^a-z]+", "-", title.lower())}">{escape(title)}</h2>'
        yield from (f"<p>{_with_code(sentence)}</p>" for table in tables for sentence in table.sentences)
        for name, plot in drawn:
            yield f'<img alt="{escape(name)}" src="data:image/png;base64,{_encoded(plot)}">'
        for table in tables:
            yield from _folded(table.title, _table(table))


def _table(table: PrintedTable) -> Iterator[str]:
    header = "".join(f"<th>{escape(name)}</th>" for name in table.frame.columns)
    yield f'<div class="wide"><table><tr>{header}</tr>'
    for row in table.frame.iter_rows():
        yield "<tr>" + "".join(f"<td>{escape(_text(value))}</td>" for value in row) + "</tr>"
    yield "</table></div>"


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    """Write four significant digits, without zeros at the end; from 1,000 on a whole number without an exponent."""
    return f"{value:.0f}" if abs(value) >= LEAST_WHOLE else f"{value:.4g}"


def _encoded(plot: Figure) -> str:
    image = io.BytesIO()
    plot.savefig(image, format="png", dpi=PLOT_DPI)
    return base64.b64encode(image.getvalue()).decode()
