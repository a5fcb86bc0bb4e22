"""Rows of raw logs -> a transactional table of events, its quarantine and its node dictionary."""
