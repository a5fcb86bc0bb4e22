"""CPU seconds of whole commands, of this version and of an earlier one in turn: run, run with nothing new, predict.

The seconds are those of a command and of all processes that it started and waited for, the temporary server among
them. Two logs: the generated one, and one like the e-mails of an institute, 986 nodes and 332,334 rows in 800 days,
most of them repeats. `python benchmarks/runs.py COMMIT` checks that commit out beside this one and writes RESULTS.md.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import time

import measure
import numpy as np
from results_page import surroundings, write_section

ROOT = Path(__file__).parents[1]
ROUNDS = 3
COMMAND = [sys.executable, "-P", "-c", "from flows.cli import main; main()"]
TARGETS = {"run": {"generated": 60, "mail": 150}, "run again": 3, "predict": 5}
NUM_NODES, NUM_ROWS, NUM_DAYS, NUM_GROUPS, NUM_DRAWN = 986, 332_334, 800, 42, 110_000
DAY = 86_400


def mail_log(path: Path) -> None:
    """Write rows source, target, second: few pairs write most of them, most within a group, on five days of seven."""
    generator = np.random.default_rng(7)
    active_N = generator.pareto(1.2, NUM_NODES) + 0.2
    group_N = generator.integers(NUM_GROUPS, size=NUM_NODES)
    source_P = generator.choice(NUM_NODES, NUM_DRAWN, p=active_N / active_N.sum())
    target_P = generator.choice(NUM_NODES, NUM_DRAWN, p=active_N / active_N.sum())
    for group in range(NUM_GROUPS):
        member_M = np.flatnonzero(group_N == group)
        within_P = np.flatnonzero((group_N[source_P] == group) & (generator.random(NUM_DRAWN) < 0.65))
        weight_M = active_N[member_M] / active_N[member_M].sum()
        target_P[within_P] = generator.choice(member_M, len(within_P), p=weight_M)
    pairs = np.unique(np.stack([source_P, target_P], axis=1)[source_P != target_P], axis=0)
    rate_P = generator.pareto(1.3, len(pairs)) + 0.3
    begin_P = generator.uniform(-NUM_DAYS / 2, NUM_DAYS - 20, len(pairs))
    life_P = generator.exponential(350, len(pairs)) + 10
    pair_R = generator.choice(len(pairs), 3 * NUM_ROWS, p=rate_P / rate_P.sum())
    day_R = begin_P[pair_R] + generator.random(len(pair_R)) * life_P[pair_R]
    chosen = np.flatnonzero((day_R >= 0) & (day_R < NUM_DAYS))[:NUM_ROWS]
    pair_R, day_R = pair_R[chosen], day_R[chosen]
    free_R = (day_R % 7 >= 5) & (generator.random(len(day_R)) > 0.15)
    day_R = np.where(free_R, day_R // 7 * 7 + generator.random(len(day_R)) * 5, day_R)
    second_R = (1_600_000_000 + day_R * DAY).astype(np.int64)
    order_R = np.argsort(second_R, kind="stable")
    np.savetxt(path, np.column_stack([pairs[pair_R], second_R])[order_R], fmt="%d")


def cpu_of(arguments: list[str], source: Path, environment: Mapping[str, str]) -> float:
    """Run a command of a source tree; give the CPU seconds of it and of the processes that it waited for."""
    own = {**environment, "PYTHONPATH": str(source)}
    process = subprocess.Popen([*COMMAND, *arguments], env=own, cwd=source, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} of {source} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def round_of(source: Path, log: list[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Run the commands one after another in a new store; give the CPU seconds of each."""
    name = log[0]
    with tempfile.TemporaryDirectory() as store:
        own = {**environment, "DYFORMER_STORAGE": store}
        commands = {"run": ["run", *log], "run again": ["run", *log], "predict": ["predict", name, "--top", "20"]}
        return {title: cpu_of(arguments, source, own) for title, arguments in commands.items()}


def main() -> None:
    """Measure both versions in turn, print the verdicts and write the section of RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--logs", default="generated,mail")
    given = parser.parse_args()
    lines, rows = [], ["| log | command | before | now | now / before |", "|---|---|---:|---:|---:|"]
    with tempfile.TemporaryDirectory() as folder:
        before, log = Path(folder, "before"), Path(folder, "mail.txt")
        subprocess.run(["git", "worktree", "add", "--detach", before, given.commit], cwd=ROOT, check=True)
        try:
            mail_log(log)
            logs = {"generated": ["generated"], "mail": ["mail", "--log", str(log)]}
            for name in given.logs.split(","):
                samples: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
                for number in range(given.rounds):
                    for version, source in (("before", before), ("now", ROOT)):
                        samples[version].append(round_of(source, logs[name], os.environ))
                        print(name, number, version, samples[version][-1], f"{time():.0f}", flush=True)
                verdicts, own = compared(name, samples)
                lines += verdicts
                rows += own
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", before], cwd=ROOT, check=True)
    about = f"CPU seconds, medians of {given.rounds} rounds in turn; before: commit {given.commit}"
    write_section("Runs", "\n\n".join([about, surroundings(), "\n".join(rows), "\n".join(["```", *lines, "```"])]))


def compared(name: str, samples: dict[str, list[dict[str, float]]]) -> tuple[list[str], list[str]]:
    """Give the verdicts of one log and the rows of the table."""
    lines, rows = [], []
    for title, target in TARGETS.items():
        before, now = ([each[title] for each in samples[version]] for version in ("before", "now"))
        most = target if isinstance(target, int) else target[name]
        label = f"{title.replace(' ', '-')}-{name}"
        lines.append(measure.verdict(label, now, most, at_most=True, unit="CPU-s"))
        lines.append(measure.verdict(f"{label}-ratio", measure.ratios(now, before), 1.0, at_most=True))
        middle = {key: float(np.median(values)) for key, values in (("before", before), ("now", now))}
        ratio = float(np.median(measure.ratios(now, before)))
        rows.append(f"| {name} | {title} | {middle['before']:.1f} | {middle['now']:.1f} | {ratio:.2f} |")
    return lines, rows


if __name__ == "__main__":
    main()
