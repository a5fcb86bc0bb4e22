"""Damage to each kind of object of a store in S3: every reader gives the undamaged result, or names the object.

`python tests/faults/s3_damage.py --tries 200` runs the whole sweep (`make test-faults`); `--seed S --only N` repeats
one. The readers, the damages and what must hold are those of `damage`.
"""

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # of the module with the server

from damage import NAMED, Trial, opened, prepared_store, results, trials, wrong_readings
from object_store import BUCKET, object_store
from sweep import options_of, swept

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
    options = options_of(__doc__, 200)
    with tempfile.TemporaryDirectory() as name, object_store(Path(name)) as keys:
        os.environ.update(keys)
        artifact.WRITING_SECONDS = -60.0  # as if the damage had been done an hour ago
        folder = Path(name) / "made"
        folder.mkdir()
        layout = opened(f"s3://{BUCKET}/store", str(folder / "state"))
        prepared_store(folder, layout)
        expected = results(layout)
        assert not any(isinstance(value, NAMED) for value in expected.values()), expected
        saved = {address: (files.read_bytes(address), files.stamp(address)) for address in files.find(layout.root)}

        def failures(layout: Layout, trial: Trial) -> list[str]:
            trial.apply(layout)
            wrong = wrong_readings(layout, expected)
            restore(layout, saved)
            return wrong

        num_failed = swept(layout, trials, failures, options, "damaged objects")
    sys.exit(num_failed > 0)


if __name__ == "__main__":
    main()
