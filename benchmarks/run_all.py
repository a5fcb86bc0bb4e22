"""Every benchmark of this folder, one after the other -> a section of RESULTS.md (`make bench`)."""

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from results_page import FOLDER, surroundings, write_section

NO_BENCHMARKS = ("measure", "graphs", "results_page", "run_all", "scale")
SECONDS_EACH = 300.0
SECONDS_IN_ALL = 24 * 60.0
VERDICT = re.compile(r"(?P<name>\S.*) (?P<unit>\S+) (?P<value>\S+) target (?P<target>\S+) (?P<outcome>met|missed)")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a script printed, and why it counts as failed if it does."""

    name: str
    seconds: float
    output: str
    failure: str | None


def verdicts(output: str) -> list[dict[str, str]]:
    """Give the verdict lines of a script's output: name, unit, value, target, outcome."""
    matches = map(VERDICT.fullmatch, map(str.strip, output.splitlines()))
    return [match.groupdict() for match in matches if match]


def run_script(script: Path, seconds: float) -> Outcome:
    """Run one script; it fails by an error, by taking too long, or by evaluating nothing."""
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
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        return Outcome(
            name=script.stem,
            seconds=time.monotonic() - started,
            output=said,
            failure=f"not finished after {seconds:.0f} s",
        )
    failure = f"ended with exit code {run.returncode}" if run.returncode else None
    if failure is None and not verdicts(run.stdout):
        failure = "printed no verdict"
    return Outcome(name=script.stem, seconds=time.monotonic() - started, output=run.stdout, failure=failure)


def table(outcomes: Sequence[Outcome]) -> str:
    """One row a verdict, and one for each script that failed."""
    rows = ["| benchmark | claim | value | target | |", "|---|---|---:|---:|---|"]
    for outcome in outcomes:
        rows += [
            f"| {outcome.name} | {line['name']} ({line['unit']}) | {line['value']} | {_bound(line)} |"
            f" {_emphasised(line['outcome'])} |"
            for line in verdicts(outcome.output)
        ]
        if outcome.failure:
            rows.append(f"| {outcome.name} | | | | **failed**: {outcome.failure} |")
    return "\n".join(rows)


def page(outcomes: Sequence[Outcome]) -> str:
    """The section: where, what was claimed and what came of it, and below what each script printed."""
    lines = [line for outcome in outcomes for line in verdicts(outcome.output)]
    num_met = sum(line["outcome"] == "met" for line in lines)
    num_failed = sum(outcome.failure is not None for outcome in outcomes)
    minutes = sum(outcome.seconds for outcome in outcomes) / 60
    head = f"{num_met} of {len(lines)} targets met, {num_failed} of {len(outcomes)} scripts failed, {minutes:.1f} min."
    printed = [
        f"### {outcome.name} ({outcome.seconds:.0f} s)\n\n```\n{outcome.output.strip()}\n```" for outcome in outcomes
    ]
    return "\n\n".join([head, surroundings(), table(outcomes), *printed])


def _bound(line: dict[str, str]) -> str:
    # A line does not say which way it is evaluated; value and outcome do.
    least = (float(line["value"]) >= float(line["target"])) == (line["outcome"] == "met")
    return f"{'at least' if least else 'at most'} {line['target']}"


def _emphasised(outcome: str) -> str:
    return outcome if outcome == "met" else f"**{outcome}**"


def main() -> int:
    """Run all, or those named; give 1 where a script failed, as a missed target is a result and no error."""
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
