"""A few tries of each sweep over the ingests alone, in one process: what `make test` runs; the seed is its argument."""

import argparse
import sys
import tempfile
from pathlib import Path

import concurrency
import errors
import kills
from ingests import INGESTS
from prepared import prepared
from sweep import swept

TRIES = {kills: 8, errors: 8, concurrency: 2}


def main(seed: int) -> int:
    """Return how many did not hold."""
    with tempfile.TemporaryDirectory() as name:
        made, num_failed = prepared(Path(name).resolve(), INGESTS), 0
        for sweep, tries in TRIES.items():
            options = argparse.Namespace(tries=tries, seed=seed, only=None, repeat=f"python {__file__} {seed}")
            title = f"{sweep.__name__} of ingests"
            num_failed += swept(made, sweep.trials, sweep.failures, options, title)
    return num_failed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])) > 0)
