"""Vectors and the past -> scores of pairs, metrics, top links."""
