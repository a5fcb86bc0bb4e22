"""Runs, metrics, plots and models of what the store has -> MLflow."""
