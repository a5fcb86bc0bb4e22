"""dyformer computes: interaction logs to snapshots, graphs, node vectors and evaluated link forecasts."""
