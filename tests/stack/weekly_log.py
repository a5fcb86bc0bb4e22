"""A log of weeks, in which links that never repeated begin to repeat."""

from datetime import UTC, datetime, timedelta

import numpy as np

ROWS = 40  # a day
START = datetime(2024, 1, 1, tzinfo=UTC)


def rows_of(days: range) -> bytes:
    """Write a log of 200 users and 100 items in four groups: new links for four weeks, then the last week repeated.

    Whoever has learned from the first weeks that no link repeats is worse in the fifth than a list of the last links.
    """
    generator = np.random.default_rng(1)
    pairs = [(4 * user + group, 4 * item + group) for group in range(4) for user in range(50) for item in range(25)]
    fresh = [pairs[index] for index in generator.permutation(len(pairs))[: 28 * ROWS]]
    lines = ["created_at,user,item"]
    for day in days:
        first = ROWS * (day if day < 28 else 21 + day % 7)
        for number, (user, item) in enumerate(fresh[first : first + ROWS]):
            moment = START + timedelta(days=day, minutes=30 * number)
            lines.append(f"{moment.isoformat()},user-{user},item/{item}")
    return "\n".join(lines).encode() + b"\n"
