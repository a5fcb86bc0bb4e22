"""Addresses of what a dataset's champion has published last."""

from storage.champions import PUBLISHED_KINDS, latest_tables
from storage.layout import Layout


def latest(layout: Layout, dataset: str) -> dict[str, str]:
    """Give the addresses of the newest forecasts and vectors; those that there are."""
    tables = latest_tables(layout, dataset)
    return {kind: tables[kind][0] for kind in PUBLISHED_KINDS if kind in tables}
