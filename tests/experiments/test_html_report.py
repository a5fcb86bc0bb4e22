"""The page of a run holds its tables, sentences, links and plots, requests nothing, and escapes every text."""

import base64
import re
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from typing import Any

import polars as pl
import pytest
from matplotlib.figure import Figure

from dyformer.evaluation.drift import DRIFT_SCHEMA
from dyformer.evaluation.forecasts.forecast_rows import RELIABILITY_SCHEMA
from dyformer.evaluation.rows import METRICS_SCHEMA
from dyformer.experiments import html_report as page_of_a_run
from dyformer.experiments.html_report import html_report, plots_of
from dyformer.experiments.verdict import Verdict

TAGS = set("html head meta title style body h1 h2 p div b nav a details summary table caption tr th td img".split())  # noqa: SIM905, as a list it is long
VERDICT = Verdict(sentences=("Ours publishes: it is better.", "It holds."), numbers={"of ten forecasts come": "1.4"})
EVIL = '<script src="http://x.example/a.js">alert(1)</script>'


class Page(HTMLParser):
    """Elements with their attributes, and the texts, as a browser reads them."""

    def __init__(self, page: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def plots(self) -> dict[str, bytes]:
        images = [attributes for tag, attributes in self.elements if tag == "img"]
        sources = {str(each["alt"]): str(each["src"]).removeprefix("data:image/png;base64,") for each in images}
        return {title: base64.b64decode(source, validate=True) for title, source in sources.items()}


def rows(protocol: str, steps: tuple[str, ...], *cells: tuple[str, str, str]) -> pl.DataFrame:
    found = []
    for metric, family, part in cells:
        for method, value in (("Ours", 0.8), ("L3", 0.7)):
            about = {"dataset": "mylog", "protocol": protocol, "method": method, "seed": 0, "metric": metric}
            about |= {"family": family, "slice": part, "is_baseline": method == "L3", "best_baseline": "L3"}
            numbers = {"value": value, "num_pairs": 40 if part == "busiest" else 50}
            numbers |= {"low": value - 0.1, "high": value + 0.1}
            found += [{**about, **numbers, "step": step} for step in (*steps, "macro")]
    return pl.DataFrame(found, schema=METRICS_SCHEMA)


RANKED = (
    ("mrr", "mixed", "known"),
    ("auc", "random", "known"),
    ("auc", "historical", "known"),
    ("precision_at_1", "published", "known"),
    ("precision_at_10", "published", "known"),
    ("precision_at_10", "published", "busiest"),
)


def ranking(*steps: str) -> pl.DataFrame:
    log = [
        {"dataset": "mylog", "protocol": "prequential", "method": "-", "step": "micro", "metric": name, "value": 0.5}
        for name in ("coverage", "repeat_rate")
    ]
    return pl.concat([rows("prequential", steps, *RANKED), pl.DataFrame(log, schema=METRICS_SCHEMA)])


def test_page_has_the_tables_sentences_and_plots_of_both_protocols():
    metrics = pl.concat([ranking("5"), rows("paper", ("5",), ("auc", "random", "all"))])
    page = Page(html_report(metrics, "mylog", counts={"nodes": "300"}, verdict=VERDICT, details=["champion: Ours"]))
    text = "".join(page.texts)
    for expected in ("nodes", "300", "champion: Ours", "0.800 [0.700, 0.900]", "The best baseline in MRR is L3"):
        assert expected in text
    assert text.index("mylog, prequential protocol") < text.index("mylog, paper protocol")
    assert list(page.plots()) == [
        "MRR with intervals",
        "AUC of each method by family of negatives",
        "Precision of the ten best partners, known nodes",
        "Precision of the ten best partners, busiest nodes",
        "Precision of the k best partners",
        "AUC with intervals, all links",
    ]
    assert all(image.startswith(b"\x89PNG") for image in page.plots().values())


def test_one_plot_is_drawn_where_all_nodes_are_the_busiest_ones():
    metrics = ranking("5").with_columns(num_pairs=pl.lit(50))
    titles = list(Page(html_report(metrics, "mylog", counts={}, verdict=VERDICT)).plots())
    assert [title for title in titles if "ten best partners" in title] == [
        "Precision of the ten best partners, known nodes"
    ]


def test_the_plots_of_a_page_are_those_that_a_browser_finds():
    reliability = service_rows()["reliability"]
    text = html_report(ranking("5"), "mylog", counts={"<img>": "300"}, verdict=VERDICT, reliability=reliability)
    assert len(Page(text).plots()) > 1
    assert plots_of(text) == Page(text).plots()


def test_curves_are_drawn_where_several_steps_were_evaluated():
    metrics = pl.concat([ranking("5", "6"), rows("paper", ("6",), ("auc", "random", "all"))])
    earlier = rows("paper", ("4", "5", "6"), ("auc", "random", "all")).filter(method="L3")
    curves = {"MRR of each step", "AUC of each step, all links"}
    assert curves <= set(Page(html_report(metrics, "mylog", counts={}, earlier=earlier)).plots())
    without = metrics.filter(pl.col("step") != "5")
    assert not curves & set(Page(html_report(without, "mylog", counts={})).plots())


def test_every_curve_over_steps_has_their_dates(monkeypatch: pytest.MonkeyPatch):
    given = []

    def drawn(rows: pl.DataFrame, **others: Any) -> Figure:
        given.append(others["starts"])
        return Figure()

    monkeypatch.setattr(page_of_a_run, "step_curve", drawn)
    monkeypatch.setattr(page_of_a_run, "drift_curve", lambda rows, starts: drawn(rows, starts=starts))
    starts = {5: datetime.fromisoformat("2024-01-05"), 6: datetime.fromisoformat("2024-01-12")}
    pairs = rows("paper", ("5", "6"), ("auc", "random", "all"), ("auc", "random", "new"))
    metrics, drift = pl.concat([ranking("5", "6"), pairs]), service_rows()["drift"]
    html_report(metrics, "mylog", counts={}, drift=drift, starts=starts)
    assert given == [starts] * 4  # MRR, AUC of all and of the new links, drift


def test_the_curves_of_the_first_screen_name_the_method_that_publishes(monkeypatch: pytest.MonkeyPatch):
    given = []

    def drawn(rows: pl.DataFrame, **others: Any) -> Figure:
        given.append(others.get("published"))
        return Figure()

    monkeypatch.setattr(page_of_a_run, "step_curve", drawn)
    metrics = pl.concat([ranking("5", "6"), rows("paper", ("5", "6"), ("auc", "random", "all"))])
    html_report(metrics, "mylog", counts={}, verdict=replace(VERDICT, published="L3"))
    assert given == ["L3"] * 2


def test_the_first_screen_is_the_verdict_then_its_numbers_the_calibration_and_the_contents():
    service = {name: rows for name, rows in service_rows().items() if name != "ledger"}
    page = html_report(ranking("5"), "mylog", counts={}, verdict=VERDICT, details=["why"], **service)
    marks = (
        *VERDICT.sentences[:1],
        "1.4",
        "Probabilities against the links",
        f"<p>{VERDICT.sentences[1]}</p>",
        "<p>why</p>",
        "<nav>",
        "Drift of each step",
        "MRR with intervals",
    )
    positions = [page.index(mark) for mark in marks]
    assert positions == sorted(positions)
    parsed = Page(page)
    links = [str(each["href"]) for tag, each in parsed.elements if tag == "a"]
    assert links == [f"#{each['id']}" for tag, each in parsed.elements if tag == "h2"]
    assert len(links) == 4
    assert page.count("<table>") == page.count("</table></div></details>") == 3  # each one folded


def service_rows() -> dict[str, Any]:
    """Give calibration, outcomes of published forecasts and drift, as a service has them after some steps."""
    reliability = [
        ("Ours", False, 0.0, 0.5, 40, 0.25, 0.2, 0.1, 0.3),
        ("Ours", False, 0.5, 1.0, 40, 0.7, 0.8, 0.7, 0.9),
    ]
    outcome = {
        "valid_from": None,
        "method": "Ours",
        "num_pairs": 40,
        "num_came": 8,
        "precision_at_10": 0.2,
        "precision_at_10_low": 0.1,
    }
    outcome |= {"precision_at_10_high": 0.3, "probability": 0.25, "calibration_error": 0.05}
    drift = [(step, "repeats", 0.5, 0.45, deviation) for step, deviation in ((4, 0.5), (5, 3.25))]
    return {
        "reliability": pl.DataFrame(reliability, schema=RELIABILITY_SCHEMA, orient="row"),
        "ledger": pl.DataFrame([{"step": step, **outcome} for step in (4, 5)]),
        "drift": pl.DataFrame(drift, schema=DRIFT_SCHEMA, orient="row"),
    }


def test_the_drift_of_the_first_steps_has_a_table_and_no_empty_plot():
    rows = pl.DataFrame([(step, "repeats", 0.5, None, None) for step in (1, 2)], DRIFT_SCHEMA, orient="row")
    page = html_report(ranking("5"), "mylog", counts={}, drift=rows)
    assert '<h2 id="drift-of-the-log">' in page
    assert "Drift of each step" not in page


def test_what_a_service_knows_comes_before_the_comparison_and_each_part_has_its_heading():
    links = {"Forecasts for step 6": pl.DataFrame({"source": ["a"], "target": ["b"], "probability": [0.5]})}
    inputs = pl.DataFrame({"inputs": ["contacts"], "gain": [1.0]})
    page = html_report(
        ranking("4", "5"), "mylog", counts={"nodes": "3"}, verdict=VERDICT, links=links, inputs=inputs, **service_rows()
    )
    assert re.findall("<h2 [^>]*>(.*)</h2>", page) == [
        "How far the probabilities can be trusted",
        "The newest steps",
        "What came of the published forecasts",
        "Drift of the log",
        "Ranking of the next links",
        "Most probable links",
        "What the inputs give",
        "The data",
    ]
    assert list(Page(page).plots())[:4] == [
        "Probabilities against the links that came",
        "MRR of each step",
        "Precision and calibration of the published forecasts",
        "Drift of each step",
    ]
    newest = page[page.index("The newest step against the median") :].partition("</table>")[0]
    assert "<td>3.2</td>" in newest
    assert "<td>4</td>" not in newest  # the earlier step is in the plot alone


def test_numbers_have_four_significant_digits_without_zeros_at_the_end():
    texts = {
        0.000049: "4.9e-05",
        0.00012345: "0.0001234",
        -3.2: "-3.2",
        0.25: "0.25",
        0.123456: "0.1235",
        12.34567: "12.35",
        999.96: "1000",
        -12345.678: "-12346",
        1234567.8: "1234568",
        0.0: "0",
        1.0: "1",
    }
    frame = pl.DataFrame({"source": "a", "score": [*texts]})
    page = html_report(ranking("5"), "mylog", counts={}, links={"Forecasts": frame})
    table = page[page.index("Forecasts") :].partition("</table>")[0]
    assert re.findall("<td>a</td><td>([^<]*)</td>", table) == [*texts.values()]


def test_page_without_a_protocol_has_no_heading_for_it():
    page = html_report(ranking("5"), "mylog", counts={})
    assert "Ranking of the next links" in page
    assert "paper&#x27;s protocol" not in page
    assert "Most probable links" not in page


def test_names_between_backticks_of_the_verdict_are_set_as_code():
    verdict = Verdict(sentences=("First.", "`latest_<b>` has `the` rest."), numbers={})
    page = html_report(ranking("5"), "mylog", counts={}, verdict=verdict)
    assert "<p><code>latest_&lt;b&gt;</code> has <code>the</code> rest.</p>" in page


def test_texts_of_the_log_are_escaped_and_nothing_is_requested():
    links = pl.DataFrame({"source": [EVIL], "target": ["a&b"], "probability": [0.25], "reasons": [[EVIL, "x"]]})
    metrics = ranking("5").with_columns(
        pl.col("method").replace("L3", EVIL), pl.col("best_baseline").replace("L3", EVIL)
    )
    page = html_report(
        metrics,
        "mylog",
        counts={EVIL: EVIL},
        verdict=Verdict(sentences=(EVIL, EVIL), numbers={EVIL: EVIL}),
        details=[EVIL],
        links={EVIL: links},
    )
    parsed = Page(page)
    assert "<script" not in page
    assert {tag for tag, _ in parsed.elements} <= TAGS
    assert sum(text == EVIL for text in parsed.texts) >= 5  # count, sentence, title, id, name of a method
    assert "a&b" in parsed.texts
    assert "0.25" in parsed.texts
    addresses = [each.get("src") or each.get("href") for _, each in parsed.elements if each.keys() & {"src", "href"}]
    addresses = [address for address in addresses if not str(address).startswith("#")]  # parts of the page
    assert addresses
    assert all(str(address).startswith("data:image/png;base64,") for address in addresses)
    assert all("url(" not in text and "@import" not in text for text in parsed.texts)
    policies = [each["content"] for _, each in parsed.elements if "http-equiv" in each]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]
