"""A planted log with more nodes -> a file, by which one sees from which size on vectors add something.

The nodes and the rows of a week are as many times more; the groups, the weeks and the rule stay.

    python benchmarks/planted_sizes.py generated-communities 4 FILE
    dyformer benchmark communities4 --experiment planted --log FILE --window 7d --steps 9-10 --seeds 3
"""

import argparse
from dataclasses import replace
from pathlib import Path

from dyformer.logs.planted import PLANTED, planted_log


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("log", choices=PLANTED)
    parser.add_argument("times", type=int)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    planted = PLANTED[given.log]
    larger = replace(
        planted,
        num_nodes=planted.num_nodes * given.times,
        num_interactions=planted.num_interactions * given.times,
    )
    given.file.write_bytes(planted_log(larger))


if __name__ == "__main__":
    main()
