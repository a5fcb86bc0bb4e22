"""Batches and a fresh model -> trained weights (paper, section 4)."""
