"""Runs, metrics and models in MLflow, or in the spool while it is away."""
