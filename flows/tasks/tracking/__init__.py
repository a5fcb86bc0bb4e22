"""The store -> MLflow, which is a view of it: what has no mark is sent, and no run needs it."""
