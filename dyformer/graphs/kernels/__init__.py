"""Arrays -> arrays: the compiled loops behind the graphs."""
