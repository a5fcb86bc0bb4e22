"""Damage to each kind of object of a store in S3: every reader gives the undamaged result, or names the object.

`python tests/faults/s3_damage.py --tries 200` runs the whole sweep (`make test-faults`); `--seed S --only N` repeats
one. The readers, the damages and what must hold are those of `damage`.
"""

import argparse
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # of the module with the server

from damage import NAMED, opened, prepared_store, results, trials, wrong_readings
from object_store import BUCKET, object_store

from storage.artifacts import artifact
from storage.bytes import files
from storage.layout import Layout


def restore(layout: Layout, saved: dict[str, tuple[bytes, files.Stamp]]) -> None:
    """Make the objects those that were saved."""
    for address in files.find(layout.root):
        if address not in saved:
            files.remove(address)
    for address, (content, stamp) in saved.items():
        if files.size(address) is None or files.stamp(address) != stamp:
            files.write_bytes(address, content)


def main() -> None:
    """Run the sweep and print how many held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of the one trial to repeat")
    options = parser.parse_args()
    started, num_held, num_tried = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as name, object_store(Path(name)) as keys, suppress(KeyboardInterrupt):
        os.environ.update(keys)
        artifact.WRITING_SECONDS = -60.0  # as if the damage had been done an hour ago
        folder = Path(name) / "made"
        folder.mkdir()
        layout = opened(f"s3://{BUCKET}/store", str(folder / "state"))
        prepared_store(folder, layout)
        expected = results(layout)
        assert not any(isinstance(value, NAMED) for value in expected.values()), expected
        saved = {address: (files.read_bytes(address), files.stamp(address)) for address in files.find(layout.root)}
        for number, trial in enumerate(trials(layout, options.tries, options.seed)):
            if options.only in (None, number):
                trial.apply(layout)
                wrong = wrong_readings(layout, expected)
                restore(layout, saved)
                num_tried, num_held = num_tried + 1, num_held + (not wrong)
                for line in wrong:
                    print(f"{number}: {trial.damage} {trial.path} at {trial.position:.4f}: {line}")
                    print(f"   repeat: python {__file__} --tries {options.tries} --seed {options.seed} --only {number}")
    seconds = time.monotonic() - started
    print(f"damaged objects: {num_held} of {num_tried} held, seed {options.seed}, {seconds:.0f} s")
    sys.exit(num_held < num_tried)


if __name__ == "__main__":
    main()
