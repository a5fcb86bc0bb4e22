"""Raw logs with changed rows after a moment, on which no result as of an earlier step may depend."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from dyformer.evaluation.audit.poisons import malformed as mixed_with_malformed

Row = tuple[str, str, int]
"""Source, target, seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class SplitLog:
    """The lines of a log, split at a moment; `line` writes a row (and a weight, where the log has one)."""

    moment: int  # seconds since the epoch
    header: list[bytes]
    past: list[bytes]
    future: list[bytes]
    line: Callable[[str, str, int, str], bytes]
    parse: Callable[[bytes], Row]

    @property
    def rows(self) -> list[Row]:
        """The rows after the moment."""
        return [self.parse(line) for line in self.future]

    @property
    def ids(self) -> list[str]:
        """The nodes of the rows before the moment."""
        return sorted({end for line in self.past for end in self.parse(line)[:2]})

    def written(self, rows: list[Row]) -> list[bytes]:
        """Rows as lines of this log."""
        return [self.line(source, target, time, "1") for source, target, time in rows]


def split_uci(content: bytes, moment: int) -> SplitLog:
    """Split the published log (`source target weight seconds`) before a moment in seconds since the epoch."""
    lines = content.splitlines()

    def parse(line: bytes) -> Row:
        source, target, _, time = line.decode().split()
        return source, target, int(time)

    def write(source: str, target: str, time: int, weight: str) -> bytes:
        return f"{source} {target} {weight} {time}".encode()

    return _split([line for line in lines if line.startswith(b"%")], lines, parse, write, moment)


def split_generated(content: bytes, moment: int) -> SplitLog:
    """Split the generated log (`source,target,ISO time`) before a moment in seconds since the epoch."""
    header, *lines = content.splitlines()

    def parse(line: bytes) -> Row:
        source, target, time = line.decode().split(",")
        return source, target, int(datetime.fromisoformat(time).timestamp())

    def write(source: str, target: str, time: int, weight: str) -> bytes:
        extra = "" if weight == "1" else f",{weight}"  # the log has no weights, so this row has too many fields
        return f"{source},{target},{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}{extra}".encode()

    return _split([header], lines, parse, write, moment)


def _split(
    header: list[bytes],
    lines: list[bytes],
    parse: Callable[[bytes], Row],
    write: Callable[[str, str, int, str], bytes],
    moment: int,
) -> SplitLog:
    lines = [line for line in lines if line not in header]
    is_past = [parse(line)[2] < moment for line in lines]
    return SplitLog(
        moment=moment,
        header=header,
        past=[line for line, past in zip(lines, is_past, strict=True) if past],
        future=[line for line, past in zip(lines, is_past, strict=True) if not past],
        line=write,
        parse=parse,
    )


def nothing(log: SplitLog, generator: np.random.Generator) -> list[bytes]:
    return []


def shuffled(log: SplitLog, generator: np.random.Generator) -> list[bytes]:
    """The same sources, targets and times, each shuffled independently."""
    sources, targets, times = (generator.permutation(column).tolist() for column in zip(*log.rows, strict=True))
    return log.written(list(zip(sources, targets, map(int, times), strict=True)))


def random_edges(log: SplitLog, generator: np.random.Generator, volume: int = 1) -> list[bytes]:
    times = np.array([time for *_, time in log.rows])
    num = volume * len(times)
    drawn = generator.integers(times.min(), times.max(), size=num)
    ends = generator.choice(log.ids, size=(2, num)).tolist()
    return log.written(list(zip(*ends, drawn.tolist(), strict=True)))


def tenfold(log: SplitLog, generator: np.random.Generator) -> list[bytes]:
    return random_edges(log, generator, volume=10)


def newcomers(log: SplitLog, generator: np.random.Generator) -> list[bytes]:
    """New nodes, with ids of other kinds than the log's, interact with old nodes and with each other."""
    names = ["0", "007", "-1", "nobody", "ünknown", "9223372036854775807", "123456789012345678901234567890"]
    names += [f"ghost{number}" for number in range(500)]
    rows = []
    for number, (source, target, time) in enumerate(log.rows):
        fresh = names[number % len(names)]
        rows.append(
            (fresh, target if number % 3 else names[number % 11], time) if number % 2 else (source, fresh, time)
        )
    return log.written(rows)


def garbage_weights(log: SplitLog, generator: np.random.Generator) -> list[bytes]:
    weights = ["nan", "NaN", "inf", "-inf", "1e999", "-1e308", "1e308", "0", "-0.0", "x", "1,5"]
    return [
        log.line(source, target, time, weights[number % len(weights)])
        for number, (source, target, time) in enumerate(log.rows)
    ]


def malformed(log: SplitLog, generator: np.random.Generator) -> list[bytes]:
    """Bytes that are not rows of this log, mixed with some that are."""
    return mixed_with_malformed(log.future[:400], generator)


POISONS: dict[str, Callable[[SplitLog, np.random.Generator], list[bytes]]] = {
    poison.__name__: poison
    for poison in (nothing, shuffled, random_edges, tenfold, newcomers, garbage_weights, malformed)
}


def poisoned(log: SplitLog, name: str, *, first: bool = False, seed: int = 0) -> list[bytes]:
    """Lines of the log with a poison after the moment, placed in the file after or before the past rows."""
    later = POISONS[name](log, np.random.default_rng(seed))
    early = log.past[:1] if first else log.past  # the first row stays first, because the format is sniffed from it
    return [*log.header, *early, *later, *log.past[len(early) :]]
