"""Labels and scores of test pairs, as arrays and as tables.

P pairs of one step
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

NO_NODE = -1
"""The target of scored nodes: they are pairs with one end."""

PAIRS_SCHEMA = pl.Schema(
    {
        "method": pl.String(),
        "seed": pl.Int64(),
        "step": pl.Int64(),
        "family": pl.String(),
        "source": pl.Int64(),
        "target": pl.Int64(),
        "positive": pl.Boolean(),
        "new": pl.Boolean(),
        "score": pl.Float64(),
    }
)


class OtherColumns(ValueError):
    """A table without the columns of PAIRS_SCHEMA, as an earlier version of dyformer wrote it."""


class NotTheSamePairs(ValueError):
    """Two methods were evaluated on different pairs, so they cannot be compared pair by pair."""


@dataclass(frozen=True, kw_only=True)
class ScoredPairs:
    """Labels of the test pairs of one step, and their scores by one method."""

    method: str
    seed: int
    step: int
    family: str  # kind of negative pairs: "random" in the paper's protocol
    source_P: NDArray[np.int64]
    target_P: NDArray[np.int64]
    positive_P: NDArray[np.bool_]
    new_P: NDArray[np.bool_]  # linked in no earlier step
    score_P: NDArray[np.float64]


def to_table(scored: Iterable[ScoredPairs]) -> pl.DataFrame:
    """Put scored pairs in one table with the columns of PAIRS_SCHEMA."""
    frames = [
        pl.DataFrame({name.removesuffix("_P"): value for name, value in vars(pairs).items()}, schema=PAIRS_SCHEMA)
        for pairs in scored
    ]
    return pl.concat([pl.DataFrame(schema=PAIRS_SCHEMA), *frames])


def from_table(table: pl.DataFrame) -> list[ScoredPairs]:
    """Give the scored pairs of a table of to_table, in its order. Raises OtherColumns."""
    if table.columns != PAIRS_SCHEMA.names():
        raise OtherColumns(
            f"scored pairs with the columns {', '.join(table.columns)}, expected {', '.join(PAIRS_SCHEMA.names())}: an "
            f"earlier version of dyformer wrote them; delete them and run `dyformer benchmark` or `dyformer run` again"
        )
    groups = table.partition_by(PAIRS_SCHEMA.names()[:4], maintain_order=True)
    return [
        ScoredPairs(
            method=group["method"][0],
            seed=group["seed"][0],
            step=group["step"][0],
            family=group["family"][0],
            **{f"{name}_P": group[name].to_numpy() for name in PAIRS_SCHEMA.names()[4:]},
        )
        for group in groups
    ]


def slice_of(pairs: ScoredPairs, part: str) -> ScoredPairs:
    """Give the pairs of a slice: "all", or "new" ones, which no earlier snapshot linked."""
    if part == "all":
        return pairs
    names = ("source_P", "target_P", "positive_P", "new_P", "score_P")
    return replace(pairs, **{name: getattr(pairs, name)[pairs.new_P] for name in names})


def check_same_pairs(challenger: ScoredPairs, champion: ScoredPairs) -> None:
    """Raise NotTheSamePairs unless both were evaluated on the same pairs, and ValueError for scores not finite."""
    for name in ("step", "seed", "family"):
        found, expected = getattr(challenger, name), getattr(champion, name)
        if found != expected:
            raise NotTheSamePairs(
                f"{challenger.method} was evaluated on {name} {found}, {champion.method} on {name} {expected}: "
                f"evaluate both on the same pairs"
            )
    for name in ("source_P", "target_P", "positive_P"):
        if not np.array_equal(getattr(challenger, name), getattr(champion, name)):
            raise NotTheSamePairs(
                f"{challenger.method} and {champion.method} were evaluated on different pairs of step "
                f"{challenger.step} ({name} differs): evaluate both on one version of the snapshots"
            )
    for pairs in (challenger, champion):
        if not np.isfinite(pairs.score_P).all():
            raise ValueError(f"{pairs.method}: some scores of step {pairs.step} are not finite; train again")
