"""Batches -> vectors: the two-tower graph transformer (paper, section 3)."""
