"""The runner of the benchmarks: the verdicts of a script, and scripts that fail."""

import gc
import os
import sys
import unittest.mock
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def run_all():
    # Its `measure` limits the libraries to one thread, which later tests would hand on to their processes.
    with pytest.MonkeyPatch.context() as patch, unittest.mock.patch.dict(os.environ):
        patch.syspath_prepend(str(FOLDER))
        import run_all  # pyright: ignore[reportMissingImports]

        yield run_all
    for name in ("run_all", "results_page", "measure"):
        sys.modules.pop(name, None)


def script(folder: Path, text: str) -> Path:
    path = folder / "measured.py"
    path.write_text(text)
    return path


def test_a_verdict_is_read_from_the_lines_of_measure(run_all):
    printed = (
        "warming up\nours 1.2 s, theirs 3.4 s\n"
        "spd-uci ratio 41.3 (39.5 to 44, 5 rounds) target at least 40 met, unsteady\n"
        "spd memory MiB 1.2e+03 target at most 1024 missed\n"
    )
    ranged, single = run_all.verdicts(printed)
    assert ranged == {
        "name": "spd-uci",
        "unit": "ratio",
        "value": "41.3",
        "least": "39.5",
        "most": "44",
        "rounds": "5",
        "target": "at least 40",
        "outcome": "met, unsteady",
    }
    assert [single[key] for key in ("name", "value", "rounds", "outcome")] == ["spd memory", "1.2e+03", "", "missed"]


def test_measure_prints_the_lines_that_the_runner_reads(run_all, tmp_path):
    lines = (
        "verdict('one', [3.0, 2.0, 2.5], 2.0)\nverdict('two', [0.5, 0.75, 1.25], 1.0)\n"
        "verdict('three', 2.0, 1.0, at_most=True, unit='GB')\nverdict('four', [1.0, 0.5, 3.0], 1.0, at_most=True)\n"
    )
    outcome = run_all.run_script(
        script(tmp_path, f"import sys\nsys.path.insert(0, {str(FOLDER)!r})\nfrom measure import verdict\n{lines}"), 60
    )
    assert outcome.failure is None
    rows = run_all.table([outcome]).splitlines()[2:]
    assert rows == [
        "| measured | one (ratio) | 2 | 2.5 | 3 | 3 | at least 2 | met |",
        "| measured | two (ratio) | 0.5 | 0.75 | 1.25 | 3 | at least 1 | **missed, unsteady** |",
        "| measured | three (GB) |  | 2 |  | 1 | at most 1 | **missed** |",
        "| measured | four (ratio) | 0.5 | 1 | 3 | 3 | at most 1 | met, unsteady |",
    ]
    assert "2 of 4 targets met" in run_all.page([outcome])
    assert "2 are unsteady" in run_all.page([outcome])


@pytest.mark.usefixtures("run_all")
def test_jobs_are_measured_in_turn_and_compared_round_by_round(monkeypatch):
    from measure import cpu_seconds, ratios  # pyright: ignore[reportMissingImports]

    called: list[str] = []
    jobs = {name: lambda name=name: called.append(name) or sum(range(200_000)) for name in ("ours", "peer")}
    monkeypatch.setattr("measure.SAMPLE_SECONDS", 0.0)  # one call a sample
    gc.freeze()  # what other tests have left is not searched at every sample
    seconds = cpu_seconds(jobs, rounds=5)
    gc.unfreeze()
    assert called[-10:] == ["ours", "peer"] * 5
    assert [len(samples) for samples in seconds.values()] == [5, 5]
    assert ratios([1.0, 6.0], [2.0, 3.0]) == [0.5, 2.0]


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("print('a ratio 2 target at least 1 met', flush=True)\nraise SystemExit(3)", "ended with exit code 3"),
        ("print('a ratio 2 target at least 1 met', flush=True)\nimport time\ntime.sleep(60)", "not finished after 2 s"),
        ("print('all is well')", "printed no verdict"),
    ],
)
def test_a_script_that_fails_is_reported_as_failed(run_all, tmp_path, text, failure):
    outcome = run_all.run_script(script(tmp_path, text), 2.0)
    assert outcome.failure == failure
    assert f"| measured | | | | | | | **failed**: {failure} |" in run_all.page([outcome])


def test_a_section_is_rewritten_and_the_others_stay(run_all):
    from results_page import with_section  # pyright: ignore[reportMissingImports]

    page = with_section(with_section("", "Targets", "old\n\n### part"), "Scale: s1m", "kept")
    again = with_section(page, "Targets", "new")
    assert "old" not in again
    assert again.index("## Targets\n\nnew") < again.index("## Scale: s1m\n\nkept")
    assert with_section(again, "Targets", "new") == again
    assert again.startswith("# Results\n")


def test_all_scripts_but_the_helpers_and_the_long_one_are_run(run_all):
    scripts = {path.stem for path in FOLDER.glob("*.py")} - set(run_all.NO_BENCHMARKS)
    assert all("verdict(" in (FOLDER / f"{name}.py").read_text() for name in scripts)
