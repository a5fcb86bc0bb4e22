"""Name or address of a log -> its raw files."""
