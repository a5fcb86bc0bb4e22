"""The page of a run is made from the newest report, and lists each forecast pair once."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from dyformer.evaluation.rows import METRICS_SCHEMA
from dyformer.experiments.settings import Experiment
from flows.tasks import report
from flows.tasks.report import NUM_LINKS, most_probable, newest_report, step_starts, titled_links
from flows.tasks.snapshots import Snapshots
from storage.artifacts.artifact import Artifact, ArtifactMissing, Lineage, write_artifact
from storage.artifacts.made import Planned
from storage.bytes import files
from storage.bytes.files import write_bytes
from storage.events.table import DatasetNotIngested
from storage.layout import Layout


def opened(*, directed: bool) -> Snapshots:
    lineage = Lineage(kind="snapshots", dataset="mylog", table_version=1, settings={"window": "7d"})
    artifact = Artifact(address="", digest="", lineage=lineage, entries={})
    snapshots = Snapshots(layout=Layout("data"), artifact=artifact, steps=pl.DataFrame({"step": [1]}))
    vars(snapshots)["declared"] = {"directed": directed}
    return snapshots


def forecasts(*pairs: tuple[int, str, int, str, float]) -> pl.DataFrame:
    frame = pl.DataFrame(pairs, schema=["side", "id", "partner_side", "partner_id", "probability"], orient="row")
    return frame.with_columns(score=pl.col("probability"), linked_before=pl.lit(True), reasons=pl.lit(["recency"]))


def test_most_probable_links_hold_each_pair_once():
    both = forecasts((0, "a", 0, "b", 0.3), (0, "b", 0, "a", 0.3), (0, "a", 0, "c", 0.9))
    undirected = most_probable(opened(directed=False), both)
    assert undirected.select("source", "target", "probability").rows() == [("a", "c", 0.9), ("a", "b", 0.3)]
    one_way = most_probable(opened(directed=True), both)
    assert one_way.select("source", "target").rows() == [("a", "c"), ("a", "b"), ("b", "a")]
    sides = forecasts((1, "a", 0, "u", 0.4), (0, "u", 1, "a", 0.4), (0, "v", 1, "a", 0.1))
    for directed in (True, False):
        assert most_probable(opened(directed=directed), sides)["source"].to_list() == ["u", "v"]


def test_of_equal_probabilities_the_higher_score_is_first():
    """A calibration gives many scores the same probability."""
    pairs = [(0, "a", 0, name, probability) for name, probability in (("b", 0.5), ("c", 0.5), ("d", 0.9), ("e", 0.5))]
    scored = forecasts(*pairs).with_columns(score=pl.Series([1.0, 3.0, 4.0, 2.0]))
    assert most_probable(opened(directed=True), scored)["target"].to_list() == ["d", "c", "e", "b"]


def test_steps_have_dates_where_times_are_dates():
    snapshots = opened(directed=True)
    snapshots = replace(snapshots, steps=pl.DataFrame({"step": [1, 2], "start_time": [0, 86_400_000_000]}))
    vars(snapshots)["declared"] = {"time_unit": "us"}
    assert step_starts(snapshots) == {1: datetime.fromisoformat("1970-01-01"), 2: datetime.fromisoformat("1970-01-02")}
    vars(snapshots)["declared"] = {"time_unit": "step"}
    assert step_starts(snapshots) is None


def test_most_probable_links_are_few():
    many = forecasts(*((0, "a", 0, f"n{number}", number / 100) for number in range(50)))
    assert most_probable(opened(directed=True), many)["probability"].to_list() == [
        number / 100 for number in range(49, 49 - NUM_LINKS, -1)
    ]


def test_the_titles_of_links_name_whose_they_are_where_there_are_any(monkeypatch: pytest.MonkeyPatch):
    names = {"method": pl.lit("L3"), "step": pl.lit(7), "valid_from": None, "valid_to": None}
    tables = dict.fromkeys(("forecasts", "new"), forecasts((0, "a", 0, "b", 0.5)).with_columns(**names))
    read: list[str] = []
    stored = SimpleNamespace(table=lambda name: read.append(name) or tables[name])
    monkeypatch.setattr(report, "open_artifact", lambda address: stored)
    links = titled_links(opened(directed=True), "address")
    assert list(links) == ["Forecasts by L3 for step 7, all links", "Forecasts by L3 for step 7, new links alone"]
    assert [table["source"].to_list() for table in links.values()] == [["a"], ["a"]]
    assert read == ["forecasts", "new"]  # each once
    tables |= {name: table.clear() for name, table in tables.items()}
    assert list(titled_links(opened(directed=True), "address")) == [
        "Forecasts, all links",
        "Forecasts, new links alone",
    ]


def test_newest_report_is_the_last_one_on_the_newest_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path))
    layout = Layout.from_environment()
    with pytest.raises(DatasetNotIngested, match="no dataset 'mylog'"):
        newest_report("mylog")
    write_bytes(layout.declaration("mylog"), b"{}")
    with pytest.raises(ArtifactMissing, match="run `dyformer run mylog` first"):
        newest_report("mylog")

    def written_report(version: int, settings: str, written: int) -> str:
        address = layout.artifact("report", "mylog", version=version, until=3, settings=settings, seed=0)
        lineage = Lineage(kind="report", dataset="mylog", table_version=version, until=3)
        write_artifact(address, {"summary.json": b"{}"}, lineage)
        os.utime(Path(address) / "manifest.json", (written, written))
        return address

    written_report(9, "a", 400)
    written_report(10, "a", 100)
    last = written_report(10, "b", 300)
    written_report(10, "c", 200)
    assert newest_report("mylog") == last
    looked_at: list[str] = []
    modified = files.modified
    monkeypatch.setattr(files, "modified", lambda address: looked_at.append(address) or modified(address))
    assert newest_report("mylog") == last
    assert all("/version=10/" in address for address in looked_at)  # those of earlier versions cost nothing
    assert len(looked_at) == 3
    earlier = layout.artifact("report", "mylog", version=10, until=3, settings="c", seed=0)
    lineage = Lineage(kind="report", dataset="mylog", table_version=10, until=3)
    assert Planned(address=earlier, lineage=lineage).made(dict) == earlier  # a run of its settings is repeated
    assert newest_report("mylog") == last


def test_a_report_of_a_moved_store_names_what_is_there_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "here"))
    before = Layout.from_environment()
    keys = {"version": 1, "until": 3, "settings": "a", "seed": 0}
    model, scores = (before.artifact(kind, "mylog", **keys) for kind in ("model", "scores"))
    texts = {
        "title": "L3 of 7_forecasts/a",
        "file": "/logs/dataset=a/log.csv",
        "tracker": f"sqlite:///{before.root}/mlflow.db",
    }
    summary = {
        "addresses": {"scores": [scores]},
        "promotion": {"champion": {"models": [model]}},
        "training": "",
        **texts,
    }
    rows = pl.DataFrame(schema=METRICS_SCHEMA)
    address = before.artifact("report", "mylog", **keys)
    lineage = Lineage(kind="report", dataset="mylog", table_version=1, until=3)

    class Plan:
        is_current = False

        def made(self, make: Callable[[], dict[str, Any]]) -> str:
            contents = make()
            assert str(tmp_path) not in contents["summary.json"].decode().replace(texts["tracker"], "")
            return write_artifact(address, contents, lineage)

    monkeypatch.setattr(report, "planned_report", lambda *given: Plan())
    report.write_report("", rows, summary, Experiment())
    (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "there"))
    after = Layout.from_environment()
    _, found = report.read_report(after.absolute(before.relative(address)))
    assert found["addresses"]["scores"] == [after.artifact("scores", "mylog", **keys)]
    assert found["promotion"]["champion"]["models"] == [after.artifact("model", "mylog", **keys)]
    assert {name: found[name] for name in texts} == texts


def test_a_report_is_replaced_where_its_parts_were_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After a repair the forecasts may have another address, and the metrics other numbers."""
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path))
    layout = Layout.from_environment()
    address = layout.artifact("report", "mylog", version=1, until=3, settings="a", seed=0)
    plan = Planned(address=address, lineage=Lineage(kind="report", dataset="mylog", table_version=1, until=3))
    monkeypatch.setattr(report, "planned_report", lambda *given: plan)
    rows = pl.DataFrame([{"metric": "mrr", "value": 0.25}], schema=METRICS_SCHEMA)

    def written(forecasts: str, training: str, rows: pl.DataFrame = rows) -> tuple[str, str, float]:
        address = layout.artifact("forecasts", "mylog", version=1, until=3, settings=forecasts, seed=0)
        report.write_report("", rows, {"addresses": {"forecasts": address}, "training": training}, Experiment())
        found, summary = report.read_report(plan.address)
        return summary["addresses"]["forecasts"].partition("settings=")[2][:1], summary["training"], found["value"][0]

    assert written("b", "first") == ("b", "first", 0.25)
    assert written("b", "again") == ("b", "first", 0.25)  # nothing has changed
    assert written("c", "repaired") == ("c", "repaired", 0.25)
    assert written("c", "measured", rows.with_columns(value=0.5)) == ("c", "measured", 0.5)


def test_a_verdict_counts_no_window_from_the_forecast_step_on(monkeypatch: pytest.MonkeyPatch):
    forecasts = pl.DataFrame(
        {"step": [4, 4], "valid_from": [None] * 2, "valid_to": [None] * 2, "linked_before": [True] * 2}
    )
    steps = pl.DataFrame({"step": [3, 1, 2, 4, 5], "num_interactions": [30, 100, 30, 1000, 1]})
    tables = {"forecasts": forecasts, "steps": steps}
    artifact = SimpleNamespace(table=tables.get, content=lambda name: b'{"calibration_step": 3}')
    monkeypatch.setattr(report, "find_artifact", lambda address: artifact)
    facts = report.forecast_facts("forecasts", "snapshots")
    assert facts is not None
    assert facts["uneven"] == (1, 2)
    assert (facts["step"], facts["calibration_step"], facts["repeats"]) == (4, 3, 1)
