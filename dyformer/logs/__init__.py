"""Raw bytes of an interaction log -> checked events."""
