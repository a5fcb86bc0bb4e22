"""The transactional table of events, its quarantine and its node dictionary."""
