"""How many there are of a thing -> words."""


def counted(number: int, noun: str) -> str:
    """Write how many there are: 1 row, 2 rows, 1,000 queries."""
    several = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else several}"
