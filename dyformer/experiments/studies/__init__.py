"""The paper's experiments as data: rows to run, the paper's own values, and the tables that have both."""
