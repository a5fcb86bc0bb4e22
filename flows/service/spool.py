"""Records that wait for MLflow -> MLflow, by a command and at the start of every run."""

from pathlib import Path

from storage.layout import Layout
from storage.tracking.spool import spooled_runs


def waiting(layout: Layout) -> list[Path]:
    """Folders of the runs that wait; those in use by a process are among them."""
    return spooled_runs(Path(layout.spool))


def replay(layout: Layout) -> tuple[list[str], list[str]]:
    """Send what waits; returns the keys of the runs that were sent, and why others were not. It never raises."""
    before = waiting(layout)
    if not before:
        return [], []
    from storage.tracking.runs import open_tracker

    tracker = open_tracker(layout)
    tracker.replay_spool()
    left = set(waiting(layout))
    problems = [each for each in (tracker.problem, tracker.damage) if each is not None]
    return [folder.name for folder in before if folder not in left], problems
