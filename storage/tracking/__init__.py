"""Runs, metrics, plots and models -> MLflow, or a spool while MLflow is away."""
