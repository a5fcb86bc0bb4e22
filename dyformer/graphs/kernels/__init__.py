"""The compiled loops behind the graphs."""
