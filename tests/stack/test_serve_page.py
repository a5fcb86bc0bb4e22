"""Claims about the page of `dyformer serve` in Chromium: two widths fit, all parts are there, and nothing is loaded.

The pictures are written to the folder DYFORMER_SCREENSHOTS, if it is set.
"""

import os
from functools import partial
from pathlib import Path

import httpx
import polars as pl
import pytest
from browser import browser
from live_logs import NAME, ingest, rows_of
from other_page import opened
from served import served

from dyformer.scoring.event_forecaster import EventForecaster
from flows.live.server import application
from flows.live.service import LiveService
from flows.service.guard import Guard
from flows.tasks import event_state
from storage.artifacts.artifact import Lineage, write_artifact
from storage.champions import OUTCOME_SCHEMA, PUBLICATION_SCHEMA
from storage.layout import Layout

pytestmark = pytest.mark.stack

ROWS = rows_of()
LONG = "a-source-with-a-very-long-name-" * 8
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OUTSIDE = """[...document.querySelectorAll('body *')].filter(each =>
    each.offsetParent && each.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map(each => each.tagName + ': ' + each.innerText.slice(0, 40))"""


def write(layout, kind, name, table, **keys):
    lineage = Lineage(kind=kind, dataset=NAME, table_version=1, until=3, settings=keys)
    names = {"version": 1, "until": 3, "settings": lineage.settings_hash}
    names |= {"seed": 0} if kind == "forecasts" else {}
    return write_artifact(layout.artifact(kind, NAME, **names), {name: table}, lineage)


def publish(layout):
    """Write a publication with forecasts of u3, and one outcome."""
    came, start = ROWS[-1][1], ROWS[-20][2] * 1_000_000
    forecasts = pl.DataFrame(
        {"side": 0, "id": "u3", "partner_id": [came, "p-never"], "rank": [1, 2], "probability": [0.5, 0.1]}
    )
    address = write(layout, "forecasts", "forecasts", forecasts)
    row = dict.fromkeys(PUBLICATION_SCHEMA) | {
        "number": 1,
        "champion": 1,
        "method": "Contact recency",
        "step": 4,
        "start_time": start,
        "late": False,
        "forecasts": layout.relative(address),
    }
    write(layout, "publications", "publications", pl.DataFrame([row], schema=PUBLICATION_SCHEMA))
    outcome = dict.fromkeys(OUTCOME_SCHEMA) | {
        "number": 1,
        "slice": "all",
        "num_pairs": 100,
        "num_came": 12,
        "precision_at_10": 0.12,
    }
    write(layout, "outcomes", "outcomes", pl.DataFrame([outcome], schema=OUTCOME_SCHEMA))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Serve a log with a publication, behind the guard; give a tab of Chromium and the address."""
    folder = tmp_path_factory.mktemp("served")
    layout = Layout(str(folder / "store"))
    ingest(layout, folder, [*ROWS, (LONG, "p1", ROWS[-1][2]), ("u3", ROWS[-1][1], ROWS[-1][2])], 0)
    publish(layout)
    with pytest.MonkeyPatch.context() as patch:
        few = partial(EventForecaster, gate_rounds=8, past_rounds=8, new_rounds=8)
        patch.setattr(event_state, "EventForecaster", few)
        service = LiveService(layout=layout, dataset=NAME, show=lambda text: None)
    guarded = Guard(application=application(service), hosts=("127.0.0.1:*",), login="dyformer:secret")
    with served(guarded) as client, browser(folder / "profile") as tab:
        address = str(client.base_url).rstrip("/")
        tab.logins[address] = ("dyformer", "secret")
        yield tab, address


def picture(tab, name, width):
    folder = os.environ.get("DYFORMER_SCREENSHOTS")
    if folder:
        tab.picture(Path(folder) / f"{name}-{width}.png", width=width, height=1_600)


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_of_a_node_has_its_parts_and_fits(page, width):
    tab, address = page
    tab.size(width, 900)
    text = tab.open(f"{address}/?source=u3", "Next partners of u3", "Past partners", "Earlier forecasts")
    for part in ("probability", "linked before", "reasons", "precision at 10", "12 of 100", "Contact recency"):
        assert part in text
    assert "p-never" in text
    rows = tab.run("[...document.querySelectorAll('table')].at(-2).innerText")
    assert rows.count("yes") == rows.count("no") == 1
    assert tab.run(OVERFLOW) <= 0
    assert tab.run(OUTSIDE) == []
    assert all(request.startswith((address, "data:")) for request in tab.requests)
    picture(tab, "serve", width)


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("path", ["/", f"/?source={LONG}", "/?source=u", "/docs"])
def test_every_page_fits(page, width, path):
    tab, address = page
    tab.size(width, 900)
    tab.open(f"{address}{path}", "POST /EVENTS" if path == "/docs" else "best partners as of now")
    assert tab.run(OVERFLOW) <= 0
    assert tab.run(OUTSIDE) == []
    picture(tab, f"serve-{'docs' if path == '/docs' else len(path)}", width)


def test_a_user_finds_a_node_by_a_part_of_its_id(page):
    tab, address = page
    tab.open(f"{address}/", "best partners as of now")
    tab.write("very-long")
    tab.wait("Those that contain it")
    tab.run("document.querySelector('a[href^=\"/?source\"]').click()")
    tab.wait(f"Next partners of {LONG[:40]}", "Past partners")


def test_a_page_on_another_port_reads_no_ranking_and_adds_no_event(page, tmp_path):
    tab, address = page
    tab.open(f"{address}/", "best partners as of now")  # with the login, which the browser keeps

    def held() -> tuple[bool, str]:
        with httpx.Client(base_url=address, auth=("dyformer", "secret")) as client:
            [line] = [each for each in client.get("/metrics").text.splitlines() if each.startswith("dyformer_events ")]
            return client.get("/rank/hostile").json()["known"], line

    before = held()
    assert {"add an event silently", "read a ranking"} < opened(tab, tmp_path / "page", {"serve": address})
    assert held() == before
    assert not before[0]
