"""A live ranking and a node -> pages that a browser opens without another server: no script, no request elsewhere.

All texts are escaped, because ids come from logs.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import polars as pl

from dyformer.logs.counts import counted
from dyformer.logs.moments import written_moment
from dyformer.logs.time_windows import TimeUnit
from dyformer.scoring.live_ranking import PastPartner
from flows.console import printed_probability
from flows.tasks.live import ranking_record
from storage.artifacts.artifact import ArtifactMissing, read_table
from storage.bytes.checksums import Damaged
from storage.champions import complete_rows, ledger, publications

if TYPE_CHECKING:
    from flows.live.service import LiveService

NUM_PAST = 20
NUM_FOUND = 20  # ids that contain what was typed
NUM_STEPS = 5  # of the ledger
RANKED = ("rank", "partner", "probability", "linked before", "reasons")

# The policy forbids a browser every script and every request, but of the form to this server.
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; form-action 'self'">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
body {{ font: 16px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; color: #1a1a1a; }}
h1 {{ font-size: 1.4rem; margin: 0.2rem 0; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.1rem; margin: 1.6rem 0 0.4rem; }}
p {{ margin: 0.3rem 0; overflow-wrap: anywhere; }}
form {{ display: flex; flex-wrap: wrap; gap: 0.5rem; margin: 1rem 0; }}
label {{ flex: 1 1 12rem; }}
input {{ font: inherit; width: 100%; box-sizing: border-box; padding: 0.4rem; }}
button {{ font: inherit; padding: 0.4rem 1rem; align-self: end; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: 0.3rem 0.6rem 0.3rem 0; border-bottom: 1px solid #ddd; }}
td {{ overflow-wrap: anywhere; }}
.number {{ text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }}
.quiet {{ color: #555; }}
ul {{ margin: 0; padding-left: 1.1rem; }}
@media (max-width: 40rem) {{
  thead {{ position: absolute; left: -100rem; }}
  tr {{ display: block; border-bottom: 1px solid #ddd; padding: 0.4rem 0; }}
  td {{ display: block; border: 0; padding: 0.05rem 0; text-align: left; white-space: normal; }}
  td.number {{ text-align: left; }}
  td::before {{ content: attr(data-name) ": "; color: #555; }}
}}
</style>
</head>
<body>
{body}
</body>
</html>
"""

TOP = """<h1>{dataset}: best partners as of now</h1>
<p class="quiet">{events} before {at}, {count}. <a href="/docs">For programs</a></p>
<form action="/" method="get">
<label>Node <input name="source" autofocus maxlength="1000" value="{source}" placeholder="id, or a part of one"></label>
<button>Show</button>
</form>"""

Cell = tuple[str, str]
"""HTML, and the class of the cell."""


def node_page(service: "LiveService", source: str, k: int) -> str:
    """Give the page that finds a node: its best partners with reasons, its past, what came of earlier forecasts."""
    ranking, unit = service.ranking, service.opened.time_unit
    parts = [
        TOP.format(
            dataset=escape(service.dataset),
            events=counted(ranking.num_events, "event"),
            count="which counts" if ranking.num_events == 1 else "which all count",
            at=escape(_short(ranking.now, unit)),
            source=escape(source),
        )
    ]
    if source:
        parts += _node_parts(service, source, k)
    return PAGE.format(title=escape(f"{source or 'nodes'} - {service.dataset}"), body="\n".join(parts))


def _node_parts(service: "LiveService", source: str, k: int) -> Iterable[str]:
    opened = service.opened  # before the horizons: after an undo, none of before it remains
    record = ranking_record(opened, opened.ranking.rank(source, k=k))
    past = opened.ranking.past(source, NUM_PAST)
    if not record["known"]:
        yield from _found(service, source)
    yield f"<h2>Next partners of {escape(source)}</h2>"
    if record["note"]:
        yield f"<p>{escape(record['note'][:1].upper() + record['note'][1:])}.</p>"
    yield _table(RANKED, map(_ranked_row, record["ranking"]))
    for name, of_pairs in service.horizons.items():
        rows = ranking_record(opened, opened.ranking.rank(source, k=k, horizon=of_pairs))["ranking"]
        yield f"<h2>Partners of {escape(source)} within {escape(name)}</h2>"
        yield _table(RANKED, map(_ranked_row, rows))
    yield "<h2>Past partners, the newest first</h2>"
    yield _table(("partner", "events", "first", "newest"), (_past_row(service, each) for each in past))
    if not past:
        yield "<p>None.</p>"
    try:
        yield "".join(_forecast_parts(service, source))
    except (Damaged, OSError) as error:  # OSError: the store is away
        yield f"<p>Earlier forecasts cannot be read: {escape(str(error))}</p>"


def _found(service: "LiveService", text: str) -> Iterable[str]:
    names = service.ranking.ids.sources
    near = [name for name in list(names) if text.lower() in name.lower()][:NUM_FOUND]
    if near:
        links = ", ".join(f'<a href="/?source={quote(name, safe="")}">{escape(name)}</a>' for name in near)
        yield f"<p>No node has exactly this id. Those that contain it: {links}</p>"


def _ranked_row(row: dict[str, Any]) -> Sequence[Cell]:
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in row["reasons"])
    return (
        (str(row["rank"]), "number"),
        (escape(str(row["target"])), ""),
        (printed_probability(row["probability"]), "number"),
        ("yes" if row["linked_before"] else "no", ""),
        (f"<ul>{reasons}</ul>" if reasons else "nothing stands out", ""),
    )


