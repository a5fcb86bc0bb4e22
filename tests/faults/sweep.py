"""Trials -> a line that says how many held, and for each other one the command that repeats it."""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prepared import prepared

Draw = Callable[[Any, int, int], Iterable[Any]]
Failures = Callable[[Any, Any], list[str]]


def swept(made: Any, draw: Draw, failures: Failures, options: argparse.Namespace, title: str) -> int:
    """Do the trials and print the outcome; `options.repeat` repeats a trial. Returns how many did not hold."""
    started, num_tried, num_held = time.monotonic(), 0, 0
    with suppress(KeyboardInterrupt):  # the rest is left out, and the line below says how many were tried
        for number, trial in enumerate(draw(made, options.tries, options.seed)):
            if options.only in (None, number):
                wrong = failures(made, trial)
                num_tried, num_held = num_tried + 1, num_held + (not wrong)
                for line in wrong:
                    print(f"{number}: {trial}: {line}")
                if wrong:
                    print(f"   repeat: {options.repeat.format(number=number)}")
    seconds = time.monotonic() - started
    print(f"{title}: {num_held} of {num_tried} held, seed {options.seed}, {seconds:.0f} s", flush=True)
    return num_tried - num_held


def error_line(code: int, output: str) -> tuple[str | None, list[str]]:
    """Give the line with which a command failed, None if it did its work, and what is wrong with its end.

    A command that fails ends with 1 and prints one line, which names the error.
    """
    lines = [line for line in output.splitlines() if line.startswith("dyformer: ")]
    if code == 0 and not lines and "Traceback" not in output:
        return None, []
    if code != 1 or len(lines) != 1 or "Traceback" in output:
        return None, [f"it ended with {code}: {output[-1500:]}"]
    (line,) = lines
    return line, [f"an error without a name: {line}"] if "unexpected error" in line else []


def options_of(about: str | None, num_tries: int) -> argparse.Namespace:
    """Parse the options of a sweep: `tries`, `seed`, `only`; add `repeat`, the command of the trial `{number}`."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--tries", type=int, default=num_tries)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of the one trial to repeat")
    options = parser.parse_args()
    options.repeat = f"python {sys.argv[0]} --tries {options.tries} --seed {options.seed} --only {{number}}"
    return options


def main(
    about: str | None,
    draw: Draw,
    failures: Failures,
    num_tries: int,
    title: str,
    mount: Callable[[Path], bool] = lambda disk: False,
    stages: Mapping[str, Callable[[], object]] | None = None,
) -> None:
    """Run a sweep from the command line, by default over all commands; `mount` may put a disk where the store is."""
    options = options_of(about, num_tries)
    if stages is None:
        from pipeline import STAGES as stages  # noqa: N811, late, because it imports all that a training needs

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        is_mounted = mount(folder / "disk")
        try:
            num_failed = swept(prepared(folder, stages), draw, failures, options, title)
        finally:
            if is_mounted:
                subprocess.run(["umount", str(folder / "disk")], check=True)
    sys.exit(num_failed > 0)
