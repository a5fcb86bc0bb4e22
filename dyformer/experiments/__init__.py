"""Settings, tables and figures of an experiment."""
