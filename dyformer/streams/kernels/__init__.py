"""Arrays -> arrays: the compiled loops behind the streaming state."""
