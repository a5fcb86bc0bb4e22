"""storage keeps: every path, every table, every weight and every tracked run."""
