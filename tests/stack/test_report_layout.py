"""The report in Chromium, wide and narrow: nothing leaves the page, is cut, or lies over something else."""

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from browser import Browser, browser

from dyformer.evaluation.drift import DRIFT_SCHEMA
from dyformer.evaluation.forecasts.forecast_rows import RELIABILITY_SCHEMA
from dyformer.evaluation.rows import METRICS_SCHEMA
from dyformer.experiments.html_report import html_report
from dyformer.experiments.verdict import Verdict

pytestmark = pytest.mark.stack

METHODS = ("Forecaster with DyFormer", "Forecaster without vectors", "Logistic regression on pair features", "L3")
VERDICT = Verdict(
    sentences=("Forecaster without vectors publishes: it is as good as Forecaster with DyFormer and costs less.", "It"),
    numbers={
        "better than the best simple method": "+18 %",
        "of ten forecasts come": "not known",
        "mean error of the probabilities": "10.0 points",
        "added by the vectors": "not known",
    },
)
OUTSIDE = """[...document.querySelectorAll('h1, h2, p, img, nav a, .tiles div, .tiles b, summary')].filter(each => {
    const box = each.getBoundingClientRect();
    return box.left < 0 || box.right > innerWidth || each.scrollWidth > Math.ceil(box.width) + 1;
}).map(each => each.tagName + ' ' + each.textContent)"""
OVERLAPS = """(() => {
    const boxes = [...document.querySelectorAll('h1, h2, p, img, nav a, .tiles div, summary')]
        .filter(each => !each.closest('details:not([open]) > :not(summary)'))
        .map(each => [each, each.getBoundingClientRect()]);
    return boxes.flatMap(([one, a], k) => boxes.slice(k + 1).filter(([other, b]) =>
        Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1
    ).map(([other, b]) => one.textContent + ' | ' + other.textContent));
})()"""


def page() -> str:
    rows = [
        {"dataset": "mylog", "protocol": "prequential", "method": method, "seed": 0, "step": step, "metric": "mrr"}
        | {"family": "mixed", "slice": "known", "value": 0.3 - number / 20, "num_pairs": 900, "low": 0.1, "high": 0.4}
        | {"is_baseline": number > 1, "best_baseline": METHODS[2]}
        for number, method in enumerate(METHODS)
        for step in ("12", "macro")
    ]
    rows += [
        {"dataset": "mylog", "protocol": "paper", "method": method, "seed": 0, "step": str(step), "metric": "auc"}
        | {"family": "random", "slice": "all", "value": 0.8 - number / 20, "num_pairs": 900, "low": 0.1, "high": 0.9}
        | {"is_baseline": number > 1, "best_baseline": METHODS[2]}
        for number, method in enumerate(METHODS)
        for step in range(8, 13)
    ]
    log = {"dataset": "mylog", "protocol": "prequential", "method": "-", "step": "micro", "value": 0.5}
    rows += [{**log, "metric": name} for name in ("coverage", "repeat_rate")]
    link = {"source": ["a" * 90], "target": ["b"], "probability": [0.5], "reasons": [["many contacts"] * 3]}
    reliability = [("L3", False, low, low + 0.5, 40, low + 0.2, low + 0.1, low, low + 0.3) for low in (0.0, 0.5)]
    outcome = {"method": METHODS[0], "num_pairs": 123_456, "num_came": 8, "precision_at_10": 0.2}
    outcome |= {"precision_at_10_low": 0.1, "precision_at_10_high": 0.3, "probability": 0.2, "calibration_error": 0.0}
    starts = {step: datetime.fromisoformat(f"2024-12-{step:02d} 10:20:30") for step in range(1, 14)}
    metrics = ("interactions", "active_nodes", "new_nodes", "repeats", "busiest_nodes")
    drift = [(step, metric, 0.5, 0.4, float(step)) for metric in metrics for step in range(4, 14)]
    return html_report(
        pl.DataFrame(rows, schema=METRICS_SCHEMA),
        "mylog",
        title=f"{'a_long_name_of_a_log' * 4} v1 step 12",
        counts={"rows": "1,500 accepted", "code": "f" * 64},
        verdict=VERDICT,
        details=["Decided."],
        links={"Forecasts for step 13": pl.DataFrame(link)},
        reliability=pl.DataFrame(reliability, schema=RELIABILITY_SCHEMA, orient="row"),
        ledger=pl.DataFrame([{"step": step, "valid_from": starts[step], **outcome} for step in range(4, 14)]),
        drift=pl.DataFrame(drift, schema=DRIFT_SCHEMA, orient="row"),
        starts=starts,
    )


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, str]]:
    """Start a browser, and give it with the address of the report."""
    folder = tmp_path_factory.mktemp("layout")
    file = folder / "report.html"
    file.write_text(page())
    with browser(folder / "profile") as tab:
        yield tab, file.as_uri()


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("is_open", [False, True], ids=["folded", "open"])
def test_nothing_is_cut_or_lies_over_something_else(opened: tuple[Browser, str], width: int, is_open: bool):
    tab, address = opened
    tab.size(width, 900)
    tab.open(address, "publishes", "Drift of the log", "Ranking of the next links")  # anew, with all parts folded
    if is_open:
        tab.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run(OUTSIDE) == []
    assert tab.run(OVERLAPS) == []
    pictured = Path(os.environ["DYFORMER_SCREENSHOTS"]) if "DYFORMER_SCREENSHOTS" in os.environ else None
    if pictured is not None:
        tab.picture(pictured / f"report-{width}.png", width=width, height=3_000)
    assert tab.run("[...document.images].every(each => each.naturalWidth > 0)")


def test_the_first_screen_has_the_calibration_and_the_newest_steps(opened: tuple[Browser, str]):
    tab, address = opened
    tab.size(1280, 900)
    tab.open(address, "publishes")
    ends = "[...document.images].map(each => [each.alt, each.getBoundingClientRect().bottom])"
    on_screen = [name for name, bottom in tab.run(ends) if bottom < 900]
    assert on_screen == ["Probabilities against the links that came", "AUC of each step, all links"]