def _past_row(service: "LiveService", partner: PastPartner) -> Sequence[Cell]:
    times = (_short(time, service.opened.time_unit) for time in (partner.first, partner.latest))
    return (
        (escape(partner.target), ""),
        (f"{partner.num_events:,}", "number"),
        *((escape(time), "") for time in times),
    )


def _forecast_parts(service: "LiveService", source: str) -> Iterable[str]:
    """What was forecast of the node last, what came since, and how good the newest complete forecasts were."""
    layout, dataset = service.layout, service.dataset
    published = publications(layout, dataset).tail(1).to_dicts()
    if not published:
        return
    yield "<h2>Earlier forecasts</h2>"
    try:
        forecasts = read_table(layout.absolute(published[0]["forecasts"]), "forecasts")
    except ArtifactMissing:
        yield "<p>The newest published forecasts are no longer in the store.</p>"
        return
    start, unit = published[0]["start_time"], service.opened.time_unit
    came = {partner.target for partner in service.ranking.past(source, len(forecasts)) if partner.latest >= start}
    # With two id spaces the target of this id is another node, and its events are no past of the source.
    own = forecasts.filter(pl.col("id").cast(pl.String) == source, side=0).sort("rank").head(10)
    yield f"<p>{escape(published[0]['method'])}, for the window from {escape(_short(start, unit))}:</p>"
    rows = (
        (
            (str(row["rank"]), "number"),
            (escape(str(row["partner_id"])), ""),
            (printed_probability(row["probability"]), "number"),
            ("yes" if str(row["partner_id"]) in came else "no", ""),
        )
        for row in own.iter_rows(named=True)
    )
    yield _table(("rank", "partner", "probability", "came since"), rows) if len(own) else "<p>None of this node.</p>"
    yield from _ledger_parts(service)


def _ledger_parts(service: "LiveService") -> Iterable[str]:
    complete = complete_rows(ledger(service.layout, service.dataset)).tail(NUM_STEPS)
    if complete.is_empty():
        return
    yield "<p>What came of the newest complete forecasts, all nodes:</p>"
    rows = (
        (
            (str(row["step"]), "number"),
            (escape(row["method"]), ""),
            (f"{row['num_came']:,} of {row['num_pairs']:,}", "number"),
            ("" if row["precision_at_10"] is None else f"{row['precision_at_10']:.3f}", "number"),
        )
        for row in complete.iter_rows(named=True)
    )
    yield _table(("step", "method", "pairs that came", "precision at 10"), rows)


def _short(time: int, unit: TimeUnit) -> str:
    return str(written_moment(time, unit)).replace(".000000Z", "Z")


def _table(names: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    kinds: tuple[str, ...] = ("",) * len(names)
    body = ""
    for row in rows:
        kinds = tuple(f" class={kind}" if kind else "" for _, kind in row)
        cells = zip(names, row, kinds, strict=True)
        body += "<tr>" + "".join(f'<td data-name="{escape(name)}"{kind}>{cell}</td>' for name, (cell, _), kind in cells)
        body += "</tr>\n"
    head = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(names, kinds, strict=True))
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>" if body else ""


def openapi_page(schema: dict[str, Any]) -> str:
    """Give the interface for programs as a page: each request, its parameters, its body and its response."""
    parts = [
        f"<h1>{escape(schema['info']['title'])}</h1>",
        '<p class="quiet"><a href="/">Page for people</a>, <a href="/openapi.json">OpenAPI</a></p>',
    ]
    for path, methods in schema["paths"].items():
        for method, record in methods.items():
            parts += [f"<h2>{method.upper()} {escape(path)}</h2>", f"<p>{escape(record.get('description', ''))}</p>"]
            parameters = [(each["name"], each["schema"]) for each in record.get("parameters", [])]
            parts.append(_fields("parameter", parameters))
            body = record.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            parts.append(_schema_fields(schema, "in the body", body))
            good = record["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
            parts.append(_schema_fields(schema, "in the response", good))
    return PAGE.format(title=escape(schema["info"]["title"]), body="\n".join(parts))


def _schema_fields(schema: dict[str, Any], name: str, part: dict[str, Any]) -> str:
    model = schema.get("components", {}).get("schemas", {}).get(part.get("$ref", "").rpartition("/")[2])
    if model is None:
        return ""
    fields = list(model.get("properties", {}).items())
    inner = [
        _schema_fields(schema, f"each of {field}", own["items"])
        for field, own in fields
        if "$ref" in own.get("items", {})
    ]
    return _fields(name, fields) + "".join(inner)


def _fields(name: str, fields: Sequence[tuple[str, dict[str, Any]]]) -> str:
    rows = (((escape(field), ""), (escape(_kind(own)), "")) for field, own in fields)
    return _table((name, "kind"), rows)


def _kind(own: dict[str, Any]) -> str:
    kinds = [each.get("type", "") for each in own.get("anyOf", [own])]
    limits = [f"{text} {own[key]}" for key, text in LIMITS.items() if key in own]
    default = [f"by default {own['default']}"] if own.get("default") is not None else []
    return ", ".join([" or ".join(filter(None, kinds)) or "object", *limits, *default])


LIMITS = {"minimum": "at least", "maximum": "at most", "minItems": "at least", "maxItems": "at most"}
