"""Settings, tables and metrics of an experiment."""
