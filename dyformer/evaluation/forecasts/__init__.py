"""A fitted method and a history -> the forecast that is published, its stored record, and its metrics."""
