"""The runner of the benchmarks: what it reads from a script, and what it makes of one that fails."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def run_all():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        import run_all  # pyright: ignore[reportMissingImports]

        yield run_all
    for name in ("run_all", "results_page"):
        sys.modules.pop(name, None)


def script(folder: Path, text: str) -> Path:
    path = folder / "measured.py"
    path.write_text(text)
    return path


def test_a_verdict_is_read_from_what_measure_prints(run_all):
    printed = (
        "warming up\nours 1.2 s, theirs 3.4 s\n"
        "spd-uci ratio 41.3 target 40 met\nspd memory MiB 1.2e+03 target 1024 missed\n"
    )
    assert run_all.verdicts(printed) == [
        {"name": "spd-uci", "unit": "ratio", "value": "41.3", "target": "40", "outcome": "met"},
        {"name": "spd memory", "unit": "MiB", "value": "1.2e+03", "target": "1024", "outcome": "missed"},
    ]


def test_measure_prints_what_the_runner_reads(run_all, tmp_path):
    lines = "verdict('one', 2.0, 1.0)\nverdict('two', 0.5, 1.0)\nverdict('three', 2.0, 1.0, at_most=True, unit='GB')\n"
    outcome = run_all.run_script(
        script(tmp_path, f"import sys\nsys.path.insert(0, {str(FOLDER)!r})\nfrom measure import verdict\n{lines}"), 60
    )
    assert outcome.failure is None
    assert [line["outcome"] for line in run_all.verdicts(outcome.output)] == ["met", "missed", "missed"]
    rows = run_all.table([outcome]).splitlines()[2:]
    assert rows == [
        "| measured | one (ratio) | 2 | at least 1 | met |",
        "| measured | two (ratio) | 0.5 | at least 1 | **missed** |",
        "| measured | three (GB) | 2 | at most 1 | **missed** |",
    ]


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("print('a ratio 2 target 1 met', flush=True)\nraise SystemExit(3)", "ended with exit code 3"),
        ("print('a ratio 2 target 1 met', flush=True)\nimport time\ntime.sleep(60)", "not finished after 2 s"),
        ("print('all is well')", "printed no verdict"),
    ],
)
def test_a_script_that_fails_is_shown_as_failed(run_all, tmp_path, text, failure):
    outcome = run_all.run_script(script(tmp_path, text), 2.0)
    assert outcome.failure == failure
    assert f"| measured | | | | **failed**: {failure} |" in run_all.page([outcome])


def test_a_section_is_rewritten_and_the_others_stay(run_all):
    from results_page import with_section  # pyright: ignore[reportMissingImports]

    page = with_section(with_section("", "Targets", "old\n\n### part"), "Scale: s1m", "kept")
    again = with_section(page, "Targets", "new")
    assert "old" not in again
    assert again.index("## Targets\n\nnew") < again.index("## Scale: s1m\n\nkept")
    assert with_section(again, "Targets", "new") == again
    assert again.startswith("# Results\n")


def test_every_script_is_run_but_the_helpers_and_the_long_one(run_all):
    scripts = {path.stem for path in FOLDER.glob("*.py")} - set(run_all.NO_BENCHMARKS)
    assert all("verdict(" in (FOLDER / f"{name}.py").read_text() for name in scripts)
