"""Runs, metrics, plots and models -> MLflow, or a local spool while MLflow is unreachable."""
