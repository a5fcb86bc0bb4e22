"""How the requests to S3 of a nightly retraining grow with the number of commits that a log has.

The same days of rows are committed in few files and in many, to a store that is then copied to a local S3 server. Two
nights follow, each a process of its own with one more day of rows: the first trains the champion, and the requests of
the second are counted by a proxy in front of the server.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import measure
import soak

FEW, MANY = 10, 365
NUM_DAYS = 20
GROWTH = 1.3
LOG = "requests"
READING = {"window": "1d", "time_unit": "s", "bipartite": False}
TESTS = Path(__file__).resolve().parents[1] / "tests"  # they have the server and the proxy


def fill(num_commits: int, incoming: Path) -> None:
    """Commit the rows of NUM_DAYS in so many files to the store of the environment."""
    from flows.tasks.ingest import ingest_log

    header, *rows = soak.rows_of(0).splitlines()
    rows += [row for day in range(1, NUM_DAYS) for row in soak.rows_of(day).splitlines()[1:]]
    for number in range(num_commits):
        part = rows[len(rows) * number // num_commits : len(rows) * (number + 1) // num_commits]
        (incoming / f"{number:04}.csv").write_text("\n".join([header, *part, ""]))
        ingest_log(LOG, {**READING, "log": [str(incoming)], "new_ids": True}, lambda text: None)


def night(day: int, incoming: Path) -> None:
    """Retrain on one more day of rows."""
    from dyformer.experiments.settings import Experiment
    from flows.retrain import retrain

    (incoming / f"night-{day}.csv").write_text(soak.rows_of(day))
    soak.without_prefect()
    report = retrain.fn(LOG, {**READING, "log": [str(incoming)]}, Experiment().changed(soak.CHANGES), 0)
    assert report is not None


def copy(folder: Path, root: str) -> None:
    """Copy a local store to S3."""
    from storage.bytes import files

    for path in folder.rglob("*"):
        if path.is_file():
            files.write_bytes(f"{root}/{path.relative_to(folder)}", path)


def in_a_process(arguments: list[str], environment: dict[str, str]) -> None:
    """Run one step of this script."""
    ended = subprocess.run([sys.executable, __file__, *arguments], env=os.environ | environment, timeout=1800)
    assert ended.returncode == 0, arguments


def requests_of_a_night(num_commits: int) -> Counter[str]:
    """Count the requests of the second night by their method."""
    sys.path[:0] = [str(TESTS), str(TESTS / "faults")]
    from flaky_store import Fault, proxy
    from object_store import BUCKET, object_store

    with tempfile.TemporaryDirectory() as name, object_store(Path(name)) as keys:
        folder = Path(name)
        incoming, local, root = folder / "in", folder / "store", f"s3://{BUCKET}/store"
        incoming.mkdir()
        in_a_process(["fill", str(num_commits), str(incoming)], {"DYFORMER_STORAGE": str(local)})
        in_a_process(["copy", str(local), root], keys)
        with proxy(urlsplit(keys["AWS_ENDPOINT_URL"]).port or 0) as counting:
            store = {"DYFORMER_STORAGE": root, "DYFORMER_STATE": str(folder / "state")}
            remote = keys | store | {"AWS_ENDPOINT_URL": counting.address}
            in_a_process(["night", str(NUM_DAYS), str(incoming)], remote)
            counting.set(Fault())
            in_a_process(["night", str(NUM_DAYS + 1), str(incoming)], remote)
            names = counting.requests()
    if output := os.environ.get("REQUESTS"):
        Path(output).with_suffix(f".{num_commits}").write_text("\n".join(names))
    return Counter(name.partition(" ")[0] for name in names)


def main() -> None:
    """Print the requests with few and with many commits, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", nargs="?", choices=("fill", "night", "copy"))
    parser.add_argument("values", nargs="*")
    parser.add_argument("--commits", type=int, nargs=2, default=(FEW, MANY))
    arguments = parser.parse_args()
    if arguments.step == "copy":
        copy(Path(arguments.values[0]), arguments.values[1])
    elif arguments.step:
        {"fill": fill, "night": night}[arguments.step](int(arguments.values[0]), Path(arguments.values[1]))
    else:
        counts = [requests_of_a_night(num_commits) for num_commits in arguments.commits]
        for num_commits, count in zip(arguments.commits, counts, strict=True):
            print(f"{num_commits} commits: {count.total()} requests: {dict(count)}", flush=True)
        growth = counts[1].total() / counts[0].total()
        print(measure.verdict("requests-many-over-few-commits", growth, GROWTH, at_most=True))


if __name__ == "__main__":
    main()
