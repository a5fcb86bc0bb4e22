"""flows order: Prefect flows and the command line over the same plain steps."""
