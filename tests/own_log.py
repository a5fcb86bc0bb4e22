"""A log like a user's own: string ids, ISO times, and some unusable rows."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

READING = {"source": "user", "target": "item", "time": "created_at", "max_bad": "5%"}
HEADER = b"created_at,user,item,note"
BROKEN = (
    b"2024-03-01T10:00:00Z,,lamp,no user",
    b"2024-03-01T10:00:00Z,ann,,no item",
    b",ann,lamp,no time",
    b"yesterday,ann,lamp,words for a time",
    b"2024-02-30T10:00:00Z,ann,lamp,a day that does not exist",
    b"2024-03-01T25:00:00Z,ann,lamp,an hour that does not exist",
    b"2024-03-01T10:00:00Z,ann",
    b"2024-03-01T10:00:00Z,ann,lamp,too,many,columns",
    b"2024-03-01T10:00:00Z,an\xffn,lamp,bytes that are no text",
    b'2024-03-01T10:00:00Z,"ann,lamp,a quote that never ends',
)


def own_log(path: Path, num_rows: int = 1_500, repeats: int = 3) -> Path:
    """Write a log with every broken row `repeats` times, evenly spread."""
    generator = np.random.default_rng(7)
    start = datetime(2024, 1, 1, tzinfo=UTC)
    rows = []
    for index in range(num_rows):
        group = generator.integers(4)
        user, item = generator.integers(15) * 4 + group, generator.integers(10) * 4 + group
        moment = start + timedelta(minutes=40 * index)
        rows.append(f"{moment.isoformat()},user-{user},item/{item},{index}".encode())
    every = num_rows // (repeats * len(BROKEN))
    for number in range(repeats * len(BROKEN)):
        rows.insert((number + 1) * every, BROKEN[number % len(BROKEN)])
    path.write_bytes(b"\n".join([HEADER, *rows]) + b"\n")
    return path
