"""dyformer computes: interaction logs to snapshots, graphs, node vectors and judged link forecasts."""
