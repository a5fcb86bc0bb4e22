"""Settings of the promotion to champion, and of drift."""

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from dyformer import InvalidInput
from dyformer.graphs.config import STRICT

RankingMetric = Literal["mrr", "hits_at_10", "ndcg_at_10"]
METRIC_TITLES: dict[RankingMetric, str] = {"mrr": "MRR", "hits_at_10": "Hits@10", "ndcg_at_10": "NDCG@10"}

SLICES = (
    "new",
    "repeat",
    *(f"inactive_ends={number}" for number in range(3)),
    *(f"degree_decile={number}" for number in range(1, 11)),
    *(f"age={name}" for name in ("1", "2-4", "5+")),
    *(f"side={side}" for side in (0, 1)),
)
"""Slices of ranking queries that a challenger may be forbidden to lose; dyformer.evaluation.query_slices makes them."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PromotionConfig:
    """When a better method becomes champion."""

    metric: RankingMetric = Field(
        default="mrr", description="metric of the comparison, over the ranking queries of the newest step"
    )
    level: float = Field(
        default=0.95,
        ge=0.5,
        le=0.9999,
        description="probability that challengers which are no better never replace a champion; also the level of the "
        "intervals of `promotion.slices`",
    )
    slices: str | None = Field(
        default="new,repeat",
        description="slices of the queries, separated by commas, in which the new champion may not be significantly "
        "worse; none: all queries count alone",
    )

    tie: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="difference in the metric up to which a cheaper method publishes, if it is not significantly "
        "worse; one standard error of the difference, where that is more; a champion gives way only where the interval "
        "shows that at most three times as much is lost",
    )
    events: bool = Field(
        default=False,
        description="whether the event forecaster by pair is compared, too, so that it may publish; it takes longer "
        "than all other methods without a training together",
    )

    @property
    def slice_names(self) -> tuple[str, ...]:
        """The names in `slices`."""
        return () if self.slices is None else tuple(name.strip() for name in self.slices.split(","))

    @model_validator(mode="after")
    def check_slices(self) -> "PromotionConfig":
        """Raise ValueError for a slice that queries do not have."""
        unknown = [name for name in self.slice_names if name not in SLICES]
        if unknown:
            raise InvalidInput(
                f"promotion.slices: no slice {unknown[0]!r}; expected none, or some of {', '.join(SLICES)}, separated "
                f"by commas"
            )
        return self


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DriftConfig:
    """When a step is so far from the earlier ones that an alarm is sent; distances are robust standard deviations."""

    alarm_at: Annotated[float, Field(ge=1)] | None = Field(
        default=6, description="distance of a drift metric from the earlier steps that raises an alarm; none: no alarm"
    )
