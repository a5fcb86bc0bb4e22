"""EvolveGCN: the method, and the network that is imported when the method is fitted."""
