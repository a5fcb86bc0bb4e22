"""Graphs -> pairs with labels, and batches of subgraphs."""
