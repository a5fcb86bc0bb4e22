"""The name of a log -> its raw files."""
