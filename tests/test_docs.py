"""The documentation site: a strict build without a network, with every setting and folder on the generated pages."""

import gzip
import importlib.util
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest
import typer.main
from typer.core import TyperGroup

from dyformer import read_log
from dyformer.experiments.settings import settings_table
from flows.cli import app

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_site_builds_strictly_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    build = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert build.returncode == 0, build.stderr
    built = {page.stem: page.read_text() for page in (tmp_path / "site").glob("*.html")}
    assert {"index", "own_log", "schedule", "api", "settings", "evaluation", "architecture", "reliability"} <= set(
        built
    )
    assert "AUC in percent" in built["api"]
    for page in built.values():
        assert not re.search(r'<(?:script|link rel="stylesheet")[^>]*(?:src|href)="https?:', page)


def test_every_page_that_the_code_names_is_there() -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), page)
        for folder in ("dyformer", "storage", "flows", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for page in re.findall(r"docs/[\w/-]+\.md", path.read_text())
    }
    assert len(named) > 5
    assert not [(path, page) for path, page in sorted(named) if not (ROOT / page).exists()]


def test_pictures_of_the_pages_are_there_and_small() -> None:
    page = (ROOT / "docs" / "ui.md").read_text()
    used = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page)
    assert len(used) > 5
    assert {ROOT / "docs" / name for name in used} == set((ROOT / "docs" / "screenshots").iterdir())
    assert all((ROOT / "docs" / name).stat().st_size < 150_000 for name in used)


def test_the_verdict_of_the_readme_and_the_first_table_are_of_one_run() -> None:
    verdict = re.search(
        r"^generated: (?P<method>.+?) publishes.*?best simple method, (?P<best>.+?): MRR (?P<value>\S+) to"
        r" (?P<other>\S+), (?P<words>[a-z ]+), over (?P<number>[\d,]+) links",
        (ROOT / "README.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert verdict is not None
    title, _, *rows = (ROOT / "docs" / "first_table.md").read_text().split("```")[1].strip().splitlines()
    assert f"{verdict['number']} queries" in title
    [published], [best] = ([row for row in rows if row.startswith(verdict[name])] for name in ("method", "best"))
    value, low, high = re.findall(r"[+-]?\d\.\d+", published)[0], *re.findall(r"[+-]\d\.\d+", published)[1:]
    assert (value, re.findall(r"\d\.\d+", best)[0]) == (verdict["value"], verdict["other"])
    is_better, is_worse = float(low) > 0, float(high) < 0
    words = "clearly better" if is_better else "clearly worse" if is_worse else "not clearly different"
    assert verdict["words"] == words


def test_page_of_settings_has_every_one_with_its_meaning(pages: ModuleType) -> None:
    page = pages.settings_page()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| `[^`]+` \| [^|]+ \| ([^|]+) \|$", page, re.MULTILINE))
    assert set(rows) == {setting.name for setting in settings_table()}
    assert all(len(meaning) > 10 for meaning in rows.values())
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == [
        "graph",
        "model",
        "pretrain",
        "finetune",
        "promotion",
        "drift",
        "retrain",
        "warm_start",
        "max_epochs",
    ]


def test_page_of_the_architecture_has_every_folder(pages: ModuleType) -> None:
    page = pages.architecture_page()
    for package in ("dyformer", "storage", "flows"):
        for folder in (ROOT / package).glob("*/__init__.py"):
            assert f"`{folder.parent.name}`" in page
    assert "| |" not in page


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"], ids=lambda page: page.stem
)
def test_every_command_on_a_page_is_one_with_its_options(page: Path) -> None:
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    blocks = re.findall(r"^```$(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if re.match(r"(\$ )?dyformer \w", line)]
    for line in lines:
        name = line.removeprefix("$ ").split()[1]
        assert name in command.commands, line
        parameters = [*command.params, *command.commands[name].params]
        known = {option for parameter in parameters for option in [*parameter.opts, *parameter.secondary_opts]}
        assert set(re.findall(r"(?<=\s)--[a-z-]+", line)) <= known | {"--help"}, line


def test_the_queries_that_write_rows_anew_make_logs_that_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("shop", "chat", "payments"):
        Path(folder).mkdir()
    rows = [f"u{i},p1,2026-11-01 00:0{i}:00 UTC,{'purchase' if i % 2 else 'view'}" for i in range(6)]
    Path("shop/hour.csv.gz").write_bytes(
        gzip.compress("\n".join(["user_id,product_id,event_time,event_type", *rows]).encode())
    )
    message = '{"sender": {"id": "anna"}, "recipient": {"id": "bert"}, "sent_at": "2026-10-01T02:05:39+02:00"}\n'
    Path("chat/export.jsonl").write_text(message)
    Path("payments/october.csv").write_text(
        'payer;payee;amount;booked_at\n"a; b";c;1.234,56;03.11.2026 14:05\nc;d;7,5;03.11.2026 14:06\n'
    )
    section = (ROOT / "docs" / "own_log.md").read_text().split("## Rows of another form")[1]
    exec(section.split("```python")[1].split("```")[0], {})
    assert read_log("purchases.parquet").events["source"].to_list() == ["u1", "u3", "u5"]
    [message] = read_log("messages.parquet").events.select("source", "target", "time").rows()
    assert message == ("anna", "bert", datetime(2026, 10, 1, 0, 5, 39, tzinfo=UTC))
    amounts = read_log(
        "amounts.parquet", source="payer", target="payee", time="booked_at", weight="amount", time_unit="day-first"
    )
    assert amounts.events.select("source", "weight").rows() == [("a; b", 1234.56), ("c", 7.5)]
