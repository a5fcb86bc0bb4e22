"""GraphSAGE: its settings, and the network that is imported when it is fitted."""
