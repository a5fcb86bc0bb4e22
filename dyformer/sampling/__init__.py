"""PreparedGraph -> positive and negative pairs, and the subgraph batches to train and to embed with."""
