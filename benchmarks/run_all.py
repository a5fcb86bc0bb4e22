"""Every benchmark of this folder, one after the other -> a section of RESULTS.md (`make bench`)."""

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from results_page import FOLDER, surroundings, write_section

NO_BENCHMARKS = (
    *("measure", "graphs", "results_page", "run_all", "scale", "soak", "orchestration", "runs", "serving"),
    *("pushed_context", "gpu"),  # make bench-context, bench-gpu
    "workers",  # it needs root and an idle machine
    *("peers", "peer_models"),  # they need another package, and their results are in docs/results/events.md
    *("vector_uses", "own_model", "event_vectors", "planted_sizes"),  # their results are in docs/when_to_train.md
    "results_plots",  # draws docs/plots
    "sequence_view",  # its results are in docs/experiments/learned_view.md
    *("event_calibration", "new_partners"),  # they read the logs of others
    "pushed_quality",  # it reads the logs of others, and its results are in RESULTS.md
    "store_requests",  # it needs an S3 server and minutes, and its results are in RESULTS.md
)
SECONDS_EACH = 300.0
SECONDS_IN_ALL = 24 * 60.0
VERDICT = re.compile(
    r"(?P<name>\S.*) (?P<unit>\S+) (?P<value>[\d.e+-]+)"
    r"(?: \((?P<least>\S+) to (?P<most>\S+), (?P<rounds>\d+) rounds\))?"
    r" target (?P<target>at (?:least|most) \S+) (?P<outcome>(?:met|missed)(?:, unsteady)?)"
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The output of a script, and the reason where it failed."""

    name: str
    seconds: float
    output: str
    failure: str | None


def verdicts(output: str) -> list[dict[str, str]]:
    """Give the verdict lines of a script's output: name, unit, median, range, rounds, target, outcome."""
    matches = map(VERDICT.fullmatch, map(str.strip, output.splitlines()))
    return [match.groupdict("") for match in matches if match]


def run_script(script: Path, seconds: float) -> Outcome:
    """Run one script; it fails by an error, by taking too long, or without a verdict."""
    started = time.monotonic()
    try:
        run = subprocess.run(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        return Outcome(
            name=script.stem,
            seconds=time.monotonic() - started,
            output=output,
            failure=f"not finished after {seconds:.0f} s",
        )
    failure = f"ended with exit code {run.returncode}" if run.returncode else None
    if failure is None and not verdicts(run.stdout):
        failure = "printed no verdict"
    return Outcome(name=script.stem, seconds=time.monotonic() - started, output=run.stdout, failure=failure)


def table(outcomes: Sequence[Outcome]) -> str:
    """Give one row for each verdict and for each script that failed."""
    rows = ["| benchmark | claim | min | median | max | rounds | target | |", "|---|---|---:|---:|---:|---:|---:|---|"]
    for outcome in outcomes:
        rows += [
            f"| {outcome.name} | {line['name']} ({line['unit']}) | {line['least']} | {line['value']} | {line['most']} |"
            f" {line['rounds'] or 1} | {line['target']} | {_emphasised(line['outcome'])} |"
            for line in verdicts(outcome.output)
        ]
        if outcome.failure:
            rows.append(f"| {outcome.name} | | | | | | | **failed**: {outcome.failure} |")
    return "\n".join(rows)


def page(outcomes: Sequence[Outcome]) -> str:
    """Give the section: the machine, the claims with their verdicts, and the output of each script."""
    lines = [line for outcome in outcomes for line in verdicts(outcome.output)]
    num_met = sum(line["outcome"].startswith("met") for line in lines)
    num_unsteady = sum("unsteady" in line["outcome"] for line in lines)
    num_failed = sum(outcome.failure is not None for outcome in outcomes)
    minutes = sum(outcome.seconds for outcome in outcomes) / 60
    head = (
        f"{num_met} of {len(lines)} targets met, {num_failed} of {len(outcomes)} scripts failed, {minutes:.1f} min. "
        f"Verdicts are on the median of the rounds; {num_unsteady} are unsteady: their range crosses the target."
    )
    printed = [
        f"### {outcome.name} ({outcome.seconds:.0f} s)\n\n```\n{outcome.output.strip()}\n```" for outcome in outcomes
    ]
    return "\n\n".join([head, surroundings(), table(outcomes), *printed])


def _emphasised(outcome: str) -> str:
    return outcome if outcome.startswith("met") else f"**{outcome}**"


def main() -> int:
    """Run all scripts or the named ones; give 1 where one failed: a missed target is a result and no error."""
    wanted = sys.argv[1:]
    scripts = [path for path in sorted(FOLDER.glob("*.py")) if path.stem not in NO_BENCHMARKS]
    outcomes: list[Outcome] = []
    left = SECONDS_IN_ALL
    for script in scripts:
        if wanted and script.stem not in wanted:
            continue
        outcomes.append(run_script(script, min(SECONDS_EACH, max(left, 1.0))))
        left -= outcomes[-1].seconds
        print(f"== {script.stem}: {outcomes[-1].failure or 'done'}, {outcomes[-1].seconds:.0f} s", flush=True)
        print(outcomes[-1].output.strip(), flush=True)
    if not wanted:
        write_section("Targets", page(outcomes))
    return int(any(outcome.failure for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
