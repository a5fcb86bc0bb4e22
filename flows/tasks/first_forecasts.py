"""A dataset without a champion -> forecasts that need no training, to look at while its first training runs."""

import polars as pl

from dyformer.evaluation.costs import FORECASTER_WITHOUT
from flows.tasks.models import Contender
from flows.tasks.predict import write_forecasts
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import read_table
from storage.champions import read_champion

NUM_SHOWN = 10
SHOWN = ("id", "partner_id", "probability", "linked_before")


def write_first_forecasts(snapshots: str, seed: int = 0) -> str | None:
    """Write the forecasts of the forecaster without vectors, or return None for a dataset that has a champion.

    They are not published: only what has been compared with the baselines is. Where this method becomes champion, they
    are the ones that it publishes, and are not made again.
    """
    opened = open_snapshots(snapshots)
    champion, _ = read_champion(opened.layout, opened.dataset)
    if champion is not None:
        return None
    return write_forecasts(snapshots, Contender(title=FORECASTER_WITHOUT), seed=seed)


def first_rows(forecasts: str) -> tuple[str, pl.DataFrame]:
    """Return a title, which says what they are not yet, and the NUM_SHOWN pairs of the highest scores, each once."""
    table = read_table(forecasts, "forecasts")
    ends = (pl.concat_str("side", pl.lit(" "), "id"), pl.concat_str("partner_side", pl.lit(" "), "partner_id"))
    # A pair is a forecast of each of its ends, with one score.
    pairs = table.unique([pl.min_horizontal(ends), pl.max_horizontal(ends), "score"], keep="first", maintain_order=True)
    rows = pairs.sort("score", descending=True, maintain_order=True).head(NUM_SHOWN).select(SHOWN)
    method = FORECASTER_WITHOUT[0].lower() + FORECASTER_WITHOUT[1:]
    title = f"first forecasts, by {method}, before any training: not yet compared with other methods, so not published"
    return title, rows
